//! The I/O backend for batches.

use std::fs::File;

/// The I/O backend that performs a device's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoBackend {
    /// The backend that measured best. Reads use io_uring, except for files in memory. Writes go to the
    /// page cache and use ordinary calls (`BENCHMARKS.md`, "Batches of a device").
    #[default]
    Measured,
    /// Ordinary system calls, one after the other. Queue depth comes from the callers' threads.
    Threads,
    /// io_uring, for reads and writes.
    Ring,
}

impl IoBackend {
    /// The value of `MILLPOND_IO`: `threads` or `ring`; anything else selects the measured backend.
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var_os("MILLPOND_IO") {
            Some(word) if word == "threads" => Self::Threads,
            Some(word) if word == "ring" => Self::Ring,
            _ => Self::Measured,
        }
    }
}

/// The backends of one open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backends {
    pub(crate) reads_by_ring: bool,
    pub(crate) writes_by_ring: bool,
}

impl Backends {
    pub(crate) fn of(file: &File, is_block_device: bool, way: IoBackend) -> Self {
        let is_permitted = way != IoBackend::Threads && crate::ring_is_permitted();
        Self {
            reads_by_ring: is_permitted
                && (way == IoBackend::Ring || is_block_device || !is_in_memory(file)),
            writes_by_ring: is_permitted && way == IoBackend::Ring,
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
