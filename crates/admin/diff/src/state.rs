//! One of the two states.

use crate::DiffError;
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;
use millpond_posix::{FileKind, FileSystem, PathFinder, Stat};
use millpond_zap::Zap;

/// A state, and what is remembered of it.
pub(crate) struct State {
    files: Arc<FileSystem>,
    unlinked: Option<Zap>,
    paths: PathFinder,
}

impl State {
    pub(crate) fn new(files: &Arc<FileSystem>) -> Result<Self, DiffError> {
        Ok(Self {
            files: Arc::clone(files),
            unlinked: files.unlinked_set()?,
            paths: PathFinder::new(Arc::clone(files)),
        })
    }

    /// The attributes of a file; `None` if it has no name that users see.
    pub(crate) fn stat(&self, id: ObjectId) -> Result<Option<Stat>, DiffError> {
        let in_file = |error| DiffError::File { id, error };
        let lookup = self.unlinked.as_ref().map(|set| set.lookup_number(id.0));
        let is_unlinked = lookup.transpose().map_err(|error| in_file(error.into()))?;
        if is_unlinked.flatten().is_some() {
            return Ok(None);
        }
        if self.files.shares_id() == Some(id) {
            return Ok(None);
        }
        let node = self.files.node(id).map_err(in_file)?;
        node.stat().map(Some).map_err(in_file)
    }

    /// The paths of files below the root, in their order. What has none is named by its number.
    pub(crate) fn paths(&mut self, ids: &[ObjectId]) -> Result<Vec<Vec<u8>>, DiffError> {
        let paths = self.paths.paths(ids)?;
        let named = ids.iter().zip(paths);
        Ok(named
            .map(|(id, path)| path.unwrap_or_else(|| format!("<object {}>", id.0).into_bytes()))
            .collect())
    }
}

/// The links that are compared: those of a directory follow from its entries.
pub(crate) fn links_of(stat: &Stat) -> i64 {
    match stat.kind {
        FileKind::Directory => 0,
        _ => i64::try_from(stat.links).unwrap_or(i64::MAX),
    }
}
