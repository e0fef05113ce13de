//! Deadlists of remapped blocks: addresses on removed vdevs that snapshots have, while later datasets refer to the same
//! blocks by the addresses of their copies. OpenZFS makes them when it writes such pointers again.
//!
//! Nothing is freed with an entry: the block itself is in the ordinary deadlist. When no snapshot has an address any more,
//! the mapping of the vdev notes it as obsolete.
//!
//! Page `docs/format/indirect-vdev.md`, "Remapped blocks".

use super::context::SyncTaskContext;
use crate::heads::features;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{ObjectId, Txg};
use millpond_pool::PoolError;

impl SyncTaskContext<'_> {
    fn remap_deadlist(&self, dataset: ObjectId) -> Result<Option<ObjectId>, PoolError> {
        let list = self.extension_number(dataset, keys::REMAP_DEADLIST)?;
        Ok(list.map(ObjectId))
    }

    /// Moves the list of a dataset to another one, which has none.
    pub(crate) fn move_remapped(&self, from: ObjectId, to: ObjectId) -> Result<(), PoolError> {
        let Some(list) = self.remap_deadlist(from)? else {
            return Ok(());
        };
        self.remove(from, keys::REMAP_DEADLIST)?;
        self.zapify(to)?;
        self.update(to, keys::REMAP_DEADLIST, list.0)
    }

    /// Exchanges the lists of a head and a clone.
    pub(crate) fn swap_remapped(&self, one: ObjectId, other: ObjectId) -> Result<(), PoolError> {
        let (of_one, of_other) = (self.remap_deadlist(one)?, self.remap_deadlist(other)?);
        for (dataset, own, new) in [(one, of_one, of_other), (other, of_other, of_one)] {
            match new {
                Some(new) => {
                    self.zapify(dataset)?;
                    self.update(dataset, keys::REMAP_DEADLIST, new.0)?;
                }
                None if own.is_some() => {
                    self.remove(dataset, keys::REMAP_DEADLIST)?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Frees the list of a head that is destroyed. Its origin has the addresses still.
    pub(crate) fn free_remapped(&self, head: ObjectId) -> Result<(), PoolError> {
        let Some(list) = self.remap_deadlist(head)? else {
            return Ok(());
        };
        self.free_deadlist(list)?;
        self.forget_remapped(head)
    }

    fn forget_remapped(&self, dataset: ObjectId) -> Result<(), PoolError> {
        self.remove(dataset, keys::REMAP_DEADLIST)?;
        self.ctx.feature_decrement(features::OBSOLETE_COUNTS)
    }

    /// Takes in that a snapshot is destroyed: addresses in the list of the next dataset that no snapshot before
    /// it has are obsolete, and the next dataset takes over its list.
    pub(crate) fn settle_remapped(
        &self,
        gone: ObjectId,
        next: ObjectId,
        born_after: Txg,
    ) -> Result<(), PoolError> {
        if let Some(list) = self.remap_deadlist(next)? {
            let obsolete = self.ctx.obsolete_list()?;
            self.move_dead_from(list, born_after, obsolete.id())?;
        }
        let Some(own) = self.remap_deadlist(gone)? else {
            return Ok(());
        };
        let Some(list) = self.remap_deadlist(next)? else {
            return self.move_remapped(gone, next);
        };
        self.merge_deadlist(list, own)?;
        self.forget_remapped(gone)
    }
}
