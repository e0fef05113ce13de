//! Discards a checkpoint to the end.

use millpond_control::ChangeError;
use millpond_engine::Pool;

/// Frees everything that a discarded checkpoint kept, in a pool that this process opened for one command.
pub(crate) fn discard_to_end(pool: &Pool) -> Result<(), ChangeError> {
    while pool.inner().has_more_to_discard() {
        pool.inner().sync()?;
    }
    Ok(())
}
