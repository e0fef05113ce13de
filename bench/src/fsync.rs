//! Measures fsync: `fsync [--folder FOLDER] [--seconds N] [--disks N] [--deadline SECONDS]`.
//!
//! Each writer appends 4 KiB, or 1 MiB, to a file of its own and waits for stable storage. The files are in
//! a file system of a pool on one image, or on a mirror of several (`--disks`). Device requests have a
//! deadline, or none (`--deadline 0`).
//!
//! For comparison, the same number of writers uses `fdatasync` on plain files in the same directory; this
//! is the limit of the directory's disk. Both alternate, so that a busy machine slows both.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use millpond_engine::{Caller, NewMode, PoolBuilder, RequestDeadline, WriteAt, WriteOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes per write, and the number of bytes after which a file starts over.
const SIZES: [(usize, u64); 2] = [(4096, 16 << 20), (1 << 20, 128 << 20)];
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut folder, mut seconds) = (std::env::temp_dir(), 3u64);
    let mut layout = Layout {
        disks: 1,
        deadline: RequestDeadline::default(),
    };
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument}: what?"))
        };
        match argument.as_str() {
            "--folder" => folder = PathBuf::from(value()?),
            "--seconds" => seconds = value()?.parse()?,
            "--disks" => layout.disks = value()?.parse()?,
            "--deadline" => {
                let limit_s: u64 = value()?.parse()?;
                let limit = (limit_s > 0).then_some(Duration::from_secs(limit_s));
                layout.deadline = RequestDeadline(limit);
            }
            _ => anyhow::bail!("unknown argument {argument}"),
        }
    }
    let scratch = folder.join(format!("millpond-fsync-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let outcome = run(&scratch, layout, Duration::from_secs(seconds));
    std::fs::remove_dir_all(&scratch)?;
    outcome
}

/// The layout of the pool.
#[derive(Clone, Copy)]
struct Layout {
    disks: usize,
    deadline: RequestDeadline,
}

fn run(scratch: &Path, layout: Layout, time: Duration) -> Result<()> {
    println!("| bytes | writers | plain /s | median us | pool /s | median us | ratio |");
    println!("|---|---|---|---|---|---|---|");
    let cases = SIZES
        .iter()
        .flat_map(|size| [1usize, 4].map(|writers| (*size, writers)));
    for (size, writers) in cases {
        let (mut plain, mut pool) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            plain.push(plain_files(scratch, writers, size, time)?);
            pool.push(pool_files(scratch, layout, writers, size, time)?);
        }
        let (plain, pool) = (best(plain), best(pool));
        println!(
            "| {} | {writers} | {:.0} | {} | {:.0} | {} | {:.2} |",
            size.0,
            plain.per_second,
            plain.median.as_micros(),
            pool.per_second,
            pool.median.as_micros(),
            pool.per_second / plain.per_second
        );
    }
    Ok(())
}

struct Measurement {
    per_second: f64,
    median: Duration,
}

fn best(measurements: Vec<Measurement>) -> Measurement {
    measurements
        .into_iter()
        .max_by(|one, other| one.per_second.total_cmp(&other.per_second))
        .unwrap_or(Measurement {
            per_second: 0.0,
            median: Duration::ZERO,
        })
}

/// Calls each step repeatedly on a thread of its own.
fn measure(
    time: Duration,
    steps: Vec<Box<dyn FnMut(u64) -> Result<()> + Send + '_>>,
) -> Result<Measurement> {
    let start = Instant::now();
    let outcomes: Vec<Result<Vec<Duration>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = steps
            .into_iter()
            .map(|mut step| {
                scope.spawn(move || {
                    let mut took = vec![];
                    while start.elapsed() < time {
                        let begun = Instant::now();
                        step(took.len() as u64)?;
                        took.push(begun.elapsed());
                    }
                    Ok(took)
                })
            })
            .collect();
        let outcomes = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        outcomes
            .map(|outcome| outcome.unwrap_or_else(|_| anyhow::bail!("a writer panicked")))
            .collect()
    });
    let elapsed = start.elapsed();
    let mut took = vec![];
    for outcome in outcomes {
        took.extend(outcome?);
    }
    took.sort();
    Ok(Measurement {
        per_second: took.len() as f64 / elapsed.as_secs_f64(),
        median: took.get(took.len() / 2).copied().unwrap_or_default(),
    })
}

fn plain_files(
    scratch: &Path,
    writers: usize,
    (bytes, all): (usize, u64),
    time: Duration,
) -> Result<Measurement> {
    let count = all / bytes as u64;
    let mut steps: Vec<Box<dyn FnMut(u64) -> Result<()> + Send>> = vec![];
    for number in 0..writers {
        let path = scratch.join(format!("plain{number}"));
        let file = File::create(&path)?;
        // Written once before, so that later writes change no metadata of the file.
        for at in 0..count {
            file.write_all_at(&vec![1; bytes], at * bytes as u64)?;
        }
        file.sync_all()?;
        let noise = noise(bytes);
        steps.push(Box::new(move |at| {
            file.write_all_at(&noise, at % count * bytes as u64)?;
            Ok(file.sync_data()?)
        }));
    }
    measure(time, steps)
}

/// Incompressible bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn pool_files(
    scratch: &Path,
    layout: Layout,
    writers: usize,
    (bytes, all): (usize, u64),
    time: Duration,
) -> Result<Measurement> {
    let count = all / bytes as u64;
    let images = (0..layout.disks).map(|number| scratch.join(format!("disk{number}.img")));
    let images: Vec<PathBuf> = images.collect();
    for image in &images {
        File::create(image)?.set_len(2 << 30)?;
    }
    let plan = PoolBuilder::new("bench").writing(WriteOptions {
        deadline: layout.deadline,
        ..WriteOptions::default()
    });
    let plan = match &images[..] {
        [image] => plan.single(image),
        _ => plan.mirror(&images),
    };
    let pool = plan.create()?;
    let files = pool.file_system("bench")?;
    let (root, caller) = (files.root()?, Caller::root());
    let mut steps: Vec<Box<dyn FnMut(u64) -> Result<()> + Send>> = vec![];
    for number in 0..writers {
        let name = format!("f{number}").into_bytes();
        let (node, _) = files.create(&caller, &root, &name, NewMode::exactly(0o600), true)?;
        files.fsync(&node)?;
        let (files, caller) = (files.clone(), caller.clone());
        let noise = noise(bytes);
        steps.push(Box::new(move |at| {
            let at = WriteAt::Offset(at % count * bytes as u64);
            files.write(&caller, &node, at, &noise)?;
            Ok(files.fsync(&node)?)
        }));
    }
    let measurements = measure(time, steps)?;
    drop((root, files));
    pool.export()?;
    for image in &images {
        std::fs::remove_file(image)?;
    }
    Ok(measurements)
}
