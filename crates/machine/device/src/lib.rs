//! Layer `machine`: the block device trait and the real devices.
//!
//! [`Device`] is the interface at which the simulator, fault injection and crash recording plug in. It has
//! six required methods; all others have default implementations. This crate also contains the real devices
//! (image files, block devices, partitions of whole-disk images), the search for them, and the careful opening of other
//! files that a pool names. It contains no ZFS structure.
#![deny(unsafe_code)]

use std::fmt;

// Reads into uninitialised memory.
#[allow(unsafe_code)]
mod batch;
// ioctls without a safe wrapper.
#[allow(unsafe_code)]
mod discards;
mod discover;
mod error;
mod file;
mod gpt;
mod loops;
mod memory;
mod partition;
// ioctls without a safe wrapper.
#[allow(unsafe_code)]
mod project;
mod regular;
// An ioctl without a safe wrapper.
#[allow(unsafe_code)]
mod rewrite;
// io_uring operations on borrowed memory.
mod backend;
#[allow(unsafe_code)]
mod ring;
mod runs;
mod watch;
mod write_back;

pub use backend::{DirectIo, IoBackend, WriteBehind};
pub use batch::{BatchBytes, DeviceRead, Located, read_batch, read_batch_watched};
pub use discards::DiscardSupport;
pub use discover::{Candidate, Discovery, SearchOptions, default_search_paths, discover};
pub use error::DeviceError;
pub use file::AlignedBuf;
pub use file::{FileDevice, LockState, OpenOptions};
pub use gpt::{GptError, GptPartition, read_gpt};
pub use memory::MemoryDevice;
pub use partition::PartitionDevice;
pub use project::FileProject;
pub use regular::open_regular;
pub use rewrite::RewriteRange;
pub use ring::is_permitted as ring_is_permitted;
pub use runs::{RUN_BYTES_MAX, next_run};
pub use watch::{Unwatched, Watch};

