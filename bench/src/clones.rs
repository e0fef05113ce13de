//! Measures the clone of a very large file, and how its blocks are freed.
//!
//! Usage: `clones [--folder FOLDER] [--blocks N] [--record BYTES]`.
//!
//! A pool on one image gets a file of N blocks, and a copy of it that shares them. Then the file is removed, and then the
//! copy. The output shows how long each takes until it is on stable storage, and the memory of the process.
#![forbid(unsafe_code)]

use anyhow::Result;
use millpond_bench::files::new_file;
use millpond_bench::large::{LargeFile, peak_mib};
use millpond_engine::{Caller, Pool, WriteAt};
use std::path::Path;
use std::time::Instant;

/// Bytes per write to the file.
const PIECE_BYTES: u64 = 1 << 20;

fn main() -> Result<()> {
    let plan = LargeFile::from_arguments(1 << 20)?;
    let scratch = plan.scratch()?;
    run(scratch.path(), &plan)
}

fn run(scratch: &Path, plan: &LargeFile) -> Result<()> {
    let bytes = plan.bytes();
    let pool = plan.pool(scratch, 1024)?;
    let files = pool.file_system("bench")?;
    let caller = Caller::root();
    println!(
        "| {} blocks of {} bytes | s | on stable storage after, s | blocks per s |",
        plan.blocks, plan.record_bytes
    );
    println!("|---|---|---|---|");
    let source = new_file(&files, "source")?;
    timed("written", plan, &pool, || {
        let piece = vec![1; PIECE_BYTES as usize];
        for at in (0..bytes).step_by(piece.len()) {
            files.write(&caller, &source, WriteAt::Offset(at), &piece)?;
        }
        Ok(())
    })?;
    let copy = new_file(&files, "copy")?;
    timed("cloned", plan, &pool, || {
        let copied = files.copy_range(&caller, (&source, 0), (&copy, 0), bytes)?;
        anyhow::ensure!(copied == bytes, "{copied} bytes were copied");
        Ok(())
    })?;
    let clones = pool.committed()?.inner().space()?.clones;
    anyhow::ensure!(clones.entries == plan.blocks, "{clones:?}");
    drop((source, copy));
    for name in ["source", "copy"] {
        timed(&format!("{name} removed"), plan, &pool, || {
            files.unlink(&files.root()?, name.as_bytes())?;
            files.reap()?;
            Ok(())
        })?;
    }
    let clones = pool.committed()?.inner().space()?.clones;
    anyhow::ensure!(clones.entries == 0, "{clones:?}");
    println!("memory peak: {} MiB", peak_mib()?);
    drop(files);
    pool.export()?;
    Ok(())
}

fn timed(
    what: &str,
    plan: &LargeFile,
    pool: &Pool,
    run: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let begun = Instant::now();
    run()?;
    let called = begun.elapsed().as_secs_f64();
    pool.sync()?;
    let all = begun.elapsed().as_secs_f64();
    let rate = plan.blocks as f64 / all;
    println!("| {what} | {called:.2} | {all:.2} | {rate:.0} |");
    Ok(())
}
