//! The limit of two devices: direct I/O to both images at once, with the same sizes, depth and flushes.

use crate::files::{PIECE, RANDOM, SMALL, STREAM_BYTES, SYNC_BYTES, sync_writes};
use crate::timed;
use anyhow::{Context, Result, bail};
use millpond_bench::SeededRng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// `O_DIRECT` of x86-64 and most other architectures.
const O_DIRECT: i32 = 0o40_000;
/// Direct I/O requires buffers aligned to this many bytes.
const ALIGNMENT: usize = 4096;

/// A buffer with the alignment for direct I/O.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = SeededRng(5).bytes(length + ALIGNMENT, false);
        let from = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self {
            bytes,
            from,
            length,
        }
    }
    fn get(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.length]
    }
    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.length]
    }
}

/// Runs the work on both sides at once.
fn both(sides: &[File; 2], work: impl Fn(usize, &File) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || work(1, &sides[1]));
        work(0, &sides[0])?;
        other.join().unwrap_or_else(|_| bail!("a side panicked"))
    })
}

pub fn run(images: [PathBuf; 2]) -> Result<()> {
    let open = |path: &PathBuf| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(O_DIRECT);
        options.open(path).with_context(|| format!("{path:?}"))
    };
    let sides = [open(&images[0])?, open(&images[1])?];
    let piece = Aligned::new(PIECE);
    timed("stream write", || {
        both(&sides, |_, side| {
            for offset in (0..STREAM_BYTES).step_by(PIECE) {
                side.write_all_at(piece.get(), offset)?;
            }
            Ok(side.sync_data()?)
        })?;
        Ok(STREAM_BYTES)
    })?;
    timed("random write 4k", || {
        both(&sides, |_, side| {
            let mut rng = SeededRng(2);
            for _ in 0..RANDOM {
                let offset = rng.below(STREAM_BYTES / SMALL as u64) * SMALL as u64;
                side.write_all_at(&piece.get()[..SMALL], offset)?;
            }
            Ok(side.sync_data()?)
        })?;
        Ok(RANDOM)
    })?;
    for writers in [1u64, 4] {
        let row = format!("sync write 4k, {writers} at once");
        timed(&row, || sync(&sides, &piece, writers))?;
    }
    timed("random read 4k", || {
        let (mut rng, mut buffer) = (SeededRng(2), Aligned::new(SMALL));
        for number in 0..RANDOM {
            let offset = rng.below(STREAM_BYTES / SMALL as u64) * SMALL as u64;
            sides[(number % 2) as usize].read_exact_at(buffer.get_mut(), offset)?;
        }
        Ok(RANDOM)
    })?;
    timed("stream read", || {
        both(&sides, |number, side| {
            let mut buffer = Aligned::new(PIECE);
            let from = number as u64 * PIECE as u64;
            for offset in (from..STREAM_BYTES).step_by(2 * PIECE) {
                side.read_exact_at(buffer.get_mut(), offset)?;
            }
            Ok(())
        })?;
        Ok(STREAM_BYTES)
    })
}

/// Each write is followed by its own flush.
///
/// Unlike in a mirror, the sides do not wait for each other after each write, so no mirror can be faster.
fn sync(sides: &[File; 2], piece: &Aligned, writers: u64) -> Result<u64> {
    let mut counts = [0; 2];
    std::thread::scope(|scope| {
        let threads = sides.each_ref().map(|side| {
            scope.spawn(move || {
                let targets = (0..writers).map(|number| number * SYNC_BYTES).collect();
                sync_writes(targets, |from: &u64, offset| {
                    side.write_all_at(&piece.get()[..SMALL], from + offset)?;
                    Ok(side.sync_data()?)
                })
            })
        });
        for (count, thread) in counts.iter_mut().zip(threads) {
            *count = thread.join().unwrap_or_else(|_| bail!("a side panicked"))?;
        }
        anyhow::Ok(())
    })?;
    // The slower side determines the result.
    Ok(counts[0].min(counts[1]))
}
