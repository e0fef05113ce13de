//! Blocks that an intent log writes before their txg is synced.

use crate::{BlockTraits, Object, WriteJob};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, BlockPointer, Level, Txg};

/// A data block in its state in one txg, which an intent log may write as a separate block.
///
/// It shares the content with the dirty block until that changes. Page `docs/format/intent-log.md`, "Blocks
/// of their own".
#[derive(Clone)]
pub struct LoggedBlock {
    object: Arc<Object>,
    id: BlockId,
    txg: Txg,
    content: Arc<Vec<u8>>,
}

impl core::fmt::Debug for LoggedBlock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LoggedBlock")
            .field("object", &self.object.id())
            .field("id", &self.id)
            .field("txg", &self.txg)
            .finish_non_exhaustive()
    }
}

impl PartialEq for LoggedBlock {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.content, &other.content) && self.id == other.id && self.txg == other.txg
    }
}
impl Eq for LoggedBlock {}

impl Object {
    /// Returns a data block in its current state in `txg`, if the whole block is new in that txg.
    #[must_use]
    pub fn logged_block(self: &Arc<Self>, txg: Txg, id: BlockId) -> Option<LoggedBlock> {
        let content = self.state().whole_in(txg, id.0)?;
        Some(LoggedBlock {
            object: Arc::clone(self),
            id,
            txg,
            content,
        })
    }
}

impl LoggedBlock {
    /// Length of the content in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.content.len() as u64
    }

    /// The job that writes the block in `txg` to a new location.
    #[must_use]
    pub fn job(&self, txg: Txg) -> WriteJob {
        let (object_type, checksum, compression) = {
            let state = self.object.state();
            let object_type = state.shape().object_type;
            (object_type, state.synced.checksum, state.synced.compression)
        };
        let policy = self.object.core.policy.read().block(&BlockTraits {
            object_type,
            level: Level(0),
            is_spill: false,
            lsize_bytes: self.bytes(),
            dnode_checksum: checksum,
            dnode_compression: compression,
            is_rewritten_late: false,
        });
        WriteJob {
            address: self.object.address(Level(0), self.id),
            content: Arc::clone(&self.content),
            object_type,
            level: Level(0),
            policy,
            encoded: None,
            fill: 1,
            previous: BlockPointer::default(),
            txg,
            pass: 1,
            stored: None,
            is_clone: false,
            keeps_birth: false,
            key: self.object.core.key.clone(),
            is_raw: false,
        }
    }

    /// Offers the txg's sync a block that was written according to [`LoggedBlock::job`].
    ///
    /// Returns true if the block was written in this txg and its content has not changed since. The sync then
    /// takes over the block if `stored` is still referenced by that time. Otherwise the caller must free the
    /// block.
    #[must_use]
    pub fn hand_over(&self, stored: Arc<BlockPointer>) -> bool {
        if stored.birth() != self.txg {
            return false;
        }
        let mut state = self.object.state();
        state.note_stored(self.txg, self.id.0, &self.content, stored)
    }
}
