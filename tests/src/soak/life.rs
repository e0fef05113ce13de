//! A life, lived.

use super::compare::{judged, read_back, recounted, verified};
use super::logs::{Done, Logs, Wanted};
use super::op::{Op, Plan};
use super::states::State;
use crate::hostile::dice::Dice;
use crate::workload::{Content, Deed, Life, Model, bytes_of, content_differences};
use millpond::live::{
    Drive, FeatureChoice, FoundLogs, LivePool, NewDevice, NewPool, NewTop, NewVdevOptions,
    NewVdevs, WriteOptions,
};
use millpond::{OpenOptions, Pool, PoolCandidate, Txg};
use millpond_device::{Candidate, Device};
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, bounded};
use millpond_env::thread;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{Fault, FaultPlan, PowerCut, Scope, Seed, Trace, World};
use millpond_txg::DirtyLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const POOL: &str = "tank";
/// Only what is written takes memory. Much smaller ones would make writers wait for txgs: each announces its
/// worst case.
const DISK_BYTES: u64 = 1 << 30;
/// Of so many snapshots one is compared at each reopening; all of them where a life ends.
const SNAPSHOT_TURNS: u64 = 3;
/// How a difference ends that is about files without a name.
const ORPHANS: &str = " files left unlinked";
/// Labels and the uberblocks in front; rot there is for other tests.
const DATA_START_BYTES: u64 = 4 << 20;
/// The journal is forgotten when it is longer, so that a life needs little memory.
const JOURNAL_EVENTS_MAX: usize = 3000;
const JOURNAL_BYTES_MAX: u64 = 48 << 20;
/// A life ends when so much of the pool is allocated: memory is short, and so are lives.
const FULL_BYTES: u64 = 96 << 20;

/// What judges are asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// Every so many lives `zdb` judges at the end; 0 for never. Not if disks were made to fail.
    pub zdb_every: u64,
    /// Figures are counted anew at every so many reopenings; 0 for never.
    pub recount_every: u64,
    /// A life that takes longer hangs.
    pub limit: Duration,
    /// Whether a failure tells all that was done, not only the last things.
    pub full_log: bool,
    /// Where images that `zdb` accuses are kept.
    pub keep: Option<PathBuf>,
    /// Where every request to the disks is written, a line each: two runs' files show where they part.
    pub requests: Option<PathBuf>,
    /// Judges work with several threads, whose turns this seed decides (only with `--cfg millpond_sim`); else a life is
    /// alone.
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

/// What was lived through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations done, all kinds.
    pub ops: u64,
    /// Txgs committed.
    pub txgs: u64,
    /// Power cuts survived.
    pub cuts: u64,
    /// Clean reopenings.
    pub reopened: u64,
    /// Faults planted.
    pub faults: u64,
    /// Requests of disks that went wrong.
    pub broken_promises: u64,
    /// Times that every figure was counted anew.
    pub recounted: u64,
    /// Comparisons of a whole pool with the model.
    pub compared: u64,
    /// Judgements by `zdb`.
    pub judged: u64,
    /// Lives that ended early because the pool was full.
    pub full: u64,
    /// Promises of intent logs kept.
    pub promises: u64,
    /// Effects that only an intent log brought back after a power cut.
    pub brought_back: u64,
    /// Power cuts after which a log brought back more than was promised, or less than was under way.
    pub torn: u64,
    /// Log devices lost, with what was promised on them.
    pub lost_logs: u64,
    /// All requests to the disks, in their order.
    pub trace: Trace,
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.ops += other.ops;
        self.txgs += other.txgs;
        self.cuts += other.cuts;
        self.reopened += other.reopened;
        self.faults += other.faults;
        self.broken_promises += other.broken_promises;
        self.recounted += other.recounted;
        self.compared += other.compared;
        self.judged += other.judged;
        self.full += other.full;
        self.promises += other.promises;
        self.brought_back += other.brought_back;
        self.torn += other.torn;
        self.lost_logs += other.lost_logs;
        self.trace += other.trace;
    }
}

