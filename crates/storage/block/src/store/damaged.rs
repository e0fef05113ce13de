//! What reads find wrong: errors of leaves, and blocks without a good copy.

use crate::damage::DamagedBlock;
use crate::topology::Topology;
use crate::{Block, BlockAddress, BlockError, BlockStore};
use millpond_env::sync::Arc;
use millpond_ondisk::BlockPointer;
use millpond_vdev::{Blame, BlameReason};

impl BlockStore {
    /// Counts the errors that a read found on leaves. Checksum errors of an expired view say nothing about
    /// them. An error counts only if it was found before the view expired, as the flag is set before blocks
    /// are reused.
    pub(crate) fn count_errors(
        &self,
        topology: &Topology,
        blames: &[Blame],
        address: Option<BlockAddress>,
    ) {
        let has_expired = self.has_expired();
        for blame in blames {
            if !has_expired || blame.reason != BlameReason::Checksum {
                topology.count(blame, address);
            }
        }
    }

    pub(crate) fn is_damaged(&self, address: &BlockAddress) -> bool {
        self.damage.has(address)
    }

    /// Remembers whether a block that was read from devices is damaged.
    pub(crate) fn note_damage(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        outcome: &Result<Arc<Block>, BlockError>,
    ) {
        match outcome {
            // A view's pointer may lead to space that another block has taken.
            Err(BlockError::Corrupt { .. }) if !self.is_view => {
                let is_noted = self.damage.note(address, pointer);
                if is_noted {
                    self.topology().monitor.raise();
                }
            }
            Ok(_) if !self.is_view => self.damage.mended(&address),
            _ => {}
        }
    }

    /// The blocks without a good copy, at most 10,000. They are collected since the store (or the one
    /// behind this view) was made. A block that is later read successfully is removed.
    #[must_use]
    pub fn damaged_blocks(&self) -> Vec<DamagedBlock> {
        self.damage.all()
    }

    /// The first of [`BlockStore::damaged_blocks`] that were found since the last call, for events.
    #[must_use]
    pub fn take_damage_events(&self) -> Vec<BlockAddress> {
        self.damage.take_events()
    }

    /// Those of [`BlockStore::damaged_blocks`] that were found since the last call.
    #[must_use]
    pub fn take_new_damage(&self) -> Vec<DamagedBlock> {
        self.damage.take_new()
    }

    /// Forgets that a block was damaged, after it was read.
    pub fn forget_damage_at(&self, address: &BlockAddress) {
        self.damage.mended(address);
    }

    /// Forgets the damaged blocks, after all blocks were read.
    pub fn forget_damage(&self) {
        self.damage.clear();
    }
}
