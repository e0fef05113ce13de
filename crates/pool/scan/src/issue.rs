//! Reads and repairs the blocks of a slice, in the order of their addresses.

use crate::gather::{Found, SharedBlocks};
use millpond_block::{BlockAudit, BlockError, BlockStore, Healed};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use millpond_env::thread;
use millpond_ondisk::{ScanFunction, Txg};
use millpond_pool::{LoggedError, SliceOutcome};
use millpond_vdev::{LeafId, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// How many blocks a thread takes at once.
const BATCH_BLOCKS: usize = 32;
/// The most errors of a slice that are logged.
const LOGGED_MAX: usize = 4096;

/// The leaves that were written, and the births of the blocks.
pub(crate) type Repaired = BTreeMap<LeafId, BTreeSet<Txg>>;

/// What all threads share.
struct Shared<'a> {
    store: &'a BlockStore,
    function: ScanFunction,
    found: &'a [Found],
    also: &'a SharedBlocks,
    next: AtomicUsize,
    issued_bytes: AtomicU64,
    outcome: Mutex<SliceOutcome, rank::Leaf>,
    repaired: Mutex<Repaired, rank::Leaf>,
    may_continue: &'a (dyn Fn(u64) -> bool + Sync),
}

/// Reads all copies of these blocks (a resilver: as few as it can) and repairs them. Returns what was found, and which
/// leaves were written. `None` if it was stopped: then nothing may be said of the slice, but repairs were made.
///
/// `also` has the other blocks that share some of them.
///
/// `may_continue` is called with the bytes issued so far.
pub(crate) fn issue(
    store: &BlockStore,
    function: ScanFunction,
    mut found: Vec<Found>,
    also: &SharedBlocks,
    threads: usize,
    may_continue: &(dyn Fn(u64) -> bool + Sync),
) -> Option<(SliceOutcome, Repaired)> {
    found.sort_by_key(|found| {
        let dva = found.pointer.dvas().next();
        dva.map(|dva| (dva.vdev, dva.offset_bytes))
    });
    let shared = Shared {
        store,
        function,
        found: &found,
        also,
        next: AtomicUsize::new(0),
        issued_bytes: AtomicU64::new(0),
        outcome: Mutex::default(),
        repaired: Mutex::default(),
        may_continue,
    };
    let batches = found.len().div_ceil(BATCH_BLOCKS);
    let run = || while shared.batch() {};
    if threads < 2 || thread::is_alone() {
        run();
    } else {
        thread::scope(|scope| {
            for _ in 1..threads.min(batches) {
                scope.spawn(run);
            }
            run();
        });
    }
    let is_done = may_continue(shared.issued_bytes.load(Ordering::Relaxed));
    is_done.then(|| (shared.outcome.into_inner(), shared.repaired.into_inner()))
}

impl Shared<'_> {
    /// Takes the next blocks. Returns whether there were any.
    fn batch(&self) -> bool {
        let from = self.next.fetch_add(BATCH_BLOCKS, Ordering::Relaxed);
        let end = from.saturating_add(BATCH_BLOCKS).min(self.found.len());
        let Some(batch) = self.found.get(from..end).filter(|batch| !batch.is_empty()) else {
            return false;
        };
        let bytes: u64 = batch.iter().map(|found| found.pointer.asize_bytes()).sum();
        let issued = self.issued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !(self.may_continue)(issued) {
            return false;
        }
        let wanted: Vec<_> = batch
            .iter()
            .map(|found| (found.pointer, found.address))
            .collect();
        let note = |number, audit| {
            if let Some(found) = batch.get(number) {
                self.note(found, &audit);
            }
        };
        match self.function {
            ScanFunction::Resilver => self.store.resilver_batch(&wanted, note),
            _ => self.store.heal_batch(&wanted, note),
        }
        true
    }

    fn note(&self, found: &Found, audit: &Result<BlockAudit, BlockError>) {
        let Ok(audit) = audit else {
            let mut outcome = self.outcome.lock();
            outcome.errors += 1;
            outcome.losses.lost.insert(found.pointer.physical_birth());
            self.log(&mut outcome, found);
            return;
        };
        if audit.is_clean() && audit.healed == Healed::default() {
            return;
        }
        let birth = found.pointer.physical_birth();
        let topology = self.store.topology();
        let healed = &audit.healed;
        let mut outcome = self.outcome.lock();
        outcome.processed_bytes += audit.healed_bytes();
        if !audit.is_readable {
            outcome.errors += 1;
            outcome.losses.lost.insert(birth);
            self.log(&mut outcome, found);
        }
        let absent = audit.findings.iter().filter_map(|(_, finding)| {
            (finding.verdict == Verdict::Absent).then_some(finding.leaf)
        });
        for leaf in healed.failed.iter().copied().chain(absent) {
            let guid = topology.leaf_guid(leaf);
            outcome.losses.leaves.entry(guid).or_default().insert(birth);
        }
        drop(outcome);
        let mut repaired = self.repaired.lock();
        for (leaf, _) in &healed.written {
            repaired.entry(*leaf).or_default().insert(birth);
        }
    }
}

impl Shared<'_> {
    /// Logs a block, and all that share it.
    fn log(&self, outcome: &mut SliceOutcome, found: &Found) {
        log(outcome, found);
        for other in self
            .also
            .get(&found.pointer.first_address())
            .into_iter()
            .flatten()
        {
            log(outcome, other);
        }
    }
}

/// Adds a block to those that are logged.
pub(crate) fn log(outcome: &mut SliceOutcome, found: &Found) {
    if outcome.lost.len() >= LOGGED_MAX {
        return;
    }
    outcome.lost.insert(logged(found));
}

fn logged(found: &Found) -> LoggedError {
    let birth = found.pointer.physical_birth();
    LoggedError::new(found.logged_under.0, &found.address, birth)
}

/// Whether a block is among those that are logged.
pub(crate) fn is_logged(outcome: &SliceOutcome, found: &Found) -> bool {
    outcome.lost.contains(&logged(found))
}
