//! Lets programs wait where a stream replaces the files of a mount, and mounts what was received.

use super::suspended::SuspendedMount;
use super::{Mounts, RemovedMount};
use millpond_control::{Note, ReceiveProblem};
use millpond_engine::ReceiveWatch;
use millpond_service::ImportedPools;

/// Follows the receive of a stream or package.
pub struct Receiving<'a> {
    mounts: &'a Mounts,
    pools: &'a ImportedPools,
    /// Whether new file systems are mounted.
    mounts_new: bool,
    force_unmount: bool,
    taken: Vec<RemovedMount>,
    /// The mount that gets other files.
    suspended: Option<SuspendedMount>,
    /// File systems that could not be mounted.
    pub notes: Vec<Note>,
}

impl<'a> Receiving<'a> {
    /// For one request.
    pub fn new(
        mounts: &'a Mounts,
        pools: &'a ImportedPools,
        mounts_new: bool,
        force_unmount: bool,
    ) -> Self {
        Self {
            mounts,
            pools,
            mounts_new,
            force_unmount,
            taken: vec![],
            suspended: None,
            notes: vec![],
        }
    }

    fn mount_again(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        let _changing = self.mounts.changing.lock();
        let notes = self.mounts.mount_removed(self.pools, &taken);
        self.notes.extend(notes);
    }
}

impl ReceiveWatch for Receiving<'_> {
    fn before_replacing(&mut self, dataset: &str) -> Result<(), ReceiveProblem> {
        match self.mounts.suspend(dataset) {
            Ok(suspended) => {
                self.suspended = suspended;
                Ok(())
            }
            Err(_) if self.force_unmount => self.before_moving(dataset),
            Err((mountpoint, why)) => Err(ReceiveProblem::Mounted(mountpoint, why.to_string())),
        }
    }

    fn after_replacing(&mut self, is_done: bool) {
        if let Some(suspended) = self.suspended.take() {
            let note = self.mounts.resume(self.pools, suspended, is_done);
            self.notes.extend(note);
        }
        self.mount_again();
    }

    fn before_moving(&mut self, dataset: &str) -> Result<(), ReceiveProblem> {
        if self.force_unmount {
            self.mounts.write_back(Some(dataset));
        }
        let taken = self
            .mounts
            .take_away(dataset, self.force_unmount, &mut self.taken);
        taken.map_err(|(mountpoint, why)| {
            self.mount_again();
            ReceiveProblem::Mounted(mountpoint, why.to_string())
        })
    }

    fn after_moving(&mut self) {
        self.mount_again();
    }

    fn created(&mut self, dataset: &str) {
        if self.mounts_new {
            let notes = self
                .mounts
                .mount_all(self.pools, dataset, &[], &|_| true, &|_, _| ());
            self.notes.extend(notes);
        }
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if let Some(suspended) = self.suspended.take() {
            let _ = self.mounts.resume(self.pools, suspended, false);
        }
    }
}
