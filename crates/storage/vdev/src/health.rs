//! Which leaves are readable, and which missed a given txg.

use millpond_ondisk::Txg;

use crate::tree::LeafId;

/// Whether a leaf can be read for data of one txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeafHealth {
    /// It is open and its dirty time log (DTL) does not contain the txg.
    Good,
    /// As [`LeafHealth::Good`], but it has not answered for a while: other leaves are read first. It holds the data, so it
    /// is never written over without being read.
    Slow,
    /// It is open, but missed data born in the txg: read only as a last resort.
    Stale,
    /// It is absent, offline or faulted: never read.
    Unreadable,
}

/// The planner's view of leaf health. Implemented by the layer that opens devices and loads dirty time
/// logs. It is consulted only while a plan is made.
pub trait Health {
    /// The health of `leaf` for data physically born in `birth`. Also called for distributed spares; for
    /// them only [`LeafHealth::Stale`] and [`LeafHealth::Unreadable`] matter, because their bytes lie on
    /// other leaves.
    fn leaf(&self, leaf: LeafId, birth: Txg) -> LeafHealth;
    /// How many requests the leaf has queued or in flight. Reads of a mirror avoid a busy side.
    fn load(&self, leaf: LeafId) -> u64 {
        let _ = leaf;
        0
    }
}

/// Every leaf is present and complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllGood;

impl Health for AllGood {
    fn leaf(&self, _leaf: LeafId, _birth: Txg) -> LeafHealth {
        LeafHealth::Good
    }
}

/// The health of each leaf, with the txgs that it missed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeafTable {
    leaves: Vec<LeafEntry>,
}

/// One row of a [`LeafTable`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeafEntry {
    /// Whether the leaf is readable.
    pub is_readable: bool,
    /// Half-open ranges of txgs whose data the leaf lacks: its dirty time log (DTL).
    pub missed: Vec<core::ops::Range<u64>>,
}

impl LeafTable {
    /// A table of `count` leaves that are all present and complete.
    #[must_use]
    pub fn all_good(count: usize) -> Self {
        let entry = LeafEntry {
            is_readable: true,
            missed: Vec::new(),
        };
        Self {
            leaves: vec![entry; count],
        }
    }

    /// The txgs that `leaf` missed; none if it is not in the table.
    #[must_use]
    pub fn missed(&self, leaf: LeafId) -> &[core::ops::Range<u64>] {
        let at = usize::try_from(leaf.0).ok();
        let entry = at.and_then(|at| self.leaves.get(at));
        entry.map_or(&[], |entry| &entry.missed)
    }

    /// The row of `leaf`, mutable; `None` if it is not in the table.
    pub fn entry(&mut self, leaf: LeafId) -> Option<&mut LeafEntry> {
        self.leaves.get_mut(usize::try_from(leaf.0).ok()?)
    }
}

impl Health for LeafTable {
    fn leaf(&self, leaf: LeafId, birth: Txg) -> LeafHealth {
        let entry = usize::try_from(leaf.0)
            .ok()
            .and_then(|at| self.leaves.get(at));
        match entry {
            Some(entry) if !entry.is_readable => LeafHealth::Unreadable,
            Some(entry) if entry.missed.iter().any(|range| range.contains(&birth.0)) => {
                LeafHealth::Stale
            }
            Some(_) => LeafHealth::Good,
            None => LeafHealth::Unreadable,
        }
    }
}
