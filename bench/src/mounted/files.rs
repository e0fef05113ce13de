//! The workload for every file system.

use crate::Rows;
use anyhow::{Result, bail, ensure};
use millpond_bench::SeededRng;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const PIECE: usize = 1 << 20;
pub const STREAM_BYTES: u64 = 256 << 20;
pub const SMALL: usize = 4096;
/// Number of random reads or writes of 4 KiB.
pub const RANDOM: u64 = 4096;
/// Synchronous writes end after this time, or after this many per writer.
pub const SYNC_TIME: Duration = Duration::from_secs(2);
pub const SYNC_WRITES: u64 = 4096;
/// The initial file size for synchronous writers, in bytes.
pub const SYNC_BYTES: u64 = 4 << 20;
/// `O_DSYNC`.
const O_DSYNC: i32 = 0o10_000;
/// `O_DIRECTORY`, to sync a directory.
const O_DIRECTORY: i32 = 0o200_000;
const DIRECTORIES: u64 = 10;
const FILES: u64 = 500;

pub fn run(phase: &str, folder: &Path, rows: &Rows) -> Result<()> {
    match phase {
        "write" => write(folder, rows),
        "read" => read(folder, rows),
        "stream" => stream(folder, rows),
        _ => bail!("{phase}: no such phase"),
    }
}

fn directory(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("d{number}"))
}

/// All small files, in an order that differs from that of the directories.
fn names(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let each = (0..FILES).flat_map(|file| (0..DIRECTORIES).map(move |at| (at, file)));
    each.map(|(at, file)| directory(folder, at).join(format!("{prefix}-{:05}", file * 7 % FILES)))
        .collect()
}

/// Makes the names in a directory durable.
fn sync_directories(folder: &Path) -> Result<()> {
    for number in 0..DIRECTORIES {
        let path = directory(folder, number);
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(O_DIRECTORY);
        options.open(path)?.sync_all()?;
    }
    Ok(())
}

fn write(folder: &Path, rows: &Rows) -> Result<()> {
    let mut rng = SeededRng(1);
    // Sixteen different mebibytes, prepared before the measurement.
    let pieces: Vec<Vec<u8>> = (0..16).map(|_| rng.bytes(PIECE, false)).collect();
    let stream = folder.join("stream");
    let write_stream = || {
        let file = File::create(&stream)?;
        let numbers = 0..STREAM_BYTES / PIECE as u64;
        for (number, piece) in numbers.zip(pieces.iter().cycle()) {
            file.write_all_at(piece, number * PIECE as u64)?;
        }
        file.sync_all()?;
        Ok(STREAM_BYTES)
    };
    if rows.wants("stream") || rows.wants("random") {
        crate::timed("stream write", write_stream)?;
    }
    rows.timed("random write 4k", || {
        let file = OpenOptions::new().write(true).open(&stream)?;
        for _ in 0..RANDOM {
            let offset = rng.below(STREAM_BYTES / SMALL as u64) * SMALL as u64;
            file.write_all_at(&pieces[0][..SMALL], offset)?;
        }
        file.sync_all()?;
        Ok(RANDOM)
    })?;
    for writers in [1, 4] {
        let row = format!("sync write 4k, {writers} at once");
        if rows.wants(&row) {
            let files = sync_files(folder, writers)?;
            rows.timed(&row, || {
                sync_writes(files, |file, offset| {
                    Ok(file.write_all_at(&pieces[1][..SMALL], offset)?)
                })
            })?;
        }
    }
    if !rows.wants("files") {
        return Ok(());
    }
    for number in 0..DIRECTORIES {
        std::fs::create_dir(directory(folder, number))?;
    }
    crate::timed("files of 4k: create", || {
        for path in names(folder, "file") {
            let file = OpenOptions::new().write(true).create_new(true).open(path)?;
            file.write_all_at(&pieces[2][..SMALL], 0)?;
        }
        sync_directories(folder)?;
        Ok(FILES * DIRECTORIES)
    })
}

