//! Requests with a deadline: a device that does not answer costs its pool a bounded time.
//!
//! A request blocks its thread for as long as the device takes. Where a leaf's data is available without
//! the leaf (below mirrors, RAID-Z and dRAID), threads of the leaf make its requests, and the caller waits
//! at most for [`Topology::deadline`]. After that the leaf is faulted ([`LeafReason::Hung`]), every waiting
//! caller gets [`NoAnswer`], and the leaf's writes count as missed. Late results are dropped. The leaf
//! cannot be used again before all its abandoned requests have ended, so that old bytes never overwrite
//! newer ones.
//!
//! If the pool cannot do without the leaf, callers wait for it without limit, and [`Topology::unanswered`]
//! names it.
//!
//! The deadline grows by one second for each MiB that the request moves; for a flush these are the
//! unflushed bytes.
//!
//! Locks: a leaf's queue and a job's state. Each is held for a few instructions, and neither while holding
//! the other.

use crate::io_stats::IoClock;
use crate::leaf_counters::LeafCounters;
use crate::leaf_requests::{Lane, LeafRequests, Request};
use crate::leaf_status::{LeafCondition, LeafReason, LeafState};
use crate::topology::Topology;
use millpond_device::DeviceError;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, MutexGuard};
use millpond_vdev::{LeafId, VdevKind};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A leaf with requests in flight that completed none for this long is slow: reads are planned around it.
const SLOW_NS: u64 = 1_000_000_000;
/// How long a caller waits for an optional request.
const TRY_NS: u64 = 10_000_000_000;
/// What each byte adds to a deadline: about one second for each MiB.
const NS_PER_BYTE: u64 = 1000;

/// How long a device may take for a request before the pool continues without it, where it can; `None` for
/// no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestDeadline(pub Option<Duration>);

impl Default for RequestDeadline {
    /// 30 seconds.
    fn default() -> Self {
        Self(Some(Duration::from_secs(30)))
    }
}

/// The device did not answer in time, or its leaf went out of use meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device does not answer")]
pub struct NoAnswer;

impl From<NoAnswer> for DeviceError {
    fn from(error: NoAnswer) -> Self {
        Self::Io {
            action: "request",
            offset_bytes: 0,
            length_bytes: 0,
            errno: 110,
            message: error.to_string(),
        }
    }
}

