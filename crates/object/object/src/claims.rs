//! Detects block trees that claim more space than the pool has.

use millpond_block::BlockStore;
use millpond_ondisk::BlockPointer;

/// Running total of the metadata blocks that a traversal has met.
///
/// Each metadata block belongs to one position in one tree, so all of them together cannot exceed the
/// capacity of the pool's devices. Without this bound, a few kilobytes in which many pointers lead to one
/// block could stand for 2^60 blocks. Takes 32 bytes.
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

    /// Counts a block that the traversal reaches. The error is the reason why the block is impossible.
    pub(crate) fn charge(&mut self, pointer: &BlockPointer) -> Result<(), &'static str> {
        let place = [pointer.words[0], pointer.words[1]];
        let is_stored = !pointer.is_embedded() && !pointer.is_hole();
        if is_stored && self.last.replace(place) == Some(place) {
            return Err("two neighbours lead to one block");
        }
        self.charge_bytes(pointer.psize_bytes())
    }

    /// Counts a block of which only the size is known.
    pub(crate) fn charge_bytes(&mut self, bytes: u64) -> Result<(), &'static str> {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.ok_or("its pointers claim more than fits on the pool's devices")?;
        Ok(())
    }
}
