//! What a check is asked for and what it answers.

use super::finding::{Finding, FindingKind};
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicU64, Ordering};

/// What is to be checked.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Files, names and owners of snapshots, too; else of heads only. Blocks and figures of snapshots are
    /// always checked.
    pub with_snapshots_files: bool,
    /// How many findings are kept in the report; all are counted and told as they are found.
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

/// How far a check has come; read by whoever shows it, while it runs.
#[derive(Debug, Default)]
pub struct CheckProgress {
    blocks: AtomicU64,
    allocated_bytes: AtomicU64,
    objects: AtomicU64,
}

impl CheckProgress {
    pub(super) fn add_block(&self, allocated_bytes: u64) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.allocated_bytes
            .fetch_add(allocated_bytes, Ordering::Relaxed);
    }
    pub(super) fn add_object(&self) {
        self.objects.fetch_add(1, Ordering::Relaxed);
    }
    /// Blocks counted so far.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
    /// Bytes that these blocks take on their vdevs.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }
    /// Objects looked into so far.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }
}

/// The numbers of a check, as `zdb -b` has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckTotals {
    /// Pointers to stored blocks, each once; holes and embedded blocks are none.
    pub pointers: u64,
    /// Blocks that live inside of their pointers.
    pub embedded: u64,
    /// Logical bytes of all blocks, embedded ones included.
    pub logical_bytes: u64,
    /// Physical bytes of the stored blocks.
    pub physical_bytes: u64,
    /// Bytes that their addresses claim, all copies and parity, repeats of shared blocks included.
    pub allocated_bytes: u64,
    /// Of these, what repeats of deduplicated and cloned blocks claim beyond the first.
    pub shared_bytes: u64,
    /// Addresses that lead to gang headers: as many as `zdb` calls ganged.
    pub gangs: u64,
    /// Bytes allocated by the space maps and their logs.
    pub mapped_bytes: u64,
    /// Of these, bytes that only a checkpoint holds.
    pub checkpoint_bytes: u64,
    /// Bytes allocated that nobody owns.
    pub leaked_bytes: u64,
    /// Objects looked into.
    pub objects: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What is wrong, in the order of datasets and objects; at most as many as were asked for.
    pub findings: Vec<Finding>,
    /// How many more there are.
    pub not_listed: u64,
    /// What could not be judged, and why: encrypted datasets without a key, half-received ones.
    pub not_judged: Vec<String>,
    /// The numbers.
    pub totals: CheckTotals,
}

impl CheckReport {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.not_listed == 0
    }
    /// Whether something of this kind was found.
    #[must_use]
    pub fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }
}

/// Where findings go: to whoever watches and, up to a bound, into the report.
pub(super) struct Findings<'a> {
    on_finding: &'a (dyn Fn(&Finding) + Sync),
    max: usize,
    state: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    findings: Vec<Finding>,
    not_listed: u64,
    not_judged: Vec<String>,
}

/// More reasons than this are not kept.
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
