//! ZAPs: objects that map names to arrays of integers.
//!
//! This module handles single blocks, without the object that contains them: the microzap's only block
//! ([`MicroZap`]), and of the fat ZAP the header ([`ZapHeader`]), pointer table entries
//! ([`pointer_table_entry`]) and leaves ([`ZapLeaf`], [`ZapLeafBuilder`]). It also has the hash that orders
//! all entries ([`ZapHashing`], [`ZapPosition`]). The crate `millpond-zap` decides which block to read next.
//!
//! Pages `docs/format/zap-micro.md` and `docs/format/zap-fat.md`.

#[cfg(test)]
mod edit_tests;
mod field;
mod hash;
mod header;
mod key;
mod leaf;
mod leaf_build;
mod leaf_edit;
mod micro;
mod position;
mod swap;
#[cfg(test)]
mod tests;

pub use hash::{ZapHashing, zap_crc64};
pub use header::{
    ZapFlags, ZapHeader, ZapTableLocation, pointer_table_entry, put_pointer_table_entry,
};
pub use key::{ZapKey, ZapValue};
pub use leaf::{LeafChain, ZapLeaf, ZapLeafEntry};
pub use leaf_build::ZapLeafBuilder;
pub use leaf_edit::{LeafInsertError, ZapLeafMut, leaf_entry_chunks};
pub use micro::{
    MICRO_NAME_BYTES_MAX, MicroZap, MicroZapEntry, encode_micro_zap, put_micro_zap_entry,
};
pub use position::{COOKIE_END, ZapPosition};
pub use swap::zap_block_to_little;

use crate::{DecodeError, Endian};

/// log2 of the block sizes of a fat ZAP that can be read.
///
/// OpenZFS writes 9 to 17. The 16-bit chunk numbers of a leaf suffice up to 20, so such blocks can be read
/// too.
pub const FAT_BLOCK_SHIFTS: core::ops::RangeInclusive<u32> = 9..=20;
/// The maximum length of a name in bytes without its NUL (`longname` directories; 255 elsewhere).
pub const ZAP_NAME_BYTES_MAX: usize = 1023;
/// The largest value in bytes that a writer may store. A reader accepts any value that fits in a leaf.
pub const ZAP_VALUE_BYTES_MAX: usize = 8192;

const BLOCK_MICRO: u64 = 0x8000_0000_0000_0003;
const BLOCK_HEADER: u64 = 0x8000_0000_0000_0001;
const BLOCK_LEAF: u64 = 0x8000_0000_0000_0000;
/// "No chunk": the end of every chain of chunks in a leaf.
const CHAIN_END: u16 = 0xffff;

/// The format of a ZAP, from its block 0. Pages `docs/format/zap-micro.md` and `docs/format/zap-fat.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZapForm {
    /// One block of 64-byte entries.
    Micro,
    /// Header, pointer table and leaves.
    Fat,
}

impl ZapForm {
    /// Detects the format from the first word of block 0, which is in byte order `endian`.
    ///
    /// # Errors
    /// If the word is unknown (as in a zero-filled block).
    pub fn of_first_block(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        match field::u64_at(bytes, 0, endian) {
            Some(BLOCK_MICRO) => Ok(Self::Micro),
            Some(BLOCK_HEADER) => Ok(Self::Fat),
            Some(_) => Err(DecodeError::new("zap", "block 0 is no zap header", 0)),
            None => Err(DecodeError::new("zap", "too short", 0)),
        }
    }
}

/// log2 of a fat ZAP's block size, if the size is valid.
fn block_shift(structure: &'static str, length_bytes: usize) -> Result<u32, DecodeError> {
    let shift = length_bytes.trailing_zeros();
    if length_bytes.is_power_of_two() && FAT_BLOCK_SHIFTS.contains(&shift) {
        Ok(shift)
    } else {
        Err(DecodeError::new(
            structure,
            "block size is no power of two from 512 bytes to 1 MiB",
            0,
        ))
    }
}
