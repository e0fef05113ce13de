//! File metadata stored in separate objects: old access control lists and old symlinks.

use millpond_env::sync::Arc;
use millpond_object::{ObjectError, ObjectSetView};
use millpond_ondisk::{BlockId, DecodeError, Endian, ObjectId};

/// Reads the first bytes of objects. Tests implement it with bytes in memory.
pub trait ObjectBytes: Send + Sync {
    /// Returns the first `length_bytes` of an object (zeros beyond its end) and the byte order of its blocks.
    ///
    /// # Errors
    /// If the object does not exist or cannot be read.
    fn read(&self, id: ObjectId, length_bytes: usize) -> Result<(Vec<u8>, Endian), ObjectError>;
}

impl ObjectBytes for Arc<ObjectSetView> {
    fn read(&self, id: ObjectId, length_bytes: usize) -> Result<(Vec<u8>, Endian), ObjectError> {
        let object = self.object(id)?;
        let first = object.read_block(BlockId(0))?;
        let endian = first.endian;
        let mut bytes = Vec::new();
        let mut block = first;
        let mut next = 1;
        loop {
            let wanted = length_bytes - bytes.len();
            bytes.extend(block.bytes.iter().take(wanted));
            if bytes.len() == length_bytes || next > object.block_id_max().0 {
                break;
            }
            block = object.read_block(BlockId(next))?;
            next += 1;
            if block.endian != endian {
                return Err(ObjectError::Invalid {
                    dataset: self.dataset(),
                    object: id,
                    error: DecodeError::new("object", "blocks of both byte orders", 0),
                });
            }
        }
        bytes.resize(length_bytes, 0);
        Ok((bytes, endian))
    }
}
