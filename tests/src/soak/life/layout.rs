//! Which disks are in a pool, and in which position of it.
//!
//! It is read from the pool's configuration after each opening and each change of disks: a power cut may have undone
//! the change.

use super::*;
use millpond_engine::NewLayout;
use millpond_vdev::{VdevConfig, VdevType};

/// A top-level vdev and a position in it. Disks that come later get new positions behind the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) top: usize,
    pub(super) slot: usize,
}

/// A top-level vdev.
#[derive(Debug, Clone)]
struct Top {
    kind: VdevType,
    is_log: bool,
    /// Whether it is being removed or expanded.
    is_moving: bool,
    slots: Vec<Slot>,
}

/// What is in a position.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// Two while one of them replaces the other or a spare stands in for it, the old one first. None where a distributed
    /// spare stays.
    disks: Vec<usize>,
    /// The name of the distributed spare that stands in.
    spare: Option<String>,
}

impl Slot {
    fn leaves(&self) -> Vec<String> {
        let disks = self.disks.iter().map(|disk| path(*disk));
        disks.chain(self.spare.clone()).collect()
    }
}

/// The positions of a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    tops: Vec<Top>,
}

impl Layout {
    /// Reads a configuration.
    pub(super) fn of(root: &VdevConfig) -> Result<Self, String> {
        let tops = root.children.iter().map(|top| {
            let slots = match top.kind {
                VdevType::Mirror | VdevType::Raidz | VdevType::Draid => {
                    top.children.iter().map(slot_of).collect()
                }
                // It was removed.
                VdevType::Indirect | VdevType::Hole => Ok(vec![]),
                _ => Ok(vec![slot_of(top)?]),
            };
            Ok(Top {
                kind: top.kind,
                is_log: top.is_log,
                is_moving: top.removing || top.raidz_expanding,
                slots: slots?,
            })
        });
        let tops: Result<_, String> = tops.collect();
        Ok(Self { tops: tops? })
    }

    /// All positions.
    pub(super) fn positions(&self) -> Vec<Position> {
        let tops = self.tops.iter().enumerate();
        tops.flat_map(|(top, one)| (0..one.slots.len()).map(move |slot| Position { top, slot }))
            .collect()
    }

    /// The disks of a position, none if it does not exist.
    pub(super) fn disks(&self, position: Position) -> &[usize] {
        let top = self.tops.get(position.top);
        top.and_then(|top| top.slots.get(position.slot))
            .map_or(&[], |slot| &slot.disks)
    }

    /// The paths of the leaves in a position: its disks, then the distributed spare that stands in for one.
    pub(super) fn leaves(&self, position: Position) -> Vec<String> {
        let slot = self
            .top(position)
            .and_then(|top| top.slots.get(position.slot));
        slot.map(Slot::leaves).unwrap_or_default()
    }

    /// The RAID-Z vdevs.
    pub(super) fn raidz(&self) -> Vec<usize> {
        self.tops_that(|top| top.kind == VdevType::Raidz)
    }

    /// The vdevs that hold data and can be removed if others stay.
    pub(super) fn removable(&self) -> Vec<usize> {
        let is_it = |top: &Top| matches!(top.kind, VdevType::Mirror) || top.kind.is_leaf();
        self.tops_that(|top| is_it(top) && !top.is_log)
    }

    /// A log vdev with redundancy.
    pub(super) fn mirrored_log(&self) -> Option<usize> {
        let logs = self.tops_that(|top| top.is_log && top.slots.len() > 1);
        logs.first().copied()
    }

    fn tops_that(&self, is_it: impl Fn(&Top) -> bool) -> Vec<usize> {
        let tops = self.tops.iter().enumerate();
        tops.filter(|(_, top)| is_it(top))
            .map(|(number, _)| number)
            .collect()
    }

    /// Whether the vdev of a disk is being removed or expanded. What moves is copied without a look at checksums.
    pub(super) fn is_moving(&self, disk: usize) -> bool {
        let top = self
            .position_of(disk)
            .and_then(|position| self.top(position));
        top.is_some_and(|top| top.is_moving)
    }

    /// The position of a disk.
    pub(super) fn position_of(&self, disk: usize) -> Option<Position> {
        let mut positions = self.positions().into_iter();
        positions.find(|position| self.disks(*position).contains(&disk))
    }

