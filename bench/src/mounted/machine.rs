//! The mix of a virtual machine's disk: random reads and writes of one large file by several threads.

use crate::cost::{Amount, Meter};
use crate::files::PIECE;
use crate::latency::percentile_ms;
use crate::measurement::{Unit, print};
use crate::{Rows, seconds};
use anyhow::{Result, bail};
use millpond_bench::SeededRng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROW: &str = "virtual machine";
const BYTES: u64 = 1 << 30;
const THREADS: u64 = 4;
const READS_PERCENT: u64 = 70;
/// Operations are aligned to this many bytes, and are of one to four such units.
const SECTOR: usize = 4096;
const SECTORS_MOST: u64 = 4;
/// Each thread calls `fdatasync` after this number of writes.
const WRITES_PER_SYNC: u64 = 64;

fn disk(folder: &Path) -> PathBuf {
    folder.join("disk")
}

/// Writes the file, so that no part of it is a hole.
pub fn prepare(folder: &Path, rows: &Rows) -> Result<()> {
    if !rows.wants(ROW) {
        return Ok(());
    }
    let (file, mut rng) = (File::create(disk(folder))?, SeededRng(7));
    let pieces: Vec<Vec<u8>> = (0..16).map(|_| rng.bytes(PIECE, false)).collect();
    let offsets = (0..BYTES).step_by(PIECE);
    for (offset, piece) in offsets.zip(pieces.iter().cycle()) {
        file.write_all_at(piece, offset)?;
    }
    Ok(file.sync_all()?)
}

pub fn run(folder: &Path, rows: &Rows) -> Result<()> {
    if !rows.wants(ROW) {
        return Ok(());
    }
    let time = seconds("BENCH_MACHINE_SECONDS", 20)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(disk(folder))?;
    let (meter, begun) = (Meter::start()?, Instant::now());
    let works = std::thread::scope(|scope| {
        let file = &file;
        let threads = (1..=THREADS).map(|seed| scope.spawn(move || mix(file, seed, time)));
        let threads: Vec<_> = threads.collect();
        let works = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| bail!("a thread of the mix panicked"))
        });
        works.collect::<Result<Vec<Work>>>()
    })?;
    let elapsed_s = begun.elapsed().as_secs_f64();
    let (mut count, mut reads) = (0, vec![]);
    for work in works {
        count += work.writes + work.reads.len() as u64;
        reads.extend(work.reads);
    }
    reads.sort_unstable();
    let name = format!("{ROW}: operations");
    print(&name, Unit::PerSecond, count as f64 / elapsed_s);
    if let Some(latency_ms) = percentile_ms(&reads, 990) {
        print(&format!("{ROW}: p99 read"), Unit::Milliseconds, latency_ms);
    }
    meter.cost(ROW, Amount::Operations(count))
}

/// What a thread has done: nanoseconds of each read, and the number of writes.
struct Work {
    reads: Vec<u64>,
    writes: u64,
}

fn mix(file: &File, seed: u64, time: Duration) -> Result<Work> {
    // Small seeds give similar first numbers.
    let mut rng = SeededRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let content = rng.bytes(SECTOR * SECTORS_MOST as usize, false);
    let mut buffer = content.clone();
    let (mut reads, mut writes) = (vec![], 0);
    let begun = Instant::now();
    while begun.elapsed() < time {
        let sectors = 1 + rng.below(SECTORS_MOST);
        let length = SECTOR * sectors as usize;
        let offset = rng.below(BYTES / SECTOR as u64 - sectors + 1) * SECTOR as u64;
        if rng.below(100) < READS_PERCENT {
            let before = Instant::now();
            file.read_exact_at(&mut buffer[..length], offset)?;
            reads.push(before.elapsed().as_nanos() as u64);
        } else {
            file.write_all_at(&content[..length], offset)?;
            writes += 1;
            if writes % WRITES_PER_SYNC == 0 {
                file.sync_data()?;
            }
        }
    }
    Ok(Work { reads, writes })
}
