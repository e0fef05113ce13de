//! The I/O backend for batches.

use std::fs::File;

/// The I/O backend that performs a device's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoBackend {
    /// The backend that measured best. Reads and direct writes use io_uring, except for files in memory.
    /// Writes to the page cache use ordinary calls (`BENCHMARKS.md`, "Batches of a device").
    #[default]
    Measured,
    /// Ordinary system calls, one after the other. Queue depth comes from the callers' threads.
    Threads,
    /// io_uring, for reads and writes.
    Ring,
}

impl IoBackend {
    /// The backend that `MILLPOND_IO` names: `threads` or `ring`; the measured backend without either.
    #[must_use]
    pub fn from_environment() -> Self {
        match (is_asked("threads"), is_asked("ring")) {
            (true, _) => Self::Threads,
            (_, true) => Self::Ring,
            _ => Self::Measured,
        }
    }
}

/// Reads below this size are short: the system's read-ahead serves them better.
const SHORT_READ_BYTES: u64 = 64 << 10;

/// Whether a device bypasses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// Writes do, and reads of at least 64 KiB, on devices that are open for writing, where the file system
    /// permits it and is not in memory. Programs that only read share the page cache with later ones.
    #[default]
    WhenWritable,
    /// Wherever the file system permits it.
    Always,
    /// Never: all requests go through the page cache.
    Never,
}

impl DirectIo {
    /// What `MILLPOND_IO` asks for: `direct` or `buffered`.
    #[must_use]
    pub fn from_environment() -> Self {
        match (is_asked("buffered"), is_asked("direct")) {
            (true, _) => Self::Never,
            (_, true) => Self::Always,
            _ => Self::WhenWritable,
        }
    }

    /// The shortest direct read, in bytes.
    pub(crate) fn read_bytes_min(self) -> u64 {
        match self {
            Self::Always => 0,
            Self::WhenWritable | Self::Never => SHORT_READ_BYTES,
        }
    }

    /// Whether a file should be opened for direct I/O.
    pub(crate) fn is_wanted(self, file: &File, is_writable: bool) -> bool {
        match self {
            Self::WhenWritable => is_writable && !is_in_memory(file),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Whether a block's pointer is given out before the devices have the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteBehind {
    /// While every vdev is redundant. Without redundancy, a block that a disk refuses must be able to move.
    #[default]
    WhenRedundant,
    /// On all vdevs.
    Always,
    /// Writes wait for the devices.
    Never,
}

impl WriteBehind {
    /// What `MILLPOND_IO` asks for: `behind` or `wait`; the default without either.
    #[must_use]
    pub fn from_environment() -> Self {
        match (is_asked("behind"), is_asked("wait")) {
            (true, _) => Self::Always,
            (_, true) => Self::Never,
            _ => Self::default(),
        }
    }
}

/// Whether the list `MILLPOND_IO` (words separated by commas) contains a word.
fn is_asked(wanted: &str) -> bool {
    let words = std::env::var("MILLPOND_IO").unwrap_or_default();
    words.split(',').any(|word| word.trim() == wanted)
}

/// The backends of one open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backends {
    pub(crate) reads_by_ring: bool,
    pub(crate) writes_by_ring: bool,
    /// Whether direct requests may use io_uring.
    pub(crate) is_ring_permitted: bool,
}

impl Backends {
    pub(crate) fn of(file: &File, is_block_device: bool, backend: IoBackend) -> Self {
        let is_permitted = backend != IoBackend::Threads && crate::ring_is_permitted();
        Self {
            reads_by_ring: is_permitted
                && (backend == IoBackend::Ring || is_block_device || !is_in_memory(file)),
            writes_by_ring: is_permitted && backend == IoBackend::Ring,
            is_ring_permitted: is_permitted,
        }
    }
}

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `statfs(2)`.
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether the file's bytes are always in memory. io_uring passes requests for such files to kernel
/// threads, although they never block.
fn is_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| {
        // The magic number has 32 bits; its field is wider on some machines and signed on others.
        MEMORY_FILE_SYSTEMS.contains(&(system.f_type as u32))
    })
}
