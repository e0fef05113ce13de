//! What is not on stable storage yet, and what leaves have lost.

use super::workers::Workers;
use super::{FlushError, Missed};
use crate::BlockStore;
use crate::topology::Topology;
use millpond_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock};
use millpond_env::thread;
use millpond_ondisk::{Guid, Txg};
use millpond_vdev::{Health, LeafHealth, LeafId};
use std::collections::{BTreeMap, BTreeSet};

/// Threads that wait for devices, at most.
const QUEUES_MAX: usize = 16;

/// The writing side of a store: its threads, and notes on leaves. The notes are locked for a look-up
/// or an insertion, never across I/O.
#[derive(Default)]
pub(crate) struct Writing {
    pools: OnceLock<Pools>,
    /// How many threads to use; 0 for as many as there are processors.
    threads: AtomicUsize,
    notes: Mutex<Notes>,
    is_repairing: AtomicBool,
}

pub(crate) struct Pools {
    /// For compression, checksums, parity.
    pub(crate) processors: Workers,
    /// For waiting on devices.
    pub(crate) queues: Workers,
}

#[derive(Default)]
struct Notes {
    missed: BTreeSet<Missed>,
    /// What each leaf was given since its last flush.
    unflushed: BTreeMap<Guid, BTreeSet<Txg>>,
    /// Leaves that failed writes since the last flush.
    failed: BTreeSet<Guid>,
}

impl Writing {
    /// As many threads, nothing else.
    pub(crate) fn of_view(&self) -> Self {
        Self {
            threads: AtomicUsize::new(self.threads.load(Ordering::Relaxed)),
            ..Self::default()
        }
    }

    /// How many threads to use from the first write on.
    pub(crate) fn set_threads(&self, count: usize) {
        self.threads.store(count, Ordering::Relaxed);
    }

    /// The threads, started when first needed.
    pub(crate) fn pools(&self, topology: &Topology) -> &Pools {
        self.pools.get_or_init(|| {
            let threads = match self.threads.load(Ordering::Relaxed) {
                0 => thread::parallelism(),
                threads => threads,
            };
            let leaves = topology.devices.len().clamp(1, QUEUES_MAX);
            // The asking thread takes part in both, but should not have to wait for devices.
            let queues = if threads == 1 { 1 } else { leaves + 1 };
            Pools {
                processors: Workers::new("block-cpu", threads),
                queues: Workers::new("block-io", queues),
            }
        })
    }

    pub(super) fn note_unflushed(&self, topology: &Topology, leaves: &[LeafId], txg: Txg) {
        let mut notes = self.notes.lock();
        for leaf in leaves {
            let guid = topology.leaf_guid(*leaf);
            notes.unflushed.entry(guid).or_default().insert(txg);
        }
    }

    pub(crate) fn is_repairing(&self) -> bool {
        self.is_repairing.load(Ordering::Relaxed)
    }
}

impl BlockStore {
    /// Whether everything is done by the thread that asks for it.
    pub(crate) fn is_single_threaded(&self) -> bool {
        self.writing.threads.load(Ordering::Relaxed) == 1
    }

    /// How many threads write, the calling one included, from the first write on; later calls change
    /// nothing. With 1 everything happens on the calling thread, in a fixed order. The default is one
    /// for each processor, and one for each leaf to wait on devices.
    pub fn set_write_threads(&self, count: usize) {
        self.writing.set_threads(count);
    }

    /// Whether reads that find wrong bytes write the right ones over them. Off at first, and to be left
    /// off unless the pool was opened for writing.
    pub fn set_repair(&self, is_wanted: bool) {
        self.writing
            .is_repairing
            .store(is_wanted, Ordering::Relaxed);
    }

