//! The state of a scan in memory: what is stored, and what only this session knows.

use crate::scan::error_scrub::ErrorScrub;
use crate::scan::events::{ScanEvent, ScanQueue};
use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use millpond_ondisk::{Guid, ScanPhase, ScanPhys, Txg};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The scan of a pool that is open for changes.
///
/// Lock: one, held for a few instructions, or for a copy of the queue.
#[derive(Debug, Default)]
pub(crate) struct ScanControl {
    state: Mutex<ScanState, rank::Leaf>,
    changed: Condvar,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ScanState {
    /// As stored by the txg that is being written.
    pub(crate) phys: ScanPhys,
    pub(crate) queue: ScanQueue,
    /// The txg that changed one of the two last.
    pub(crate) changed_txg: Txg,
    /// Incremented when a scan starts or is cancelled: the progress of an older one is void.
    pub(crate) serial: u64,
    /// The changes of datasets since the current slice began; `None` between slices.
    pub(crate) events: Option<Vec<ScanEvent>>,
    pub(crate) pass: ScanPass,
    pub(crate) losses: ScanLosses,
    /// Whether the running scan was begun since the pool was opened, so that `losses` has all its losses.
    pub(crate) is_whole: bool,
    /// The leaves that were in use in every slice since the pool was opened or the scan began. Of another one it does not
    /// know what was written to it.
    pub(crate) covered: BTreeSet<Guid>,
    pub(crate) error_scrub: ErrorScrub,
    pub(crate) has_ended: bool,
    /// What [`Pool::take_scan_notes`](crate::Pool::take_scan_notes) has not taken yet.
    pub(crate) notes: VecDeque<ScanNote>,
}

/// The most notes kept; the oldest ones are dropped.
const NOTES_MAX: usize = 512;

/// That a scan started, ended or was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanNote {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The last part of the class in `zpool events`, such as `scrub_start`.
    pub class: &'static str,
}

/// The progress of a scan since the pool was opened or the scan began, and of the slice under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanPass {
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// Bytes examined.
    pub examined_bytes: u64,
    /// Bytes read.
    pub issued_bytes: u64,
    /// When it was paused, in seconds since 1970; 0 if it runs.
    pub paused_at_s: u64,
    /// For how many seconds it was paused.
    pub spent_paused_s: u64,
    /// Bytes that the slice under way has examined. They are not in the stored state yet.
    pub slice_examined_bytes: u64,
    /// Bytes that the slice under way has read.
    pub slice_issued_bytes: u64,
}

/// What a scan could not repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanLosses {
    /// By leaf: the births of blocks of which the leaf lacks its part.
    pub leaves: BTreeMap<Guid, BTreeSet<Txg>>,
    /// The births of blocks without a right copy.
    pub lost: BTreeSet<Txg>,
    /// Leaves whose repairs could not be made durable: the births of those blocks.
    pub unflushed: BTreeMap<Guid, BTreeSet<Txg>>,
    /// Whether blocks were not visited of which it is not known that they are lost, so that leaves may lack them.
    pub has_unvisited: bool,
}

impl ScanLosses {
    /// Adds those of a slice.
    pub(crate) fn extend(&mut self, other: Self) {
        for (leaf, births) in other.leaves {
            self.leaves.entry(leaf).or_default().extend(births);
        }
        self.lost.extend(other.lost);
        for (leaf, births) in other.unflushed {
            self.unflushed.entry(leaf).or_default().extend(births);
        }
        self.has_unvisited |= other.has_unvisited;
    }
}

impl ScanControl {
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut ScanState) -> R) -> R {
        look(&mut self.state.lock())
    }
    /// A change of the state, after which the thread that scans looks again.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut ScanState) -> R) -> R {
        let value = change(&mut self.state.lock());
        self.changed.notify_all();
        value
    }
    /// Waits for a change, at most this long. Returns false when the pool ends.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has_ended {
            let _ = self.changed.wait_for(&mut state, at_most);
        }
        !state.has_ended
    }
    pub(crate) fn note(&self, time_ns: u64, class: &'static str) {
        self.with(|state| {
            if state.notes.len() >= NOTES_MAX {
                state.notes.pop_front();
            }
            state.notes.push_back(ScanNote { time_ns, class });
        });
    }
    pub(crate) fn end(&self) {
        self.change(|state| state.has_ended = true);
    }
}

impl ScanState {
    pub(crate) fn is_scanning(&self) -> bool {
        self.phys.phase == ScanPhase::Scanning
    }
}
