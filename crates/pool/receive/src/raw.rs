//! Raw streams: blocks and dnodes of encrypted datasets as they are stored, with their codes.
//!
//! Page `docs/format/send-stream.md`, "Raw streams".

use crate::apply::Applier;
use crate::decode::{ChangeKind, Decoder, block_size, valid_type};
use crate::error::ReceiveError;
use millpond_env::sync::Arc;
use millpond_object::{EncodedContent, Object, ObjectError, RawDnode, Seal};
use millpond_ondisk::{BlockId, CompressionKind, ObjectId, ObjectType, SECTOR_BYTES};
use millpond_stream::{ObjectRange, ObjectRecord, RecordFlags, Spill, Write};

/// Slots in a block of dnodes.
const SLOTS: u64 = 32;
const OTHER_ORDER: &str = "a block of another byte order, in a raw stream";

type Decoded = Result<ChangeKind, String>;

/// The codes of a block of dnodes.
pub(crate) fn range(range: &ObjectRange) -> Decoded {
    if range.slots != SLOTS || !range.first.is_multiple_of(SLOTS) {
        return Err("a range that is not a block of dnodes".to_owned());
    }
    if range.flags & RecordFlags::RAW_BYTE_SWAP != 0 {
        return Err(OTHER_ORDER.to_owned());
    }
    let seal = Seal {
        salt: range.salt,
        iv: range.iv,
        mac: range.mac,
    };
    Ok(ChangeKind::Range(range.first, seal))
}

/// An object with its bonus area, of which only a part may be in use.
pub(crate) fn object(record: ObjectRecord, payload: &[u8]) -> Decoded {
    if record.flags & !RecordFlags::OBJECT_SPILL != 0 {
        return Err("an object with unknown flags".to_owned());
    }
    let used = usize::try_from(record.bonus_bytes).unwrap_or(usize::MAX);
    let (bonus, tail) = payload
        .split_at_checked(used)
        .ok_or("a bonus area that is shorter than what is in use")?;
    let object_type = valid_type(record.object_type)?;
    let bonus_type = match record.bonus_type {
        0 => ObjectType::NONE,
        number => valid_type(number)?,
    };
    block_size(record.block_bytes.into())?;
    let raw = RawDnode {
        object_type,
        block_bytes: record.block_bytes,
        indirect_shift: record.indirect_shift,
        levels: record.levels,
        pointers: record.pointers,
        slots: record.slots.max(1),
        bonus_type,
        bonus: bonus.to_vec(),
        bonus_tail: match record.raw_bonus_bytes {
            // Only padding.
            0 => vec![],
            _ => tail.to_vec(),
        },
        checksum: record.checksum,
        compression: record.compression,
        last_block: record.last_block,
        has_spill: record.flags & RecordFlags::OBJECT_SPILL != 0,
    };
    Ok(ChangeKind::RawObject(record, raw))
}

impl Decoder {
    pub(crate) fn sealed_write(&self, write: &Write, payload: Vec<u8>) -> Decoded {
        valid_type(write.object_type)?;
        if write.flags & RecordFlags::RAW_BYTE_SWAP != 0 {
            return Err(OTHER_ORDER.to_owned());
        }
        let seal = Seal {
            salt: write.salt,
            iv: write.iv,
            mac: write.mac,
        };
        Ok(ChangeKind::SealedWrite {
            object: write.object,
            offset: write.offset,
            bytes: write.logical_bytes,
            stored: self.sealed(write.compression, write.logical_bytes, payload, seal)?,
        })
    }

    pub(crate) fn sealed_spill(&self, spill: &Spill, payload: Vec<u8>) -> Decoded {
        if spill.flags & RecordFlags::RAW_BYTE_SWAP != 0 {
            return Err(OTHER_ORDER.to_owned());
        }
        let seal = Seal {
            salt: spill.salt,
            iv: spill.iv,
            mac: spill.mac,
        };
        Ok(ChangeKind::SealedSpill {
            object: spill.object,
            bytes: spill.length,
            stored: self.sealed(spill.compression, spill.length, payload, seal)?,
            is_unmodified: self.is_unmodified(spill),
        })
    }

