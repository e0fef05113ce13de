//! Parallel reads of several devices.

use crate::file::AlignedBuf;
use crate::ring::{Outcome, Transfer};
use crate::{Device, DeviceError, FileDevice, Unwatched, Watch};
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// One read of [`read_batch`].
#[derive(Debug, Clone, Copy)]
pub struct DeviceRead<'a> {
    /// The device to read from.
    pub device: &'a dyn Device,
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// Length in bytes. The caller bounds it.
    pub length_bytes: usize,
}

impl DeviceRead<'_> {
    /// Performs this read alone, as [`Device::read_into`] does, and reports it to `watch` with index 0.
    ///
    /// # Errors
    /// As for [`Device::read`].
    pub fn perform_watched(
        &self,
        memory: Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<Vec<u8>, DeviceError> {
        self.perform(0, memory, watch)
    }

    fn perform(
        &self,
        at: usize,
        memory: Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<Vec<u8>, DeviceError> {
        watch.begun(at..at + 1);
        let outcome = (self.device).read_into(self.offset_bytes, self.length_bytes, memory);
        watch.ended(at..at + 1);
        outcome
    }
}

/// The file and offset of a read, from [`Device::locate`].
pub struct Located<'a> {
    pub(crate) file: &'a FileDevice,
    pub(crate) offset_bytes: u64,
}

impl fmt::Debug for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of {:?}", self.offset_bytes, self.file)
    }
}

/// The bytes of a read of [`read_batch`]: a vector, or the memory of direct I/O.
#[derive(Debug)]
pub enum BatchBytes {
    /// A vector.
    Plain(Vec<u8>),
    /// Memory of direct I/O, which is reused when it is dropped.
    Direct(AlignedBuf),
}

impl std::ops::Deref for BatchBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Direct(memory) => memory.bytes(),
        }
    }
}

/// Performs reads of any number of devices, in parallel where the system and the devices allow it.
///
/// The outcomes are in the order of the reads. Each is what [`Device::read_vec`] returns. All bytes are in
/// memory at the same time.
pub fn read_batch(reads: &[DeviceRead<'_>]) -> Vec<Result<BatchBytes, DeviceError>> {
    read_batch_watched(reads, &Unwatched)
}

/// As [`read_batch`], and reports progress to `watch`. Reads that are submitted together begin and end
/// together.
pub fn read_batch_watched(
    reads: &[DeviceRead<'_>],
    watch: &dyn Watch,
) -> Vec<Result<BatchBytes, DeviceError>> {
    let alone = |(at, read): (usize, &DeviceRead<'_>)| {
        let outcome = read.perform(at, Vec::new(), watch);
        outcome.map(BatchBytes::Plain)
    };
    if reads.len() < 2 {
        return reads.iter().enumerate().map(alone).collect();
    }
    let located: Vec<Option<Located<'_>>> = reads
        .iter()
        .map(|read| {
            let length_bytes = read.length_bytes as u64;
            read.device.locate(read.offset_bytes, length_bytes)
        })
        .collect();
    if located.iter().flatten().count() < 2 {
        drop(located);
        return reads.iter().enumerate().map(alone).collect();
    }
    let mut memory: Vec<Option<Target<'_>>> = reads
        .iter()
        .zip(&located)
        .map(|(read, located)| Some(Target::of(read, located.as_ref()?)))
        .collect();
    let runs = placed_runs(&located);
    for run in &runs {
        watch.begun(run.clone());
    }
    let outcomes = together(reads, &mut memory);
    for run in runs {
        watch.ended(run);
    }
    let mut outcomes = outcomes.into_iter();
    let memory: Vec<Option<BatchBytes>> = memory
        .into_iter()
        .map(|target| Some(target?.bytes))
        .collect();
    drop(located);
    reads
        .iter()
        .enumerate()
        .zip(memory)
        .map(
            |((at, read), bytes)| match (outcomes.next().flatten(), bytes) {
                (Some(Outcome::Done), Some(bytes)) => Ok(bytes),
                (Some(Outcome::Failed(errno)), _) => Err(DeviceError::io(
                    "read",
                    read.offset_bytes,
                    read.length_bytes as u64,
                    &errno.into(),
                )),
                // A read that the ring returned undone begins a second time.
                _ => alone((at, read)),
            },
        )
        .collect()
}

/// Ranges of consecutive reads that have a position in a file; usually one range with all reads.
fn placed_runs(located: &[Option<Located<'_>>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for (at, located) in located.iter().enumerate() {
        match runs.last_mut() {
            _ if located.is_none() => {}
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Where a read that has a position in a file goes.
struct Target<'a> {
    file: BorrowedFd<'a>,
    offset_bytes: u64,
    /// Empty, with room for the read, if it is a vector.
    bytes: BatchBytes,
}

impl<'a> Target<'a> {
    fn of(read: &DeviceRead<'_>, located: &'a Located<'a>) -> Self {
        let offset_bytes = located.offset_bytes;
        let direct = (located.file).direct_fd(offset_bytes, read.length_bytes as u64);
        Self {
            file: direct.unwrap_or_else(|| located.file.file().as_fd()),
            offset_bytes,
            bytes: match direct {
                Some(_) => BatchBytes::Direct(AlignedBuf::new(read.length_bytes)),
                None => BatchBytes::Plain(Vec::with_capacity(read.length_bytes)),
            },
        }
    }
}

/// Performs the reads that have a target; `None` for the others.
fn together(reads: &[DeviceRead<'_>], targets: &mut [Option<Target<'_>>]) -> Vec<Option<Outcome>> {
    let mut transfer = Transfer::default();
    for (read, target) in reads.iter().zip(targets.iter_mut()) {
        let Some(target) = target else { continue };
        match &mut target.bytes {
            BatchBytes::Direct(memory) => {
                transfer.read_over(target.file, target.offset_bytes, memory.bytes_mut());
            }
            BatchBytes::Plain(bytes) => {
                // The capacity is at least what was reserved.
                let (spare, _) = bytes.spare_capacity_mut().split_at_mut(read.length_bytes);
                transfer.read(target.file, target.offset_bytes, spare);
            }
        }
    }
    let is_performed = transfer.perform();
    let mut outcomes = match is_performed {
        true => transfer.outcomes(),
        false => vec![],
    }
    .into_iter();
    let each = reads.iter().zip(targets);
    each.map(|(read, target)| {
        let outcome = target.as_mut().and_then(|_| outcomes.next());
        if let (Some(Outcome::Done), Some(target)) = (outcome, target)
            && let BatchBytes::Plain(bytes) = &mut target.bytes
        {
            // SAFETY: this length was reserved, and the kernel filled all of it.
            unsafe { bytes.set_len(read.length_bytes) };
        }
        outcome
    })
    .collect()
}
