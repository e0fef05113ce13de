//! Checks whether a pool may be opened for writing, and lists all reasons against it.
//!
//! Page `docs/format/features.md`, "What keeps a pool from being written".

use crate::features::UnsupportedFeature;
use crate::{PoolError, PoolView};
use millpond_ondisk::{BlockPointer, Txg, VdevId};
use millpond_vdev::{Health, LeafHealth, VdevKind, VdevType};

/// Why a pool can be opened for reading only: all reasons, at least one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the pool cannot be written to: {}", list(reasons))]
pub struct WhyReadOnly {
    /// Reasons from features first, then from the pool's state, then from its layout.
    pub reasons: Vec<ReadOnlyReason>,
}

fn list(reasons: &[ReadOnlyReason]) -> String {
    let words: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    words.join("; ")
}

/// A reason why a pool cannot be opened for writing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadOnlyReason {
    /// An active feature is unknown, or supported for reading only.
    #[error("feature {} is in use", .0.guid)]
    Feature(UnsupportedFeature),
    /// A top-level vdev is missing.
    #[error("vdev {0} is not there")]
    MissingVdev(VdevId),
    /// A dataset's intent log contains acknowledged writes that are not yet in the dataset. The dataset
    /// layer reports this, never [`check_writable`].
    #[error("the intent log of {dataset} was not replayed")]
    IntentLog {
        /// The dataset.
        dataset: String,
    },
}

/// Why [`check_writable`] did not succeed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WritabilityError {
    /// The pool can be opened for reading only.
    #[error(transparent)]
    ReadOnly(#[from] WhyReadOnly),
    /// The pool's objects could not be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Checks whether the write path supports everything in a pool.
///
/// Intent logs are not checked: they belong to datasets, which this layer does not know.
///
/// # Errors
/// [`WhyReadOnly`] with all reasons, or [`PoolError`] if one of the objects checked cannot be read.
pub fn check_writable(pool: &PoolView) -> Result<(), WritabilityError> {
    let mut reasons = Vec::new();
    let features = pool.features().unwritable().into_iter();
    reasons.extend(features.map(ReadOnlyReason::Feature));
    for (id, top) in (0u32..).map(VdevId).zip(&pool.assembly().root.children) {
        if top.kind == VdevType::Missing {
            reasons.push(ReadOnlyReason::MissingVdev(id));
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(WhyReadOnly { reasons }.into())
    }
}

impl PoolView {
    /// Whether every device is there that may have a copy of a block, or a part of one.
    #[must_use]
    pub fn has_devices_of(&self, pointer: &BlockPointer) -> bool {
        let topology = self.store().topology();
        pointer.dvas().all(|dva| {
            let top = topology.tree.top(dva.vdev);
            // The bytes of such a block are on other vdevs.
            let is_elsewhere = dva.is_gang || top.is_none_or(|top| top.kind == VdevKind::Indirect);
            topology.tree.leaves().all(|(leaf, node)| {
                let may_have_it = is_elsewhere || node.top == Some(dva.vdev);
                !may_have_it || topology.leaf(leaf, Txg(u64::MAX)) != LeafHealth::Unreadable
            })
        })
    }
}
