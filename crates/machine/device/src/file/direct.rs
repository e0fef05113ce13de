//! Direct I/O: requests that bypass the page cache.
//!
//! The pool has a cache of its own, so a second copy of each block in the page cache is wasted memory, and
//! a write is late: the system writes it back when it likes. Direct requests need aligned offsets, lengths
//! and memory. They use a second opening of the file and aligned buffers; requests at other offsets go
//! through the page cache, which the system keeps coherent.
//!
//! Short reads go through the page cache too: the system reads ahead of a walk through small files, whose
//! blocks lie beside each other, and gives up such pages first when memory is short.

use super::aligned::{ALIGNMENT_BYTES, AlignedBuf};
use super::{FileDevice, FileIdentity, identity_of};
use crate::ring::{Outcome, Transfer};
use crate::{Device, DeviceError, ReadRequest, WriteRequest, next_run};
use millpond_env::thread;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How much a batch copies into aligned memory before it is written.
const WAVE_BYTES: u64 = 4 << 20;
/// The threads of one batch where io_uring is not permitted.
const THREADS_MAX: usize = 8;
/// The alignment where the system does not tell it: that of the most demanding devices.
const UNKNOWN_ALIGNMENT_BYTES: u64 = 4096;

/// An opening of a device with `O_DIRECT`.
#[derive(Debug)]
pub(super) struct DirectOpening {
    file: File,
    /// What offsets and lengths must be multiples of, in bytes.
    alignment_bytes: u64,
    /// Set when the system refuses direct requests after all. From then on none is made.
    is_refused: AtomicBool,
}

/// Why a direct request was not made.
pub(super) enum DirectFailure {
    /// It must go through the page cache.
    NotServed,
    /// The device failed it.
    Failed(io::Error),
}

impl DirectOpening {
    /// Opens an open file again. `None` if its file system has no direct I/O, or none that fits.
    pub(super) fn of(file: &File, identity: FileIdentity, is_writable: bool) -> Option<Self> {
        let own_name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = rustix::fs::OFlags::DIRECT;
        let direct = std::fs::OpenOptions::new()
            .read(true)
            .write(is_writable)
            .custom_flags(flags.bits().cast_signed())
            .open(own_name)
            .ok()?;
        let alignment_bytes = alignment_bytes(&direct)?;
        let is_same = identity_of(&direct.metadata().ok()?) == identity;
        is_same.then_some(Self {
            file: direct,
            alignment_bytes,
            is_refused: AtomicBool::new(false),
        })
    }

    /// Whether a request at this offset can be direct.
    pub(super) fn serves(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        length_bytes > 0
            && offset_bytes.is_multiple_of(self.alignment_bytes)
            && length_bytes.is_multiple_of(self.alignment_bytes)
            && !self.is_refused.load(Ordering::Relaxed)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Notes an error that says that direct requests are impossible.
    fn judge(&self, errno: Errno) -> DirectFailure {
        if matches!(errno, Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) {
            self.is_refused.store(true, Ordering::Relaxed);
            return DirectFailure::NotServed;
        }
        DirectFailure::Failed(errno.into())
    }

    /// Fills an aligned buffer of the given length.
    pub(super) fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuf, DirectFailure> {
        if !self.serves(offset_bytes, length_bytes as u64) {
            return Err(DirectFailure::NotServed);
        }
        let mut buffer = AlignedBuf::new(length_bytes);
        let mut done = 0;
        while done < length_bytes {
            let rest = buffer.bytes_mut().get_mut(done..).unwrap_or_default();
            let at = offset_bytes.saturating_add(done as u64);
            match rustix::io::pread(&self.file, rest, at) {
                // The end of a truncated file: the buffered read reports it.
                Ok(0) => return Err(DirectFailure::NotServed),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.judge(errno)),
            }
            if !self.serves(done as u64, 1 << 20) && done < length_bytes {
                return Err(DirectFailure::NotServed);
            }
        }
        Ok(buffer)
    }

