//! Which leaves can be asked, and which of them missed the txg in question.

use millpond_ondisk::Txg;

use crate::tree::LeafId;

/// Whether a leaf is worth asking for data of one txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeafHealth {
    /// It is open and its dirty time log does not name the txg.
    Good,
    /// It is open, but data born in that txg never reached it: asked only when nothing else is left.
    Stale,
    /// It is absent, offline or faulted: never asked.
    Unreadable,
}

/// What the planner asks about leaves. Implemented by whoever opens devices and loads dirty time
/// logs; called while a plan is made, never later.
pub trait Health {
    /// The state of `leaf` for data physically born in `birth`. Distributed spares are asked about
    /// too; for them only [`LeafHealth::Stale`] and [`LeafHealth::Unreadable`] matter, since the
    /// bytes lie on other leaves.
    fn leaf(&self, leaf: LeafId, birth: Txg) -> LeafHealth;
}

/// Every leaf is present and complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllGood;

impl Health for AllGood {
    fn leaf(&self, _leaf: LeafId, _birth: Txg) -> LeafHealth {
        LeafHealth::Good
    }
}

/// A table of leaves with the txgs that each has missed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeafTable {
    leaves: Vec<LeafEntry>,
}

/// One row of a [`LeafTable`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeafEntry {
    /// Whether the leaf can be asked at all.
    pub is_readable: bool,
    /// Half-open ranges of txgs whose data is not on the leaf: its dirty time log.
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

    /// What `leaf` has missed; nothing beyond the table.
    #[must_use]
    pub fn missed(&self, leaf: LeafId) -> &[core::ops::Range<u64>] {
        let at = usize::try_from(leaf.0).ok();
        let entry = at.and_then(|at| self.leaves.get(at));
        entry.map_or(&[], |entry| &entry.missed)
    }

    /// The row of `leaf`, to be changed; `None` beyond the table.
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
