//! What open datasets keep open.

use crate::{Error, Pool};
use millpond_engine::View;

/// Keeps the pool of a dataset, file system or volume open, and the blocks of a committed state from being reused.
///
/// Without it a live file system would end with the last [`Pool`]: what was written and not committed would be
/// lost.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    _pool: Pool,
    view: Option<View>,
}

impl Pin {
    /// For what changes with the pool.
    pub fn live(pool: &Pool) -> Self {
        Self {
            _pool: pool.clone(),
            view: None,
        }
    }

    /// For what belongs to a committed state.
    pub fn committed(pool: &Pool, view: View) -> Self {
        Self {
            _pool: pool.clone(),
            view: Some(view),
        }
    }

    pub fn is_committed(&self) -> bool {
        self.view.is_some()
    }

    /// The error of a read, or that the view expired: what was read may then be something else.
    pub fn explained(&self, error: Error) -> Error {
        let expired = |view: &View| view.inner().check_not_expired().err();
        let expired = self.view.as_ref().and_then(expired);
        expired.map_or(error, Error::from)
    }
}