    /// Writes an aligned buffer.
    fn write(&self, offset_bytes: u64, buffer: &AlignedBuf) -> Result<(), DirectFailure> {
        let mut done = 0;
        while let Some(rest) = buffer.bytes().get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset_bytes.saturating_add(done as u64);
            if !self.serves(at, rest.len() as u64) {
                return Err(DirectFailure::NotServed);
            }
            match rustix::io::pwrite(&self.file, rest, at) {
                Ok(0) => return Err(DirectFailure::Failed(io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.judge(errno)),
            }
        }
        Ok(())
    }

    /// Writes bytes through an aligned copy.
    pub(super) fn write_copy(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DirectFailure> {
        if !self.serves(offset_bytes, bytes.len() as u64) {
            return Err(DirectFailure::NotServed);
        }
        self.write(offset_bytes, &copy_of(std::iter::once(bytes)))
    }

    /// Performs each piece of work on a thread of its own, at most eight at a time.
    fn each_in_parallel(count: usize, work: &(dyn Fn(usize) + Sync)) {
        if count < 2 || thread::is_alone() {
            return (0..count).for_each(work);
        }
        let next = AtomicUsize::new(0);
        let take = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return;
                }
                work(at);
            }
        };
        thread::scope(|scope| {
            for _ in 1..count.min(THREADS_MAX) {
                scope.spawn(take);
            }
            take();
        });
    }

    /// Writes runs in parallel. Returns for each whether it was written.
    fn write_runs(&self, runs: &[Run], by_ring: bool) -> Vec<bool> {
        if by_ring && runs.len() > 1 {
            let mut transfer = Transfer::default();
            for run in runs {
                transfer.write(self.fd(), run.offset_bytes, run.memory.bytes());
            }
            if transfer.perform() {
                let outcomes = transfer.outcomes().into_iter();
                return outcomes.map(|outcome| outcome == Outcome::Done).collect();
            }
        }
        let written: Vec<AtomicBool> = runs.iter().map(|_| AtomicBool::new(false)).collect();
        Self::each_in_parallel(runs.len(), &|at| {
            if let (Some(run), Some(written)) = (runs.get(at), written.get(at)) {
                let is_written = self.write(run.offset_bytes, &run.memory).is_ok();
                written.store(is_written, Ordering::Relaxed);
            }
        });
        written.into_iter().map(AtomicBool::into_inner).collect()
    }
}

/// Adjacent requests in one aligned buffer.
struct Run {
    requests: Range<usize>,
    offset_bytes: u64,
    memory: AlignedBuf,
}

/// An aligned copy of these bytes, one after the other.
pub(super) fn copy_of<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> AlignedBuf {
    let mut buffer = AlignedBuf::new(parts.clone().map(<[u8]>::len).sum());
    let mut rest = buffer.bytes_mut();
    for part in parts {
        let Some((own, after)) = std::mem::take(&mut rest).split_at_mut_checked(part.len()) else {
            break;
        };
        own.copy_from_slice(part);
        rest = after;
    }
    buffer
}

impl FileDevice {
    /// Serves a batch by direct writes. What cannot be direct is written through the page cache.
    pub(super) fn write_by_direct(
        &self,
        direct: &DirectOpening,
        requests: &mut [WriteRequest<'_>],
    ) {
        let mut start = 0;
        while start < requests.len() {
            let mut runs: Vec<Run> = vec![];
            let mut bytes = 0;
            while bytes < WAVE_BYTES && start < requests.len() {
                let rest = requests.get_mut(start..).unwrap_or_default();
                let (count, length_bytes) = next_run(rest);
                let run = rest.get_mut(..count).unwrap_or_default();
                let offset_bytes = run.first().map_or(0, |first| first.offset_bytes);
                if self.check(offset_bytes, length_bytes).is_ok()
                    && direct.serves(offset_bytes, length_bytes)
                {
                    runs.push(Run {
                        requests: start..start + count,
                        offset_bytes,
                        memory: copy_of(run.iter().map(|request| request.bytes)),
                    });
                    bytes += length_bytes;
                } else {
                    self.write_each(run);
                }
                start += count;
            }
            let written = direct.write_runs(&runs, self.backends.is_ring_permitted);
            for (run, is_written) in runs.into_iter().zip(written) {
                let own = requests.get_mut(run.requests).unwrap_or_default();
                match is_written {
                    true => own.iter_mut().for_each(|request| request.outcome = Ok(())),
                    // One by one, to find out which request fails, and how.
                    false => self.write_each(own),
                }
            }
        }
    }

    fn write_each(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.outcome = self.write(request.offset_bytes, request.bytes);
        }
    }

