//! Copies one regular file or volume: several threads write its content, then it gets its attributes.

use super::attributes::Attributes;
use super::links::Links;
use super::place::Directory;
use super::report::{Problem, Report};
use super::tree::link;
use crate::verbs::content::Content;
use millpond_engine::BlockId;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Arc, Mutex};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, pwritev};
use std::io::IoSlice;

/// Identifies a file: the number of its source and its object id.
pub type FileId = (usize, u64);

/// The location of a copy.
#[derive(Debug, Clone)]
pub struct Copied {
    /// The directory, relative to the destination.
    pub below: Vec<u8>,
    /// The name in that directory.
    pub name: Vec<u8>,
}

/// Hard links between copies on the host.
pub type HostLinks = Links<FileId, Directory, Copied>;

/// A file that is being copied.
///
/// When the last handle is dropped, the file gets its attributes and its waiting hard links.
pub struct OpenFile {
    pub content: Content,
    pub fd: OwnedFd,
    pub directory: Arc<Directory>,
    pub name: Vec<u8>,
    /// The source's path, for messages.
    pub source: Vec<u8>,
    /// `None` for volumes.
    pub attributes: Option<Attributes>,
    /// Set if the file has several names.
    pub link: Option<FileId>,
    pub links: Arc<HostLinks>,
    pub report: Arc<Report>,
    pub lost: Mutex<Lost>,
    pub has_write_failed: AtomicBool,
    /// Whether a damaged copy is removed.
    pub is_whole_wanted: bool,
}

/// The ranges of a file that could not be read.
#[derive(Debug, Default)]
pub struct Lost {
    ranges: Vec<(u64, u64)>,
    reason: String,
}

/// A part of a file.
pub struct Chunk {
    pub file: Arc<OpenFile>,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

impl OpenFile {
    /// Copies the file's data.
    ///
    /// Parts of large files are passed to `hand_over`, which may refuse them by returning them.
    pub fn copy(self: &Arc<Self>, hand_over: &dyn Fn(Chunk) -> Result<(), Chunk>) {
        let size = self.content.size_bytes;
        if let Err(error) = rustix::fs::ftruncate(&self.fd, size) {
            return self.cannot_write(error);
        }
        let mut at = 0;
        while let Some(piece) = self.content.next_piece(at) {
            if self.is_given_up() {
                return;
            }
            let end = piece.offset_bytes + piece.length_bytes;
            if let Some(reason) = piece.lost {
                self.lose(piece.offset_bytes, end, &reason);
            } else {
                let mut from = piece.offset_bytes;
                while from < end {
                    // Chunks end at multiples of the chunk size, which are block boundaries too.
                    let to = (from / CHUNK_BYTES + 1)
                        .saturating_mul(CHUNK_BYTES)
                        .min(end);
                    let chunk = Chunk {
                        file: Arc::clone(self),
                        offset_bytes: from,
                        length_bytes: to - from,
                    };
                    if size <= CHUNK_BYTES {
                        chunk.copy();
                    } else if let Err(chunk) = hand_over(chunk) {
                        chunk.copy();
                    }
                    from = to;
                    if self.is_given_up() {
                        return;
                    }
                }
            }
            at = end;
        }
    }

    fn is_given_up(&self) -> bool {
        self.has_write_failed.load(Ordering::Relaxed)
            || self.report.is_stopped()
            || (self.is_whole_wanted && !self.lost.lock().ranges.is_empty())
    }

    fn lose(&self, start: u64, end: u64, reason: &str) {
        let mut lost = self.lost.lock();
        if lost.ranges.is_empty() {
            lost.reason = reason.to_owned();
        }
        if lost.ranges.len() < RANGES_MAX {
            lost.ranges.push((start, end));
        }
        // Merge often enough that the list holds ranges instead of single blocks.
        if lost.ranges.len().is_multiple_of(64) {
            lost.ranges = joined(std::mem::take(&mut lost.ranges));
        }
    }

    fn cannot_write(&self, error: Errno) {
        if !self.has_write_failed.swap(true, Ordering::Relaxed) {
            let text = std::io::Error::from(error);
            let path = self.source.clone();
            self.report.absent(path, format!("cannot write: {text}"));
        }
        if matches!(error, Errno::NOSPC | Errno::DQUOT) {
            self.report.stop();
        }
    }