    /// One try of [`BlockStore::flush`]. If it fails nothing has changed: the next covers the same.
    pub(crate) fn flush_devices(&self) -> Result<(), FlushError> {
        let topology = self.topology();
        let (unflushed, failed) = {
            let mut notes = self.writing.notes.lock();
            (
                std::mem::take(&mut notes.unflushed),
                std::mem::take(&mut notes.failed),
            )
        };
        let mut lost = failed.clone();
        let leaves: Vec<(Guid, BTreeSet<Txg>)> = unflushed.into_iter().collect();
        let pools = self.writing.pools(&topology);
        let outcomes = {
            let topology = Arc::clone(&topology);
            pools.queues.map(leaves, move |(guid, txgs)| {
                let leaf = topology.tree.find_leaf(guid);
                let outcome = match leaf.and_then(|leaf| topology.writable_leaf(leaf)) {
                    Some((device, counters)) => {
                        let outcome = device.flush();
                        counters.count_flush(outcome.is_ok());
                        outcome.map_err(|error| error.to_string())
                    }
                    None => Err("the device is gone".to_owned()),
                };
                (guid, leaf, txgs, outcome)
            })
        };
        let mut reasons = vec![];
        let mut at_fault = vec![];
        let mut unflushed = BTreeMap::new();
        for (guid, leaf, txgs, outcome) in outcomes {
            // A leaf that is no part of the pool any more is nobody's loss.
            if let (Err(reason), Some(leaf)) = (outcome, leaf) {
                lost.insert(guid);
                reasons.push(format!("{}: {reason}", topology.leaf_name(leaf)));
                at_fault.push((leaf, txgs.clone()));
            }
            unflushed.insert(guid, txgs);
        }
        if let Err(error) = bearable(&topology, &lost, &reasons) {
            let mut notes = self.writing.notes.lock();
            notes.failed.extend(failed);
            for (guid, txgs) in unflushed {
                notes.unflushed.entry(guid).or_default().extend(txgs);
            }
            return Err(error);
        }
        for (leaf, txgs) in at_fault {
            for txg in txgs {
                self.note_lost(&topology, &[leaf], txg);
            }
        }
        Ok(())
    }

    /// What leaves missed since the last call, each leaf and txg once, sorted.
    #[must_use]
    pub fn take_missed(&self) -> Vec<Missed> {
        let missed = std::mem::take(&mut self.writing.notes.lock().missed);
        missed.into_iter().collect()
    }

    /// Notes that leaves failed writes of `txg`: for the next flush to judge, and as lost.
    pub(crate) fn note_missed(&self, topology: &Topology, leaves: &[LeafId], txg: Txg) {
        if leaves.is_empty() {
            return;
        }
        let guids = leaves.iter().map(|leaf| topology.leaf_guid(*leaf));
        self.writing.notes.lock().failed.extend(guids);
        self.note_lost(topology, leaves, txg);
    }

    /// Notes that leaves do not hold what was written in `txg`: for dirty time logs and, of leaves that
    /// can be read, for every read from now on.
    fn note_lost(&self, topology: &Topology, leaves: &[LeafId], txg: Txg) {
        let mut readable = vec![];
        for leaf in leaves {
            let guid = topology.leaf_guid(*leaf);
            let missed = Missed {
                leaf: *leaf,
                guid,
                txg,
            };
            let is_new = self.writing.notes.lock().missed.insert(missed);
            if is_new && topology.health.leaf(*leaf, txg) == LeafHealth::Good {
                readable.push(guid);
            }
        }
        if readable.is_empty() {
            return;
        }
        self.change_topology(|topology| {
            for guid in readable {
                let leaf = topology.tree.find_leaf(guid);
                let Some(entry) = leaf.and_then(|leaf| topology.health.entry(leaf)) else {
                    continue;
                };
                let next = txg.0.saturating_add(1);
                match entry.missed.last_mut() {
                    Some(range) if range.contains(&txg.0) => {}
                    Some(range) if range.end == txg.0 => range.end = next,
                    _ => entry.missed.push(txg.0..next),
                }
            }
        });
    }
}

/// Whether every vdev can do without these leaves.
fn bearable(
    topology: &Topology,
    lost: &BTreeSet<Guid>,
    reasons: &[String],
) -> Result<(), FlushError> {
    let lost: BTreeSet<LeafId> = (lost.iter())
        .filter_map(|guid| topology.tree.find_leaf(*guid))
        .collect();
    let is_lost = |leaf| {
        let health = topology.health.leaf(leaf, Txg(u64::MAX));
        lost.contains(&leaf) || health == LeafHealth::Unreadable
    };
    for (vdev, _) in topology.tree.tops() {
        let is_hit = (lost.iter())
            .any(|leaf| topology.tree.leaf(*leaf).and_then(|node| node.top) == Some(vdev));
        if is_hit && !topology.tree.survives(vdev, &is_lost) {
            let reason = if reasons.is_empty() {
                "earlier writes failed".to_owned()
            } else {
                reasons.join("; ")
            };
            return Err(FlushError { vdev, reason });
        }
    }
    Ok(())
}
