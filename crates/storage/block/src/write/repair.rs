//! Repairs: overwrites wrong bytes once a read has found the right ones.
//!
//! A repair goes to the address of a block that is being read. Meanwhile the block may be freed and its
//! space allocated to another block. So a repair is written only if no freed space became available since
//! the read began, and none becomes available until it is written ([`BlockStore::space_is_reusable`]).
//!
//! A reader may have had its pointer for longer ([`PointerValidity::MaybeOutdated`]). Then its block counts as one of the
//! pool only if the newest state still has it when the read is done. And if the txg of its birth is not committed, nothing
//! is repaired: the sync may overwrite the block in a later pass.

use super::heal::is_right_now;
use crate::damage::PointerValidity;
use crate::io_stats::IoClass;
use crate::io_watch::time_write;
use crate::topology::Topology;
use crate::unflushed::{Content, Ended};
use crate::{BlockAddress, BlockStore, CopyFailure};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dva, Txg};
use millpond_vdev::{Blame, BlameReason, BlockPiece, BlockRange, LeafId, Resolved, block_pieces};

/// What was known of a block when its read began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadStart<'a> {
    /// Its physical birth.
    pub(crate) birth: Txg,
    /// [`Writing::reuses`](super::flush::Writing::reuses).
    pub(crate) since: u64,
    pub(crate) validity: PointerValidity<'a>,
}

impl BlockStore {
    /// Counts the errors that a successful read met, and repairs what was wrong, unless the block may have left the pool.
    pub(crate) fn mend(
        &self,
        topology: &Topology,
        resolved: &Resolved,
        address: Option<BlockAddress>,
        start: ReadStart<'_>,
    ) {
        if resolved.liars.is_empty() && resolved.repairs.is_empty() {
            return;
        }
        let since = self.count_met(topology, &resolved.liars, address, start);
        self.repair(topology, resolved, start.birth, since);
    }

    /// Counts the errors that a successful read met. Wrong bytes count only if the block is known to be part of the pool.
    /// Returns the number of reuses that repairs depend on, if it may be repaired.
    pub(crate) fn count_met(
        &self,
        topology: &Topology,
        blames: &[Blame],
        address: Option<BlockAddress>,
        start: ReadStart<'_>,
    ) -> Option<u64> {
        let PointerValidity::MaybeOutdated(is_in_newest_state) = start.validity else {
            self.count_errors(topology, blames, address);
            return Some(start.since);
        };
        // Before the question: space that is freed after the answer is reusable only once the number has risen.
        let since = self.writing.reuses();
        if start.birth <= self.writing.committed() && is_in_newest_state() {
            self.count_errors(topology, blames, address);
            return Some(since);
        }
        mark::hit("outdated-read-repairs-nothing");
        let of_devices = blames.iter().copied();
        let of_devices = of_devices.filter(|blame| blame.reason != BlameReason::Checksum);
        self.count_errors(topology, &of_devices.collect::<Vec<_>>(), address);
        None
    }

    /// Writes what leaves should have held, if repairs are enabled. A failed repair is counted against the
    /// leaf, whose bytes stay wrong; the read succeeds anyway.
    fn repair(&self, topology: &Topology, resolved: &Resolved, birth: Txg, since: Option<u64>) {
        let Some(since) = since.filter(|since| self.may_repair(*since)) else {
            return;
        };
        for repair in &resolved.repairs {
            let (leaf, offset_bytes) = (repair.leaf, repair.offset_bytes);
            let mut blames = resolved.liars.iter().filter(|blame| blame.leaf == leaf);
            let were_bytes_wrong = blames.all(|blame| blame.reason == BlameReason::Checksum);
            if were_bytes_wrong && is_right_now(topology, leaf, offset_bytes, &repair.data) {
                continue;
            }
            let write = || write_over(topology, leaf, offset_bytes, &repair.data, birth);
            if !self.write_repair(since, write) {
                return;
            }
        }
    }

    /// Writes a repair, unless space became reusable since the read began: looking at the bytes once more, and waiting for
    /// other repairs, takes time. Returns whether repairs may go on.
    fn write_repair(&self, since: u64, write: impl FnOnce()) -> bool {
        let _not_reused = self.writing.lock_repairs();
        let may_repair = self.may_repair(since);
        if may_repair {
            write();
        }
        may_repair
    }

    /// Whether a read that began when [`Writing::reuses`](super::flush::Writing::reuses) was `since` may
    /// repair.
    fn may_repair(&self, since: u64) -> bool {
        if !self.writing.is_repairing() {
            return false;
        }
        let is_current = self.writing.reuses() == since;
        if !is_current {
            mark::hit("late-repair-dropped");
        }
        is_current
    }

    /// Rewrites the stored bytes of a block at the addresses that failed, if repairs are enabled. Gang
    /// addresses are skipped: their pieces are repaired when they are read.
    pub(crate) fn repair_copies(
        &self,
        topology: &Topology,
        pointer: &BlockPointer,
        stored: &[u8],
        failures: &[CopyFailure],
        since: Option<u64>,
    ) {
        let Some(since) = since.filter(|since| self.may_repair(*since)) else {
            return;
        };
        for CopyFailure { dva, .. } in failures {
            let Dva {
                vdev,
                offset_bytes,
                is_gang,
                ..
            } = *dva;
            if is_gang {
                continue;
            }
            let range = BlockRange {
                vdev,
                offset_bytes,
                size_bytes: stored.len() as u64,
                birth: pointer.physical_birth(),
            };
            let pieces = block_pieces(&topology.tree, &topology.indirect, range);
            for piece in pieces.unwrap_or_default() {
                if !self.write_repair(since, || repair_piece(topology, stored, &piece)) {
                    return;
                }
            }
        }
    }
}

