//! Damaged blocks: those without a good copy, since the pool was opened.

use crate::BlockAddress;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_ondisk::{BlockPointer, Txg};
use std::collections::BTreeMap;

/// The most blocks to remember.
const REMEMBERED_MAX: usize = 10_000;
/// The most events to keep. OpenZFS makes as many in a second.
const EVENTS_MAX: usize = 20;

/// A block without a right copy when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedBlock {
    /// The block.
    pub address: BlockAddress,
    /// Its physical birth.
    pub birth: Txg,
}

/// What the reader of a block knows about its pointer.
#[derive(Clone, Copy, Default)]
pub enum PointerValidity<'a> {
    /// It is part of the pool during the whole read. If no copy is good, devices are to blame.
    #[default]
    Current,
    /// Another thread may free or overwrite the block, before the read or during it. The function tells whether the newest
    /// state still has the pointer; it is asked before anything is repaired or counted.
    MaybeOutdated(&'a (dyn Fn() -> bool + Sync)),
}

impl std::fmt::Debug for PointerValidity<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Current => "Current",
            Self::MaybeOutdated(_) => "MaybeOutdated",
        })
    }
}

impl PointerValidity<'_> {
    /// For a read that repairs and counts nothing.
    pub(crate) const NEVER_CURRENT: PointerValidity<'static> =
        PointerValidity::MaybeOutdated(&|| false);

    pub(crate) fn is_current(self) -> bool {
        matches!(self, Self::Current)
    }
}

/// The damaged blocks found by a store and its views.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    is_any: AtomicBool,
    blocks: Mutex<BTreeMap<BlockAddress, Known>, rank::Leaf>,
    /// The first ones since they were last taken, for events.
    events: Mutex<Vec<BlockAddress>, rank::Leaf>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    birth: Txg,
    /// Whether [`Damage::take_new`] returned it.
    is_taken: bool,
}

impl Damage {
    /// Returns whether there are events to take.
    pub(crate) fn note(&self, address: BlockAddress, pointer: &BlockPointer) -> bool {
        let is_new = self.remember(address, pointer);
        let mut events = self.events.lock();
        let is_noted = is_new && events.len() < EVENTS_MAX;
        if is_noted {
            events.push(address);
        }
        is_noted
    }
    pub(crate) fn take_events(&self) -> Vec<BlockAddress> {
        std::mem::take(&mut *self.events.lock())
    }
    /// Returns whether the block is new.
    fn remember(&self, address: BlockAddress, pointer: &BlockPointer) -> bool {
        let mut blocks = self.blocks.lock();
        if blocks.len() >= REMEMBERED_MAX {
            return false;
        }
        self.is_any.store(true, Ordering::Release);
        let birth = pointer.physical_birth();
        if (blocks.get(&address)).is_some_and(|known| known.birth == birth) {
            return false;
        }
        let known = Known {
            birth,
            is_taken: false,
        };
        blocks.insert(address, known);
        true
    }
    /// Removes a block that could be read, or whose address names another block now.
    pub(crate) fn mended(&self, address: &BlockAddress) {
        if self.is_any.load(Ordering::Acquire) {
            let mut blocks = self.blocks.lock();
            blocks.remove(address);
            self.is_any.store(!blocks.is_empty(), Ordering::Release);
        }
    }
    pub(crate) fn has(&self, address: &BlockAddress) -> bool {
        self.is_any.load(Ordering::Acquire) && self.blocks.lock().contains_key(address)
    }
    pub(crate) fn all(&self) -> Vec<DamagedBlock> {
        let blocks = self.blocks.lock();
        let all = blocks.iter().map(|(address, known)| DamagedBlock {
            address: *address,
            birth: known.birth,
        });
        all.collect()
    }
    /// The blocks that were found since the last call.
    pub(crate) fn take_new(&self) -> Vec<DamagedBlock> {
        if !self.is_any.load(Ordering::Acquire) {
            return vec![];
        }
        let mut blocks = self.blocks.lock();
        let new = blocks.iter_mut().filter(|(_, known)| !known.is_taken);
        let new = new.map(|(address, known)| {
            known.is_taken = true;
            DamagedBlock {
                address: *address,
                birth: known.birth,
            }
        });
        new.collect()
    }
    /// Forgets all blocks, after everything was read.
    pub(crate) fn clear(&self) {
        let mut blocks = self.blocks.lock();
        blocks.clear();
        self.is_any.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::{BlockId, Level, ObjectId};

    #[test]
    fn a_block_read_successfully_is_no_longer_damaged() {
        let address = |block| BlockAddress {
            dataset: 54,
            object: ObjectId(2),
            level: Level(0),
            block: BlockId(block),
        };
        let (damage, pointer) = (Damage::default(), BlockPointer::default());
        damage.mended(&address(1));
        for block in 0..2 * REMEMBERED_MAX as u64 {
            damage.note(address(block), &pointer);
        }
        assert_eq!(damage.all().len(), REMEMBERED_MAX);
        for block in 1..REMEMBERED_MAX as u64 {
            damage.mended(&address(block));
        }
        let blocks: Vec<u64> = damage.all().iter().map(|one| one.address.block.0).collect();
        assert_eq!(blocks, [0]);
        assert_eq!(damage.take_new().len(), 1);
        damage.note(address(0), &pointer);
        assert_eq!(damage.take_new(), []);
        damage.mended(&address(0));
        assert_eq!(damage.all(), []);
    }
}
