//! A tree of very many small files. Other programs walk, copy and remove it (`bench/mount --many`).

use anyhow::{Result, ensure};
use millpond_bench::SeededRng;
use std::fs::{File, create_dir};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `bench/mount` counts on this number, too.
const DIRECTORIES: u64 = 1000;
/// Sizes are random, up to this many bytes.
const BYTES_MOST: usize = 4096;

/// Creates the tree: the files of a directory one after the other, as unpacking an archive does.
pub fn create(tree: &Path, count: &str) -> Result<()> {
    let count: u64 = count.parse()?;
    ensure!(count >= DIRECTORIES, "at least {DIRECTORIES} files");
    let mut rng = SeededRng(11);
    let content = rng.bytes(BYTES_MOST, false);
    create_dir(tree)?;
    for number in 0..DIRECTORIES {
        let directory = tree.join(format!("d{number:03}"));
        create_dir(&directory)?;
        let first = count * number / DIRECTORIES;
        for number in first..count * (number + 1) / DIRECTORIES {
            let file = File::create_new(directory.join(format!("f{number:07}")))?;
            let length = rng.below(BYTES_MOST as u64 + 1) as usize;
            file.write_all_at(&content[..length], 0)?;
        }
    }
    Ok(())
}
