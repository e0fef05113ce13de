//! A simulated run.

mod changing;
mod checkpointing;
mod faults;
mod growing;
mod layout;
mod mending;
mod mood;
mod pool;
mod reopening;
mod reshaping;
mod spares;
mod stats;

use super::compare::{judged, read_back, recounted, verified};
use super::logs::{Done, Logs, Wanted};
use super::op::{Op, Plan};
use super::shape::Shape;
use super::states::State;
use crate::hostile::rng::SeededRng;
use crate::workload::{Content, Deed, Life, Model, bytes_of, content_differences};
use checkpointing::Kept;
use layout::{Layout, Position};
use millpond_device::{Candidate, Device};
use millpond_engine::{
    FoundLogs, KeyFormat, NewDevice, NewPool, NewTop, NewVdevOptions, NewVdevs, OpenOptions, Pool,
    PoolCandidate, RootKey, SyncMode, Txg, View, WriteOptions,
};
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, bounded};
use millpond_env::thread;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{Fault, FaultPlan, PowerCut, Scope, Seed, World};
use millpond_txg::DirtyLimits;
use mood::Mood;
pub use stats::RunStats;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(in crate::soak) use pool::path;
use pool::writing;
pub use pool::{create, found, limits, open, view};

/// The pool's name in every run.
pub const POOL: &str = "tank";
/// Only written data takes memory.
///
/// On much smaller disks writers would wait for txgs, because each reserves space for its worst case.
const DISK_BYTES: u64 = 1 << 30;
/// The journal is cleared when it is longer, to limit the memory of a run.
const JOURNAL_EVENTS_MAX: usize = 3000;
const JOURNAL_BYTES_MAX: u64 = 48 << 20;
/// A run ends when this much of the pool is allocated, to limit its memory and duration.
const FULL_BYTES: u64 = 96 << 20;

/// Options of the judges.
#[derive(Debug, Clone)]
pub struct Options {
    /// One of this many runs is judged by `zdb` at its end; 0 for none.
    ///
    /// Runs with failing disks are excluded.
    pub zdb_every: u64,
    /// Space counters are recounted at one of this many reopenings; 0 for none.
    pub recount_every: u64,
    /// A run that takes longer counts as hanging.
    pub limit: Duration,
    /// Whether a failure lists all operations instead of only the last ones.
    pub full_log: bool,
    /// Where to keep images in which `zdb` finds errors.
    pub keep: Option<PathBuf>,
    /// A file for every disk request, one per line. The files of two runs show where they diverge.
    pub requests: Option<PathBuf>,
    /// Scheduling seed of the judges' threads, only with `--cfg millpond_sim`.
    ///
    /// Without it a run uses a single thread.
    pub turns: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            zdb_every: 0,
            recount_every: 1,
            limit: Duration::from_secs(600),
            full_log: false,
            keep: None,
            requests: None,
            turns: None,
        }
    }
}

/// Why a run failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The index of the operation.
    pub at: usize,
    /// The error.
    pub text: String,
    /// The last operations, oldest first.
    pub log: Vec<String>,
    /// Whether it exceeded the time limit. (Shrinking such a run by omitting operations takes too long.)
    pub is_hang: bool,
}

/// Runs a plan. A run that exceeds [`Options::limit`] fails too; its thread is abandoned.
///
/// # Errors
/// The first error, including panics of the engine.
pub fn run(plan: &Plan, options: &Options) -> Result<RunStats, Failure> {
    let at = Arc::new(AtomicUsize::new(0));
    let (send, receive) = bounded(1);
    let thread = {
        let (plan, options, at) = (plan.clone(), options.clone(), Arc::clone(&at));
        thread::spawn("life", move || {
            // After the time limit the receiver is gone.
            let _ = send.send(live_as_told(plan, options, at));
        })
    };
    let failed = |text| Failure {
        at: at.load(Ordering::Relaxed),
        text,
        log: vec![],
        is_hang: false,
    };
    let thread = thread.map_err(|error| failed(failure_text("a thread for the life", &error)))?;
    match receive.recv_timeout(options.limit) {
        Ok(outcome) => {
            let _ = thread.join();
            outcome
        }
        Err(_) => Err(Failure {
            is_hang: true,
            ..failed(format!(
                "not ended after {} s: does it hang?",
                options.limit.as_secs()
            ))
        }),
    }
}

