//! Creates objects, and gives existing ones the shape that a stream says.

use crate::apply::{Applier, OBJECTS_END};
use crate::decode::{block_size, valid_type};
use crate::error::ReceiveError;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_object::{NewObject, Object, ObjectError};
use millpond_ondisk::{BlockId, ChecksumKind, CompressionKind, ObjectId, ObjectType};
use millpond_stream::{ObjectRecord, RecordFlags};
use millpond_txg::Transaction;
use std::ops::Range;

/// Slots in a block of dnodes.
const SLOTS: u64 = 32;
/// How often the numbers of an object are waited for. They are free when the txg is written that frees them.
const TRIES_MAX: u32 = 3;

/// The pool's features that an object's own functions need.
const CHECKSUM_FEATURES: [(ChecksumKind, &str); 4] = [
    (ChecksumKind::Sha512, "org.illumos:sha512"),
    (ChecksumKind::Skein, "org.illumos:skein"),
    (ChecksumKind::Edonr, "org.illumos:edonr"),
    (ChecksumKind::Blake3, "org.openzfs:blake3"),
];

impl Applier<'_> {
    /// Creates an object, or changes an existing one.
    pub(crate) fn object(
        &mut self,
        record: &ObjectRecord,
        bonus: Vec<u8>,
    ) -> Result<(), ReceiveError> {
        self.pending_size = None;
        let new = self.shape_of(record, bonus)?;
        let id = ObjectId(record.object);
        match self.set.object(id) {
            Ok(object) => self.reshape(&object, record, new),
            Err(ObjectError::NotFound { .. }) => self.claim_new(id, &new),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Checks what a record says of its object.
    fn shape_of(&self, record: &ObjectRecord, bonus: Vec<u8>) -> Result<NewObject, ReceiveError> {
        let invalid = |reason: String| self.invalid(&reason);
        self.check_number(record)?;
        let object_type = valid_type(record.object_type).map_err(invalid)?;
        let bonus_type = match record.bonus_type {
            0 => ObjectType::NONE,
            number => valid_type(number).map_err(invalid)?,
        };
        block_size(record.block_bytes.into()).map_err(invalid)?;
        let slots = record.slots.max(1);
        let (checksum, compression) = self.functions(record)?;
        let new = NewObject {
            checksum,
            compression,
            block_bytes: record.block_bytes,
            ..NewObject::new(object_type)
                .with_bonus(bonus_type, bonus)
                .with_slots(slots)
        };
        match new.pointer_count() {
            Some(_) => Ok(new),
            None => Err(self.invalid("a bonus area that does not fit in its dnode")),
        }
    }

    /// Checks the number, type and slots of an object.
    pub(crate) fn check_number(&self, record: &ObjectRecord) -> Result<ObjectId, ReceiveError> {
        if record.object == 0 || record.object >= OBJECTS_END {
            return Err(self.invalid("no object has this number"));
        }
        let special = [
            ObjectType::DNODE,
            ObjectType::OBJECT_SET,
            ObjectType::INTENT_LOG,
        ];
        if special
            .iter()
            .any(|one| u32::from(one.0) == record.object_type)
        {
            return Err(self.invalid("an object of a type that datasets do not hold"));
        }
        let slots = u64::from(record.slots.max(1));
        match (record.object % SLOTS).saturating_add(slots) <= SLOTS {
            true => Ok(ObjectId(record.object)),
            false => Err(self.invalid("a dnode that crosses the end of its block")),
        }
    }

    /// The object's own functions, 0 to inherit.
    pub(crate) fn functions(&self, record: &ObjectRecord) -> Result<(u8, u8), ReceiveError> {
        let has = |guid: &str| self.features.count(guid).is_some();
        let checksum = match ChecksumKind::from_number(record.checksum) {
            None => return Err(self.invalid("a checksum function that does not exist")),
            Some(ChecksumKind::Inherit | ChecksumKind::On) => 0,
            Some(
                kind @ (ChecksumKind::Off
                | ChecksumKind::Fletcher2
                | ChecksumKind::Fletcher4
                | ChecksumKind::Sha256),
            ) => kind.number(),
            Some(kind) => {
                let needed = CHECKSUM_FEATURES.iter().find(|(known, _)| *known == kind);
                match needed {
                    Some((_, guid)) if has(guid) => kind.number(),
                    _ => return Err(self.invalid("a checksum function of no data block")),
                }
            }
        };
        let compression = match CompressionKind::from_number(record.compression) {
            None => return Err(self.invalid("a compression function that does not exist")),
            Some(CompressionKind::Inherit | CompressionKind::On) => 0,
            Some(CompressionKind::Empty) => {
                return Err(self.invalid("a compression function of no data block"));
            }
            Some(CompressionKind::Lz4) if !self.features.is_active("org.illumos:lz4_compress") => 0,
            Some(CompressionKind::Zstd) if !has("org.freebsd:zstd_compress") => 0,
            Some(kind) => kind.number(),
        };
        Ok((checksum, compression))
    }

    fn claim_new(&self, id: ObjectId, new: &NewObject) -> Result<(), ReceiveError> {
        self.claim(id, new.slots, new.bonus.len() as u64, &|tx| {
            self.set.allocate_at(tx, id, new.clone())
        })
    }

    /// Creates an object with its number. The slots that it takes were free before, or become so now.
    pub(crate) fn claim(
        &self,
        id: ObjectId,
        slots: u8,
        bonus_bytes: u64,
        allocate: &dyn Fn(&Transaction) -> Result<Arc<Object>, ObjectError>,
    ) -> Result<(), ReceiveError> {
        for _ in 0..TRIES_MAX {
            {
                let tx = self.begin(bonus_bytes)?;
                match allocate(&tx) {
                    Ok(_) => {
                        self.note(&tx, id.0, 0);
                        return Ok(());
                    }
                    Err(ObjectError::Refused { .. }) => {}
                    Err(error) => return Err(self.failed(error)),
                }
            }
            self.free_covered(id, slots.into())?;
            // A freed number can be used when its txg is written.
            self.head.sync()?;
        }
        let tx = self.begin(bonus_bytes)?;
        let claimed = allocate(&tx);
        claimed.map_err(|error| self.failed(error))?;
        self.note(&tx, id.0, 0);
        Ok(())
    }

    /// Frees the objects in the slots behind the first one of a new dnode.
    fn free_covered(&self, id: ObjectId, slots: u64) -> Result<(), ReceiveError> {
        let end = id.0.saturating_add(slots);
        let mut after = id;
        loop {
            let next = self.set.next_object(after);
            match next.map_err(|error| self.failed(error))? {
                Some(next) if next.0 < end => {
                    self.free_object(next)?;
                    after = next;
                }
                _ => return Ok(()),
            }
        }
    }

    fn reshape(
        &mut self,
        object: &Arc<Object>,
        record: &ObjectRecord,
        new: NewObject,
    ) -> Result<(), ReceiveError> {
        let keeps_dnode = new.slots == object.dnode_slots()
            && new.pointer_count() >= Some(object.pointer_count());
        if !keeps_dnode {
            self.free_object(object.id())?;
            self.head.sync()?;
            return self.claim_new(ObjectId(record.object), &new);
        }
        let old_block = object.block_bytes();
        let is_other_size = old_block != u64::from(new.block_bytes);
        let waits = is_other_size
            && self.is_same_file(object, &new)
            && self.has_data_outside(object, 0..0)?;
        let is_resized = is_other_size && !waits;
        if is_resized {
            self.free(object, 0, None)?;
        }
        self.pending_size = waits.then_some(PendingSize {
            object: record.object,
            block_bytes: new.block_bytes,
            end: None,
        });
        let tx = self.begin(old_block.saturating_add(new.bonus.len() as u64))?;
        let done = (|| {
            if is_resized {
                object.set_block_bytes(&tx, new.block_bytes, None)?;
            }
            let has_spill = record.flags & RecordFlags::OBJECT_SPILL != 0;
            if self.has_spill_flags && !has_spill && object.has_spill() {
                object.set_spill(&tx, None)?;
            }
            object.set_types(&tx, new.object_type, new.bonus_type)?;
            object.set_typed_bonus(&tx, new.bonus_type, new.bonus)?;
            object.set_functions(&tx, new.checksum, new.compression)
        })();
        done.map_err(|error| self.failed(error))?;
        self.note(&tx, record.object, 0);
        Ok(())
    }

    /// Whether an object is the same file as at the sender. Then it may have blocks of another size although its content did
    /// not change: one of the two was once received with its large blocks split.
    fn is_same_file(&self, object: &Object, new: &NewObject) -> bool {
        let (bonus_type, bonus) = object.typed_bonus();
        let generations = (
            generation(bonus_type, &bonus),
            generation(new.bonus_type, &new.bonus),
        );
        !self.is_full
            && object.object_type() == ObjectType::PLAIN_FILE
            && new.object_type == ObjectType::PLAIN_FILE
            && matches!(generations, (Some(old), Some(new)) if old == new)
    }
}

/// A file with the blocks of another size at the sender. It gets them when a record replaces all that it has. Until then it
/// keeps its own, because the stream may have only what changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingSize {
    object: u64,
    block_bytes: u32,
    /// Where the blocks of the sender end, in bytes.
    end: Option<u64>,
}

