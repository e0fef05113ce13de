//! The changing side of a pool: making new pools, and committing what changed.
//!
//! Pages `docs/format/label.md`, `docs/format/pool-config.md`, `docs/format/features.md`.

mod config;
mod features;
mod labels;
mod may_write;

pub use config::{PoolConfig, auxiliary_label_list};
pub use features::{
    FeatureChange, FeatureChoice, FeatureCounts, FeatureEdit, FeatureError, POOL_VERSION_FEATURES,
    demand_written, features_of_new_pool, is_enabled_by_default,
};
pub use labels::{
    Cleared, Commit, CommitError, CommitReport, LabelError, LabelHalf, LeafWrite, RoundReport,
    all_tops, clear_labels, commit, flush, next_uberblock, write_auxiliary_labels,
    write_initial_labels, write_labels, write_uberblock,
};
pub use may_write::{MayWriteError, ReadOnlyReason, WhyReadOnly, may_write};
