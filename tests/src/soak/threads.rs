//! Concurrent workloads: many threads use one pool.
//!
//! Each thread has files of its own and some in a shared directory. The scheduling is up to the system, or
//! with `--cfg millpond_sim` determined by a seed. The expected content at the end is the same. Every other
//! iteration the power fails during the work, and everything fsynced before must be present.

mod losses;
mod worker;

use super::compare::{recounted, verified};
use super::deeds::{Clock, Deeds, Key};
use super::life::{POOL, create, found, limits, open, record_requests, view};
use super::meddler::Meddler;
use super::shape::Shape;
use crate::hostile::rng::SeededRng;
use losses::Losses;
use millpond_engine::{
    Caller, DirEntryRef, Error, FileSystem, NewMode, OpenOptions, Pool, RenameMode, SetAttributes,
    View, WriteAt, WriteOptions,
};
use millpond_env::sync::{Arc, Mutex, bounded};
use millpond_env::{Env, mark, thread};
use millpond_sim::{FaultPlan, PowerCut, Seed, Trace, World};
use millpond_txg::DirtyLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
#[cfg(not(millpond_sim))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker::Worker;

/// Statistics of the threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadStats {
    /// Operations of all threads.
    pub ops: u64,
    /// Times the pool was exported and opened again.
    pub reopened: u64,
    /// Comparisons of everything, snapshots included.
    pub compared: u64,
    /// Power cuts survived.
    pub cuts: u64,
    /// Promises to threads before the power cut, most of them by intent logs.
    pub promises: u64,
    /// Snapshot reads that were repeated because a newer txg reused the blocks.
    pub overtaken: u64,
    /// All disk requests in order.
    pub trace: Trace,
    /// Points where a seed could switch to another thread; 0 if the system schedules.
    pub points: u64,
    /// Number of switches.
    pub switches: u64,
    /// Hash of all scheduling decisions.
    pub turns: u64,
    /// Threads still running at the end.
    pub left: u64,
}

impl AddAssign for ThreadStats {
    fn add_assign(&mut self, other: Self) {
        self.ops += other.ops;
        self.reopened += other.reopened;
        self.compared += other.compared;
        self.cuts += other.cuts;
        self.promises += other.promises;
        self.overtaken += other.overtaken;
        self.trace += other.trace;
        self.points += other.points;
        self.switches += other.switches;
        self.turns ^= other.turns;
        self.left += other.left;
    }
}

/// Contents of files by directory and name.
pub(super) type Files = BTreeMap<(String, String), Vec<u8>>;

const SHARED: &str = "shared";
/// Each thread owns one stripe of this file.
const COMMON: &str = "common";
const STRIPE_BYTES: usize = 20_000;

/// A concurrent workload. With `--cfg millpond_sim` these numbers determine everything that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowd {
    /// The pool.
    pub shape: &'static Shape,
    /// Seed of the threads' operations, of power cuts, and of the scheduling.
    pub seed: u64,
    /// Number of threads.
    pub threads: usize,
    /// Number of iterations.
    pub rounds: usize,
    /// Steps per thread and iteration.
    pub steps: usize,
    /// Whether flushes fail on all disks, and the pool is resumed.
    pub loses_flushes: bool,
}

impl Crowd {
    /// Runs the threads for all iterations.
    ///
    /// At the end of an iteration a snapshot is taken whose content must not change. The pool is exported
    /// and opened again, verified, recounted and compared. In every other iteration the power fails
    /// instead, at some disk request. Each thread's files and names must then be those after one of its
    /// steps, and not older than any promise made before that request.
    ///
    /// A workload that does not end within `limit` counts as hanging; its threads are abandoned.
    ///
    /// # Errors
    /// The first error.
    pub fn meet(self, limit: Duration) -> Result<ThreadStats, String> {
        self.meet_with(limit, None)
    }

    /// Like [`Crowd::meet`], and records every disk request in a file.
    ///
    /// # Errors
    /// The first error.
    pub fn meet_with(
        self,
        limit: Duration,
        requests: Option<PathBuf>,
    ) -> Result<ThreadStats, String> {
        let (send, receive) = bounded(1);
        let leader = thread::spawn("crowd", move || {
            // After the time limit the receiver is gone.
            let _ = send.send(taking_turns(self, move || meet(self, requests.as_deref())));
        });
        let leader = leader.map_err(|error| error.to_string())?;
        // The seeded scheduler reports threads that wait forever and runs with too many scheduling points.
        // A correct workload on a busy machine may take long.
        let limit = if cfg!(millpond_sim) {
            limit * 20
        } else {
            limit
        };
        let outcome = receive
            .recv_timeout(limit)
            .map_err(|_| format!("not ended after {} s: does it hang?", limit.as_secs()))?;
        let _ = leader.join();
        outcome
    }

