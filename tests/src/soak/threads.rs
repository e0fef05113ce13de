//! Many threads at one pool, each with files of its own and some in a shared directory. What happens when
//! is the machine's choice; what must be there in the end is not.

use super::compare::{recounted, verified};
use super::life::{POOL, create, found, limits};
use super::shape::Shape;
use crate::hostile::dice::Dice;
use millpond::live::{
    Caller, LiveFileSystem, LivePool, NewMode, Place, RenameMode, SetAttributes, WriteAt,
    WriteOptions,
};
use millpond::{Error, OpenOptions, Pool};
use millpond_env::sync::{Arc, bounded};
use millpond_env::thread;
use millpond_sim::World;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What the threads did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadFigures {
    /// Operations done by all.
    pub ops: u64,
    /// Times the pool was exported and opened again.
    pub reopened: u64,
    /// Comparisons of everything, snapshots included.
    pub compared: u64,
}

impl AddAssign for ThreadFigures {
    fn add_assign(&mut self, other: Self) {
        self.ops += other.ops;
        self.reopened += other.reopened;
        self.compared += other.compared;
    }
}

/// Contents of files by directory and name.
type Files = BTreeMap<(String, String), Vec<u8>>;

const SHARED: &str = "shared";
/// Each thread owns one stripe of this file.
const COMMON: &str = "common";
const STRIPE_BYTES: usize = 20_000;

/// `threads` threads do `steps` things each, `rounds` times. At the end of each round a snapshot is made whose
/// content must stay, the pool is exported and opened again, verified, counted anew, and compared. Who does not
/// end within `limit` hangs; his threads are left alone.
///
/// # Errors
/// What was wrong.
pub fn crowd(
    shape: &'static Shape,
    seed: u64,
    threads: usize,
    rounds: usize,
    steps: usize,
    limit: Duration,
) -> Result<ThreadFigures, String> {
    let (send, receive) = bounded(1);
    let leader = thread::spawn("crowd", move || {
        let all = AssertUnwindSafe(|| meet(shape, seed, threads, rounds, steps));
        let outcome = catch_unwind(all).unwrap_or_else(|_| Err("panic (see above)".to_owned()));
        // Nobody listens after the limit.
        let _ = send.send(outcome);
    });
    let leader = leader.map_err(|error| error.to_string())?;
    let outcome = receive
        .recv_timeout(limit)
        .map_err(|_| format!("not ended after {} s: does it hang?", limit.as_secs()))?;
    let _ = leader.join();
    outcome
}

