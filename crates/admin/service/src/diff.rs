//! Compares states of a file system.

use crate::imported::ImportedPools;
use crate::local::LocalPools;
use millpond_control::{ControlError, DiffQuery, PathChange, PathDifference, escape_path};
use millpond_dataset::DatasetError;
use millpond_engine::{DiffError, DiffFlow, Difference, Error, FileChange, FileKind, View};

fn pool_of(query: &DiffQuery) -> &str {
    query.from.split(['/', '@']).next().unwrap_or_default()
}

fn problem(error: Error) -> ControlError {
    match error {
        Error::Dataset(DatasetError::NotFound { .. }) => ControlError::NoSuchDataset,
        Error::Diff(DiffError::NotEarlier) => ControlError::NotEarlier,
        Error::Diff(DiffError::Locked) => ControlError::Locked,
        other => ControlError::Io(other.to_string()),
    }
}

/// Calls `each` with every difference, until it fails.
fn diff(
    view: &View,
    query: &DiffQuery,
    each: &mut dyn FnMut(PathDifference) -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    let mut passed = Ok(());
    let done = diff_view(view, &query.from, &query.to, &mut |difference| {
        passed = each(difference);
        passed.is_ok()
    });
    passed?;
    done.map_err(problem)
}

/// Calls `each` with every difference between two snapshots in a view, until it returns false.
///
/// # Errors
/// As [`View::diff`].
pub fn diff_view(
    view: &View,
    from: &str,
    to: &str,
    each: &mut dyn FnMut(PathDifference) -> bool,
) -> Result<(), Error> {
    view.diff(from, to, &mut |difference| match each(shown(difference)) {
        true => DiffFlow::Continue(()),
        false => DiffFlow::Break(()),
    })
}

fn shown(difference: Difference) -> PathDifference {
    PathDifference {
        path: escape_path(&difference.path),
        change: match difference.change {
            FileChange::Removed => PathChange::Removed,
            FileChange::Created => PathChange::Created,
            FileChange::Modified { links } => PathChange::Modified { links },
            FileChange::Renamed { to } => PathChange::Renamed {
                to: escape_path(&to),
            },
        },
        kind: match difference.kind {
            FileKind::Fifo => '|',
            FileKind::CharacterDevice => 'C',
            FileKind::Directory => '/',
            FileKind::BlockDevice => 'B',
            FileKind::Regular => 'F',
            FileKind::Symlink => '@',
            FileKind::Socket => '=',
        },
        ctime: (difference.ctime.seconds, difference.ctime.nanoseconds),
    }
}

impl ImportedPools {
    /// Answers [`millpond_control::Request::Diff`]. The current content of a file system includes all changes made
    /// before the call.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn diff(
        &self,
        query: &DiffQuery,
        each: &mut dyn FnMut(PathDifference) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let pool = self.get(pool_of(query)).ok_or(ControlError::NoSuchPool)?;
        if let Some(live) = pool.live().filter(|_| !query.to.contains('@')) {
            live.sync().map_err(problem)?;
        }
        let view = pool.view().map_err(problem)?;
        diff(&view, query, each)
    }
}

impl LocalPools {
    /// Answers [`millpond_control::Request::Diff`].
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn diff(
        &self,
        query: &DiffQuery,
        each: &mut dyn FnMut(PathDifference) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        diff(&self.view(pool_of(query))?, query, each)
    }
}
