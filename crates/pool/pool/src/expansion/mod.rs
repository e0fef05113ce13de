//! RAID-Z vdevs that are expanded by one child.
//!
//! A vdev gets a new child at once. Then its rows are moved to their places at the new width, in ascending order, while
//! programs work: each txg moves some, and its uberblock says how far. Rows beyond are read at their old place. A new
//! place may be the old place of other rows, so it is written only when the uberblock on disk says that those have
//! moved. The first rows have no such room: they are moved through the boot areas of the children, and two uberblocks
//! in between say where they are. New blocks keep the old number of columns until the end.
//!
//! A child that is not in use, or lacks something, stops this: sectors are moved without a look at blocks, so nothing can be
//! reconstructed. A crash or export continues where the last uberblock says.
//!
//! Page `docs/format/raidz-layout.md`, "Expanding".

mod slice;
mod start;

use crate::PoolError;
use crate::error::Reading;
use crate::labels::{self, CommitError};
use crate::pool::Pool;
use crate::vdevs::attach::FIRST_TXG;
use millpond_block::Topology;
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{DecodeError, RaidzReflow, Txg, Uberblock};
use millpond_vdev::Reflow;

pub(crate) const RAIDZ_EXPANSION: &str = "org.openzfs:raidz_expansion";

/// Entries in the ZAP of a top-level vdev.
mod entry {
    pub(super) const STATE: &str = "org.openzfs:raidz_expand_state";
    pub(super) const START_TIME: &str = "org.openzfs:raidz_expand_start_time";
    pub(super) const END_TIME: &str = "org.openzfs:raidz_expand_end_time";
    pub(super) const BYTES_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
    /// Values of [`STATE`].
    pub(super) const ACTIVE: u64 = 1;
    pub(super) const FINISHED: u64 = 2;
}

impl Pool {
    /// Whether a RAID-Z vdev is being expanded, and the pool is not being closed.
    #[must_use]
    pub fn is_expanding(&self) -> bool {
        let topology = self.store.topology();
        topology.tree.expanding().is_some() && self.scan.with(|state| !state.has_ended)
    }

    /// Whether an expansion waits for a child that is not in use, is being replaced, or lacks something.
    #[must_use]
    pub fn is_expansion_paused(&self) -> bool {
        let topology = self.store.topology();
        topology.tree.expanding().is_some() && !self.has_whole_children(&topology)
    }

    /// Whether a device could not read or write rows when an expansion last tried to move some. The next slice
    /// tries again.
    #[must_use]
    pub fn has_expansion_failed(&self) -> bool {
        self.is_expanding() && self.has_expansion_failed.load(Ordering::Relaxed)
    }

    /// Whether all children of the vdev that is being expanded are devices in use that lack nothing.
    fn has_whole_children(&self, topology: &Topology) -> bool {
        let Some((_, node, _)) = topology.tree.expanding() else {
            return false;
        };
        let state = self.state.read();
        let noted = self.store.noted_missed();
        node.children.iter().all(|child| {
            let Some(child) = topology.tree.node(*child) else {
                return false;
            };
            let guid = child.config.guid;
            let missed = state.missed.get(&guid);
            child.is_device()
                && child.leaf.is_some_and(|leaf| topology.is_in_use(leaf))
                && missed.is_none_or(|missed| missed.ranges().is_empty())
                && noted.iter().all(|one| one.guid != guid)
        })
    }

    /// The progress for the uberblock that is about to be written. Moves count only if no child lost one of them.
    pub(crate) fn reflow_to_commit(&self, topology: &Topology) -> Reflow {
        if topology.tree.expanding().is_none() {
            return Reflow::default();
        }
        let committed = topology.tree.reflow();
        let moved = self.store.moved_bytes();
        let offset_bytes = match moved > committed.offset_bytes {
            true if self.has_whole_children(topology) => moved,
            true => {
                mark::hit("moves-taken-back");
                self.store.set_moved_bytes(committed.offset_bytes);
                committed.offset_bytes
            }
            false => committed.offset_bytes,
        };
        match offset_bytes {
            0 => committed,
            _ => Reflow {
                offset_bytes,
                scratch_state: Reflow::MOVING,
            },
        }
    }

    /// Rewrites the last uberblock with another state of the expansion, and makes it durable.
    fn rewrite_uberblock(&self, reflow: Reflow) -> Result<(), PoolError> {
        // A heartbeat of this txg must not outrank the new uberblock: it has the old progress.
        let beats = self.heartbeat.hold();
        let topology = self.store.topology();
        let (before, multihost) = {
            let state = self.state.read();
            (state.uberblock, state.multihost)
        };
        let uberblock = Uberblock {
            timestamp_s: (before.timestamp_s.saturating_add(1)).max(beats.after_s()),
            raidz_reflow: RaidzReflow(reflow.to_uberblock()),
            ..before
        };
        let slot = match reflow.is_scratch_valid() {
            true => Txg(before.txg.0.saturating_sub(1)),
            false => before.txg,
        };
        let (tops, order) = (labels::all_tops(&topology), self.write_order());
        let round =
            labels::write_uberblock_at(slot, &topology, &uberblock, &tops, multihost, order);
        if !labels::is_committed(&topology, &tops, &round) {
            return Err(CommitError::NoUberblock.into());
        }
        self.state.write().uberblock = uberblock;
        Ok(())
    }

    /// Copies the first rows from the boot areas to their place, if the pool crashed in between. The opened uberblock then
    /// says so. Leaves that do not take them lack everything.
    pub(crate) fn finish_scratch_copy(&self) -> Result<(), PoolError> {
        let found = self.store.topology().tree.reflow();
        if !found.is_scratch_valid() {
            return Ok(());
        }
        mark::hit("scratch-copied-on-import");
        let failed = self.store.restore_from_scratch(self.first_txg);
        let topology = self.store.topology();
        let lost = |leaf| failed.contains(&leaf);
        let expanding = topology.tree.expanding();
        if !expanding.is_some_and(|(id, ..)| topology.tree.survives(id, &lost)) {
            let none = DecodeError::new("expansion", "its first rows cannot be written", 0);
            return Err(none).reading("RAID-Z expansion");
        }
        let mut state = self.state.write();
        for leaf in failed {
            let missed = state.missed.entry(topology.leaf_guid(leaf)).or_default();
            missed.add(FIRST_TXG..self.first_txg.0);
            state.is_topology_stale = true;
        }
        let reflow = Reflow {
            scratch_state: Reflow::SCRATCH_WRITTEN_ON_IMPORT,
            ..found
        };
        state.uberblock.timestamp_s = state.uberblock.timestamp_s.saturating_add(1);
        state.uberblock.raidz_reflow = RaidzReflow(reflow.to_uberblock());
        drop(state);
        drop(topology);
        self.store.set_moved_bytes(reflow.offset_bytes);
        self.store.set_reflow(reflow);
        Ok(())
    }
}