impl Applier<'_> {
    /// Notes the end of the sender's blocks, from the record that frees all that follows.
    pub(crate) fn note_end(&mut self, id: u64, end: u64) {
        if let Some(pending) = &mut self.pending_size
            && pending.object == id
        {
            pending.end = Some(end);
        }
    }

    /// Gives an object the sender's size of blocks, if it waits for that and these bytes replace all that it has.
    pub(crate) fn resize_if_replaced(
        &mut self,
        object: &Object,
        range: Range<u64>,
    ) -> Result<(), ReceiveError> {
        let Some(pending) = self.pending_size else {
            return Ok(());
        };
        if pending.object != object.id().0 || self.has_data_outside(object, range)? {
            return Ok(());
        }
        mark::hit("received-file-resized");
        self.pending_size = None;
        self.free(object, 0, None)?;
        let tx = self.begin(object.block_bytes())?;
        let resized = object.set_block_bytes(&tx, pending.block_bytes, None);
        resized.map_err(|error| self.failed(error))
    }

    /// Makes room for a write that replaces only a part of an object that waits for the sender's size of blocks. One of
    /// several blocks keeps its size. A single block takes the larger size, or one that can have blocks behind it.
    pub(crate) fn resize_single(&mut self, object: &Object) -> Result<(), ReceiveError> {
        let Some(pending) = self.pending_size else {
            return Ok(());
        };
        if pending.object != object.id().0 || object.block_id_max() > BlockId(0) {
            return Ok(());
        }
        self.pending_size = None;
        let old = u32::try_from(object.block_bytes()).unwrap_or(u32::MAX);
        let new = pending.block_bytes.max(old.next_power_of_two());
        if new == old {
            return Ok(());
        }
        mark::hit("received-block-resized");
        let tx = self.begin_writing(new.into())?;
        let resized = object.set_block_bytes(&tx, new, None);
        resized.map_err(|error| self.failed(error))
    }

    /// Whether an object has data outside of a range of bytes. What follows the sender's last block was freed.
    fn has_data_outside(&self, object: &Object, range: Range<u64>) -> Result<bool, ReceiveError> {
        let size = object.block_bytes().max(1);
        let next = |block| {
            let next = object.next_data(BlockId(block), false);
            next.map_err(|error| self.failed(error))
        };
        let is_before =
            range.start > 0 && next(0)?.is_some_and(|at| at.0.saturating_mul(size) < range.start);
        let end = self.pending_size.and_then(|pending| pending.end);
        let after = match end.is_some_and(|end| end <= range.end) {
            true => range.end.div_ceil(size),
            false => range.end.checked_div(size).unwrap_or(0),
        };
        Ok(is_before || next(after)?.is_some())
    }
}

/// The generation of a file, from its bonus: another file with its number has another one.
fn generation(bonus_type: ObjectType, bonus: &[u8]) -> Option<u64> {
    const IN_ZNODE: usize = 64;
    /// Behind mode and size, where every file has it.
    const IN_ATTRIBUTES: usize = 16;
    let at = match bonus_type {
        ObjectType::ZNODE => IN_ZNODE,
        ObjectType::SA => {
            let layout = bonus.get(4..6)?.first_chunk::<2>()?;
            let words = u16::from_le_bytes(*layout) >> 10;
            usize::from(words)
                .checked_mul(8)?
                .checked_add(IN_ATTRIBUTES)?
        }
        _ => return None,
    };
    let bytes = bonus.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}
