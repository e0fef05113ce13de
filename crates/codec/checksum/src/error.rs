use core::fmt;

use millpond_ondisk::ChecksumKind;

use crate::Form;

/// A stored checksum that differs from the computed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The checksum function.
    pub kind: ChecksumKind,
    /// How many words were compared. Words that were not compared are 0 in both fields below.
    pub form: Form,
    /// The stored words.
    pub expected: [u64; 4],
    /// The words computed from the bytes read.
    pub found: [u64; 4],
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, [a, b, c, d]: [u64; 4]| match self.form {
            Form::Full => write!(f, "{a:016x}:{b:016x}:{c:016x}:{d:016x}"),
            Form::Truncated => write!(f, "{a:016x}:{b:016x}"),
        };
        write!(f, "{} checksum is ", self.kind.name())?;
        hex(f, self.found)?;
        write!(f, ", should be ")?;
        hex(f, self.expected)
    }
}

impl std::error::Error for Mismatch {}

/// A checksum is wrong or cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChecksumError {
    /// The bytes are not those that were written.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A block with an embedded checksum has the magic number of neither byte order.
    #[error("embedded checksum: magic is {found:#018x}")]
    Magic {
        /// The little-endian word in its place.
        found: u64,
    },
    /// An intent log block states a used length below its header's or above the block's.
    #[error("intent-log block of {length} bytes claims to use {nused_bytes}")]
    Extent {
        /// The stated length.
        nused_bytes: u64,
        /// The length of the block in bytes.
        length: usize,
    },
    /// The pointer names a checksum function that does not exist.
    #[error("checksum function does not exist")]
    UnknownKind,
    /// `inherit` and `on` stand for other functions; `label` and `gang_header` never occur in a pointer.
    #[error("{} cannot be the checksum of a block", kind.name())]
    NotAFunction {
        /// The function.
        kind: ChecksumKind,
    },
    /// The checksum is embedded in the block. Other functions of this crate handle it.
    #[error("{} checksums stand inside the block", kind.name())]
    Embedded {
        /// The function.
        kind: ChecksumKind,
    },
    /// The function needs the pool's salt, which is unknown.
    #[error("{} needs the pool's salt", kind.name())]
    NoSalt {
        /// The function.
        kind: ChecksumKind,
    },
    /// The function requires whole words.
    #[error("{} of {length} bytes: not a multiple of {multiple}", kind.name())]
    Length {
        /// The function.
        kind: ChecksumKind,
        /// The number of bytes given.
        length: usize,
        /// The size of the unit in bytes.
        multiple: usize,
    },
    /// The number of bytes differs from the pointer's physical size, or is too small for the trailer.
    #[error("{length} bytes given where {expected} are needed")]
    Size {
        /// The pointer's physical size, or the minimum that can hold the trailer.
        expected: u64,
        /// The number of bytes given.
        length: usize,
    },
    /// A hole or an embedded pointer has no block to verify.
    #[error("the pointer names no block")]
    NoBlock,
}

impl ChecksumError {
    /// Whether the bytes are bad, so that another copy may be good. False for errors that would occur with
    /// any bytes.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Mismatch(_) | Self::Magic { .. } | Self::Extent { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_shows_stored_and_computed_checksum() {
        let mismatch = |form| Mismatch {
            kind: ChecksumKind::Sha256,
            form,
            expected: [1, 2, 3, 4],
            found: [0xa, 0xb, 0xc, 0xd],
        };
        assert_eq!(
            mismatch(Form::Full).to_string(),
            "sha256 checksum is 000000000000000a:000000000000000b:000000000000000c:000000000000000d, \
             should be 0000000000000001:0000000000000002:0000000000000003:0000000000000004"
        );
        // The words that a MAC leaves free.
        assert_eq!(
            mismatch(Form::Truncated).to_string(),
            "sha256 checksum is 000000000000000a:000000000000000b, \
             should be 0000000000000001:0000000000000002"
        );
    }

    #[test]
    fn only_errors_of_the_bytes_count_as_damage() {
        let kind = ChecksumKind::Skein;
        assert!(ChecksumError::Magic { found: 1 }.is_damage());
        assert!(!ChecksumError::NoSalt { kind }.is_damage());
        assert!(!ChecksumError::NoBlock.is_damage());
    }
}
