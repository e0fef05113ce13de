//! Threads that cannot take no for an answer.
//!
//! A txg that is being written has changed so much in memory that it can only go on, or be given up with
//! everything that was not committed. So the threads that write it are *patient*: when the devices
//! fail them they ask a port above what to do. It may let them wait until somebody has put the devices
//! right, and then the request is made again, and nothing else is.
//!
//! Devices that went away may have lost what they had taken and not flushed, or called it clean. So before a thread goes
//! on the port calls [`BlockStore::distrust_unflushed`], and the next flush writes all of it again.

use crate::{BlockError, BlockStore};
use millpond_env::sync::{Arc, Mutex, OnceLock};
use millpond_env::thread::{ThreadId, current_id};

/// Decides what becomes of a patient thread's failed request.
pub trait Patience: Send + Sync {
    /// A number that goes up each time writing is resumed.
    fn resumes(&self) -> u64;
    /// A request of the calling thread failed, which began when [`Patience::resumes`] was `since`. Returns
    /// whether to make it again: at once if writing was resumed meanwhile, otherwise when it is.
    fn wait(&self, since: u64, reason: &str) -> bool;
}

#[derive(Default)]
pub(crate) struct Patient {
    port: OnceLock<Arc<dyn Patience>>,
    threads: Mutex<Vec<ThreadId>>,
}

/// While it lives, the thread that asked for it is patient.
pub struct PatientThread<'a> {
    store: &'a BlockStore,
}

impl Drop for PatientThread<'_> {
    fn drop(&mut self) {
        let id = current_id();
        let mut threads = self.store.patient.threads.lock();
        if let Some(at) = threads.iter().rposition(|thread| *thread == id) {
            threads.swap_remove(at);
        }
    }
}

impl Patient {
    pub(crate) fn resumes(&self) -> u64 {
        self.port.get().map_or(0, |port| port.resumes())
    }

    fn is_patient(&self) -> bool {
        self.port.get().is_some() && self.threads.lock().contains(&current_id())
    }

    /// Whether the calling thread is to make a failed request again. May take for ever.
    pub(crate) fn waits(&self, since: u64, reason: &dyn std::fmt::Display) -> bool {
        match self.port.get() {
            Some(port) if self.is_patient() => port.wait(since, &reason.to_string()),
            _ => false,
        }
    }
}

impl BlockStore {
    /// Who decides for patient threads. Without one nobody is patient. The first stays.
    pub fn set_patience(&self, port: Arc<dyn Patience>) {
        // A second one would leave those who wait with the first.
        let _ = self.patient.port.set(port);
    }

    /// Makes the calling thread patient.
    #[must_use]
    pub fn patient_thread(&self) -> PatientThread<'_> {
        self.patient.threads.lock().push(current_id());
        PatientThread { store: self }
    }

    /// How often writing was resumed: for [`BlockStore::waits_for_resume`].
    #[must_use]
    pub fn resumes(&self) -> u64 {
        self.patient.resumes()
    }

    /// A block without which the calling thread cannot go on has no good copy. A patient thread waits here
    /// until writing is resumed, and is told to read the block again; any other is not.
    #[must_use]
    pub fn waits_for_resume(&self, since: u64, error: &BlockError) -> bool {
        matches!(error, BlockError::Corrupt { .. }) && self.patient.waits(since, error)
    }

    /// Reads with patience.
    pub(crate) fn with_patience<T>(
        &self,
        mut read: impl FnMut() -> Result<T, BlockError>,
    ) -> Result<T, BlockError> {
        loop {
            let since = self.patient.resumes();
            match read() {
                Err(error @ BlockError::Missing { .. }) if self.patient.waits(since, &error) => {}
                outcome => return outcome,
            }
        }
    }
}
