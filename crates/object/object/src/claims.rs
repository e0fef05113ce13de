//! Telling when a tree of blocks claims more than there can be.

use millpond_block::BlockStore;
use millpond_ondisk::BlockPointer;

/// What a walk over blocks of metadata has met so far. Each of them belongs to one place in one tree,
/// so all together they cannot be larger than the pool's devices; where many pointers lead to one
/// block, a few kilobytes could stand for 2^60 blocks. Holds 32 bytes.
pub(crate) struct Claims {
    last: Option<[u64; 2]>,
    left_bytes: u64,
}

impl Claims {
    pub(crate) fn new(store: &BlockStore) -> Self {
        Self {
            last: None,
            left_bytes: store.topology().capacity_bytes(),
        }
    }

    /// Notes a block that the walk comes to; the reason why it cannot be, if so.
    pub(crate) fn charge(&mut self, pointer: &BlockPointer) -> Result<(), &'static str> {
        let place = [pointer.words[0], pointer.words[1]];
        let is_stored = !pointer.is_embedded() && !pointer.is_hole();
        if is_stored && self.last.replace(place) == Some(place) {
            return Err("two neighbours lead to one block");
        }
        self.charge_bytes(pointer.psize_bytes())
    }

    /// Notes a block of which only the size is known.
    pub(crate) fn charge_bytes(&mut self, bytes: u64) -> Result<(), &'static str> {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.ok_or("its pointers claim more than fits on the pool's devices")?;
        Ok(())
    }
}
