//! Looks up file paths for findings.

use super::CheckReport;
use millpond_dataset::{Dataset, KeyRing};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_pool::PoolView;
use millpond_posix::FileSystem;

/// Upper bound of the path look-ups. Each one searches the directories above the file.
const PATHS_MAX: usize = 200;

/// Adds paths to the first findings about files that have none yet.
pub(super) fn add_paths(pool: &Arc<PoolView>, keys: &KeyRing, report: &mut CheckReport) {
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
            open = Some((dataset.clone(), file_system(pool, keys, dataset)));
        }
        let Some((_, Some(files))) = &open else {
            continue;
        };
        left -= 1;
        finding.path = files.path_of(ObjectId(object)).ok().flatten();
    }
}

fn file_system(pool: &Arc<PoolView>, keys: &KeyRing, dataset: &str) -> Option<Arc<FileSystem>> {
    let dataset = Dataset::find(pool, dataset).ok()?;
    let key = keys.key_of(dataset.directory()).ok()?;
    FileSystem::open(dataset.object_set(key).ok()?).ok()
}
