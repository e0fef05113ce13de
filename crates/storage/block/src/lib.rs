//! Layer `storage`: the way of a block.
//!
//! A [`BlockStore`] turns block pointers into bytes whose checksum held in this memory: it picks a
//! copy, asks the vdev tree which leaves to read, verifies, reassembles gang blocks, decrypts,
//! authenticates and decompresses, counts every lie against the device that told it, and keeps
//! what it read in a bounded cache. It knows pointers and devices; it knows no object.
//!
//! Pages: `docs/format/block-pointer.md`, `docs/format/gang-header.md`.
#![forbid(unsafe_code)]

mod address;
mod error;

pub use address::BlockAddress;
pub use error::{BlockError, CopyFailure};

use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Endian};

/// A block's content: verified, decrypted and decompressed, still in its writer's byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The logical bytes (`lsize` of the pointer).
    pub bytes: Vec<u8>,
    /// The byte order of integers in `bytes`.
    pub endian: Endian,
    /// Set for blocks of dnodes of a locked dataset: everything but the bonus areas is plain.
    pub has_ciphertext: bool,
}

/// Reads the blocks of one open pool. Shared by all threads.
#[derive(Debug)]
pub struct BlockStore {}

impl BlockStore {
    /// The content behind a pointer. A hole gives `lsize` zeros.
    ///
    /// Bytes are returned only if their checksum held. At most `lsize` + a few times `psize` bytes
    /// (both at most 16 MiB) are allocated.
    ///
    /// # Errors
    /// [`BlockError`], naming `address` and what each copy had to say.
    pub fn read(
        &self,
        _pointer: &BlockPointer,
        address: BlockAddress,
        _key: Option<&Arc<millpond_crypt::DatasetKey>>,
    ) -> Result<Arc<Block>, BlockError> {
        Err(BlockError::Locked { address })
    }
}
