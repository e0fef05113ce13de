//! Every figure, table and name of a pool counted anew, by the library's own checker.

use millpond::check::{CheckOptions, check_pool};
use millpond_env::sync::Arc;
use millpond_pool::Pool;

/// What is wrong in a pool, a line each.
pub fn faults_of(pool: &Arc<Pool>) -> Vec<String> {
    match check_pool(pool, &CheckOptions::default()) {
        Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}
