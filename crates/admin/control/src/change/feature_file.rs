//! Files that list features, which property `compatibility` names.

/// A set of features that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("{name}: {problem}")]
pub struct FeatureFileError {
    /// Its name in the property.
    pub name: String,
    /// Why.
    pub problem: FeatureFileProblem,
}

/// Why a set of features cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum FeatureFileProblem {
    /// There is neither a file nor a known set of this name.
    #[error(
        "no such file in /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d, and no set of this name is known"
    )]
    Unknown,
    /// It is a directory, a pipe or a device.
    #[error("not a regular file")]
    NotAFile,
    /// It has no byte, or more than 16 KiB.
    #[error("the file has {bytes} bytes, but must have 1 to 16384")]
    Size {
        /// Its size.
        bytes: u64,
    },
    /// The last line may be cut off.
    #[error("the file does not end with a newline")]
    NoNewline,
    /// It is not UTF-8.
    #[error("the file is not text")]
    NotText,
    /// The administrator asks for a feature that does not exist.
    #[error("there is no feature '{feature}'")]
    UnknownFeature {
        /// Its name in the file; of several all, with blanks between.
        feature: String,
    },
    /// It cannot be read; the text gives the system's reason.
    #[error("{0}")]
    Unreadable(String),
    /// The names together are too long.
    #[error("the names are longer than 4095 bytes")]
    LongList,
}
