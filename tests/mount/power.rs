//! The power fails while programs write and `fsync` through a mount.
//!
//! The pool is on simulated disks that record every request; the mount is the kernel's. After a cut at any
//! request, the pool is mounted again and read through the kernel. Data that `fsync` confirmed must be
//! present, and no data may appear that was never written.

use crate::rig::{absent, is_full, layout, seed};
use millpond_engine::{OpenOptions, Pool, View, WriteOptions};
use millpond_fuse::{FuseServer, Mount, MountOptions, MountTarget};
use millpond_sim::{PowerCut, Seed, World};
use millpond_tests::soak::deeds::{Clock, Deeds, Files, Key};
use millpond_tests::soak::{Options, POOL, Shape, create, found, judged, limits, verified};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions as How};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const CACHE_BYTES: u64 = 64 << 20;
const SHARED: &str = "shared";
const COMMON: &str = "common";
/// Each thread owns one stripe of the shared file.
const STRIPE_BYTES: usize = 20_000;
const PAGE_BYTES: usize = 4096;
/// Used as the file number of a promise that covers only names.
const NAMES_ONLY: u64 = u64::MAX;

/// A pool of simulated disks, mounted.
struct Mounted {
    mount: Mount,
    pool: Pool,
    point: TempDir,
    _server: Arc<FuseServer>,
}

impl Mounted {
    fn new(pool: Pool) -> Self {
        let server = FuseServer::start(4).unwrap();
        let point = tempfile::tempdir().unwrap();
        let target = MountTarget {
            files: pool.served(POOL).unwrap() as _,
            source: POOL.to_owned(),
            mountpoint: point.path().to_owned(),
            root: None,
        };
        let mount = server.mount(target, &MountOptions::default()).unwrap();
        Self {
            mount,
            pool,
            point,
            _server: server,
        }
    }
    fn unmount(self) -> Pool {
        crate::rig::unmount(&self.mount);
        self.pool
    }
}

/// One program: its operations, and its expectations.
struct Worker<'c> {
    number: usize,
    root: PathBuf,
    rng: Seed,
    files: Files,
    stripe: Vec<u8>,
    next: u64,
    deeds: Deeds,
    clock: &'c Clock,
}

