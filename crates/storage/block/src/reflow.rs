//! Moves the sectors of a RAID-Z vdev that is being expanded to their new places, without looking at blocks.
//!
//! A move keeps writes off its range ([`crate::copy_locks`]). Writes that come later go to both places, until the progress
//! is committed. The first rows are moved through the boot areas of the children, since their new place overlaps the
//! old one; no block is written meanwhile.
//!
//! Page `docs/format/raidz-layout.md`, "Expanding".

use crate::BlockStore;
use crate::copy_locks;
use crate::io_stats::IoClass;
use crate::requests::Overdue;
use crate::topology::Topology;
use crate::write::{RangeWrite, write_leaf_range};
use millpond_env::rank;
use millpond_env::sync::atomic::Ordering;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_ondisk::{Txg, VDEV_DATA_START_BYTES, VdevId};
use millpond_vdev::{
    ChildRun, LeafId, LeafRead, RAIDZ_SCRATCH_START_BYTES, RaidzGeometry, RaidzMove, VdevNode,
};
use std::ops::Range;
use std::time::Duration;

/// How much is moved at once, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;
/// How often it is looked whether requests have ended, and how many times.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS_MAX: usize = 2000;

/// Keeps writers waiting before they choose the topology that they write by.
#[derive(Debug, Default)]
pub(crate) struct Standstill {
    is_on: Mutex<bool, rank::Leaf>,
    ended: Condvar,
}

impl Standstill {
    fn set(&self, is_on: bool) {
        *self.is_on.lock() = is_on;
        self.ended.notify_all();
    }

    fn is_on(&self) -> bool {
        *self.is_on.lock()
    }

    fn wait(&self) {
        let mut is_on = self.is_on.lock();
        while *is_on {
            self.ended.wait(&mut is_on);
        }
    }
}

/// Ends a standstill when it is dropped.
struct Standing<'a>(&'a Standstill);

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Moves of one txg.
#[derive(Debug)]
pub struct ReflowPass<'a> {
    store: &'a BlockStore,
    top: VdevId,
    txg: Txg,
    _pass: copy_locks::CopyPass,
}

/// The leaves of the children of a vdev, in order. `None` if one is no device, or not in use.
fn whole_children(topology: &Topology, node: &VdevNode) -> Option<Vec<LeafId>> {
    let children = node.children.iter();
    let leaves = children.map(|child| {
        let child = topology.tree.node(*child)?;
        let leaf = child.leaf.filter(|_| child.is_device())?;
        topology.is_in_use(leaf).then_some(leaf)
    });
    leaves.collect()
}

impl BlockStore {
    /// The topology to write blocks by. Waits while nothing may be written.
    pub(crate) fn writing_topology(&self) -> Arc<Topology> {
        loop {
            // In this order: the topology of a writer that saw no standstill is waited for.
            let topology = self.topology();
            if !self.standstill.is_on() {
                return topology;
            }
            drop(topology);
            self.standstill.wait();
        }
    }

    /// Waits until no request uses places of before a change of the topology. False if that takes long.
    #[must_use]
    pub fn forget_former_topologies(&self) -> bool {
        // The thread that writes the txg would wait for itself.
        self.finish_batches();
        for _ in 0..LOOKS_MAX {
            if !self.uses_former_topology() {
                return true;
            }
            millpond_env::thread::sleep(LOOK);
        }
        false
    }

