//! Values of pairs. Page `docs/format/nvlist.md`, "Types".

use crate::NvList;
use std::borrow::Cow;
use std::fmt;

/// A name or string as stored: bytes without NUL, usually UTF-8.
///
/// UTF-8 is not guaranteed; for instance, programs choose the names of extended attributes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NvString(Vec<u8>);

impl NvString {
    /// The bytes, without a terminating NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
    /// The string as text; `None` if it is not UTF-8.
    #[must_use]
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
    /// The string as display text, with replacement characters where it is not UTF-8.
    #[must_use]
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether the string is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}
impl AsRef<[u8]> for NvString {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl From<&str> for NvString {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}
impl From<String> for NvString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}
impl From<&[u8]> for NvString {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}
impl From<Vec<u8>> for NvString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        /// The type of a value, by its number on storage. Page `docs/format/nvlist.md`, "Types".
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum NvType { $($(#[$doc])* $name = $number,)* }
        impl NvType {
            /// Every type, in numerical order.
            pub const ALL: &[NvType] = &[$(NvType::$name,)*];
            /// The type with this number; `None` if there is none.
            #[must_use]
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
            /// The number on storage.
            #[must_use]
            pub fn number(self) -> u32 { self as u32 }
            /// The display name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

types! {
    /// A flag without a value; its presence means true.
    Boolean = 1, "boolean";
    /// An uninterpreted byte.
    Byte = 2, "byte";
    /// A signed 16-bit integer.
    Int16 = 3, "int16";
    /// An unsigned 16-bit integer.
    Uint16 = 4, "uint16";
    /// A signed 32-bit integer.
    Int32 = 5, "int32";
    /// An unsigned 32-bit integer.
    Uint32 = 6, "uint32";
    /// A signed 64-bit integer.
    Int64 = 7, "int64";
    /// An unsigned 64-bit integer.
    Uint64 = 8, "uint64";
    /// Bytes without NUL.
    String = 9, "string";
    /// Any bytes.
    ByteArray = 10, "byte array";
    /// Signed 16-bit integers.
    Int16Array = 11, "int16 array";
    /// Unsigned 16-bit integers.
    Uint16Array = 12, "uint16 array";
    /// Signed 32-bit integers.
    Int32Array = 13, "int32 array";
    /// Unsigned 32-bit integers.
    Uint32Array = 14, "uint32 array";
    /// Signed 64-bit integers.
    Int64Array = 15, "int64 array";
    /// Unsigned 64-bit integers.
    Uint64Array = 16, "uint64 array";
    /// Strings.
    StringArray = 17, "string array";
    /// A time in nanoseconds.
    HrTime = 18, "hrtime";
    /// A list inside this list.
    List = 19, "nvlist";
    /// Lists inside this list.
    ListArray = 20, "nvlist array";
    /// A boolean with a value.
    BooleanValue = 21, "boolean value";
    /// A signed 8-bit integer.
    Int8 = 22, "int8";
    /// An unsigned 8-bit integer.
    Uint8 = 23, "uint8";
    /// Booleans.
    BooleanArray = 24, "boolean array";
    /// Signed 8-bit integers.
    Int8Array = 25, "int8 array";
    /// Unsigned 8-bit integers.
    Uint8Array = 26, "uint8 array";
    /// An IEEE 754 double; pools never write it.
    Double = 27, "double";
}

impl fmt::Display for NvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A typed value. Page `docs/format/nvlist.md`, "Types".
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are documented at `NvType`")]
pub enum NvValue {
    Boolean,
    Byte(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    String(NvString),
    ByteArray(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<NvString>),
    /// Nanoseconds.
    HrTime(i64),
    List(NvList),
    ListArray(Vec<NvList>),
    BooleanValue(bool),
    Int8(i8),
    Uint8(u8),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    /// The bits of an IEEE 754 double (`f64::from_bits`), so that values compare exactly.
    Double(u64),
}

impl NvValue {
    /// The type on storage.
    #[must_use]
    pub fn value_type(&self) -> NvType {
        match self {
            Self::Boolean => NvType::Boolean,
            Self::Byte(_) => NvType::Byte,
            Self::Int16(_) => NvType::Int16,
            Self::Uint16(_) => NvType::Uint16,
            Self::Int32(_) => NvType::Int32,
            Self::Uint32(_) => NvType::Uint32,
            Self::Int64(_) => NvType::Int64,
            Self::Uint64(_) => NvType::Uint64,
            Self::String(_) => NvType::String,
            Self::ByteArray(_) => NvType::ByteArray,
            Self::Int16Array(_) => NvType::Int16Array,
            Self::Uint16Array(_) => NvType::Uint16Array,
            Self::Int32Array(_) => NvType::Int32Array,
            Self::Uint32Array(_) => NvType::Uint32Array,
            Self::Int64Array(_) => NvType::Int64Array,
            Self::Uint64Array(_) => NvType::Uint64Array,
            Self::StringArray(_) => NvType::StringArray,
            Self::HrTime(_) => NvType::HrTime,
            Self::List(_) => NvType::List,
            Self::ListArray(_) => NvType::ListArray,
            Self::BooleanValue(_) => NvType::BooleanValue,
            Self::Int8(_) => NvType::Int8,
            Self::Uint8(_) => NvType::Uint8,
            Self::BooleanArray(_) => NvType::BooleanArray,
            Self::Int8Array(_) => NvType::Int8Array,
            Self::Uint8Array(_) => NvType::Uint8Array,
            Self::Double(_) => NvType::Double,
        }
    }
    /// The element count on storage: 0 for [`NvValue::Boolean`], 1 for scalars.
    #[must_use]
    pub fn element_count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(items) | Self::Uint8Array(items) => items.len(),
            Self::Int16Array(items) => items.len(),
            Self::Uint16Array(items) => items.len(),
            Self::Int32Array(items) => items.len(),
            Self::Uint32Array(items) => items.len(),
            Self::Int64Array(items) => items.len(),
            Self::Uint64Array(items) => items.len(),
            Self::StringArray(items) => items.len(),
            Self::ListArray(items) => items.len(),
            Self::BooleanArray(items) => items.len(),
            Self::Int8Array(items) => items.len(),
            _ => 1,
        }
    }
    /// The size of the value in a writer's memory in bytes, unpadded, as the size fields count it.
    pub(crate) fn memory_bytes(&self) -> usize {
        let count = self.element_count();
        let with_nul = |string: &NvString| string.len().saturating_add(1);
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::Uint8(_) => 1,
            Self::Int16(_) | Self::Uint16(_) => 2,
            Self::Int32(_) | Self::Uint32(_) | Self::BooleanValue(_) => 4,
            Self::Int64(_) | Self::Uint64(_) | Self::HrTime(_) | Self::Double(_) => 8,
            Self::String(string) => with_nul(string),
            Self::ByteArray(_) | Self::Int8Array(_) | Self::Uint8Array(_) => count,
            Self::Int16Array(_) | Self::Uint16Array(_) => count.saturating_mul(2),
            Self::Int32Array(_) | Self::Uint32Array(_) | Self::BooleanArray(_) => {
                count.saturating_mul(4)
            }
            Self::Int64Array(_) | Self::Uint64Array(_) => count.saturating_mul(8),
            Self::StringArray(strings) => strings
                .iter()
                .map(with_nul)
                .fold(count.saturating_mul(8), usize::saturating_add),
            Self::List(_) => 24,
            Self::ListArray(_) => count.saturating_mul(32),
        }
    }
}

/// The size field of a pair: header and name, then the value, each padded to 8 bytes.
pub(crate) fn pair_memory_bytes(name: &NvString, value: &NvValue) -> usize {
    round8(name.len().saturating_add(17)).saturating_add(round8(value.memory_bytes()))
}

/// `bytes` rounded up to a multiple of 8.
pub(crate) fn round8(bytes: usize) -> usize {
    bytes.saturating_add(7) & !7
}

macro_rules! from {
    ($($variant:ident($inner:ty)),* $(,)?) => {
        $(impl From<$inner> for NvValue {
            fn from(value: $inner) -> Self { Self::$variant(value) }
        })*
    };
}
from!(
    Uint64(u64),
    Int64(i64),
    Uint32(u32),
    Int32(i32),
    Uint16(u16),
    Int16(i16),
    BooleanValue(bool),
    String(NvString),
    List(NvList),
    ListArray(Vec<NvList>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<NvString>),
);
impl From<&str> for NvValue {
    fn from(value: &str) -> Self {
        Self::String(value.into())
    }
}
impl From<String> for NvValue {
    fn from(value: String) -> Self {
        Self::String(value.into())
    }
}
