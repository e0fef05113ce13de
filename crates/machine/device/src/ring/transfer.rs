//! A batch of reads and writes.

use super::flight::InFlightBatch;
use super::take;
use crate::RUN_BYTES_MAX;
use io_uring::{opcode, squeue, types::Fd};
use rustix::io::Errno;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The system's limit of memory pieces per operation.
const PIECES_MAX: usize = 1024;
/// The longest single-piece operation in bytes. A longer piece continues where the last operation ended.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// A batch of reads and writes of files, in insertion order.
#[derive(Default)]
pub(crate) struct Transfer<'a> {
    /// The memory that the kernel sees, in the layout of its `struct iovec`. Completed parts are cut off at
    /// the front.
    pub(super) pieces: Vec<Piece<'a>>,
    /// For each piece, the offset of its end in its range.
    ends: Vec<u64>,
    pub(super) stretches: Vec<Stretch<'a>>,
}

/// Memory for one read or write. During its lifetime the transfer has exclusive access (read), or nothing
/// changes it (write).
#[repr(C)]
pub(super) struct Piece<'a> {
    base: *mut u8,
    pub(super) length: usize,
    memory: PhantomData<&'a mut [u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// Adjacent requests that form one operation.
pub(super) struct Stretch<'a> {
    direction: Direction,
    file: BorrowedFd<'a>,
    /// Offset of the first byte that is not done.
    pub(super) offset_bytes: u64,
    pieces: Range<usize>,
    /// The first piece that is not done.
    pub(super) next: usize,
    wanted_bytes: u64,
    done_bytes: u64,
    error: Option<Errno>,
}

/// The outcome of one read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All bytes were transferred.
    Done,
    /// The device failed it.
    Failed(Errno),
    /// Not done, or failed for a reason that may not be its own. The caller retries it with an ordinary
    /// call, which gives an exact error.
    Again,
}

impl<'a> Transfer<'a> {
    /// Adds a read into `memory`. After [`Outcome::Done`] all of the memory is initialised.
    pub(crate) fn read(
        &mut self,
        file: BorrowedFd<'a>,
        offset_bytes: u64,
        memory: &'a mut [MaybeUninit<u8>],
    ) {
        let piece = Piece {
            base: memory.as_mut_ptr().cast(),
            length: memory.len(),
            memory: PhantomData,
        };
        self.add(Direction::Read, file, offset_bytes, piece);
    }

    /// Adds a read into memory that is already initialised.
    pub(crate) fn read_over(
        &mut self,
        file: BorrowedFd<'a>,
        offset_bytes: u64,
        memory: &'a mut [u8],
    ) {
        let piece = Piece {
            base: memory.as_mut_ptr(),
            length: memory.len(),
            memory: PhantomData,
        };
        self.add(Direction::Read, file, offset_bytes, piece);
    }

    /// Adds a write.
    pub(crate) fn write(&mut self, file: BorrowedFd<'a>, offset_bytes: u64, bytes: &'a [u8]) {
        let piece = Piece {
            // The kernel only reads through this pointer.
            base: bytes.as_ptr().cast_mut(),
            length: bytes.len(),
            memory: PhantomData,
        };
        self.add(Direction::Write, file, offset_bytes, piece);
    }

    fn add(
        &mut self,
        direction: Direction,
        file: BorrowedFd<'a>,
        offset_bytes: u64,
        piece: Piece<'a>,
    ) {
        let length = piece.length as u64;
        self.pieces.push(piece);
        let count = self.pieces.len();
        if let Some(last) = self.stretches.last_mut()
            && last.direction == direction
            && last.file.as_raw_fd() == file.as_raw_fd()
            && last.offset_bytes.checked_add(last.wanted_bytes) == Some(offset_bytes)
            && last.wanted_bytes.saturating_add(length) <= RUN_BYTES_MAX
            && last.pieces.len() < PIECES_MAX
        {
            last.pieces.end = count;
            last.wanted_bytes += length;
            self.ends.push(last.wanted_bytes);
            return;
        }
        self.ends.push(length);
        self.stretches.push(Stretch {
            direction,
            file,
            offset_bytes,
            pieces: count - 1..count,
            next: count - 1,
            wanted_bytes: length,
            done_bytes: 0,
            error: None,
        });
    }

    /// The number of operations, if none is short.
    pub(crate) fn operations(&self) -> usize {
        self.stretches.len()
    }