    /// Writes consecutive blocks without copying them in memory.
    fn write(&self, mut at: u64, mut slices: Vec<IoSlice<'_>>) -> Result<(), Errno> {
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match pwritev(&self.fd, rest, at) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    self.report.wrote(count as u64);
                    at += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Chunk {
    /// Reads the blocks of the chunk and writes them. Unreadable blocks become holes.
    pub fn copy(&self) {
        let file = &*self.file;
        let object = &file.content.object;
        let size = object.block_bytes().max(1);
        let end = self.offset_bytes + self.length_bytes;
        let mut at = self.offset_bytes;
        while at < end && !file.is_given_up() {
            let start = at;
            let mut blocks = Vec::new();
            let mut held = 0;
            let mut bad = None;
            while at < end && held < BATCH_BYTES && blocks.len() < BATCH_BLOCKS {
                let within = at % size;
                let count = (size - within).min(end - at);
                match object.read_block(BlockId(at / size)) {
                    Ok(block) => blocks.push((block, within as usize, count as usize)),
                    Err(error) => {
                        bad = Some((at, at + count, error));
                        at += count;
                        break;
                    }
                }
                held += count;
                at += count;
            }
            let slices = blocks
                .iter()
                .filter_map(|(block, within, count)| block.bytes.get(*within..within + count))
                .map(IoSlice::new)
                .collect();
            if let Err(error) = file.write(start, slices) {
                return file.cannot_write(error);
            }
            if let Some((from, to, error)) = bad {
                file.lose(from, to, &error.to_string());
            }
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let lost = std::mem::take(self.lost.get_mut());
        let has_write_failed = *self.has_write_failed.get_mut();
        let is_damaged = !lost.ranges.is_empty();
        let is_removed = has_write_failed || (is_damaged && self.is_whole_wanted);
        if is_damaged && !has_write_failed {
            self.report.problem(Problem {
                path: self.source.clone(),
                reason: lost.reason,
                lost: joined(lost.ranges),
                is_absent: is_removed,
            });
        }
        if is_removed {
            if let Err(error) = self.directory.remove(&self.name) {
                let what = format!("cannot remove: {}", std::io::Error::from(error));
                self.report.note(what, &self.source);
            }
        } else {
            if let Some(attributes) = &self.attributes {
                attributes.tell_left_out(&self.source, &self.report);
                attributes.give(self.fd.as_fd(), &self.source, &self.report);
            }
            self.report.copied();
        }
        let Some(id) = self.link else {
            return;
        };
        let copy = (!is_removed).then(|| Copied {
            below: self.directory.below().to_vec(),
            name: self.name.clone(),
        });
        for waiting in self.links.settle(id, copy) {
            let path = waiting.directory.source_of(&waiting.name);
            if is_removed {
                self.report.absent(path, FIRST_NAME_FAILED);
                continue;
            }
            match link(
                &self.directory,
                &self.name,
                &waiting.directory,
                &waiting.name,
            ) {
                Ok(()) => self.report.copied(),
                Err(error) => {
                    let error = std::io::Error::from(error);
                    self.report.absent(path, format!("cannot link: {error}"));
                }
            }
        }
    }
}

/// Sorts ranges and merges adjacent ones.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut all: Vec<(u64, u64)> = vec![];
    for (start, end) in ranges {
        match all.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

/// The reason reported for a further name of a file whose content was not copied.
pub const FIRST_NAME_FAILED: &str = "its content could not be copied (see its other name)";
/// Bytes of a large file that one thread copies before it takes other work.
const CHUNK_BYTES: u64 = 16 << 20;
/// Blocks are collected up to this size before a write (a single block may have 16 MiB).
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_BLOCKS: usize = 512;
/// Maximum number of lost ranges recorded per file.
const RANGES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_blocks_that_touch_are_one_range() {
        assert_eq!(
            joined(vec![(8, 12), (0, 4), (4, 8), (20, 24)]),
            [(0, 12), (20, 24)]
        );
        assert_eq!(joined(vec![]), []);
    }
}
