//! Conversion of ZAP blocks from the other byte order to little-endian, before they are changed.
//!
//! Page `docs/format/zap-fat.md`, "Changing".

use super::leaf::{CHUNK_ARRAY, CHUNK_BYTES, CHUNK_ENTRY, CHUNK_FREE, LeafShape};
use super::{BLOCK_LEAF, BLOCK_MICRO};
use crate::{DecodeError, Endian};

/// Converts a ZAP block (microzap, header, pointer table or leaf) from byte order `endian` to little-endian.
///
/// Allocates the size of the block once.
///
/// # Errors
/// If a leaf has an invalid block size or a chunk of unknown kind, or the length is not a multiple of 8
/// bytes.
pub fn zap_block_to_little(bytes: &[u8], endian: Endian) -> Result<Vec<u8>, DecodeError> {
    let mut block = bytes.to_vec();
    if endian == Endian::Little {
        return Ok(block);
    }
    if !block.len().is_multiple_of(8) {
        let reason = "length is no multiple of 8";
        return Err(DecodeError::new("zap block", reason, block.len()));
    }
    match super::field::u64_at(bytes, 0, endian) {
        Some(BLOCK_MICRO) => swap_micro(&mut block),
        Some(BLOCK_LEAF) => swap_leaf(&mut block)?,
        _ => block.chunks_exact_mut(8).for_each(<[u8]>::reverse),
    }
    Ok(block)
}

fn reverse(bytes: &mut [u8], at: usize, length: usize) {
    if let Some(number) = bytes.get_mut(at..at.saturating_add(length)) {
        number.reverse();
    }
}

fn swap_micro(block: &mut [u8]) {
    for at in [0, 8, 16] {
        reverse(block, at, 8);
    }
    for entry in block.chunks_exact_mut(64).skip(1) {
        reverse(entry, 0, 8);
        reverse(entry, 8, 4);
    }
}

fn swap_leaf(block: &mut [u8]) -> Result<(), DecodeError> {
    let shape = LeafShape::of(block.len())?;
    for (at, length) in [(0, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)] {
        reverse(block, at, length);
    }
    for bucket in 0..shape.buckets {
        reverse(block, LeafShape::bucket_offset(bucket), 2);
    }
    let chunks = block.get_mut(shape.chunks_offset..).unwrap_or_default();
    for chunk in chunks.chunks_exact_mut(CHUNK_BYTES) {
        match chunk.first() {
            Some(&CHUNK_ENTRY) => {
                for at in [2, 4, 6, 8, 10] {
                    reverse(chunk, at, 2);
                }
                reverse(chunk, 12, 4);
                reverse(chunk, 16, 8);
            }
            Some(&(CHUNK_ARRAY | CHUNK_FREE)) => reverse(chunk, 22, 2),
            _ => {
                let reason = "chunk is of no kind";
                let at = shape.chunks_offset;
                return Err(DecodeError::new("zap leaf", reason, at));
            }
        }
    }
    Ok(())
}
