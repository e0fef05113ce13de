//! Errors of keys and blocks.

/// A key does not open what it should, or a block is not as its writer stored it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CryptError {
    /// The wrapping key does not open the dataset's key object.
    #[error("the key is not the one that the dataset was locked with")]
    WrongKey,
    /// The block's bytes match their checksum but not their MAC. They were not written with this key, or an
    /// attacker changed both bytes and checksum. Every copy fails the same way.
    #[error("{structure}: the message authentication code does not match")]
    MacMismatch {
        /// The verified structure, for example "dnode block".
        structure: &'static str,
    },
    /// A block of an encrypted dataset claims to need no authentication. No correct writer creates such a
    /// block.
    #[error("the block pointer lacks the crypt bit, though its dataset is encrypted")]
    Unprotected,
    /// The plain parts of a block are not valid: no correct writer wrote them.
    #[error("{structure}: {reason} at byte {offset}")]
    Malformed {
        /// The structure, for example "intent log block".
        structure: &'static str,
        /// What is wrong with it.
        reason: &'static str,
        /// Byte offset in the block.
        offset: u32,
    },
    /// The user's key does not have the form that its key format requires.
    #[error("{reason}")]
    UserKey {
        /// What is wrong with it, in OpenZFS's words.
        reason: &'static str,
    },
    /// An operation that is not possible, such as a CCM message of 16 MiB.
    #[error("not supported: {what}")]
    Unsupported {
        /// The operation.
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
