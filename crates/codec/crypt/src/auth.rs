//! How a block's MAC enters the MAC of the block that points to it.

use crate::key::{BlockMac, is_equal, truncated};
use crate::{CryptError, MAC_BYTES};
use millpond_ondisk::{BLOCK_POINTER_BYTES, BlockPointer, Endian, Level, ObjectType};
use sha2::{Digest, Sha512};

const STRUCTURE: &str = "indirect block";

/// Bit fields of the property word.
const PHYSICAL_SIZE: u64 = 0xffff << 16;
const COMPRESSION: u64 = 0x7f << 32;
const CHECKSUM: u64 = 0xff << 40;
const DEDUP: u64 = 1 << 62;
const BYTE_ORDER: u64 = 1 << 63;

/// Computes the MAC of an indirect block over its pointers' MACs and the pointer properties that must not
/// change.
///
/// `contents` is the decompressed block in its stored byte order. `version` is the key's version. No key is
/// involved, so anyone who can write the block can compute the MAC. The MAC in the *parent* binds it.
///
/// # Errors
/// [`CryptError::Malformed`] if `contents` is not a whole number of pointers.
pub fn indirect_block_mac(
    contents: &[u8],
    endian: Endian,
    version: u64,
) -> Result<BlockMac, CryptError> {
    let (pointers, rest) = contents.as_chunks::<BLOCK_POINTER_BYTES>();
    if !rest.is_empty() {
        let reason = "not a whole number of block pointers";
        return Err(CryptError::malformed(STRUCTURE, reason, contents.len()));
    }
    let mut hash = Sha512::new();
    for pointer in pointers {
        let bp = BlockPointer::decode(pointer, endian)
            .map_err(|error| CryptError::malformed(STRUCTURE, error.reason, 0))?;
        hash.update(entry(&bp, version).as_bytes());
    }
    Ok(truncated(hash.finalize().0))
}

/// Verifies an indirect block against the MAC in its pointer. Needs no key.
///
/// `contents` is the decompressed block in its stored byte order. Tries both key versions, because nothing in
/// the block shows which one was used.
///
/// # Errors
/// [`CryptError::Unprotected`] if the pointer has no crypt bit (call this only in encrypted datasets);
/// [`CryptError::MacMismatch`]; [`CryptError::Malformed`] if `contents` is not a whole number of pointers.
pub fn verify_indirect_block(bp: &BlockPointer, contents: &[u8]) -> Result<(), CryptError> {
    if !bp.has_crypt_bit() {
        return Err(CryptError::Unprotected);
    }
    for version in [1, 0] {
        let mac = indirect_block_mac(contents, bp.endian(), version)?;
        if is_equal(&mac, &bp.crypt_mac()) {
            return Ok(());
        }
    }
    Err(CryptError::MacMismatch {
        structure: STRUCTURE,
    })
}

/// The contribution of one pointer to the MAC of the block that contains it.
pub(crate) struct AuthEntry {
    bytes: [u8; 32],
    length: usize,
}

impl AuthEntry {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

/// Builds the entry from masked properties, MAC and, in version 1, eight zero bytes.
pub(crate) fn entry(bp: &BlockPointer, version: u64) -> AuthEntry {
    let [.., property, _, _, _, _, _, _, _, _, _] = bp.words;
    let masked = if version == 0 {
        property & !(DEDUP | CHECKSUM | PHYSICAL_SIZE)
    } else if bp.is_hole() {
        0
    } else if bp.level() > Level(0) {
        // The compression of an indirect block depends on the pool that contains it.
        property & !(DEDUP | CHECKSUM | PHYSICAL_SIZE | COMPRESSION | BYTE_ORDER)
    } else {
        property & !(DEDUP | CHECKSUM)
    };
    let mac = if bp.object_type() == ObjectType::OBJECT_SET {
        [0; MAC_BYTES]
    } else {
        bp.crypt_mac()
    };
    let mut bytes = [0; 32];
    let fields = masked.to_le_bytes().into_iter().chain(mac);
    bytes
        .iter_mut()
        .zip(fields)
        .for_each(|(to, from)| *to = from);
    AuthEntry {
        bytes,
        length: if version == 0 { 24 } else { 32 },
    }
}