/// Runs on a single thread, or with seeded scheduling on several.
///
/// On a single thread the plan determines everything; otherwise another seed determines the scheduling.
fn live_as_told(plan: Plan, options: Options, at: Arc<AtomicUsize>) -> Result<RunStats, Failure> {
    #[cfg(millpond_sim)]
    if let Some(seed) = options.turns {
        let position = Arc::clone(&at);
        let body = move || live(&plan, &options, &at);
        let outcome = millpond_env::sim::run(super::turns::schedule(seed), body);
        return outcome.map_or_else(
            |ended| {
                Err(Failure {
                    at: position.load(Ordering::Relaxed),
                    text: ended.to_string(),
                    log: vec![],
                    is_hang: true,
                })
            },
            |(outcome, _)| outcome,
        );
    }
    thread::alone(|| live(&plan, &options, &at))
}

fn live(plan: &Plan, options: &Options, at: &AtomicUsize) -> Result<RunStats, Failure> {
    let mut lived = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let lived = lived.insert(Lived::begin(plan, options)?);
        for (number, op) in plan.ops.iter().enumerate() {
            at.store(number, Ordering::Relaxed);
            if let Goes::Out = lived.one(*op)? {
                lived.stats.full = 1;
                break;
            }
        }
        lived.end()
    }));
    let text = match outcome {
        Ok(Ok(())) => {
            let stats = lived.map(|lived| RunStats {
                trace: lived.world.trace(),
                ..lived.stats
            });
            return Ok(stats.unwrap_or_default());
        }
        Ok(Err(text)) => text,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    let log = lived.as_ref().map(Lived::tail).unwrap_or_default();
    // After a panic, dropping the engine may panic again.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(lived)));
    Err(Failure {
        at: at.load(Ordering::Relaxed),
        text,
        log,
        is_hang: false,
    })
}

enum Goes {
    On,
    /// The run ends: the state of the pool is unknown.
    Out,
}

struct Lived<'p> {
    options: &'p Options,
    shape: &'static Shape,
    world: World,
    layout: Layout,
    /// Places whose disks may fail.
    victims: Vec<Position>,
    absent: BTreeSet<usize>,
    /// Log devices without redundancy.
    log_disks: BTreeSet<usize>,
    /// Disks with wrong or old data.
    ///
    /// This lasts until a scrub has written the data again ([`Op::Mend`]).
    harmed: BTreeSet<usize>,
    pool: Option<Pool>,
    life: Life,
    mood: Mood,
    seed: u64,
    committed: Txg,
    /// The content of the pool at committed txgs, oldest first.
    states: Vec<State>,
    /// The promises of intent logs since then.
    logs: Logs,
    /// The number of the next effect.
    next: u64,
    /// The journal event after which each txg was acknowledged.
    acknowledged: Vec<(usize, Txg)>,
    openings: u64,
    /// Number of journal events of the last open; 0 once they are cleared.
    opened_after: usize,
    /// No disk was removed before this number of events.
    none_went_before: usize,
    stats: RunStats,
    /// Whether a power cut happened since all labels were written.
    may_be_torn: bool,
    /// The checkpoint, if it is known what it keeps.
    kept: Option<Kept>,
    /// Whether the pool returns to its checkpoint when it is opened next.
    rewinds: bool,
    /// Whether a log was discarded with its device.
    may_leak: bool,
    /// A power cut may have left unlinked files in file systems that were not opened since.
    has_orphans: bool,
}

/// Records every disk request in a file, one per line.
pub(super) fn record_requests(world: &World, file: &Path) -> Result<(), String> {
    let file = File::create(file).map_err(|error| failure_text("the file for requests", &error))?;
    let lines: Mutex<_> = Mutex::new(BufWriter::new(file));
    world.watch(move |request| {
        // A full disk affects only the recording, not the run.
        let _ = writeln!(lines.lock(), "{request}");
    });
    Ok(())
}

fn failure_text(what: &str, error: &dyn std::fmt::Display) -> String {
    format!("{what}: {error}")
}

