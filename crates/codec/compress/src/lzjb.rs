//! lzjb: eight items per map byte. Each item is a literal or a copy from at most 1023 bytes back.

use crate::DecompressError;

const ITEMS_PER_MAP: u32 = 8;
const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 66;
/// Distances have ten bits.
const DISTANCE_MASK: usize = 0x3ff;
const HASH_ENTRIES: usize = 1024;

pub(crate) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    let corrupt = |reason| DecompressError::corrupt("lzjb", reason);
    let mut input = source.iter().copied();
    let mut next = || input.next().ok_or(corrupt("too short"));
    let mut done = 0usize;
    while done < destination.len() {
        let map = next()?;
        for item in 0..ITEMS_PER_MAP {
            if done >= destination.len() {
                break;
            }
            let first = next()?;
            if map & 1u8.wrapping_shl(item) == 0 {
                if let Some(to) = destination.get_mut(done) {
                    *to = first;
                }
                done = done.saturating_add(1);
                continue;
            }
            let second = next()?;
            let length = usize::from(first >> 2).saturating_add(MATCH_MIN);
            let distance = (usize::from(first & 3) << 8) | usize::from(second);
            // OpenZFS's last copy may state more bytes than remain; it ends with the block.
            let length = length.min(destination.len().saturating_sub(done));
            let from = done
                .checked_sub(distance)
                .filter(|_| distance > 0)
                .ok_or(corrupt("copy from before the start"))?;
            copy_back(destination, from, done, length);
            done = done.saturating_add(length);
        }
    }
    Ok(())
}

/// Copies `length` bytes forward within `bytes`. The ranges may overlap, which repeats a pattern.
fn copy_back(bytes: &mut [u8], from: usize, to: usize, length: usize) {
    if to.saturating_sub(from) >= length {
        bytes.copy_within(from..from.saturating_add(length), to);
        return;
    }
    for step in 0..length {
        let Some(byte) = bytes.get(from.saturating_add(step)).copied() else {
            return;
        };
        if let Some(slot) = bytes.get_mut(to.saturating_add(step)) {
            *slot = byte;
        }
    }
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the hot loop of an encoder of our own data: positions are below source.len(), hashes are masked"
)]
pub(crate) fn compress(source: &[u8], destination: &mut [u8]) -> Option<usize> {
    // The latest position of each hash plus 1; 0 means none.
    let mut latest = [0usize; HASH_ENTRIES];
    let (mut at, mut written) = (0usize, 0usize);
    while at < source.len() {
        let map_at = written;
        *destination.get_mut(map_at)? = 0;
        written += 1;
        for item in 0..ITEMS_PER_MAP {
            if at >= source.len() {
                break;
            }
            if let Some((distance, length)) = find(source, at, &mut latest) {
                destination[map_at] |= 1 << item;
                let [high, low] = u16::try_from(distance).ok()?.to_be_bytes();
                *destination.get_mut(written)? =
                    (u8::try_from(length - MATCH_MIN).ok()? << 2) | high;
                *destination.get_mut(written + 1)? = low;
                written += 2;
                at += length;
            } else {
                *destination.get_mut(written)? = source[at];
                written += 1;
                at += 1;
            }
        }
    }
    Some(written)
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "as `compress`: the slice patterns and masks keep every index inside"
)]
fn find(source: &[u8], at: usize, latest: &mut [usize; HASH_ENTRIES]) -> Option<(usize, usize)> {
    let here = &source[at..];
    let [a, b, c, ..] = *here else { return None };
    let mut hash = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    hash += hash >> 9;
    hash += hash >> 5;
    let slot = &mut latest[hash & (HASH_ENTRIES - 1)];
    let candidate = slot.checked_sub(1);
    *slot = at + 1;
    let candidate = candidate?;
    let distance = at - candidate;
    if distance > DISTANCE_MASK || source[candidate..candidate + MATCH_MIN] != here[..MATCH_MIN] {
        return None;
    }
    let length = here
        .iter()
        .zip(&source[candidate..])
        .take(MATCH_MAX)
        .take_while(|(now, before)| now == before)
        .count();
    Some((distance, length))
}
