//! The objects of a removal: mapping, births, and the counts of what is obsolete.
//!
//! Page `docs/format/indirect-vdev.md`.

use super::obsolete::OBSOLETE_COUNTS;
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_env::sync::Arc;
use millpond_object::{NewObject, Object};
use millpond_ondisk::{
    BlockId, Endian, INDIRECT_BIRTH_ENTRY_BYTES, INDIRECT_MAPPING_ENTRY_BYTES, IndirectBirthEntry,
    IndirectBirthsPhys, IndirectMappingEntry, IndirectMappingPhys, ObjectId, ObjectType,
};

const WHAT: &str = "mapping of a removed vdev";
/// Size of the data blocks of mappings and births, in bytes.
const BLOCK_BYTES: u32 = 128 << 10;

/// The objects that the configuration of a removing or removed vdev names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappingObjects {
    pub(crate) mapping: ObjectId,
    pub(crate) births: ObjectId,
}

impl MappingObjects {
    /// Creates an empty mapping with its births.
    pub(crate) fn create(ctx: &SyncContext<'_>) -> Result<Self, PoolError> {
        let mapping = ctx.create_mapping()?;
        let births = create(ctx, IndirectBirthsPhys::default().encode())?;
        Ok(Self { mapping, births })
    }

    /// Appends entries, and stores the last birth, of which there are `birth_count`. No entry has obsolete bytes.
    pub(crate) fn append(
        self,
        ctx: &SyncContext<'_>,
        added: &[IndirectMappingEntry],
        last_birth: &IndirectBirthEntry,
        birth_count: u64,
    ) -> Result<(), PoolError> {
        ctx.append_to_mapping(self.mapping, added, &vec![0; added.len()])?;
        // Only the last birth changes, or one follows it.
        let births = ctx.mos().object(self.births).reading(WHAT)?;
        let start =
            (birth_count.saturating_sub(1)).saturating_mul(INDIRECT_BIRTH_ENTRY_BYTES as u64);
        let written = births.write(ctx.tx(), start, &last_birth.encode());
        written.reading(WHAT)?;
        let header = IndirectBirthsPhys {
            entry_count: birth_count,
        };
        births.set_bonus(ctx.tx(), header.encode()).reading(WHAT)
    }

    /// Frees the objects.
    pub(crate) fn free(self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        ctx.free_mapping(self.mapping)?;
        ctx.mos().free(ctx.tx(), self.births).reading(WHAT)
    }
}

fn create(ctx: &SyncContext<'_>, header: Vec<u8>) -> Result<ObjectId, PoolError> {
    let new = NewObject::new(ObjectType::METADATA_U64)
        .with_block_bytes(BLOCK_BYTES)
        .with_bonus(ObjectType::METADATA_U64, header);
    let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
    Ok(object.id())
}

fn header_of(object: &Object) -> Result<IndirectMappingPhys, PoolError> {
    IndirectMappingPhys::decode(&object.bonus(), Endian::Little).reading(WHAT)
}

impl SyncContext<'_> {
    /// Creates an empty mapping. It keeps counts if the pool has the feature for them.
    pub(crate) fn create_mapping(&self) -> Result<ObjectId, PoolError> {
        let counts = match self.feature_is_enabled(OBSOLETE_COUNTS) {
            false => None,
            true => {
                let new = NewObject::new(ObjectType::METADATA_U32).with_block_bytes(BLOCK_BYTES);
                let object = self.mos().allocate(self.tx(), new).reading(WHAT)?;
                self.feature_increment(OBSOLETE_COUNTS)?;
                Some(Some(object.id()))
            }
        };
        let header = IndirectMappingPhys {
            counts,
            ..IndirectMappingPhys::default()
        };
        create(self, header.encode())
    }

    /// Appends entries to a mapping, with the obsolete bytes of each. Returns the header.
    pub(crate) fn append_to_mapping(
        &self,
        mapping: ObjectId,
        added: &[IndirectMappingEntry],
        obsolete: &[u32],
    ) -> Result<IndirectMappingPhys, PoolError> {
        let object = self.mos().object(mapping).reading(WHAT)?;
        let mut header = header_of(&object)?;
        if added.is_empty() {
            return Ok(header);
        }
        let at = header.entry_count;
        let bytes: Vec<u8> = added.iter().flat_map(|entry| entry.encode()).collect();
        let start = at.saturating_mul(INDIRECT_MAPPING_ENTRY_BYTES as u64);
        object.write(self.tx(), start, &bytes).reading(WHAT)?;
        if let Some(Some(counts)) = header.counts {
            let counts = self.mos().object(counts).reading(WHAT)?;
            let words: Vec<u8> = obsolete
                .iter()
                .flat_map(|count| count.to_le_bytes())
                .collect();
            let start = at.saturating_mul(4);
            counts.write(self.tx(), start, &words).reading(WHAT)?;
        }
        header.entry_count = at.saturating_add(added.len() as u64);
        let end = added.last().map(IndirectMappingEntry::source_end_bytes);
        header.max_offset_bytes = end.unwrap_or(header.max_offset_bytes);
        let lengths = added.iter().map(IndirectMappingEntry::length_bytes);
        header.bytes_mapped = lengths.fold(header.bytes_mapped, u64::saturating_add);
        object.set_bonus(self.tx(), header.encode()).reading(WHAT)?;
        Ok(header)
    }

    /// Frees a mapping with its counts.
    pub(crate) fn free_mapping(&self, mapping: ObjectId) -> Result<(), PoolError> {
        let counts = {
            let object = self.mos().object(mapping).reading(WHAT)?;
            header_of(&object)?.counts.flatten()
        };
        if let Some(counts) = counts {
            self.mos().free(self.tx(), counts).reading(WHAT)?;
            self.feature_decrement(OBSOLETE_COUNTS)?;
        }
        self.mos().free(self.tx(), mapping).reading(WHAT)
    }

    /// Writes every block of an object again, so that none lies on a vdev on which nothing is allocated any more.
    pub(crate) fn rewrite_object(&self, id: ObjectId) -> Result<(), PoolError> {
        let object: Arc<Object> = self.mos().object(id).reading(WHAT)?;
        let size = object.block_bytes().max(1);
        for block in 0..=object.block_id_max().0 {
            let content = object.read_block(BlockId(block)).reading(WHAT)?;
            let at = block.saturating_mul(size);
            object.write(self.tx(), at, &content.bytes).reading(WHAT)?;
        }
        Ok(())
    }
}
