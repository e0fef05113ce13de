//! Finds the names of files with unrecoverable blocks.

use millpond_control::{DataError, PoolInfo};
use millpond_engine::{FileSystem, ObjectId, View, references};
use millpond_env::sync::Arc;
use millpond_pool::LoggedError;
use std::collections::{BTreeSet, HashMap};

/// Fills in the data errors of a pool, in every dataset that refers to the block. Damaged files are named by path; other
/// objects, and files that cannot be found, by object id.
pub(super) fn errors(pool: &View, info: &mut PoolInfo) {
    let Ok(mut logged) = pool.inner().logged_errors() else {
        return;
    };
    // Errors since the pool was opened, which are not yet written to the pool's error log.
    let met = pool.inner().store().damaged_blocks().into_iter();
    logged.extend(
        met.map(|block| LoggedError::new(block.address.dataset, &block.address, block.birth)),
    );
    logged.sort_unstable();
    logged.dedup_by(|error, before| is_same(before, error));
    info.error_count = logged.len() as u64;
    let mut seen = BTreeSet::new();
    let mut datasets = HashMap::new();
    let mut looks_left = LOOKS_MAX;
    for error in &logged {
        let are_many = info.errors.len() >= DAMAGED_PATHS_MAX;
        for id in datasets_of(pool, error, &mut looks_left) {
            if !seen.insert((id, error.object)) {
                continue;
            }
            let dataset = datasets.entry(id).or_insert_with(|| damaged(pool, id));
            let files = dataset.files.as_ref().filter(|_| !are_many);
            let path = files.and_then(|files| files.path_of(ObjectId(error.object)).ok()?);
            let of_path = path.as_ref().map(|_| dataset.name.clone());
            let object = match path {
                Some(path) => format!("/{}", String::from_utf8_lossy(&path)),
                None => format!("<{:#x}>", error.object),
            };
            info.errors.push(DataError {
                name: format!("{}:{object}", dataset.name),
                dataset: of_path,
            });
        }
    }
}

/// Whether two errors, of which the first sorts before the other, are of the same block. Head and snapshots may have different
/// blocks at one place of an object. In the older format no birth tells which it is.
fn is_same(before: &LoggedError, error: &LoggedError) -> bool {
    let place = |error: &LoggedError| (error.dataset, error.object, error.level, error.block);
    place(before) == place(error) && (before.birth.is_none() || before.birth == error.birth)
}

/// The datasets that have a damaged block. None if it was freed.
fn datasets_of(pool: &View, error: &LoggedError, looks_left: &mut usize) -> Vec<u64> {
    let known = vec![error.dataset];
    if error.dataset == 0 || error.birth.is_none() || *looks_left == 0 {
        return known;
    }
    let found = references(pool.inner(), error, looks_left);
    match found.datasets.is_empty() {
        true if found.is_partial => known,
        _ => found.datasets.into_iter().map(|id| id.0).collect(),
    }
}

/// The names of files with unrecoverable blocks, as `zpool status -v` lists them for file systems that are not mounted.
#[must_use]
pub fn damaged_files(pool: &View) -> Vec<String> {
    let mut info = PoolInfo::default();
    errors(pool, &mut info);
    info.errors.into_iter().map(|error| error.name).collect()
}

/// In how many datasets damaged blocks are looked for. When all looks are used, the others are named by the head.
const LOOKS_MAX: usize = 20_000;
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
