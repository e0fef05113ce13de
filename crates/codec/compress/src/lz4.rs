//! One raw LZ4 block after its length.

use crate::DecompressError;

/// Size of the big-endian length before the block.
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
    let produced = if destination.len() / REPETITIVE >= block.len() {
        decode_repetitive(block, destination)
    } else {
        lz4_flex::block::decompress_into(block, destination).ok()
    };
    let produced = produced.ok_or(corrupt("invalid sequence"))?;
    if produced != destination.len() {
        return Err(corrupt("decodes to less than the logical size"));
    }
    Ok(())
}

/// Blocks that shrank by this factor are mostly repetitions.
const REPETITIVE: usize = 8;
/// Copies up to this size need no function call.
const STEP: usize = 16;

/// Decodes one raw block. Returns the number of bytes written to `to`, or `None` if the block is malformed or
/// longer than `to`. Bytes after the result may also be changed.
///
/// `lz4_flex` decodes text somewhat faster, but repeats most patterns byte by byte. Blocks of metadata are
/// mostly repetitions: 128 KiB with a few pointers decode ten times as fast here.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the inner loop: positions never pass the slices' lengths, sums that could are checked; release builds check the rest"
)]
fn decode_repetitive(from: &[u8], to: &mut [u8]) -> Option<usize> {
    let (mut at, mut end) = (0, 0);
    loop {
        let token = *from.get(at)?;
        at += 1;
        let mut literals = usize::from(token >> 4);
        if literals == 15 {
            literals = literals.checked_add(length(from, &mut at)?)?;
        }
        if literals <= STEP && at + STEP <= from.len() && end + STEP <= to.len() {
            // Copies more bytes than the literals. The following bytes are overwritten later.
            to[end..end + STEP].copy_from_slice(&from[at..at + STEP]);
        } else {
            let source = from.get(at..at.checked_add(literals)?)?;
            to.get_mut(end..end.checked_add(literals)?)?
                .copy_from_slice(source);
        }
        at += literals;
        end += literals;
        if at == from.len() {
            return Some(end);
        }
        let offset = from.get(at..at + 2)?;
        let offset = usize::from(u16::from_le_bytes([offset[0], offset[1]]));
        at += 2;
        let mut repeated = usize::from(token & 15) + 4;
        if repeated == 19 {
            repeated = repeated.checked_add(length(from, &mut at)?)?;
        }
        let start = end.checked_sub(offset)?;
        let stop = end.checked_add(repeated)?;
        if offset == 0 || stop > to.len() {
            return None;
        }
        if repeated <= STEP && offset >= STEP && end + STEP <= to.len() {
            to.copy_within(start..start + STEP, end);
        } else {
            // The copied bytes are repeated as well, so each iteration can copy twice as much.
            let mut done = end;
            while done < stop {
                let count = (done - start).min(stop - done);
                to.copy_within(start..start + count, done);
                done += count;
            }
        }
        end = stop;
    }
}

/// Reads the rest of a length that does not fit into its half of the token.
fn length(from: &[u8], at: &mut usize) -> Option<usize> {
    let mut sum = 0usize;
    loop {
        let byte = *from.get(*at)?;
        *at = at.checked_add(1)?;
        sum = sum.checked_add(usize::from(byte))?;
        if byte != u8::MAX {
            return Some(sum);
        }
    }
}

pub(crate) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    // The encoder needs room for its worst case, so it writes to a separate buffer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that `lz4_flex` and this decoder agree on these bytes.
    fn agree(block: &[u8], size: usize) {
        let (mut ours, mut theirs) = (vec![0; size], vec![0; size]);
        let our_count = decode_repetitive(block, &mut ours);
        let their_count = lz4_flex::block::decompress_into(block, &mut theirs).ok();
        assert_eq!(our_count, their_count, "{block:?} into {size}");
        if let Some(count) = our_count {
            assert_eq!(ours[..count], theirs[..count]);
        }
    }

    #[test]
    fn a_repetition_may_fill_the_destination_to_the_last_byte() {
        // One literal, seven repetitions of it, and an end without literals.
        let block = [0x13, b'a', 1, 0, 0x00];
        assert_eq!(decode_repetitive(&block, &mut [0; 8]), Some(8));
        agree(&block, 8);
        agree(&block, 7);
    }

    #[test]
    fn patterns_of_every_length_round_trip() {
        for period in (1..40).chain([64, 128, 1000, 65_535]) {
            let text: Vec<u8> = (0..100_000u32)
                .map(|at| ((at % period) * 37 % 251) as u8)
                .collect();
            let block = lz4_flex::block::compress(&text);
            let mut back = vec![1; text.len()];
            assert_eq!(decode_repetitive(&block, &mut back), Some(text.len()));
            assert!(back == text, "period {period}");
            assert_eq!(decode_repetitive(&block, &mut back[1..]), None);
        }
    }

    proptest! {
        #[test]
        fn blocks_of_the_c_library_decode(pieces in proptest::collection::vec((any::<u8>(), 0usize..300, any::<bool>()), 0..60)) {
            let mut text = vec![];
            for (byte, length, is_noise) in pieces {
                text.extend((0..length).map(|at| if is_noise { (at * at) as u8 ^ byte } else { byte }));
            }
            agree(&lz4_flex::block::compress(&text), text.len());
            agree(&lz4_flex::block::compress(&text), text.len() + 20);
        }

        #[test]
        fn broken_blocks_are_refused_as_the_library_refuses_them(
            mut text in proptest::collection::vec(0u8..4, 0..600),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in 0usize..20,
            size in 0usize..700,
        ) {
            text.extend([7; 40]);
            let mut block = lz4_flex::block::compress(&text);
            for (index, byte) in changes {
                let at = index.index(block.len());
                block[at] = byte;
            }
            block.truncate(block.len().saturating_sub(cut));
            agree(&block, size);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused_as_by_the_library(block in proptest::collection::vec(any::<u8>(), 0..80), size in 0usize..500) {
            agree(&block, size);
        }
    }
}
