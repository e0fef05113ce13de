//! Frees space after a change, before a pool is closed.

use crate::change::change_error;
use millpond_control::{ChangeError, DatasetChange, PoolChange};
use millpond_engine::Pool;
use millpond_pool::PoolError;

/// Upper bound of the txgs synced after a destroy, to free space before the pool is closed. The rest is freed
/// when the pool is opened again.
const FREEING_TXGS_MAX: usize = 64;

/// Whether a change frees space in the background.
pub(super) fn frees_space(change: &PoolChange) -> bool {
    let PoolChange::Dataset(change) = change else {
        return false;
    };
    matches!(
        change,
        DatasetChange::Destroy { .. }
            | DatasetChange::DestroyInOrder { .. }
            | DatasetChange::DestroySnapshots { .. }
            | DatasetChange::Rollback { .. }
            | DatasetChange::AbortReceive { .. }
            | DatasetChange::Release { .. }
    )
}

/// Syncs txgs until the destroyed data is freed, at most [`FREEING_TXGS_MAX`].
pub(super) fn free_in_background(pool: &Pool) -> Result<(), ChangeError> {
    for _ in 0..FREEING_TXGS_MAX {
        let freeing = pool.read_committed(|view| Ok(view.inner().property("freeing")?));
        let is_freeing = match freeing {
            // The change succeeded: what is left to free is not worth an error.
            Err(millpond_engine::Error::Pool(PoolError::ViewExpired { .. })) => true,
            freeing => {
                let value = freeing
                    .map_err(change_error)?
                    .and_then(|property| property.value);
                matches!(value, Some(millpond_pool::properties::PropertyValue::Number(bytes)) if bytes > 0)
            }
        };
        if !is_freeing {
            break;
        }
        pool.sync().map_err(change_error)?;
    }
    Ok(())
}
