//! Error logs in the older form become logs by head, when that feature is enabled.

use crate::error::Reading;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::{LoggedError, PoolError, PoolView};
use millpond_block::BlockAddress;
use millpond_env::sync::Arc;
use millpond_object::{Accounting, ObjectError, ObjectSetView};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{
    BlockPointer, DslDatasetPhys, DslDirectoryPhys, ObjectId, ObjectType, SPILL_BLOCK_ID,
};
use std::collections::BTreeSet;

const WHAT: &str = "error log";
const LOGS: [&str; 2] = [key::ERROR_LOG_LAST, key::ERROR_LOG_SCRUB];

impl PoolView {
    /// The pointer to a block, in the object set at `root`. `None` if there is none: the object is gone, or the block
    /// belongs to an intent log, whose blocks are soon freed.
    ///
    /// # Errors
    /// If a block above it cannot be read.
    pub fn find_pointer(
        &self,
        address: BlockAddress,
        root: BlockPointer,
    ) -> Result<Option<BlockPointer>, ObjectError> {
        if address == BlockAddress::object_set(address.dataset) {
            return Ok(Some(root));
        }
        if address.is_log_block() || root.is_hole() {
            return Ok(None);
        }
        let store = Arc::clone(self.store());
        let set = ObjectSetView::open(store, address.dataset, root, None)?;
        let accounting = match address.object {
            ObjectId::USER_USED => Some(Accounting::User),
            ObjectId::GROUP_USED => Some(Accounting::Group),
            ObjectId::PROJECT_USED => Some(Accounting::Project),
            _ => None,
        };
        let object = match (address.object, accounting) {
            (ObjectId(0), _) => set.meta_object(),
            (_, Some(which)) => match set.accounting(which) {
                Some(object) => object,
                None => return Ok(None),
            },
            (id, None) => match set.object(id) {
                Err(ObjectError::NotFound { .. }) => return Ok(None),
                found => found?,
            },
        };
        if address.block == SPILL_BLOCK_ID {
            return Ok(object.dnode().spill);
        }
        if address.level.0 >= object.dnode().levels || address.block > object.block_id_max() {
            return Ok(None);
        }
        object.pointer(address.level, address.block).map(Some)
    }

    /// The entry by head for one in the older form. `None` if its block cannot be found any more.
    fn by_head(&self, error: &LoggedError) -> Option<LoggedError> {
        let mut head = error.dataset;
        let mut root = self.uberblock().root;
        if head != 0 {
            let object = self.mos().object(ObjectId(error.dataset)).ok()?;
            if object.dnode().bonus_type != ObjectType::DSL_DATASET {
                return None;
            }
            let phys = DslDatasetPhys::decode(object.bonus().ok()?, object.dnode().endian).ok()?;
            let directory = self.mos().object(phys.directory).ok()?;
            let endian = directory.dnode().endian;
            let directory = DslDirectoryPhys::decode(directory.bonus().ok()?, endian).ok()?;
            head = directory.head_dataset?.0;
            root = phys.block_pointer;
        }
        let pointer = self.find_pointer(error.address(error.dataset), root);
        let pointer = pointer.ok().flatten().filter(|found| !found.is_hole())?;
        Some(LoggedError {
            dataset: head,
            birth: Some(pointer.physical_birth()),
            ..*error
        })
    }
}

/// The entries of both logs by head.
pub(crate) type Converted = [BTreeSet<LoggedError>; 2];

impl Pool {
    /// Finds the blocks of logs in the older form. `None` if they have the newer one.
    pub(crate) fn errors_by_head(&self) -> Result<Option<Converted>, PoolError> {
        let view = self.committed()?;
        if view.has_logs_by_head() {
            return Ok(None);
        }
        let mut converted = Converted::default();
        for (name, errors) in LOGS.iter().zip(&mut converted) {
            if let Some(id) = view.find_directory_object(name)? {
                view.read_error_log(id, &mut |error| errors.extend(view.by_head(&error)))?;
            }
        }
        Ok(Some(converted))
    }
}

impl SyncContext<'_> {
    /// Replaces the logs, if they have become logs by head. Entries whose blocks were not found are dropped.
    pub(crate) fn replace_error_logs(
        &self,
        converted: Option<&Converted>,
    ) -> Result<(), PoolError> {
        let Some(converted) = converted.filter(|_| self.logs_by_head()) else {
            return Ok(());
        };
        for (name, errors) in LOGS.into_iter().zip(converted) {
            if let Some(old) = self.directory_object(name)? {
                self.mos().free(self.tx(), old).reading(WHAT)?;
                self.set_directory_number(name, 0)?;
                self.log_errors(name, errors)?;
            }
        }
        Ok(())
    }
}
