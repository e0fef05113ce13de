//! Checks all counters, tables and names of a pool with the library's own checker.

use millpond_check::{CheckOptions, CheckReport, Finding, FindingKind, Progress, check_pool};
use millpond_engine::View;
use millpond_env::sync::Arc;
use millpond_pool::PoolView;
use std::fmt::Display;

/// The errors in a pool, one per line.
pub fn faults_of(pool: &Arc<PoolView>) -> Vec<String> {
    faults(check_pool(pool, &CheckOptions::default()), &|_| true)
}

/// Like [`faults_of`], for a pool after a power cut.
///
/// Half of its labels may be torn. A volume that was being shrunk may still own blocks beyond its end; they
/// are never read, and are freed when the volume is opened for changes or resized. Datasets whose key is loaded are
/// checked completely.
pub fn faults_after_a_cut(pool: &View) -> Vec<String> {
    let report = pool.check(&CheckOptions::default(), &Progress::default(), &|_| {});
    faults(report, &|finding| {
        !matches!(finding.kind, FindingKind::Label | FindingKind::VolumeTail)
    })
}

fn faults<E: Display>(
    report: Result<CheckReport, E>,
    counts: &dyn Fn(&Finding) -> bool,
) -> Vec<String> {
    match report {
        Ok(report) => {
            let findings = report.findings.iter();
            let counted = findings.filter(|finding| counts(finding));
            counted.map(ToString::to_string).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}
