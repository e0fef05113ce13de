//! What keeps the datasets of a pool from being written.

use crate::DatasetError;
use crate::Directory;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, DslDatasetFlags, IntentLogHeader, ObjectType, Txg};
use millpond_pool::live::FoundLog;
use millpond_pool::{Pool, PoolError};

/// An intent log that holds nothing but the space of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EmptyLog {
    /// The file system's or volume's name.
    pub(crate) name: String,
    /// Its blocks that the space maps know.
    pub(crate) blocks: Vec<BlockPointer>,
}

/// Looks at every live dataset. Returns logs without records, as datasets have them that were closed in
/// good order after synchronous writes.
///
/// # Errors
/// [`PoolError::Unsupported`] for an intent log that was not replayed, which is neither replayed nor
/// claimed here yet, and for deadlists of pools before version 26.
pub(crate) fn may_write(pool: &Arc<Pool>) -> Result<Vec<EmptyLog>, PoolError> {
    let mut empty = vec![];
    let failed = |error: DatasetError| match error {
        DatasetError::Pool(error) => error,
        other => PoolError::Suspended {
            reason: other.to_string(),
        },
    };
    let mut open = vec![Directory::root(pool).map_err(failed)?];
    while let Some(directory) = open.pop() {
        for (name, id) in directory.child_entries().map_err(failed)? {
            open.push(directory.open_child(&name, id).map_err(failed)?);
        }
        let Some(head) = directory.head().map_err(failed)? else {
            continue;
        };
        if head.phys().block_pointer.is_hole() {
            continue;
        }
        let set = head.object_set(None).map_err(failed)?;
        let header = IntentLogHeader::from_words(&set.phys().intent_log_header);
        let is_partial = head.phys().flags.contains(DslDatasetFlags::INCONSISTENT);
        if header.has_chain() && !is_partial {
            let first = Txg(pool.uberblock().txg.0.saturating_add(1));
            let found = FoundLog::read(pool.store(), set.dataset(), &header, first)?;
            // Without its key an encrypted dataset cannot be written, not even to let its log go.
            if found.has_records || header.log.has_crypt_bit() {
                return Err(PoolError::Unsupported {
                    what: "writing to a pool with an intent log that was not replayed",
                });
            }
            empty.push(EmptyLog {
                name: directory.name().to_owned(),
                blocks: found.allocated,
            });
        }
        for dataset in std::iter::once(&head).chain(&head.snapshots().map_err(failed)?) {
            let Some(deadlist) = dataset.phys().deadlist else {
                continue;
            };
            let object = pool.mos().object(deadlist);
            let object = object.map_err(|error| PoolError::Object {
                what: "deadlist",
                error,
            })?;
            if object.dnode().object_type == ObjectType::BPOBJ {
                return Err(PoolError::Unsupported {
                    what: "writing to a pool with deadlists from before version 26",
                });
            }
        }
    }
    Ok(empty)
}