    /// Begins moves in a txg. `None` if the vdev is not being expanded, or a child is not in use.
    #[must_use]
    pub fn begin_reflow(&self, top: VdevId, txg: Txg) -> Option<ReflowPass<'_>> {
        // Moves wait for writes under way, and what they move is on the devices.
        self.settle_outstanding().ok()?;
        let topology = self.topology();
        let (expanding, node, _) = topology.tree.expanding()?;
        whole_children(&topology, node).filter(|_| expanding == top)?;
        Some(ReflowPass {
            store: self,
            top,
            txg,
            _pass: topology.copy_locks.pass(),
        })
    }

    /// How much of the vdev that is being expanded has been moved in memory, in bytes.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.topology().moved_bytes.load(Ordering::SeqCst)
    }

    /// Takes moves back that were not committed, or notes what was committed.
    pub fn set_moved_bytes(&self, bytes: u64) {
        self.topology().moved_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Copies the first rows from the boot areas of the children to their place, after a crash between the two. Returns
    /// the leaves that did not take it.
    #[must_use]
    pub fn restore_from_scratch(&self, txg: Txg) -> Vec<LeafId> {
        let topology = self.topology();
        let Some((_, node, geometry)) = topology.tree.expanding() else {
            return vec![];
        };
        let children = node.children.iter();
        let leaves = children.flat_map(|child| leaves_below(&topology, *child));
        let length = geometry.scratch_bytes(node.ashift).unwrap_or(0);
        let failed = leaves.filter(|leaf| {
            !copy_scratch(&topology, *leaf, length, txg) || topology.flush_leaf(*leaf).is_err()
        });
        failed.collect()
    }
}

/// The devices at a node and below. Recursion is limited by the tree's depth.
fn leaves_below(topology: &Topology, id: millpond_vdev::NodeId) -> Vec<LeafId> {
    let Some(node) = topology.tree.node(id) else {
        return vec![];
    };
    let below = node.children.iter();
    let below = below.flat_map(|child| leaves_below(topology, *child));
    let own = node.leaf.filter(|_| node.is_device());
    own.into_iter().chain(below).collect()
}

/// Copies what a leaf has in its boot area to the start of its space. Returns whether that was possible.
fn copy_scratch(topology: &Topology, leaf: LeafId, length_bytes: u64, txg: Txg) -> bool {
    let mut at = 0;
    while at < length_bytes {
        let read = LeafRead {
            leaf,
            offset_bytes: RAIDZ_SCRATCH_START_BYTES.saturating_add(at),
            length_bytes: length_bytes.saturating_sub(at).min(CHUNK_BYTES),
        };
        let outcome = topology.read_leaves(&[read], IoClass::Rebuild).pop();
        let Some(Ok(bytes)) = outcome else {
            return false;
        };
        let to = VDEV_DATA_START_BYTES.saturating_add(at);
        let write = RangeWrite {
            leaf,
            offset_bytes: to,
            bytes: &bytes,
            txg,
            is_repair: false,
        };
        if !write_leaf_range(topology, &write) {
            return false;
        }
        at = at.saturating_add(read.length_bytes);
    }
    true
}

/// The vdev that is being expanded, as the current topology has it.
struct Expanding<'a> {
    topology: &'a Topology,
    children: Vec<LeafId>,
    geometry: &'a RaidzGeometry,
    node: &'a VdevNode,
}

impl<'a> Expanding<'a> {
    fn of(topology: &'a Topology) -> Option<Self> {
        let (_, node, geometry) = topology.tree.expanding()?;
        Some(Self {
            children: whole_children(topology, node)?,
            topology,
            geometry,
            node,
        })
    }

    fn leaf(&self, run: &ChildRun) -> Option<LeafId> {
        let child = usize::try_from(run.child).ok()?;
        self.children.get(child).copied()
    }

    /// Moves a chunk. `start_bytes` is where the space of a child begins that it is written to.
    fn move_chunk(&self, range: &Range<u64>, start_bytes: u64, txg: Txg) -> Option<()> {
        let chunk = RaidzMove::new(self.geometry, self.node.ashift, range)?;
        let reads = chunk.reads();
        let reads = reads.iter().map(|run| {
            Some(LeafRead {
                leaf: self.leaf(run)?,
                offset_bytes: VDEV_DATA_START_BYTES.checked_add(run.offset_bytes)?,
                length_bytes: run.length_bytes,
            })
        });
        let reads: Option<Vec<LeafRead>> = reads.collect();
        let outcomes = self.topology.read_leaves(&reads?, IoClass::Rebuild);
        let contents: Result<Vec<_>, _> = outcomes.into_iter().collect();
        let contents: Vec<Vec<u8>> = contents.ok()?.iter().map(|bytes| bytes.to_vec()).collect();
        let writes = chunk.writes();
        for (run, bytes) in writes.iter().zip(chunk.rearranged(&contents)?) {
            let write = RangeWrite {
                leaf: self.leaf(run)?,
                offset_bytes: start_bytes.checked_add(run.offset_bytes)?,
                bytes: &bytes,
                txg,
                is_repair: false,
            };
            write_leaf_range(self.topology, &write).then_some(())?;
        }
        Some(())
    }

