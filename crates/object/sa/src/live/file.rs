//! What a change of attributes needs of the object that has them.

use millpond_env::sync::Arc;
use millpond_object::{Block, ObjectError};
use millpond_ondisk::{ObjectId, ObjectType};

/// The places of one file's attributes. Whoever implements it binds the transaction. Tests put them in
/// memory behind it.
pub trait SaFile {
    /// The file's object.
    fn id(&self) -> ObjectId;
    /// What its bonus holds.
    fn bonus_type(&self) -> ObjectType;
    /// Bytes of its dnode: 512 to 16384.
    fn dnode_bytes(&self) -> usize;
    /// The bonus bytes in use.
    fn bonus(&self) -> Arc<[u8]>;
    /// The spill block.
    ///
    /// # Errors
    /// If it cannot be read.
    fn spill(&self) -> Result<Option<Arc<Block>>, ObjectError>;
    /// Other bonus bytes.
    ///
    /// # Errors
    /// If they do not fit.
    fn set_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError>;
    /// A bonus with other bytes that is of system attributes from now on.
    ///
    /// # Errors
    /// If they do not fit.
    fn set_attributes_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError>;
    /// Frees the object that holds an old znode's access control list.
    ///
    /// # Errors
    /// If it holds something else, or cannot be freed.
    fn free_acl(&self, id: ObjectId) -> Result<(), ObjectError>;
    /// Another spill block (a multiple of 512 bytes up to 128 KiB), or none.
    ///
    /// # Errors
    /// If there is no room for its pointer.
    fn set_spill(&self, content: Option<Vec<u8>>) -> Result<(), ObjectError>;
}