    /// Performs all operations and waits for them. Returns `false`, with nothing done, if there is no ring.
    pub(crate) fn perform(&mut self) -> bool {
        let Some(ring) = take() else { return false };
        // Declared after the memory that it works on, so that it is dropped first: its drop waits for the
        // kernel.
        let mut flight = InFlightBatch::new(ring);
        let mut todo: Vec<usize> = (0..self.stretches.len()).rev().collect();
        loop {
            while flight.has_room()
                && let Some(index) = todo.pop()
            {
                let Some(operation) = self.operation(index) else {
                    continue;
                };
                // SAFETY: the pieces of the range lie in memory that is borrowed for as long as `self` is,
                // and so are the files. The table of pieces is not resized, and the pieces of a range in
                // flight are not touched before its completion was seen (`advance`). `flight` is a local
                // variable of this call. It is therefore dropped, and waits, before the borrow of `self`
                // ends.
                if !unsafe { flight.push(&operation) } {
                    todo.push(index);
                    break;
                }
            }
            if flight.outstanding() == 0 {
                return true;
            }
            if flight.enter(todo.is_empty()).is_err() {
                // Operations without a completion count as not done, although some may have been performed.
                return true;
            }
            for (number, result) in flight.completions() {
                let index = usize::try_from(number).unwrap_or(usize::MAX);
                if self.advance(index, result) {
                    todo.push(index);
                }
            }
        }
    }

    /// The operation for the rest of a range; `None` if the range is done.
    pub(super) fn operation(&self, index: usize) -> Option<squeue::Entry> {
        let stretch = self.stretches.get(index)?;
        if stretch.done_bytes >= stretch.wanted_bytes {
            return None;
        }
        let pieces = self.pieces.get(stretch.next..stretch.pieces.end)?;
        let file = Fd(stretch.file.as_raw_fd());
        let at = stretch.offset_bytes;
        let entry = match (stretch.direction, pieces) {
            (_, []) => return None,
            (Direction::Read, [piece]) => opcode::Read::new(file, piece.base, piece.once())
                .offset(at)
                .build(),
            (Direction::Write, [piece]) => opcode::Write::new(file, piece.base, piece.once())
                .offset(at)
                .build(),
            // At most `PIECES_MAX`.
            (Direction::Read, _) => {
                opcode::Readv::new(file, pieces.as_ptr().cast(), pieces.len() as u32)
                    .offset(at)
                    .build()
            }
            (Direction::Write, _) => {
                opcode::Writev::new(file, pieces.as_ptr().cast(), pieces.len() as u32)
                    .offset(at)
                    .build()
            }
        };
        Some(entry.user_data(index as u64))
    }

    /// Records the result of an operation. Returns whether the rest of its range must be submitted.
    pub(super) fn advance(&mut self, index: usize, result: i32) -> bool {
        let Some(stretch) = self.stretches.get_mut(index) else {
            return false;
        };
        let left = stretch.wanted_bytes - stretch.done_bytes;
        let Ok(moved) = u64::try_from(result) else {
            stretch.error = Some(Errno::from_raw_os_error(result.saturating_neg()));
            return false;
        };
        let moved = moved.min(left);
        stretch.done_bytes += moved;
        stretch.offset_bytes += moved;
        // At most the total length of the pieces.
        let mut rest = usize::try_from(moved).unwrap_or(0);
        while let Some(piece) = self.pieces.get_mut(stretch.next)
            && stretch.next < stretch.pieces.end
        {
            if piece.length > rest {
                piece.base = piece.base.wrapping_add(rest);
                piece.length -= rest;
                break;
            }
            rest -= piece.length;
            stretch.next += 1;
        }
        moved > 0 && moved < left
    }

    /// The outcome of each read and write, in insertion order.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(self.pieces.len());
        for stretch in &self.stretches {
            let ends = self.ends.get(stretch.pieces.clone()).unwrap_or_default();
            outcomes.extend(ends.iter().map(|end| match stretch.error {
                _ if *end <= stretch.done_bytes => Outcome::Done,
                // The error of a merged range cannot be attributed to one request, and some errors are not
                // the device's.
                Some(error) if ends.len() == 1 && is_final(error) => Outcome::Failed(error),
                _ => Outcome::Again,
            }));
        }
        outcomes
    }
}

impl Piece<'_> {
    /// The bytes to transfer in one operation.
    fn once(&self) -> u32 {
        // 1 GiB fits.
        self.length.min(OPERATION_BYTES_MAX) as u32
    }
}

/// Whether an ordinary call would fail with the same error.
fn is_final(error: Errno) -> bool {
    !matches!(
        error,
        Errno::INTR
            | Errno::AGAIN
            | Errno::CANCELED
            | Errno::INVAL
            | Errno::NOMEM
            | Errno::NOSYS
            | Errno::OPNOTSUPP
            | Errno::PERM
            | Errno::ACCESS
    )
}
