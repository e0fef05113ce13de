//! Dnodes: the roots of objects.
//!
//! Page `docs/format/dnode.md`.

use crate::{
    BLOCK_POINTER_BYTES, BlockId, BlockPointer, DNODE_SLOT_BYTES, DecodeError, Endian, ObjectType,
    Reader, Writer,
};

bitflags::bitflags! {
    /// Flags of a dnode. Page `docs/format/dnode.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DnodeFlags: u8 {
        /// `used` counts bytes; otherwise sectors of 512 bytes.
        const USED_BYTES = 0x01;
        /// The object is counted in the space accounting objects.
        const USER_USED_ACCOUNTED = 0x02;
        /// A spill block pointer is at the end of the dnode.
        const SPILL_POINTER = 0x04;
        /// The object is counted in the `obj-` accounting entries.
        const USER_OBJECT_ACCOUNTED = 0x08;
        const _ = !0;
    }
}

/// The block id of spill blocks in bookmarks.
pub const SPILL_BLOCK_ID: BlockId = BlockId(0xffff_ffff_ffff_fffe);

/// A dnode in native form. Page `docs/format/dnode.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dnode {
    /// The type of the object; [`ObjectType::NONE`] for a free slot.
    pub object_type: ObjectType,
    /// log2 of the size of an indirect block in bytes.
    pub indirect_block_shift: u8,
    /// Levels of the block tree; 1 means that the pointers point to data.
    pub levels: u8,
    /// The type of the bonus buffer.
    pub bonus_type: ObjectType,
    /// Checksum function, 0 to inherit.
    pub checksum: u8,
    /// Compression function, 0 to inherit.
    pub compression: u8,
    /// See [`DnodeFlags`].
    pub flags: DnodeFlags,
    /// Data block size in sectors of 512 bytes.
    pub data_block_sectors: u16,
    /// The number of 512-byte slots that this dnode uses beyond the first.
    pub extra_slots: u8,
    /// The highest block id that may not be a hole.
    pub block_id_max: BlockId,
    /// Space used by all blocks, in the unit that `flags` selects.
    pub used: u64,
    /// Roots of the block tree, 1 to 3.
    pub block_pointers: Vec<BlockPointer>,
    /// The used bonus bytes as stored, in the writer's byte order (see `endian`).
    pub bonus: Vec<u8>,
    /// The rest of the bonus area, where ciphertext may go on: kept by [`Dnode::keep_bonus_tail`], else empty.
    pub bonus_tail: Vec<u8>,
    /// The pointer to the spill block, if any.
    pub spill: Option<BlockPointer>,
    /// The byte order of the block that contained the dnode, and so of `bonus`.
    pub endian: Endian,
}

/// The shape of a dnode array, which the portable authentication code of an encrypted object set covers. Page
/// `docs/format/encryption.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DnodeArrayShape {
    /// Its checksum function.
    pub checksum: u8,
    /// Its compression function.
    pub compression: u8,
    /// The levels of its tree.
    pub levels: u8,
    /// The binary logarithm of the size of indirect blocks.
    pub indirect_shift: u8,
    /// The id of its last block.
    pub last_block: u64,
}

impl DnodeArrayShape {
    /// The shape of this dnode array.
    #[must_use]
    pub fn of(array: &Dnode) -> Self {
        Self {
            checksum: array.checksum,
            compression: array.compression,
            levels: array.levels,
            indirect_shift: array.indirect_block_shift,
            last_block: array.block_id_max.0,
        }
    }
    /// Gives a dnode array this shape.
    pub fn apply(&self, array: &mut Dnode) {
        (array.checksum, array.compression) = (self.checksum, self.compression);
        array.levels = self.levels;
        array.indirect_block_shift = self.indirect_shift;
        array.block_id_max = BlockId(self.last_block);
    }
}

impl Dnode {
    /// The number of 512-byte slots (at most 32 if valid) of the dnode that starts at the first byte of `slot`.
    ///
    /// A free slot counts as one.
    #[must_use]
    pub fn slot_count(slot: &[u8]) -> usize {
        match (slot.first(), slot.get(12)) {
            (Some(0), _) | (None, _) | (_, None) => 1,
            (_, Some(extra)) => usize::from(*extra).saturating_add(1),
        }
    }

