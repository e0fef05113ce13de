//! Writers that are faster than the devices.

use crate::size;
use millpond_device::{Device, DeviceError, MemoryDevice};
use millpond_engine::{Caller, NewMode, Pool, WriteAt, WriteOptions};
use millpond_env::Env;
use millpond_pool::{NewDevice, NewLayout, NewPool, NewTop, NewVdevs};
use millpond_txg::DirtyLimits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A disk with a limited write rate.
#[derive(Debug)]
struct Slow {
    below: MemoryDevice,
    bytes_per_second: u64,
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.below.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let ns = bytes.len() as u64 * 1_000_000_000 / self.bytes_per_second;
        std::thread::sleep(Duration::from_nanos(ns));
        self.below.write(offset_bytes, bytes)
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.below.discard(offset_bytes, length_bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }
}

#[test]
fn fast_writers_are_throttled_and_dirty_data_is_bounded() {
    let dirty = 32 << 20;
    let total = size(96, 512) << 20;
    let disk = Slow {
        below: MemoryDevice::new(vec![0; total as usize + (512 << 20)]),
        bytes_per_second: size(64, 32) << 20,
    };
    let device = NewDevice::file("/slow", Arc::new(disk));
    let top = NewTop::normal(NewLayout::Single, vec![device]);
    let new = NewPool {
        root_properties: [("compression".to_owned(), "off".to_owned())].into(),
        writing: WriteOptions {
            limits: DirtyLimits {
                limit_bytes: dirty,
                ..DirtyLimits::default()
            },
            ..WriteOptions::default()
        },
        cache_bytes: Some(16 << 20),
        ..NewPool::new("tank", NewVdevs::of(vec![top]))
    };
    let pool = Pool::create(&Env::real(), &new).unwrap();
    let files = pool.file_system("tank").unwrap();
    let (worst, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (files, pool, worst, most) = (&files, &pool, &worst, &most);
            scope.spawn(move || {
                let (root, caller) = (files.root().unwrap(), Caller::root());
                let name = thread.to_string();
                let mode = NewMode::exactly(0o644);
                let (node, _) = files
                    .create(&caller, &root, name.as_bytes(), mode, true)
                    .unwrap();
                let content = vec![thread as u8 + 1; 128 << 10];
                for number in 0..total / 4 / (128 << 10) {
                    let at = WriteAt::Offset(number * (128 << 10));
                    let one = Instant::now();
                    files.write(&caller, &node, at, &content).unwrap();
                    let ms = one.elapsed().as_millis() as u64;
                    worst.fetch_max(ms, Ordering::Relaxed);
                    most.fetch_max(pool.inner().groups().dirty_bytes(), Ordering::Relaxed);
                }
            });
        }
    });
    pool.sync().unwrap();
    println!(
        "scale: slow disk: {:.1} MiB/s, longest write of 128 KiB {} ms, dirty at most {} of {} MiB",
        (total >> 20) as f64 / begun.elapsed().as_secs_f64(),
        worst.into_inner(),
        most.load(Ordering::Relaxed) >> 20,
        dirty >> 20,
    );
    // Each of the four writers may be admitted just below the limit.
    assert!(most.into_inner() <= dirty + 4 * (4 << 20));
    drop(files);
    pool.export().unwrap();
}
