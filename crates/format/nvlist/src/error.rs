use crate::NvType;

/// A list does not hold what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// No pair has this name.
    #[error("no value named '{name}'")]
    Missing {
        /// The name asked for.
        name: String,
    },
    /// The pair has another type.
    #[error("'{name}' is of type {found}, not {expected}")]
    WrongType {
        /// The name asked for.
        name: String,
        /// The type asked for.
        expected: NvType,
        /// The type found.
        found: NvType,
    },
    /// The string is not UTF-8 and was asked for as text.
    #[error("'{name}' is not UTF-8")]
    NotUtf8 {
        /// The name asked for.
        name: String,
    },
}

/// A list cannot be expressed in the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Lists nest deeper than [`crate::DEPTH_MAX`].
    #[error("lists nest deeper than 20")]
    TooDeep,
    /// A name, an array or the whole is too long for its length field.
    #[error("a name, an array or the whole list is too long")]
    TooLong,
    /// A name or a string contains a NUL byte.
    #[error("a name or a string contains a NUL byte")]
    NulInString,
}
