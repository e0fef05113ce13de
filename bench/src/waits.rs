//! How often writing a txg waits for devices, one wait after the other.
//!
//! `waits [MILLISECONDS]` makes pools of simulated disks whose writes and flushes take that long (10 by default), and prints for
//! each case: `CASE<TAB>waves<TAB>operations<TAB>milliseconds`, the mean of several txgs. A wave begins when an operation
//! begins and none is under way. Milliseconds divided by those of a request are the waits of the slowest path.
//!
//! For writers that call `fsync` the columns are: calls per second, the median and the 99th percentile in milliseconds.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use millpond_device::{Device, DeviceError, WriteRequest};
use millpond_engine::{
    AllocationClass, Caller, FeatureChoice, FileSystem, NewDevice, NewLayout, NewMode, NewPool,
    NewTop, NewVdevOptions, NewVdevs, Node, Pool, WriteAt, WriteOptions,
};
use millpond_env::Env;
use millpond_sim::World;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 1 << 30;
const TXGS: u32 = 20;
const STREAM_BYTES: u64 = 64 << 20;
/// How often each writer calls `fsync`, and what it does in between takes.
const FSYNCS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(3);

#[derive(Debug, Default)]
struct Tally {
    under_way: u64,
    waves: u64,
    operations: u64,
}

/// A disk whose writes and flushes take time.
#[derive(Debug)]
struct SlowDisk {
    disk: Arc<dyn Device>,
    delay: Duration,
    tally: Arc<Mutex<Tally>>,
}

impl SlowDisk {
    fn during<T>(&self, operation: impl FnOnce() -> T) -> T {
        let change = |change: &dyn Fn(&mut Tally)| {
            if let Ok(mut tally) = self.tally.lock() {
                change(&mut tally);
            }
        };
        change(&|tally| {
            tally.waves += u64::from(tally.under_way == 0);
            tally.operations += 1;
            tally.under_way += 1;
        });
        std::thread::sleep(self.delay);
        let outcome = operation();
        change(&|tally| tally.under_way -= 1);
        outcome
    }
}

impl Device for SlowDisk {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.disk.read(offset_bytes, buffer)
    }
    fn writes_wait_for_device(&self) -> bool {
        true
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.during(|| self.disk.write(offset_bytes, bytes))
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.during(|| self.disk.write_many(requests));
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.during(|| self.disk.flush())
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.disk.discard(offset_bytes, length_bytes)
    }
}

struct Rig {
    pool: Pool,
    tally: Arc<Mutex<Tally>>,
    caller: Caller,
}

impl Rig {
    fn new(layout: NewLayout, disks: u64, delay: Duration) -> Result<Self> {
        let world = World::without_journal(7);
        let tally = Arc::<Mutex<Tally>>::default();
        let devices = (0..disks).map(|number| {
            let disk = SlowDisk {
                disk: world.disk(DISK_BYTES, 4096),
                delay,
                tally: Arc::clone(&tally),
            };
            NewDevice::file(&format!("/sim/d{number}.img"), Arc::new(disk))
        });
        let top = NewTop {
            layout,
            class: AllocationClass::Normal,
            devices: devices.collect(),
        };
        let new = NewPool {
            name: "tank".into(),
            vdevs: NewVdevs {
                tops: vec![top],
                ..NewVdevs::default()
            },
            vdev_options: NewVdevOptions {
                ashift: Some(12),
                force: true,
            },
            features: FeatureChoice::Default,
            settings: vec![],
            root_properties: BTreeMap::from([("compression".to_owned(), "off".to_owned())]),
            writing: WriteOptions::default(),
            system: "sim".into(),
            cache_bytes: Some(256 << 20),
        };
        let pool = Pool::create(&Env::real(), &new)?;
        Ok(Self {
            pool,
            tally,
            caller: Caller::root(),
        })
    }

    fn files(&self, name: &str) -> Result<(Arc<FileSystem>, Node)> {
        self.pool.datasets().create_filesystem(name, &[])?;
        let files = self.pool.file_system(name)?;
        let mode = NewMode::exactly(0o644);
        let root = files.root()?;
        let made = files.create(&self.caller, &root, b"content", mode, true)?;
        files.write(&self.caller, &made.0, WriteAt::Offset(0), &[1; 128 << 10])?;
        Ok((files, made.0))
    }

