//! Intent log blocks, which carry their own checksum and are read at most once.
//!
//! Page `docs/format/intent-log.md`.

use crate::{BlockAddress, BlockError, BlockStore, CopyFailure};
use millpond_checksum::{Form, verify_zilog, verify_zilog2};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, ChecksumKind, DecodeError, Endian};

/// A verified block of an intent log: chain structure and records as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBlock {
    /// The whole block.
    pub bytes: Vec<u8>,
    /// The byte order of its integers.
    pub endian: Endian,
    /// Set when the record bodies are still encrypted.
    pub has_ciphertext: bool,
}

impl BlockStore {
    /// Reads one block of an intent log.
    ///
    /// A chain ends where a block does not verify, so [`BlockError::Corrupt`] is an ordinary result here
    /// and is counted against no device. [`BlockError::Missing`] means that too few leaves could be read to
    /// decide whether the chain ends here.
    ///
    /// # Errors
    /// As [`BlockStore::read`]. Without `key` the records of an encrypted log are returned encrypted.
    pub fn read_log_block(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Result<LogBlock, BlockError> {
        let invalid = |reason| BlockError::Invalid {
            address,
            error: DecodeError::new("intent log pointer", reason, 0),
        };
        pointer
            .validate()
            .map_err(|error| BlockError::Invalid { address, error })?;
        if pointer.is_hole() || pointer.is_embedded() || pointer.is_gang() {
            return Err(invalid("it is a hole, embedded or a gang"));
        }
        let kind = pointer.checksum_kind();
        if !matches!(kind, Some(ChecksumKind::Zilog | ChecksumKind::Zilog2)) {
            return Err(invalid("its checksum is not one of intent logs"));
        }
        let topology = self.topology();
        topology.accepts(pointer).map_err(invalid)?;
        let (words, form) = (pointer.checksum_words(), Form::of(pointer));
        let verify_log = |bytes: &[u8]| {
            if kind == Some(ChecksumKind::Zilog) {
                verify_zilog(bytes, words, form)
            } else {
                verify_zilog2(bytes, words, form)
            }
        };
        let mut copies = vec![];
        let mut all_unavailable = true;
        for dva in pointer.dvas() {
            let size = pointer.psize_bytes();
            let mut verify = |bytes: &[u8]| verify_log(bytes).is_ok();
            let birth = pointer.physical_birth();
            match self.read_range(&topology, dva, size, birth, &mut verify) {
                Ok(mut bytes) => {
                    let endian = verify_log(&bytes)
                        .map_err(|_| invalid("the block changed while it was read"))?;
                    let has_ciphertext = pointer.has_crypt_bit() && key.is_none();
                    if let Some(key) = key {
                        key.decrypt_block(pointer, &mut bytes).map_err(|error| {
                            BlockError::Authentication {
                                address,
                                reason: error.to_string(),
                            }
                        })?;
                    }
                    return Ok(LogBlock {
                        bytes,
                        endian,
                        has_ciphertext,
                    });
                }
                Err(trouble) => {
                    all_unavailable &= trouble.is_unavailable();
                    copies.push(CopyFailure {
                        dva,
                        reason: trouble.describe(&topology),
                    });
                }
            }
        }
        Err(if all_unavailable && !copies.is_empty() {
            BlockError::Missing { address, copies }
        } else {
            BlockError::Corrupt { address, copies }
        })
    }
}
