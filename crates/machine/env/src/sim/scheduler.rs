//! The scheduler: which thread runs.

use super::{Policy, Report, Schedule, Time};
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) type TaskId = u64;

thread_local! {
    static MINE: RefCell<Option<(Arc<Scheduler>, TaskId)>> = const { RefCell::new(None) };
}

/// Calls `body` with the run that this thread belongs to, if any.
pub(super) fn with_mine<T>(body: impl FnOnce(&Arc<Scheduler>, TaskId) -> T) -> Option<T> {
    // While a thread ends, its thread-local variables are destroyed before its last code runs.
    let mine = MINE.try_with(|mine| mine.borrow().clone()).ok().flatten();
    mine.map(|(scheduler, id)| body(&scheduler, id))
}

/// Whether this thread belongs to a run.
pub(crate) fn is_managed() -> bool {
    MINE.try_with(|mine| mine.borrow().is_some())
        .unwrap_or(false)
}

/// A scheduling point: another thread may run here.
pub(super) fn point() {
    if !std::thread::panicking() {
        with_mine(|scheduler, me| scheduler.point(me, false));
    }
}

/// Where a thread blocks until the scheduler resumes it.
#[derive(Default)]
struct ThreadSlot {
    is_next: Mutex<bool>,
    called: Condvar,
}

impl ThreadSlot {
    fn call(&self) {
        *self.is_next.lock() = true;
        self.called.notify_one();
    }
    fn wait(&self) {
        let mut is_next = self.is_next.lock();
        while !*is_next {
            self.called.wait(&mut is_next);
        }
        *is_next = false;
    }
}

struct Task {
    name: String,
    slot: Arc<ThreadSlot>,
    /// What it waits for; `None` if it is ready.
    waits: Option<&'static str>,
    until_ns: Option<u64>,
    has_timed_out: bool,
    rank: u64,
}

/// The threads of a run and its seeded RNG.
pub(super) struct Scheduler {
    state: Mutex<State>,
    ended: Condvar,
    is_stuck: AtomicBool,
}

struct State {
    schedule: Schedule,
    rng: u64,
    tasks: BTreeMap<TaskId, Task>,
    ready: Vec<TaskId>,
    timed: BTreeSet<(u64, TaskId)>,
    time: Option<Arc<dyn Time>>,
    /// The clock of a run without a [`Time`].
    own_ns: u64,
    lowest: u64,
    has_ended: bool,
    is_over: bool,
    stuck: Option<String>,
    report: Report,
}

impl Scheduler {
    pub(super) fn new(schedule: Schedule) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                schedule,
                rng: schedule.seed,
                tasks: BTreeMap::new(),
                ready: vec![],
                timed: BTreeSet::new(),
                time: None,
                own_ns: 0,
                lowest: u64::MAX / 2,
                has_ended: false,
                is_over: false,
                stuck: None,
                report: Report::default(),
            }),
            ended: Condvar::new(),
            is_stuck: AtomicBool::new(false),
        })
    }

    pub(super) fn set_time(&self, time: Arc<dyn Time>) {
        self.state.lock().time = Some(time);
    }

    /// Adds a ready thread.
    pub(super) fn enter(&self, name: &str) -> TaskId {
        let mut state = self.state.lock();
        let id = state.report.threads;
        state.report.threads += 1;
        let rank = u64::MAX / 2 + state.below(u64::MAX / 2);
        let task = Task {
            name: name.to_owned(),
            slot: Arc::default(),
            waits: None,
            until_ns: None,
            has_timed_out: false,
            rank,
        };
        if id == 0 {
            task.slot.call();
        }
        state.tasks.insert(id, task);
        state.ready.push(id);
        id
    }

    /// Removes a thread that could not be started.
    pub(super) fn forget(&self, id: TaskId) {
        let mut state = self.state.lock();
        state.tasks.remove(&id);
        state.ready.retain(|other| *other != id);
    }

    /// Runs `body` as the given thread, from its first scheduling to its end.
    pub(super) fn live<T>(self: &Arc<Self>, id: TaskId, body: impl FnOnce() -> T) -> T {
        MINE.set(Some((Arc::clone(self), id)));
        self.slot(id).wait();
        let outcome = body();
        MINE.set(None);
        let mut state = self.state.lock();
        state.tasks.remove(&id);
        state.ready.retain(|other| *other != id);
        state.has_ended |= id == 0;
        if let Some(next) = self.next(&mut state, id, true) {
            let slot = Arc::clone(&state.tasks[&next].slot);
            drop(state);
            slot.call();
        }
        outcome
    }

    fn slot(&self, id: TaskId) -> Arc<ThreadSlot> {
        Arc::clone(&self.state.lock().tasks[&id].slot)
    }

    /// A scheduling point. With `is_yielding`, another thread runs if one is ready.
    pub(super) fn point(&self, me: TaskId, is_yielding: bool) {
        let state = self.state.lock();
        self.pass(state, me, is_yielding);
    }

    /// Blocks until another thread calls [`Self::unblock`], or until the timeout expires. Returns whether
    /// it expired.
    pub(super) fn block(&self, me: TaskId, what: &'static str, wait_ns: Option<u64>) -> bool {
        let mut state = self.state.lock();
        let until_ns = wait_ns.map(|ns| state.now_ns().saturating_add(ns));
        state.ready.retain(|other| *other != me);
        if let Some(until_ns) = until_ns {
            state.timed.insert((until_ns, me));
        }
        if let Some(task) = state.tasks.get_mut(&me) {
            task.waits = Some(what);
            task.until_ns = until_ns;
            task.has_timed_out = false;
        }
        self.pass(state, me, false);
        let state = self.state.lock();
        state.tasks[&me].has_timed_out
    }

    /// Makes a blocked thread ready.
    pub(super) fn unblock(&self, id: TaskId) {
        self.state.lock().make_ready(id, false);
    }

    /// A random number below `bound`.
    pub(super) fn below(&self, bound: usize) -> usize {
        usize::try_from(self.state.lock().below(bound as u64)).unwrap_or(0)
    }

    pub(super) fn wait_for_the_end(&self) -> (Report, Option<String>) {
        let mut state = self.state.lock();
        while !state.is_over {
            self.ended.wait(&mut state);
        }
        (state.report, state.stuck.take())
    }

    fn pass(&self, mut state: parking_lot::MutexGuard<'_, State>, me: TaskId, is_yielding: bool) {
        let next = self.next(&mut state, me, is_yielding);
        if next == Some(me) {
            return;
        }
        let mine = Arc::clone(&state.tasks[&me].slot);
        let theirs = next.map(|next| Arc::clone(&state.tasks[&next].slot));
        drop(state);
        if let Some(theirs) = theirs {
            theirs.call();
        }
        // Blocks for ever if the run is over.
        mine.wait();
    }

    /// The next thread to run; `None` if the run is over.
    fn next(&self, state: &mut State, me: TaskId, is_yielding: bool) -> Option<TaskId> {
        let next = state.choose(me, is_yielding);
        if next.is_none() || self.is_stuck.load(Ordering::Relaxed) {
            if state.stuck.is_some() {
                self.is_stuck.store(true, Ordering::Relaxed);
            }
            state.is_over = true;
            state.report.left = state.tasks.len() as u64;
            self.ended.notify_all();
            return None;
        }
        next
    }
}

