//! What lives amount to.

use millpond_sim::Trace;
use std::ops::AddAssign;

/// What was lived through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations done, all kinds.
    pub ops: u64,
    /// Txgs committed.
    pub txgs: u64,
    /// Power cuts survived.
    pub cuts: u64,
    /// Clean reopenings.
    pub reopened: u64,
    /// Faults planted.
    pub faults: u64,
    /// Requests of disks that went wrong.
    pub broken_promises: u64,
    /// Times that every figure was counted anew.
    pub recounted: u64,
    /// Comparisons of a whole pool with the model.
    pub compared: u64,
    /// Judgements by `zdb`.
    pub judged: u64,
    /// Lives that ended early because the pool was full.
    pub full: u64,
    /// Promises of intent logs kept.
    pub promises: u64,
    /// Effects that only an intent log brought back after a power cut.
    pub brought_back: u64,
    /// Power cuts after which a log brought back more than was promised, or less than was under way.
    pub torn: u64,
    /// Log devices lost, with what was promised on them.
    pub lost_logs: u64,
    /// All requests to the disks, in their order.
    pub trace: Trace,
}

impl AddAssign for Figures {
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
        self.trace += other.trace;
    }
}
