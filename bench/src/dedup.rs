//! Measures copies of a tree with and without dedup.
//!
//! Usage: `dedup [--folder FOLDER] [--files N] [--bytes N] [--record BYTES] [--rounds N]`.
//!
//! Two file systems of a pool on one image get the same files twice, of content that does not repeat within a copy, without
//! compression and with the checksum sha256. One has `dedup=on`. The output shows how long each copy takes until it is on stable
//! storage, and the same for removing both.
#![forbid(unsafe_code)]

use anyhow::Result;
use millpond_bench::large::peak_mib;
use millpond_engine::{Caller, FileSystem, NewMode, Pool, PoolBuilder, PropertyValue, WriteAt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

struct Plan {
    folder: PathBuf,
    files: u64,
    bytes: usize,
    record: u64,
    rounds: u64,
}

impl Plan {
    fn from_arguments() -> Result<Self> {
        let mut plan = Self {
            folder: std::env::temp_dir(),
            files: 1000,
            bytes: 1 << 20,
            record: 128 << 10,
            rounds: 3,
        };
        let mut arguments = std::env::args().skip(1);
        while let (Some(option), Some(value)) = (arguments.next(), arguments.next()) {
            match option.as_str() {
                "--folder" => plan.folder = value.into(),
                "--files" => plan.files = value.parse()?,
                "--bytes" => plan.bytes = value.parse()?,
                "--record" => plan.record = value.parse()?,
                "--rounds" => plan.rounds = value.parse()?,
                _ => anyhow::bail!("{option}: no such option"),
            }
        }
        Ok(plan)
    }
}

fn main() -> Result<()> {
    let plan = Plan::from_arguments()?;
    println!("| round | dedup | first copy, s | second copy, s | both removed, s | MiB peak |");
    println!("|---|---|---|---|---|---|");
    for round in 0..plan.rounds {
        for dedup in ["off", "on"] {
            measure(&plan, round, dedup)?;
        }
    }
    Ok(())
}

fn measure(plan: &Plan, round: u64, dedup: &str) -> Result<()> {
    let scratch = tempfile::tempdir_in(&plan.folder)?;
    let image = scratch.path().join("image");
    let all = plan.files * plan.bytes as u64;
    std::fs::File::create(&image)?.set_len((4 * all).max(1 << 30))?;
    let pool = PoolBuilder::new("bench").single(&image).create()?;
    let text = |name: &str, value: &str| (name.to_owned(), PropertyValue::Text(value.to_owned()));
    let properties = [
        ("recordsize".to_owned(), PropertyValue::Number(plan.record)),
        text("compression", "off"),
        text("checksum", "sha256"),
        text("dedup", dedup),
    ];
    pool.datasets().set_properties("bench", &properties)?;
    let files = pool.file_system("bench")?;
    let first = timed(&pool, || copy(plan, &files, round, "first"))?;
    let second = timed(&pool, || copy(plan, &files, round, "second"))?;
    let removed = timed(&pool, || {
        for copy in ["first", "second"] {
            for number in 0..plan.files {
                files.unlink(&files.root()?, format!("{copy}-{number}").as_bytes())?;
            }
        }
        Ok(files.reap()?)
    })?;
    println!(
        "| {round} | {dedup} | {first:.2} | {second:.2} | {removed:.2} | {} |",
        peak_mib()?
    );
    drop(files);
    pool.export()?;
    Ok(())
}

fn copy(plan: &Plan, files: &Arc<FileSystem>, round: u64, name: &str) -> Result<()> {
    let caller = Caller::root();
    let root = files.root()?;
    for number in 0..plan.files {
        let mode = NewMode::exactly(0o600);
        let name = format!("{name}-{number}");
        let (node, _) = files.create(&caller, &root, name.as_bytes(), mode, true)?;
        let content = content(round << 32 | number, plan.bytes);
        files.write(&caller, &node, WriteAt::Offset(0), &content)?;
    }
    Ok(())
}

/// Bytes that are the same for the same seed, made faster than they are written.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn timed<R>(pool: &Pool, run: impl FnOnce() -> Result<R>) -> Result<f64> {
    let begun = Instant::now();
    run()?;
    pool.sync()?;
    Ok(begun.elapsed().as_secs_f64())
}
