//! Ownership of space. Each block claims the space of its pointer from the map of allocated space.

use super::disputes::Holder;
use super::finding::{Finding, FindingKind};
use super::space::Claim;
use super::trees::BlockCheck;
use millpond_block::BlockAddress;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_ondisk::{BlockPointer, Dva, ObjectType};

/// Upper bound of the deduplicated and cloned blocks that are remembered. Beyond it, repeated references
/// cannot be distinguished from double allocations.
const SHARED_MAX: usize = 1 << 21;

impl Holder {
    /// A finding about space that it owns.
    fn finding(&self, kind: FindingKind, detail: &str) -> Finding {
        let finding = Finding::new(kind, format!("{}: {detail}", self.words));
        finding.of(&self.dataset).object(self.object)
    }
}

/// Totals of all trees.
#[derive(Debug, Default)]
pub(super) struct BlockSums {
    pub(super) pointers: AtomicU64,
    pub(super) embedded: AtomicU64,
    pub(super) logical: AtomicU64,
    pub(super) physical: AtomicU64,
    pub(super) allocated: AtomicU64,
    pub(super) shared: AtomicU64,
    pub(super) gangs: AtomicU64,
}

impl BlockCheck<'_> {
    /// Claims all space of a pointer.
    pub(super) fn own(&self, pointer: &BlockPointer, holder: &dyn Fn() -> Holder) {
        if pointer.is_embedded() {
            if self.watch.is_none() {
                let sums = self.sums;
                sums.embedded.fetch_add(1, Ordering::Relaxed);
                let bytes = pointer.lsize_bytes();
                sums.logical.fetch_add(bytes, Ordering::Relaxed);
            }
            return;
        }
        let may_repeat = self.may_repeat(pointer);
        if !may_repeat && !self.charge(pointer.asize_bytes()) {
            return;
        }
        let add = |sum: &AtomicU64, number: u64| sum.fetch_add(number, Ordering::Relaxed);
        if self.watch.is_none() {
            self.progress.add_block(pointer.asize_bytes());
            add(&self.sums.pointers, 1);
            add(&self.sums.logical, pointer.lsize_bytes());
            add(&self.sums.physical, pointer.psize_bytes());
            add(&self.sums.allocated, pointer.asize_bytes());
            add(
                &self.sums.gangs,
                pointer.dvas().filter(|dva| dva.is_gang).count() as u64,
            );
            if may_repeat && self.is_repeat(pointer) {
                add(&self.sums.shared, pointer.asize_bytes());
                return;
            }
            self.judge_sizes(pointer, holder);
        }
        if !pointer.is_gang() {
            for dva in pointer.dvas() {
                self.claim(&dva, holder, 0);
            }
            return;
        }
        let address = BlockAddress::default();
        match self.store.extents(pointer, address) {
            Ok(extents) => {
                for dva in extents {
                    self.claim(&dva, holder, 0);
                }
            }
            Err(error) => {
                let detail = format!("gang block: {error}");
                self.tell(holder().finding(FindingKind::Unreadable, &detail));
            }
        }
    }

    /// Whether a block may have several references.
    fn may_repeat(&self, pointer: &BlockPointer) -> bool {
        let is_content = pointer.level().0 == 0;
        pointer.is_dedup() || is_content && (self.is_cloned)(pointer)
    }

    /// Whether a reference to this block, which may be shared, was seen before.
    fn is_repeat(&self, pointer: &BlockPointer) -> bool {
        let Some(dva) = pointer.dvas().next() else {
            return false;
        };
        let mut shared = self.shared.lock();
        let key = (dva.vdev.0, dva.offset_bytes);
        if let Some(count) = shared.get_mut(&key) {
            *count = count.saturating_add(1);
            return true;
        }
        if shared.len() < SHARED_MAX {
            shared.insert(key, 1);
        }
        false
    }

    /// Checks that the allocated size of each address matches the size of the block. Blocks of intent logs
    /// may have a larger allocation: OpenZFS 2.4 allocates any size within a range for them.
    fn judge_sizes(&self, pointer: &BlockPointer, holder: &dyn Fn() -> Holder) {
        if pointer.is_gang() {
            return;
        }
        let is_of_log = pointer.object_type() == ObjectType::INTENT_LOG;
        for dva in pointer.dvas() {
            let birth = pointer.physical_birth();
            let takes = self
                .topology
                .tree
                .asize(dva.vdev, pointer.psize_bytes(), birth);
            let is_right =
                |takes: u64| dva.asize_bytes == takes || (is_of_log && dva.asize_bytes > takes);
            if takes.is_some_and(|takes| !is_right(takes)) && !self.space.is_other(dva.vdev) {
                let detail = format!(
                    "an address claims {} bytes on vdev {}, the block takes {}",
                    dva.asize_bytes,
                    dva.vdev,
                    takes.unwrap_or(0)
                );
                self.tell(holder().finding(FindingKind::AllocatedSize, &detail));
            }
        }
    }

    fn claim(&self, dva: &Dva, holder: &dyn Fn() -> Holder, depth: u8) {
        // Blocks of a removed vdev were moved to other vdevs.
        if self.space.is_other(dva.vdev) && depth < 32 {
            let mapping = self.topology.indirect.get(dva.vdev);
            let pieces = mapping.and_then(|map| map.resolve(dva.offset_bytes, dva.asize_bytes));
            let Some(pieces) = pieces else {
                return self.outside(dva, holder);
            };
            for piece in pieces {
                let piece = Dva {
                    vdev: piece.vdev,
                    offset_bytes: piece.offset_bytes,
                    asize_bytes: piece.size_bytes,
                    ..*dva
                };
                self.claim(&piece, holder, depth + 1);
            }
            return;
        }
        if let Some((vdev, mapping)) = self.removing
            && *vdev == dva.vdev
        {
            let range = dva.offset_bytes..dva.offset_bytes.saturating_add(dva.asize_bytes);
            for part in mapping.mapped_parts(&range) {
                let copy = Dva {
                    vdev: part.vdev,
                    offset_bytes: part.offset_bytes,
                    asize_bytes: part.size_bytes,
                    ..*dva
                };
                // Copies lie on vdevs that stay.
                if copy.vdev != *vdev {
                    self.claim(&copy, holder, depth.saturating_add(1));
                }
            }
        }
        if let Some(watch) = self.watch {
            watch.look(dva, holder);
            return;
        }
        match self.space.claim(dva) {
            Claim::Granted | Claim::Unknown => {}
            Claim::Outside => self.outside(dva, holder),
            Claim::Disputed => self.space.dispute(dva),
        }
    }

    fn outside(&self, dva: &Dva, holder: &dyn Fn() -> Holder) {
        let detail = format!(
            "{} bytes at {:#x} of vdev {}, where no block can lie",
            dva.asize_bytes, dva.offset_bytes, dva.vdev
        );
        self.tell(holder().finding(FindingKind::OutsideVdev, &detail));
    }
}
