//! What a changing ZAP needs of the object that holds it.

use crate::ZapSource;
use millpond_env::sync::Arc;
use millpond_object::ObjectError;
use millpond_ondisk::BlockId;

/// The changing blocks of one object. Whoever implements it binds the transaction. Tests put blocks
/// in memory behind it.
pub trait ZapStore {
    /// The same blocks for reading: it sees at once what is written here.
    fn source(&self) -> Arc<dyn ZapSource>;
    /// The size of a data block in bytes, also of an object that has none yet.
    fn block_bytes(&self) -> u32;
    /// Changes the block size of an object that has no block but the first. Content up to the
    /// smaller size is kept, what is new is zeros.
    ///
    /// # Errors
    /// If the object cannot have it.
    fn set_block_bytes(&self, bytes: u32) -> Result<(), ObjectError>;
    /// Replaces a whole block; `content` is little-endian and as long as a block. A block behind the
    /// end makes the object longer.
    ///
    /// # Errors
    /// If it cannot be kept.
    fn write_block(&self, id: BlockId, content: Vec<u8>) -> Result<(), ObjectError>;
    /// Changes a few bytes of a block that is little-endian already. Better than the default if the
    /// block's dirty bytes can be lent out.
    ///
    /// # Errors
    /// If the block cannot be read or kept.
    fn edit_block(&self, id: BlockId, edit: &mut dyn FnMut(&mut [u8])) -> Result<(), ObjectError> {
        let mut content = self.source().read_block(id)?.bytes.to_vec();
        edit(&mut content);
        self.write_block(id, content)
    }
    /// Makes holes of `count` blocks from `first` on.
    ///
    /// # Errors
    /// If the object's tree cannot be read.
    fn free_blocks(&self, first: BlockId, count: u64) -> Result<(), ObjectError>;
}
