//! Gang headers: the pointers to the parts of a block that was not allocated contiguously.
//!
//! Page `docs/format/gang-header.md`.

use crate::{
    BLOCK_POINTER_BYTES, BlockPointer, CHECKSUM_TRAILER_BYTES, ChecksumTrailer, DecodeError, Dva,
    Endian, Txg, Writer,
};

/// Size of a gang header in bytes, unless feature `com.klarasystems:dynamic_gang_header` is active.
pub const GANG_HEADER_BYTES: usize = 512;
/// The maximum size of a gang header in bytes: 255 data columns of 64 KiB sectors.
pub const GANG_HEADER_BYTES_MAX: usize = 16 << 20;

/// A gang header in native form. Page `docs/format/gang-header.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangHeader {
    /// All pointer slots, including unused ones (holes); 3 in a header of 512 bytes.
    pub pointers: Vec<BlockPointer>,
    /// The embedded checksum as stored. Its verification needs the pointer to this header.
    pub checksum: [u64; 4],
}

impl GangHeader {
    /// The number of pointers in a header of `header_bytes`.
    #[must_use]
    pub fn pointer_count(header_bytes: usize) -> usize {
        header_bytes
            .saturating_sub(CHECKSUM_TRAILER_BYTES)
            .checked_div(BLOCK_POINTER_BYTES)
            .unwrap_or(0)
    }

