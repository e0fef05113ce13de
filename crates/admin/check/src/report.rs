//! Options and results of a check.

use super::finding::{Finding, FindingKind};
use millpond_env::rank;
use millpond_env::sync::Mutex;

/// Options of a check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Whether to also check files, names and owners in snapshots, not only in heads. Blocks and statistics
    /// of snapshots are always checked.
    pub with_snapshots_files: bool,
    /// Upper bound of the findings in the report. All are counted and passed to the callback.
    pub findings_max: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            with_snapshots_files: true,
            findings_max: 10_000,
        }
    }
}

/// Totals of a check, as in `zdb -b`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckTotals {
    /// Pointers to stored blocks, each counted once. Holes and embedded blocks are excluded.
    pub pointers: u64,
    /// Embedded blocks.
    pub embedded: u64,
    /// Logical bytes of all blocks, including embedded ones.
    pub logical_bytes: u64,
    /// Physical bytes of the stored blocks.
    pub physical_bytes: u64,
    /// Allocated bytes according to the pointers, for all copies and parity, including repeated references to
    /// shared blocks.
    pub allocated_bytes: u64,
    /// The part of `allocated_bytes` that comes from repeated references to deduplicated and cloned blocks.
    pub shared_bytes: u64,
    /// Addresses of gang headers: the count that `zdb` calls ganged.
    pub gangs: u64,
    /// Allocated bytes according to the space maps and their logs.
    pub mapped_bytes: u64,
    /// The part of `mapped_bytes` that only a checkpoint refers to.
    pub checkpoint_bytes: u64,
    /// Allocated bytes without an owner.
    pub leaked_bytes: u64,
    /// Objects checked.
    pub objects: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Findings, ordered by dataset and object; at most [`CheckOptions::findings_max`].
    pub findings: Vec<Finding>,
    /// Count of findings that are not in `findings`.
    pub not_listed: u64,
    /// What could not be checked, with the reason: for instance encrypted datasets without a key, and
    /// partially received ones.
    pub not_judged: Vec<String>,
    /// Totals.
    pub totals: CheckTotals,
}

impl CheckReport {
    /// Whether there are no findings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.not_listed == 0
    }
    /// Whether there is a finding of this kind.
    #[must_use]
    pub fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }
}

/// Collects findings: passes them to the callback and, up to a bound, stores them for the report.
pub(super) struct Findings<'a> {
    on_finding: &'a (dyn Fn(&Finding) + Sync),
    max: usize,
    state: Mutex<Kept, rank::Leaf>,
}

#[derive(Default)]
struct Kept {
    findings: Vec<Finding>,
    not_listed: u64,
    not_judged: Vec<String>,
}

/// Upper bound of the reasons in [`CheckReport::not_judged`].
const NOT_JUDGED_MAX: usize = 10_000;

impl<'a> Findings<'a> {
    pub(super) fn new(on_finding: &'a (dyn Fn(&Finding) + Sync), max: usize) -> Self {
        Self {
            on_finding,
            max,
            state: Mutex::default(),
        }
    }
    pub(super) fn add(&self, finding: Finding) {
        (self.on_finding)(&finding);
        let mut state = self.state.lock();
        if state.findings.len() < self.max {
            state.findings.push(finding);
        } else {
            state.not_listed = state.not_listed.saturating_add(1);
        }
    }
    pub(super) fn not_judged(&self, reason: String) {
        let mut state = self.state.lock();
        if state.not_judged.len() < NOT_JUDGED_MAX {
            state.not_judged.push(reason);
        }
    }
    pub(super) fn finish(self, totals: CheckTotals) -> CheckReport {
        let mut kept = self.state.into_inner();
        kept.findings.sort_by(|a, b| {
            (&a.dataset, a.object, a.kind, a).cmp(&(&b.dataset, b.object, b.kind, b))
        });
        kept.not_judged.sort();
        CheckReport {
            findings: kept.findings,
            not_listed: kept.not_listed,
            not_judged: kept.not_judged,
            totals,
        }
    }
}