    /// Whether a disk is being replaced, or a spare stands in for one.
    pub(super) fn is_replacing(&self) -> bool {
        let mut slots = self.tops.iter().flat_map(|top| &top.slots);
        slots.any(|slot| slot.leaves().len() > 1)
    }

    /// All disks of the pool.
    pub(super) fn all(&self) -> BTreeSet<usize> {
        let slots = self.tops.iter().flat_map(|top| &top.slots);
        slots.flat_map(|slot| &slot.disks).copied().collect()
    }

    /// Whether a position's top-level vdev survives the loss of a position.
    pub(super) fn is_redundant(&self, position: Position) -> bool {
        self.top(position).is_some_and(|top| top.slots.len() > 1)
    }

    /// Whether a position is that of a log device without redundancy.
    pub(super) fn is_single_log(&self, position: Position) -> bool {
        self.top(position)
            .is_some_and(|top| top.is_log && top.slots.len() == 1)
    }

    /// Whether a position is in a log vdev.
    pub(super) fn is_log(&self, position: Position) -> bool {
        self.top(position).is_some_and(|top| top.is_log)
    }

    /// Whether a position is one side of a mirror, or alone and could become one.
    pub(super) fn takes_sides(&self, position: Position) -> bool {
        self.top(position)
            .is_some_and(|top| !matches!(top.kind, VdevType::Raidz | VdevType::Draid))
    }

    /// All positions of the same top-level vdev.
    pub(super) fn vdev(&self, position: Position) -> impl Iterator<Item = Position> {
        (0..self.siblings(position)).map(move |slot| Position { slot, ..position })
    }

    /// The number of positions in the same top-level vdev.
    pub(super) fn siblings(&self, position: Position) -> usize {
        self.top(position).map_or(0, |top| top.slots.len())
    }

    /// Disks without redundancy.
    pub(super) fn without_redundancy(&self) -> BTreeSet<usize> {
        let positions = self.positions().into_iter();
        let plain = positions.filter(|position| !self.is_redundant(*position));
        plain
            .flat_map(|position| self.disks(position).to_vec())
            .collect()
    }

    /// Places that may all fail at once, in any way. All disks must be complete. In one of three cases there are none, in
    /// two of three where vdevs are removed or expanded.
    pub(super) fn victims(&self, shape: &Shape, rng: &mut SeededRng) -> Vec<Position> {
        let mut victims = BTreeSet::new();
        if rng.below(3) == 0 || shape.is_reshaped && rng.below(2) == 0 {
            return vec![];
        }
        for (top, one) in self.tops.iter().enumerate() {
            let leaves = one.slots.len();
            let bears = match (one.kind, shape.tops.get(top)) {
                (VdevType::Mirror, _) => leaves.saturating_sub(1),
                (VdevType::Raidz, Some((_, NewLayout::Raidz(parity), _))) => usize::from(*parity),
                (VdevType::Draid, Some((_, NewLayout::Draid(shape), _))) => {
                    usize::from(shape.parity)
                }
                _ => 0,
            };
            for _ in 0..bears {
                let slot = rng.below(leaves);
                victims.insert(Position { top, slot });
            }
        }
        victims.into_iter().collect()
    }

    fn top(&self, position: Position) -> Option<&Top> {
        self.tops.get(position.top)
    }
}

fn slot_of(vdev: &VdevConfig) -> Result<Slot, String> {
    match vdev.kind {
        VdevType::Replacing | VdevType::Spare => {
            let mut all = Slot::default();
            for child in &vdev.children {
                let slot = slot_of(child)?;
                all.disks.extend(slot.disks);
                all.spare = all.spare.or(slot.spare);
            }
            Ok(all)
        }
        VdevType::DraidSpare => Ok(Slot {
            disks: vec![],
            spare: vdev.path.clone(),
        }),
        kind if kind.is_leaf() => {
            let path = vdev.path.as_deref().unwrap_or_default();
            let number = path
                .strip_prefix("/sim/d")
                .and_then(|text| text.parse().ok());
            Ok(Slot {
                disks: vec![number.ok_or_else(|| format!("a leaf at {path:?}"))?],
                spare: None,
            })
        }
        kind => Err(format!("a vdev of kind {kind:?}")),
    }
}
