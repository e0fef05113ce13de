//! Name/value lists and their typed lookups.

use crate::{LookupError, NvString, NvType, NvValue};

/// One (name, value) pair of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvPair {
    /// The name.
    pub name: NvString,
    /// The value.
    pub value: NvValue,
}

/// An ordered sequence of named values. Page `docs/format/nvlist.md`.
///
/// A list from storage may contain a name twice. Lookups then return the last value, as other readers do.
/// [`NvList::insert`] keeps names unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvList {
    flags: u32,
    pairs: Vec<NvPair>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt:ident, $variant:ident, $out:ty, $inner:ident => $expression:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`LookupError`] if the name is absent or of another type.
            pub fn $name(&self, name: &str) -> Result<$out, LookupError> {
                match self.require(name)? {
                    NvValue::$variant($inner) => Ok($expression),
                    other => Err(wrong_type(name, NvType::$variant, other)),
                }
            }
            #[doc = concat!("As [`NvList::", stringify!($name), "`], but absence is `None`.")]
            ///
            /// # Errors
            /// [`LookupError::WrongType`].
            pub fn $opt(&self, name: &str) -> Result<Option<$out>, LookupError> {
                absent_is_none(self.$name(name))
            }
        )*
    };
}

impl NvList {
    /// The usual flag: a name occurs at most once.
    pub const UNIQUE_NAME: u32 = 1;
    /// A combination of name and type occurs at most once.
    pub const UNIQUE_NAME_AND_TYPE: u32 = 2;

    /// An empty list with [`NvList::UNIQUE_NAME`], the flag of every list of a pool.
    #[must_use]
    pub fn new() -> Self {
        Self::with_flags(Self::UNIQUE_NAME)
    }
    /// An empty list with these flags.
    #[must_use]
    pub fn with_flags(flags: u32) -> Self {
        Self {
            flags,
            pairs: Vec::new(),
        }
    }
    /// The flags as stored: which duplicates may occur.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }
    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }
    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
    /// The pairs in order.
    pub fn iter(&self) -> std::slice::Iter<'_, NvPair> {
        self.pairs.iter()
    }
    /// The last value with this name.
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&NvValue> {
        let name = name.as_ref();
        self.pairs
            .iter()
            .rfind(|pair| pair.name.as_bytes() == name)
            .map(|pair| &pair.value)
    }
    /// Whether any value has this name.
    #[must_use]
    pub fn contains(&self, name: impl AsRef<[u8]>) -> bool {
        self.get(name).is_some()
    }
    /// Sets a value: replaces the last value of this name in its position, or appends the pair.
    pub fn insert(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) {
        let (name, value) = (name.into(), value.into());
        match self.pairs.iter_mut().rfind(|pair| pair.name == name) {
            Some(pair) => pair.value = value,
            None => self.pairs.push(NvPair { name, value }),
        }
    }
    /// Appends a pair, even if the name occurs already.
    pub fn push(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) {
        self.pairs.push(NvPair {
            name: name.into(),
            value: value.into(),
        });
    }
    /// Sets a flag without a value; its presence means true.
    pub fn insert_flag(&mut self, name: impl Into<NvString>) {
        self.insert(name, NvValue::Boolean);
    }
    /// Removes every pair of this name. Returns whether there was one.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> bool {
        let name = name.as_ref();
        let before = self.pairs.len();
        self.pairs.retain(|pair| pair.name.as_bytes() != name);
        self.pairs.len() != before
    }

    /// The last value with this name, of any type.
    ///
    /// # Errors
    /// [`LookupError::Missing`].
    pub fn require(&self, name: &str) -> Result<&NvValue, LookupError> {
        self.get(name).ok_or_else(|| LookupError::Missing {
            name: name.to_owned(),
        })
    }
    /// Whether the flag is set: a boolean without value, or a boolean value that is true.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        matches!(
            self.get(name),
            Some(NvValue::Boolean | NvValue::BooleanValue(true))
        )
    }
    /// Whether a u64 of this name exists and is not 0, which means "yes" in configurations.
    #[must_use]
    pub fn u64_is_set(&self, name: &str) -> bool {
        self.u64(name).is_ok_and(|value| value != 0)
    }
    /// A string as text.
    ///
    /// # Errors
    /// [`LookupError`] if absent, of another type, or not UTF-8.
    pub fn string(&self, name: &str) -> Result<&str, LookupError> {
        self.raw_string(name)?
            .to_str()
            .ok_or_else(|| LookupError::NotUtf8 {
                name: name.to_owned(),
            })
    }
    /// As [`NvList::string`], but absence is `None`.
    ///
    /// # Errors
    /// [`LookupError::WrongType`] or [`LookupError::NotUtf8`].
    pub fn opt_string(&self, name: &str) -> Result<Option<&str>, LookupError> {
        absent_is_none(self.string(name))
    }

    getters! {
        /// An unsigned 64-bit integer.
        u64, opt_u64, Uint64, u64, value => *value;
        /// A signed 64-bit integer.
        i64, opt_i64, Int64, i64, value => *value;
        /// An unsigned 32-bit integer.
        u32, opt_u32, Uint32, u32, value => *value;
        /// A signed 32-bit integer.
        i32, opt_i32, Int32, i32, value => *value;
        /// A boolean with a value.
        boolean_value, opt_boolean_value, BooleanValue, bool, value => *value;
        /// A string as stored, UTF-8 or not.
        raw_string, opt_raw_string, String, &NvString, value => value;
        /// A list inside this list.
        list, opt_list, List, &NvList, value => value;
        /// Lists inside this list.
        list_array, opt_list_array, ListArray, &[NvList], value => value;
        /// Strings.
        string_array, opt_string_array, StringArray, &[NvString], value => value;
        /// Unsigned 64-bit integers.
        u64_array, opt_u64_array, Uint64Array, &[u64], value => value;
        /// Any bytes.
        byte_array, opt_byte_array, ByteArray, &[u8], value => value;
        /// Unsigned 8-bit integers.
        u8_array, opt_u8_array, Uint8Array, &[u8], value => value;
    }
}

fn wrong_type(name: &str, expected: NvType, found: &NvValue) -> LookupError {
    LookupError::WrongType {
        name: name.to_owned(),
        expected,
        found: found.value_type(),
    }
}

fn absent_is_none<T>(found: Result<T, LookupError>) -> Result<Option<T>, LookupError> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(LookupError::Missing { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

impl<'a> IntoIterator for &'a NvList {
    type Item = &'a NvPair;
    type IntoIter = std::slice::Iter<'a, NvPair>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<NvPair> for NvList {
    fn from_iter<I: IntoIterator<Item = NvPair>>(pairs: I) -> Self {
        Self {
            flags: Self::UNIQUE_NAME,
            pairs: pairs.into_iter().collect(),
        }
    }
}
