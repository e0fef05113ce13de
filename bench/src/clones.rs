//! Measures the clone of a very large file, and how its blocks are freed.
//!
//! Usage: `clones [--folder FOLDER] [--blocks N] [--record BYTES]`.
//!
//! A pool on one image gets a file of N blocks, and a copy of it that shares them. Then the file is removed, and then the
//! copy. The output shows how long each takes until it is on stable storage, and the memory of the process.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use millpond_engine::{Caller, FileSystem, NewMode, Node, Pool, PoolBuilder, WriteAt};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Bytes per write to the file.
const PIECE_BYTES: u64 = 1 << 20;

struct Plan {
    folder: PathBuf,
    blocks: u64,
    record_bytes: u64,
}

fn main() -> Result<()> {
    let mut plan = Plan {
        folder: std::env::temp_dir(),
        blocks: 1 << 20,
        record_bytes: 512,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments
            .next()
            .with_context(|| format!("{argument}: what?"))?;
        match argument.as_str() {
            "--folder" => plan.folder = PathBuf::from(value),
            "--blocks" => plan.blocks = value.parse()?,
            "--record" => plan.record_bytes = value.parse()?,
            _ => anyhow::bail!("unknown argument {argument}"),
        }
    }
    let scratch = tempfile::tempdir_in(&plan.folder)?;
    run(scratch.path(), &plan)
}

fn run(scratch: &Path, plan: &Plan) -> Result<()> {
    let image = scratch.join("disk.img");
    let bytes = plan.blocks * plan.record_bytes;
    File::create(&image)?.set_len(2 * bytes + plan.blocks * 1024 + (4 << 30))?;
    let pool = PoolBuilder::new("bench")
        .single(&image)
        .ashift(9)
        .root_property("recordsize", &plan.record_bytes.to_string())
        .root_property("compression", "off")
        .create()?;
    let files = pool.file_system("bench")?;
    let caller = Caller::root();
    println!(
        "| {} blocks of {} bytes | s | on stable storage after, s | blocks per s |",
        plan.blocks, plan.record_bytes
    );
    println!("|---|---|---|---|");
    let source = create(&files, b"source")?;
    timed("written", plan, &pool, || {
        let piece = vec![1; PIECE_BYTES as usize];
        for at in (0..bytes).step_by(piece.len()) {
            files.write(&caller, &source, WriteAt::Offset(at), &piece)?;
        }
        Ok(())
    })?;
    let copy = create(&files, b"copy")?;
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

fn create(files: &Arc<FileSystem>, name: &[u8]) -> Result<Node> {
    let mode = NewMode::exactly(0o600);
    let (node, _) = files.create(&Caller::root(), &files.root()?, name, mode, true)?;
    Ok(node)
}

fn timed(what: &str, plan: &Plan, pool: &Pool, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    run()?;
    let called = begun.elapsed().as_secs_f64();
    pool.sync()?;
    let all = begun.elapsed().as_secs_f64();
    let rate = plan.blocks as f64 / all;
    println!("| {what} | {called:.2} | {all:.2} | {rate:.0} |");
    Ok(())
}

/// Peak memory of the process in MiB.
fn peak_mib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let words = line.and_then(|line| line.split_whitespace().next());
    let kib = words.context("no VmHWM in /proc/self/status")?;
    Ok(kib.parse::<u64>()? / 1024)
}
