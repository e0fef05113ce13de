//! One raw LZ4 block behind its length.

use crate::DecompressError;

/// Bytes of the big-endian length in front.
const LENGTH_BYTES: usize = 4;

pub(crate) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = |reason| DecompressError::corrupt("lz4", reason);
    let (length, rest) = source
        .split_first_chunk::<LENGTH_BYTES>()
        .ok_or(corrupt("too short"))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    let block = rest
        .get(..length)
        .ok_or(corrupt("stated length goes past the block"))?;
    let produced = lz4_flex::block::decompress_into(block, destination)
        .map_err(|_| corrupt("invalid sequence"))?;
    if produced != destination.len() {
        return Err(corrupt("decodes to less than the logical size"));
    }
    Ok(())
}

pub(crate) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    // The encoder wants room for its worst case, so it writes aside.
    let mut block = vec![0; lz4_flex::block::get_maximum_output_size(source.len())];
    let length = lz4_flex::block::compress_into(source, &mut block).ok()?;
    let total = length.checked_add(LENGTH_BYTES)?;
    let (head, body) = destination
        .get_mut(..total)?
        .split_first_chunk_mut::<LENGTH_BYTES>()?;
    *head = u32::try_from(length).ok()?.to_be_bytes();
    body.copy_from_slice(block.get(..length)?);
    Some(total)
}
