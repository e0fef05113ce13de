//! By which way batches get to the system.

use std::fs::File;

/// How a device's batches of requests are performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoWay {
    /// As measurements said: reads through a ring, except of files in memory; writes, which end in the
    /// page cache, by ordinary calls (`BENCHMARKS.md`, "Batches of a device").
    #[default]
    Measured,
    /// By ordinary calls, one after the other; depth comes from the callers' threads.
    Threads,
    /// Through a ring, reads and writes.
    Ring,
}

impl IoWay {
    /// What `MILLPOND_IO` asks for: `threads` or `ring`; anything else leaves it as measured.
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var_os("MILLPOND_IO") {
            Some(word) if word == "threads" => Self::Threads,
            Some(word) if word == "ring" => Self::Ring,
            _ => Self::Measured,
        }
    }
}

/// The ways of one open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(crate) reads_by_ring: bool,
    pub(crate) writes_by_ring: bool,
}

impl Ways {
    pub(crate) fn of(file: &File, is_block_device: bool, way: IoWay) -> Self {
        let is_permitted = way != IoWay::Threads && crate::ring_is_permitted();
        Self {
            reads_by_ring: is_permitted
                && (way == IoWay::Ring || is_block_device || !is_in_memory(file)),
            writes_by_ring: is_permitted && way == IoWay::Ring,
        }
    }
}

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `statfs(2)`.
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether the file's bytes are always in memory. Rings hand requests for such files to threads of the
/// kernel, though there is nothing to wait for.
fn is_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| {
        // The magic number has 32 bits; its field has more on some machines and a sign on others.
        MEMORY_FILE_SYSTEMS.contains(&(system.f_type as u32))
    })
}
