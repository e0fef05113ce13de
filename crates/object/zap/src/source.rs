//! Where a ZAP's blocks come from.

use millpond_env::sync::Arc;
use millpond_object::{Block, BlockAddress, Object, ObjectError};
use millpond_ondisk::{BlockId, Level};

/// The data blocks of one object: what a ZAP needs of it. Tests put blocks in memory behind it.
pub trait ZapSource: Send + Sync {
    /// The content of a block; zeros for holes and beyond the end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError>;
    /// How a block is named in errors.
    fn address(&self, id: BlockId) -> BlockAddress;
}

impl ZapSource for Object {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        Object::read_block(self, id)
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        Object::address(self, Level(0), id)
    }
}
