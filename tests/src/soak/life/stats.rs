//! Statistics of simulated runs.

use millpond_sim::Trace;
use std::ops::AddAssign;

/// What happened in the runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Operations of all kinds.
    pub ops: u64,
    /// Txgs committed.
    pub txgs: u64,
    /// Power cuts survived.
    pub cuts: u64,
    /// Clean reopenings.
    pub reopened: u64,
    /// Faults planted.
    pub faults: u64,
    /// Disk requests that failed or were carried out incorrectly.
    pub broken_promises: u64,
    /// Recounts of all space counters.
    pub recounted: u64,
    /// Comparisons of a whole pool with the model.
    pub compared: u64,
    /// Checks by `zdb`.
    pub judged: u64,
    /// Runs that ended early because the pool was full.
    pub full: u64,
    /// Intent log promises that were kept.
    pub promises: u64,
    /// Effects restored after a power cut only by an intent log.
    pub brought_back: u64,
    /// Power cuts after which a log restored more than the promises, or less than the work in progress.
    pub torn: u64,
    /// Log devices lost with the promises on them.
    pub lost_logs: u64,
    /// Slices of scrubs and resilvers.
    pub slices: u64,
    /// How often resilver and scrub ended all damage.
    pub mended: u64,
    /// Disks attached as replacements or sides of mirrors.
    pub attached: u64,
    /// Disks replaced.
    pub replaced: u64,
    /// Sides taken out of mirrors.
    pub detached: u64,
    /// Sequential resilvers.
    pub rebuilt: u64,
    /// Hot spares that stepped in.
    pub spared: u64,
    /// How often a vdev grew.
    pub grown: u64,
    /// Slices that discarded or filled free space.
    pub trimmed: u64,
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// How often a pool returned to its checkpoint.
    pub rewound: u64,
    /// Data vdevs removed.
    pub removed: u64,
    /// Removals given up.
    pub cancelled: u64,
    /// RAID-Z vdevs expanded.
    pub expanded: u64,
    /// All disk requests in order.
    pub trace: Trace,
}

impl AddAssign for RunStats {
    fn add_assign(&mut self, other: Self) {
        self.ops += other.ops;
        self.txgs += other.txgs;
        self.cuts += other.cuts;
        self.reopened += other.reopened;
        self.faults += other.faults;
        self.broken_promises += other.broken_promises;
        self.recounted += other.recounted;
        self.compared += other.compared;
        self.judged += other.judged;
        self.full += other.full;
        self.promises += other.promises;
        self.brought_back += other.brought_back;
        self.torn += other.torn;
        self.lost_logs += other.lost_logs;
        self.slices += other.slices;
        self.mended += other.mended;
        self.attached += other.attached;
        self.replaced += other.replaced;
        self.detached += other.detached;
        self.rebuilt += other.rebuilt;
        self.spared += other.spared;
        self.grown += other.grown;
        self.trimmed += other.trimmed;
        self.checkpoints += other.checkpoints;
        self.rewound += other.rewound;
        self.removed += other.removed;
        self.cancelled += other.cancelled;
        self.expanded += other.expanded;
        self.trace += other.trace;
    }
}