    /// Serves a batch by direct reads. What cannot be direct is read through the page cache.
    pub(super) fn read_by_direct(&self, direct: &DirectOpening, requests: &mut [ReadRequest<'_>]) {
        let mut memory: Vec<Option<AlignedBuf>> = (requests.iter())
            .map(|request| {
                let (offset_bytes, length) = (request.offset_bytes, request.buffer.len());
                let is_fit = length as u64 >= self.direct_read_bytes_min
                    && self.check(offset_bytes, length as u64).is_ok()
                    && direct.serves(offset_bytes, length as u64);
                is_fit.then(|| AlignedBuf::new(length))
            })
            .collect();
        let mut outcomes = vec![].into_iter();
        if self.backends.is_ring_permitted {
            let mut transfer = Transfer::default();
            for (request, buffer) in requests.iter().zip(&mut memory) {
                if let Some(buffer) = buffer {
                    transfer.read_over(direct.fd(), request.offset_bytes, buffer.bytes_mut());
                }
            }
            if transfer.operations() > 1 && transfer.perform() {
                outcomes = transfer.outcomes().into_iter();
            }
        }
        for (request, buffer) in requests.iter_mut().zip(memory) {
            let outcome = buffer.as_ref().and_then(|_| outcomes.next());
            request.outcome = match (outcome, buffer) {
                (Some(Outcome::Done), Some(buffer)) => {
                    request.buffer.copy_from_slice(buffer.bytes());
                    Ok(())
                }
                _ => self.read(request.offset_bytes, request.buffer),
            };
        }
    }

    /// Reads directly. `None` if the read has to go through the page cache.
    pub(super) fn read_direct(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuf, DeviceError>> {
        let direct = self.direct.as_ref()?;
        if (length_bytes as u64) < self.direct_read_bytes_min {
            return None;
        }
        match direct.read(offset_bytes, length_bytes) {
            Ok(buffer) => Some(Ok(buffer)),
            Err(DirectFailure::NotServed) => None,
            Err(DirectFailure::Failed(error)) => Some(Err(DeviceError::io(
                "read",
                offset_bytes,
                length_bytes as u64,
                &error,
            ))),
        }
    }

    /// Writes directly. `None` if the write has to go through the page cache.
    pub(super) fn write_direct(
        &self,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Option<Result<(), DeviceError>> {
        match self.direct.as_ref()?.write_copy(offset_bytes, bytes) {
            Ok(()) => Some(Ok(())),
            Err(DirectFailure::NotServed) => None,
            Err(DirectFailure::Failed(error)) => {
                let length_bytes = bytes.len() as u64;
                Some(Err(DeviceError::io(
                    "write",
                    offset_bytes,
                    length_bytes,
                    &error,
                )))
            }
        }
    }

    /// The opening for a direct read of [`crate::read_batch`]; `None` if it goes through the page cache.
    pub(crate) fn direct_fd(&self, offset_bytes: u64, length_bytes: u64) -> Option<BorrowedFd<'_>> {
        let direct = self.direct.as_ref()?;
        let is_fit =
            length_bytes >= self.direct_read_bytes_min && direct.serves(offset_bytes, length_bytes);
        is_fit.then(|| direct.fd())
    }
}

/// What offsets and lengths of direct requests must be multiples of, in bytes. `None` if they are
/// impossible, or need memory that is aligned to more than a page.
fn alignment_bytes(file: &File) -> Option<u64> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(stat) = stat
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let fits = stat.stx_dio_mem_align as usize <= ALIGNMENT_BYTES;
        let offsets = u64::from(stat.stx_dio_offset_align);
        return (fits && offsets > 0).then_some(offsets);
    }
    // A kernel before 6.1, or a block device before 6.11.
    match rustix::fs::ioctl_blksszget(file) {
        Ok(sector_bytes) if sector_bytes > 0 => Some(u64::from(sector_bytes)),
        _ => Some(UNKNOWN_ALIGNMENT_BYTES),
    }
}
