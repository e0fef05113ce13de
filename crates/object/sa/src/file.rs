//! The interface to the object whose attributes are changed.

use millpond_env::sync::Arc;
use millpond_object::{Block, ObjectError};
use millpond_ondisk::{ObjectId, ObjectType};

/// The bonus and spill block of one file. The implementation binds the transaction. Tests implement it in
/// memory.
pub trait SaFile {
    /// The file's object.
    fn id(&self) -> ObjectId;
    /// The type of its bonus.
    fn bonus_type(&self) -> ObjectType;
    /// Size of its dnode in bytes: 512 to 16384.
    fn dnode_bytes(&self) -> usize;
    /// The used bonus bytes.
    fn bonus(&self) -> Arc<[u8]>;
    /// The spill block.
    ///
    /// # Errors
    /// If it cannot be read.
    fn spill(&self) -> Result<Option<Arc<Block>>, ObjectError>;
    /// Replaces the bonus bytes.
    ///
    /// # Errors
    /// If they do not fit.
    fn set_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError>;
    /// Replaces the bonus bytes and sets the bonus type to system attributes.
    ///
    /// # Errors
    /// If they do not fit.
    fn set_attributes_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError>;
    /// Frees the object that holds an old znode's access control list.
    ///
    /// # Errors
    /// If it holds something else, or cannot be freed.
    fn free_acl(&self, id: ObjectId) -> Result<(), ObjectError>;
    /// Stores a long access control list of an old znode in a new object of this type. Returns its id.
    ///
    /// # Errors
    /// If it cannot be stored, or is longer than a block can be.
    fn store_acl(&self, object_type: ObjectType, bytes: Vec<u8>) -> Result<ObjectId, ObjectError>;
    /// Stores the long target of an old symbolic link as the object's content.
    ///
    /// # Errors
    /// If it cannot be stored.
    fn store_target(&self, target: &[u8]) -> Result<(), ObjectError>;
    /// Replaces the spill block (a multiple of 512 bytes, at most 128 KiB) or removes it.
    ///
    /// # Errors
    /// If there is no room for its pointer.
    fn set_spill(&self, content: Option<Vec<u8>>) -> Result<(), ObjectError>;
}
