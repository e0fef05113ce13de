//! The interface to the object that holds a ZAP.

use crate::ZapSource;
use millpond_env::sync::Arc;
use millpond_object::ObjectError;
use millpond_ondisk::BlockId;

/// The blocks of one object, for changes. The implementation binds the transaction. Tests implement it with
/// blocks in memory.
pub trait ZapStore {
    /// A source that reads the same blocks and sees every write at once.
    fn source(&self) -> Arc<dyn ZapSource>;
    /// The size of a data block in bytes, even if the object has no block yet.
    fn block_bytes(&self) -> u32;
    /// Changes the block size of an object that has only the first block. Keeps content up to the smaller
    /// size and fills the rest with zeros.
    ///
    /// # Errors
    /// If the object cannot have this block size.
    fn set_block_bytes(&self, bytes: u32) -> Result<(), ObjectError>;
    /// Replaces a whole block. `content` is little-endian and as long as a block. A block beyond the end
    /// extends the object.
    ///
    /// # Errors
    /// If the block cannot be stored.
    fn write_block(&self, id: BlockId, content: Vec<u8>) -> Result<(), ObjectError>;
    /// Changes a few bytes of a block that is already little-endian. Better than the default if the
    /// implementation can lend out the block's dirty bytes.
    ///
    /// # Errors
    /// If the block cannot be read or stored.
    fn edit_block(&self, id: BlockId, edit: &mut dyn FnMut(&mut [u8])) -> Result<(), ObjectError> {
        let mut content = self.source().read_block(id)?.bytes.to_vec();
        edit(&mut content);
        self.write_block(id, content)
    }
    /// Turns `count` blocks from `first` on into holes.
    ///
    /// # Errors
    /// If the object's tree cannot be read.
    fn free_blocks(&self, first: BlockId, count: u64) -> Result<(), ObjectError>;
}
