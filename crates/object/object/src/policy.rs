//! How the blocks of an object set are stored: the set's properties, resolved for each kind of block.

use crate::Caching;
use millpond_block::{Dedup, Retention};
use millpond_compress::ZstdLevel;
use millpond_ondisk::{ChecksumKind, CompressionKind, Level, ObjectType, PoolVersion};
use millpond_vdev::AllocationClass;

/// Property `redundant_metadata`: which metadata gets one copy more than data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RedundantMetadata {
    /// All metadata.
    #[default]
    All,
    /// Blocks of metadata types, spill blocks, and indirect blocks from level 2.
    Most,
    /// Metadata other than dnodes, directory contents and attributes.
    Some,
    /// None.
    None,
}

/// The storage properties of an object set, and what the pool permits.
///
/// The set consults the policy for each block that it writes. A change applies to blocks written from then
/// on. Page `docs/format/block-pointer.md`, "Functions and copies".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritePolicy {
    /// The checksum function of data, resolved (never "on" or "inherit").
    pub checksum: ChecksumKind,
    /// The compression of data, resolved (never "on" or "inherit").
    pub compression: CompressionKind,
    /// Used by zstd only.
    pub zstd_level: ZstdLevel,
    /// Copies of data, 1 to 3.
    pub copies: u8,
    /// Which metadata gets one copy more.
    pub redundant_metadata: RedundantMetadata,
    /// Data blocks of at most this many bytes go to special vdevs; 0 for none.
    pub special_small_bytes: u64,
    /// This is the pool's own object set: fletcher4, three copies of everything.
    pub is_mos: bool,
    /// The pool's version, 1 to 28 or 5000.
    pub pool_version: u64,
    /// Feature `lz4_compress` is active: metadata is compressed with lz4, otherwise with lzjb.
    pub has_lz4: bool,
    /// Feature `hole_birth` is active.
    pub has_hole_birth: bool,
    /// Feature `embedded_data` is enabled.
    pub may_embed: bool,
    /// Feature `large_blocks` is enabled: data blocks above 128 KiB are allowed.
    pub may_have_large_blocks: bool,
    /// Feature `large_dnode` is enabled: objects with more than one slot are allowed.
    pub may_have_large_dnodes: bool,
    /// Feature `physical_rewrite` is enabled: a block can be written again and keep its logical birth.
    pub may_keep_births: bool,
    /// Feature `project_quota` is enabled in the pool: object set blocks are 4 KiB.
    pub has_project_quota: bool,
    /// Space is accounted to users and groups (file systems of pools from version 15).
    pub accounts_users: bool,
    /// Objects are counted too (feature `userobj_accounting` enabled).
    pub accounts_objects: bool,
    /// Projects are accounted (feature `project_quota` enabled).
    pub accounts_projects: bool,
    /// The set is encrypted. The set itself knows; see [`crate::ObjectSet::set_policy`].
    pub is_encrypted: bool,
    /// Which blocks the cache keeps, after reads too, and which are prefetched.
    pub caching: Caching,
    /// How data is deduplicated; `None` if it is not.
    pub dedup: Option<DedupPolicy>,
}

/// Property `dedup`, if it is not off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DedupPolicy {
    /// The checksum function of the table. It replaces [`WritePolicy::checksum`] for the blocks in it.
    pub checksum: ChecksumKind,
    /// Whether blocks of equal checksum are compared.
    pub is_verified: bool,
}

impl WritePolicy {
    /// The policy of the MOS of a pool with every feature of OpenZFS 2.3.
    #[must_use]
    pub fn mos() -> Self {
        Self {
            is_mos: true,
            copies: 3,
            accounts_users: false,
            accounts_objects: false,
            accounts_projects: false,
            ..Self::dataset()
        }
    }

    /// The policy of a dataset whose properties are at their defaults, in a pool with every feature of
    /// OpenZFS 2.3: fletcher4, lz4, one copy of data and two of metadata, everything accounted.
    #[must_use]
    pub fn dataset() -> Self {
        Self {
            checksum: ChecksumKind::Fletcher4,
            compression: CompressionKind::Lz4,
            zstd_level: ZstdLevel::DEFAULT,
            copies: 1,
            redundant_metadata: RedundantMetadata::All,
            special_small_bytes: 0,
            is_mos: false,
            pool_version: 5000,
            has_lz4: true,
            has_hole_birth: true,
            may_embed: true,
            may_have_large_blocks: true,
            may_have_large_dnodes: true,
            may_keep_births: true,
            has_project_quota: true,
            accounts_users: true,
            accounts_objects: true,
            accounts_projects: true,
            is_encrypted: false,
            caching: Caching::default(),
            dedup: None,
        }
    }

