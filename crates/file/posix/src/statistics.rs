//! What a file system that is open for change has done since it was opened.

use crate::FileSystem;
use crate::error::FileError;
use millpond_env::sync::atomic::{AtomicU64, Ordering};

/// Counts since a file system was opened for change. OpenZFS keeps the same in the kernel statistics of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileStatistics {
    /// Read requests. What the kernel answers from its page cache is not among them.
    pub reads: u64,
    /// Bytes that they returned.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Files that came into the unlinked set, and those that were in it when the file system was opened.
    pub unlinks: u64,
    /// Files that left the unlinked set, because they are freed or got a name again.
    pub unlinked: u64,
}

/// The counters behind [`FileStatistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    pub(crate) fn written(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl FileSystem {
    /// What was read, written and unlinked since the file system was opened.
    ///
    /// # Errors
    /// [`crate::TransactionError::ReadOnly`] if it is open only for reading: nothing is counted then.
    pub fn statistics(&self) -> Result<FileStatistics, FileError> {
        let writing = self.writing()?;
        let counters = writing.counters();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (unlinks, unlinked) = writing.unlinked().counts();
        Ok(FileStatistics {
            reads: of(&counters.reads),
            read_bytes: of(&counters.read_bytes),
            writes: of(&counters.writes),
            written_bytes: of(&counters.written_bytes),
            unlinks,
            unlinked,
        })
    }
}