    /// Prints what a step takes, each time up to the end of its txg.
    fn measure(
        &self,
        case: &str,
        times: u32,
        mut step: impl FnMut(u8) -> Result<()>,
    ) -> Result<()> {
        self.pool.sync()?;
        let numbers = || {
            let tally = self.tally.lock().ok().context("a disk panicked")?;
            anyhow::Ok((tally.waves, tally.operations))
        };
        let (before, begun) = (numbers()?, Instant::now());
        for number in 0..times {
            step(number as u8)?;
            self.pool.sync()?;
        }
        let (after, took) = (numbers()?, begun.elapsed());
        let mean = |sum: u64| sum as f64 / f64::from(times);
        println!(
            "{case}\t{:.1}\t{:.1}\t{:.1}",
            mean(after.0 - before.0),
            mean(after.1 - before.1),
            took.as_secs_f64() * 1000.0 / f64::from(times)
        );
        Ok(())
    }

    /// Prints how long `fsync` takes while several threads call it, each for a file of its own.
    fn measure_fsync(&self, case: &str, writers: u8) -> Result<()> {
        let (files, _) = self.files(&format!("tank/writers{writers}"))?;
        let root = files.root()?;
        let write = &|number: u8| -> Result<Vec<Duration>> {
            let (name, mode) = ([b'a' + number], NewMode::exactly(0o644));
            let (node, _) = files.create(&self.caller, &root, &name, mode, true)?;
            files.fsync(&node)?;
            let mut took = vec![];
            for _ in 0..FSYNCS {
                files.write(&self.caller, &node, WriteAt::Offset(0), &[number; 4096])?;
                let begun = Instant::now();
                files.fsync(&node)?;
                took.push(begun.elapsed());
                std::thread::sleep(BETWEEN);
            }
            Ok(took)
        };
        let begun = Instant::now();
        let mut took = std::thread::scope(|scope| {
            let running: Vec<_> = (0..writers)
                .map(|number| scope.spawn(move || write(number)))
                .collect();
            let outcomes = running.into_iter().map(|one| match one.join() {
                Ok(took) => took,
                Err(_) => anyhow::bail!("a writer panicked"),
            });
            anyhow::Ok(outcomes.collect::<Result<Vec<_>>>()?.concat())
        })?;
        let per_second = took.len() as f64 / begun.elapsed().as_secs_f64();
        took.sort();
        let ms = |share: usize| {
            let at = took.len() * share / 100;
            took.get(at).map_or(0.0, |took| took.as_secs_f64() * 1000.0)
        };
        println!("{case}\t{per_second:.1}\t{:.1}\t{:.1}", ms(50), ms(99));
        Ok(())
    }
}

fn main() -> Result<()> {
    let milliseconds = match std::env::args().nth(1) {
        Some(word) => word.parse()?,
        None => 10,
    };
    let delay = Duration::from_millis(milliseconds);
    println!("case\twaves\toperations\tmilliseconds");
    for (name, layout, disks) in [
        ("mirror", NewLayout::Mirror, 2),
        ("disk", NewLayout::Single, 1),
        ("raidz", NewLayout::Raidz(1), 3),
    ] {
        let rig = Rig::new(layout, disks, delay)?;
        let (one, two) = (rig.files("tank/one")?, rig.files("tank/two")?);
        let change = |(files, node): &(Arc<FileSystem>, Node), number: u8| {
            files.write(&rig.caller, node, WriteAt::Offset(0), &[number; 4096])?;
            anyhow::Ok(())
        };
        rig.measure(&format!("{name}/one-block"), TXGS, |number| {
            change(&one, number)
        })?;
        rig.measure(&format!("{name}/two-datasets"), TXGS, |number| {
            change(&one, number)?;
            change(&two, number)
        })?;
        rig.measure(&format!("{name}/stream-64-MiB"), 3, |number| {
            let (files, node) = &one;
            let record = vec![number | 1; 128 << 10];
            for at in (0..STREAM_BYTES).step_by(record.len()) {
                files.write(&rig.caller, node, WriteAt::Offset(at), &record)?;
            }
            Ok(())
        })?;
        for writers in [1, 4, 8] {
            rig.measure_fsync(&format!("{name}/fsync-{writers}"), writers)?;
        }
    }
    Ok(())
}