    /// Reduces iterations, steps and threads while the workload still fails, for at most `time`.
    ///
    /// Returns it with its last failure. Useful only if the same workload fails each time.
    #[must_use]
    pub fn shrink(self, failure: String, limit: Duration, time: Duration) -> (Self, String) {
        let clock = Env::real().clock;
        let begun = clock.monotonic_ns();
        let (mut best, mut failure) = (self, failure);
        loop {
            let fewer = |number: usize| {
                [
                    number / 4,
                    number / 2,
                    number - number / 8,
                    number.saturating_sub(1),
                ]
            };
            let rounds = fewer(best.rounds).map(|rounds| Self { rounds, ..best });
            let steps = fewer(best.steps).map(|steps| Self { steps, ..best });
            let threads = fewer(best.threads).map(|threads| Self { threads, ..best });
            let smaller = rounds.into_iter().chain(steps).chain(threads);
            let smaller = smaller
                .filter(|crowd| {
                    *crowd != best && crowd.rounds > 0 && crowd.steps > 0 && crowd.threads > 0
                })
                .take_while(|_| {
                    let spent = clock.monotonic_ns().saturating_sub(begun);
                    u128::from(spent) < time.as_nanos()
                })
                .find_map(|crowd| Some((crowd, crowd.meet(limit).err()?)));
            match smaller {
                Some((crowd, text)) => (best, failure) = (crowd, text),
                None => return (best, failure),
            }
        }
    }
}

/// Without the seeded scheduler, the system schedules the threads.
#[cfg(not(millpond_sim))]
fn taking_turns(
    _: Crowd,
    body: impl FnOnce() -> Result<ThreadStats, String> + Send + 'static,
) -> Result<ThreadStats, String> {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    outcome.unwrap_or_else(|_| Err("panic (see above)".to_owned()))
}

#[cfg(millpond_sim)]
fn taking_turns(
    crowd: Crowd,
    body: impl FnOnce() -> Result<ThreadStats, String> + Send + 'static,
) -> Result<ThreadStats, String> {
    match millpond_env::sim::run(super::turns::schedule(crowd.seed), body) {
        Ok((outcome, report)) => outcome.map(|stats| ThreadStats {
            points: report.points,
            switches: report.switches,
            turns: report.digest,
            left: report.left,
            ..stats
        }),
        Err(ended) => Err(ended.to_string()),
    }
}

