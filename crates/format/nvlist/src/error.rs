use crate::NvType;

/// A list does not contain the requested value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// No pair has this name.
    #[error("no value named '{name}'")]
    Missing {
        /// The requested name.
        name: String,
    },
    /// The pair has another type.
    #[error("'{name}' is of type {found}, not {expected}")]
    WrongType {
        /// The requested name.
        name: String,
        /// The requested type.
        expected: NvType,
        /// The type of the value.
        found: NvType,
    },
    /// The requested text is not UTF-8.
    #[error("'{name}' is not UTF-8")]
    NotUtf8 {
        /// The requested name.
        name: String,
    },
}

/// The encoding cannot express the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Lists nest deeper than [`crate::DEPTH_MAX`].
    #[error("lists nest deeper than 20")]
    TooDeep,
    /// A name, an array or the whole list is too long for its length field.
    #[error("a name, an array or the whole list is too long")]
    TooLong,
    /// A name or a string contains a NUL byte.
    #[error("a name or a string contains a NUL byte")]
    NulInString,
}
