//! Arrays of integers in object data, read in place.

use crate::Endian;

/// An array of 64-bit integers in object data. Page `docs/format/object-types.md`.
///
/// Used for metaslab arrays, unflushed txgs, sub-objects of block lists and sizes of packed lists. Bytes
/// after the last whole word are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordArray<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> WordArray<'a> {
    /// The array in `bytes`, stored in `endian` order.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, endian }
    }
    /// The number of whole words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() >> 3
    }
    /// Whether there is no whole word.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The word at `index`; `None` beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(8)?;
        let word = self.bytes.get(at..)?.first_chunk::<8>()?;
        Some(self.endian.u64(*word))
    }
    /// The words in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + 'a {
        let endian = self.endian;
        self.bytes
            .chunks_exact(8)
            .filter_map(move |chunk| Some(endian.u64(*chunk.first_chunk::<8>()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_byte_order_and_a_short_tail_is_ignored() {
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 9];
        let array = WordArray::new(&bytes, Endian::Little);
        assert_eq!((array.len(), array.is_empty()), (2, false));
        assert_eq!(array.get(0), Some(1));
        assert_eq!(array.get(1), Some(2 << 56));
        assert_eq!(array.get(2), None);
        assert_eq!(array.get(usize::MAX), None);
        let big = WordArray::new(&bytes, Endian::Big);
        assert_eq!(big.iter().collect::<Vec<_>>(), [1 << 56, 2]);
        assert!(WordArray::new(&[0; 7], Endian::Little).is_empty());
    }
}
