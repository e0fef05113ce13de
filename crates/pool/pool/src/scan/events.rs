//! What changes of datasets mean to a running scan.
//!
//! Page `docs/format/scan-state.md`, "When datasets change".

use millpond_ondisk::{BlockBookmark, ObjectId, ScanFlags, ScanPhys, Txg};
use std::collections::BTreeMap;

/// The datasets that a scan will visit, and the txg after whose blocks: 0 is that of the previous snapshot.
pub type ScanQueue = BTreeMap<ObjectId, Txg>;

/// The bookmark between two datasets: the next one is taken from the queue.
pub const NEXT_DATASET: BlockBookmark = BlockBookmark {
    object_set: u64::MAX,
    object: 0,
    level: 0,
    block_id: 0,
};

/// A change of datasets that a scan must follow, in the same txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanEvent {
    /// A snapshot was destroyed. `next` is the snapshot or head that followed it.
    SnapshotDestroyed {
        /// The snapshot.
        id: ObjectId,
        /// Its successor.
        next: ObjectId,
    },
    /// A head was destroyed.
    HeadDestroyed {
        /// The head.
        id: ObjectId,
    },
    /// A snapshot was taken.
    SnapshotTaken {
        /// The head.
        head: ObjectId,
        /// The new snapshot, which has the blocks of the head.
        snapshot: ObjectId,
    },
    /// Two datasets exchanged their contents.
    Swapped {
        /// One.
        one: ObjectId,
        /// The other.
        other: ObjectId,
    },
}

impl ScanEvent {
    /// Applies it. Returns whether the scan is concerned.
    pub(crate) fn apply(self, scan: &mut ScanPhys, queue: &mut ScanQueue) -> bool {
        match self {
            Self::SnapshotDestroyed { id, next } => {
                let is_current = scan.bookmark.object_set == id.0;
                if is_current {
                    scan.bookmark.object_set = next.0;
                    scan.flags.insert(ScanFlags::VISIT_DATASET_AGAIN);
                }
                is_current | rename(queue, id, next)
            }
            Self::HeadDestroyed { id } => {
                let is_current = scan.bookmark.object_set == id.0;
                if is_current {
                    scan.bookmark = NEXT_DATASET;
                    scan.flags.remove(ScanFlags::VISIT_DATASET_AGAIN);
                }
                is_current | queue.remove(&id).is_some()
            }
            Self::SnapshotTaken { head, snapshot } => {
                let is_current = scan.bookmark.object_set == head.0;
                if is_current {
                    scan.bookmark.object_set = snapshot.0;
                }
                is_current | rename(queue, head, snapshot)
            }
            Self::Swapped { one, other } => swap(scan, queue, one, other),
        }
    }
}

fn rename(queue: &mut ScanQueue, from: ObjectId, to: ObjectId) -> bool {
    let Some(min) = queue.remove(&from) else {
        return false;
    };
    let entry = queue.entry(to).or_insert(min);
    *entry = (*entry).min(min);
    true
}

fn swap(scan: &mut ScanPhys, queue: &mut ScanQueue, one: ObjectId, other: ObjectId) -> bool {
    let current = scan.bookmark.object_set;
    if current == one.0 {
        scan.bookmark.object_set = other.0;
    } else if current == other.0 {
        scan.bookmark.object_set = one.0;
    }
    let (of_one, of_other) = (queue.remove(&one), queue.remove(&other));
    queue.extend(of_one.map(|min| (other, min)));
    queue.extend(of_other.map(|min| (one, min)));
    current == one.0 || current == other.0 || of_one.is_some() || of_other.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(object_set: u64) -> ScanPhys {
        ScanPhys {
            bookmark: BlockBookmark {
                object_set,
                object: 3,
                level: 0,
                block_id: 9,
            },
            ..ScanPhys::default()
        }
    }
    fn queue(entries: &[(u64, u64)]) -> ScanQueue {
        let entries = entries.iter();
        entries
            .map(|(id, min)| (ObjectId(*id), Txg(*min)))
            .collect()
    }

    #[test]
    fn a_destroyed_snapshot_passes_its_place_on() {
        let (mut scan, mut waiting) = (at(10), queue(&[(20, 5)]));
        let event = |id, next| ScanEvent::SnapshotDestroyed {
            id: ObjectId(id),
            next: ObjectId(next),
        };
        assert!(event(10, 11).apply(&mut scan, &mut waiting));
        assert_eq!((scan.bookmark.object_set, scan.bookmark.block_id), (11, 9));
        assert!(scan.flags.contains(ScanFlags::VISIT_DATASET_AGAIN));
        assert!(event(20, 21).apply(&mut scan, &mut waiting));
        assert_eq!(waiting, queue(&[(21, 5)]));
        assert!(!event(30, 31).apply(&mut scan, &mut waiting));
    }

    #[test]
    fn a_destroyed_head_is_not_visited() {
        let (mut scan, mut waiting) = (at(10), queue(&[(20, 0)]));
        assert!(ScanEvent::HeadDestroyed { id: ObjectId(20) }.apply(&mut scan, &mut waiting));
        assert!(ScanEvent::HeadDestroyed { id: ObjectId(10) }.apply(&mut scan, &mut waiting));
        assert_eq!(scan.bookmark, NEXT_DATASET);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_snapshot_takes_the_place_of_its_head() {
        let (mut scan, mut waiting) = (at(10), queue(&[(20, 7)]));
        let event = |head, snapshot| ScanEvent::SnapshotTaken {
            head: ObjectId(head),
            snapshot: ObjectId(snapshot),
        };
        assert!(event(10, 12).apply(&mut scan, &mut waiting));
        assert!(event(20, 22).apply(&mut scan, &mut waiting));
        assert_eq!(scan.bookmark.object_set, 12);
        assert!(!scan.flags.contains(ScanFlags::VISIT_DATASET_AGAIN));
        assert_eq!(waiting, queue(&[(22, 7)]));
    }

    #[test]
    fn exchanged_datasets_exchange_their_places() {
        let (mut scan, mut waiting) = (at(10), queue(&[(11, 7)]));
        let event = ScanEvent::Swapped {
            one: ObjectId(10),
            other: ObjectId(11),
        };
        assert!(event.apply(&mut scan, &mut waiting));
        assert_eq!(scan.bookmark.object_set, 11);
        assert_eq!(waiting, queue(&[(10, 7)]));
    }
}
