//! Flushes, and what leaves have missed.

use super::outstanding::Outstanding;
use super::workers::Workers;
use super::{FlushError, Missed};
use crate::BlockStore;
use crate::topology::Topology;
use crate::unflushed::FlushFailure;
use millpond_device::WriteBehind;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard};
use millpond_env::thread;
use millpond_ondisk::{Guid, Txg, VdevId};
use millpond_vdev::{Health, LeafHealth, LeafId, VdevKind};
use std::collections::{BTreeMap, BTreeSet};

/// The most threads that wait for devices.
const QUEUES_MAX: usize = 16;
/// Written contents are kept in memory until they are flushed. Above this many bytes, unless
/// [`BlockStore::set_unflushed_bytes_max`] sets fewer, the store flushes in the middle of a txg.
const RETAINED_BYTES_MAX: u64 = 128 << 20;

/// The writing side of a store: its threads, and notes on leaves. The notes are locked for a look-up or an
/// insertion, never across I/O.
#[derive(Default)]
pub(crate) struct Writing {
    pools: OnceLock<Pools>,
    pub(super) outstanding: Outstanding,
    /// When pointers are given out before the devices have the blocks.
    behind: OnceLock<WriteBehind>,
    /// The number of threads; 0 for one per processor.
    threads: AtomicUsize,
    notes: Mutex<Notes, rank::Leaf>,
    /// Held by a flush, so that no other one commits before it is noted what this one lost.
    flushing: Mutex<(), rank::StoreFlush>,
    is_repairing: AtomicBool,
    /// Incremented each time freed space may be allocated again.
    reuses: AtomicU64,
    /// The txg of the last commit.
    committed: AtomicU64,
    /// Held, shared, while a repair is written: what it overwrites must not become another block meanwhile.
    repairs: RwLock<(), rank::ViewRepairs>,
    /// The most bytes to keep until they are flushed, if fewer than [`RETAINED_BYTES_MAX`].
    retained_bytes_max: OnceLock<u64>,
    /// How many bytes were kept when the last flush within a txg failed; 0 after a successful one.
    retained_in_vain: AtomicU64,
    /// Returns how much dirty data there is, in percent of its limit.
    dirty_gauge: OnceLock<Box<dyn Fn() -> u32 + Send + Sync>>,
}

pub(crate) struct Pools {
    /// Threads for compression, checksums and parity.
    pub(crate) processors: Workers,
    /// Threads that wait for devices.
    pub(crate) queues: Workers,
}

#[derive(Default)]
struct Notes {
    missed: BTreeSet<Missed>,
    /// Leaves that failed writes since the last flush, each with the number of its last failure.
    failed: BTreeMap<Guid, u64>,
    failures: u64,
}

impl Writing {
    /// A value with the same number of threads and nothing else.
    pub(crate) fn of_view(&self) -> Self {
        Self {
            threads: AtomicUsize::new(self.threads.load(Ordering::Relaxed)),
            ..Self::default()
        }
    }

    /// Tells the queues of all leaves how much dirty data there is.
    pub(crate) fn measure_dirty(&self, topology: &Topology) {
        if let Some(gauge) = self.dirty_gauge.get() {
            let percent = gauge();
            for counters in &topology.counters {
                counters.queue().set_dirty_percent(percent);
            }
        }
    }

    /// Sets the number of threads, before the first write.
    pub(crate) fn set_threads(&self, count: usize) {
        self.threads.store(count, Ordering::Relaxed);
    }

    /// The threads, started on first use.
    pub(crate) fn pools(&self, topology: &Topology) -> &Pools {
        self.pools.get_or_init(|| {
            let threads = match self.threads.load(Ordering::Relaxed) {
                0 => thread::parallelism(),
                threads => threads,
            };
            let leaves = topology.devices.len().clamp(1, QUEUES_MAX);
            // The calling thread takes part in both, but should not have to wait for devices.
            let queues = if threads == 1 { 1 } else { leaves + 1 };
            Pools {
                processors: Workers::new("block-cpu", threads),
                queues: Workers::new("block-io", queues),
            }
        })
    }

    /// Keeps freed space from being allocated again while the guard lives.
    pub(super) fn lock_repairs(&self) -> RwLockReadGuard<'_, ()> {
        self.repairs.read()
    }

    pub(crate) fn reuses(&self) -> u64 {
        self.reuses.load(Ordering::SeqCst)
    }

    /// The txg of the last commit, as far as [`BlockStore::space_is_reusable`] was told.
    pub(crate) fn committed(&self) -> Txg {
        Txg(self.committed.load(Ordering::SeqCst))
    }

    pub(crate) fn is_repairing(&self) -> bool {
        self.is_repairing.load(Ordering::Relaxed)
    }

    /// Records that leaves failed writes, for the next flush to judge.
    pub(super) fn note_failed(&self, topology: &Topology, leaves: &[LeafId]) {
        let leaves = leaves.iter().map(|leaf| topology.leaf_guid(*leaf));
        self.notes.lock().note_failed(leaves);
    }
}

