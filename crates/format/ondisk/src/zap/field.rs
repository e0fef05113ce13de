//! Integers at computed offsets, where a sequential cursor does not suffice.

use crate::Endian;

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes
        .get(offset..offset.checked_add(N)?)
        .and_then(|taken| taken.try_into().ok())
}

pub(super) fn u16_at(bytes: &[u8], offset: usize, endian: Endian) -> Option<u16> {
    array(bytes, offset).map(|taken| endian.u16(taken))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize, endian: Endian) -> Option<u64> {
    array(bytes, offset).map(|taken| endian.u64(taken))
}

/// Overwrites bytes in place; `None`, without a change, if they would exceed the end.
pub(super) fn put_at(bytes: &mut [u8], offset: usize, value: &[u8]) -> Option<()> {
    let end = offset.checked_add(value.len())?;
    bytes.get_mut(offset..end)?.copy_from_slice(value);
    Some(())
}
