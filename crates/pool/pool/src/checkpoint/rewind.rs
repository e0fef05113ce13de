//! Rewinding a pool to its checkpoint.
//!
//! The checkpointed state becomes the newest one: its uberblock gets the txg after the newest and the present time,
//! and is written to all labels. That write is the commit of the rewind. Then the pool opens from it like from any
//! other state. The uberblock keeps its checkpoint txg until the next txg, so that also after a crash intent logs
//! end where the checkpoint was taken.
//!
//! Page `docs/format/checkpoint.md`.

use crate::history::append::HistoryEvent;
use crate::import::PoolCandidate;
use crate::sync::context::SyncContext;
use crate::{OpenError, PoolError, PoolView};
use millpond_ondisk::{Txg, Uberblock};

/// The uberblock that makes the checkpointed state of a pool its newest one.
///
/// # Errors
/// [`OpenError::NoCheckpoint`]; if the checkpoint cannot be read.
pub(crate) fn rewound_uberblock(
    newest: &PoolView,
    candidate: &PoolCandidate,
) -> Result<Uberblock, OpenError> {
    let kept = newest.checkpoint()?.ok_or(OpenError::NoCheckpoint)?;
    let last = candidate
        .newest()
        .map_or(*newest.uberblock(), |found| found.uberblock);
    let now_s = newest.env().clock.wall_ns() / 1_000_000_000;
    Ok(Uberblock {
        txg: Txg(last.txg.0.saturating_add(1)),
        timestamp_s: now_s.max(last.timestamp_s.saturating_add(1)),
        checkpoint_txg: kept.txg,
        ..kept
    })
}

impl SyncContext<'_> {
    /// Records that the pool was rewound to the checkpoint of a txg.
    pub(crate) fn note_rewind(&self, kept: Txg) -> Result<(), PoolError> {
        let text = format!("rewound state to txg={kept}");
        self.history(&HistoryEvent::of_pool("checkpoint rewind", text))
    }
}