/// Rewrites a piece of a block on all leaves.
fn repair_piece(topology: &Topology, stored: &[u8], piece: &BlockPiece) {
    let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let from = to_usize(piece.block_offset_bytes);
    let end = from.saturating_add(to_usize(piece.range.size_bytes));
    let Some(bytes) = stored.get(from..end) else {
        return;
    };
    // A vdev that takes no blocks gets no repairs of this kind.
    let Ok(plan) = topology.write_plan(piece.range, bytes) else {
        return;
    };
    for write in plan.writes() {
        let (leaf, offset_bytes) = (write.leaf, write.offset_bytes);
        let birth = piece.range.birth;
        write_over(topology, leaf, offset_bytes, write.bytes(bytes), birth);
    }
}

/// How many write-backs each leaf had failed at some time, by leaf id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteBackErrors(Vec<Option<u64>>);

impl BlockStore {
    /// The failed write-backs so far, to pass to [`BlockStore::flush_repairs`] later.
    #[must_use]
    pub fn write_back_errors(&self) -> WriteBackErrors {
        let topology = self.topology();
        let devices = topology.devices.iter();
        let errors = devices.map(|device| device.as_ref().map(|device| device.write_back_errors()));
        WriteBackErrors(errors.collect())
    }

    /// Makes the repairs of these leaves durable that were written since `before`. Returns the leaves for which that
    /// failed, and those whose devices lost writes meanwhile: the repairs may be among them.
    #[must_use]
    pub fn flush_repairs(
        &self,
        leaves: impl Iterator<Item = LeafId>,
        before: &WriteBackErrors,
    ) -> Vec<LeafId> {
        let topology = self.topology();
        let mut failed = vec![];
        for leaf in leaves {
            let is_durable = topology.writable_leaf(leaf).is_some_and(|(device, _)| {
                let device = Arc::clone(device);
                let then = before.0.get(leaf.0 as usize).copied().flatten();
                let flush =
                    move || device.flush().is_ok() && Some(device.write_back_errors()) == then;
                topology.request(leaf, 0, flush).unwrap_or(false)
            });
            if !is_durable {
                failed.push(leaf);
            }
        }
        failed
    }
}

/// Writes the bytes of a block born in `birth` over what a leaf holds. Until a flush covers them they count among the
/// leaf's unflushed writes: if it loses them, it lacks that txg.
pub(crate) fn write_over(
    topology: &Topology,
    leaf: LeafId,
    offset_bytes: u64,
    bytes: &[u8],
    birth: Txg,
) {
    let range = offset_bytes..offset_bytes.saturating_add(bytes.len() as u64);
    // A repair that waited for a copy might come after the block was freed and its space written again.
    let ranges = || topology.vdev_ranges_of(leaf, std::iter::once(range));
    let Some(_guard) = topology.copy_locks.try_write(ranges) else {
        mark::hit("repair-dropped-for-copy");
        return;
    };
    let write = RangeWrite {
        leaf,
        offset_bytes,
        bytes,
        txg: birth,
        is_repair: true,
    };
    // If the device does not answer, its bytes stay wrong.
    if write_leaf_range(topology, &write)
        && let Some((_, counters)) = topology.writable_leaf(leaf)
    {
        counters.count_repair(bytes.len() as u64);
    }
}

/// Bytes for a range of one leaf.
pub(crate) struct RangeWrite<'a> {
    pub(crate) leaf: LeafId,
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: &'a [u8],
    /// The txg that the leaf lacks if it loses them.
    pub(crate) txg: Txg,
    /// Whether they belong to a block that already lies there.
    pub(crate) is_repair: bool,
}

/// Writes bytes to a leaf. Until a flush covers them they count among the leaf's unflushed writes: if it loses
/// them, it lacks that txg. Returns whether the device took them.
pub(crate) fn write_leaf_range(topology: &Topology, write: &RangeWrite<'_>) -> bool {
    let RangeWrite {
        leaf,
        offset_bytes,
        bytes,
        txg,
        is_repair,
    } = *write;
    let Some((device, counters)) = topology.writable_leaf(leaf) else {
        return false;
    };
    let (device, counters) = (Arc::clone(device), Arc::clone(counters));
    let (clock, bytes): (_, Arc<[u8]>) = (topology.clock.clone(), bytes.into());
    let length = bytes.len() as u64;
    let range = offset_bytes..offset_bytes.saturating_add(length);
    let written = topology.request(leaf, length, move || {
        // If a repair fails, the unflushed bytes of the block that lay there still have to be made durable.
        let overwritten = (!is_repair).then(|| range.clone());
        let begun = (counters.unflushed()).begin(&device, overwritten.into_iter());
        let write = || {
            let _operation = counters.queue().enter(IoClass::AsyncWrite);
            match is_repair {
                true => counters.check_repair()?,
                false => counters.queue().check_lease()?,
            }
            device.write(offset_bytes, &bytes)
        };
        let outcome = time_write(&clock, &counters, IoClass::AsyncWrite, length, write);
        let has_failed = outcome.is_err();
        counters.count_write(offset_bytes, length, has_failed);
        let written = (!has_failed).then(|| Ended {
            range,
            txg: Some(txg),
            content: Content::Own(Arc::clone(&bytes)),
        });
        match counters.status().is_usable() {
            true => begun.end(written.into_iter(), has_failed),
            // The leaf went out of use meanwhile; the write counts for nothing.
            false => {
                begun.forget();
                return false;
            }
        }
        !has_failed
    });
    written.unwrap_or(false)
}
