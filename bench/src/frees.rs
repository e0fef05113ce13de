//! Measures how removing a very large file affects other writers.
//!
//! Usage: `frees [--folder FOLDER] [--blocks N] [--record BYTES]`.
//!
//! A pool on one image gets a file of N blocks, which is removed like in a mounted file system. Before
//! that, and while its blocks are freed in the background, a writer appends 4 KiB to another file and calls
//! `fsync`. The output shows that writer's latencies, the duration of the removal and of the free, the
//! number of txgs, and the memory of the process.
#![forbid(unsafe_code)]

use anyhow::Result;
use millpond_bench::large::{LargeFile, peak_mib};
use millpond_engine::{Caller, FileSystem, NewMode, Node, Pool, WriteAt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes per write to the large file.
const PIECE_BYTES: u64 = 1 << 20;
/// The other writer's file starts over after this many bytes.
const SMALL_FILE_BYTES: u64 = 16 << 20;
/// How long the writer is measured before the removal.
const BEFORE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let plan = LargeFile::from_arguments(8 << 20)?;
    let scratch = plan.scratch()?;
    run(scratch.path(), &plan)
}

fn run(scratch: &Path, plan: &LargeFile) -> Result<()> {
    let file_bytes = plan.bytes();
    let pool = plan.pool(scratch, 512)?;
    let served = pool.served("bench")?;
    let files = served.files();
    let (root, caller) = (files.root()?, Caller::root());
    let begun = Instant::now();
    let id = {
        let mode = NewMode::exactly(0o600);
        let (node, _) = files.create(&caller, &root, b"large", mode, false)?;
        let piece = vec![1; PIECE_BYTES as usize];
        for at in (0..file_bytes).step_by(piece.len()) {
            files.write(&caller, &node, WriteAt::Offset(at), &piece)?;
        }
        node.id()
    };
    pool.sync()?;
    println!(
        "{} blocks of {} bytes written in {:.0} s",
        plan.blocks,
        plan.record_bytes,
        begun.elapsed().as_secs_f64()
    );
    let mode = NewMode::exactly(0o600);
    let (small, _) = files.create(&caller, &root, b"small", mode, true)?;
    files.fsync(&small)?;
    println!("| when | writes with fsync /s | median us | p99 us | max ms | memory peak MiB |");
    println!("|---|---|---|---|---|---|");
    let begun = Instant::now();
    written("before", files, &small, &|| begun.elapsed() < BEFORE)?;

    let (begun, first) = (Instant::now(), pool.inner().uberblock().txg);
    files.unlink(&root, b"large")?;
    files.close_unused()?;
    let removal = begun.elapsed();
    let is_there = || files.object_set().is_some_and(|set| set.object(id).is_ok());
    written("while it is freed", files, &small, &is_there)?;
    let took = begun.elapsed();
    pool.sync()?;
    let txgs = pool.inner().uberblock().txg.0 - first.0;
    println!(
        "unlink took {:.1} ms, freeing {:.1} s and {txgs} txgs: {:.0} blocks a second",
        removal.as_secs_f64() * 1000.0,
        took.as_secs_f64(),
        plan.blocks as f64 / took.as_secs_f64()
    );
    drop((small, root));
    drop(served);
    finish(pool)
}

fn finish(pool: Pool) -> Result<()> {
    let begun = Instant::now();
    pool.export()?;
    println!("export took {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Writes and calls `fsync` while `continues` is set, and prints a row of the table.
fn written(
    when: &str,
    files: &Arc<FileSystem>,
    node: &Node,
    continues: &dyn Fn() -> bool,
) -> Result<()> {
    reset_peak()?;
    let (caller, piece) = (Caller::root(), [7; 4096]);
    let (begun, mut took) = (Instant::now(), vec![]);
    while continues() {
        let at = took.len() as u64 * 4096 % SMALL_FILE_BYTES;
        let start = Instant::now();
        files.write(&caller, node, WriteAt::Offset(at), &piece)?;
        files.fsync(node)?;
        took.push(start.elapsed());
    }
    let per_second = took.len() as f64 / begun.elapsed().as_secs_f64();
    took.sort();
    let at = |part: usize| {
        let place = (took.len() * part / 100).min(took.len().saturating_sub(1));
        took.get(place).copied().unwrap_or_default()
    };
    println!(
        "| {when} | {per_second:.0} | {} | {} | {:.1} | {} |",
        at(50).as_micros(),
        at(99).as_micros(),
        at(100).as_secs_f64() * 1000.0,
        peak_mib()?
    );
    Ok(())
}

fn reset_peak() -> Result<()> {
    Ok(std::fs::write("/proc/self/clear_refs", "5")?)
}
