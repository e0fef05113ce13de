//! One raw LZ4 block after its length.

use crate::DecompressError;
use std::cell::RefCell;

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

/// A block counts as sparse if at most one sixteenth of it comes before the zeros at its end.
const SPARSE: usize = 16;
/// Fewer zeros are not worth a repetition of their own.
const ZEROS_MIN: usize = 64;
/// The last bytes of a block must be literals.
const LAST_LITERALS: usize = 5;
/// The shortest repetition.
const REPEATED_MIN: usize = 4;
/// The largest length that fits into its half of a token.
const NIBBLE_MAX: usize = 15;

/// How much memory each thread keeps for the encoder.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

thread_local! {
    /// Memory for the encoder's worst case.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Compresses into `destination`. Returns the length, or `None` if it does not fit.
pub(crate) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    with_block(source, |head, block| {
        let total = head.len().checked_add(block.len())?;
        let (to_head, to_block) = destination
            .get_mut(..total)?
            .split_first_chunk_mut::<LENGTH_BYTES>()?;
        *to_head = head;
        to_block.copy_from_slice(block);
        Some(total)
    })
}

/// As [`compress`], into new memory that is no larger than needed.
pub(crate) fn compress_to_vec(source: &[u8], limit: usize) -> Option<Vec<u8>> {
    with_block(source, |head, block| {
        let fits = head.len().checked_add(block.len())? <= limit;
        fits.then(|| [&head, block].concat())
    })
}

/// Encodes a block in memory of the thread, and passes its length and its bytes to `take`.
///
/// Blocks of metadata are mostly a few pointers before zeros. Their zeros are one repetition, which is
/// appended without a look at them.
fn with_block<T>(
    source: &[u8],
    take: impl FnOnce([u8; LENGTH_BYTES], &[u8]) -> Option<T>,
) -> Option<T> {
    let zeros = trailing_zeros(source);
    let used = source.len().checked_sub(zeros)?;
    let is_sparse = zeros >= ZEROS_MIN && used.checked_mul(SPARSE)? <= source.len();
    SCRATCH.with_borrow_mut(|block| {
        let length = if is_sparse {
            // With one zero to repeat.
            let front = source.get(..used.checked_add(1)?)?;
            let length = encode(front, block)?;
            block.truncate(length);
            repeat_last_byte(block, zeros.checked_sub(1)?)?;
            block.len()
        } else {
            encode(source, block)?
        };
        let head = u32::try_from(length).ok()?.to_be_bytes();
        let taken = take(head, block.get(..length)?);
        if block.capacity() > SCRATCH_BYTES_MAX {
            *block = Vec::new();
        }
        taken
    })
}

/// Encodes a raw block at the start of `block`, whose other content is arbitrary. Returns its length.
fn encode(source: &[u8], block: &mut Vec<u8>) -> Option<usize> {
    let most = lz4_flex::block::get_maximum_output_size(source.len());
    if block.len() < most {
        block.resize(most, 0);
    }
    lz4_flex::block::compress_into(source, block).ok()
}

/// The number of zeros at the end.
fn trailing_zeros(source: &[u8]) -> usize {
    const CHUNK: usize = 128;
    let is_zero = |chunk: &&[u8]| chunk.iter().fold(0, |all, byte| all | byte) == 0;
    let chunks = source.rchunks_exact(CHUNK).take_while(is_zero).count();
    let zeros = chunks.saturating_mul(CHUNK);
    let rest = source.get(..source.len().saturating_sub(zeros));
    let rest = rest.unwrap_or_default().iter().rev();
    zeros.saturating_add(rest.take_while(|byte| **byte == 0).count())
}

/// Appends `count` repetitions of the last decoded byte, a literal, to a complete block. The block's last
/// sequence has literals only; it gets a repetition, and a last sequence of five literals follows.
fn repeat_last_byte(block: &mut Vec<u8>, count: usize) -> Option<()> {
    let last = last_sequence(block)?;
    let byte = *block.last()?;
    let repeated = count.checked_sub(LAST_LITERALS)?;
    let length = repeated.checked_sub(REPEATED_MIN)?;
    let token = block.get_mut(last)?;
    *token |= u8::try_from(length.min(NIBBLE_MAX)).ok()?;
    block.extend_from_slice(&1u16.to_le_bytes());
    if let Some(mut left) = length.checked_sub(NIBBLE_MAX) {
        while left >= usize::from(u8::MAX) {
            block.push(u8::MAX);
            left = left.checked_sub(usize::from(u8::MAX))?;
        }
        block.push(u8::try_from(left).ok()?);
    }
    // Five literals, no repetition.
    block.push(0x50);
    block.extend_from_slice(&[byte; LAST_LITERALS]);
    Some(())
}

/// The offset of the token of a raw block's last sequence.
fn last_sequence(block: &[u8]) -> Option<usize> {
    let mut at = 0usize;
    loop {
        let start = at;
        let token = *block.get(at)?;
        at = at.checked_add(1)?;
        let mut literals = usize::from(token >> 4);
        if literals == NIBBLE_MAX {
            literals = literals.checked_add(length(block, &mut at)?)?;
        }
        at = at.checked_add(literals)?;
        if at >= block.len() {
            return Some(start);
        }
        at = at.checked_add(2)?;
        if usize::from(token & 15) == NIBBLE_MAX {
            length(block, &mut at)?;
        }
    }
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

    /// Compresses, and checks that both decoders return the source. Returns the compressed length.
    fn round_trip(source: &[u8]) -> usize {
        let mut stored = vec![1; source.len() + 1000];
        let length = compress(source, &mut stored).unwrap();
        let mut back = vec![1; source.len()];
        decompress(&stored[..length], &mut back).unwrap();
        assert!(back == source);
        agree(&stored[LENGTH_BYTES..length], source.len());
        let mut theirs = vec![1; source.len()];
        let count = lz4_flex::block::decompress_into(&stored[LENGTH_BYTES..length], &mut theirs);
        assert_eq!(count.unwrap(), source.len());
        assert!(theirs == source);
        length
    }

    #[test]
    fn zeros_at_the_end_take_a_byte_for_each_255() {
        for size in [512, 4096, 16_384, 131_072] {
            for used in [
                0,
                1,
                4,
                5,
                12,
                13,
                20,
                128,
                300,
                size / 16 - 1,
                size / 16,
                size / 16 + 1,
            ] {
                let mut source: Vec<u8> = (0..used).map(|at| ((at * at) >> 3) as u8 | 1).collect();
                source.resize(size, 0);
                let length = round_trip(&source);
                let library = lz4_flex::block::compress(&source).len() + LENGTH_BYTES;
                assert!(
                    length <= library + 16,
                    "{size}, {used}: {length}, {library}"
                );
            }
        }
        // A front that does not compress, and one that ends with a repetition.
        let mut source = vec![7u8; 2000];
        source.resize(131_072, 0);
        round_trip(&source);
        assert!(compress(&source, &mut [0; 500]).is_none());
        assert_eq!(round_trip(&[0; 131_072]), round_trip(&[0; 131_072]));
    }

    proptest! {
        #[test]
        fn sparse_blocks_round_trip(
            front in proptest::collection::vec(prop_oneof![Just(0u8), 0..4u8, any::<u8>()], 0..400),
            zeros in 0usize..20_000,
        ) {
            let mut source = front;
            source.resize(source.len() + zeros, 0);
            if !source.is_empty() {
                round_trip(&source);
            }
        }

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
