//! Finding data and holes without reading data.

use crate::claims::Claims;
use crate::{Object, ObjectError};
use millpond_ondisk::{BlockId, Level};

impl Object {
    /// The first data block at or after `from` that is not a hole, or `None`.
    ///
    /// # Errors
    /// If an indirect block cannot be read, or more of them would have to be read than fit on the
    /// pool's devices, which only happens where many pointers lead to one.
    pub fn next_data_block(&self, from: BlockId) -> Result<Option<BlockId>, ObjectError> {
        self.next(from, false)
    }

    /// The first hole at or after `from`; the end of the object counts as one.
    ///
    /// # Errors
    /// As [`Object::next_data_block`].
    pub fn next_hole_block(&self, from: BlockId) -> Result<BlockId, ObjectError> {
        let end = BlockId(self.block_id_max().0.saturating_add(1));
        Ok(self.next(from, true)?.unwrap_or(end).min(end.max(from)))
    }

    fn next(&self, from: BlockId, want_hole: bool) -> Result<Option<BlockId>, ObjectError> {
        let shift = self.dnode().pointers_shift();
        let mut id = from.0;
        // Behind what the tree can address is one hole, however large the dnode claims to be.
        let end = self.dnode().addressable_blocks().unwrap_or(u64::MAX);
        let mut claims = Claims::new(self.object_set());
        let mut parent = None;
        while id <= self.block_id_max().0 {
            if id >= end {
                return Ok(want_hole.then_some(BlockId(id)));
            }
            let (pointer, level) = self.descend(0, id)?;
            // Within one indirect block the number of pointers is the bound.
            if level == 0 && self.dnode().levels > 1 && parent != Some(id >> shift) {
                parent = Some(id >> shift);
                let above = self.pointer(Level(1), BlockId(id >> shift))?;
                claims
                    .charge(&above)
                    .map_err(|reason| self.invalid(reason))?;
            }
            if pointer.is_hole() == want_hole {
                return Ok(Some(BlockId(id)));
            }
            // A hole above the leaves covers all that could hang below it.
            let span = shift.saturating_mul(u32::from(level));
            let next = id.checked_shr(span).unwrap_or(0).saturating_add(1);
            id = match next.checked_shl(span) {
                Some(next) if next > id => next,
                _ => return Ok(None),
            };
        }
        Ok(None)
    }
}