    /// Reads the header that fills `bytes`. The magic of its trailer must match `endian`, the byte order in
    /// the pointer to it.
    ///
    /// Allocates as many bytes as `bytes` has, at most [`GANG_HEADER_BYTES_MAX`].
    ///
    /// # Errors
    /// If the size is not a multiple of 512 up to the maximum, or the trailer is missing or in the other byte
    /// order.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let fail = |reason, offset| DecodeError::new("gang header", reason, offset);
        if bytes.is_empty()
            || !bytes.len().is_multiple_of(512)
            || bytes.len() > GANG_HEADER_BYTES_MAX
        {
            return Err(fail("size is not a multiple of 512 up to 16 MiB", 0));
        }
        let trailer_at = bytes.len().saturating_sub(CHECKSUM_TRAILER_BYTES);
        let trailer = bytes
            .get(trailer_at..)
            .and_then(ChecksumTrailer::decode)
            .ok_or_else(|| fail("no checksum trailer", trailer_at))?;
        if trailer.endian != endian {
            return Err(fail("byte order differs from its pointer's", trailer_at));
        }
        let pointers = bytes
            .chunks_exact(BLOCK_POINTER_BYTES)
            .take(Self::pointer_count(bytes.len()))
            .map(|slot| BlockPointer::decode(slot, endian))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            pointers,
            checksum: trailer.words,
        })
    }

    /// Encodes a header of `header_bytes` with the trailer's magic and the words of `checksum` (the verifier,
    /// until the checksum is known).
    ///
    /// # Errors
    /// If the size is invalid or the pointers do not fit.
    pub fn encode(&self, header_bytes: usize) -> Result<Vec<u8>, DecodeError> {
        let fail = |reason| DecodeError::new("gang header", reason, 0);
        if header_bytes == 0
            || !header_bytes.is_multiple_of(512)
            || header_bytes > GANG_HEADER_BYTES_MAX
        {
            return Err(fail("size is not a multiple of 512 up to 16 MiB"));
        }
        if self.pointers.len() > Self::pointer_count(header_bytes) {
            return Err(fail("more pointers than the header holds"));
        }
        let mut writer = Writer::with_capacity(header_bytes);
        for pointer in &self.pointers {
            writer.put(&pointer.encode());
        }
        writer.pad_to(header_bytes.saturating_sub(CHECKSUM_TRAILER_BYTES));
        let trailer = ChecksumTrailer {
            endian: Endian::Little,
            words: self.checksum,
        };
        writer.put(&trailer.encode());
        Ok(writer.finish())
    }

    /// The pointers to the parts in data order: every slot that is not a hole.
    pub fn children(&self) -> impl Iterator<Item = &BlockPointer> {
        self.pointers.iter().filter(|pointer| !pointer.is_hole())
    }

    /// The trailer words during the checksum computation of the header that `pointer` points to.
    ///
    /// These are the vdev and byte offset of the first address (regardless of the copy that is read), the
    /// physical birth, and 0. `None` if the pointer has no address.
    #[must_use]
    pub fn verifier(pointer: &BlockPointer) -> Option<[u64; 4]> {
        let Dva {
            vdev, offset_bytes, ..
        } = pointer.dvas().next()?;
        let Txg(birth) = pointer.physical_birth();
        Some([u64::from(vdev.0), offset_bytes, birth, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::swapped_words;
    use proptest::prelude::*;

    fn child(offset_sectors: u64) -> BlockPointer {
        let mut pointer = BlockPointer::default();
        pointer.words[0] = 1;
        pointer.words[1] = offset_sectors;
        pointer.words[10] = 30;
        pointer
    }

    #[test]
    fn a_header_holds_as_many_pointers_as_its_size_allows() {
        for (bytes, count) in [(512, 3), (4096, 31), (8192, 63), (16384, 127), (32768, 255)] {
            assert_eq!(GangHeader::pointer_count(bytes), count);
        }
        assert_eq!(GangHeader::pointer_count(0), 0);
    }

    #[test]
    fn the_trailer_of_a_small_header_is_at_472() {
        let header = GangHeader {
            pointers: vec![child(5), BlockPointer::default(), child(9)],
            checksum: [1, 2, 3, 4],
        };
        let bytes = header.encode(512).unwrap();
        assert_eq!(bytes[472..480], 0x0210_da7a_b10c_7a11u64.to_le_bytes());
        assert_eq!(GangHeader::decode(&bytes, Endian::Little).unwrap(), header);
        assert_eq!(
            GangHeader::decode(&swapped_words(&bytes), Endian::Big).unwrap(),
            header
        );
        assert_eq!(header.children().count(), 2);
    }

    #[test]
    fn a_gang_header_with_a_bad_trailer_or_size_is_refused() {
        let header = GangHeader {
            pointers: vec![child(5)],
            checksum: [0; 4],
        };
        let bytes = header.encode(512).unwrap();
        assert!(GangHeader::decode(&bytes, Endian::Big).is_err());
        assert!(GangHeader::decode(&bytes[..511], Endian::Little).is_err());
        assert!(GangHeader::decode(&[], Endian::Little).is_err());
        assert!(GangHeader::decode(&[0; 512], Endian::Little).is_err());
        assert!(header.encode(100).is_err());
        let crowded = GangHeader {
            pointers: vec![child(1); 4],
            checksum: [0; 4],
        };
        assert!(crowded.encode(512).is_err() && crowded.encode(1024).is_ok());
    }

    #[test]
    fn the_verifier_is_first_dva_and_physical_birth() {
        let mut pointer = child(0x18);
        pointer.words[0] = 1 | 2 << 32;
        pointer.words[9] = 7;
        assert_eq!(GangHeader::verifier(&pointer), Some([2, 0x3000, 7, 0]));
        assert_eq!(GangHeader::verifier(&BlockPointer::default()), None);
    }

    #[test]
    fn sizes_of_headers_are_multiples_of_512_up_to_16_mib() {
        let header = GangHeader {
            pointers: vec![child(5)],
            checksum: [1, 2, 3, 4],
        };
        let reason = "size is not a multiple of 512 up to 16 MiB";
        let largest = header.encode(16 << 20).unwrap();
        let read = GangHeader::decode(&largest, Endian::Little).unwrap();
        assert_eq!(read.pointers.len(), GangHeader::pointer_count(16 << 20));
        assert_eq!(read.checksum, header.checksum);
        for bytes in [0, 511, 1000, (16 << 20) + 512] {
            assert_eq!(header.encode(bytes).unwrap_err().reason, reason);
            let decoded = GangHeader::decode(&vec![0; bytes], Endian::Little);
            assert_eq!(decoded.unwrap_err().reason, reason);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let _ = GangHeader::decode(&bytes, Endian::Little);
        }
        #[test]
        fn headers_round_trip(offsets in proptest::collection::vec(1u64..1 << 40, 0..32), checksum: [u64; 4]) {
            let header = GangHeader { pointers: offsets.iter().map(|at| child(*at)).collect(), checksum };
            let bytes = header.encode(8192).unwrap();
            let read = GangHeader::decode(&bytes, Endian::Little).unwrap();
            prop_assert_eq!(read.children().copied().collect::<Vec<_>>(), header.pointers);
            prop_assert_eq!(read.checksum, checksum);
        }
    }
}
