//! A tree that is copied twice, with and without dedup.

use crate::Stage;
use anyhow::Result;
use millpond_bench::files::write_file;
use millpond_bench::rows::{Rows, timed};
use millpond_engine::{FileSystem, Pool};
use std::sync::Arc;

const LARGE_BYTES: u64 = 4 << 20;
const SMALL_BYTES: u64 = 16 << 10;
/// One byte of eight is in small files.
const SMALL_SHARE: u64 = 8;

/// Row names: first copy, second copy, both removed.
const PLAIN: [&str; 3] = [
    "tree copied, s",
    "tree copied again, s",
    "both copies removed, s",
];
const DEDUP: [&str; 3] = [
    "dedup: tree copied, s",
    "dedup: tree copied again, s",
    "dedup: both copies removed, s",
];
const RATIOS: [&str; 3] = [
    "dedup: first copy over plain",
    "dedup: second copy over plain",
    "dedup: removal over plain",
];

pub fn measure(stage: &Stage<'_>, rows: &mut Rows) -> Result<()> {
    let plain = of_one(stage, "off")?;
    let dedup = of_one(stage, "on")?;
    for (names, times) in [(PLAIN, plain), (DEDUP, dedup)] {
        for (name, seconds) in names.into_iter().zip(times) {
            rows.add(name, seconds);
        }
    }
    for (name, (with, without)) in RATIOS.into_iter().zip(dedup.into_iter().zip(plain)) {
        rows.add(name, with / without);
    }
    Ok(())
}

fn of_one(stage: &Stage<'_>, dedup: &str) -> Result<[f64; 3]> {
    let image = stage.image("copies.img", 2)?;
    let pool = stage
        .pool()
        .single(&image)
        .root_property("checksum", "sha256")
        .root_property("dedup", dedup)
        .create()?;
    let files = pool.file_system("bench")?;
    let mut names = vec![];
    let (first, ()) = timed(|| copy(stage, &pool, &files, "first", &mut names))?;
    let (second, ()) = timed(|| copy(stage, &pool, &files, "second", &mut names))?;
    let (removed, ()) = timed(|| {
        for name in &names {
            files.unlink(&files.root()?, name.as_bytes())?;
        }
        files.reap()?;
        Ok(pool.sync()?)
    })?;
    drop(files);
    pool.export()?;
    std::fs::remove_file(&image)?;
    Ok([first, second, removed])
}

/// Writes the same files each time, under other names. Ends when they are on stable storage.
fn copy(
    stage: &Stage<'_>,
    pool: &Pool,
    files: &Arc<FileSystem>,
    copy: &str,
    names: &mut Vec<String>,
) -> Result<()> {
    let small = stage.bytes / SMALL_SHARE;
    let large = (stage.bytes - small) / LARGE_BYTES;
    let sizes = [(large, LARGE_BYTES), (small / SMALL_BYTES, SMALL_BYTES)];
    for (count, length) in sizes {
        for number in 0..count {
            let name = format!("{copy}-{length}-{number}");
            let seed = stage.round << 48 | length << 20 | number;
            write_file(files, &name, length, seed)?;
            names.push(name);
        }
    }
    Ok(pool.sync()?)
}