    /// Iterates over the dnodes and free slots of a block of dnodes: each slot index in the block, and the
    /// bytes from that slot on.
    pub fn in_block(block: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
        let mut next = 0usize;
        core::iter::from_fn(move || {
            let slot = next;
            let bytes = block.get(slot.saturating_mul(DNODE_SLOT_BYTES)..)?;
            if bytes.is_empty() {
                return None;
            }
            next = slot.saturating_add(Self::slot_count(bytes));
            Some((slot, bytes))
        })
    }

    /// Reads the dnode at the start of `bytes`; `None` for a free slot.
    ///
    /// Bytes after the dnode are ignored. Allocates at most 16 KiB.
    ///
    /// # Errors
    /// If a correct writer could not have written a field, by the rules of `docs/format/dnode.md`, "What a
    /// reader checks".
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Option<Self>, DecodeError> {
        let mut reader = Reader::new("dnode", bytes, endian);
        let fail = |reason, offset| DecodeError::new("dnode", reason, offset);
        let object_type = ObjectType(reader.u8()?);
        if object_type == ObjectType::NONE {
            return Ok(None);
        }
        if !object_type.is_valid() {
            return Err(fail("object type does not exist", 0));
        }
        let indirect_block_shift = reader.u8()?;
        let levels = reader.u8()?;
        let pointer_count = usize::from(reader.u8()?);
        let bonus_type = ObjectType(reader.u8()?);
        let checksum = reader.u8()?;
        let compression = reader.u8()?;
        let flags = DnodeFlags::from_bits_retain(reader.u8()?);
        let data_block_sectors = reader.u16()?;
        let bonus_bytes = usize::from(reader.u16()?);
        let extra_slots = reader.u8()?;
        reader.skip(3)?;
        let block_id_max = reader.u64()?;
        let used = reader.u64()?;
        reader.skip(32)?;

        if !(1..=12).contains(&levels) {
            return Err(fail("levels outside 1 to 12", 2));
        }
        if !(1..=3).contains(&pointer_count) {
            return Err(fail("block pointers outside 1 to 3", 3));
        }
        let shifts = if levels == 1 { 7..=24 } else { 10..=24 };
        if !shifts.contains(&indirect_block_shift) {
            return Err(fail("indirect block shift out of range", 1));
        }
        if !(1..=32768).contains(&data_block_sectors) {
            return Err(fail("data block size outside 512 bytes to 16 MiB", 8));
        }
        if extra_slots > 31 {
            return Err(fail("more than 32 slots", 12));
        }
        let total = usize::from(extra_slots)
            .saturating_add(1)
            .saturating_mul(DNODE_SLOT_BYTES);
        let spill_bytes = if flags.contains(DnodeFlags::SPILL_POINTER) {
            BLOCK_POINTER_BYTES
        } else {
            0
        };
        let mut block_pointers = Vec::with_capacity(pointer_count);
        for _ in 0..pointer_count {
            block_pointers.push(BlockPointer::decode(
                reader.take(BLOCK_POINTER_BYTES)?,
                endian,
            )?);
        }
        let available = total
            .checked_sub(reader.position())
            .and_then(|left| left.checked_sub(spill_bytes));
        if available.is_none_or(|available| bonus_bytes > available) {
            return Err(fail("bonus does not fit", 10));
        }
        let bonus = reader.take(bonus_bytes)?.to_vec();
        let spill = if spill_bytes > 0 {
            let start = total.saturating_sub(BLOCK_POINTER_BYTES);
            let tail = bytes
                .get(start..total)
                .ok_or_else(|| fail("too short", start))?;
            Some(BlockPointer::decode(tail, endian)?)
        } else {
            None
        };
        let dnode = Self {
            object_type,
            indirect_block_shift,
            levels,
            bonus_type,
            checksum,
            compression,
            flags,
            data_block_sectors,
            extra_slots,
            block_id_max: BlockId(block_id_max),
            used,
            block_pointers,
            bonus,
            bonus_tail: Vec::new(),
            spill,
            endian,
        };
        if dnode
            .addressable_blocks()
            .is_some_and(|count| block_id_max >= count)
        {
            return Err(fail("largest block id is not addressable", 16));
        }
        Ok(Some(dnode))
    }

    /// Takes over the rest of the bonus area from the bytes that the dnode was decoded from. A reader without the key
    /// of an encrypted dataset needs it: ciphertext fills the area.
    pub fn keep_bonus_tail(&mut self, bytes: &[u8]) {
        let area = bytes.get(..self.bonus_area_end()).unwrap_or_default();
        let start = self.bonus_area_start().saturating_add(self.bonus.len());
        self.bonus_tail = area.get(start..).unwrap_or_default().to_vec();
    }

