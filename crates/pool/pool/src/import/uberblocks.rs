//! Finds every committed state that the uberblock rings still hold, and selects which of them to open.

use crate::import::label::{LeafLabel, is_region_intact};
use crate::import::scan::FoundLeaf;
use millpond_device::Device;
use millpond_ondisk::{
    Ashift, BlockPointer, Guid, LeafLayout, Txg, UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES,
    Uberblock, UberblockRing,
};
use std::collections::{BTreeMap, BTreeSet};

/// The location of a copy of an uberblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UberblockPlace {
    /// The leaf.
    pub leaf: Guid,
    /// The label, 0 to 3.
    pub label: usize,
    /// The slot in the label's ring.
    pub slot: usize,
}

/// An uberblock with a valid checksum, with the locations of all its copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundUberblock {
    /// The uberblock.
    pub uberblock: Uberblock,
    /// The locations of its copies, at least one.
    pub places: Vec<UberblockPlace>,
}

/// One valid slot of a leaf's uberblock rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingUberblock {
    pub(crate) uberblock: Uberblock,
    pub(crate) label: usize,
    pub(crate) slot: usize,
}

/// The root pointers of the uberblocks of each txg. After a crash a txg may occur several times, because it was started
/// again. Heartbeats of a txg share its root pointer.
pub(crate) type States = BTreeMap<Txg, Vec<BlockPointer>>;

/// The states that slots of rings show.
pub(crate) fn states<'a>(slots: impl IntoIterator<Item = &'a RingUberblock>) -> States {
    let mut states = States::new();
    for RingUberblock { uberblock, .. } in slots {
        let roots = states.entry(uberblock.txg).or_default();
        if !roots.contains(&uberblock.root) {
            roots.push(uberblock.root);
        }
    }
    states
}

/// Reads the valid slots of all four rings of a leaf with label `label`. Unreadable slots count as empty.
///
/// Reads 512 KiB and returns at most 512 slots.
pub(crate) fn read_ring(device: &dyn Device, label: &LeafLabel) -> Vec<RingUberblock> {
    let ashift = label
        .config
        .list("vdev_tree")
        .and_then(|tree| tree.u64("ashift"));
    let known = ashift
        .ok()
        .and_then(|ashift| u8::try_from(ashift).ok())
        .map(|ashift| UberblockRing::new(Ashift(ashift)));
    let mut cuts = known.into_iter().chain(UberblockRing::all());
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return Vec::new();
    };
    let rings = layout.label_offsets_bytes().map(|label| {
        let offset_bytes = label.saturating_add(UBERBLOCK_RING_OFFSET_BYTES);
        let mut ring = vec![0u8; UBERBLOCK_RING_BYTES];
        device
            .read(offset_bytes, &mut ring)
            .ok()
            .map(|()| (label, ring))
    });
    // Other slot sizes are tried only if the size from the label's ashift yields no uberblock.
    cuts.find_map(|cut| {
        let mut valid = Vec::new();
        for (label, place) in rings.iter().enumerate() {
            let Some((label_offset, ring)) = place else {
                continue;
            };
            for (slot, (offset, bytes)) in cut.slots(ring).enumerate() {
                // Check the magic first; this avoids most checksum computations.
                if let Ok(uberblock) = Uberblock::decode(bytes)
                    && is_region_intact(bytes, label_offset.saturating_add(offset))
                {
                    valid.push(RingUberblock {
                        uberblock,
                        label,
                        slot,
                    });
                }
            }
        }
        (!valid.is_empty()).then_some(valid)
    })
    .unwrap_or_default()
}

/// The distinct uberblocks in the rings of `leaves`, newest first.
#[must_use]
pub fn read_uberblocks<'a>(leaves: impl IntoIterator<Item = &'a FoundLeaf>) -> Vec<FoundUberblock> {
    let mut all: Vec<(Uberblock, UberblockPlace)> = Vec::new();
    for leaf in leaves {
        for found in &leaf.ring {
            let place = UberblockPlace {
                leaf: leaf.guid(),
                label: found.label,
                slot: found.slot,
            };
            all.push((found.uberblock, place));
        }
    }
    // Sorts equal uberblocks next to each other. The encoding orders different uberblocks of one rank.
    all.sort_by(|(one, _), (other, _)| {
        other
            .rank()
            .cmp(&one.rank())
            .then_with(|| other.encode().cmp(&one.encode()))
    });
    let mut merged: Vec<FoundUberblock> = Vec::new();
    for (uberblock, place) in all {
        match merged.last_mut() {
            Some(last) if last.uberblock == uberblock => last.places.push(place),
            _ => merged.push(FoundUberblock {
                uberblock,
                places: vec![place],
            }),
        }
    }
    merged
}