impl<'p> Lived<'p> {
    fn begin(plan: &'p Plan, options: &'p Options) -> Result<Self, String> {
        let mut rng = SeededRng::new(plan.seed);
        let world = World::new(plan.seed);
        if let Some(file) = &options.requests {
            record_requests(&world, file)?;
        }
        let seed_of_victims = rng.word();
        let mood = Mood::of(&mut rng);
        let pool = create(&world, plan.shape, writing(), mood.cache_bytes)?;
        let layout = Layout::of(&pool.inner().config().root)?;
        let victims = layout.victims(plan.shape, &mut SeededRng::new(seed_of_victims));
        mood.force_gangs(&pool);
        let mut life = Life::new(POOL, plan.shape.name, plan.seed);
        life.file_bytes_max = mood.file_bytes_max;
        life.dataset_percent = mood.dataset_percent;
        life.keeps_open = mood.keeps_open;
        life.makes_many = mood.makes_many;
        life.copy_percent = mood.copy_percent;
        life.syncs_seldom = true;
        life.sets_synchrony = true;
        life.is_encrypted = plan.shape.is_encrypted;
        let mut lived = Self {
            options,
            shape: plan.shape,
            world,
            layout,
            victims,
            absent: BTreeSet::new(),
            log_disks: plan.shape.single_logs(),
            harmed: BTreeSet::new(),
            pool: None,
            committed: pool.inner().uberblock().txg,
            life,
            mood,
            seed: plan.seed,
            states: vec![],
            logs: Logs::default(),
            next: 0,
            acknowledged: vec![],
            openings: plan.seed,
            opened_after: 0,
            none_went_before: 0,
            stats: RunStats::default(),
            may_be_torn: false,
            kept: None,
            rewinds: false,
            may_leak: false,
            has_orphans: false,
        };
        lived.start(pool);
        Ok(lived)
    }

    /// Records that the pool's state equals the model.
    fn start(&mut self, pool: Pool) {
        self.committed = pool.inner().uberblock().txg;
        self.pool = Some(pool);
        self.forget();
    }

    /// Clears the journal. Power cuts happen after this point.
    fn forget(&mut self) {
        self.world.forget();
        let last = self.states.pop();
        let last = last.filter(|state| state.txg == self.committed);
        let last =
            last.unwrap_or_else(|| State::of(self.committed, self.life.model.clone(), self.next));
        self.logs.forget(last.from);
        self.states = vec![last];
        self.acknowledged = vec![(0, self.committed)];
        self.opened_after = 0;
        self.none_went_before = 0;
    }

    fn tail(&self) -> Vec<String> {
        let shown = if self.options.full_log {
            usize::MAX
        } else {
            25
        };
        let from = self.life.log.len().saturating_sub(shown);
        self.life.log[from..].to_vec()
    }

    fn pool(&self) -> Result<&Pool, String> {
        self.pool.as_ref().ok_or_else(|| "not open".to_owned())
    }

    /// Records the operations and promises since the disks had received `began` requests.
    ///
    /// `is_kept` says whether promises were kept.
    fn take_deeds(&mut self, began: usize, is_kept: bool) -> Vec<Done> {
        let mut effects = vec![];
        let mut kept = None;
        for (dataset, deed) in std::mem::take(&mut self.life.deeds) {
            if let Deed::Effect(effect) = &deed {
                let done = Done {
                    number: self.next,
                    dataset: dataset.as_str().into(),
                    effect: Arc::clone(effect),
                };
                self.next += 1;
                effects.push(done.clone());
                self.logs.append(done);
                continue;
            }
            if matches!(deed, Deed::Commit { .. }) && is_kept {
                self.stats.promises += 1;
                kept = Some(self.world.recorded());
            }
            self.logs.note(&dataset, &deed, began, kept);
        }
        effects
    }

    /// Records what an operation committed.
    ///
    /// `work` is the model before it, the number of its first effect, and its effects.
    fn note(&mut self, work: Option<(Model, u64, Vec<Done>)>) -> Result<(), String> {
        let now = self.pool()?.inner().uberblock().txg;
        let events = self.world.recorded();
        if now > self.committed {
            let after = self.life.model.clone();
            self.stats.txgs += now.0 - self.committed.0;
            // Each txg of an operation contains all of it, nothing of it, or a prefix of its effects.
            for txg in self.committed.0 + 1..=now.0 {
                let state = match &work {
                    None => State::of(Txg(txg), after.clone(), self.next),
                    Some((before, from, effects)) => State {
                        then: effects.clone(),
                        after: Some(after.clone()),
                        ..State::of(Txg(txg), before.clone(), *from)
                    },
                };
                self.states.push(state);
            }
            self.committed = now;
            self.acknowledged.push((events, now));
            if self.world.recorded_bytes() > JOURNAL_BYTES_MAX {
                self.forget();
            }
        }
        if events > JOURNAL_EVENTS_MAX {
            self.forget();
        }
        Ok(())
    }

