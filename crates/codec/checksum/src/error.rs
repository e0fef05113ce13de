use core::fmt;

use millpond_ondisk::ChecksumKind;

use crate::Form;

/// A checksum that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The function.
    pub kind: ChecksumKind,
    /// How much of the words was compared; words that were not are 0 in both fields below.
    pub form: Form,
    /// The stored words.
    pub expected: [u64; 4],
    /// The words of the bytes at hand.
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

/// A checksum is wrong, or cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChecksumError {
    /// The bytes are not those that were written.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A block that carries its own checksum has neither order's magic number where it should be.
    #[error("embedded checksum: magic is {found:#018x}")]
    Magic {
        /// The little-endian word that stands there.
        found: u64,
    },
    /// An intent-log block claims fewer bytes than its header or more than the block has.
    #[error("intent-log block of {length} bytes claims to use {nused_bytes}")]
    Extent {
        /// The claim.
        nused_bytes: u64,
        /// The block's bytes.
        length: usize,
    },
    /// The pointer's function has a number that does not exist.
    #[error("checksum function does not exist")]
    UnknownKind,
    /// `inherit` and `on` stand for other functions; `label` and `gang_header` in no pointer.
    #[error("{} cannot be the checksum of a block", kind.name())]
    NotAFunction {
        /// The function.
        kind: ChecksumKind,
    },
    /// The checksum stands inside the block and has functions of its own in this crate.
    #[error("{} checksums stand inside the block", kind.name())]
    Embedded {
        /// The function.
        kind: ChecksumKind,
    },
    /// The function needs the pool's salt, which is not known.
    #[error("{} needs the pool's salt", kind.name())]
    NoSalt {
        /// The function.
        kind: ChecksumKind,
    },
    /// The function works on whole words only.
    #[error("{} of {length} bytes: not a multiple of {multiple}", kind.name())]
    Length {
        /// The function.
        kind: ChecksumKind,
        /// Bytes given.
        length: usize,
        /// Bytes of the unit.
        multiple: usize,
    },
    /// The bytes given are not as many as the pointer says, or too few for the trailer.
    #[error("{length} bytes given where {expected} are needed")]
    Size {
        /// Bytes that the pointer names, or the least that could hold the trailer.
        expected: u64,
        /// Bytes given.
        length: usize,
    },
    /// A hole or an embedded pointer has no block to verify.
    #[error("the pointer names no block")]
    NoBlock,
}

impl ChecksumError {
    /// Whether the bytes are bad (another copy may be good), as opposed to a question that has no
    /// answer with any bytes.
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
    fn a_mismatch_tells_what_is_there_and_what_should_be() {
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
        // What a MAC leaves room for.
        assert_eq!(
            mismatch(Form::Truncated).to_string(),
            "sha256 checksum is 000000000000000a:000000000000000b, \
             should be 0000000000000001:0000000000000002"
        );
    }

    #[test]
    fn damage_is_what_the_bytes_are_to_blame_for() {
        let kind = ChecksumKind::Skein;
        assert!(ChecksumError::Magic { found: 1 }.is_damage());
        assert!(!ChecksumError::NoSalt { kind }.is_damage());
        assert!(!ChecksumError::NoBlock.is_damage());
    }
}
