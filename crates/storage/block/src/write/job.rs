//! What a caller asks to be written, and what it gets back.

use crate::BlockAddress;
use millpond_compress::ZstdLevel;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Guid, Level, ObjectType, Txg, VdevId,
};
use millpond_vdev::{AllocationClass, LeafId};

/// One block to be written. Every choice of policy has been made: functions are the resolved ones
/// (never "inherit" or "on").
#[derive(Debug, Clone)]
pub struct BlockWrite {
    /// What errors name the block by.
    pub address: BlockAddress,
    /// The logical bytes: a multiple of 512, at most 16 MiB. Final: nothing may change them while
    /// they are written.
    pub content: Arc<Vec<u8>>,
    /// The object type that the pointer names.
    pub object_type: ObjectType,
    /// Height in the block tree.
    pub level: Level,
    /// The checksum function. Salted ones need the pool's salt ([`crate::BlockStore::set_salt`]).
    pub checksum: ChecksumKind,
    /// The compression function. "off" stores zeros as they are; "empty" only looks for zeros.
    pub compression: CompressionKind,
    /// Looked at by zstd only.
    pub zstd_level: ZstdLevel,
    /// How many copies, 1 to 3, each at another address.
    pub copies: u8,
    /// The pointer's fill.
    pub fill: u64,
    /// Which vdevs to take space from; what to do when they are full is the allocator's policy.
    pub class: AllocationClass,
    /// Whether a block that compresses to at most 112 bytes may stand in its pointer: feature
    /// `embedded_data` enabled, no dedup. Level and type are looked at here.
    pub may_embed: bool,
    /// Whether a block may be stored in pieces when no run is long enough. Not for intent logs.
    pub may_gang: bool,
    /// Whether a block of zeros gives a hole with a birth (feature `hole_birth`) instead of a
    /// pointer of zeros.
    pub has_hole_birth: bool,
    /// The pointer that the new one takes the place of; zeros if there is none.
    pub previous: BlockPointer,
    /// Whether `previous` may be rewritten where it lies if it was born in this txg and takes as many
    /// bytes: sync pass 2 and later.
    pub may_rewrite: bool,
    /// Whether the content is worth keeping in the cache. It is shared, not copied.
    pub keep_cached: bool,
}

impl BlockWrite {
    /// A block of `content` with the choices of a pool's own metadata that most others differ little
    /// from: fletcher4, lz4, one copy in normal space, embedded or in pieces if need be, a hole with a
    /// birth if zero, fill 1, no previous pointer.
    #[must_use]
    pub fn new(address: BlockAddress, object_type: ObjectType, content: Arc<Vec<u8>>) -> Self {
        Self {
            address,
            content,
            object_type,
            level: Level(0),
            checksum: ChecksumKind::Fletcher4,
            compression: CompressionKind::Lz4,
            zstd_level: ZstdLevel::DEFAULT,
            copies: 1,
            fill: 1,
            class: AllocationClass::Normal,
            may_embed: true,
            may_gang: true,
            has_hole_birth: true,
            previous: BlockPointer::default(),
            may_rewrite: false,
            keep_cached: false,
        }
    }
}

/// How a block was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WrittenForm {
    /// Nothing: all bytes are zero.
    Hole,
    /// In the pointer itself.
    Embedded,
    /// In new space, one run for each copy.
    Contiguous,
    /// In new space, in pieces.
    Gang {
        /// Whether a piece had to be cut into pieces again: a larger gang header would have helped.
        is_nested: bool,
    },
    /// In the space of the previous pointer, which therefore is dead without having to be freed:
    /// neither a birth nor a death is to be accounted.
    Rewritten,
}

/// A block that was written, or needed no writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenBlock {
    /// What stands for the block from now on.
    pub pointer: BlockPointer,
    /// How it was stored. In every form but [`WrittenForm::Rewritten`] the previous pointer is the
    /// caller's to kill.
    pub form: WrittenForm,
}

impl WrittenBlock {
    /// Whether the pointer took the previous one's space over.
    #[must_use]
    pub fn is_rewritten(&self) -> bool {
        self.form == WrittenForm::Rewritten
    }
}

/// A leaf that does not hold what was written in a txg: for its dirty time log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Missed {
    /// The leaf, as numbered in the topology at the time.
    pub leaf: LeafId,
    /// The leaf's guid.
    pub guid: Guid,
    /// The txg of the lost write.
    pub txg: Txg,
}

/// Why not all writes so far are on stable storage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vdev {vdev} lost more writes than its redundancy can bear: {reason}")]
pub struct FlushError {
    /// The first top-level vdev concerned.
    pub vdev: VdevId,
    /// What its leaves said.
    pub reason: String,
}
