//! Unmounts file systems whose contents a stream replaces, and mounts what was received.

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
    fn before(&mut self, dataset: &str) -> Result<(), ReceiveProblem> {
        let taken = self
            .mounts
            .take_away(dataset, self.force_unmount, &mut self.taken);
        taken.map_err(|(mountpoint, why)| {
            self.mount_again();
            ReceiveProblem::Mounted(mountpoint, why.to_string())
        })
    }

    fn after(&mut self, dataset: &str, is_new: bool) {
        self.mount_again();
        if is_new && self.mounts_new {
            let notes = self.mounts.mount_some(self.pools, dataset, &[], &|_| true);
            self.notes.extend(notes);
        }
    }
}
