//! Finds pools: labels on devices, pools from labels, and the device of each leaf in a pool's
//! configuration.
//!
//! An import takes these steps, each a function of this module:
//!
//! 1. [`scan`] searches paths, or [`scan_devices`] takes devices found elsewhere, and reads the four labels
//!    of each: [`Found`].
//! 2. [`find_pools`] groups the labels into [`PoolCandidate`]s. Each has a configuration assembled from its
//!    labels, every uberblock with a valid checksum, and the problems that can be detected without the
//!    pool's own objects ([`ImportCondition`]).
//! 3. [`assemble`] turns a configuration into a vdev tree and assigns each leaf its device, by guid and
//!    never by path. The configuration from the labels is sufficient to read the meta object set. The
//!    configuration stored there is then assembled the same way, as [trusted](Trust).
//!
//! Nothing here writes. Wrong input can only make an import fail: `millpond_vdev` validates the tree again,
//! and every block has its own checksum.
//!
//! Page `docs/format/import.md`; for the structures read: `docs/format/label.md`,
//! `docs/format/uberblock.md` and `docs/format/pool-config.md`.

mod activity;
mod assemble;
mod cache_file;
mod condition;
mod copies;
mod health;
mod label;
mod older_tops;
mod pools;
mod scan;
mod uberblocks;

#[cfg(test)]
mod tests;

pub(crate) use activity::WATCH_MAX_NS;
pub use activity::{ActivityCheck, ActivitySettings, activity_check};
pub use assemble::{AssembledLeaf, Assembly, NodeHealth, Trust, assemble};
pub use cache_file::{CacheFileError, cached_pools, leaf_paths};
pub use condition::{ImportCondition, READ_FEATURES};
pub use health::{VdevAux, VdevState};
pub(crate) use label::is_region_intact;
pub use label::{LabelFault, LeafLabel, LeafState, read_boot_environment, read_labels};
pub use older_tops::OlderTop;
pub use pools::{PoolCandidate, PoolState, find_pools, pool_from_config};
pub use scan::{Found, FoundLeaf, LabelFaults, ScanOptions, scan, scan_devices};
pub use uberblocks::{FoundUberblock, Rewind, RewindError, UberblockPlace, read_uberblocks};
pub(crate) use uberblocks::{RingUberblock, States, TXGS_KEPT, states};

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is absent or has the wrong type.
    #[error("configuration: {0}")]
    Lookup(#[from] millpond_nvlist::LookupError),
    /// A vdev is malformed.
    #[error(transparent)]
    Vdev(#[from] millpond_vdev::VdevConfigError),
    /// The tree does not start with a root vdev.
    #[error("configuration: the tree does not begin with a root vdev")]
    NoRoot,
}
