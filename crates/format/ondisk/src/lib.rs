//! Layer `format`: the on-disk structures of a ZFS pool, as plain values.
//!
//! This crate only handles bytes. It knows no device, no object set to read another block from, and no clock.
//! Every structure decodes from both byte orders into one native form, and encodes little-endian only. (Each
//! block carries its own byte order, so Millpond can write little-endian blocks to a big-endian pool.)
//!
//! No decoder trusts its input. Decoders never panic, never index by a number from disk without a check, and
//! never allocate more than their documented bound.
//!
//! ```
//! use millpond_ondisk::{BlockPointer, Endian};
//! let bp = BlockPointer::decode(&[0u8; 128], Endian::Little).unwrap();
//! assert!(bp.is_hole());
//! ```
//!
//! Pages: everything below `docs/format/`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub mod acl;
mod array;
mod blkptr;
mod blkptr_new;
mod block_bookmark;
mod block_list;
mod bookmark;
mod boot_env;
mod bytes;
mod crypt;
pub mod dedup;
mod dnode;
pub mod dsl;
mod error;
mod error_log;
mod features;
mod gang;
mod history;
mod ids;
pub mod intent_log;
mod kinds;
pub mod l2arc;
mod label;
mod objset;
pub mod pool_directory;
mod pool_version;
mod rebuild;
mod removal;
pub mod sa;
mod scan;
pub mod space_map;
#[cfg(test)]
mod testing;
mod trailer;
mod txg_time;
mod uberblock;
pub mod zap;
pub mod znode;

pub use array::WordArray;
pub use blkptr::{BlockPointer, Dva, EmbeddedKind, EmbeddedPayload};
pub use blkptr_new::{EMBEDDED_BYTES_MAX, StoredBlock};
pub use block_bookmark::{BLOCK_BOOKMARK_BYTES, BlockBookmark};
pub use block_list::{
    BP_TREE_ENTRY_BYTES, BpObjectEntries, BpObjectEntry, BpObjectForm, BpObjectPhys, BpTreeEntry,
    BpTreePhys, DEADLIST_BYTES, DeadlistPhys, live_pointers,
};
pub use bookmark::{
    BookmarkFlags, BookmarkPhys, BookmarkSizes, REDACTION_ENTRY_BYTES, RedactionEntry,
    RedactionListPhys,
};
pub use boot_env::BootEnvironment;
pub use bytes::{Endian, Reader, Writer};
pub use crypt::{CryptKey, CryptKeyValue, CryptSuite, KeyFormat, crypt_key_names};
pub use dedup::{CloneTablePhys, DedupEntry, DedupKey};
pub use dnode::{Dnode, DnodeArrayShape, DnodeFlags, SPILL_BLOCK_ID};
pub use dsl::{DslDatasetFlags, DslDatasetPhys, DslDirectoryFlags, DslDirectoryPhys};
pub use error::DecodeError;
pub use error_log::{ErrorLogEntry, error_log_bookmark_key, parse_error_log_bookmark};
pub use features::{
    FEATURES, Feature, FeatureFlags, FeatureState, FeatureSupport, hinders_reading, hinders_writing,
};
pub use gang::{GANG_HEADER_BYTES, GANG_HEADER_BYTES_MAX, GangHeader};
pub use history::{HISTORY_BYTES, HISTORY_RING_BYTES_MAX, HistoryPhys, HistoryRecords};
pub use ids::{Ashift, BlockId, Guid, Level, ObjectId, Txg, VdevId};
pub use intent_log::{IntentLogBlockHeader, IntentLogFlags, IntentLogHeader, LogRecord};
pub use kinds::{ByteswapClass, ChecksumKind, CompressionKind, ObjectType};
pub use label::{
    BOOT_ENV_BYTES, BOOT_ENV_OFFSET_BYTES, LABEL_BYTES, LABEL_CONFIG_BYTES,
    LABEL_CONFIG_OFFSET_BYTES, LABEL_COUNT, LEAF_BYTES_MIN, LeafLayout, UBERBLOCK_RING_BYTES,
    UBERBLOCK_RING_OFFSET_BYTES, unsealed_label_region,
};
pub use objset::{OBJECT_SET_BYTES, ObjectSetKind, ObjectSetPhys};
pub use pool_version::PoolVersion;
pub use rebuild::{RebuildPhase, RebuildPhys};
pub use removal::{
    CondensingIndirectPhys, INDIRECT_BIRTH_ENTRY_BYTES, INDIRECT_MAPPING_ENTRY_BYTES,
    IndirectBirthEntry, IndirectBirthsPhys, IndirectMappingEntry, IndirectMappingPhys,
    RemovalPhase, RemovalPhys, obsolete_counts,
};
pub use scan::{ErrorScrubPhys, ScanFlags, ScanFunction, ScanPhase, ScanPhys};
pub use space_map::{SpaceAction, SpaceMapEntries, SpaceMapEntry, SpaceMapPhys};
pub use trailer::{CHECKSUM_TRAILER_BYTES, CHECKSUM_TRAILER_MAGIC, ChecksumTrailer};
pub use txg_time::TxgTimes;
pub use uberblock::{
    MmpState, RaidzReflow, UBERBLOCK_BYTES, Uberblock, UberblockRank, UberblockRing,
};

/// Bytes in one sector, the unit of every size and offset in a block pointer, regardless of the ashift.
pub const SECTOR_BYTES: u64 = 512;
/// log2 of [`SECTOR_BYTES`].
pub const SECTOR_SHIFT: u32 = 9;
/// The largest logical or physical block, in bytes (16 MiB).
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a block pointer on disk.
pub const BLOCK_POINTER_BYTES: usize = 128;
/// Bytes of a dnode slot on disk.
pub const DNODE_SLOT_BYTES: usize = 512;
/// Byte offset on a leaf device at which allocatable space begins, after labels 0 and 1 and the boot area.
pub const VDEV_DATA_START_BYTES: u64 = 4 << 20;
