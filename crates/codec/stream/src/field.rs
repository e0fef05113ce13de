//! Fields at fixed places of a record's header.

use crate::HEADER_BYTES;
use millpond_ondisk::Endian;

/// The header of a record.
pub(crate) type Header = [u8; HEADER_BYTES];

/// A value at a byte offset of a header.
pub(crate) trait Field: Sized {
    fn load(header: &Header, at: usize, endian: Endian) -> Self;
    /// Stores it in little-endian order.
    fn store(&self, header: &mut Header, at: usize);
}

fn bytes<const N: usize>(header: &Header, at: usize) -> [u8; N] {
    let found = header.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

impl Field for u8 {
    fn load(header: &Header, at: usize, _: Endian) -> Self {
        let [byte] = bytes(header, at);
        byte
    }
    fn store(&self, header: &mut Header, at: usize) {
        [*self].store(header, at);
    }
}

impl Field for u32 {
    fn load(header: &Header, at: usize, endian: Endian) -> Self {
        endian.u32(bytes(header, at))
    }
    fn store(&self, header: &mut Header, at: usize) {
        self.to_le_bytes().store(header, at);
    }
}

impl Field for u64 {
    fn load(header: &Header, at: usize, endian: Endian) -> Self {
        endian.u64(bytes(header, at))
    }
    fn store(&self, header: &mut Header, at: usize) {
        self.to_le_bytes().store(header, at);
    }
}

/// Bytes have no order.
impl<const N: usize> Field for [u8; N] {
    fn load(header: &Header, at: usize, _: Endian) -> Self {
        bytes(header, at)
    }
    fn store(&self, header: &mut Header, at: usize) {
        if let Some(place) = header.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = *self;
        }
    }
}

/// Four words, as a checksum has.
impl Field for [u64; 4] {
    fn load(header: &Header, at: usize, endian: Endian) -> Self {
        let bytes: [u8; 32] = bytes(header, at);
        endian.words("checksum", &bytes).unwrap_or_default()
    }
    fn store(&self, header: &mut Header, at: usize) {
        let mut all = [0; 32];
        let (chunks, _) = all.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip(self) {
            *chunk = word.to_le_bytes();
        }
        all.store(header, at);
    }
}

/// Defines records by their fields, each with its byte offset in the header.
macro_rules! records {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $kind:ty = $at:literal,)* })*) => { $(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_about])* pub $field: $kind,)*
        }

        impl $name {
            pub(crate) fn load(header: &$crate::field::Header, endian: millpond_ondisk::Endian) -> Self {
                Self { $($field: $crate::field::Field::load(header, $at, endian),)* }
            }
            pub(crate) fn store(&self, header: &mut $crate::field::Header, kind: u32) {
                $crate::field::Field::store(&kind, header, 0);
                $($crate::field::Field::store(&self.$field, header, $at);)*
            }
        }
    )* };
}
pub(crate) use records;
