//! Finding pools: from devices to labels, from labels to pools, from a pool's configuration to the
//! device of each leaf.
//!
//! The way of an import, each step a function here:
//!
//! 1. [`scan`] searches paths (or [`scan_devices`] takes devices found elsewhere) and reads the four
//!    labels of each: [`Found`].
//! 2. [`find_pools`] groups them into [`PoolCandidate`]s. Each has a configuration pieced together
//!    from its labels, every uberblock whose checksum holds, and what is wrong as far as that can
//!    be known without the pool's own objects ([`ImportCondition`]).
//! 3. [`assemble`] turns a configuration into a vdev tree and gives each leaf its device, by guid
//!    and never by path. The configuration pieced together is good enough to read the meta object
//!    set; the one stored there is then assembled the same way, [trusted](Trust).
//!
//! Nothing here writes, and nothing believed here can do more than make an import fail: the tree is
//! checked again by `millpond_vdev`, every block by its own checksum.
//!
//! Page `docs/format/import.md`; `docs/format/label.md`, `docs/format/uberblock.md` and
//! `docs/format/pool-config.md` for what is read.

mod activity;
mod assemble;
mod cache_file;
mod condition;
mod health;
mod label;
mod pools;
mod scan;
mod uberblocks;

#[cfg(test)]
mod tests;

pub use activity::{ActivityCheck, ActivitySettings, activity_check};
pub use assemble::{AssembledLeaf, Assembly, NodeHealth, Trust, assemble};
pub use cache_file::{CacheFileError, cached_pools, leaf_paths};
pub use condition::{ImportCondition, READ_FEATURES};
pub use health::{VdevAux, VdevState};
pub use label::{LabelFault, LeafLabel, LeafState, read_boot_environment, read_labels};
pub use pools::{PoolCandidate, PoolState, find_pools, pool_from_config};
pub use scan::{Found, FoundLeaf, LabelFaults, ScanOptions, scan, scan_devices};
pub(crate) use uberblocks::diverged_leaves;
pub use uberblocks::{FoundUberblock, Rewind, RewindError, UberblockPlace, read_uberblocks};

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is absent or of another type than pools write.
    #[error("configuration: {0}")]
    Lookup(#[from] millpond_nvlist::LookupError),
    /// A vdev cannot be understood.
    #[error(transparent)]
    Vdev(#[from] millpond_vdev::VdevConfigError),
    /// The tree does not begin with a root vdev.
    #[error("configuration: the tree does not begin with a root vdev")]
    NoRoot,
}
