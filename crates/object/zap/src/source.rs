//! The source of a ZAP's blocks.

use millpond_env::sync::Arc;
use millpond_object::{Block, BlockAddress, ObjectError, ObjectView};
use millpond_ondisk::{BlockId, Level};

/// The data blocks of one object, as a ZAP reads them. Tests implement it with blocks in memory.
pub trait ZapSource: Send + Sync {
    /// Returns the content of a block. Holes and blocks beyond the end read as zeros.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError>;
    /// The address of a block, as errors name it.
    fn address(&self, id: BlockId) -> BlockAddress;
}

impl ZapSource for ObjectView {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        ObjectView::read_block(self, id)
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        ObjectView::address(self, Level(0), id)
    }
}
