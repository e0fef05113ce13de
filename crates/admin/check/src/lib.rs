//! Layer `admin`: checks that every block of a pool has one owner, and that all statistics, tables and links are right.
//!
//! The check only reads, and only a committed state: an exported pool, a pool after a crash, or the last
//! committed txg of a pool open for writing. `docs/check.md` explains the findings.
//!
//! Memory: one bit per smallest allocation of the metaslabs in use (`space`), about 65 bytes per object of
//! the MOS, about 90 bytes per file of the file systems being checked (one per core at a time), a kilobyte per
//! dataset, 16 bytes per deduplicated or cloned block up to two million, and the block cache. Blocks are not
//! stored: two sets of blocks are compared by sums of hashes.
//!
//! ```no_run
//! use millpond_check::{CheckOptions, check_pool};
//! # fn look(pool: &millpond_env::sync::Arc<millpond_pool::PoolView>)
//! # -> Result<(), millpond_dataset::DatasetError> {
//! let report = check_pool(pool, &CheckOptions::default())?;
//! for finding in &report.findings {
//!     eprintln!("{finding}: {}", finding.kind.advice());
//! }
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod block_features;
mod blocks;
mod claims;
mod disputes;
mod dsl;
mod features;
mod files;
mod finding;
mod labels;
mod lists;
mod logs;
mod mos;
mod names;
mod objects;
mod owner_space;
mod report;
mod run;
mod shared;
mod space;
mod space_sums;
mod sums;
mod tables;
mod trees;

pub use finding::{Finding, FindingKind, Severity};
pub use millpond_traverse::Progress;
pub use report::{CheckOptions, CheckReport, CheckTotals};

use millpond_dataset::{DatasetError, KeyRing};
use millpond_env::sync::Arc;
use millpond_pool::PoolView;
use report::Findings;
use sums::Mark;

/// Checks all metadata, with all cores. It does not verify file content. Files of encrypted datasets are
/// checked if `keys` has their keys. `on_finding` is called for each finding, from several threads, without
/// file paths; the report has the paths.
///
/// # Errors
/// If the pool's root directory cannot be read: then nothing can be checked. Damage is not an error; it is
/// part of the report.
pub fn check_with_keys(
    pool: &Arc<PoolView>,
    keys: &KeyRing,
    options: &CheckOptions,
    progress: &Progress,
    on_finding: &(dyn Fn(&Finding) + Sync),
) -> Result<CheckReport, DatasetError> {
    run::check(pool, keys, options, progress, on_finding)
}

/// [`check_with_keys`] without keys, progress and callback.
///
/// # Errors
/// As [`check_with_keys`].
pub fn check_pool(
    pool: &Arc<PoolView>,
    options: &CheckOptions,
) -> Result<CheckReport, DatasetError> {
    let progress = Progress::default();
    check_with_keys(pool, &KeyRing::default(), options, &progress, &|_| {})
}
