//! Damaged blocks: those without a good copy, since the pool was opened.

use crate::BlockAddress;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_ondisk::{BlockPointer, Txg};
use std::collections::BTreeMap;

/// The most blocks to remember.
const REMEMBERED_MAX: usize = 10_000;

/// A block without a right copy when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedBlock {
    /// The block.
    pub address: BlockAddress,
    /// Its birth.
    pub birth: Txg,
}

/// The damaged blocks found by a store and its views.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    is_any: AtomicBool,
    blocks: Mutex<BTreeMap<BlockAddress, Txg>, rank::Leaf>,
}

impl Damage {
    pub(crate) fn note(&self, address: BlockAddress, pointer: &BlockPointer) {
        let mut blocks = self.blocks.lock();
        if blocks.len() < REMEMBERED_MAX {
            blocks.insert(address, pointer.birth());
            self.is_any.store(true, Ordering::Release);
        }
    }
    /// Removes a block that could be read, or whose address names another block now.
    pub(crate) fn mended(&self, address: &BlockAddress) {
        if self.is_any.load(Ordering::Acquire) {
            let mut blocks = self.blocks.lock();
            blocks.remove(address);
            self.is_any.store(!blocks.is_empty(), Ordering::Release);
        }
    }
    pub(crate) fn all(&self) -> Vec<DamagedBlock> {
        let blocks = self.blocks.lock();
        let all = blocks.iter().map(|(address, birth)| DamagedBlock {
            address: *address,
            birth: *birth,
        });
        all.collect()
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
        damage.mended(&address(0));
        assert_eq!(damage.all(), []);
    }
}
