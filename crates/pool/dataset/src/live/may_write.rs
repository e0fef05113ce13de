//! What keeps the datasets of a pool from being written.

use crate::DatasetError;
use crate::Directory;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectType;
use millpond_pool::{Pool, PoolError};

/// Looks at every live dataset.
///
/// # Errors
/// [`PoolError::Unsupported`] for an intent log that was not replayed, which is neither replayed nor
/// claimed here yet, and for deadlists of pools before version 26.
pub(crate) fn may_write(pool: &Arc<Pool>) -> Result<(), PoolError> {
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
        // Word 3 on is the pointer to the log's first block.
        let log = millpond_ondisk::BlockPointer {
            words: log_pointer_words(&set.phys().intent_log_header),
        };
        if !log.is_hole() {
            return Err(PoolError::Unsupported {
                what: "writing to a pool with an intent log that was not replayed",
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
    Ok(())
}

fn log_pointer_words(header: &[u64; 24]) -> [u64; 16] {
    let mut words = [0; 16];
    for (word, from) in words.iter_mut().zip(header.iter().skip(3)) {
        *word = *from;
    }
    words
}