impl State {
    /// The next number of the seed's sequence ("splitmix").
    fn bits(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.rng;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }
    fn now_ns(&self) -> u64 {
        self.time.as_ref().map_or(self.own_ns, |time| time.now_ns())
    }

    fn make_ready(&mut self, id: TaskId, has_timed_out: bool) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if task.waits.take().is_none() {
            return;
        }
        task.has_timed_out = has_timed_out;
        if let Some(until_ns) = task.until_ns.take() {
            self.timed.remove(&(until_ns, id));
        }
        self.ready.push(id);
    }

    fn choose(&mut self, me: TaskId, is_yielding: bool) -> Option<TaskId> {
        if self.is_over {
            return None;
        }
        self.report.points += 1;
        if self.report.points > self.schedule.points_max {
            let text = format!("more than {} points", self.schedule.points_max);
            return self.give_up(&text);
        }
        while let Some((until_ns, id)) = self.timed.first().copied() {
            if until_ns > self.now_ns() {
                // No thread is ready, so time advances; but not for threads that are left over after the
                // body has ended.
                if !self.ready.is_empty() || self.has_ended {
                    break;
                }
                match &self.time {
                    Some(time) => time.advance_to(until_ns),
                    None => self.own_ns = until_ns,
                }
            }
            self.make_ready(id, true);
        }
        if self.ready.is_empty() {
            return match self.has_ended {
                true => None,
                false => self.give_up("nobody can go on"),
            };
        }
        let mine = self.ready.contains(&me);
        let next = match self.schedule.policy {
            Policy::Random { one_in } => {
                let is_free = !mine || is_yielding || self.below(u64::from(one_in)) == 0;
                if is_free {
                    let at = self.below(self.ready.len() as u64);
                    self.ready[usize::try_from(at).unwrap_or(0)]
                } else {
                    me
                }
            }
            Policy::Ranks { one_in } => {
                if mine && (is_yielding || self.below(u64::from(one_in)) == 0) {
                    self.lowest -= 1;
                    let lowest = self.lowest;
                    if let Some(task) = self.tasks.get_mut(&me) {
                        task.rank = lowest;
                    }
                }
                let ready = self.ready.iter().copied();
                ready.max_by_key(|id| self.tasks[id].rank).unwrap_or(me)
            }
        };
        if next != me {
            self.report.switches += 1;
        }
        self.report.digest = (self.report.digest ^ next)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        Some(next)
    }

    fn give_up(&mut self, why: &str) -> Option<TaskId> {
        let each = self.tasks.values().map(|task| {
            let what = task.waits.unwrap_or("its turn");
            format!("{} waits for {what}", task.name)
        });
        let each: Vec<String> = each.collect();
        self.stuck = Some(format!("{why}: {}", each.join(", ")));
        None
    }
}

/// Threads that wait for the same thing.
#[derive(Default)]
pub(super) struct Waiters(Mutex<Vec<TaskId>>);

impl Waiters {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(vec![]))
    }
    /// Waits until woken, or until the timeout expires; returns whether it expired. Only for threads of a
    /// run.
    pub(super) fn wait(&self, what: &'static str, wait_ns: Option<u64>) -> bool {
        let waited = with_mine(|scheduler, me| {
            self.0.lock().push(me);
            let has_timed_out = scheduler.block(me, what, wait_ns);
            if has_timed_out {
                self.0.lock().retain(|other| *other != me);
            }
            has_timed_out
        });
        waited.unwrap_or(false)
    }
    pub(super) fn wake_all(&self) -> usize {
        let all = std::mem::take(&mut *self.0.lock());
        if !all.is_empty() {
            with_mine(|scheduler, _| all.iter().for_each(|id| scheduler.unblock(*id)));
        }
        all.len()
    }
    /// Wakes one of them, which the seed chooses.
    pub(super) fn wake_one(&self) -> bool {
        let mut all = self.0.lock();
        if all.is_empty() {
            return false;
        }
        with_mine(|scheduler, _| {
            let at = scheduler.below(all.len());
            scheduler.unblock(all.remove(at));
        });
        true
    }
}