    fn flush(&self) -> bool {
        let mut children = self.children.iter();
        children.all(|leaf| self.topology.flush_leaf(*leaf).is_ok())
    }
}

impl ReflowPass<'_> {
    /// Moves what is used of a range of the vdev, in bytes. `used` lists it, in chunks of at most some MiB; it is asked
    /// when no write is under way there. Returns how many bytes were moved; `None` if nothing is to be relied on.
    #[must_use]
    pub fn move_range(
        &self,
        range: &Range<u64>,
        used: &mut dyn FnMut() -> Vec<Range<u64>>,
    ) -> Option<u64> {
        let topology = self.store.topology();
        let place = vec![(self.top, range.clone())];
        let _place = topology.copy_locks.copy(place, &Overdue::of(&topology))?;
        let expanding = Expanding::of(&topology)?;
        // Writes that wait for this one see it.
        topology.moved_bytes.store(range.end, Ordering::SeqCst);
        let mut bytes = 0u64;
        for chunk in used() {
            let moved = expanding.move_chunk(&chunk, VDEV_DATA_START_BYTES, self.txg);
            if moved.is_none() {
                topology.moved_bytes.store(range.start, Ordering::SeqCst);
                return None;
            }
            bytes = bytes.saturating_add(chunk.end.saturating_sub(chunk.start));
        }
        Some(bytes)
    }

    /// Moves the first rows through the boot areas of the children. Nothing is written to the pool meanwhile.
    ///
    /// `commit` gets each state on the way, and makes it durable in the uberblock; an error ends the pool. Returns
    /// whether the rows were moved.
    ///
    /// # Errors
    /// That of `commit`, or `unfinished` if a device fails when the boot areas are in use already: the rows are then moved
    /// when the pool is opened again.
    pub fn move_first_rows<E>(
        &self,
        states: [millpond_vdev::Reflow; 2],
        commit: &mut dyn FnMut(millpond_vdev::Reflow) -> Result<(), E>,
        unfinished: impl FnOnce() -> E,
    ) -> Result<bool, E> {
        let store = self.store;
        store.standstill.set(true);
        let _standing = Standing(&store.standstill);
        // Who writes does so by a topology of before.
        store.change_topology(|_| {});
        if !store.forget_former_topologies() || self.fill_scratch().is_none() {
            return Ok(false);
        }
        let before = store.topology().tree.reflow();
        let [valid, written] = states;
        store.set_reflow(valid);
        if !store.forget_former_topologies() {
            store.set_reflow(before);
            return Ok(false);
        }
        commit(valid)?;
        let topology = store.topology();
        let length = topology.tree.expanding();
        let length = length.and_then(|(_, node, geometry)| geometry.scratch_bytes(node.ashift));
        let is_written = Expanding::of(&topology).is_some_and(|expanding| {
            let mut children = expanding.children.iter();
            let length = length.unwrap_or(0);
            children.all(|leaf| copy_scratch(&topology, *leaf, length, self.txg))
                && expanding.flush()
        });
        drop(topology);
        if !is_written {
            return Err(unfinished());
        }
        commit(written)?;
        store.set_moved_bytes(written.offset_bytes);
        store.set_reflow(written);
        Ok(true)
    }

    fn fill_scratch(&self) -> Option<()> {
        let topology = self.store.topology();
        let expanding = Expanding::of(&topology)?;
        let sector_end = expanding
            .geometry
            .scratch_end_bytes(expanding.node.ashift)?;
        let mut at = 0;
        while at < sector_end {
            let end = sector_end.min(at.saturating_add(CHUNK_BYTES));
            expanding.move_chunk(&(at..end), RAIDZ_SCRATCH_START_BYTES, self.txg)?;
            at = end;
        }
        expanding.flush().then_some(())
    }
}
