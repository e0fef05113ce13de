//! DSL datasets: heads and snapshots.

use crate::{BlockPointer, DecodeError, Endian, Guid, ObjectId, Reader, Txg, Writer};

/// Bytes of a dataset's bonus.
pub const DSL_DATASET_BYTES: usize = 320;

bitflags::bitflags! {
    /// Flags of a dataset. Page `docs/format/dsl-dataset.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DslDatasetFlags: u64 {
        /// Partially received, or being destroyed: must not be mounted or sent.
        const INCONSISTENT = 0x1;
        /// Must not be promoted.
        const NO_PROMOTE = 0x2;
        /// `unique_bytes` is exact.
        const UNIQUE_ACCURATE = 0x4;
        /// A snapshot that is destroyed with its last hold and clone.
        const DEFER_DESTROY = 0x8;
        /// Names are looked up case-insensitively (`casesensitivity=insensitive`, not `mixed`).
        const CASE_INSENSITIVE = 0x1_0000;
        const _ = !0;
    }
}

/// The bonus of a dataset (`dsl_dataset_phys`): a head or a snapshot. References are object ids in the MOS.
/// Page `docs/format/dsl-dataset.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DslDatasetPhys {
    /// Its directory.
    pub directory: ObjectId,
    /// The next older snapshot, or the origin of the chain.
    pub previous_snapshot: Option<ObjectId>,
    /// Creation txg of the previous snapshot; 0 for none.
    pub previous_snapshot_txg: Txg,
    /// The next newer snapshot or the head; `None` if this is a head.
    pub next_snapshot: Option<ObjectId>,
    /// Heads: ZAP from snapshot name to dataset.
    pub snapshot_names: Option<ObjectId>,
    /// Snapshots: 1 plus the number of direct clones. Heads: 0.
    pub children_count: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// The creation txg; a snapshot contains exactly the blocks born up to it.
    pub creation_txg: Txg,
    /// Blocks that the previous snapshot references and this dataset does not.
    pub deadlist: Option<ObjectId>,
    /// Deflated bytes of all referenced blocks.
    pub referenced_bytes: u64,
    /// Their physical sizes.
    pub compressed_bytes: u64,
    /// Their logical sizes.
    pub uncompressed_bytes: u64,
    /// Heads: bytes born since the previous snapshot. Snapshots: bytes freed by destroying it.
    pub unique_bytes: u64,
    /// A random 56-bit id that distinguishes mounted file systems.
    pub fsid_guid: Guid,
    /// The GUID in send streams.
    pub guid: Guid,
    /// See [`DslDatasetFlags`].
    pub flags: DslDatasetFlags,
    /// The object set block; a hole only in `$ORIGIN`.
    pub block_pointer: BlockPointer,
    /// Snapshots: ZAP of the oldest datasets of the clone chains that start here.
    pub next_clones: Option<ObjectId>,
    /// Snapshots: ZAP of the snapshot's own properties.
    pub properties: Option<ObjectId>,
    /// Snapshots: ZAP of user holds, tag to time.
    pub user_references: Option<ObjectId>,
}

impl DslDatasetPhys {
    /// Reads a dataset from its bonus of 320 bytes or more.
    ///
    /// # Errors
    /// If there are fewer than 320 bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        if bonus.len() < DSL_DATASET_BYTES {
            return Err(DecodeError::new(
                "dsl dataset",
                "shorter than 320 bytes",
                bonus.len(),
            ));
        }
        let mut reader = Reader::new("dsl dataset", bonus, endian);
        Ok(Self {
            directory: ObjectId(reader.u64()?),
            previous_snapshot: ObjectId(reader.u64()?).some(),
            previous_snapshot_txg: Txg(reader.u64()?),
            next_snapshot: ObjectId(reader.u64()?).some(),
            snapshot_names: ObjectId(reader.u64()?).some(),
            children_count: reader.u64()?,
            creation_time: reader.u64()?,
            creation_txg: Txg(reader.u64()?),
            deadlist: ObjectId(reader.u64()?).some(),
            referenced_bytes: reader.u64()?,
            compressed_bytes: reader.u64()?,
            uncompressed_bytes: reader.u64()?,
            unique_bytes: reader.u64()?,
            fsid_guid: Guid(reader.u64()?),
            guid: Guid(reader.u64()?),
            flags: DslDatasetFlags::from_bits_retain(reader.u64()?),
            block_pointer: BlockPointer::decode(reader.take(128)?, endian)?,
            next_clones: ObjectId(reader.u64()?).some(),
            properties: ObjectId(reader.u64()?).some(),
            user_references: ObjectId(reader.u64()?).some(),
        })
    }

    /// Encodes the bonus as 320 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(DSL_DATASET_BYTES);
        for word in [
            self.directory.0,
            ObjectId::number(self.previous_snapshot),
            self.previous_snapshot_txg.0,
            ObjectId::number(self.next_snapshot),
            ObjectId::number(self.snapshot_names),
            self.children_count,
            self.creation_time,
            self.creation_txg.0,
            ObjectId::number(self.deadlist),
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid.0,
            self.guid.0,
            self.flags.bits(),
        ] {
            writer.put_u64(word);
        }
        writer.put(&self.block_pointer.encode());
        for reference in [self.next_clones, self.properties, self.user_references] {
            writer.put_u64(ObjectId::number(reference));
        }
        writer.pad_to(DSL_DATASET_BYTES);
        writer.finish()
    }

    /// Whether this is a snapshot, and not the head of its directory.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.next_snapshot.is_some()
    }
    /// The number of direct clones of this snapshot.
    #[must_use]
    pub fn clones_count(&self) -> u64 {
        self.children_count.saturating_sub(1)
    }
}