fn meet(
    shape: &'static Shape,
    seed: u64,
    threads: usize,
    rounds: usize,
    steps: usize,
) -> Result<ThreadFigures, String> {
    let say = |error: Error| error.to_string();
    let world = World::without_journal(seed);
    let writing = WriteOptions {
        limits: limits(),
        ..WriteOptions::default()
    };
    let mut pool = create(&world, shape, writing.clone(), 64 << 20)?;
    let mut figures = ThreadFigures::default();
    let mut workers: Vec<Worker> = (0..threads)
        .map(|number| Worker {
            number,
            dice: Dice::new(seed.wrapping_mul(31).wrapping_add(number as u64)),
            files: BTreeMap::new(),
            stripe: vec![0; STRIPE_BYTES],
            next: 0,
        })
        .collect();
    {
        let files = pool.file_system(POOL).map_err(say)?;
        prepare(&files, threads).map_err(say)?;
    }
    let mut kept: Vec<(String, Files)> = vec![];
    for round in 0..rounds {
        let outcomes: Vec<Result<(), Error>> = thread::scope(|scope| {
            let running: Vec<_> = workers
                .iter_mut()
                .map(|worker| {
                    let pool = pool.clone();
                    scope.spawn(move || worker.work(&pool, steps))
                })
                .collect();
            running
                .into_iter()
                .map(|one| {
                    one.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        for outcome in outcomes {
            outcome.map_err(say)?;
        }
        figures.ops += (threads * steps) as u64;
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
        // What the changing side committed is what another opening finds.
        if round % 2 == 0 {
            pool.sync().map_err(say)?;
            let read = pool.committed().map_err(say)?;
            compare_all(&read, &kept, threads)?;
            figures.compared += 1;
        }
        pool.export().map_err(say)?;
        let options = OpenOptions {
            cache_bytes: 64 << 20,
            ..OpenOptions::default()
        };
        let candidate = found(&world, &BTreeSet::new())?;
        {
            let read = Pool::open_candidate(&candidate, &options).map_err(say)?;
            compare_all(&read, &kept, threads)?;
            verified(&read, &BTreeSet::new(), false)?;
            recounted(&read)?;
        }
        figures.compared += 1;
        figures.reopened += 1;
        pool =
            LivePool::open_candidate(&world.env(), &candidate, &options, &writing).map_err(say)?;
    }
    pool.export().map_err(say)?;
    Ok(figures)
}

fn compare_all(pool: &Pool, kept: &[(String, Files)], threads: usize) -> Result<(), String> {
    for (snapshot, expected) in kept {
        compare(pool, snapshot, threads, expected)?;
    }
    match kept.last() {
        Some((_, expected)) => compare(pool, POOL, threads, expected),
        None => Ok(()),
    }
}

fn prepare(files: &Arc<LiveFileSystem>, threads: usize) -> Result<(), Error> {
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

struct Worker {
    number: usize,
    dice: Dice,
    files: Files,
    stripe: Vec<u8>,
    next: u64,
}

impl Worker {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let word = self.dice.word();
        let is_noise = word.is_multiple_of(3);
        (0..length)
            .map(|at| {
                if is_noise && at % 16 == 0 {
                    return self.dice.word() as u8;
                }
                (word >> (at % 8)) as u8
            })
            .collect()
    }

    fn work(&mut self, pool: &LivePool, steps: usize) -> Result<(), Error> {
        let mut files = pool.file_system(POOL)?;
        for _ in 0..steps {
            // Anew now and then: snapshots and settings meet handles being opened.
            if self.dice.below(8) == 0 {
                files = pool.file_system(POOL)?;
            }
            self.step(pool, &files)?;
        }
        Ok(())
    }

    fn step(&mut self, pool: &LivePool, files: &Arc<LiveFileSystem>) -> Result<(), Error> {
        let (root, caller) = (files.root()?, Caller::root());
        let own = format!("t{}", self.number);
        let place = if self.dice.below(3) == 0 {
            SHARED.to_owned()
        } else {
            own
        };
        let directory = files.lookup(&root, place.as_bytes())?;
        let mine: Vec<(String, String)> = self.files.keys().cloned().collect();
        let picked = self.dice.pick(&mine).cloned();
        let what = self.dice.below(20);
        let Some((of, name)) = picked.filter(|_| what > 3) else {
            self.next += 1;
            let name = format!("f{}-{}", self.number, self.next);
            let length = self.dice.below(12_000);
            let content = self.bytes(length);
            let mode = NewMode::exactly(0o644);
            let (node, _) = files.create(&caller, &directory, name.as_bytes(), mode, true)?;
            files.write(&caller, &node, WriteAt::Offset(0), &content)?;
            self.files.insert((place, name), content);
            return Ok(());
        };
        let holder = files.lookup(&root, of.as_bytes())?;
        let node = files.lookup(&holder, name.as_bytes())?;
        let key = (of, name);
        match what {
            4..=9 => {
                let offset = self.dice.below(20_000);
                let length = 1 + self.dice.below(6000);
                let new = self.bytes(length);
                files.write(&caller, &node, WriteAt::Offset(offset as u64), &new)?;
                if let Some(content) = self.files.get_mut(&key) {
                    let end = offset + new.len();
                    content.resize(content.len().max(end), 0);
                    content[offset..end].copy_from_slice(&new);
                }
            }
            10 => {
                let size = self.dice.below(20_000);
                let set = SetAttributes {
                    size_bytes: Some(size as u64),
                    ..SetAttributes::default()
                };
                files.set_attributes(&caller, &node, &set)?;
                if let Some(content) = self.files.get_mut(&key) {
                    content.resize(size, 0);
                }
            }
            11..=13 => {
                files.unlink(&holder, key.1.as_bytes())?;
                self.files.remove(&key);
            }
            14 | 15 => {
                self.next += 1;
                let name = format!("f{}-{}", self.number, self.next);
                let from = Place {
                    directory: &holder,
                    name: key.1.as_bytes(),
                };
                let to = Place {
                    directory: &directory,
                    name: name.as_bytes(),
                };
                files.rename(&caller, from, to, RenameMode::NoReplace)?;
                if let Some(content) = self.files.remove(&key) {
                    self.files.insert((place, name), content);
                }
            }
            16 => {
                let mut there = vec![0; 40_000];
                let count = files.read(&node, 0, &mut there)?;
                let expected = &self.files[&key];
                assert!(
                    there[..count] == **expected,
                    "{key:?} reads otherwise while open"
                );
            }
            17 | 18 => {
                let shared = files.lookup(&root, SHARED.as_bytes())?;
                let common = files.lookup(&shared, COMMON.as_bytes())?;
                let start = self.dice.below(STRIPE_BYTES);
                let length = 1 + self.dice.below(STRIPE_BYTES - start);
                let new = self.bytes(length);
                let offset = (self.number * STRIPE_BYTES + start) as u64;
                files.write(&caller, &common, WriteAt::Offset(offset), &new)?;
                self.stripe[start..start + length].copy_from_slice(&new);
            }
            _ if self.dice.below(8) == 0 => pool.sync()?,
            _ => {}
        }
        Ok(())
    }
}

fn compare(pool: &Pool, dataset: &str, threads: usize, expected: &Files) -> Result<(), String> {
    let say = |error: Error| format!("{dataset}: {error}");
    let files = pool.dataset(dataset).and_then(|it| it.file_system());
    let files = files.map_err(say)?;
    let root = files.root().map_err(|error| error.to_string())?;
    let mut there = Files::new();
    let read = |there: &mut Files| -> Result<(), millpond::PosixError> {
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
