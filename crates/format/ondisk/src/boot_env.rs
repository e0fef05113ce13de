//! The boot environment block: 8 KiB in each label for boot loaders.
//!
//! Page `docs/format/label.md`, "Boot environment".

use crate::{
    BOOT_ENV_BYTES, CHECKSUM_TRAILER_BYTES, DecodeError, Endian, Reader, unsealed_label_region,
};

/// The content of a boot environment block with a valid checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootEnvironment {
    /// Never written.
    Empty,
    /// Version 0: text of the boot loader (`grubenv`), up to its NUL.
    Raw(Vec<u8>),
    /// Version 1: a packed XDR name/value list, followed by zeros.
    List(Vec<u8>),
    /// The historic form without a version: a command for the boot loader (`freebsd:bootonce`).
    Command(Vec<u8>),
}

impl BootEnvironment {
    /// Bytes of the payload between version and trailer.
    pub const PAYLOAD_BYTES: usize = BOOT_ENV_BYTES - 8 - CHECKSUM_TRAILER_BYTES;

    /// Reads the block. The caller verifies the checksum.
    ///
    /// Allocates at most 8 KiB.
    ///
    /// # Errors
    /// If there are fewer than 8 KiB, or the version is unknown and the block is not text.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("boot environment", block, Endian::Big);
        let mut head = reader.clone();
        head.skip(BOOT_ENV_BYTES)?;
        let version = reader.u64()?;
        let payload = reader.take(Self::PAYLOAD_BYTES)?;
        match version {
            0 => Ok(match up_to_nul(payload) {
                [] => Self::Empty,
                text => Self::Raw(text.to_vec()),
            }),
            1 => Ok(Self::List(payload.to_vec())),
            _ => match up_to_nul(block.get(..BOOT_ENV_BYTES).unwrap_or(&[])) {
                [] => Err(DecodeError::new("boot environment", "unknown version", 0)),
                command => Ok(Self::Command(command.to_vec())),
            },
        }
    }
    /// Encodes the block in its current form, without the checksum ([`unsealed_label_region`]).
    ///
    /// `None` if the content is too long. A command is written unchanged.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let (version, payload): (u64, &[u8]) = match self {
            Self::Empty => (0, &[]),
            Self::Raw(text) => (0, text),
            // The list needs at least one zero after it.
            Self::List(list) if up_to_zeros(list).len() < Self::PAYLOAD_BYTES => {
                (1, up_to_zeros(list))
            }
            Self::List(_) => return None,
            Self::Command(command) => {
                return unsealed_label_region(command, BOOT_ENV_BYTES);
            }
        };
        let content = [&version.to_be_bytes(), payload].concat();
        unsealed_label_region(&content, BOOT_ENV_BYTES)
    }
}

fn up_to_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(&[])
}

/// The bytes without trailing zeros, except for the eight that end an XDR list.
fn up_to_zeros(bytes: &[u8]) -> &[u8] {
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last.saturating_add(9));
    bytes.get(..used.next_multiple_of(4)).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_survives() {
        let list = [vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], vec![0; 8]].concat();
        for env in [
            BootEnvironment::Empty,
            BootEnvironment::Raw(b"saved_entry=1\n".to_vec()),
            BootEnvironment::Command(b"zfs:tank/ROOT:".to_vec()),
        ] {
            assert_eq!(BootEnvironment::decode(&env.encode().unwrap()), Ok(env));
        }
        let BootEnvironment::List(read) =
            BootEnvironment::decode(&BootEnvironment::List(list.clone()).encode().unwrap())
                .unwrap()
        else {
            panic!("not a list")
        };
        assert!(read.starts_with(&list));
    }

    #[test]
    fn an_unknown_version_that_starts_with_nul_is_an_error() {
        let mut block = BootEnvironment::Empty.encode().unwrap();
        block[7] = 9;
        assert!(BootEnvironment::decode(&block).is_err());
        assert!(BootEnvironment::decode(&block[..8191]).is_err());
    }

    #[test]
    fn a_too_large_boot_environment_is_not_encoded() {
        let text = vec![b'x'; BootEnvironment::PAYLOAD_BYTES];
        assert!(BootEnvironment::Raw(text.clone()).encode().is_some());
        assert!(BootEnvironment::List(text.clone()).encode().is_none());
        assert!(
            BootEnvironment::Raw([text, vec![b'x']].concat())
                .encode()
                .is_none()
        );
    }
}