impl Worker<'_> {
    fn path(&self, key: &Key) -> PathBuf {
        self.root.join(&key.0).join(&key.1)
    }
    fn some_key(&mut self) -> Key {
        self.next += 1;
        let place = match self.rng.below(3) {
            0 => SHARED.to_owned(),
            _ => format!("t{}", self.number),
        };
        (place, format!("f{}-{}", self.number, self.next))
    }
    fn length(&mut self, most: u64) -> usize {
        self.rng.below(most) as usize
    }
    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = 1 + self.length(most);
        self.rng.bytes(length)
    }
    /// Records new content of a file as the next step.
    fn did(&mut self, key: &Key, content: Option<Vec<u8>>) {
        match &content {
            Some(content) => drop(self.files.insert(key.clone(), content.clone())),
            None => drop(self.files.remove(key)),
        }
        self.deeds.file(key, content);
    }
    /// Returns a file's content with bytes replaced from an offset on.
    fn put(&self, key: &Key, offset: usize, new: &[u8]) -> Vec<u8> {
        let mut content = self.files.get(key).cloned().unwrap_or_default();
        content.resize(content.len().max(offset + new.len()), 0);
        content[offset..offset + new.len()].copy_from_slice(new);
        content
    }
    /// Records a write. The kernel may pass it on in several requests, each up to the end of a page.
    fn wrote(&mut self, key: &Key, offset: usize, new: &[u8]) {
        for end in ends(offset, new.len()) {
            let content = self.put(key, offset, &new[..end - offset]);
            self.did(key, Some(content));
        }
    }
    /// Calls fsync or similar, and records the promise when the call has returned.
    fn promised(&mut self, file: u64, ask: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let aim = self.clock.aim(self.number, self.deeds.step());
        ask()?;
        self.clock.keep(aim, Some(self.number), Some(file));
        Ok(())
    }

    fn work(&mut self, steps: u64) -> io::Result<()> {
        for _ in 0..steps {
            self.clock.set(self.number, self.deeds.step());
            self.step()?;
        }
        self.clock.set(self.number, self.deeds.step());
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        let what = self.rng.below(24);
        let mine: Vec<Key> = self.files.keys().cloned().collect();
        let picked = mine.get(self.length(mine.len() as u64)).cloned();
        let Some(key) = picked.filter(|_| what > 3) else {
            let key = self.some_key();
            let content = self.bytes(12_000);
            let file = File::create_new(self.path(&key))?;
            self.did(&key, Some(vec![]));
            (&file).write_all(&content)?;
            self.wrote(&key, 0, &content);
            return Ok(());
        };
        let path = self.path(&key);
        match what {
            4..=7 => {
                let offset = self.length(20_000);
                let new = self.bytes(6000);
                let file = How::new().write(true).open(&path)?;
                file.write_all_at(&new, offset as u64)?;
                self.wrote(&key, offset, &new);
            }
            8 | 9 => {
                let new = self.bytes(3000);
                How::new().append(true).open(&path)?.write_all(&new)?;
                let end = self.files[&key].len();
                self.wrote(&key, end, &new);
            }
            10 => {
                let size = self.length(20_000);
                How::new().write(true).open(&path)?.set_len(size as u64)?;
                let mut content = self.files[&key].clone();
                content.resize(size, 0);
                self.did(&key, Some(content));
            }
            11 | 12 => {
                fs::remove_file(&path)?;
                self.did(&key, None);
            }
            13 => {
                let new = self.some_key();
                fs::rename(&path, self.path(&new))?;
                if let Some(content) = self.files.remove(&key) {
                    self.files.insert(new.clone(), content);
                }
                self.deeds.moved(&key, &new);
            }
            14 => {
                let there = fs::read(&path)?;
                assert!(
                    there == self.files[&key],
                    "{key:?} reads otherwise while mounted"
                );
            }
            15 | 16 => {
                let start = self.length(STRIPE_BYTES as u64);
                let mut new = self.bytes((STRIPE_BYTES - start) as u64);
                new.truncate(STRIPE_BYTES - start);
                let common = self.root.join(SHARED).join(COMMON);
                let common = How::new().write(true).open(common)?;
                let first = self.number * STRIPE_BYTES + start;
                common.write_all_at(&new, first as u64)?;
                for end in ends(first, new.len()) {
                    let count = end - first;
                    self.stripe[start..start + count].copy_from_slice(&new[..count]);
                    self.deeds.stripe(self.stripe.clone());
                }
            }
            // A synchronous write: durable when the call returns, and possibly present before.
            17 | 18 => {
                let offset = self.length(20_000);
                let new = self.bytes(6000);
                let flags = match what {
                    17 => rustix::fs::OFlags::DSYNC,
                    _ => rustix::fs::OFlags::SYNC,
                };
                let file = How::new()
                    .write(true)
                    .custom_flags(flags.bits() as i32)
                    .open(&path)?;
                self.wrote(&key, offset, &new);
                let number = self.deeds.file_number(&key).unwrap_or(NAMES_ONLY);
                self.promised(number, || file.write_all_at(&new, offset as u64))?;
            }
            19 => {
                let directory = File::open(self.root.join(&key.0))?;
                self.promised(NAMES_ONLY, || directory.sync_all())?;
            }
            // Write, fsync, rename over the old file: how editors and databases save.
            20 => {
                let new = self.some_key();
                let content = self.bytes(12_000);
                let file = File::create_new(self.path(&new))?;
                self.did(&new, Some(vec![]));
                (&file).write_all(&content)?;
                self.wrote(&new, 0, &content);
                let number = self.deeds.file_number(&new).unwrap_or(NAMES_ONLY);
                self.promised(number, || file.sync_all())?;
                fs::rename(self.path(&new), &path)?;
                self.files.remove(&new);
                self.files.insert(key.clone(), content);
                self.deeds.moved(&new, &key);
                let directory = File::open(self.root.join(&key.0))?;
                self.promised(NAMES_ONLY, || directory.sync_all())?;
            }
            _ => {
                let file = How::new().write(true).open(&path)?;
                let number = self.deeds.file_number(&key).unwrap_or(NAMES_ONLY);
                self.promised(number, || match what {
                    21 => file.sync_data(),
                    _ => file.sync_all(),
                })?;
            }
        }
        Ok(())
    }
}

/// The offsets where requests for these bytes may end.
fn ends(offset: usize, length: usize) -> impl Iterator<Item = usize> {
    let end = offset + length;
    let first = (offset / PAGE_BYTES + 1) * PAGE_BYTES;
    (first..end).step_by(PAGE_BYTES).chain(std::iter::once(end))
}

/// Everything below a mount, read through the kernel.
fn read_all(root: &Path) -> io::Result<Files> {
    let mut all = Files::new();
    for directory in fs::read_dir(root)? {
        let directory = directory?;
        let place = directory.file_name().into_string().unwrap();
        for entry in fs::read_dir(directory.path())? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap();
            all.insert((place.clone(), name), fs::read(entry.path())?);
        }
    }
    Ok(all)
}

