//! Threads that cannot take no for an answer.
//!
//! A txg that is being written has changed so much in memory that it can only go on, or be given up with
//! everything that was not committed. So the threads that write it are *patient*: when the devices
//! fail them they ask a port above what to do. It may let them wait until somebody has put the devices
//! right, and then the request is made again, and nothing else is.
//!
//! Devices that went away may have lost what they had taken and not flushed. What patient threads
//! write is therefore remembered until the next flush, and looked at again on the devices if
//! there was a wait in between.

use crate::{BlockAddress, BlockError, BlockStore, FlushError};
use millpond_env::sync::{Arc, Mutex, OnceLock};
use millpond_env::thread::{ThreadId, current_id};
use millpond_ondisk::{BlockPointer, Dva, Txg, VdevId};
use std::collections::BTreeMap;

/// Decides what becomes of a patient thread's failed request.
pub trait Patience: Send + Sync {
    /// A number that goes up each time writing is resumed.
    fn resumes(&self) -> u64;
    /// A request of the calling thread failed, which began when [`Patience::resumes`] was `since`. Returns
    /// whether to make it again: at once if writing was resumed meanwhile, otherwise when it is.
    fn wait(&self, since: u64, reason: &str) -> bool;
}

/// Where a block lies, for the table of what is not flushed.
type Place = (VdevId, u64);

#[derive(Default)]
pub(crate) struct Patient {
    port: OnceLock<Arc<dyn Patience>>,
    threads: Mutex<Vec<ThreadId>>,
    /// Blocks written since the last flush. At most what a txg dirties: 130 bytes for each block.
    unproven: Mutex<Unproven>,
}

#[derive(Default)]
struct Unproven {
    blocks: BTreeMap<Place, BlockPointer>,
    /// How often writing had been resumed at the last good flush.
    resumes: u64,
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

    pub(crate) fn note_written(&self, pointer: &BlockPointer) {
        if let Some(dva) = pointer.dvas().next()
            && self.is_patient()
        {
            let place = (dva.vdev, dva.offset_bytes);
            self.unproven.lock().blocks.insert(place, *pointer);
        }
    }

    /// What has to be looked at again before it counts as flushed: nothing unless there was a wait.
    fn doubtful(&self) -> Vec<BlockPointer> {
        let resumes = self.resumes();
        let unproven = self.unproven.lock();
        if unproven.resumes == resumes {
            return vec![];
        }
        unproven.blocks.values().copied().collect()
    }

    fn flushed(&self, resumes: u64) {
        let mut unproven = self.unproven.lock();
        unproven.blocks.clear();
        unproven.resumes = resumes;
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

    /// The block at this address was freed: it need not be on the devices.
    pub fn forget_written(&self, dva: &Dva) {
        if self.patient.port.get().is_some() {
            let place = (dva.vdev, dva.offset_bytes);
            self.patient.unproven.lock().blocks.remove(&place);
        }
    }

    /// Makes everything written so far durable on every leaf that was written to. A leaf that cannot
    /// flush counts as having missed all it was given since its last flush.
    ///
    /// A patient thread waits where it would get an error. After a wait, every block written since the
    /// last flush is read again from the devices, on all of which they must be found or missed as
    /// redundancy allows.
    ///
    /// # Errors
    /// [`FlushError`] if a vdev lost more than its redundancy can bear, failed writes since the last
    /// flush counted in: the txg must not commit.
    pub fn flush(&self) -> Result<(), FlushError> {
        loop {
            let since = self.patient.resumes();
            let outcome = self.flush_devices().and_then(|()| self.prove_written());
            match outcome {
                Ok(()) => {
                    self.patient.flushed(since);
                    return Ok(());
                }
                Err(error) if self.patient.waits(since, &error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Judges what was written since the last flush, if a device may have lost it.
    fn prove_written(&self) -> Result<(), FlushError> {
        for pointer in self.patient.doubtful() {
            let vdev = pointer.dvas().next().map_or(VdevId(0), |dva| dva.vdev);
            let lost = |reason: String| FlushError { vdev, reason };
            let audit = self
                .audit(&pointer, BlockAddress::default())
                .map_err(|error| lost(error.to_string()))?;
            if !audit.is_readable {
                let words = "a block that was written before the devices failed is not on them";
                return Err(lost(words.into()));
            }
            let topology = self.topology();
            for (_, finding) in audit.findings {
                let birth: Txg = pointer.physical_birth();
                self.note_missed(&topology, &[finding.leaf], birth);
            }
        }
        Ok(())
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
