//! Mounts and keys.

/// How to mount a file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MountRequest {
    /// Options that override properties for this mount: `ro`, `noexec`, …
    pub options: Vec<String>,
    /// Mount over a directory that is not empty (`-O`).
    pub overlay: bool,
    /// Mount redacted file systems too (`-f`). It does not override `mountpoint=none` or `canmount=off`.
    pub force: bool,
    /// Load keys from files first (`-l`).
    pub load_keys: bool,
    /// Mount at this absolute path instead of the mount point of the properties, whatever `canmount` says. A snapshot can
    /// be mounted so too.
    pub at: Option<String>,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MountInfo {
    /// The dataset.
    pub dataset: String,
    /// Its mount point.
    pub mountpoint: String,
}

/// Why a mount or unmount failed. The texts are those of OpenZFS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum MountProblem {
    /// There is no such dataset.
    #[error("dataset does not exist")]
    NoSuchDataset,
    /// It is not a file system.
    #[error("operation not applicable to datasets of this type")]
    NotAFileSystem,
    /// It is already mounted.
    #[error("filesystem already mounted")]
    Already,
    /// It is not mounted.
    #[error("not currently mounted")]
    NotMounted,
    /// `canmount=off`.
    #[error("'canmount' property is set to 'off'")]
    Off,
    /// `mountpoint=legacy`.
    #[error("legacy mountpoint")]
    Legacy,
    /// `mountpoint=none`.
    #[error("no mountpoint set")]
    NoMountpoint,
    /// The mount point directory is not empty.
    #[error("directory is not empty")]
    NotEmpty,
    /// It is in use.
    #[error("pool or dataset is busy")]
    Busy,
    /// It is in use. The text says what uses it.
    #[error("pool or dataset is busy: {0}")]
    UsedBy(String),
    /// Its key is not loaded.
    #[error("encryption key not loaded")]
    Locked,
    /// It lacks what was left out of the redacted stream that it was received from.
    #[error("what its stream left out is missing: it was redacted; mount it with -f")]
    Redacted,
    /// Its receive was interrupted and can be resumed.
    #[error(
        "Contains partially-completed state from \"zfs receive -s\", which can be resumed with \"zfs send -t\""
    )]
    PartlyReceived,
    /// The caller has no permission.
    #[error("permission denied")]
    Denied,
    /// Mounting is not available here. The text gives the reason and a remedy.
    #[error("{0}")]
    Unavailable(String),
    /// Anything else, with its text.
    #[error("{0}")]
    Failed(String),
}

/// Why a key was not loaded or unloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum KeyProblem {
    /// There is no such dataset.
    NoSuchDataset,
    /// The caller has no permission.
    Denied,
    /// The complete message.
    Text(String),
}
