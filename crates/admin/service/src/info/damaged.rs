//! Finds the names of files with unrecoverable blocks.

use millpond_control::{DataError, PoolInfo};
use millpond_engine::{FileSystem, ObjectId, View};
use millpond_env::sync::Arc;
use millpond_pool::LoggedError;
use std::collections::{BTreeSet, HashMap};

/// Fills in the data errors of a pool. Damaged files are named by path; other objects, and files that cannot
/// be found, by object id.
pub(super) fn errors(pool: &View, info: &mut PoolInfo) {
    let Ok(mut logged) = pool.inner().logged_errors() else {
        return;
    };
    // Errors since the pool was opened, which are not yet written to the pool's error log.
    let met = pool.inner().store().damaged_blocks().into_iter();
    logged.extend(met.map(|block| LoggedError {
        dataset: block.address.dataset,
        object: block.address.object.0,
        level: u64::from(block.address.level.0),
        block: block.address.block.0,
        birth: Some(block.birth),
    }));
    logged.sort_unstable();
    let place = |error: &LoggedError| (error.dataset, error.object, error.level, error.block);
    logged.dedup_by_key(|error| place(error));
    info.error_count = logged.len() as u64;
    let mut seen = BTreeSet::new();
    let mut datasets = HashMap::new();
    for error in logged
        .iter()
        .filter(|error| seen.insert((error.dataset, error.object)))
    {
        let id = error.dataset;
        let dataset = datasets.entry(id).or_insert_with(|| damaged(pool, id));
        let are_many = info.errors.len() >= DAMAGED_PATHS_MAX;
        let files = dataset.files.as_ref().filter(|_| !are_many);
        let path = files.and_then(|files| files.path_of(ObjectId(error.object)).ok()?);
        let object = match path {
            Some(path) => format!("/{}", String::from_utf8_lossy(&path)),
            None => format!("<{:#x}>", error.object),
        };
        info.errors.push(DataError {
            name: format!("{}:{object}", dataset.name),
        });
    }
}

/// Upper bound of the damaged files for which a path is looked up. Each look-up reads directories.
const DAMAGED_PATHS_MAX: usize = 10_000;

/// A dataset with damaged objects.
struct Damaged {
    name: String,
    /// Its file system; `None` for volumes, and for locked or destroyed datasets.
    files: Option<Arc<FileSystem>>,
}

fn damaged(pool: &View, id: u64) -> Damaged {
    let dataset = match id {
        0 => None,
        id => Some(pool.dataset_by_id(ObjectId(id))),
    };
    let (name, files) = match dataset {
        None => ("<metadata>".to_owned(), None),
        Some(Err(_)) => (format!("<{id:#x}>"), None),
        Some(Ok(dataset)) => (dataset.name().to_owned(), dataset.file_system().ok()),
    };
    Damaged { name, files }
}
