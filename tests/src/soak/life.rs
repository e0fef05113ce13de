//! A life, lived.

use super::compare::{judged, read_back, recounted, verified};
use super::op::{Op, Plan};
use crate::hostile::dice::Dice;
use crate::workload::{Life, Model};
use millpond::live::{
    Drive, FeatureChoice, LivePool, NewDevice, NewPool, NewTop, NewVdevOptions, NewVdevs,
    WriteOptions,
};
use millpond::{OpenOptions, Pool, PoolCandidate, Txg};
use millpond_device::{Candidate, Device};
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, bounded};
use millpond_env::thread;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{Fault, FaultPlan, PowerCut, Scope, Seed, World};
use millpond_txg::DirtyLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

pub(super) const POOL: &str = "tank";
/// Only what is written takes memory. Much smaller ones would make writers wait for txgs: each announces its
/// worst case.
const DISK_BYTES: u64 = 1 << 30;
/// Of so many snapshots one is compared at each reopening; all of them where a life ends.
const SNAPSHOT_TURNS: u64 = 3;
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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            zdb_every: 0,
            recount_every: 1,
            limit: Duration::from_secs(600),
            full_log: false,
            keep: None,
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
    /// Lives that ended early because the power failed between the transactions of one operation: nobody
    /// knows how much of it must be there. What was there was verified.
    pub partial: u64,
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
        self.partial += other.partial;
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
            let _ = send.send(live(&plan, &options, &at));
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

