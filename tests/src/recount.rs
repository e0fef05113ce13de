//! Every figure, table and name of a pool counted anew, by the library's own checker.

use millpond::check::{CheckOptions, Finding, FindingKind, check_pool};
use millpond_env::sync::Arc;
use millpond_pool::Pool;

/// What is wrong in a pool, a line each.
pub fn faults_of(pool: &Arc<Pool>) -> Vec<String> {
    faults(pool, &|_| true)
}

/// As [`faults_of`], for a pool that a power cut has ended: half of its labels may be torn,
/// and a volume that was being made smaller may still own what lies behind its end (nobody
/// reads that, and it is freed when the volume is opened for changes, or resized).
pub fn faults_after_a_cut(pool: &Arc<Pool>) -> Vec<String> {
    faults(pool, &|finding| {
        !matches!(finding.kind, FindingKind::Label | FindingKind::VolumeTail)
    })
}

fn faults(pool: &Arc<Pool>, counts: &dyn Fn(&Finding) -> bool) -> Vec<String> {
    match check_pool(pool, &CheckOptions::default()) {
        Ok(report) => {
            let findings = report.findings.iter();
            let counted = findings.filter(|finding| counts(finding));
            counted.map(ToString::to_string).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}
