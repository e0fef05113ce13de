//! Consistency check of a pool: every block has one owner, and all statistics, tables and links are right.
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
//! # fn main() -> Result<(), millpond::Error> {
//! use millpond::check::{CheckOptions, CheckProgress};
//! use millpond::{OpenOptions, Pool, Search};
//!
//! let pool = Pool::open(&Search::new(["/images"]), "tank", &OpenOptions::default())?;
//! let report = pool.check(&CheckOptions::default(), &CheckProgress::default(), &|_| {})?;
//! for finding in &report.findings {
//!     eprintln!("{finding}: {}", finding.kind.advice());
//! }
//! # Ok(()) }
//! ```

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
pub use report::{CheckOptions, CheckProgress, CheckReport, CheckTotals};

use crate::{Error, Pool};
use millpond_env::sync::Arc;
use report::Findings;
use sums::Mark;

impl Pool {
    /// Checks all metadata, with all cores. It does not verify file content. `on_finding` is called for each
    /// finding, from several threads, without file paths; the report has the paths.
    ///
    /// # Errors
    /// If the pool's root directory cannot be read: then nothing can be checked. Damage is not an error; it
    /// is part of the report.
    pub fn check(
        &self,
        options: &CheckOptions,
        progress: &CheckProgress,
        on_finding: &(dyn Fn(&Finding) + Sync),
    ) -> Result<CheckReport, Error> {
        run::check(self, options, progress, on_finding)
    }
}

/// [`Pool::check`] for a pool that was opened by a lower crate. No keys of encrypted datasets are loaded.
///
/// # Errors
/// As [`Pool::check`].
pub fn check_pool(
    pool: &Arc<millpond_pool::PoolView>,
    options: &CheckOptions,
) -> Result<CheckReport, Error> {
    let pool = Pool::of_inner(Arc::clone(pool));
    pool.check(options, &CheckProgress::default(), &|_| {})
}
