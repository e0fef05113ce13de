//! DSL directories: the nodes of the dataset tree.

use crate::{DecodeError, Endian, ObjectId, Reader, Writer};

/// Bytes of a directory's bonus.
pub const DSL_DIRECTORY_BYTES: usize = 256;

bitflags::bitflags! {
    /// Flags of a directory. Page `docs/format/dsl-directory.md`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DslDirectoryFlags: u64 {
        /// The breakdown of the used bytes is maintained (directories created since pool version 13).
        const USED_BREAKDOWN = 0x1;
        const _ = !0;
    }
}

/// The breakdown of a directory's used bytes, in deflated bytes. Page `docs/format/dsl-directory.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsedBreakdown {
    /// Data that the head references, except blocks that only its own snapshots reference.
    pub head_bytes: u64,
    /// Space that only snapshots reference.
    pub snapshots_bytes: u64,
    /// Space charged by children.
    pub children_bytes: u64,
    /// The unused part of the children's reservations.
    pub children_reserved_bytes: u64,
    /// The unused part of the directory's own refreservation.
    pub ref_reserved_bytes: u64,
}

/// The bonus of a directory (`dsl_dir_phys`). References are object ids in the MOS. Page
/// `docs/format/dsl-directory.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DslDirectoryPhys {
    /// Seconds since 1970; informative only.
    pub creation_time: u64,
    /// The head dataset; `None` in `$MOS`, `$FREE`, `$LEAK`.
    pub head_dataset: Option<ObjectId>,
    /// The parent directory; `None` in the root.
    pub parent: Option<ObjectId>,
    /// The snapshot that the head descends from.
    ///
    /// `$ORIGIN@$ORIGIN` if the head is not a clone; `None` in directories whose name starts with `$` and in
    /// pools before version 11.
    pub origin: Option<ObjectId>,
    /// ZAP: child name to directory.
    pub child_directories: Option<ObjectId>,
    /// Deflated bytes charged to this directory: the sum of the breakdown.
    pub used_bytes: u64,
    /// Physical sizes of the blocks of this directory and its descendants.
    pub compressed_bytes: u64,
    /// Their logical sizes.
    pub uncompressed_bytes: u64,
    /// The effective quota; 0 for none.
    pub quota_bytes: u64,
    /// The effective reservation; 0 for none.
    pub reserved_bytes: u64,
    /// ZAP of the properties.
    pub properties: Option<ObjectId>,
    /// ZAP of delegated permissions.
    pub delegation: Option<ObjectId>,
    /// See [`DslDirectoryFlags`].
    pub flags: DslDirectoryFlags,
    /// The breakdown of the used bytes; only valid with [`DslDirectoryFlags::USED_BREAKDOWN`].
    pub used_breakdown: UsedBreakdown,
    /// ZAP: head datasets of the clones whose origin is a snapshot of this directory.
    pub clones: Option<ObjectId>,
}

impl DslDirectoryPhys {
    /// Reads a directory from its bonus of 256 bytes or more.
    ///
    /// # Errors
    /// If there are fewer than 256 bytes.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        if bonus.len() < DSL_DIRECTORY_BYTES {
            return Err(DecodeError::new(
                "dsl directory",
                "shorter than 256 bytes",
                bonus.len(),
            ));
        }
        let mut reader = Reader::new("dsl directory", bonus, endian);
        Ok(Self {
            creation_time: reader.u64()?,
            head_dataset: ObjectId(reader.u64()?).some(),
            parent: ObjectId(reader.u64()?).some(),
            origin: ObjectId(reader.u64()?).some(),
            child_directories: ObjectId(reader.u64()?).some(),
            used_bytes: reader.u64()?,
            compressed_bytes: reader.u64()?,
            uncompressed_bytes: reader.u64()?,
            quota_bytes: reader.u64()?,
            reserved_bytes: reader.u64()?,
            properties: ObjectId(reader.u64()?).some(),
            delegation: ObjectId(reader.u64()?).some(),
            flags: DslDirectoryFlags::from_bits_retain(reader.u64()?),
            used_breakdown: UsedBreakdown {
                head_bytes: reader.u64()?,
                snapshots_bytes: reader.u64()?,
                children_bytes: reader.u64()?,
                children_reserved_bytes: reader.u64()?,
                ref_reserved_bytes: reader.u64()?,
            },
            clones: ObjectId(reader.u64()?).some(),
        })
    }

    /// Encodes the bonus as 256 little-endian bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(DSL_DIRECTORY_BYTES);
        for word in [
            self.creation_time,
            ObjectId::number(self.head_dataset),
            ObjectId::number(self.parent),
            ObjectId::number(self.origin),
            ObjectId::number(self.child_directories),
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota_bytes,
            self.reserved_bytes,
            ObjectId::number(self.properties),
            ObjectId::number(self.delegation),
            self.flags.bits(),
            self.used_breakdown.head_bytes,
            self.used_breakdown.snapshots_bytes,
            self.used_breakdown.children_bytes,
            self.used_breakdown.children_reserved_bytes,
            self.used_breakdown.ref_reserved_bytes,
            ObjectId::number(self.clones),
        ] {
            writer.put_u64(word);
        }
        writer.pad_to(DSL_DIRECTORY_BYTES);
        writer.finish()
    }

    /// The breakdown of the used bytes; `None` if this directory does not maintain it.
    #[must_use]
    pub fn breakdown(&self) -> Option<UsedBreakdown> {
        self.flags
            .contains(DslDirectoryFlags::USED_BREAKDOWN)
            .then_some(self.used_breakdown)
    }
}