/// Checks that the promised data is present after a power cut that follows `count` requests.
fn judge(world: &World, count: usize, cut: &PowerCut, workers: &[Worker<'_>], by_zdb: bool) {
    let what = format!(
        "the power failed after {count} of {} requests, {cut:?}",
        world.recorded()
    );
    let after = world.reborn(count, cut);
    let candidate = found(&after, &BTreeSet::new()).unwrap_or_else(|why| panic!("{what}: {why}"));
    let options = OpenOptions {
        cache_bytes: Some(CACHE_BYTES),
        ..OpenOptions::default()
    };
    let read = View::open_candidate(&candidate, &options);
    let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
    verified(&read, &BTreeSet::new(), true).unwrap_or_else(|why| panic!("{what}: {why}"));
    drop(read);
    let pool = Pool::open_candidate(&after.env(), &candidate, &options, &writing());
    let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mounted = Mounted::new(pool);
    let there = read_all(mounted.point.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let common = there.get(&(SHARED.to_owned(), COMMON.to_owned()));
    for worker in workers {
        let number = worker.number;
        let prefix = format!("f{number}-");
        let mine = there
            .iter()
            .filter(|((_, name), _)| name.starts_with(&prefix));
        let mine: Files = mine
            .map(|(key, content)| (key.clone(), content.clone()))
            .collect();
        let stripe = number * STRIPE_BYTES..(number + 1) * STRIPE_BYTES;
        let stripe = common.and_then(|common| common.get(stripe));
        worker
            .deeds
            .judge(
                number,
                &mine,
                stripe.unwrap_or_default(),
                worker.clock,
                count,
            )
            .unwrap_or_else(|why| panic!("{what}: program {number}: {why}"));
    }
    // The mount is usable again.
    fs::write(mounted.point.path().join("after"), &what).unwrap();
    let pool = mounted.unmount();
    pool.export().unwrap();
    if by_zdb {
        judged(&after, POOL, &Options::default()).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

fn writing() -> WriteOptions {
    WriteOptions {
        limits: limits(),
        ..WriteOptions::default()
    }
}

fn power_fails(shape: &str) {
    if let Some(why) = absent() {
        eprintln!("not tried: {why}");
        return;
    }
    let seed = seed();
    let (rounds, programs, steps, cuts) = match is_full() {
        true => (10, 4, 150, 40),
        false => (1, 3, 60, 6),
    };
    let mut promises = 0;
    for round in 0..rounds {
        let mut rng = Seed::new(seed.wrapping_add(round));
        let world = World::new(seed.wrapping_add(round));
        let shape = Shape::named(shape).unwrap();
        let pool = create(&world, shape, writing(), CACHE_BYTES).unwrap();
        let mounted = Mounted::new(pool);
        let root = mounted.point.path().to_owned();
        for number in 0..programs {
            fs::create_dir(root.join(format!("t{number}"))).unwrap();
        }
        fs::create_dir(root.join(SHARED)).unwrap();
        fs::write(
            root.join(SHARED).join(COMMON),
            vec![0; programs * STRIPE_BYTES],
        )
        .unwrap();
        mounted.pool.sync().unwrap();
        world.forget();
        let clock = Clock::new(&world, programs);
        let mut workers: Vec<Worker<'_>> = (0..programs)
            .map(|number| Worker {
                number,
                root: root.clone(),
                rng: Seed::new(
                    seed.wrapping_mul(31)
                        .wrapping_add(round * 8 + number as u64),
                ),
                files: Files::new(),
                stripe: vec![0; STRIPE_BYTES],
                next: 0,
                deeds: Deeds::begin(Files::new(), vec![0; STRIPE_BYTES]),
                clock: &clock,
            })
            .collect();
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.work(steps).unwrap());
            }
            // Txgs in between, as they happen over time.
            for _ in 0..3 {
                mounted.pool.sync().unwrap();
                std::thread::yield_now();
            }
        });
        promises += clock.promises();
        let recorded = world.recorded();
        drop(mounted.unmount());
        for number in 0..cuts {
            let count = usize::try_from(rng.below(recorded as u64 + 1)).unwrap();
            let cut = match rng.below(4) {
                0 => PowerCut::EverythingWritten,
                1 => PowerCut::NothingUnflushed,
                _ => PowerCut::Torn(rng.fork()),
            };
            let by_zdb = number == 0 && (round == 0 || is_full());
            judge(&world, count, &cut, &workers, by_zdb);
        }
    }
    println!(
        "{promises} promises through the mount, {} power cuts survived",
        rounds * cuts
    );
    assert!(promises > 10, "{promises} promises prove nothing");
}

#[test]
fn data_fsynced_through_a_mount_survives_a_power_cut() {
    power_fails(match layout().as_str() {
        "mirror" => "mirror2",
        "raidz2" => "raidz2",
        _ => "single",
    });
}

#[test]
fn data_fsynced_to_a_log_device_survives_a_power_cut() {
    power_fails("logmirror");
}