/// Finds leaves that were used without the others while the others were used too, so each has txgs of its
/// own.
///
/// Returns, by guid, the first such txg. The leaves that hold the newest uberblock are the pool.
#[must_use]
pub fn diverged_leaves(newest_first: &[FoundUberblock]) -> BTreeMap<u64, Txg> {
    let mut diverged = BTreeMap::new();
    let Some(newest) = newest_first.first() else {
        return diverged;
    };
    let holders = |of: &FoundUberblock| -> BTreeSet<u64> {
        of.places.iter().map(|place| place.leaf.0).collect()
    };
    let pool = holders(newest);
    for of_txg in newest_first.chunk_by(|one, other| one.uberblock.txg == other.uberblock.txg) {
        // After a crash a txg may occur several times, because it was started again. Heartbeats of a txg
        // share its root pointer.
        let own: Vec<_> = (of_txg.iter())
            .filter(|found| !holders(found).is_disjoint(&pool))
            .map(|found| found.uberblock.root)
            .collect();
        if own.is_empty() {
            continue;
        }
        let (with, without): (Vec<_>, Vec<_>) =
            (of_txg.iter()).partition(|found| own.contains(&found.uberblock.root));
        let with: BTreeSet<u64> = with.into_iter().flat_map(holders).collect();
        let without = without
            .into_iter()
            .map(|found| (holders(found), found.uberblock.txg));
        for (leaves, txg) in without {
            let apart = leaves.difference(&with);
            diverged.extend(apart.map(|leaf| (*leaf, txg)));
        }
    }
    diverged
}

/// How far an import may rewind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rewind {
    /// Only the newest uberblock.
    #[default]
    Never,
    /// If the newest fails, uberblocks up to two txgs older, whose blocks have not been overwritten (`-F`).
    Recent,
    /// Any uberblock, newest first; its blocks may have been overwritten since (`-F -X`).
    Extreme,
    /// Any uberblock not newer than this txg, newest first (`-T`).
    ToTxg(Txg),
    /// Only the uberblock of this txg.
    Exactly(Txg),
}

/// Why there is no uberblock to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewindError {
    /// No device has an uberblock.
    #[error("no valid uberblock on any device")]
    NoUberblock,
    /// All uberblocks are newer than the requested txg.
    #[error("the oldest uberblock is of txg {oldest}")]
    NoneSoOld {
        /// The oldest uberblock's txg.
        oldest: Txg,
    },
    /// No label names this state any more.
    #[error("no device has the uberblock of txg {txg} any more")]
    NotKept {
        /// The requested txg.
        txg: Txg,
    },
    /// A RAID-Z expansion has moved blocks since, so older states are unreadable.
    #[error("the pool cannot be rewound across progress of a RAID-Z expansion")]
    AcrossReflow,
}

/// The uberblocks of `newest_first` to try, in order: the newest of each txg.
pub(crate) fn choices(
    newest_first: &[FoundUberblock],
    rewind: Rewind,
) -> Result<Vec<&FoundUberblock>, RewindError> {
    let (Some(newest), Some(oldest)) = (newest_first.first(), newest_first.last()) else {
        return Err(RewindError::NoUberblock);
    };
    let newest = newest.uberblock;
    let is_wanted = |txg: Txg| match rewind {
        Rewind::Never => txg == newest.txg,
        Rewind::Recent => txg.0 >= newest.txg.0.saturating_sub(TXGS_KEPT),
        Rewind::Extreme => true,
        Rewind::ToTxg(bound) => txg <= bound,
        Rewind::Exactly(wanted) => txg == wanted,
    };
    let mut wanted: Vec<&FoundUberblock> = newest_first
        .iter()
        .filter(|found| is_wanted(found.uberblock.txg))
        .collect();
    wanted.dedup_by_key(|found| found.uberblock.txg);
    if wanted.is_empty() {
        let oldest = oldest.uberblock.txg;
        return Err(match rewind {
            Rewind::Exactly(txg) if txg >= oldest => RewindError::NotKept { txg },
            _ => RewindError::NoneSoOld { oldest },
        });
    }
    wanted.retain(|found| found.uberblock.raidz_reflow == newest.raidz_reflow);
    if wanted.is_empty() {
        return Err(RewindError::AcrossReflow);
    }
    Ok(wanted)
}

