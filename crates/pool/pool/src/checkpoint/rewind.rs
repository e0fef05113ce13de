//! Rewinding a pool to its checkpoint, or to an older uberblock.
//!
//! The older state becomes the newest one: its uberblock gets a txg after the newest and the present time, and is written
//! to all labels. That write is the commit of the rewind. Then the pool opens from it like from any other state.
//!
//! The uberblock of a checkpoint keeps its checkpoint txg until the next txg, so that also after a crash intent logs end
//! where the checkpoint was taken.
//!
//! Pages `docs/format/checkpoint.md` and `docs/format/commit-order.md`.

use crate::history::append::HistoryEvent;
use crate::import::{PoolCandidate, TXGS_KEPT};
use crate::sync::context::SyncContext;
use crate::{OpenError, OpenOptions, PoolError, PoolView};
use millpond_ondisk::{Txg, Uberblock};

/// The uberblock that makes a state of a pool its newest one: that of the checkpoint if `options` ask for it, otherwise
/// `found`, if newer states are given up for it. `None` if the pool is not rewound.
///
/// # Errors
/// [`OpenError::NoCheckpoint`]; if the checkpoint cannot be read.
pub(crate) fn rewound_uberblock(
    found: &PoolView,
    candidate: &PoolCandidate,
    options: &OpenOptions,
) -> Result<Option<Uberblock>, OpenError> {
    let own = *found.uberblock();
    let last = candidate.newest().map_or(own, |newest| newest.uberblock);
    let (kept, txg) = if options.at_checkpoint {
        let kept = found.checkpoint()?.ok_or(OpenError::NoCheckpoint)?;
        let kept = Uberblock {
            checkpoint_txg: kept.txg,
            ..kept
        };
        (kept, last.txg.0.saturating_add(1))
    } else if last.txg > own.txg {
        // Space of the states that are given up is overwritten soon: they must not count as recent ones (`-F`).
        (own, last.txg.0.saturating_add(TXGS_KEPT).saturating_add(1))
    } else {
        return Ok(None);
    };
    let now_s = found.env().clock.wall_ns() / 1_000_000_000;
    Ok(Some(Uberblock {
        txg: Txg(txg),
        timestamp_s: now_s.max(last.timestamp_s.saturating_add(1)),
        ..kept
    }))
}

impl SyncContext<'_> {
    /// Records that the pool was rewound to the checkpoint of a txg.
    pub(crate) fn note_rewind(&self, kept: Txg) -> Result<(), PoolError> {
        let text = format!("rewound state to txg={kept}");
        self.history(&HistoryEvent::of_pool("checkpoint rewind", text))
    }
}
