//! Retry mode: threads that wait for the devices instead of failing.
//!
//! The txg being synced has changed so much in memory that it can only complete, or be lost with everything
//! uncommitted. Its threads therefore run in retry mode. When the devices fail a request, the thread asks a
//! port of a higher layer what to do. The port may block the thread until an administrator has repaired the
//! devices. Then the thread repeats that one request.
//!
//! Devices that went away may have lost writes that they accepted but did not flush, or may report them as
//! clean. Before a thread continues, the port therefore calls [`BlockStore::distrust_unflushed`], and the
//! next flush rewrites all of them.

use crate::{BlockError, BlockStore};
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex, OnceLock};
use millpond_env::thread::{ThreadId, current_id};

/// Decides whether a failed request of a thread in retry mode is repeated.
pub trait RetryPolicy: Send + Sync {
    /// A counter that increases each time writing is resumed.
    fn resumes(&self) -> u64;
    /// Waits after a failed request of the calling thread. The request began when [`RetryPolicy::resumes`] was
    /// `since`. Returns whether to repeat it: at once if writing was resumed since then, otherwise when it
    /// is resumed.
    fn wait(&self, since: u64, reason: &str) -> bool;
}

#[derive(Default)]
pub(crate) struct Retries {
    port: OnceLock<Arc<dyn RetryPolicy>>,
    threads: Mutex<Vec<ThreadId>, rank::Leaf>,
}

/// A guard that keeps the thread that created it in retry mode.
pub struct RetryingThread<'a> {
    store: &'a BlockStore,
}

impl Drop for RetryingThread<'_> {
    fn drop(&mut self) {
        let id = current_id();
        let mut threads = self.store.retries.threads.lock();
        if let Some(at) = threads.iter().rposition(|thread| *thread == id) {
            threads.swap_remove(at);
        }
    }
}

impl Retries {
    pub(crate) fn resumes(&self) -> u64 {
        self.port.get().map_or(0, |port| port.resumes())
    }

    fn may_retry(&self) -> bool {
        self.port.get().is_some() && self.threads.lock().contains(&current_id())
    }

    /// Whether the calling thread is to repeat a failed request. May block for ever.
    pub(crate) fn waits(&self, since: u64, reason: &dyn std::fmt::Display) -> bool {
        match self.port.get() {
            Some(port) if self.may_retry() => port.wait(since, &reason.to_string()),
            _ => false,
        }
    }
}

impl BlockStore {
    /// Sets the port that decides for threads in retry mode. Without a port no thread retries. The first
    /// one set stays.
    pub fn set_retry_policy(&self, port: Arc<dyn RetryPolicy>) {
        // A second port would leave threads waiting in the first.
        let _ = self.retries.port.set(port);
    }

    /// Puts the calling thread into retry mode while the guard lives.
    #[must_use]
    pub fn retrying_thread(&self) -> RetryingThread<'_> {
        self.retries.threads.lock().push(current_id());
        RetryingThread { store: self }
    }

    /// How often writing was resumed, for [`BlockStore::waits_for_resume`].
    #[must_use]
    pub fn resumes(&self) -> u64 {
        self.retries.resumes()
    }

    /// Handles a read error of a block that the calling thread needs. In retry mode, and if the block has
    /// no good copy, it blocks until writing is resumed. Returns whether to read the block again; always
    /// false outside retry mode.
    #[must_use]
    pub fn waits_for_resume(&self, since: u64, error: &BlockError) -> bool {
        matches!(error, BlockError::Corrupt { .. }) && self.retries.waits(since, error)
    }

    /// Handles a failed write. In retry mode it blocks until writing is resumed. Returns whether to write again.
    pub(crate) fn waits_to_write(&self, since: u64, reason: &dyn std::fmt::Display) -> bool {
        let waits = self.retries.waits(since, reason);
        if waits {
            mark::hit("write-waited-for-device");
        }
        waits
    }

    /// Runs `read`, and repeats it in retry mode while devices are missing.
    pub(crate) fn with_retries<T>(
        &self,
        mut read: impl FnMut() -> Result<T, BlockError>,
    ) -> Result<T, BlockError> {
        loop {
            let since = self.retries.resumes();
            match read() {
                Err(error @ BlockError::Missing { .. }) if self.retries.waits(since, &error) => {}
                outcome => return outcome,
            }
        }
    }
}
