//! A batch of reads and writes.

use super::flight::Flight;
use super::take;
use crate::RUN_BYTES_MAX;
use io_uring::{opcode, squeue, types::Fd};
use rustix::io::Errno;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The system takes no more pieces of memory in one operation.
const PIECES_MAX: usize = 1024;
/// Bytes asked for in one operation of a single piece; what is longer goes on where the last one ended.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// A batch of reads and writes of files, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Transfer<'a> {
    /// What the kernel sees: laid out as its `struct iovec`. What is done is cut off at the front.
    pub(super) pieces: Vec<Piece<'a>>,
    /// Of each piece: the bytes of its stretch up to its end.
    ends: Vec<u64>,
    pub(super) stretches: Vec<Stretch<'a>>,
}

/// Memory that is the transfer's alone for its lifetime (to fill), or that nobody changes (to write).
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

/// Neighbours that are one operation.
pub(super) struct Stretch<'a> {
    direction: Direction,
    file: BorrowedFd<'a>,
    /// Where the first byte lies that is not done.
    pub(super) offset_bytes: u64,
    pieces: Range<usize>,
    /// The first piece that is not done.
    pub(super) next: usize,
    wanted_bytes: u64,
    done_bytes: u64,
    error: Option<Errno>,
}

/// What came of one read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of its bytes were moved.
    Done,
    /// The device failed it.
    Failed(Errno),
    /// Not done, or not for a reason of its own: to be asked for by an ordinary call, which tells more.
    Again,
}

impl<'a> Transfer<'a> {
    /// Adds a read that fills `memory`. Where [`Outcome::Done`] comes of it, all of the memory is initialised.
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

    /// Adds a read that fills memory which was filled before.
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
            // The kernel only reads through it.
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

    /// How many operations it takes if nothing comes short.
    pub(crate) fn operations(&self) -> usize {
        self.stretches.len()
    }

    /// Performs everything and waits for it. Returns false if there is no ring; then nothing was done.
    pub(crate) fn perform(&mut self) -> bool {
        let Some(ring) = take() else { return false };
        // Declared after what it works on, so that it ends first: it waits for the kernel.
        let mut flight = Flight::new(ring);
        let mut todo: Vec<usize> = (0..self.stretches.len()).rev().collect();
        loop {
            while flight.has_room()
                && let Some(index) = todo.pop()
            {
                let Some(operation) = self.operation(index) else {
                    continue;
                };
                // SAFETY: the stretch's pieces lie in memory that is borrowed for as long as `self` is,
                // and so are the files; the table of pieces is not resized and the pieces of a stretch
                // under way are not touched before its completion was seen (`advance`). `flight` is
                // a local variable of this call, so that it ends, and waits, before `self`'s borrow does.
                if !unsafe { flight.push(&operation) } {
                    todo.push(index);
                    break;
                }
            }
            if flight.outstanding() == 0 {
                return true;
            }
            if flight.enter(todo.is_empty()).is_err() {
                // What has not come back counts as not done, though some of it may be.
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

    /// The operation for what is left of a stretch; `None` if nothing is.
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

    /// Notes how an operation ended. Returns whether the rest of its stretch is to be asked for.
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
        // At most as long as the pieces.
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

    /// What came of each read and write, in the order in which they were added.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(self.pieces.len());
        for stretch in &self.stretches {
            let ends = self.ends.get(stretch.pieces.clone()).unwrap_or_default();
            outcomes.extend(ends.iter().map(|end| match stretch.error {
                _ if *end <= stretch.done_bytes => Outcome::Done,
                // Of neighbours nobody knows whose error it is; and some are not the device's.
                Some(error) if ends.len() == 1 && is_final(error) => Outcome::Failed(error),
                _ => Outcome::Again,
            }));
        }
        outcomes
    }
}

impl Piece<'_> {
    /// How much of it to ask for in one operation, in bytes.
    fn once(&self) -> u32 {
        // 1 GiB fits.
        self.length.min(OPERATION_BYTES_MAX) as u32
    }
}

/// Whether an ordinary call would say the same.
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