    /// Returns how to store a block.
    #[must_use]
    pub fn block(&self, block: &BlockTraits) -> BlockPolicy {
        let is_metadata = block.is_metadata();
        let compression = match CompressionKind::from_number(block.dnode_compression) {
            _ if block.is_rewritten_late => CompressionKind::Off,
            // Parts of these are encrypted in place. Zeros still become holes.
            _ if self.is_encrypted && block.is_dnodes_or_head() => CompressionKind::Empty,
            // A choice of the object itself has precedence, for data and metadata (`sync_bplist`).
            Some(own) if own != CompressionKind::Inherit && block.level == Level(0) => own,
            _ if is_metadata || self.is_mos => self.metadata_compression(),
            _ => self.compression,
        };
        let is_data = !is_metadata && !self.is_mos;
        // Blocks that are only authenticated are not deduplicated.
        let is_own = !self.is_encrypted || block.is_encrypted_type();
        let dedup = self.dedup.filter(|_| is_data && is_own);
        let class = if self.is_mos && block.object_type == ObjectType::DDT_ZAP {
            AllocationClass::Dedup
        } else if is_metadata || block.is_small(self.special_small_bytes) {
            AllocationClass::Special
        } else {
            AllocationClass::Normal
        };
        BlockPolicy {
            checksum: if let Some(dedup) = dedup {
                dedup.checksum
            } else if is_data {
                match ChecksumKind::from_number(block.dnode_checksum) {
                    Some(own) if own != ChecksumKind::Inherit => own,
                    _ => self.checksum,
                }
            } else {
                self.metadata_checksum()
            },
            compression,
            zstd_level: self.zstd_level,
            copies: self.copies(block),
            class,
            may_embed: self.may_embed && !self.is_encrypted,
            has_hole_birth: self.has_hole_birth,
            retention: self.caching.retention(is_metadata),
            dedup: dedup.map(|DedupPolicy { is_verified, .. }| Dedup { is_verified }),
        }
    }

    fn metadata_compression(&self) -> CompressionKind {
        if self.has_lz4 {
            CompressionKind::Lz4
        } else {
            CompressionKind::Lzjb
        }
    }

    fn metadata_checksum(&self) -> ChecksumKind {
        match self.checksum {
            _ if self.is_mos => ChecksumKind::Fletcher4,
            ChecksumKind::Sha256
            | ChecksumKind::Sha512
            | ChecksumKind::Skein
            | ChecksumKind::Edonr
            | ChecksumKind::Blake3 => self.checksum,
            _ => ChecksumKind::Fletcher4,
        }
    }

    fn copies(&self, block: &BlockTraits) -> u8 {
        let most = match PoolVersion(self.pool_version).has_copies() {
            false => 1,
            // Salt and IV are where the third address would be.
            true if self.is_encrypted && block.is_encrypted_type() => 2,
            true => 3,
        };
        if self.is_mos {
            return most;
        }
        let is_extra = match self.redundant_metadata {
            RedundantMetadata::All => block.is_metadata(),
            RedundantMetadata::Most => {
                block.level >= Level(2) || block.object_type.is_metadata() || block.is_spill
            }
            RedundantMetadata::Some => {
                let lesser = [ObjectType::DNODE, ObjectType::DIRECTORY, ObjectType::SA];
                block.object_type.is_metadata() && !lesser.contains(&block.object_type)
            }
            RedundantMetadata::None => false,
        };
        self.copies
            .saturating_add(u8::from(is_extra))
            .clamp(1, most)
    }
}

/// The properties that decide how a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTraits {
    /// The object type stored in its pointer.
    pub object_type: ObjectType,
    /// Its height in the tree.
    pub level: Level,
    /// Whether it is a spill block.
    pub is_spill: bool,
    /// Its size in bytes.
    pub lsize_bytes: u64,
    /// The dnode's own checksum function, 0 to inherit.
    pub dnode_checksum: u8,
    /// The dnode's own compression function, 0 to inherit.
    pub dnode_compression: u8,
    /// Whether it was already written in this txg and the pass is so late that its size must stop changing.
    pub is_rewritten_late: bool,
}

impl BlockTraits {
    fn is_metadata(&self) -> bool {
        self.level > Level(0) || self.is_spill || self.object_type.is_metadata()
    }
    fn is_dnodes_or_head(&self) -> bool {
        let types = [ObjectType::DNODE, ObjectType::OBJECT_SET];
        self.level == Level(0) && types.contains(&self.object_type)
    }
    fn is_encrypted_type(&self) -> bool {
        self.level == Level(0) && self.object_type.is_encrypted()
    }
    fn is_small(&self, limit_bytes: u64) -> bool {
        limit_bytes > 0 && self.lsize_bytes <= limit_bytes
    }
}

/// How to store one block, with every function resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPolicy {
    /// The checksum function.
    pub checksum: ChecksumKind,
    /// The compression function. With "off", zeros are stored like other data.
    pub compression: CompressionKind,
    /// Used by zstd only.
    pub zstd_level: ZstdLevel,
    /// The number of copies, 1 to 3.
    pub copies: u8,
    /// The preferred vdev class. The allocator uses normal vdevs if the pool has none of this class.
    pub class: AllocationClass,
    /// Whether a tiny block may be embedded in its pointer.
    pub may_embed: bool,
    /// Whether a new hole that replaces something with a birth txg gets a birth txg.
    pub has_hole_birth: bool,
    /// What becomes of the written block in the cache.
    pub retention: Retention,
    /// Set if the block belongs into the dedup table of its checksum function.
    pub dedup: Option<Dedup>,
}
