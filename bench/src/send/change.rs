//! Files and changes of them through a mounted file system, the same for all contenders.

use anyhow::{Context, Result};
use millpond_bench::SeededRng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PIECE_BYTES: usize = 1 << 20;

/// Writes a file of incompressible records in order.
pub fn fill(path: &Path, records: u64, record_bytes: u64) -> Result<()> {
    let file = File::create_new(path)?;
    let mut rng = SeededRng(17);
    let total = records * record_bytes;
    let mut at = 0;
    while at < total {
        let length = (total - at).min(PIECE_BYTES as u64) as usize;
        let piece = rng.bytes(PIECE_BYTES, false);
        file.write_all_at(piece.get(..length).context("a piece")?, at)?;
        at += length as u64;
    }
    Ok(file.sync_all()?)
}

/// Overwrites records at random places.
pub fn overwrite(path: &Path, records: u64, record_bytes: u64, changes: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut rng = SeededRng(19);
    for _ in 0..changes {
        let record = rng.bytes(usize::try_from(record_bytes)?, false);
        file.write_all_at(&record, rng.below(records) * record_bytes)?;
    }
    Ok(file.sync_all()?)
}

/// Writes one of `every` files of a tree anew, at random.
pub fn rewrite(tree: &Path, every: u64) -> Result<()> {
    let mut rng = SeededRng(23);
    let mut folders: Vec<_> = std::fs::read_dir(tree)?.collect::<Result<_, _>>()?;
    folders.sort_by_key(std::fs::DirEntry::file_name);
    for folder in folders {
        let mut files: Vec<_> = std::fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
        files.sort_by_key(std::fs::DirEntry::file_name);
        for file in files {
            if rng.below(every) == 0 {
                let length = usize::try_from(file.metadata()?.len())?;
                let content = rng.bytes(length.next_multiple_of(8), false);
                let file = OpenOptions::new().write(true).open(file.path())?;
                file.write_all_at(content.get(..length).context("a length")?, 0)?;
            }
        }
    }
    Ok(())
}