    fn one(&mut self, op: Op) -> Result<Goes, String> {
        self.stats.ops += 1;
        match op {
            Op::Work(seed) => {
                let before = self.life.model.clone();
                let (from, began) = (self.next, self.world.recorded());
                self.life.rng = SeededRng::new(seed);
                let Self { life, pool, .. } = self;
                let pool = pool.as_ref().ok_or("not open")?;
                if let Err(error) = life.step(pool) {
                    let is_full = ["no space", "No space", "quota"]
                        .iter()
                        .any(|words| error.to_string().contains(words));
                    if is_full {
                        // It is unknown how much of the operation was done.
                        self.life.close_file_systems();
                        self.pool = None;
                        return Ok(Goes::Out);
                    }
                    return Err(format!("refused: {error}: {error:?}"));
                }
                let effects = self.take_deeds(began, true);
                self.note(Some((before, from, effects)))?;
                if self.stats.ops.is_multiple_of(64) {
                    let space = self.pool()?.inner().space().pool();
                    if space.allocated_bytes > FULL_BYTES {
                        return Ok(Goes::Out);
                    }
                }
            }
            Op::Sync => {
                self.sync()?;
            }
            Op::Commit(seed) => {
                let began = self.world.recorded();
                self.commit(seed)
                    .map_err(|error| format!("commit refused: {error}"))?;
                self.take_deeds(began, true);
                self.note(None)?;
            }
            Op::LoseLog(seed) => return self.lose_log(seed),
            Op::ReadBack(seed) => {
                let names: Vec<String> = self.life.model.heads.keys().cloned().collect();
                let name = SeededRng::new(seed)
                    .pick(&names)
                    .cloned()
                    .unwrap_or_default();
                read_back(self.pool()?, &self.life.model, &name)?;
                self.note(None)?;
            }
            Op::Look => {
                self.sync()?;
                let read = self.pool()?.committed();
                let read = read.map_err(|error| failure_text("committed", &error))?;
                self.demand(&read, &[(self.life.model.clone(), 0)], false)?;
                self.stats.compared += 1;
            }
            Op::Reopen => return self.reopen(),
            Op::Cut(seed) => return self.cut(seed),
            Op::Vanish(seed) => {
                if let Some(victim) = self.victim(seed) {
                    self.absent.insert(victim);
                    self.none_went_before = self.opened_after;
                    self.harmed.insert(victim);
                    self.disk(victim).set_absent(true);
                    self.life.log.push(format!("disk {victim} is gone"));
                }
            }
            Op::Heal => {
                if !self.absent.is_disjoint(&self.log_disks) {
                    // Until the txg that discards its log is written, a device that returns brings its log
                    // back.
                    self.none_went_before = self.none_went_before.max(self.opened_after);
                }
                for disk in self.world.disks() {
                    disk.set_absent(false);
                    disk.set_faults(None);
                }
                self.absent.clear();
                self.life.log.push("all disks are back".to_owned());
            }
            Op::Scan(seed) => self.scan(seed)?,
            Op::Mend(seed) => self.mend(seed)?,
            Op::Attach(seed) => self.attach(seed)?,
            Op::Detach(seed) => self.detach(seed)?,
            Op::Spare(seed) => self.spare(seed)?,
            Op::Grow(seed) => self.grow(seed)?,
            Op::Trim(seed) => self.trim(seed)?,
            Op::Checkpoint => self.checkpoint()?,
            Op::Reshape(seed) => self.reshape(seed)?,
            Op::Rot(seed) => self.rot(seed),
            Op::Err(seed) => self.err(seed),
            Op::Refuse(seed) => return self.refuse(seed),
        }
        Ok(Goes::On)
    }

    fn sync(&mut self) -> Result<(), String> {
        let synced = self.pool()?.sync();
        synced.map_err(|error| failure_text("sync", &error))?;
        self.note(None)
    }

    fn commit(&mut self, seed: u64) -> Result<(), millpond_engine::Error> {
        self.life.rng = SeededRng::new(seed);
        let Self { life, pool, .. } = self;
        match pool {
            Some(pool) => life.commit(pool),
            None => Ok(()),
        }
    }

    /// The final checks: every snapshot, and occasionally `zdb`.
    fn end(&mut self) -> Result<(), String> {
        if let Some(pool) = self.pool.take() {
            if self.has_orphans {
                self.open_all(&pool)?;
            }
            self.pool = Some(pool);
            self.sync()?;
            let read = self.pool()?.committed();
            let read = read.map_err(|error| failure_text("committed", &error))?;
            let differences = self.life.model.differences(&read);
            if !differences.is_empty() {
                return Err(format!("at the end:\n  {}", differences.join("\n  ")));
            }
            self.stats.compared += 1;
        }
        let every = self.options.zdb_every;
        if every == 0 || !self.seed.is_multiple_of(every) || !self.harmed.is_empty() {
            return Ok(());
        }
        if let Some(pool) = self.pool.take() {
            self.life.close_file_systems();
            pool.export()
                .map_err(|error| failure_text("export", &error))?;
        }
        if judged(&self.world, POOL, self.options)? {
            self.stats.judged += 1;
        }
        Ok(())
    }
}
