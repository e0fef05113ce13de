//! Turns content from a big-endian machine round.

use millpond_object::to_native;
use millpond_ondisk::{ByteswapClass, ObjectType};

const MICRO_ZAP: u64 = 0x8000_0000_0000_0003;
const LEAF: u64 = 0x8000_0000_0000_0000;
/// Bytes of the header of a micro ZAP, and of each entry.
const ENTRY_BYTES: usize = 64;
/// Bytes before the buckets of a leaf.
const LEAF_HEADER_BYTES: usize = 48;
const CHUNK_BYTES: usize = 24;
const ENTRY_CHUNK: u8 = 252;

/// Turns the content of a block or a bonus area round.
///
/// # Errors
/// If there is no conversion for the type.
pub(crate) fn swap(object_type: ObjectType, bytes: &mut [u8]) -> Result<(), &'static str> {
    match object_type.byteswap() {
        Some(ByteswapClass::Zap) => {
            swap_zap(bytes);
            Ok(())
        }
        _ => to_native(object_type, bytes),
    }
}

fn part(bytes: &mut [u8], at: usize, length: usize) {
    if let Some(part) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..length)) {
        part.reverse();
    }
}

fn words(bytes: &mut [u8], unit: usize) {
    bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
}

/// A block of a ZAP in either form: its first word says what it is. A block of a pointer table has words only.
fn swap_zap(bytes: &mut [u8]) {
    let first = bytes
        .first_chunk()
        .map_or(0, |word| u64::from_be_bytes(*word));
    match first {
        MICRO_ZAP => {
            if let Some(header) = bytes.get_mut(..ENTRY_BYTES) {
                words(header, 8);
            }
            for entry in bytes.chunks_exact_mut(ENTRY_BYTES).skip(1) {
                part(entry, 0, 8);
                part(entry, 8, 4);
                part(entry, 12, 2);
            }
        }
        LEAF => swap_leaf(bytes),
        _ => words(bytes, 8),
    }
}

/// A leaf: names and values in chunks are in one order always.
fn swap_leaf(bytes: &mut [u8]) {
    for (at, length) in [
        (0, 8),
        (8, 8),
        (16, 8),
        (24, 4),
        (28, 2),
        (30, 2),
        (32, 2),
        (34, 2),
    ] {
        part(bytes, at, length);
    }
    let buckets = bytes.len().checked_div(16).unwrap_or(0);
    let chunks = LEAF_HEADER_BYTES.saturating_add(buckets);
    if let Some(buckets) = bytes.get_mut(LEAF_HEADER_BYTES..chunks) {
        words(buckets, 2);
    }
    let Some(chunks) = bytes.get_mut(chunks..) else {
        return;
    };
    for chunk in chunks.chunks_exact_mut(CHUNK_BYTES) {
        if chunk.first() == Some(&ENTRY_CHUNK) {
            for (at, length) in [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)] {
                part(chunk, at, length);
            }
        } else {
            part(chunk, 22, 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_micro_zap_is_turned_round() {
        let mut bytes = vec![0; 512];
        bytes[..8].copy_from_slice(&MICRO_ZAP.to_be_bytes());
        bytes[8..16].copy_from_slice(&7u64.to_be_bytes());
        bytes[64..72].copy_from_slice(&34u64.to_be_bytes());
        bytes[72..76].copy_from_slice(&1u32.to_be_bytes());
        bytes[78..82].copy_from_slice(b"ROOT");
        swap(ObjectType::MASTER_NODE, &mut bytes).unwrap();
        assert_eq!(bytes[..8], MICRO_ZAP.to_le_bytes());
        assert_eq!(bytes[8..16], 7u64.to_le_bytes());
        assert_eq!(bytes[64..72], 34u64.to_le_bytes());
        assert_eq!(bytes[72..76], 1u32.to_le_bytes());
        assert_eq!(bytes[78..82], *b"ROOT");
    }

    #[test]
    fn a_leaf_is_turned_round_but_not_its_arrays() {
        let mut bytes = vec![0; 512];
        bytes[..8].copy_from_slice(&LEAF.to_be_bytes());
        bytes[24..28].copy_from_slice(&0x02AB_1EAFu32.to_be_bytes());
        bytes[48..50].copy_from_slice(&3u16.to_be_bytes());
        bytes[80] = ENTRY_CHUNK;
        bytes[96..104].copy_from_slice(&9u64.to_be_bytes());
        bytes[104] = 251;
        bytes[105..110].copy_from_slice(b"hello");
        bytes[126..128].copy_from_slice(&5u16.to_be_bytes());
        swap(ObjectType::OTHER_ZAP, &mut bytes).unwrap();
        assert_eq!(bytes[24..28], 0x02AB_1EAFu32.to_le_bytes());
        assert_eq!(bytes[48..50], 3u16.to_le_bytes());
        assert_eq!(bytes[96..104], 9u64.to_le_bytes());
        assert_eq!(bytes[105..110], *b"hello");
        assert_eq!(bytes[126..128], 5u16.to_le_bytes());
    }

    #[test]
    fn short_content_is_no_panic() {
        for length in 0..200 {
            for first in [MICRO_ZAP, LEAF, 1] {
                let mut bytes = first.to_be_bytes().repeat(25);
                bytes.truncate(length);
                swap(ObjectType::OTHER_ZAP, &mut bytes).unwrap();
            }
        }
    }
}
