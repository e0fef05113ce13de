//! Looks up file paths for findings.

use super::CheckReport;
use crate::Pool;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_posix::FileSystem;

/// Upper bound of the path look-ups. Each one searches the directories above the file.
const PATHS_MAX: usize = 200;

/// Adds paths to the first findings about files that have none yet.
pub(super) fn add_paths(pool: &Pool, report: &mut CheckReport) {
    let mut open: Option<(String, Option<Arc<FileSystem>>)> = None;
    let mut left = PATHS_MAX;
    for finding in &mut report.findings {
        let (Some(dataset), Some(object)) = (&finding.dataset, finding.object) else {
            continue;
        };
        if finding.path.is_some() || left == 0 {
            continue;
        }
        if open.as_ref().is_none_or(|(name, _)| name != dataset) {
            let files = pool.dataset(dataset).and_then(|found| found.file_system());
            open = Some((dataset.clone(), files.ok()));
        }
        let Some((_, Some(files))) = &open else {
            continue;
        };
        left -= 1;
        finding.path = files.path_of(ObjectId(object)).ok().flatten();
    }
}
