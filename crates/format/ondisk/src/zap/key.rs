//! Keys and values as leaves store them: big-endian, regardless of the block's byte order.
//!
//! Page `docs/format/zap-fat.md`, "Arrays".

use crate::DecodeError;

/// The key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZapKey<'a> {
    /// A name without its NUL.
    Name(&'a [u8]),
    /// 64-bit words (dedup and clone tables).
    Words(&'a [u64]),
}

impl ZapKey<'_> {
    /// Encodes the key as in a leaf's arrays: the name with its NUL, or the words, big-endian.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        match self {
            ZapKey::Name(name) => {
                let mut bytes = Vec::with_capacity(name.len().saturating_add(1));
                bytes.extend_from_slice(name);
                bytes.push(0);
                bytes
            }
            ZapKey::Words(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
        }
    }
}

/// A value: integers of one width.
///
/// Its size is bounded by the capacity of a leaf (below 1 MiB; 8192 bytes from a correct writer).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ZapValue {
    /// Size of an integer in bytes: 1, 2, 4 or 8.
    pub integer_bytes: u8,
    /// The integers back to back, each big-endian.
    pub bytes: Vec<u8>,
}

impl ZapValue {
    /// The bytes up to the first NUL, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let text = self.bytes.split(|byte| *byte == 0).next().unwrap_or(&[]);
        String::from_utf8_lossy(text).into_owned()
    }
    /// A single 64-bit integer, the only form in a microzap.
    #[must_use]
    pub fn from_u64(value: u64) -> Self {
        Self::from_u64s(&[value])
    }
    /// An array of 64-bit integers.
    #[must_use]
    pub fn from_u64s(values: &[u64]) -> Self {
        Self {
            integer_bytes: 8,
            bytes: values
                .iter()
                .flat_map(|value| value.to_be_bytes())
                .collect(),
        }
    }
    /// An array of 16-bit integers.
    #[must_use]
    pub fn from_u16s(values: &[u16]) -> Self {
        Self {
            integer_bytes: 2,
            bytes: values
                .iter()
                .flat_map(|value| value.to_be_bytes())
                .collect(),
        }
    }
    /// An array of bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            integer_bytes: 1,
            bytes: bytes.to_vec(),
        }
    }
    /// The number of integers; may be 0.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes
            .len()
            .checked_div(usize::from(self.integer_bytes))
            .unwrap_or(0)
    }
    /// The integers widened to 64 bits.
    pub fn integers(&self) -> impl Iterator<Item = u64> + '_ {
        self.bytes
            .chunks_exact(usize::from(self.integer_bytes.max(1)))
            .map(|bytes| {
                bytes
                    .iter()
                    .fold(0u64, |value, byte| (value << 8) | u64::from(*byte))
            })
    }
    /// The first integer, widened; `None` if there are none.
    ///
    /// In directories, further integers may follow; they have no meaning.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.integers().next()
    }
    /// The bytes of a value of one-byte integers (strings include their NUL).
    ///
    /// # Errors
    /// If the integers are wider.
    pub fn as_bytes(&self) -> Result<&[u8], DecodeError> {
        if self.integer_bytes == 1 {
            Ok(&self.bytes)
        } else {
            Err(DecodeError::new("zap value", "integers are not bytes", 0))
        }
    }
}