    fn sealed(
        &self,
        compression: u8,
        bytes: u64,
        payload: Vec<u8>,
        seal: Seal,
    ) -> Result<EncodedContent, String> {
        block_size(bytes)?;
        let stored = payload.len() as u64;
        let kind = CompressionKind::from_number(compression);
        let is_right = match kind {
            Some(CompressionKind::Off) => stored == bytes,
            Some(CompressionKind::Inherit | CompressionKind::On | CompressionKind::Empty)
            | None => false,
            Some(kind) => self.stores(kind) && stored <= bytes,
        };
        let kind = kind.filter(|_| is_right && stored > 0 && stored.is_multiple_of(SECTOR_BYTES));
        Ok(EncodedContent {
            compression: kind.ok_or("a block that cannot be stored so")?,
            bytes: Arc::new(payload),
            seal: Some(seal),
        })
    }
}

impl Applier<'_> {
    /// Notes the codes of a block of dnodes. Its objects come next.
    pub(crate) fn range(&mut self, first: u64, seal: Seal) -> Result<(), ReceiveError> {
        let block = first.checked_div(SLOTS).unwrap_or(0);
        if block > self.last_dnode_block {
            return Err(self.invalid("dnodes past the end of the array"));
        }
        self.set.seal_dnodes(BlockId(block), seal);
        self.range = Some(first);
        Ok(())
    }

    /// Creates an object, or gives an existing one the shape that it has at the sender.
    pub(crate) fn raw_object(
        &self,
        record: &ObjectRecord,
        raw: &RawDnode,
    ) -> Result<(), ReceiveError> {
        let id = self.check_number(record)?;
        let is_within = self
            .range
            .is_some_and(|first| (first..first.saturating_add(SLOTS)).contains(&record.object));
        if !is_within {
            return Err(self.invalid("an object outside its block of dnodes"));
        }
        // Blocks that are written here later use them.
        self.functions(record)?;
        let object = match self.set.object(id) {
            Ok(object) => object,
            Err(ObjectError::NotFound { .. }) => return self.claim_raw(record, raw),
            Err(error) => return Err(self.failed(error)),
        };
        if !object.can_become(raw) {
            self.free_object(id)?;
            self.head.sync()?;
            return self.claim_raw(record, raw);
        }
        let size = object.block_bytes();
        match size == u64::from(raw.block_bytes) {
            true => {
                let end = raw.last_block.saturating_add(1).saturating_mul(size);
                self.free(&object, end, None)?;
            }
            false => self.free(&object, 0, None)?,
        }
        let tx = self.begin(payload_bytes(raw))?;
        let done = object.set_raw(&tx, raw);
        done.map_err(|error| self.failed(error))?;
        self.note(&tx, record.object, 0);
        Ok(())
    }

    fn claim_raw(&self, record: &ObjectRecord, raw: &RawDnode) -> Result<(), ReceiveError> {
        let id = ObjectId(record.object);
        self.claim(id, raw.slots, payload_bytes(raw), &|tx| {
            self.set.allocate_raw(tx, id, raw)
        })
    }

    /// Writes a block as it came.
    pub(crate) fn sealed_write(
        &mut self,
        id: u64,
        offset: u64,
        bytes: u64,
        stored: EncodedContent,
    ) -> Result<(), ReceiveError> {
        let object = self.existing(id)?;
        let size = object.block_bytes().max(1);
        if bytes != size || !offset.is_multiple_of(size) {
            return Err(self.invalid("a block of another size than the object's"));
        }
        let block = BlockId(offset.checked_div(size).unwrap_or(0));
        let tx = self.begin_writing(bytes)?;
        let done = object.write_sealed(&tx, block, bytes, stored);
        done.map_err(|error| self.failed(error))?;
        self.note(&tx, id, offset);
        Ok(())
    }

    pub(crate) fn sealed_spill(
        &self,
        object: &Object,
        bytes: u64,
        stored: EncodedContent,
    ) -> Result<(), ReceiveError> {
        let tx = self.begin(bytes)?;
        let done = object.set_sealed_spill(&tx, bytes, stored);
        done.map_err(|error| self.failed(error))
    }

    /// Checks that a range of a raw stream consists of whole blocks: no part of one can be made zeros.
    pub(crate) fn check_whole(
        &self,
        object: &Object,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(), ReceiveError> {
        let size = object.block_bytes().max(1);
        let is_whole =
            offset.is_multiple_of(size) && length.is_none_or(|length| length.is_multiple_of(size));
        match is_whole || !self.is_raw {
            true => Ok(()),
            false => Err(self.invalid("a hole in a part of a block, in a raw stream")),
        }
    }
}

fn payload_bytes(raw: &RawDnode) -> u64 {
    raw.bonus.len().saturating_add(raw.bonus_tail.len()) as u64
}
