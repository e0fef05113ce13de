//! Layer `machine`: block devices as traits, and the real ones.
//!
//! [`Device`] is the seam at which the simulator, fault injection and crash recording plug in: six
//! calls (the others have bodies of their own). The real devices (image files, block devices, partitions
//! of whole-disk images) and the search for them live beside it, and [`QueuedDevice`], which keeps a
//! flood of writes from delaying reads. This crate knows no ZFS structure.
#![deny(unsafe_code)]

use std::fmt;

// Memory that the kernel fills.
#[allow(unsafe_code)]
mod across;
mod discover;
mod error;
mod file;
mod gpt;
mod loops;
mod memory;
mod partition;
// Requests that no safe wrapper offers.
#[allow(unsafe_code)]
mod project;
mod queue;
// Operations of the kernel on borrowed memory.
#[allow(unsafe_code)]
mod ring;
mod watch;
mod way;
mod write_back;

pub use across::{DeviceRead, Located, read_across, read_across_watched};
pub use discover::{Candidate, Discovery, SearchOptions, default_search_paths, discover};
pub use error::DeviceError;
pub use file::{FileDevice, LockState, OpenOptions};
pub use gpt::{GptError, GptPartition, read_gpt};
pub use memory::MemoryDevice;
pub use partition::PartitionDevice;
pub use project::FileProject;
pub use queue::{QueueFigures, QueuedDevice, RUN_BYTES_MAX};
pub use ring::is_permitted as ring_is_permitted;
pub use watch::{Unwatched, Watch};
pub use way::IoWay;

/// A flat array of bytes that a pool's leaf vdev lies on.
///
/// Requests block the calling thread; deep queues come from many callers, from
/// [`Device::read_many`], [`Device::write_many`] and [`read_across`]. Implementations lock nothing that a caller could hold.
pub trait Device: Send + Sync + fmt::Debug {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Smallest unit that the device writes at once, in bytes (512, 4096, …).
    fn sector_bytes(&self) -> u32;
    /// Fills `buffer` from `offset_bytes`.
    ///
    /// # Errors
    /// [`DeviceError::Io`] or [`DeviceError::OutOfRange`]; then the buffer's content is undefined.
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;
    /// As [`Device::read`], into memory of its own; better where the device can fill memory that was
    /// not cleared before. The caller bounds the length.
    ///
    /// # Errors
    /// As for [`Device::read`].
    fn read_vec(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        self.read_into(offset_bytes, length_bytes, Vec::new())
    }
    /// As [`Device::read_vec`], in the memory of `room` if that is large enough; what it held is gone.
    ///
    /// # Errors
    /// As for [`Device::read`].
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        room: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = if room.capacity() < length_bytes {
            vec![0; length_bytes]
        } else {
            let mut room = room;
            room.clear();
            room.resize(length_bytes, 0);
            room
        };
        self.read(offset_bytes, &mut bytes)?;
        Ok(bytes)
    }
    /// Serves several reads, each with its own outcome; better than one at a time where the device
    /// can queue.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.outcome = self.read(request.offset_bytes, request.buffer);
        }
    }
    /// Where a read within the device ends up among the system's files, for [`read_across`] to give several
    /// to the system at once. `None`: it is better served by [`Device::read_vec`].
    fn locate(&self, offset_bytes: u64, length_bytes: u64) -> Option<Located<'_>> {
        let _ = (offset_bytes, length_bytes);
        None
    }
    /// Whether [`Device::locate`] finds places: several reads are better asked for together then.
    fn reads_at_once(&self) -> bool {
        false
    }
    /// How many runs of neighbours [`Device::write_many`] works on at once; at least 1.
    fn writes_at_once(&self) -> usize {
        1
    }
    /// Writes `bytes` at `offset_bytes`; durable only after [`Device::flush`].
    ///
    /// # Errors
    /// As for reads, or [`DeviceError::ReadOnly`].
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Serves several writes, each with its own outcome; better than one at a time where the device
    /// can join neighbours. Ranges do not overlap; sorted by offset they are served best. These are the
    /// writes that nobody waits for one by one: reads and single writes go before them.
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.outcome = self.write(request.offset_bytes, request.bytes);
        }
    }
    /// As [`Device::write_many`], telling `watch` how the requests get on. Where several are with the device at once
    /// they begin and end together.
    fn write_many_watched(&self, requests: &mut [WriteRequest<'_>], watch: &dyn Watch) {
        let all = 0..requests.len();
        watch.begun(all.clone());
        self.write_many(requests);
        watch.ended(all);
    }
    /// As [`Device::write_many`], and what succeeds is durable, as if it alone had been flushed. What was
    /// written before is not made durable by it.
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        self.write_many(requests);
        if let Err(error) = self.flush() {
            fail_all(requests, &error);
        }
    }
    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; then earlier writes may be lost, and the next flush succeeds all the same: they are to be
    /// written again ([`Device::write_back_errors`]).
    fn flush(&self) -> Result<(), DeviceError>;
    /// How often somebody was told that writes could not be made durable. A system reports a lost write once, to
    /// whoever asks first: a flush counts only for writes that began after this number last went up. It
    /// has gone up before a flush returns that began before the failing one ended.
    fn write_back_errors(&self) -> u64 {
        0
    }
    /// Whether it is a file that has no name any more: once it is closed its content is gone.
    fn is_deleted(&self) -> bool {
        false
    }
    /// Tells the device that a range is no longer needed.
    ///
    /// # Errors
    /// As for writes. Devices that cannot discard do nothing and succeed.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError>;
}

/// Lets those that had succeeded fail.
pub(crate) fn fail_all(requests: &mut [WriteRequest<'_>], error: &DeviceError) {
    for request in requests {
        if request.outcome.is_ok() {
            request.outcome = Err(error.clone());
        }
    }
}

/// One read of a batch given to [`Device::read_many`].
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Where to start, in bytes.
    pub offset_bytes: u64,
    /// What to fill.
    pub buffer: &'a mut [u8],
    /// What came of it; `Ok` means that the buffer is filled.
    pub outcome: Result<(), DeviceError>,
}

/// One write of a batch given to [`Device::write_many`].
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// Where to start, in bytes.
    pub offset_bytes: u64,
    /// What to write.
    pub bytes: &'a [u8],
    /// What came of it; `Ok` means that the device took all of it (durable after [`Device::flush`]).
    pub outcome: Result<(), DeviceError>,
}

impl<'a> WriteRequest<'a> {
    /// A write that has not been served: until then its outcome is that nothing was written.
    #[must_use]
    pub fn new(offset_bytes: u64, bytes: &'a [u8]) -> Self {
        let outcome = Err(DeviceError::Io {
            action: "write",
            offset_bytes,
            length_bytes: bytes.len() as u64,
            errno: 0,
            message: "not served".to_owned(),
        });
        Self {
            offset_bytes,
            bytes,
            outcome,
        }
    }

    /// The first byte after it; the largest number if that does not exist.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.bytes.len() as u64)
    }
}
