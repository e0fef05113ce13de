//! Checks whether the datasets of a pool can be written.

use crate::DatasetError;
use crate::Directory;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::keys::resume;
use millpond_ondisk::{DslDatasetFlags, IntentLogHeader, ObjectId, Txg};
use millpond_pool::{BLOCK_CLONING, PoolError, PoolView};
use millpond_pool::{FoundLog, FoundLogs};

/// An intent log found in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadLogFound {
    /// The file system's or volume's name.
    pub(crate) name: String,
    /// The head.
    pub(crate) dataset: ObjectId,
    /// Whether the head is encrypted, so that only the header can be written.
    pub(crate) is_locked: bool,
    /// Whether its records are lost or not wanted.
    pub(crate) is_given_up: bool,
    pub(crate) header: IntentLogHeader,
    pub(crate) log: FoundLog,
}

/// The results of checking every live dataset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Intent logs.
    pub(crate) logs: Vec<HeadLogFound>,
    /// Full names of datasets with an unfinished receive that cannot be resumed.
    pub(crate) half_received: Vec<String>,
}

/// Checks every live dataset, including temporary ones.
///
/// A head whose object set is lost is left out, so that the rest of the pool can be written and repaired. Its error is in the
/// pool's log as that of any block that is read, and opening it fails. Nothing tells where its intent log is. So the log is not
/// claimed, and later writes may take the space of its blocks.
///
/// # Errors
/// [`PoolError::Unsupported`] for a log that cloned blocks in a pool without that feature. Another error if a device with blocks of a log is missing.
pub(crate) fn check_writable(pool: &Arc<PoolView>, choice: FoundLogs) -> Result<Found, PoolError> {
    let mut found = Found::default();
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
        let is_partial = head.phys().flags.contains(DslDatasetFlags::INCONSISTENT);
        if is_partial {
            let resumable = head.extension(resume::TO_GUID).map_err(failed)?;
            if resumable.is_none() {
                found.half_received.push(directory.name().to_owned());
            }
        }
        if head.phys().block_pointer.is_hole() {
            continue;
        }
        let set = match head.object_set(None) {
            // A missing device may have the right copy: then nothing may be written.
            Err(error) if error.is_damaged() && pool.has_devices_of(&head.phys().block_pointer) => {
                mark::hit("head-without-object-set");
                continue;
            }
            set => set.map_err(failed)?,
        };
        let header = IntentLogHeader::from_words(&set.phys().intent_log_header);
        if header.has_chain() && !is_partial {
            // After a rewind to a checkpoint, no space map contains what was born after it.
            let kept = pool.uberblock().checkpoint_txg;
            let is_rewound = kept != Txg(0);
            let last = if is_rewound {
                kept
            } else {
                pool.uberblock().txg
            };
            let first = Txg(last.0.saturating_add(1));
            let is_locked = head.phys().block_pointer.has_crypt_bit();
            let choice = match choice {
                FoundLogs::DiscardLocked if is_locked => FoundLogs::Discard,
                choice => choice,
            };
            let (store, dataset) = (pool.store(), set.dataset());
            let mut log = FoundLog::read(store, dataset, &header, first, choice)?;
            // The end of a claimed log is known, and cannot be moved to the missing block.
            let is_unreachable = log.is_lost && header.claim_txg != Txg(0);
            let is_given_up = is_unreachable || choice == FoundLogs::Discard;
            if is_rewound && header.claim_txg == Txg(0) {
                log.end_before(first);
            }
            if log.has_clones && !is_given_up && pool.features().count(BLOCK_CLONING).is_none() {
                return Err(PoolError::Unsupported {
                    what: "cloning in an intent log of a pool without the feature block_cloning",
                });
            }
            found.logs.push(HeadLogFound {
                name: directory.name().to_owned(),
                dataset: ObjectId(set.dataset()),
                is_locked,
                is_given_up,
                header,
                log,
            });
        }
    }
    Ok(found)
}
