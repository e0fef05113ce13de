//! Layer `codec`: encryption of a dataset's blocks, bytes to bytes.
//!
//! This crate implements the suites, the conversion of a user's key to a wrapping key, the unwrapping of a
//! dataset's keys, and the rules for which parts of each kind of block are encrypted or only authenticated.
//! Reading keys, ZAPs and devices is the task of the layers above. The crate has no randomness: the caller
//! supplies salts and IVs.
//!
//! # Which call for which block
//!
//! In an encrypted dataset, after a block passed its checksum:
//!
//! | block | when | call |
//! |---|---|---|
//! | level 0, encrypted type (data, dnodes, intent log) | before decompression | [`DatasetKey::decrypt_block`] |
//! | level 0, other type but object set | before decompression | [`DatasetKey::decrypt_block`] (checks, changes nothing) |
//! | object set | it is stored uncompressed | [`DatasetKey::decrypt_block`] or [`DatasetKey::verify_object_set`] |
//! | level 1 and above | after decompression, no key needed | [`verify_indirect_block`] |
//!
//! In such a dataset every pointer except holes and embedded pointers has the crypt bit
//! ([`BlockPointer::has_crypt_bit`]). A pointer without it is refused with [`CryptError::Unprotected`].
//!
//! Block keys are derived for each block (see [`DatasetKey`] for the cost), so there is no key cache to share
//! or to wipe.
//!
//! ```
//! use millpond_crypt::{DatasetKey, CryptSuite};
//! use millpond_ondisk::Guid;
//! let key = DatasetKey::new(CryptSuite::Aes256Gcm, Guid(1), 1, &[7; 32], &[8; 64]).unwrap();
//! let mut block = *b"sixteen bytes...";
//! let mac = key.encrypt_data([1; 8], [2; 12], &mut block).unwrap();
//! assert_ne!(&block, b"sixteen bytes...");
//! key.decrypt_data([1; 8], [2; 12], mac, &mut block).unwrap();
//! assert_eq!(&block, b"sixteen bytes...");
//! ```
//!
//! Page `docs/format/encryption.md`.
//!
//! [`BlockPointer::has_crypt_bit`]: millpond_ondisk::BlockPointer::has_crypt_bit
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod auth;
mod block;
mod cipher;
mod dnodes;
mod error;
mod fast_gcm;
mod key;
mod locked;
mod log;
mod message;
mod object_set;
#[cfg(test)]
mod tests;
mod wrapping;

pub use auth::{indirect_block_mac, verify_indirect_block};
pub use error::CryptError;
pub use key::DatasetKey;
pub use millpond_ondisk::{CryptKey, CryptSuite, KeyFormat};
pub use object_set::{LocalMac, ObjectSetMacs};
pub use wrapping::{PBKDF2_ITERATIONS, PBKDF2_ITERATIONS_MAX, PBKDF2_ITERATIONS_MIN, WrappingKey};

/// Bytes of a block's salt.
pub const SALT_BYTES: usize = 8;
/// Bytes of a block's IV.
pub const IV_BYTES: usize = 12;
/// Bytes of a block's MAC.
pub const MAC_BYTES: usize = 16;
