//! What the devices give: reads and copies the stored bytes of images, and writes, with plain direct requests.

use crate::SeededRng;
use anyhow::{Context, Result};
use rustix::fs::{OFlags, SeekFrom, seek};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK_BYTES: u64 = 1 << 20;
const ALIGNMENT: usize = 4096;
/// Requests under way for each image.
const DEPTH: usize = 4;

/// Reads what is stored in the images, all at once. Returns the bytes.
///
/// # Errors
/// Those of the images.
pub fn read(images: &[PathBuf]) -> Result<u64> {
    std::thread::scope(|scope| {
        let readers: Vec<_> = images
            .iter()
            .map(|image| scope.spawn(|| each_chunk(image, &|_, _| Ok(()))))
            .collect();
        readers
            .into_iter()
            .map(|reader| {
                reader
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?
            })
            .sum()
    })
}

/// Copies what is stored in an image into a new file, and flushes it. Returns the bytes.
///
/// # Errors
/// Those of the files.
pub fn copy(from: &Path, to: &Path) -> Result<u64> {
    let target = direct(File::options().write(true).create(true), to)?;
    target.set_len(std::fs::metadata(from)?.len())?;
    let bytes = each_chunk(from, &|offset, chunk| {
        Ok(target.write_all_at(chunk, offset)?)
    })?;
    target.sync_all()?;
    Ok(bytes)
}

/// Writes a new file, and flushes it. Returns the bytes: at least as many as given, in whole chunks.
///
/// # Errors
/// Those of the file.
pub fn write(path: &Path, bytes: u64) -> Result<u64> {
    let target = direct(
        File::options().write(true).create(true).truncate(true),
        path,
    )?;
    let count = bytes.div_ceil(CHUNK_BYTES);
    target.set_len(count * CHUNK_BYTES)?;
    let next = AtomicU64::new(0);
    let worker = || -> Result<()> {
        let mut memory = SeededRng(37).bytes(CHUNK_BYTES as usize + ALIGNMENT, false);
        let skip = memory.as_ptr().align_offset(ALIGNMENT);
        let chunk = memory.get_mut(skip..skip + CHUNK_BYTES as usize);
        let chunk = chunk.context("a chunk")?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            target.write_all_at(chunk, number * CHUNK_BYTES)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..DEPTH).map(|_| scope.spawn(worker)).collect();
        let mut ends = workers.into_iter().map(|worker| {
            worker
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?
        });
        ends.try_for_each(|end| end)
    })?;
    target.sync_all()?;
    Ok(count * CHUNK_BYTES)
}

/// Opens without the page cache, or with it where the file system does not permit that.
fn direct(options: &mut std::fs::OpenOptions, path: &Path) -> Result<File> {
    let flag = i32::try_from(OFlags::DIRECT.bits())?;
    let plain = options.clone();
    let opened = options.custom_flags(flag).open(path);
    Ok(opened.or_else(|_| plain.open(path))?)
}

fn each_chunk(image: &Path, use_chunk: &(dyn Fn(u64, &[u8]) -> Result<()> + Sync)) -> Result<u64> {
    let file = direct(File::options().read(true), image)?;
    let chunks = Mutex::new(chunks(&file)?.into_iter());
    std::thread::scope(|scope| {
        let worker = || -> Result<u64> {
            let mut memory = vec![0; CHUNK_BYTES as usize + ALIGNMENT];
            let skip = memory.as_ptr().align_offset(ALIGNMENT);
            let mut bytes = 0;
            loop {
                let next = chunks
                    .lock()
                    .map_err(|_| anyhow::anyhow!("poisoned"))?
                    .next();
                let Some((offset, length)) = next else {
                    return Ok(bytes);
                };
                let chunk = memory.get_mut(skip..skip + length).context("a chunk")?;
                file.read_exact_at(chunk, offset)?;
                use_chunk(offset, chunk)?;
                bytes += length as u64;
            }
        };
        let workers: Vec<_> = (0..DEPTH).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?
            })
            .sum()
    })
}

/// The stored ranges of a file, cut into chunks: offset and length in bytes.
fn chunks(file: &File) -> Result<Vec<(u64, usize)>> {
    let end = file.metadata()?.len();
    let mut chunks = vec![];
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let stop = seek(file, SeekFrom::Hole(start)).unwrap_or(end);
        let mut offset = start;
        while offset < stop {
            let length = (stop - offset).min(CHUNK_BYTES);
            chunks.push((offset, usize::try_from(length)?));
            offset += length;
        }
        at = stop;
    }
    Ok(chunks)
}