/// Files for synchronous writers, with their content on stable storage.
fn sync_files(folder: &Path, writers: u64) -> Result<Vec<File>> {
    let open = |number| -> Result<File> {
        let path = folder.join(format!("sync-{writers}-{number}"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.custom_flags(O_DSYNC).open(path)?;
        let content = SeededRng(9).bytes(PIECE, false);
        for offset in (0..SYNC_BYTES).step_by(PIECE) {
            file.write_all_at(&content, offset)?;
        }
        file.sync_all()?;
        Ok(file)
    };
    (0..writers).map(open).collect()
}

/// Each writer has its own target and thread. Returns the number of writes.
pub fn sync_writes<T: Send>(
    targets: Vec<T>,
    write: impl Fn(&T, u64) -> Result<()> + Sync,
) -> Result<u64> {
    let begun = Instant::now();
    let write = &write;
    std::thread::scope(|scope| {
        let threads: Vec<_> = targets
            .into_iter()
            .map(|target| {
                scope.spawn(move || -> Result<u64> {
                    let mut count = 0;
                    while count < SYNC_WRITES && begun.elapsed() < SYNC_TIME {
                        write(&target, count * SMALL as u64 % SYNC_BYTES)?;
                        count += 1;
                    }
                    Ok(count)
                })
            })
            .collect();
        let mut sum = 0;
        for thread in threads {
            sum += thread
                .join()
                .unwrap_or_else(|_| bail!("a writer panicked"))?;
        }
        Ok(sum)
    })
}

fn read(folder: &Path, rows: &Rows) -> Result<()> {
    let stream = folder.join("stream");
    let mut buffer = vec![0; PIECE];
    rows.timed("random read 4k", || {
        let (file, mut rng) = (File::open(&stream)?, SeededRng(2));
        for _ in 0..RANDOM {
            let offset = rng.below(STREAM_BYTES / SMALL as u64) * SMALL as u64;
            file.read_exact_at(&mut buffer[..SMALL], offset)?;
        }
        Ok(RANDOM)
    })?;
    if rows.wants("files") {
        files(folder)?;
    }
    Ok(())
}

/// Stream reads require a fresh mount, because random reads leave parts of the file in caches.
fn stream(folder: &Path, rows: &Rows) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    rows.timed("stream read", || {
        let mut file = File::open(folder.join("stream"))?;
        let mut sum = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => sum += count as u64,
            }
        }
        ensure!(sum == STREAM_BYTES, "the stream has {sum} bytes");
        Ok(sum)
    })
}

fn files(folder: &Path) -> Result<()> {
    let all = FILES * DIRECTORIES;
    let (old, new) = (names(folder, "file"), names(folder, "name"));
    crate::timed("files of 4k: stat", || {
        for path in &old {
            // Without the birth time, which the standard library requests and few programs need.
            ensure!(nix::sys::stat::stat(path)?.st_size == SMALL as i64);
        }
        Ok(all)
    })?;
    crate::timed("files of 4k: read", || {
        let mut buffer = vec![0; SMALL];
        for path in &old {
            File::open(path)?.read_exact_at(&mut buffer, 0)?;
        }
        Ok(all)
    })?;
    crate::timed("files of 4k: readdir", || {
        let mut count = 0;
        for number in 0..DIRECTORIES {
            for entry in std::fs::read_dir(directory(folder, number))? {
                entry?;
                count += 1;
            }
        }
        ensure!(count == all, "{count} entries");
        Ok(all)
    })?;
    crate::timed("files of 4k: rename", || {
        for (old, new) in old.iter().zip(&new) {
            std::fs::rename(old, new)?;
        }
        sync_directories(folder)?;
        Ok(all)
    })?;
    crate::timed("files of 4k: unlink", || {
        for path in &new {
            std::fs::remove_file(path)?;
        }
        sync_directories(folder)?;
        Ok(all)
    })
}