impl Notes {
    fn note_failed(&mut self, leaves: impl Iterator<Item = Guid>) {
        self.failures = self.failures.saturating_add(1);
        let failure = self.failures;
        self.failed.extend(leaves.map(|leaf| (leaf, failure)));
    }
}

impl BlockStore {
    /// Whether the calling thread does everything itself.
    pub(crate) fn is_single_threaded(&self) -> bool {
        self.writing.threads.load(Ordering::Relaxed) == 1
    }

    /// Sets how many threads write, including the calling one.
    ///
    /// Takes effect only before the first write. With 1 everything happens on the calling thread, in a
    /// fixed order. The default is one for each processor, and one for each leaf to wait on devices.
    pub fn set_write_threads(&self, count: usize) {
        self.writing.set_threads(count);
        if count == 1 {
            self.change_topology(|topology| topology.deadline = None);
        }
    }

    /// Sets where to ask how much dirty data there is, in percent of its limit. The more there is, the more
    /// background writes are with a device beside other requests. Only the first call has an effect.
    pub fn set_dirty_gauge(&self, gauge: impl Fn() -> u32 + Send + Sync + 'static) {
        let _ = self.writing.dirty_gauge.set(Box::new(gauge));
    }

    /// Notes the txg that is committed, and that space freed up to it may be allocated from now on. Waits for the repairs
    /// that are being written. Reads that began before no longer repair anything: their block may have been freed and its
    /// space reused.
    pub fn space_is_reusable(&self, committed: Txg) {
        let _no_repairs = self.writing.repairs.write();
        self.writing.committed.store(committed.0, Ordering::SeqCst);
        self.writing.reuses.fetch_add(1, Ordering::SeqCst);
    }

    /// Sets when [`BlockStore::write_behind`] returns before the devices have the blocks. Only the first call has an
    /// effect; without one it never does.
    pub fn set_write_behind(&self, when: WriteBehind) {
        let _ = self.writing.behind.set(when);
    }
    pub(super) fn writes_behind(&self) -> bool {
        match self.writing.behind.get() {
            None | Some(WriteBehind::Never) => false,
            Some(WriteBehind::Always) => true,
            Some(WriteBehind::WhenRedundant) => self.topology().is_redundant(),
        }
    }

    /// Sets whether reads repair wrong bytes. Off by default; must stay off unless the pool was opened for
    /// writing.
    pub fn set_repair(&self, is_wanted: bool) {
        self.writing
            .is_repairing
            .store(is_wanted, Ordering::Relaxed);
    }

