//! The leaves that a pool's blocks lie on, and what they have done so far.

use millpond_device::{Device, DeviceError};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_ondisk::BlockPointer;
use millpond_vdev::{
    AuditFinding, Blame, BlameReason, IndirectTables, LeafFault, LeafId, LeafOutcome, LeafRead,
    LeafTable, VdevTree, Verdict,
};

/// A pool's vdev tree with the devices of its leaves: what has to be known to read a block.
/// Immutable; a changed tree is a new value.
#[derive(Debug)]
pub struct Topology {
    /// The tree.
    pub tree: VdevTree,
    /// The device of each leaf by its number; `None` where it is absent.
    pub devices: Vec<Option<Arc<dyn Device>>>,
    /// Which leaves can be asked, and what each has missed.
    pub health: LeafTable,
    /// Where removed vdevs went.
    pub indirect: IndirectTables,
    /// Whether gang headers may fill the smallest allocation of their vdev.
    pub has_large_gang_headers: bool,
    /// What each leaf has done, by its number.
    pub counters: Vec<LeafCounters>,
}

/// What a leaf did since the pool was opened, as `zpool status` counts it.
#[derive(Debug, Default)]
pub struct LeafCounters {
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

/// A copy of a leaf's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeafFigures {
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Reads that succeeded with wrong bytes.
    pub checksum_errors: u64,
    /// Reads issued.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

impl LeafCounters {
    fn starting_at(figures: LeafFigures) -> Self {
        Self {
            read_errors: figures.read_errors.into(),
            checksum_errors: figures.checksum_errors.into(),
            reads: figures.reads.into(),
            read_bytes: figures.read_bytes.into(),
        }
    }
    /// A copy of the present figures.
    #[must_use]
    pub fn figures(&self) -> LeafFigures {
        LeafFigures {
            read_errors: self.read_errors.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Topology {
    /// A topology whose leaves have done nothing yet. `devices` is by leaf number.
    #[must_use]
    pub fn new(
        tree: VdevTree,
        devices: Vec<Option<Arc<dyn Device>>>,
        health: LeafTable,
        indirect: IndirectTables,
    ) -> Self {
        let counters = (0..tree.leaf_count())
            .map(|_| LeafCounters::default())
            .collect();
        Self {
            tree,
            devices,
            health,
            indirect,
            has_large_gang_headers: false,
            counters,
        }
    }

    /// Takes over what the leaves of `old` have done, by their guids: for a changed tree over the same
    /// devices.
    pub fn continue_counters(&mut self, old: &Self) {
        for (leaf, node) in self.tree.leaves() {
            let Some(before) = old.tree.find_leaf(node.config.guid) else {
                continue;
            };
            let done = old.figures(before);
            if let Some(counters) = self.counters.get_mut(leaf.0 as usize) {
                *counters = LeafCounters::starting_at(done);
            }
        }
    }

    /// More bytes than all blocks of the pool can take on their devices, removed vdevs included: twice
    /// what the devices hold, and a little. Walks over a pool whose pointers claim more are not worth
    /// ending: many pointers lead to one block. An absent device counts as the largest present one.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        let sizes = self
            .devices
            .iter()
            .flatten()
            .map(|device| device.size_bytes());
        let largest = sizes.max().unwrap_or(0);
        let leaves = self.devices.len() as u64;
        let tops = self.tree.tops().map(|(_, top)| top.config.asize_bytes);
        let claimed = tops.fold(0, u64::saturating_add);
        claimed
            .min(largest.saturating_mul(leaves))
            .saturating_mul(2)
            .saturating_add(64 << 20)
    }

    /// What a leaf has done; zeros for a number that no leaf has.
    #[must_use]
    pub fn figures(&self, leaf: LeafId) -> LeafFigures {
        self.counters
            .get(leaf.0 as usize)
            .map(LeafCounters::figures)
            .unwrap_or_default()
    }

    /// Performs one read of a plan.
    pub(crate) fn read_leaf(&self, read: &LeafRead) -> LeafOutcome {
        let index = read.leaf.0 as usize;
        let device = self
            .devices
            .get(index)
            .and_then(Option::as_ref)
            .ok_or(LeafFault::Absent)?;
        if read
            .offset_bytes
            .checked_add(read.length_bytes)
            .is_none_or(|end| end > device.size_bytes())
        {
            return Err(LeafFault::OutOfRange);
        }
        // A plan's reads are never longer than a block with its padding: below 32 MiB.
        let length = usize::try_from(read.length_bytes).map_err(|_| LeafFault::Length)?;
        if let Some(counters) = self.counters.get(index) {
            counters.reads.fetch_add(1, Ordering::Relaxed);
            counters
                .read_bytes
                .fetch_add(read.length_bytes, Ordering::Relaxed);
        }
        device
            .read_vec(read.offset_bytes, length)
            .map_err(|error| match error {
                DeviceError::OutOfRange { .. } => LeafFault::OutOfRange,
                _ => LeafFault::Io,
            })
    }

    /// Counts what a plan found out about leaves.
    pub(crate) fn count(&self, blames: &[Blame]) {
        for blame in blames {
            let Some(counters) = self.counters.get(blame.leaf.0 as usize) else {
                continue;
            };
            match blame.reason {
                BlameReason::Checksum => {
                    counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
                }
                BlameReason::Io(LeafFault::Absent) | BlameReason::Stale => {}
                BlameReason::Io(_) => {
                    counters.read_errors.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Counts what an audit found out about a leaf.
    pub(crate) fn count_finding(&self, finding: &AuditFinding) {
        let Some(counters) = self.counters.get(finding.leaf.0 as usize) else {
            return;
        };
        match finding.verdict {
            Verdict::Wrong => {
                counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Fault(fault) if fault != LeafFault::Absent => {
                counters.read_errors.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Whether each address of a pointer lies on a vdev that can hold it.
    pub(crate) fn accepts(&self, pointer: &BlockPointer) -> Result<(), &'static str> {
        for dva in pointer.dvas() {
            if dva.vdev.0 as usize >= self.tree.top_count() {
                return Err("address names a vdev that does not exist");
            }
        }
        Ok(())
    }

    /// The leaf's name for people: its path, or what stands for it.
    #[must_use]
    pub fn leaf_name(&self, leaf: LeafId) -> String {
        match self.tree.leaf(leaf) {
            Some(node) => node
                .config
                .path
                .clone()
                .unwrap_or_else(|| format!("guid {}", node.config.guid)),
            None => format!("leaf {}", leaf.0),
        }
    }
}