fn live(plan: &Plan, options: &Options, at: &AtomicUsize) -> Result<Figures, Failure> {
    let mut lived = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let lived = lived.insert(Lived::begin(plan, options)?);
        for (number, op) in plan.ops.iter().enumerate() {
            at.store(number, Ordering::Relaxed);
            if let Goes::Out = lived.one(*op)? {
                lived.figures.full = 1 - lived.figures.partial;
                break;
            }
        }
        lived.end()
    }));
    let text = match outcome {
        Ok(Ok(())) => return Ok(lived.map(|lived| lived.figures).unwrap_or_default()),
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

/// What may be found at a txg.
struct State {
    txg: Txg,
    models: Vec<Model>,
    /// Whether it may hold a part of one operation, which is several transactions to the engine.
    is_partial: bool,
}

struct Lived<'p> {
    options: &'p Options,
    world: World,
    victims: Vec<usize>,
    absent: BTreeSet<usize>,
    /// Disks that hold something wrong or old, until the end: nothing here writes it again.
    harmed: BTreeSet<usize>,
    pool: Option<LivePool>,
    life: Life,
    mood: Mood,
    seed: u64,
    committed: Txg,
    /// What the pool held at committed txgs, oldest first.
    states: Vec<State>,
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
                .pick(&[4000, 4000, 12_000, 12_000, 24_000, 200_000])
                .unwrap_or(&12_000),
            keeps_open: dice.below(4) > 0,
            makes_many: dice.below(6) == 0,
            cache_bytes: *dice
                .pick(&[128 << 20, 128 << 20, 128 << 20, 128 << 20, 4 << 20])
                .unwrap_or(&0),
        }
    }
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
        let victims = plan.shape.victims(&mut dice);
        let mood = Mood::of(&mut dice);
        let pool = create(&world, plan.shape, writing(), mood.cache_bytes)?;
        let mut life = Life::new(POOL, plan.shape.name, plan.seed);
        life.file_bytes_max = mood.file_bytes_max;
        life.dataset_percent = mood.dataset_percent;
        life.keeps_open = mood.keeps_open;
        life.makes_many = mood.makes_many;
        life.syncs_seldom = true;
        let mut lived = Self {
            options,
            world,
            victims,
            absent: BTreeSet::new(),
            harmed: BTreeSet::new(),
            pool: None,
            committed: pool.engine().uberblock().txg,
            life,
            mood,
            seed: plan.seed,
            states: vec![],
            acknowledged: vec![],
            openings: plan.seed,
            opened_after: 0,
            none_went_before: 0,
            figures: Figures::default(),
            may_be_torn: false,
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
        self.states = vec![last.unwrap_or_else(|| State {
            txg: self.committed,
            models: vec![self.life.model.clone()],
            is_partial: false,
        })];
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

    /// Notes what an operation has committed; `before` is the model before it.
    fn note(&mut self, before: Option<Model>) -> Result<(), String> {
        let now = self.pool()?.engine().uberblock().txg;
        if now <= self.committed {
            return Ok(());
        }
        let after = self.life.model.clone();
        self.figures.txgs += now.0 - self.committed.0;
        let is_work = before.is_some();
        let is_long = |act: &String| act.contains(": create ") || act.contains(": write ");
        let is_partial = is_work && self.life.log.last().is_some_and(is_long);
        // Each of the txgs of one operation holds it or does not.
        for txg in self.committed.0 + 1..=now.0 {
            let mut models = vec![after.clone()];
            models.extend(before.clone());
            self.states.push(State {
                txg: Txg(txg),
                models,
                is_partial,
            });
        }
        self.committed = now;
        let events = self.world.recorded();
        self.acknowledged.push((events, now));
        if events > JOURNAL_EVENTS_MAX || self.world.recorded_bytes() > JOURNAL_BYTES_MAX {
            self.forget();
        }
        Ok(())
    }

    fn one(&mut self, op: Op) -> Result<Goes, String> {
        self.figures.ops += 1;
        match op {
            Op::Work(seed) => {
                let before = self.life.model.clone();
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
                self.note(Some(before))?;
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
                self.demand(&read, std::slice::from_ref(&self.life.model))?;
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
        disks[number].set_faults(Some(plan));
        let synced = self.pool()?.sync();
        disks[number].set_faults(None);
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
            self.states.push(State {
                txg: Txg(self.committed.0 + txg),
                models: vec![self.life.model.clone()],
                is_partial: false,
            });
        }
        self.committed = Txg(self.committed.0 + 3);
        self.harmed.insert(number);
        self.cut(dice.bits())
    }

    fn demand(&self, read: &Pool, models: &[Model]) -> Result<usize, String> {
        let mut all = vec![];
        for (number, model) in models.iter().enumerate() {
            // Verification has read all blocks; of the snapshots' files a part is compared each time.
            let differences = model.differences_in_turn(read, self.openings, SNAPSHOT_TURNS);
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

    fn reopen(&mut self) -> Result<Goes, String> {
        self.note(None)?;
        let pool = self.pool.take().ok_or("not open")?;
        self.life.let_go();
        pool.export().map_err(|error| told("export", &error))?;
        self.states.clear();
        self.figures.reopened += 1;
        self.may_be_torn = false;
        self.life.log.push("exported".to_owned());
        let state = State {
            txg: Txg(0),
            models: vec![self.life.model.clone()],
            is_partial: false,
        };
        self.open_again(|_| Ok(state))
    }

    fn cut(&mut self, seed: u64) -> Result<Goes, String> {
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
        for number in &self.absent {
            self.disk(*number).set_absent(true);
        }
        self.figures.cuts += 1;
        self.may_be_torn = true;
        self.life.log.push(format!(
            "power cut after {count} of {recorded} requests, {cut:?}"
        ));
        let least = self
            .acknowledged
            .iter()
            .rev()
            .find(|(events, _)| *events <= count)
            .map_or(Txg(0), |(_, txg)| *txg);
        let states = std::mem::take(&mut self.states);
        let last = self.committed;
        self.open_again(|txg| {
            if txg < least || txg > last {
                return Err(format!(
                    "txg {txg} is found; {least} was acknowledged, {last} is the last that was written"
                ));
            }
            let at = states.into_iter().find(|state| state.txg == txg);
            at.ok_or_else(|| format!("nothing is known of txg {txg}"))
        })
    }

    /// The last judges: every snapshot, and now and then `zdb`.
    fn end(&mut self) -> Result<(), String> {
        if self.pool.is_some() {
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

    /// Judges what is on the disks, then opens the pool again. `expected` tells what may be there.
    fn open_again(
        &mut self,
        expected: impl FnOnce(Txg) -> Result<State, String>,
    ) -> Result<Goes, String> {
        self.openings += 1;
        let is_due = |every: u64| every > 0 && self.openings.is_multiple_of(every);
        let harmed: BTreeSet<String> = self.harmed.iter().map(|disk| path(*disk)).collect();
        let options = OpenOptions {
            cache_bytes: self.mood.cache_bytes,
            ..OpenOptions::default()
        };
        {
            let candidate = found(&self.world, &self.absent)?;
            let read = Pool::open_candidate(&candidate, &options)
                .map_err(|error| told("opening for reading", &error))?;
            let state = expected(read.inner().uberblock().txg)?;
            let outcome = self.demand(&read, &state.models);
            if outcome.is_err() && state.is_partial {
                verified(&read, &harmed, self.may_be_torn)?;
                self.figures.partial += 1;
                return Ok(Goes::Out);
            }
            let which = outcome?;
            self.figures.compared += 1;
            self.life.model = state.models.into_iter().nth(which).unwrap_or_default();
            verified(&read, &harmed, self.may_be_torn)?;
            if is_due(self.options.recount_every) {
                recounted(&read)?;
                self.figures.recounted += 1;
            }
        }
        let candidate = found(&self.world, &self.absent)?;
        self.states.clear();
        // Opening writes, too: the power may fail in it.
        self.committed = candidate
            .newest()
            .map_or(Txg(0), |found| found.uberblock.txg);
        self.forget();
        let pool = LivePool::open_candidate(&self.world.env(), &candidate, &options, &writing())
            .map_err(|error| told("opening", &error))?;
        self.pool = Some(pool);
        self.note(None)?;
        self.opened_after = self.world.recorded();
        Ok(Goes::On)
    }
}