    /// The length of the bonus area in bytes. It ends before the pointer to a spill block.
    #[must_use]
    pub fn bonus_area_bytes(&self) -> usize {
        self.bonus_area_end()
            .saturating_sub(self.bonus_area_start())
    }
    fn bonus_area_start(&self) -> usize {
        let pointers = self.block_pointers.len();
        BLOCK_POINTER_BYTES
            .saturating_mul(pointers)
            .saturating_add(64)
    }
    fn bonus_area_end(&self) -> usize {
        let total = usize::from(self.extra_slots)
            .saturating_add(1)
            .saturating_mul(DNODE_SLOT_BYTES);
        match self.spill {
            Some(_) => total.saturating_sub(BLOCK_POINTER_BYTES),
            None => total,
        }
    }

    /// Encodes the dnode as little-endian bytes, a multiple of 512.
    ///
    /// # Errors
    /// If the bonus does not fit, there are more than three pointers, or the bonus is in foreign byte order.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let fail = |reason, offset| DecodeError::new("dnode", reason, offset);
        let total = usize::from(self.extra_slots)
            .saturating_add(1)
            .saturating_mul(DNODE_SLOT_BYTES);
        let pointers = u8::try_from(self.block_pointers.len()).unwrap_or(u8::MAX);
        if !(1..=3).contains(&pointers) {
            return Err(fail("block pointers outside 1 to 3", 3));
        }
        if self.endian == Endian::Big && !self.bonus.is_empty() {
            return Err(fail("bonus is in foreign byte order", 64));
        }
        let mut writer = Writer::with_capacity(total);
        writer.put_u8(self.object_type.0);
        writer.put_u8(self.indirect_block_shift);
        writer.put_u8(self.levels);
        writer.put_u8(pointers);
        writer.put_u8(self.bonus_type.0);
        writer.put_u8(self.checksum);
        writer.put_u8(self.compression);
        writer.put_u8(self.flags.bits());
        writer.put_u16(self.data_block_sectors);
        writer.put_u16(u16::try_from(self.bonus.len()).map_err(|_| fail("bonus too long", 10))?);
        writer.put_u8(self.extra_slots);
        writer.pad_to(16);
        writer.put_u64(self.block_id_max.0);
        writer.put_u64(self.used);
        writer.pad_to(64);
        for pointer in &self.block_pointers {
            writer.put(&pointer.encode());
        }
        writer.put(&self.bonus);
        writer.put(&self.bonus_tail);
        let spill_start = total.saturating_sub(BLOCK_POINTER_BYTES);
        let bonus_end = if self.spill.is_some() {
            spill_start
        } else {
            total
        };
        if writer.position() > bonus_end {
            return Err(fail("bonus does not fit", 10));
        }
        if let Some(spill) = &self.spill {
            writer.pad_to(spill_start);
            writer.put(&spill.encode());
        }
        writer.pad_to(total);
        Ok(writer.finish())
    }

    /// Size of a data block in bytes.
    #[must_use]
    pub fn data_block_bytes(&self) -> u64 {
        u64::from(self.data_block_sectors) << 9
    }
    /// Size of an indirect block in bytes.
    #[must_use]
    pub fn indirect_block_bytes(&self) -> u64 {
        1u64.checked_shl(u32::from(self.indirect_block_shift))
            .unwrap_or(0)
    }
    /// log2 of the number of pointers in an indirect block.
    #[must_use]
    pub fn pointers_shift(&self) -> u32 {
        u32::from(self.indirect_block_shift).saturating_sub(7)
    }
    /// The number of data blocks that the tree can address; `None` above 2^64.
    #[must_use]
    pub fn addressable_blocks(&self) -> Option<u64> {
        let shift = self
            .pointers_shift()
            .checked_mul(u32::from(self.levels).saturating_sub(1))?;
        let count = u64::try_from(self.block_pointers.len()).ok()?;
        let widened = u128::from(count)
            .checked_shl(shift)
            .filter(|_| shift < 120)?;
        u64::try_from(widened).ok()
    }
    /// Space used by all blocks, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        if self.flags.contains(DnodeFlags::USED_BYTES) {
            self.used
        } else {
            self.used.saturating_mul(512)
        }
    }
    /// The number of 512-byte slots that the dnode uses.
    #[must_use]
    pub fn slots(&self) -> u64 {
        u64::from(self.extra_slots).saturating_add(1)
    }
}

#[cfg(test)]
mod tests;