/// A flat array of bytes that holds a leaf vdev of a pool.
///
/// Requests block the calling thread. Deep queues come from many callers, from [`Device::read_many`],
/// [`Device::write_many`] and [`read_batch`]. Implementations take no lock that a caller could hold.
pub trait Device: Send + Sync + fmt::Debug {
    /// Size in bytes, as it was when the device was opened or last measured.
    fn size_bytes(&self) -> u64;
    /// Measures the device again, and returns its size now in bytes.
    ///
    /// If it has grown, [`Device::size_bytes`] is the new size from now on. If it has shrunk, that stays: what a
    /// pool needs may lie behind the end.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    fn measure(&self) -> Result<u64, DeviceError> {
        Ok(self.size_bytes())
    }
    /// The smallest unit that the device writes atomically, in bytes (512, 4096, …).
    fn sector_bytes(&self) -> u32;
    /// Fills `buffer` from `offset_bytes`.
    ///
    /// # Errors
    /// [`DeviceError::Io`] or [`DeviceError::OutOfRange`]; then the buffer's content is undefined.
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;
    /// As [`Device::read`], into a new buffer. Avoids clearing the buffer first where the device can do
    /// without.
    ///
    /// The caller bounds the length.
    ///
    /// # Errors
    /// As for [`Device::read`].
    fn read_vec(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        self.read_into(offset_bytes, length_bytes, Vec::new())
    }
    /// As [`Device::read_vec`], but reuses the memory of `memory` if that is large enough. The content of
    /// `memory` is lost.
    ///
    /// # Errors
    /// As for [`Device::read`].
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        memory: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = if memory.capacity() < length_bytes {
            vec![0; length_bytes]
        } else {
            let mut memory = memory;
            memory.clear();
            memory.resize(length_bytes, 0);
            memory
        };
        self.read(offset_bytes, &mut bytes)?;
        Ok(bytes)
    }
    /// Serves several reads, each with its own outcome. Faster than single reads where the device can queue
    /// requests.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.outcome = self.read(request.offset_bytes, request.buffer);
        }
    }
    /// The file and offset of a read, so that [`read_batch`] can submit several reads to the system at
    /// once.
    ///
    /// `None` if [`Device::read_vec`] serves the read better.
    fn locate(&self, offset_bytes: u64, length_bytes: u64) -> Option<Located<'_>> {
        let _ = (offset_bytes, length_bytes);
        None
    }
    /// Whether [`Device::locate`] returns positions, so that several reads are faster when submitted
    /// together.
    fn reads_at_once(&self) -> bool {
        false
    }
    /// The number of contiguous runs that [`Device::write_many`] works on in parallel; at least 1.
    fn writes_at_once(&self) -> usize {
        1
    }
    /// Whether other systems that have the device see what was written without a flush.
    fn writes_through(&self) -> bool {
        false
    }
    /// Drops what the system keeps of the device, so that the next read sees what other systems wrote.
    fn forget_cached(&self) {}
    /// Whether a write takes as long as the device, and not only a copy into the page cache.
    fn writes_wait_for_device(&self) -> bool {
        false
    }
    /// Writes `bytes` at `offset_bytes`; durable only after [`Device::flush`].
    ///
    /// # Errors
    /// As for reads, or [`DeviceError::ReadOnly`].
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Serves several writes, each with its own outcome. Faster than single writes where the device can
    /// merge adjacent ones.
    ///
    /// Ranges must not overlap; offset order is fastest.
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.outcome = self.write(request.offset_bytes, request.bytes);
        }
    }
    /// As [`Device::write_many`], and reports the progress of the requests to `watch`.
    ///
    /// Requests that are in flight together begin and end together.
    fn write_many_watched(&self, requests: &mut [WriteRequest<'_>], watch: &dyn Watch) {
        let all = 0..requests.len();
        watch.begun(all.clone());
        self.write_many(requests);
        watch.ended(all);
    }
    /// As [`Device::write_many`]; in addition each request that succeeds is durable on return. Earlier
    /// writes need not become durable.
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        self.write_many(requests);
        if let Err(error) = self.flush() {
            fail_all(requests, &error);
        }
    }
    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]. Earlier writes may then be lost, and the next flush succeeds all the same. The
    /// caller must write them again ([`Device::write_back_errors`]).
    fn flush(&self) -> Result<(), DeviceError>;
    /// The number of requests that reported lost writes.
    ///
    /// The system reports a lost write once, to the first request that asks. A flush therefore only covers
    /// writes that began after the last increase of this number. The number increases before any flush
    /// returns that began before the failing one ended.
    fn write_back_errors(&self) -> u64 {
        0
    }
    /// Whether the file has been deleted; its content is then lost once it is closed.
    fn is_deleted(&self) -> bool {
        false
    }
    /// What the device can discard; `None` if that is not known, as of a device that is open for reading only.
    fn discard_support(&self) -> Option<DiscardSupport> {
        None
    }
    /// Informs the device that a range is unused. Until it is written again, reads return anything.
    ///
    /// # Errors
    /// As for writes. Devices without discard support do nothing and succeed.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError>;
    /// Like [`Device::discard`], and erases all copies that the device has of the range.
    ///
    /// # Errors
    /// As for writes; always if the device cannot do that.
    fn discard_securely(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        Err(DeviceError::io(
            "discard",
            offset_bytes,
            length_bytes,
            &std::io::ErrorKind::Unsupported.into(),
        ))
    }
}

/// Turns every success into this error.
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
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// The buffer to fill.
    pub buffer: &'a mut [u8],
    /// The outcome; `Ok` means that the buffer is filled.
    pub outcome: Result<(), DeviceError>,
}

/// One write of a batch given to [`Device::write_many`].
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// The bytes to write.
    pub bytes: &'a [u8],
    /// The outcome; `Ok` means that the device accepted all bytes. They are durable after
    /// [`Device::flush`].
    pub outcome: Result<(), DeviceError>,
}

impl<'a> WriteRequest<'a> {
    /// A write that has not been served yet. Until then its outcome is an error.
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

    /// The offset just after it, saturating at `u64::MAX`.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.bytes.len() as u64)
    }
}
