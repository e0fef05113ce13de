//! Write requests of a caller, and their results.

use super::{Dedup, WriteKey};
use crate::BlockAddress;
use millpond_cache::Retention;
use millpond_compress::ZstdLevel;
use millpond_crypt::{IV_BYTES, MAC_BYTES, SALT_BYTES};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Guid, Level, ObjectType, Txg, VdevId,
};
use millpond_vdev::{AllocationClass, LeafId};

/// The form in which a block's content was stored elsewhere, so that it need not be encoded again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedContent {
    /// The function that decodes it: one that occurs in pointers, and not "off".
    pub compression: CompressionKind,
    /// The encoded bytes, perhaps with zeros after them.
    pub bytes: Arc<Vec<u8>>,
    /// Set for a block of an encrypted dataset whose key is not known: `bytes` is exactly what is stored, also if
    /// `compression` is off, and the content is not known.
    pub seal: Option<Seal>,
}

/// The codes of a block that the holder of its key encrypted or authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seal {
    /// The salt, for encrypted blocks.
    pub salt: [u8; SALT_BYTES],
    /// The initialization vector, for encrypted blocks.
    pub iv: [u8; IV_BYTES],
    /// The authentication code.
    pub mac: [u8; MAC_BYTES],
}

/// One block to write. All policy is already resolved: functions are never "inherit" or "on".
#[derive(Debug, Clone)]
pub struct BlockWrite {
    /// The address for error messages.
    pub address: BlockAddress,
    /// The logical bytes: a multiple of 512, at most 16 MiB. They must not change during the write.
    pub content: Arc<Vec<u8>>,
    /// The object type in the pointer.
    pub object_type: ObjectType,
    /// Height in the block tree.
    pub level: Level,
    /// The checksum function. Salted functions need the pool's salt ([`crate::BlockStore::set_salt`]).
    pub checksum: ChecksumKind,
    /// The compression function. "off" stores zeros as they are; "empty" only detects zeros.
    pub compression: CompressionKind,
    /// Used by zstd only.
    pub zstd_level: ZstdLevel,
    /// The encoded form to store instead of what the compression function makes, if it takes less space than the content.
    /// The caller has verified that it decodes to the content.
    pub encoded: Option<EncodedContent>,
    /// The number of copies, 1 to 3, each at another address.
    pub copies: u8,
    /// The fill count of the pointer.
    pub fill: u64,
    /// The allocation class. The allocator's policy decides what happens when its vdevs are full.
    pub class: AllocationClass,
    /// Whether a block that compresses to at most 112 bytes may be embedded in its pointer: feature
    /// `embedded_data` enabled, no dedup. Level and type are checked here.
    pub may_embed: bool,
    /// Whether a block may be stored as a gang block when no run is long enough. Not for intent logs.
    pub may_gang: bool,
    /// Whether a block of zeros becomes a hole with a birth (feature `hole_birth`) instead of a pointer of
    /// zeros.
    pub has_hole_birth: bool,
    /// The pointer that the new one replaces; zeros if there is none.
    pub previous: BlockPointer,
    /// Whether `previous` may be overwritten in place if it was born in this txg and has the same size:
    /// sync pass 2 and later.
    pub may_rewrite: bool,
    /// What becomes of the block in the cache. The content is shared, not copied.
    pub retention: Retention,
    /// The key with which the block is encrypted or authenticated; `None` outside encrypted datasets.
    pub key: Option<Arc<WriteKey>>,
    /// Whether it is a block of an encrypted dataset whose key is not known. Then an indirect block is authenticated
    /// without the key, an object set block has its codes inside, and every other block comes with its [`Seal`].
    pub is_raw: bool,
    /// Set if the block belongs into a dedup table. Its checksum function must be one that such tables take.
    pub dedup: Option<Dedup>,
}

impl BlockWrite {
    /// A block of `content` with the usual choices for a pool's metadata: fletcher4, lz4, one copy in
    /// normal space, embedded or ganged if needed, a hole with a birth if zero, fill 1, no previous
    /// pointer.
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
            encoded: None,
            copies: 1,
            fill: 1,
            class: AllocationClass::Normal,
            may_embed: true,
            may_gang: true,
            has_hole_birth: true,
            previous: BlockPointer::default(),
            may_rewrite: false,
            retention: Retention::Drop,
            key: None,
            is_raw: false,
            dedup: None,
        }
    }
}

/// How a block was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WrittenForm {
    /// All bytes are zero: nothing is stored.
    Hole,
    /// Embedded in the pointer.
    Embedded,
    /// In new space, one run for each copy.
    Contiguous,
    /// In new space, in pieces.
    Gang {
        /// Whether a piece had to be split again. A larger gang header would have avoided that.
        is_nested: bool,
    },
    /// Already stored: the pointer refers to a block of a dedup table, which has counted the reference.
    Shared,
    /// Not again: the previous pointer refers to a block with the same content, and stays. Neither a birth nor a death is
    /// accounted.
    Unchanged,
    /// In the space of the previous pointer, which is therefore dead and must not be freed: neither a birth
    /// nor a death is accounted.
    Rewritten,
}

/// The result of a successful write, which may not have stored anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenBlock {
    /// The block's new pointer.
    pub pointer: BlockPointer,
    /// How the block was stored. In every form but [`WrittenForm::Rewritten`] and [`WrittenForm::Unchanged`] the caller
    /// has to kill the previous pointer.
    pub form: WrittenForm,
}

impl WrittenBlock {
    /// Whether the block has the space of the previous pointer, so that neither a birth nor a death is accounted.
    #[must_use]
    pub fn keeps_space(&self) -> bool {
        matches!(self.form, WrittenForm::Rewritten | WrittenForm::Unchanged)
    }
}

/// A leaf that lacks the writes of a txg: an entry for its dirty time log (DTL).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Missed {
    /// The leaf's id in the topology at the time.
    pub leaf: LeafId,
    /// The leaf's guid.
    pub guid: Guid,
    /// The txg of the lost write.
    pub txg: Txg,
}

/// Why previous writes are not all on stable storage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vdev {vdev} lost more writes than its redundancy can bear: {reason}")]
pub struct FlushError {
    /// The first top-level vdev affected.
    pub vdev: VdevId,
    /// The errors of its leaves.
    pub reason: String,
}
