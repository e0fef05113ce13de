//! Creates objects, and gives existing ones the shape that a stream says.

use crate::apply::{Applier, OBJECTS_END};
use crate::decode::{block_size, valid_type};
use crate::error::ReceiveError;
use millpond_env::sync::Arc;
use millpond_object::{NewObject, Object, ObjectError};
use millpond_ondisk::{ChecksumKind, CompressionKind, ObjectId, ObjectType};
use millpond_stream::{ObjectRecord, RecordFlags};
use millpond_txg::Transaction;

/// Slots in a block of dnodes.
const SLOTS: u64 = 32;
/// How often the numbers of an object are waited for. They are free when the txg is written that frees them.
const TRIES_MAX: u32 = 3;
/// The size up to which file systems have blocks without a feature, in bytes.
const SMALL_BLOCK_BYTES: u32 = 128 << 10;

/// The pool's features that an object's own functions need.
const CHECKSUM_FEATURES: [(ChecksumKind, &str); 4] = [
    (ChecksumKind::Sha512, "org.illumos:sha512"),
    (ChecksumKind::Skein, "org.illumos:skein"),
    (ChecksumKind::Edonr, "org.illumos:edonr"),
    (ChecksumKind::Blake3, "org.openzfs:blake3"),
];

impl Applier<'_> {
    /// Creates an object, or changes an existing one.
    pub(crate) fn object(&self, record: &ObjectRecord, bonus: Vec<u8>) -> Result<(), ReceiveError> {
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
        &self,
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
        let keeps_size = is_other_size && self.is_same_file(object, &new);
        if is_other_size && !keeps_size {
            self.free(object, 0, None)?;
        }
        let tx = self.begin(old_block.saturating_add(new.bonus.len() as u64))?;
        let done = (|| {
            if is_other_size && !keeps_size {
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

    /// Whether an object of several blocks is the same file as at the sender, which now sends its large blocks as such.
    /// Then it keeps its small ones: the stream has only those that changed.
    fn is_same_file(&self, object: &Object, new: &NewObject) -> bool {
        let (bonus_type, bonus) = object.typed_bonus();
        let generations = (
            generation(bonus_type, &bonus),
            generation(new.bonus_type, &new.bonus),
        );
        !self.is_full
            && object.object_type() == ObjectType::PLAIN_FILE
            && new.object_type == ObjectType::PLAIN_FILE
            && object.block_id_max().0 > 0
            && new.block_bytes > SMALL_BLOCK_BYTES
            && u64::from(new.block_bytes) > object.block_bytes()
            && matches!(generations, (Some(old), Some(new)) if old == new)
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
