//! Repairs: overwrites wrong bytes once a read has found the right ones.
//!
//! A repair goes to the address of a block that is being read. Meanwhile the block may be freed and its
//! space allocated to another block. So a repair is written only if no freed space became available since
//! the read began ([`BlockStore::space_is_reusable`]).

use super::heal::is_right_now;
use crate::io_stats::{IoClass, time_write};
use crate::topology::Topology;
use crate::{BlockStore, CopyFailure};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dva, Guid};
use millpond_vdev::{BlameReason, BlockRange, LeafId, Resolved, WritePlan};
use std::collections::BTreeSet;

impl BlockStore {
    /// Writes what leaves should have held, if repairs are enabled. A failed repair is counted against the
    /// leaf, whose bytes stay wrong; the read succeeds anyway.
    pub(crate) fn repair(&self, topology: &Topology, resolved: &Resolved, since: u64) {
        if resolved.repairs.is_empty() || !self.may_repair(since) {
            return;
        }
        for repair in &resolved.repairs {
            let (leaf, offset_bytes) = (repair.leaf, repair.offset_bytes);
            let mut blames = resolved.liars.iter().filter(|blame| blame.leaf == leaf);
            let were_bytes_wrong = blames.all(|blame| blame.reason == BlameReason::Checksum);
            if were_bytes_wrong && is_right_now(topology, leaf, offset_bytes, &repair.data) {
                continue;
            }
            write_over(topology, leaf, offset_bytes, &repair.data);
        }
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
        since: u64,
    ) {
        if failures.is_empty() || !self.may_repair(since) {
            return;
        }
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
            // A vdev that takes no blocks (removed, or being expanded) gets no repairs of this kind.
            let plan = WritePlan::new(&topology.tree, topology, range, stored);
            let Ok(plan) = plan else { continue };
            for write in plan.writes() {
                let bytes = write.bytes(stored);
                write_over(topology, write.leaf, write.offset_bytes, bytes);
            }
        }
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
    pub fn flush_repairs(&self, leaves: &BTreeSet<LeafId>, before: &WriteBackErrors) -> Vec<Guid> {
        let topology = self.topology();
        let mut failed = vec![];
        for leaf in leaves {
            let is_durable = topology.writable_leaf(*leaf).is_some_and(|(device, _)| {
                let device = Arc::clone(device);
                let then = before.0.get(leaf.0 as usize).copied().flatten();
                let flush =
                    move || device.flush().is_ok() && Some(device.write_back_errors()) == then;
                topology.request(*leaf, 0, flush).unwrap_or(false)
            });
            if !is_durable {
                failed.push(topology.leaf_guid(*leaf));
            }
        }
        failed
    }
}

/// Returns whether the device took the bytes.
fn write_over(topology: &Topology, leaf: LeafId, offset_bytes: u64, bytes: &[u8]) -> bool {
    let Some((device, counters)) = topology.writable_leaf(leaf) else {
        return false;
    };
    let (device, counters) = (Arc::clone(device), Arc::clone(counters));
    let (clock, bytes): (_, Arc<[u8]>) = (topology.clock.clone(), bytes.into());
    let length = bytes.len() as u64;
    // If the device does not answer, its bytes stay wrong.
    let written = topology.request(leaf, length, move || {
        let write = || {
            let _operation = counters.queue().enter(IoClass::AsyncWrite);
            device.write(offset_bytes, &bytes)
        };
        let outcome = time_write(&clock, &counters, IoClass::AsyncWrite, length, write);
        counters.count_writes(1, length, u64::from(outcome.is_err()));
        if outcome.is_ok() {
            counters.count_repair(length);
        }
        outcome.is_ok()
    });
    written.unwrap_or(false)
}
