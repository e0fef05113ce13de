//! References that intent logs have to blocks until the logs end.
//!
//! A clone record of a committed txg may outlive its block. Another block can then have its place, with a later birth. The clone
//! table counts by place, so it cannot tell whose a reference is. If frees of the later block released what the log
//! holds, that block would leak, and the end of the log would free the extent of the old one.
//!
//! Page `docs/format/intent-log.md`, "Claiming".

use crate::sync::context::SyncContext;
use millpond_ondisk::{BlockPointer, Txg, VdevId};
use std::collections::BTreeMap;

/// What intent logs hold, by place and the physical birth of the block. Two blocks that have the same place one after the
/// other have different births: only blocks of committed txgs are cloned.
#[derive(Debug, Default)]
pub(crate) struct LogHolds {
    held: BTreeMap<(VdevId, u64, Txg), Held>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    count: u64,
    /// Deflated size of the block.
    bytes: u64,
}

/// References at the place of a block that belong to blocks that were there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Earlier {
    pub(super) count: u64,
    /// Deflated size of the last of these blocks.
    pub(super) last_bytes: u64,
}

impl LogHolds {
    fn add(&mut self, pointer: &BlockPointer, bytes: u64) {
        let Some((vdev, offset)) = pointer.first_address() else {
            return;
        };
        let place = (vdev, offset, pointer.physical_birth());
        let held = self.held.entry(place).or_insert(Held { count: 0, bytes });
        held.count = held.count.saturating_add(1);
    }

    /// Notes that a reference to the block was released.
    ///
    /// It may be that of a file. That does no harm: while the log refers to the block, no other takes its place.
    pub(crate) fn release(&mut self, pointer: &BlockPointer) {
        let Some((vdev, offset)) = pointer.first_address().filter(|_| !self.held.is_empty()) else {
            return;
        };
        let place = (vdev, offset, pointer.physical_birth());
        if let Some(held) = self.held.get_mut(&place) {
            held.count = held.count.saturating_sub(1);
            if held.count == 0 {
                self.held.remove(&place);
            }
        }
    }

    pub(super) fn before(&self, pointer: &BlockPointer) -> Earlier {
        let Some((vdev, offset)) = pointer.first_address().filter(|_| !self.held.is_empty()) else {
            return Earlier::default();
        };
        let until = (vdev, offset, pointer.physical_birth());
        let earlier = self.held.range((vdev, offset, Txg(0))..until);
        earlier.fold(Earlier::default(), |sum, (_, held)| Earlier {
            count: sum.count.saturating_add(held.count),
            last_bytes: held.bytes,
        })
    }
}

impl SyncContext<'_> {
    /// Notes that an intent log has a reference to a block until the log ends. This txg or an earlier one added it.
    pub fn hold_for_log(&self, pointer: &BlockPointer) {
        if !pointer.is_hole() && !pointer.is_embedded() {
            let bytes = self.deflated_bytes(pointer);
            self.pool.log_holds.lock().add(pointer, bytes);
        }
    }
}