/// Freed blocks are reused only after this many txgs.
pub(crate) const TXGS_KEPT: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::next_uberblock;
    use millpond_ondisk::RaidzReflow;

    fn found(txg: u64, timestamp_s: u64, reflow: u64) -> FoundUberblock {
        let root = BlockPointer::default();
        let uberblock = Uberblock {
            mmp_magic: 0,
            raidz_reflow: RaidzReflow(reflow),
            ..next_uberblock(None, 5000, Txg(txg), root, 0, timestamp_s)
        };
        FoundUberblock {
            uberblock,
            places: Vec::new(),
        }
    }

    fn txgs(list: &[FoundUberblock], rewind: Rewind) -> Result<Vec<(u64, u64)>, RewindError> {
        let chosen = choices(list, rewind)?;
        Ok(chosen
            .iter()
            .map(|found| (found.uberblock.txg.0, found.uberblock.timestamp_s))
            .collect())
    }

    #[test]
    fn each_rewind_offers_its_txgs_newest_first() {
        let list = [
            found(20, 2, 0),
            found(20, 1, 0),
            found(19, 1, 0),
            found(17, 1, 0),
            found(4, 1, 0),
        ];
        assert_eq!(txgs(&list, Rewind::Never), Ok(vec![(20, 2)]));
        assert_eq!(txgs(&list, Rewind::Recent), Ok(vec![(20, 2), (19, 1)]));
        assert_eq!(txgs(&list, Rewind::Extreme).unwrap().len(), 4);
        assert_eq!(txgs(&list, Rewind::Exactly(Txg(19))), Ok(vec![(19, 1)]));
        let gone = RewindError::NotKept { txg: Txg(18) };
        assert_eq!(txgs(&list, Rewind::Exactly(Txg(18))), Err(gone));
        assert_eq!(
            txgs(&list, Rewind::ToTxg(Txg(18))),
            Ok(vec![(17, 1), (4, 1)])
        );
        assert_eq!(
            txgs(&list, Rewind::ToTxg(Txg(3))),
            Err(RewindError::NoneSoOld { oldest: Txg(4) })
        );
        assert_eq!(txgs(&[], Rewind::Never), Err(RewindError::NoUberblock));
    }

    #[test]
    fn leaves_with_diverged_txgs_are_found() {
        let with_root = |txg: u64, root: u64, leaves: &[u64]| {
            let mut found = found(txg, txg, 0);
            found.uberblock.root.words[10] = root;
            found.places = (leaves.iter())
                .map(|leaf| UberblockPlace {
                    leaf: Guid(*leaf),
                    label: 0,
                    slot: 0,
                })
                .collect();
            found
        };
        // 3 was absent and unused; 2 was used without 1 from txg 11 on; 4 has only a copy from a heartbeat.
        let list = [
            with_root(13, 1, &[1]),
            with_root(12, 1, &[1]),
            with_root(12, 2, &[2]),
            with_root(11, 1, &[1]),
            with_root(11, 2, &[2]),
            with_root(10, 1, &[1, 2, 3, 4]),
            with_root(9, 1, &[1, 2, 3]),
        ];
        assert_eq!(diverged_leaves(&list), BTreeMap::from([(2, Txg(11))]));
        // The same txg again after a crash: one copy on one leaf, the other on both.
        let list = [
            with_root(11, 1, &[1]),
            with_root(11, 2, &[1, 2]),
            with_root(10, 1, &[1, 2]),
        ];
        assert_eq!(diverged_leaves(&list), BTreeMap::new());
        assert_eq!(diverged_leaves(&[]), BTreeMap::new());
    }

    #[test]
    fn states_before_the_last_reflow_progress_are_not_offered() {
        let list = [found(20, 1, 7), found(19, 1, 7), found(18, 1, 5)];
        assert_eq!(txgs(&list, Rewind::Recent), Ok(vec![(20, 1), (19, 1)]));
        assert_eq!(
            txgs(&list, Rewind::ToTxg(Txg(18))),
            Err(RewindError::AcrossReflow)
        );
    }
}
