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

/// Performs reads of any number of devices, in parallel where the system and the devices allow it.
///
/// The outcomes are in the order of the reads. Each is what [`Device::read_vec`] returns. All bytes are in
/// memory at the same time.
pub fn read_batch(reads: &[DeviceRead<'_>]) -> Vec<Result<Vec<u8>, DeviceError>> {
    read_batch_watched(reads, &Unwatched)
}

/// As [`read_batch`], and reports progress to `watch`. Reads that are submitted together begin and end
/// together.
pub fn read_batch_watched(
    reads: &[DeviceRead<'_>],
    watch: &dyn Watch,
) -> Vec<Result<Vec<u8>, DeviceError>> {
    let alone = |(at, read): (usize, &DeviceRead<'_>)| read.perform(at, Vec::new(), watch);
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
    let mut memory: Vec<Vec<u8>> = reads
        .iter()
        .zip(&located)
        .map(|(read, located)| match located {
            Some(_) => Vec::with_capacity(read.length_bytes),
            None => vec![],
        })
        .collect();
    let runs = placed_runs(&located);
    for run in &runs {
        watch.begun(run.clone());
    }
    let outcomes = together(reads, &located, &mut memory);
    for run in runs {
        watch.ended(run);
    }
    drop(located);
    let mut outcomes = outcomes.into_iter();
    reads
        .iter()
        .enumerate()
        .zip(memory)
        .map(|((at, read), bytes)| match outcomes.next().flatten() {
            Some(Outcome::Done) => Ok(bytes),
            Some(Outcome::Failed(errno)) => Err(DeviceError::io(
                "read",
                read.offset_bytes,
                read.length_bytes as u64,
                &errno.into(),
            )),
            // A read that the ring returned undone begins a second time.
            Some(Outcome::Again) | None => alone((at, read)),
        })
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

/// Performs the reads that have a position in a file; `None` for the others.
fn together(
    reads: &[DeviceRead<'_>],
    located: &[Option<Located<'_>>],
    memory: &mut [Vec<u8>],
) -> Vec<Option<Outcome>> {
    let direct: Vec<Option<BorrowedFd<'_>>> = (reads.iter().zip(located))
        .map(|(read, located)| {
            let located = located.as_ref()?;
            let length_bytes = read.length_bytes as u64;
            located.file.direct_fd(located.offset_bytes, length_bytes)
        })
        .collect();
    let mut aligned: Vec<Option<AlignedBuf>> = (reads.iter().zip(&direct))
        .map(|(read, direct)| direct.map(|_| AlignedBuf::new(read.length_bytes)))
        .collect();
    let mut transfer = Transfer::default();
    let targets = memory.iter_mut().zip(&mut aligned).zip(direct);
    for ((read, located), ((bytes, aligned), direct)) in reads.iter().zip(located).zip(targets) {
        let Some(located) = located else { continue };
        if let (Some(aligned), Some(direct)) = (aligned, direct) {
            transfer.read_over(direct, located.offset_bytes, aligned.bytes_mut());
            continue;
        }
        // The capacity is at least what was reserved.
        let (spare, _) = bytes.spare_capacity_mut().split_at_mut(read.length_bytes);
        transfer.read(located.file.file().as_fd(), located.offset_bytes, spare);
    }
    let mut outcomes = if transfer.perform() {
        transfer.outcomes()
    } else {
        vec![]
    }
    .into_iter();
    let outcomes: Vec<Option<Outcome>> = located
        .iter()
        .map(|located| located.as_ref().and_then(|_| outcomes.next()))
        .collect();
    let filled = memory.iter_mut().zip(&aligned);
    for ((read, outcome), (bytes, aligned)) in reads.iter().zip(&outcomes).zip(filled) {
        match aligned {
            _ if *outcome != Some(Outcome::Done) => {}
            Some(aligned) => bytes.extend_from_slice(aligned.bytes()),
            // SAFETY: this length was reserved, and the kernel filled all of it.
            None => unsafe { bytes.set_len(read.length_bytes) },
        }
    }
    outcomes
}