thread_local! {
    static IS_UNHURRIED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` with reads that wait for a device without limit, because the calling thread holds nothing
/// that others need. The thread makes such reads itself, which saves waking another one.
pub fn unhurried<T>(body: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_UNHURRIED.set(self.0);
        }
    }
    let _restore = Restore(IS_UNHURRIED.replace(true));
    body()
}

struct Job<R> {
    work: Mutex<Option<Box<dyn FnOnce() -> R + Send>>, rank::Leaf>,
    state: Mutex<JobState<R>, rank::Leaf>,
    changed: Condvar,
    clock: IoClock,
    asked_ns: u64,
    /// 0 until the request starts.
    begun_ns: AtomicU64,
    /// Whether the state is another than [`JobState::Waited`], for a look without the lock.
    is_over: AtomicBool,
}

enum JobState<R> {
    Waited,
    Done(R),
    Panicked,
    Abandoned,
}

impl<R: Send> Request for Job<R> {
    fn perform(&self) {
        let Some(work) = self.work.lock().take() else {
            return;
        };
        self.begun_ns
            .store(self.clock.now_ns().max(1), Ordering::SeqCst);
        // The closure's captures are dropped before the caller continues.
        let outcome = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(outcome) => JobState::Done(outcome),
            Err(_) => JobState::Panicked,
        };
        let mut state = self.state.lock();
        if matches!(*state, JobState::Waited) {
            *state = outcome;
            self.is_over.store(true, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }

    fn abandon(&self) {
        // A request that has not started never runs.
        let work = self.work.lock().take();
        drop(work);
        let mut state = self.state.lock();
        if matches!(*state, JobState::Waited) {
            *state = JobState::Abandoned;
            self.is_over.store(true, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }

    fn is_abandoned(&self) -> bool {
        matches!(*self.state.lock(), JobState::Abandoned)
    }
}

impl LeafRequests {
    /// Makes a request that its caller can do without, with a limit of its own. None is made while the device
    /// has not answered an earlier one in time.
    pub(crate) fn try_request<R: Send + 'static>(
        &self,
        clock: &IoClock,
        limit: Duration,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoAnswer> {
        if self.abandoned() > 0 {
            return Err(NoAnswer);
        }
        let pending = Pending::new(LeafId(0), None, clock, 0, work);
        self.submit(
            Lane::Foreground,
            Arc::clone(&pending.job) as Arc<dyn Request>,
        );
        pending.wait_for(Some(nanoseconds(limit)), || true)
    }
}

/// A request started with [`Topology::start`], whose outcome is pending.
pub(crate) struct Pending<R> {
    leaf: LeafId,
    counters: Option<Arc<LeafCounters>>,
    job: Arc<Job<R>>,
    allowance_ns: u64,
}

/// A request of [`Topology::start_or_make`].
pub(crate) enum Started<R> {
    InThread(Pending<R>),
    Made(R),
}

impl<R: Send + 'static> Started<R> {
    /// Waits for the outcome.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub(crate) fn wait(self, topology: &Topology) -> Result<R, NoAnswer> {
        match self {
            Self::InThread(pending) => pending.wait(topology),
            Self::Made(outcome) => Ok(outcome),
        }
    }
}

impl<R: Send + 'static> Pending<R> {
    fn new(
        leaf: LeafId,
        counters: Option<Arc<LeafCounters>>,
        clock: &IoClock,
        bytes: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Self {
        let job = Arc::new(Job {
            work: Mutex::new(Some(Box::new(work))),
            state: Mutex::new(JobState::Waited),
            changed: Condvar::new(),
            clock: clock.clone(),
            asked_ns: clock.now_ns(),
            begun_ns: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        Self {
            leaf,
            counters,
            job,
            allowance_ns: bytes.saturating_mul(NS_PER_BYTE),
        }
    }

    fn submit(&self, lane: Lane) {
        if let Some(counters) = &self.counters {
            (counters.requests()).submit(lane, Arc::clone(&self.job) as Arc<dyn Request>);
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// [`NoAnswer`] if the request was abandoned.
    ///
    /// # Panics
    /// If the request did.
    pub(crate) fn wait(self, topology: &Topology) -> Result<R, NoAnswer> {
        let limit_ns = match topology.deadline {
            Some(_) if !topology.has_siblings(self.leaf) => None,
            deadline => {
                deadline.map(|deadline| nanoseconds(deadline).saturating_add(self.allowance_ns))
            }
        };
        let leaf = self.leaf;
        self.wait_for(limit_ns, || topology.give_up(leaf))
    }

    /// Whether [`Pending::wait`] would not wait.
    pub(crate) fn is_over(&self) -> bool {
        self.job.is_over.load(Ordering::SeqCst)
    }

    /// Like [`Pending::wait`], but a request that takes too long is abandoned and its leaf stays in use.
    pub(crate) fn wait_or_abandon(self, topology: &Topology) -> Result<R, NoAnswer> {
        let limit_ns = topology.deadline;
        let limit_ns =
            limit_ns.map(|deadline| nanoseconds(deadline).saturating_add(self.allowance_ns));
        self.wait_for(limit_ns, || {
            mark::hit("optional-request-abandoned");
            true
        })
    }

    /// Waits up to `limit_ns`. After that `may_stop` decides, repeatedly, whether to abandon the request.
    fn wait_for(self, limit_ns: Option<u64>, may_stop: impl Fn() -> bool) -> Result<R, NoAnswer> {
        let look = limit_ns.map(look_after);
        let mut state = self.job.state.lock();
        loop {
            match std::mem::replace(&mut *state, JobState::Waited) {
                JobState::Waited => {}
                JobState::Done(outcome) => return Ok(outcome),
                JobState::Panicked => panic!("a request panicked"),
                JobState::Abandoned => {
                    *state = JobState::Abandoned;
                    return Err(NoAnswer);
                }
            }
            let (Some(look), Some(limit_ns)) = (look, limit_ns) else {
                self.job.changed.wait(&mut state);
                continue;
            };
            self.job.changed.wait_for(&mut state, look);
            if !matches!(*state, JobState::Waited) || self.age_ns() < limit_ns {
                continue;
            }
            drop(state);
            if may_stop() {
                self.job.abandon();
            }
            state = self.job.state.lock();
        }
    }

    /// For how long the request has been with the device, or has queued behind others that are.
    fn age_ns(&self) -> u64 {
        let since_ns = match self.job.begun_ns.load(Ordering::SeqCst) {
            0 => {
                let counters = self.counters.as_ref();
                let progress_ns =
                    counters.map_or(0, |counters| counters.waits().progress().since_ns());
                self.job.asked_ns.max(progress_ns)
            }
            begun_ns => begun_ns,
        };
        self.job.clock.now_ns().saturating_sub(since_ns)
    }
}

impl Topology {
    /// Whether the leaf's top-level vdev has redundancy. The redundancy may be used up.
    pub(crate) fn has_siblings(&self, leaf: LeafId) -> bool {
        let top = self.tree.leaf(leaf).and_then(|node| node.top);
        let top = top.and_then(|top| self.tree.top(top));
        top.is_some_and(|top| !matches!(top.kind, VdevKind::Device))
    }

    /// Whether the leaf's own threads make its requests.
    pub(crate) fn has_deadline(&self, leaf: LeafId) -> bool {
        self.deadline.is_some() && self.has_siblings(leaf)
    }

    /// Like [`Topology::has_deadline`], for reads of the calling thread.
    pub(crate) fn reads_with_deadline(&self, leaf: LeafId) -> bool {
        self.has_deadline(leaf) && (!IS_UNHURRIED.get() || self.is_slow(leaf))
    }

    /// Starts a request that moves `bytes` bytes, in a thread of the leaf, for a caller that waits. The request is
    /// abandoned at once if the leaf is out of use.
    pub(crate) fn start<R: Send + 'static>(
        &self,
        leaf: LeafId,
        bytes: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Pending<R> {
        self.start_in(Lane::Foreground, leaf, bytes, work)
    }

    /// Like [`Topology::start`], in a thread of this lane.
    pub(crate) fn start_in<R: Send + 'static>(
        &self,
        lane: Lane,
        leaf: LeafId,
        bytes: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Pending<R> {
        let pending = self.prepare(leaf, bytes, work);
        let counters = pending.counters.as_ref();
        if counters.is_some_and(|counters| counters.status().is_usable()) {
            pending.submit(lane);
        } else {
            pending.job.abandon();
        }
        pending
    }

    fn prepare<R: Send + 'static>(
        &self,
        leaf: LeafId,
        bytes: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Pending<R> {
        let counters = self.counters.get(leaf.0 as usize).cloned();
        Pending::new(leaf, counters, &self.clock, bytes, work)
    }

    /// Makes a request that moves `bytes` bytes: with the deadline if the leaf has one, else in the calling
    /// thread.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(crate) fn request<R: Send + 'static>(
        &self,
        leaf: LeafId,
        bytes: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoAnswer> {
        if !self.has_deadline(leaf) {
            return Ok(work());
        }
        self.start(leaf, bytes, work).wait(self)
    }

    /// Makes one request of each given leaf, in parallel threads of the leaves if `together`, and returns
    /// the outcomes in order. Each request has the deadline of [`Topology::deadline`]; one that missed it
    /// yields `NoAnswer`.
    pub fn on_leaves<R: Send + 'static>(
        &self,
        together: bool,
        requests: Vec<(LeafId, Box<dyn FnOnce() -> R + Send>)>,
    ) -> Vec<Result<R, NoAnswer>> {
        let is_one = requests.len() == 1;
        let needs_thread = |leaf| self.has_deadline(leaf) || (together && !is_one);
        if !together {
            let each = requests.into_iter();
            return each
                .map(|(leaf, work)| self.request(leaf, 0, work))
                .collect();
        }
        let begun: Vec<Started<R>> = (requests.into_iter())
            .map(|(leaf, work)| self.start_or_make(needs_thread(leaf), leaf, 0, work))
            .collect();
        begun
            .into_iter()
            .map(|started| started.wait(self))
            .collect()
    }

    /// Starts a request in a thread of the leaf, or makes it in the calling thread.
    pub(crate) fn start_or_make<R: Send + 'static>(
        &self,
        in_thread: bool,
        leaf: LeafId,
        bytes: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Started<R> {
        match in_thread {
            true => Started::InThread(self.start(leaf, bytes, work)),
            false => Started::Made(work()),
        }
    }

    /// Makes an optional request, such as a check whether a device is present.
    ///
    /// The leaf may be out of use. A device that has not answered for ten seconds gets no request, and the
    /// caller waits no longer than that. Without a deadline the calling thread makes the request itself.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub fn try_leaf<R: Send + 'static>(
        &self,
        leaf: LeafId,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoAnswer> {
        self.try_leaf_for(leaf, TRY_NS, work)
    }

    /// As [`Topology::try_leaf`], with another limit than ten seconds, in nanoseconds.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub fn try_leaf_for<R: Send + 'static>(
        &self,
        leaf: LeafId,
        limit_ns: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoAnswer> {
        let Some(deadline) = self.deadline else {
            return Ok(work());
        };
        if self.stalled_ns(leaf) >= limit_ns || self.abandoned_requests(leaf) > 0 {
            return Err(NoAnswer);
        }
        let pending = self.prepare(leaf, 0, work);
        pending.submit(Lane::Foreground);
        pending.wait_for(Some(nanoseconds(deadline).min(limit_ns)), || true)
    }

    /// Faults a leaf that does not answer, unless the pool cannot do without it. Returns whether the leaf
    /// is out of use.
    fn give_up(&self, leaf: LeafId) -> bool {
        let hung = LeafCondition::new(LeafState::Faulted, LeafReason::Hung);
        if self.change_condition(leaf, hung).is_err() {
            return false;
        }
        mark::hit("leaf-hung");
        if let Some(counters) = self.counters.get(leaf.0 as usize) {
            counters.requests().abandon_all();
        }
        true
    }

    /// Whether a leaf has had requests in flight for a second and completed none. Without a deadline no
    /// leaf is slow.
    pub(crate) fn is_slow(&self, leaf: LeafId) -> bool {
        self.deadline.is_some() && self.stalled_ns(leaf) >= SLOW_NS
    }

    fn stalled_ns(&self, leaf: LeafId) -> u64 {
        let counters = self.counters.get(leaf.0 as usize);
        counters.map_or(0, |counters| {
            counters.waits().progress().stalled_ns(&self.clock)
        })
    }

    /// The number of abandoned requests that the device of a leaf has not completed. The leaf cannot be
    /// used again until it is 0.
    #[must_use]
    pub fn abandoned_requests(&self, leaf: LeafId) -> usize {
        let counters = self.counters.get(leaf.0 as usize);
        counters.map_or(0, |counters| counters.requests().abandoned())
    }

    /// A leaf in use that has not answered for longer than the deadline, and for how long. The pool waits
    /// for it.
    #[must_use]
    pub fn unanswered(&self) -> Option<(LeafId, Duration)> {
        let deadline_ns = nanoseconds(self.deadline?);
        let stalled = self.leaves().map(|leaf| (leaf, self.stalled_ns(leaf)));
        let longest = stalled
            .filter(|(leaf, _)| self.status(*leaf).is_some_and(|status| status.is_usable()))
            .max_by_key(|(_, stalled_ns)| *stalled_ns)?;
        (longest.1 >= deadline_ns).then(|| (longest.0, Duration::from_nanos(longest.1)))
    }
}

/// How often a waiting thread checks the clock.
fn look_after(limit_ns: u64) -> Duration {
    Duration::from_nanos((limit_ns / 64).clamp(1_000_000, 500_000_000))
}

/// Limits how long one thread waits for another to the deadline of a device.
pub(crate) struct Overdue {
    limit: Option<(u64, u64)>,
    clock: IoClock,
}

impl Overdue {
    /// No limit.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self {
            limit: None,
            clock: IoClock::default(),
        }
    }

    /// Starts the limit now; no limit where requests have no deadline.
    pub(crate) fn of(topology: &Topology) -> Self {
        let clock = topology.clock.clone();
        let limit = (topology.deadline).map(|deadline| (clock.now_ns(), nanoseconds(deadline)));
        Self { limit, clock }
    }

    /// Waits for a change of `state`. Returns false once the limit has passed.
    pub(crate) fn wait<T>(&self, changed: &Condvar, state: &mut MutexGuard<'_, T>) -> bool {
        let Some((since_ns, limit_ns)) = self.limit else {
            changed.wait(state);
            return true;
        };
        changed.wait_for(state, look_after(limit_ns));
        self.clock.now_ns().saturating_sub(since_ns) < limit_ns
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