    /// Waits for all outstanding blocks, and makes all previous writes durable on every leaf that was written to. A leaf whose flush fails is
    /// rewritten and flushed once more. If that fails too, the leaf counts as having missed the writes.
    ///
    /// In retry mode the thread waits instead of returning an error, and then flushes again.
    ///
    /// # Errors
    /// [`FlushError`] if a block of [`BlockStore::write_behind`] cannot be written, or if flushes failed and their vdev
    /// lost more leaves than its redundancy allows, including those that failed writes since the last flush. The txg
    /// must not commit then. The next flush covers the same writes, and rewrites them first.
    pub fn flush(&self) -> Result<(), FlushError> {
        loop {
            rank::check_io();
            let since = self.retries.resumes();
            match self.settle() {
                Ok(()) => {}
                Err(error) if self.waits_to_write(since, &error) => continue,
                Err(error) => return Err(error),
            }
            match self.flush_devices() {
                Err(error) if self.retries.waits(since, &error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Treats the unflushed writes of all leaves as lost: the next flush rewrites them. For devices that
    /// may have lost them without reporting an error.
    pub fn distrust_unflushed(&self) {
        for counters in &self.topology().counters {
            counters.unflushed().distrust();
        }
    }

    /// Sets, once, how many bytes of written contents to keep in memory until they are flushed. More than 128 MiB
    /// are never kept.
    pub fn set_unflushed_bytes_max(&self, bytes: u64) {
        let _ = self.writing.retained_bytes_max.set(bytes);
    }

    /// Flushes if the unflushed contents exceed their memory limit. If that fails, the flush that commits
    /// handles it; until then memory grows, at most by what the txg dirtied.
    pub(super) fn bound_unflushed(&self) {
        let retained = retained_bytes(&self.topology());
        let retained_in_vain = self.writing.retained_in_vain.load(Ordering::Relaxed);
        let max = self.writing.retained_bytes_max.get();
        let max = max.map_or(RETAINED_BYTES_MAX, |max| (*max).min(RETAINED_BYTES_MAX));
        if retained <= max.max(retained_in_vain.saturating_mul(2)) {
            return;
        }
        mark::hit("flush-within-txg");
        let in_vain = match self.flush() {
            Ok(()) => 0,
            Err(_) => retained,
        };
        (self.writing.retained_in_vain).store(in_vain, Ordering::Relaxed);
    }

    /// One attempt of [`BlockStore::flush`].
    fn flush_devices(&self) -> Result<(), FlushError> {
        let _one = self.writing.flushing.lock();
        let topology = self.topology();
        let failed_before = self.writing.notes.lock().failed.clone();
        let written = topology.leaves().filter(|leaf| {
            let counters = topology.counters.get(leaf.0 as usize);
            counters.is_some_and(|counters| !counters.unflushed().is_empty())
        });
        let outcomes = self.flush_leaves(&topology, written.collect());
        let mut reasons = vec![];
        let mut at_fault = vec![];
        for (leaf, outcome) in outcomes {
            if let Err(failure) = outcome {
                reasons.push(format!(
                    "{}: {}",
                    topology.leaf_name(leaf),
                    failure.reason()
                ));
                at_fault.push((leaf, failure));
            }
        }
        self.judge_flush(&topology, &failed_before, &at_fault, &reasons)?;
        for (leaf, failure) in at_fault {
            let Some(counters) = topology.counters.get(leaf.0 as usize) else {
                continue;
            };
            for txg in counters.unflushed().give_up(&failure) {
                self.note_missed(&topology, &[leaf], txg);
            }
        }
        Ok(())
    }

    /// Decides whether the vdevs bear the loss of the leaves whose flush failed. If so, those leaves give up what they had
    /// to make durable, and `failed_before`, the failed writes that the flush covered, are settled.
    ///
    /// A write that is still in flight may fail on another leaf. It notes that first, and then looks who gave up meanwhile.
    /// So either it sees the decision, or the decision sees it.
    fn judge_flush(
        &self,
        topology: &Topology,
        failed_before: &BTreeMap<Guid, u64>,
        at_fault: &[(LeafId, FlushFailure)],
        reasons: &[String],
    ) -> Result<(), FlushError> {
        let mut notes = self.writing.notes.lock();
        // Every block was readable without the writes that failed. As long as no flush fails, it still is.
        if !at_fault.is_empty() {
            let mut lost: BTreeSet<Guid> = notes.failed.keys().copied().collect();
            lost.extend(at_fault.iter().map(|(leaf, _)| topology.leaf_guid(*leaf)));
            bearable(topology, &lost, reasons)?;
        }
        for (leaf, _) in at_fault {
            if let Some(counters) = topology.counters.get(leaf.0 as usize) {
                counters.unflushed().note_loss();
            }
        }
        (notes.failed).retain(|leaf, failure| failed_before.get(leaf) != Some(failure));
        drop(notes);
        self.note_losses_within_flush(topology, at_fault);
        Ok(())
    }

    /// What a leaf gave up may be a block that another leaf got after its part of this flush. Then the next flush
    /// counts the leaf as failed. Blocks in flight are noted when they are finished.
    fn note_losses_within_flush(&self, topology: &Topology, at_fault: &[(LeafId, FlushFailure)]) {
        let gave_up = |leaf: LeafId| at_fault.iter().any(|(lost, _)| *lost == leaf);
        let was_written = topology.leaves().any(|leaf| {
            let counters = topology.counters.get(leaf.0 as usize);
            !gave_up(leaf) && counters.is_some_and(|counters| !counters.unflushed().is_empty())
        });
        if was_written && !at_fault.is_empty() {
            mark::hit("written-between-flushes-of-leaves");
            let leaves: Vec<LeafId> = at_fault.iter().map(|(leaf, _)| *leaf).collect();
            self.writing.note_failed(topology, &leaves);
        }
    }

    /// Flushes leaves in parallel, each a second time if the first fails.
    fn flush_leaves(
        &self,
        topology: &Arc<Topology>,
        leaves: Vec<LeafId>,
    ) -> Vec<(LeafId, Result<(), FlushFailure>)> {
        let flush = {
            let topology = Arc::clone(topology);
            move |leaf| {
                let again = || topology.flush_leaf(leaf);
                topology.flush_leaf(leaf).or_else(|_| again())
            }
        };
        let (with_deadline, others): (Vec<_>, Vec<_>) =
            (leaves.into_iter()).partition(|leaf| topology.has_deadline(*leaf));
        let pending: Vec<_> = (with_deadline.into_iter())
            .map(|leaf| {
                let counters = topology.counters.get(leaf.0 as usize);
                let bytes = counters.map_or(0, |counters| counters.unflushed().retained_bytes());
                let flush = flush.clone();
                (leaf, topology.start(leaf, bytes, move || flush(leaf)))
            })
            .collect();
        let queues = &self.writing.pools(topology).queues;
        let mut outcomes = queues.map(others, move |leaf| (leaf, flush(leaf)));
        for (leaf, flushing) in pending {
            // The flush of a leaf that is out of use fails at once.
            let outcome = flushing.wait(topology);
            outcomes.push((leaf, outcome.unwrap_or_else(|_| topology.flush_leaf(leaf))));
        }
        outcomes
    }

    /// Takes what leaves missed since the last call: each leaf and txg once, sorted.
    #[must_use]
    pub fn take_missed(&self) -> Vec<Missed> {
        let missed = std::mem::take(&mut self.writing.notes.lock().missed);
        missed.into_iter().collect()
    }

    /// Returns what [`BlockStore::take_missed`] would, without taking it.
    #[must_use]
    pub fn noted_missed(&self) -> Vec<Missed> {
        self.writing.notes.lock().missed.iter().copied().collect()
    }

    /// Records that leaves lack the writes of `txg`: for dirty time logs (DTL), and for every later read.
    /// The topology is changed at once, because a leaf may be back in use before its DTL is written.
    pub(crate) fn note_missed(&self, topology: &Topology, leaves: &[LeafId], txg: Txg) {
        let mut news = vec![];
        for leaf in leaves {
            if let Some(counters) = topology.counters.get(leaf.0 as usize) {
                counters.note_missed(txg);
            }
            let guid = topology.leaf_guid(*leaf);
            let missed = Missed {
                leaf: *leaf,
                guid,
                txg,
            };
            let is_new = self.writing.notes.lock().missed.insert(missed);
            let is_there = topology.devices.get(leaf.0 as usize);
            if is_new && is_there.is_some_and(Option::is_some) {
                news.push(guid);
            }
        }
        if news.is_empty() {
            return;
        }
        self.change_topology(|topology| {
            for guid in news {
                let leaf = topology.tree.find_leaf(guid);
                let Some(entry) = leaf.and_then(|leaf| topology.health.entry(leaf)) else {
                    continue;
                };
                let next = txg.0.saturating_add(1);
                if entry.missed.iter().any(|range| range.contains(&txg.0)) {
                    continue;
                }
                match entry.missed.last_mut() {
                    Some(range) if range.end == txg.0 => range.end = next,
                    _ => entry.missed.push(txg.0..next),
                }
            }
        });
    }
}

/// Memory of the contents that wait for a flush, in bytes. The sides of a mirror share theirs.
fn retained_bytes(topology: &Topology) -> u64 {
    let mut of_tops: BTreeMap<VdevId, u64> = BTreeMap::new();
    for ((_, node), counters) in topology.tree.leaves().zip(&topology.counters) {
        let Some(top) = node.top else { continue };
        let retained = counters.unflushed().retained_bytes();
        let is_shared = topology.tree.top(top).map(|top| &top.kind) == Some(&VdevKind::Mirror);
        let sum = of_tops.entry(top).or_default();
        *sum = match is_shared {
            true => retained.max(*sum),
            false => sum.saturating_add(retained),
        };
    }
    of_tops.into_values().fold(0, u64::saturating_add)
}

/// Checks that every vdev survives the loss of these leaves.
///
/// A distributed spare is lost only where a leaf is lost that holds it, and there that leaf has no column of its own: of the two
/// only the leaf counts.
fn bearable(
    topology: &Topology,
    lost: &BTreeSet<Guid>,
    reasons: &[String],
) -> Result<(), FlushError> {
    let lost: BTreeSet<LeafId> = (lost.iter())
        .filter_map(|guid| topology.tree.find_leaf(*guid))
        .filter(|leaf| (topology.tree.leaf(*leaf)).is_some_and(|node| node.is_device()))
        .collect();
    let is_lost = |leaf| {
        let health = topology.leaf(leaf, Txg(u64::MAX));
        lost.contains(&leaf) || health == LeafHealth::Unreadable
    };
    for (vdev, _) in topology.tree.tops() {
        let is_hit = (lost.iter())
            .any(|leaf| topology.tree.leaf(*leaf).and_then(|node| node.top) == Some(vdev));
        if is_hit && !topology.tree.survives(vdev, &is_lost) {
            let reason = reasons.join("; ");
            return Err(FlushError { vdev, reason });
        }
    }
    Ok(())
}
