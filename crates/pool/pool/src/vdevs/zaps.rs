//! The ZAPs of vdevs, all of which one table of the MOS lists.

use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{ObjectId, ObjectType};

impl SyncContext<'_> {
    /// Creates a ZAP of a vdev.
    pub(crate) fn new_vdev_zap(&self) -> Result<ObjectId, PoolError> {
        let map = match self.directory_object(key::VDEV_ZAP_MAP)? {
            Some(id) => id,
            None => {
                let id = self.create_table(ObjectType::METADATA_ZAP)?;
                self.set_directory_number(key::VDEV_ZAP_MAP, id.0)?;
                id
            }
        };
        let id = self.create_table(ObjectType::METADATA_ZAP)?;
        self.table(map)?
            .insert_number(id.0, id.0)
            .reading("vdev ZAPs")?;
        Ok(id)
    }

    /// Destroys the ZAP of a vdev.
    pub(crate) fn free_vdev_zap(&self, id: ObjectId) -> Result<(), PoolError> {
        if let Some(map) = self.directory_object(key::VDEV_ZAP_MAP)? {
            self.table(map)?.remove_number(id.0).reading("vdev ZAPs")?;
        }
        self.mos().free(self.tx(), id).reading("vdev ZAPs")
    }
}