fn meet(crowd: Crowd, requests: Option<&Path>) -> Result<ThreadStats, String> {
    let Crowd {
        shape,
        seed,
        threads,
        rounds,
        steps,
        loses_flushes,
    } = crowd;
    let say = |error: Error| error.to_string();
    let mut world = World::new(seed);
    if let Some(file) = requests {
        record_requests(&world, file)?;
    }
    // In some workloads threads wait for each other's txgs, in some little of the pool stays in memory.
    let limits = match seed % 5 {
        3 => DirtyLimits {
            limit_bytes: 8 << 20,
            ..DirtyLimits::default()
        },
        4 => DirtyLimits {
            limit_bytes: 64 << 20,
            ..DirtyLimits::default()
        },
        _ => limits(),
    };
    let cache_bytes = if seed % 7 < 3 { 2 << 20 } else { 64 << 20 };
    let writing = WriteOptions {
        limits,
        can_be_resumed: loses_flushes,
        ..WriteOptions::default()
    };
    let mut pool = create(&world, shape, writing.clone(), cache_bytes)?;
    slow_down(&world, seed);
    let mut stats = ThreadStats::default();
    let mut workers: Vec<Worker> = (0..threads)
        .map(|number| Worker {
            number,
            rng: SeededRng::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
            files: BTreeMap::new(),
            stripe: vec![0; STRIPE_BYTES],
            next: 0,
            deeds: Deeds::default(),
        })
        .collect();
    {
        let files = pool.file_system(POOL).map_err(say)?;
        prepare(&files, threads).map_err(say)?;
    }
    let mut meddler = Meddler::of(seed, threads);
    let mut kept: Vec<(String, Files)> = vec![];
    for round in 0..rounds {
        world.forget();
        let clock = Clock::new(&world, threads);
        for worker in &mut workers {
            worker.deeds = Deeds::begin(worker.files.clone(), worker.stripe.clone());
        }
        let meddled: Mutex<_> = Mutex::new(Ok(()));
        let watched = mark::inherited();
        let losses = loses_flushes.then(|| Losses::of(seed, round));
        let resumed: Mutex<_> = Mutex::new(Ok(()));
        let outcomes: Vec<Result<(), Error>> = thread::scope(|scope| {
            if let Some(losses) = &losses {
                let (pool, world, resumed) = (pool.clone(), &world, &resumed);
                let watched = watched.clone();
                scope.spawn(move || {
                    watched.take_up();
                    *resumed.lock() = losses.work(world, &pool);
                });
            }
            let meddling = meddler.as_mut().map(|meddler| {
                let (pool, meddled) = (pool.clone(), &meddled);
                scope.spawn(move || *meddled.lock() = meddler.work(&pool, steps / 6))
            });
            let running: Vec<_> = workers
                .iter_mut()
                .map(|worker| {
                    let (pool, clock) = (pool.clone(), clock.clone());
                    let watched = watched.clone();
                    scope.spawn(move || {
                        watched.take_up();
                        worker.work(&pool, steps, &clock)
                    })
                })
                .collect();
            let outcomes = running
                .into_iter()
                .map(|one| {
                    one.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect();
            if let Some(meddling) = meddling {
                let _ = meddling.join();
            }
            if let Some(losses) = &losses {
                losses.end();
            }
            outcomes
        });
        for outcome in outcomes {
            outcome.map_err(say)?;
        }
        meddled.into_inner()?;
        resumed.into_inner()?;
        stats.ops += (threads * steps) as u64;
        if round % 2 == 1 {
            stats.promises += clock.promises();
            let mut rng = Seed::new(seed.wrapping_mul(977).wrapping_add(round as u64));
            let recorded = world.recorded();
            let count = usize::try_from(rng.below(recorded as u64 + 1)).unwrap_or(0);
            let cut = match rng.below(4) {
                0 => PowerCut::EverythingWritten,
                1 => PowerCut::NothingUnflushed,
                _ => PowerCut::Torn(rng.fork()),
            };
            drop(pool);
            world = world.reborn(count, &cut);
            slow_down(&world, seed);
            let what = format!("power cut after {count} of {recorded} requests, {cut:?}");
            let candidate = found(&world, &BTreeSet::new())?;
            let options = OpenOptions {
                cache_bytes: Some(cache_bytes),
                ..OpenOptions::default()
            };
            {
                let read = view(shape, &candidate, &options).map_err(say)?;
                verified(&read, &BTreeSet::new(), true)
                    .map_err(|error| format!("{what}: {error}"))?;
            }
            pool = open(&world, shape, &candidate, &options, &writing).map_err(say)?;
            let read = pool.committed().map_err(say)?;
            let there = files_of(&read, POOL, threads)?;
            let common_key = (SHARED.to_owned(), COMMON.to_owned());
            let common = there.get(&common_key).cloned().unwrap_or_default();
            for (number, worker) in workers.iter_mut().enumerate() {
                let prefix = format!("f{number}-");
                let mine = there
                    .iter()
                    .filter(|((_, name), _)| name.starts_with(&prefix));
                let mine: Files = mine
                    .map(|(key, file)| (key.clone(), file.clone()))
                    .collect();
                let stripe = common.get(number * STRIPE_BYTES..(number + 1) * STRIPE_BYTES);
                let stripe = stripe.unwrap_or_default().to_vec();
                worker
                    .deeds
                    .judge(number, &mine, &stripe, &clock, count)
                    .map_err(|error| format!("round {round}: {what}: thread {number}: {error}"))?;
                (worker.files, worker.stripe) = (mine, stripe);
            }
            for (snapshot, expected) in &kept {
                compare(&read, snapshot, threads, expected)?;
            }
            drop(read);
            if let Some(meddler) = &mut meddler {
                let cleared = meddler.clear(&pool);
                cleared.map_err(|error| format!("round {round}: {what}: {error}"))?;
            }
            stats.cuts += 1;
            stats.compared += 1;
            continue;
        }
        let snapshot = format!("{POOL}@r{round}");
        let made = pool.datasets().snapshot(&[&snapshot], &[]);
        made.map_err(|error| error.to_string())?;
        let mut expected = Files::new();
        let mut common = vec![];
        for worker in &workers {
            expected.extend(worker.files.clone());
            common.extend_from_slice(&worker.stripe);
        }
        expected.insert((SHARED.to_owned(), COMMON.to_owned()), common);
        kept.push((snapshot, expected));
        if kept.len() > 3 {
            let (old, _) = kept.remove(0);
            let gone = pool
                .datasets()
                .destroy_snapshots(&[&old], Default::default());
            gone.map_err(|error| error.to_string())?;
        }
        // The committed state must equal what another open finds.
        {
            pool.sync().map_err(say)?;
            let read = pool.committed().map_err(say)?;
            compare_all(&read, &kept, threads)?;
            stats.compared += 1;
        }
        pool.export().map_err(say)?;
        let options = OpenOptions {
            cache_bytes: Some(cache_bytes),
            ..OpenOptions::default()
        };
        let candidate = found(&world, &BTreeSet::new())?;
        {
            let read = view(shape, &candidate, &options).map_err(say)?;
            compare_all(&read, &kept, threads)?;
            verified(&read, &BTreeSet::new(), false)?;
            recounted(&read)?;
        }
        stats.compared += 1;
        stats.reopened += 1;
        pool = open(&world, shape, &candidate, &options, &writing).map_err(say)?;
        if let Some(meddler) = &mut meddler {
            let cleared = meddler.clear(&pool);
            cleared.map_err(|error| format!("round {round}: {error}"))?;
        }
    }
    pool.export().map_err(say)?;
    stats.trace = world.trace();
    stats.overtaken = meddler.map_or(0, |meddler| meddler.overtaken);
    Ok(stats)
}

/// Makes disks occasionally slow, in two of three workloads.
///
/// In one of these they are so slow that the next txg is due before the last one is written.
fn slow_down(world: &World, seed: u64) {
    let millisecond = 1_000_000;
    let (per_million, ns_max) = match seed % 3 {
        0 => return,
        1 => (50_000, 20 * millisecond),
        _ => (20_000, 3000 * millisecond),
    };
    for (number, disk) in world.disks().iter().enumerate() {
        let plan = FaultPlan::new(Seed::new(seed.wrapping_add(number as u64)));
        disk.set_faults(Some(plan.slow(per_million, ns_max)));
    }
}

fn compare_all(pool: &View, kept: &[(String, Files)], threads: usize) -> Result<(), String> {
    for (snapshot, expected) in kept {
        compare(pool, snapshot, threads, expected)?;
    }
    match kept.last() {
        Some((_, expected)) => compare(pool, POOL, threads, expected),
        None => Ok(()),
    }
}

fn prepare(files: &Arc<FileSystem>, threads: usize) -> Result<(), Error> {
    let (root, caller) = (files.root()?, Caller::root());
    let mode = NewMode::exactly(0o755);
    for number in 0..threads {
        files.make_directory(&caller, &root, format!("t{number}").as_bytes(), mode)?;
    }
    let shared = files.make_directory(&caller, &root, SHARED.as_bytes(), mode)?;
    let (common, _) = files.create(&caller, &shared, COMMON.as_bytes(), mode, true)?;
    let zeros = vec![0; STRIPE_BYTES * threads];
    files.write(&caller, &common, WriteAt::Offset(0), &zeros)?;
    Ok(())
}

/// All files of all threads.
pub(super) fn files_of(pool: &View, dataset: &str, threads: usize) -> Result<Files, String> {
    let say = |error: Error| format!("{dataset}: {error}");
    let files = pool.dataset(dataset).and_then(|it| it.file_system());
    let files = files.map_err(say)?;
    let root = files.root().map_err(|error| error.to_string())?;
    let mut there = Files::new();
    let read = |there: &mut Files| -> Result<(), millpond_engine::FileError> {
        let mut places: Vec<String> = (0..threads).map(|number| format!("t{number}")).collect();
        places.push(SHARED.to_owned());
        for entry in root.entries()? {
            let entry = entry?;
            let place = String::from_utf8_lossy(&entry.name).into_owned();
            if !places.contains(&place) {
                continue;
            }
            for file in files.node(entry.id)?.entries()? {
                let file = file?;
                let node = files.node(file.id)?;
                let size = usize::try_from(node.size_bytes()).unwrap_or(0);
                let mut content = vec![0; size];
                node.read(0, &mut content)?;
                let name = String::from_utf8_lossy(&file.name).into_owned();
                there.insert((place.clone(), name), content);
            }
        }
        Ok(())
    };
    read(&mut there).map_err(|error| format!("{dataset}: {error}"))?;
    Ok(there)
}

fn compare(pool: &View, dataset: &str, threads: usize, expected: &Files) -> Result<(), String> {
    let there = files_of(pool, dataset, threads)?;
    if there == *expected {
        return Ok(());
    }
    for (key, content) in expected {
        match there.get(key) {
            None => return Err(format!("{dataset}: {key:?} is missing")),
            Some(found) if found != content => {
                return Err(format!(
                    "{dataset}: {key:?} differs: {} bytes, not {}",
                    found.len(),
                    content.len()
                ));
            }
            Some(_) => {}
        }
    }
    Err(format!("{dataset}: has files that were removed"))
}
