//! The cursor for all decoders, and the writer for all encoders.

use crate::DecodeError;

/// The byte order of stored integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Endian {
    /// Least significant byte first; the only order that Millpond writes.
    #[default]
    Little,
    /// Most significant byte first, as on pools from SPARC or POWER machines.
    Big,
}

impl Endian {
    /// Two bytes as an integer.
    #[must_use]
    pub fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Endian::Little => u16::from_le_bytes(bytes),
            Endian::Big => u16::from_be_bytes(bytes),
        }
    }
    /// Four bytes as an integer.
    #[must_use]
    pub fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Endian::Little => u32::from_le_bytes(bytes),
            Endian::Big => u32::from_be_bytes(bytes),
        }
    }
    /// Eight bytes as an integer.
    #[must_use]
    pub fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(bytes),
            Endian::Big => u64::from_be_bytes(bytes),
        }
    }
    /// An integer as eight bytes.
    #[must_use]
    pub fn bytes(self, value: u64) -> [u8; 8] {
        match self {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        }
    }
    /// The array of `N` words in the first `8 * N` bytes.
    ///
    /// # Errors
    /// [`DecodeError`] naming `structure` if `bytes` is shorter.
    pub fn words<const N: usize>(
        self,
        structure: &'static str,
        bytes: &[u8],
    ) -> Result<[u64; N], DecodeError> {
        let mut reader = Reader::new(structure, bytes, self);
        let mut words = [0u64; N];
        for word in &mut words {
            *word = reader.u64()?;
        }
        Ok(words)
    }
}

/// A cursor over stored bytes that cannot run past their end.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    structure: &'static str,
    bytes: &'a [u8],
    position: usize,
    endian: Endian,
}

impl<'a> Reader<'a> {
    /// Starts at byte 0 of `bytes`. Errors name `structure`.
    #[must_use]
    pub fn new(structure: &'static str, bytes: &'a [u8], endian: Endian) -> Self {
        Self {
            structure,
            bytes,
            position: 0,
            endian,
        }
    }
    /// The byte order of integers.
    #[must_use]
    pub fn endian(&self) -> Endian {
        self.endian
    }
    /// The number of bytes consumed.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }
    /// The number of bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.position)
    }
    /// An error about this structure at the current position.
    #[must_use]
    pub fn fail(&self, reason: &'static str) -> DecodeError {
        DecodeError::new(self.structure, reason, self.position)
    }
    /// The next `count` bytes.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let end = self
            .position
            .checked_add(count)
            .ok_or_else(|| self.fail("too short"))?;
        let taken = self
            .bytes
            .get(self.position..end)
            .ok_or_else(|| self.fail("too short"))?;
        self.position = end;
        Ok(taken)
    }
    /// Skips `count` bytes.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn skip(&mut self, count: usize) -> Result<(), DecodeError> {
        self.take(count).map(|_| ())
    }
    /// The next `N` bytes as an array.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let failure = self.fail("too short");
        self.take(N)?.try_into().map_err(|_| failure)
    }
    /// One byte.
    ///
    /// # Errors
    /// If none is left.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    /// A 16-bit integer in this reader's order.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(self.endian.u16(self.array()?))
    }
    /// A 32-bit integer in this reader's order.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(self.endian.u32(self.array()?))
    }
    /// A 64-bit integer in this reader's order.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(self.endian.u64(self.array()?))
    }
}

/// Builds little-endian bytes from front to back.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer with this capacity in bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
        }
    }
    /// The number of bytes written.
    #[must_use]
    pub fn position(&self) -> usize {
        self.bytes.len()
    }
    /// Appends bytes as they are.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    /// Appends one byte.
    pub fn put_u8(&mut self, value: u8) {
        self.bytes.push(value);
    }
    /// Appends a 16-bit integer.
    pub fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    /// Appends a 32-bit integer.
    pub fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    /// Appends a 64-bit integer.
    pub fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    /// Appends 64-bit integers.
    pub fn put_words(&mut self, words: &[u64]) {
        for word in words {
            self.put_u64(*word);
        }
    }
    /// Appends zeros up to `length` bytes; no effect if there are that many already.
    pub fn pad_to(&mut self, length: usize) {
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
        }
    }
    /// Returns the bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_in_the_order_asked_for() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let read = |endian| {
            let mut reader = Reader::new("bytes", &bytes, endian);
            assert_eq!((reader.endian(), reader.position()), (endian, 0));
            let read = (
                reader.u8().unwrap(),
                reader.u16().unwrap(),
                reader.u32().unwrap(),
                reader.u64().unwrap(),
            );
            assert_eq!((reader.position(), reader.remaining()), (15, 0));
            assert_eq!(reader.u8().unwrap_err().offset, 15);
            read
        };
        assert_eq!(
            read(Endian::Little),
            (1, 0x0302, 0x0706_0504, 0x0f0e_0d0c_0b0a_0908)
        );
        assert_eq!(
            read(Endian::Big),
            (1, 0x0203, 0x0405_0607, 0x0809_0a0b_0c0d_0e0f)
        );
        for endian in [Endian::Little, Endian::Big] {
            let word = 0x0102_0304_0506_0708;
            assert_eq!(endian.u64(endian.bytes(word)), word);
        }
        assert_eq!(Endian::Big.bytes(1), [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn reads_past_the_end_are_errors_with_their_offset() {
        let mut reader = Reader::new("label", &[1, 2, 3], Endian::Little);
        reader.skip(1).unwrap();
        let error = reader.u64().unwrap_err();
        assert_eq!(
            (error.structure, error.reason, error.offset),
            ("label", "too short", 1)
        );
        assert!(reader.take(usize::MAX).is_err());
        assert_eq!(reader.take(2), Ok(&[2, 3][..]));
        let far = DecodeError::new("label", "far", usize::MAX);
        assert_eq!(far.offset, u32::MAX);
        assert_eq!(
            Endian::Little
                .words::<2>("label", &[0; 15])
                .unwrap_err()
                .offset,
            8
        );
    }

    #[test]
    fn writes_are_little_endian_and_padded() {
        let mut writer = Writer::with_capacity(4);
        writer.put_u8(1);
        writer.put_u16(0x0203);
        writer.put_u32(0x0405_0607);
        writer.put_words(&[8, 9]);
        writer.put(&[10]);
        assert_eq!(writer.position(), 24);
        writer.pad_to(24);
        writer.pad_to(3);
        assert_eq!(writer.position(), 24);
        writer.pad_to(26);
        assert_eq!(
            writer.finish(),
            [
                1, 3, 2, 7, 6, 5, 4, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0
            ]
        );
    }
}
