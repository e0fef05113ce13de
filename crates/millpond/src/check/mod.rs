//! Proving a pool consistent: every block owned once, every figure, table, name and link right.
//!
//! Reads only, and a committed state only: an exported pool, one that crashed, or what a pool open for changes
//! last committed. What each finding means is told in `docs/check.md`.
//!
//! Memory: one bit for each smallest allocation of the metaslabs in use ([`space`]), some 40 bytes for each
//! object of the MOS and for each file of the file systems under way (as many as there are processors), a
//! kilobyte for each dataset, 16 bytes for each deduplicated or cloned block up to two million, and the block
//! cache. Blocks themselves are not remembered: two sets of blocks are compared by sums of hashes.
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

mod blocks;
mod claims;
mod disputes;
mod dsl;
mod features;
mod figures;
mod files;
mod finding;
mod labels;
mod lists;
mod logs;
mod mos;
mod names;
mod objects;
mod owners;
mod report;
mod run;
mod shared;
mod side;
mod space;
mod sums;
mod tables;
mod uses;
mod walk;

pub use finding::{Finding, FindingKind, Severity};
pub use report::{CheckOptions, CheckProgress, CheckReport, CheckTotals};

use crate::{Error, Pool};
use millpond_env::sync::Arc;
use report::Findings;
use sums::Mark;

impl Pool {
    /// Checks everything but content, with all processors. `on_finding` is called as findings come, from several
    /// threads, without paths; the report has those of files.
    ///
    /// # Errors
    /// If the pool's root directory cannot be had: then nothing can be judged. Damage is no error but the
    /// answer.
    pub fn check(
        &self,
        options: &CheckOptions,
        progress: &CheckProgress,
        on_finding: &(dyn Fn(&Finding) + Sync),
    ) -> Result<CheckReport, Error> {
        run::check(self, options, progress, on_finding)
    }
}

/// [`Pool::check`] for a pool that was opened below this crate; keys of encrypted datasets are not known
/// then.
///
/// # Errors
/// As [`Pool::check`].
pub fn check_pool(
    pool: &Arc<millpond_pool::Pool>,
    options: &CheckOptions,
) -> Result<CheckReport, Error> {
    let pool = Pool::of_inner(Arc::clone(pool));
    pool.check(options, &CheckProgress::default(), &|_| {})
}