/// Why a life failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The number of the operation.
    pub at: usize,
    /// What was wrong.
    pub text: String,
    /// The last things done, oldest first.
    pub log: Vec<String>,
    /// Whether it did not end in time. (Leaving out operations to find which hangs takes too long.)
    pub is_hang: bool,
}

/// Lives a plan. A life that does not end within [`Options::limit`] has failed, too; its thread is left alone.
///
/// # Errors
/// The first thing that was wrong; panics of the engine included.
pub fn run(plan: &Plan, options: &Options) -> Result<Figures, Failure> {
    let at = Arc::new(AtomicUsize::new(0));
    let (send, receive) = bounded(1);
    let thread = {
        let (plan, options, at) = (plan.clone(), options.clone(), Arc::clone(&at));
        thread::spawn("life", move || {
            // Nobody listens after the limit.
            let _ = send.send(live_as_told(plan, options, at));
        })
    };
    let failed = |text| Failure {
        at: at.load(Ordering::Relaxed),
        text,
        log: vec![],
        is_hang: false,
    };
    let thread = thread.map_err(|error| failed(told("a thread for the life", &error)))?;
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

/// Alone, so that the plan decides everything; or with threads, whose turns another seed decides.
fn live_as_told(plan: Plan, options: Options, at: Arc<AtomicUsize>) -> Result<Figures, Failure> {
    #[cfg(millpond_sim)]
    if let Some(seed) = options.turns {
        let place = Arc::clone(&at);
        let body = move || live(&plan, &options, &at);
        let outcome = millpond_env::sim::run(super::turns::schedule(seed), body);
        return outcome.map_or_else(
            |ended| {
                Err(Failure {
                    at: place.load(Ordering::Relaxed),
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

fn live(plan: &Plan, options: &Options, at: &AtomicUsize) -> Result<Figures, Failure> {
    let mut lived = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let lived = lived.insert(Lived::begin(plan, options)?);
        for (number, op) in plan.ops.iter().enumerate() {
            at.store(number, Ordering::Relaxed);
            if let Goes::Out = lived.one(*op)? {
                lived.figures.full = 1;
                break;
            }
        }
        lived.end()
    }));
    let text = match outcome {
        Ok(Ok(())) => {
            let figures = lived.map(|lived| Figures {
                trace: lived.world.trace(),
                ..lived.figures
            });
            return Ok(figures.unwrap_or_default());
        }
        Ok(Err(text)) => text,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    let log = lived.as_ref().map(Lived::tail).unwrap_or_default();
    // An engine that has panicked may do so again when it goes.
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
    /// Nothing more can be told of this pool.
    Out,
}

struct Lived<'p> {
    options: &'p Options,
    world: World,
    victims: Vec<usize>,
    absent: BTreeSet<usize>,
    /// Log devices without a copy.
    log_disks: BTreeSet<usize>,
    /// Disks that hold something wrong or old, until the end: nothing here writes it again.
    harmed: BTreeSet<usize>,
    pool: Option<LivePool>,
    life: Life,
    mood: Mood,
    seed: u64,
    committed: Txg,
    /// What the pool held at committed txgs, oldest first.
    states: Vec<State>,
    /// What intent logs promised since then.
    logs: Logs,
    /// The number of the next effect.
    next: u64,
    /// After which event of the journal each txg was acknowledged.
    acknowledged: Vec<(usize, Txg)>,
    openings: u64,
    /// How many events of the journal the last opening took; 0 once they are forgotten.
    opened_after: usize,
    /// No disk was taken away before so many events.
    none_went_before: usize,
    figures: Figures,
    /// Whether the power failed since all labels were written.
    may_be_torn: bool,
    /// Whether a log was given up with its device.
    may_leak: bool,
    /// A power cut may have left files unlinked in file systems that were not opened since.
    has_orphans: bool,
}

/// What distinguishes one life from another besides what is done in it.
#[derive(Debug, Clone, Copy)]
struct Mood {
    dataset_percent: usize,
    file_bytes_max: usize,
    /// Whether handles of file systems outlive operations.
    keeps_open: bool,
    makes_many: bool,
    /// In some lives little of the pool stays in memory.
    cache_bytes: u64,
}

impl Mood {
    fn of(dice: &mut Dice) -> Self {
        Self {
            dataset_percent: *dice.pick(&[0, 0, 1, 1, 1, 4]).unwrap_or(&1),
            file_bytes_max: *dice
                .pick(&[4000, 4000, 12_000, 12_000, 24_000, 200_000, 400_000])
                .unwrap_or(&12_000),
            keeps_open: dice.below(4) > 0,
            makes_many: dice.below(6) == 0,
            cache_bytes: *dice
                .pick(&[128 << 20, 128 << 20, 128 << 20, 128 << 20, 4 << 20])
                .unwrap_or(&0),
        }
    }
}

/// Has every request to the disks written to a file, a line each.
pub(super) fn record_requests(world: &World, file: &Path) -> Result<(), String> {
    let file = File::create(file).map_err(|error| told("the file for requests", &error))?;
    let lines = Mutex::new(BufWriter::new(file));
    world.watch(move |request| {
        // A full disk spoils the record, not the life.
        let _ = writeln!(lines.lock(), "{request}");
    });
    Ok(())
}

fn told(what: &str, error: &dyn std::fmt::Display) -> String {
    format!("{what}: {error}")
}

pub(super) fn limits() -> DirtyLimits {
    DirtyLimits {
        limit_bytes: 4 << 30,
        ..DirtyLimits::default()
    }
}

fn writing() -> WriteOptions {
    WriteOptions {
        drive: Drive::Caller,
        limits: limits(),
        ..WriteOptions::default()
    }
}

pub(super) fn path(disk: usize) -> String {
    format!("/sim/d{disk}")
}

/// Makes the pool of a shape on new disks.
pub(super) fn create(
    world: &World,
    shape: &super::Shape,
    writing: WriteOptions,
    cache_bytes: u64,
) -> Result<LivePool, String> {
    let mut tops = vec![];
    let mut next = 0;
    for (class, layout, leaves) in shape.tops {
        let devices = (next..next + leaves).map(|number| {
            let disk = world.disk(DISK_BYTES, 512);
            NewDevice::file(&path(number), disk as Arc<dyn Device>)
        });
        tops.push(NewTop {
            layout: *layout,
            class: *class,
            devices: devices.collect(),
        });
        next += leaves;
    }
    let new = NewPool {
        name: POOL.to_owned(),
        vdevs: NewVdevs {
            tops,
            ..NewVdevs::default()
        },
        vdev_options: NewVdevOptions {
            ashift: Some(shape.ashift),
            force: true,
        },
        features: FeatureChoice::Default,
        settings: vec![],
        root_properties: BTreeMap::new(),
        writing,
        system: "soak".to_owned(),
        cache_bytes,
    };
    LivePool::create(&world.env(), &new).map_err(|error| told("creation", &error))
}

pub(super) fn found(world: &World, absent: &BTreeSet<usize>) -> Result<PoolCandidate, String> {
    let disks = world.disks().into_iter().enumerate();
    let candidates = disks
        .filter(|(number, _)| !absent.contains(number))
        .map(|(number, disk)| Candidate {
            path: path(number).into(),
            aliases: vec![],
            partition: None,
            device: disk,
            is_live: false,
        });
    let pools = find_pools(&scan_devices(candidates.collect()), 0);
    match <[PoolCandidate; 1]>::try_from(pools) {
        Ok([pool]) => Ok(pool),
        Err(pools) => Err(format!("{} pools are found", pools.len())),
    }
}

impl<'p> Lived<'p> {
    fn begin(plan: &'p Plan, options: &'p Options) -> Result<Self, String> {
        let mut dice = Dice::new(plan.seed);
        let world = World::new(plan.seed);
        if let Some(file) = &options.requests {
            record_requests(&world, file)?;
        }
        let victims = plan.shape.victims(&mut dice);
        let mood = Mood::of(&mut dice);
        let pool = create(&world, plan.shape, writing(), mood.cache_bytes)?;
        let mut life = Life::new(POOL, plan.shape.name, plan.seed);
        life.file_bytes_max = mood.file_bytes_max;
        life.dataset_percent = mood.dataset_percent;
        life.keeps_open = mood.keeps_open;
        life.makes_many = mood.makes_many;
        life.syncs_seldom = true;
        life.sets_synchrony = true;
        let mut lived = Self {
            options,
            world,
            victims,
            absent: BTreeSet::new(),
            log_disks: plan.shape.single_logs(),
            harmed: BTreeSet::new(),
            pool: None,
            committed: pool.engine().uberblock().txg,
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
            figures: Figures::default(),
            may_be_torn: false,
            may_leak: false,
            has_orphans: false,
        };
        lived.start(pool);
        Ok(lived)
    }

    /// The pool's state is known to be the model's.
    fn start(&mut self, pool: LivePool) {
        self.committed = pool.engine().uberblock().txg;
        self.pool = Some(pool);
        self.forget();
    }

    /// Power cuts happen from here on.
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

    fn pool(&self) -> Result<&LivePool, String> {
        self.pool.as_ref().ok_or_else(|| "not open".to_owned())
    }

    /// Takes in what was done and promised since the disks had got `began` requests; `is_kept` says whether
    /// promises were kept.
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
                self.figures.promises += 1;
                kept = Some(self.world.recorded());
            }
            self.logs.note(&dataset, &deed, began, kept);
        }
        effects
    }

    /// Notes what an operation has committed: the model before it, the number of its first effect, its effects.
    fn note(&mut self, work: Option<(Model, u64, Vec<Done>)>) -> Result<(), String> {
        let now = self.pool()?.engine().uberblock().txg;
        let events = self.world.recorded();
        if now > self.committed {
            let after = self.life.model.clone();
            self.figures.txgs += now.0 - self.committed.0;
            // Each of the txgs of one operation holds it or does not, or a first part of it.
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
        self.figures.ops += 1;
        match op {
            Op::Work(seed) => {
                let before = self.life.model.clone();
                let (from, began) = (self.next, self.world.recorded());
                self.life.dice = Dice::new(seed);
                let Self { life, pool, .. } = self;
                let pool = pool.as_ref().ok_or("not open")?;
                if let Err(error) = life.step(pool) {
                    let is_full = ["no space", "No space", "quota"]
                        .iter()
                        .any(|words| error.to_string().contains(words));
                    if is_full {
                        // How much of it was done is not known.
                        self.life.let_go();
                        self.pool = None;
                        return Ok(Goes::Out);
                    }
                    return Err(format!("refused: {error}: {error:?}"));
                }
                let effects = self.take_deeds(began, true);
                self.note(Some((before, from, effects)))?;
                if self.figures.ops.is_multiple_of(64) {
                    let space = self.pool()?.engine().space().pool();
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
                let name = Dice::new(seed).pick(&names).cloned().unwrap_or_default();
                read_back(self.pool()?, &self.life.model, &name)?;
                self.note(None)?;
            }
            Op::Look => {
                self.sync()?;
                let read = self.pool()?.committed();
                let read = read.map_err(|error| told("committed", &error))?;
                self.demand(&read, &[(self.life.model.clone(), 0)], false)?;
                self.figures.compared += 1;
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
                for disk in self.world.disks() {
                    disk.set_absent(false);
                    disk.set_faults(None);
                }
                self.absent.clear();
                self.life.log.push("all disks are back".to_owned());
            }
            Op::Rot(seed) => self.rot(seed),
            Op::Err(seed) => self.err(seed),
            Op::Refuse(seed) => return self.refuse(seed),
        }
        Ok(Goes::On)
    }

    fn sync(&mut self) -> Result<(), String> {
        let synced = self.pool()?.sync();
        synced.map_err(|error| told("sync", &error))?;
        self.note(None)
    }

    fn commit(&mut self, seed: u64) -> Result<(), millpond::Error> {
        self.life.dice = Dice::new(seed);
        let Self { life, pool, .. } = self;
        match pool {
            Some(pool) => life.commit(pool),
            None => Ok(()),
        }
    }

    fn victim(&mut self, seed: u64) -> Option<usize> {
        let victim = Dice::new(seed).pick(&self.victims).copied()?;
        self.figures.faults += 1;
        Some(victim)
    }

    fn disk(&self, number: usize) -> Arc<millpond_sim::SimDisk> {
        Arc::clone(&self.world.disks()[number])
    }

    fn rot(&mut self, seed: u64) {
        let Some(victim) = self.victim(seed) else {
            return;
        };
        let mut dice = Seed::new(seed);
        self.harmed.insert(victim);
        let disk = self.disk(victim);
        // Where there is something.
        let content = disk.content();
        let places: Vec<u64> = content
            .pages()
            .map(|(offset, _)| offset)
            .filter(|offset| (DATA_START_BYTES..DISK_BYTES - DATA_START_BYTES).contains(offset))
            .collect();
        for _ in 0..1 + dice.below(8) {
            let Some(start) = dice.choose(&places).copied() else {
                return;
            };
            let length = 512 << dice.below(8);
            let mut noise = vec![0; length];
            dice.fill(&mut noise);
            disk.rot(start, &noise);
        }
        self.life.log.push(format!("disk {victim} rots"));
    }

    fn err(&mut self, seed: u64) {
        let Some(victim) = self.victim(seed) else {
            return;
        };
        self.harmed.insert(victim);
        let mut dice = Seed::new(seed);
        let kinds = [
            (Scope::Writes, Fault::Fail),
            (Scope::Writes, Fault::Lose),
            (Scope::Writes, Fault::Corrupt),
            (Scope::Writes, Fault::Misdirect),
            (Scope::Reads, Fault::Fail),
            (Scope::Reads, Fault::Corrupt),
            (Scope::Reads, Fault::Misdirect),
            (Scope::Flushes, Fault::Fail),
            (Scope::Flushes, Fault::Lose),
        ];
        let mut plan = FaultPlan::new(dice.fork());
        for _ in 0..1 + dice.below(3) {
            let rate = [10_000, 100_000, 1_000_000];
            let rate = dice.choose(&rate).copied().unwrap_or(10_000);
            if let Some((scope, fault)) = dice.choose(&kinds).copied() {
                plan = plan.with(scope, fault, rate);
            }
        }
        self.life.log.push(format!("disk {victim} errs: {plan:?}"));
        self.disk(victim).set_faults(Some(plan));
    }

    /// A txg is written while a disk refuses writes. It may be committed or not; nothing older is lost.
    fn refuse(&mut self, seed: u64) -> Result<Goes, String> {
        self.note(None)?;
        let mut dice = Seed::new(seed);
        let disks = self.world.disks();
        let number = usize::try_from(dice.below(disks.len() as u64)).unwrap_or(0);
        let is_victim = self.victims.contains(&number);
        // One disk more than redundancy bears: whatever happens, it happens to this txg only.
        let is_alone = self.harmed.is_empty() || is_victim;
        if !is_alone {
            return Ok(Goes::On);
        }
        self.figures.faults += 1;
        let rates = [20_000, 300_000, 1_000_000];
        let rate = dice.choose(&rates).copied().unwrap_or(1_000_000);
        let scope = if dice.below(4) == 0 {
            Scope::Flushes
        } else {
            Scope::Writes
        };
        let plan = FaultPlan::new(dice.fork()).with(scope, Fault::Fail, rate);
        // Half of the time it is an intent log that is refused first; the txg is its way out.
        let is_commit = dice.below(2) == 0;
        let began = self.world.recorded();
        disks[number].set_faults(Some(plan));
        let synced = match is_commit {
            true => self.commit(dice.bits()),
            false => self.pool()?.sync().map(drop),
        };
        disks[number].set_faults(None);
        self.take_deeds(began, synced.is_ok());
        let shown = synced.as_ref().err().map(ToString::to_string);
        self.life.log.push(format!(
            "disk {number} refused {scope:?} ({rate} of a million): {shown:?}"
        ));
        if synced.is_ok() {
            self.note(None)?;
            // What it missed nothing here writes again.
            if disks[number].broken_promises() > 0 {
                self.harmed.insert(number);
                if !is_victim && !self.victims.is_empty() {
                    // Together with those that may fail it would be one too many.
                    self.victims = vec![number];
                }
            }
            return Ok(Goes::On);
        }
        // Uberblocks of the txg that failed may stand on some disks.
        for txg in 1..=3 {
            let txg = Txg(self.committed.0 + txg);
            let state = State::of(txg, self.life.model.clone(), self.next);
            self.states.push(state);
        }
        self.committed = Txg(self.committed.0 + 3);
        self.harmed.insert(number);
        self.cut(dice.bits())
    }

    /// Which of these models a pool holds.
    /// The first model that the pool is like. With `is_amid` a txg was committed amid an operation: a file that has
    /// lost its last name may still wait to be freed, which takes transactions of its own.
    fn demand(&self, read: &Pool, models: &[(Model, u64)], is_amid: bool) -> Result<usize, String> {
        let mut all = vec![];
        for (number, (model, _)) in models.iter().enumerate() {
            // Verification has read all blocks; of the snapshots' files a part is compared each time.
            let mut differences = model.differences_in_turn(read, self.openings, SNAPSHOT_TURNS);
            if is_amid || self.has_orphans {
                differences.retain(|line| !line.ends_with(ORPHANS));
            }
            if differences.is_empty() {
                return Ok(number);
            }
            all.push(format!(
                "differs at txg {} from model {number}:\n  {}",
                read.inner().uberblock().txg,
                differences.join("\n  ")
            ));
        }
        Err(all.join("\n"))
    }

    /// What a power cut has left unlinked is freed when its file system is opened, and not before: afterwards
    /// nothing may be left.
    fn open_all(&mut self, pool: &LivePool) -> Result<(), String> {
        self.has_orphans = false;
        let heads = self.life.model.heads.iter();
        for (name, _) in heads.filter(|(_, head)| matches!(head.content, Content::Files(_))) {
            let opened = pool.file_system(name);
            opened.map_err(|error| told(&format!("opening {name}"), &error))?;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<Goes, String> {
        self.note(None)?;
        let pool = self.pool.take().ok_or("not open")?;
        self.life.let_go();
        self.open_all(&pool)?;
        pool.export().map_err(|error| told("export", &error))?;
        self.states.clear();
        self.logs = Logs::default();
        self.figures.reopened += 1;
        self.may_be_torn = false;
        self.life.log.push("exported".to_owned());
        let state = State::of(Txg(0), self.life.model.clone(), self.next);
        self.open_again(usize::MAX, |_| Ok(state), FoundLogs::Replay)
    }

    /// The power fails, and the log devices with it that have no copy. What was promised on them may be given up,
    /// nothing else; and nobody gives it up unasked.
    fn lose_log(&mut self, seed: u64) -> Result<Goes, String> {
        if self.log_disks.is_empty() || !self.absent.is_disjoint(&self.log_disks) {
            return Ok(Goes::On);
        }
        self.figures.lost_logs += 1;
        self.cut_with(seed, true)
    }

    fn cut(&mut self, seed: u64) -> Result<Goes, String> {
        self.cut_with(seed, false)
    }

    fn cut_with(&mut self, seed: u64, loses_logs: bool) -> Result<Goes, String> {
        self.note(None)?;
        self.life.let_go();
        self.pool = None;
        let mut dice = Seed::new(seed);
        let recorded = self.world.recorded();
        // Mostly in what happened last.
        let window = if dice.below(2) == 0 {
            200
        } else {
            recorded as u64
        };
        let back = usize::try_from(dice.below(window + 1)).unwrap_or(0);
        // What was found when the pool was opened may have stood on the disk that went since: only when the opening
        // had written its own txg was it certain.
        let count = recorded.saturating_sub(back).max(self.none_went_before);
        let cut = match dice.below(8) {
            0 => PowerCut::EverythingWritten,
            1 => PowerCut::NothingUnflushed,
            2 => PowerCut::First(1 + dice.below(6) as usize),
            3 => PowerCut::AllBut(dice.below(20) as usize),
            _ => PowerCut::Torn(dice.fork()),
        };
        let broken: u64 = self
            .world
            .disks()
            .iter()
            .map(|disk| disk.broken_promises())
            .sum();
        self.figures.broken_promises += broken;
        self.world = self.world.reborn(count, &cut);
        if loses_logs {
            self.absent.extend(&self.log_disks);
            self.harmed.extend(&self.log_disks);
        }
        for number in &self.absent {
            self.disk(*number).set_absent(true);
        }
        self.figures.cuts += 1;
        self.may_be_torn = true;
        self.has_orphans = true;
        self.life.log.push(format!(
            "power cut after {count} of {recorded} requests, {cut:?}{}",
            if loses_logs { ", log devices gone" } else { "" }
        ));
        let least = self
            .acknowledged
            .iter()
            .rev()
            .find(|(events, _)| *events <= count)
            .map_or(Txg(0), |(_, txg)| *txg);
        let states = std::mem::take(&mut self.states);
        let last = self.committed;
        // They may have been gone before, and the power failed before it was written that they are given up.
        let is_undecided = count < self.opened_after && !self.absent.is_disjoint(&self.log_disks);
        let found_logs = match loses_logs || is_undecided {
            true => FoundLogs::Discard,
            false => FoundLogs::Replay,
        };
        let expected = |txg| {
            if txg < least || txg > last {
                return Err(format!(
                    "txg {txg} is found; {least} was acknowledged, {last} is the last that was written"
                ));
            }
            let at = states.into_iter().find(|state| state.txg == txg);
            at.ok_or_else(|| format!("nothing is known of txg {txg}"))
        };
        self.open_again(count, expected, found_logs)
    }

    /// The last judges: every snapshot, and now and then `zdb`.
    fn end(&mut self) -> Result<(), String> {
        if let Some(pool) = self.pool.take() {
            if self.has_orphans {
                self.open_all(&pool)?;
            }
            self.pool = Some(pool);
            self.sync()?;
            let read = self.pool()?.committed();
            let read = read.map_err(|error| told("committed", &error))?;
            let differences = self.life.model.differences(&read);
            if !differences.is_empty() {
                return Err(format!("at the end:\n  {}", differences.join("\n  ")));
            }
            self.figures.compared += 1;
        }
        let every = self.options.zdb_every;
        if every == 0 || !self.seed.is_multiple_of(every) || !self.harmed.is_empty() {
            return Ok(());
        }
        if let Some(pool) = self.pool.take() {
            self.life.let_go();
            pool.export().map_err(|error| told("export", &error))?;
        }
        if judged(&self.world, POOL, self.options)? {
            self.figures.judged += 1;
        }
        Ok(())
    }

    /// Judges what is on the disks, then opens the pool again, and judges what intent logs brought back.
    /// `expected` tells what may be there at a txg, `count` how many requests the disks had got.
    fn open_again(
        &mut self,
        count: usize,
        expected: impl FnOnce(Txg) -> Result<State, String>,
        found_logs: FoundLogs,
    ) -> Result<Goes, String> {
        self.openings += 1;
        let is_due = |every: u64| every > 0 && self.openings.is_multiple_of(every);
        let harmed: BTreeSet<String> = self.harmed.iter().map(|disk| path(*disk)).collect();
        let options = OpenOptions {
            cache_bytes: self.mood.cache_bytes,
            ..OpenOptions::default()
        };
        let (state, from) = {
            let candidate = found(&self.world, &self.absent)?;
            let read = Pool::open_candidate(&candidate, &options)
                .map_err(|error| told("opening for reading", &error))?;
            let mut state = expected(read.inner().uberblock().txg)?;
            let mut from = state.from;
            if !state.is_replaying {
                let mut candidates = state.candidates();
                let which = self.demand(&read, &candidates, state.after.is_some())?;
                (state.model, from) = candidates.swap_remove(which);
                self.figures.compared += 1;
            }
            verified(&read, &harmed, self.may_be_torn)?;
            // Of logs whose device is gone nobody knows what they held; it stays allocated there.
            self.may_leak |= found_logs == FoundLogs::Discard;
            if is_due(self.options.recount_every) && !self.may_leak {
                recounted(&read)?;
                self.figures.recounted += 1;
            }
            (state, from)
        };
        let candidate = found(&self.world, &self.absent)?;
        // Opening writes, too: the power may fail in it.
        self.committed = candidate
            .newest()
            .map_or(Txg(0), |found| found.uberblock.txg);
        self.world.forget();
        self.none_went_before = 0;
        let mut wanted = std::mem::take(&mut self.logs).after(from, count);
        let open = |found_logs| {
            let writing = WriteOptions {
                found_logs,
                ..writing()
            };
            LivePool::open_candidate(&self.world.env(), &candidate, &options, &writing)
        };
        let mut opened = None;
        if found_logs == FoundLogs::Discard {
            // Unasked nothing may be given up that was promised. What was promised while the device was gone lies
            // elsewhere: then it is all there. A replay interrupted before is not looked into here.
            let is_promised = wanted.iter().any(|wanted| !wanted.kept.is_empty());
            if is_promised && state.replayed.is_none() {
                opened = open(FoundLogs::Replay).ok();
            }
            if opened.is_none() {
                wanted.clear();
            }
        }
        let is_given_up = found_logs == FoundLogs::Discard && opened.is_none();
        let pool = match opened {
            Some(pool) => pool,
            None => open(found_logs).map_err(|error| told("opening", &error))?,
        };
        self.life.model = state.model.clone();
        if let Some(replayed) = state.replayed.as_ref().filter(|_| !is_given_up) {
            self.life.model = Model::clone(replayed);
            let read = pool.committed();
            let read = read.map_err(|error| told("committed", &error))?;
            self.demand(&read, &[(self.life.model.clone(), 0)], false)
                .map_err(|text| format!("replayed once more: {text}"))?;
        } else if !wanted.is_empty() {
            let read = pool.committed();
            let read = read.map_err(|error| told("committed", &error))?;
            self.brought_back(&read, &wanted)?;
        } else if is_given_up && state.is_replaying {
            // What a replay had done until then is nowhere noted.
            return Ok(Goes::Out);
        }
        let first = self.committed;
        let last = pool.engine().uberblock().txg;
        // Opening after opening may fail before its txg is written: each finds the same logs.
        let is_again = state.replayed.is_some() && !is_given_up;
        let is_replayed = state.is_replaying || is_again || !wanted.is_empty();
        let replayed = is_replayed.then(|| Arc::new(self.life.model.clone()));
        self.states = vec![State {
            replayed: replayed.clone(),
            from: self.next,
            then: vec![],
            after: None,
            ..state
        }];
        self.states[0].txg = first;
        for txg in first.0 + 1..=last.0 {
            let mut state = State::of(Txg(txg), self.life.model.clone(), self.next);
            state.is_replaying = is_replayed && txg < last.0;
            state.replayed = replayed.clone().filter(|_| txg < last.0);
            self.states.push(state);
        }
        self.acknowledged = vec![(0, first), (self.world.recorded(), last)];
        self.figures.txgs += last.0 - first.0;
        self.committed = last;
        if self.has_orphans && self.openings.is_multiple_of(2) {
            self.open_all(&pool)?;
        }
        self.pool = Some(pool);
        self.opened_after = self.world.recorded();
        Ok(Goes::On)
    }

    /// Judges what intent logs made of the pool: exactly what was promised, or more of what was under way.
    fn brought_back(&mut self, read: &Pool, wanted: &[Wanted]) -> Result<(), String> {
        for one in wanted {
            let is_it = |content: &_| {
                let mut differences = content_differences(read, &one.dataset, content);
                if self.has_orphans {
                    differences.retain(|line| !line.ends_with(ORPHANS));
                }
                match differences.is_empty() {
                    true => Ok(()),
                    false => Err(differences.join("\n  ")),
                }
            };
            let shared = |content: &_, effect: &_| {
                let there = bytes_of(read, &one.dataset, content, effect)?;
                let (at, length) = effect.range()?;
                let new = effect.bytes()?;
                let same = there.get(at..)?.iter().zip(new);
                let same = same.take_while(|(one, other)| one == other).count();
                (same > 0 && same < length).then_some(same)
            };
            let base = &self.life.model;
            let (content, more) = one.find(base, is_it, shared)?;
            if let Some(head) = self.life.model.heads.get_mut(&*one.dataset) {
                head.content = content;
            }
            self.figures.brought_back += (one.kept.len() + more) as u64;
            self.figures.torn += u64::from(!one.maybe.is_empty());
        }
        Ok(())
    }
}
