//! What can be wrong with a key or with a block.

/// A key does not open what it should, or a block is not what its writer made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CryptError {
    /// The wrapping key does not open the dataset's key object.
    #[error("the key is not the one that the dataset was locked with")]
    WrongKey,
    /// The block's bytes passed their checksum but not their MAC: they were not written with this
    /// key, or someone changed them and the checksum. The same for every copy.
    #[error("{structure}: the message authentication code does not match")]
    MacMismatch {
        /// What was verified ("dnode block").
        structure: &'static str,
    },
    /// A block of an encrypted dataset claims to need no authentication. No correct writer makes one.
    #[error("the block pointer lacks the crypt bit, though its dataset is encrypted")]
    Unprotected,
    /// The plain parts of a block cannot be what a correct writer would have written.
    #[error("{structure}: {reason} at byte {offset}")]
    Malformed {
        /// The structure ("intent log block").
        structure: &'static str,
        /// What is wrong with it.
        reason: &'static str,
        /// Byte offset in the block.
        offset: u32,
    },
    /// The user's key has not the form that its key format wants.
    #[error("the {format} key {reason}")]
    UserKey {
        /// Name of the format.
        format: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Something that no way is known to do, such as a CCM message of 16 MiB.
    #[error("not supported: {what}")]
    Unsupported {
        /// What it is.
        what: &'static str,
    },
}

impl CryptError {
    pub(crate) fn malformed(structure: &'static str, reason: &'static str, offset: usize) -> Self {
        Self::Malformed {
            structure,
            reason,
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
        }
    }
}
