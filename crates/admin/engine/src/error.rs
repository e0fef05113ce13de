use millpond_dataset::DatasetError;
use millpond_device::DeviceError;
use millpond_diff::DiffError;
use millpond_pool::{CreateError, SettingError};
use millpond_pool::{OpenError, PoolError};
use millpond_posix::FileError;
use millpond_send::SendError;
use millpond_volume::VolumeError;
use std::path::PathBuf;

/// Errors of this crate's public functions.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The search found no pool of this name or guid.
    #[error("cannot open '{name}': no such pool")]
    NoSuchPool {
        /// The name or guid.
        name: String,
    },
    /// Several pools have this name; the caller must name one by its guid.
    #[error(
        "cannot open '{name}': more than one matching pool; name one by its guid: {}",
        joined(guids)
    )]
    AmbiguousPool {
        /// The name.
        name: String,
        /// Their guids.
        guids: Vec<u64>,
    },
    /// The pool is there, but its devices are locked.
    #[error("cannot open '{name}': its devices are in use by another program")]
    InUse {
        /// The name or guid.
        name: String,
    },
    /// The pool is there, but its devices can only be read.
    #[error("cannot open '{name}': {reason}")]
    ReadOnlyDevices {
        /// The name or guid.
        name: String,
        /// The device and the system's message.
        reason: String,
    },
    /// The pool was found but cannot be opened.
    #[error("cannot open '{name}': {error}")]
    Open {
        /// The pool's name.
        name: String,
        /// Why.
        error: Box<OpenError>,
    },
    /// The pool cannot be created.
    #[error("cannot create '{name}': {error}")]
    Create {
        /// Its name.
        name: String,
        /// Why.
        error: Box<CreateError>,
    },
    /// A record of an intent log cannot be replayed, and the pool is suspended. If the pool is not suspended,
    /// replay just ends at such a record, without an error.
    #[error(
        "the intent log of '{name}' cannot be replayed: record {sequence} ({type_name}): {reason}"
    )]
    Replay {
        /// The file system or volume.
        name: String,
        /// The record's sequence number.
        sequence: u64,
        /// The record's type.
        type_name: &'static str,
        /// The reason.
        reason: String,
    },
    /// An intent log cannot be replayed until devices are available again. The log is kept.
    #[error(
        "the intent log of '{name}' cannot be replayed now: {reason}; import the pool again when its devices answer, or read it with \
         zpool import -o readonly=on"
    )]
    ReplayNeedsDevices {
        /// The file system or volume.
        name: String,
        /// The reason.
        reason: String,
    },
    /// Another writer already writes the intent log of this file system or volume.
    #[error("cannot open '{name}': its intent log is written by something else")]
    OtherLog {
        /// The file system or volume.
        name: String,
    },
    /// A device for a new vdev cannot be opened.
    #[error("cannot use {}: {error}", path.display())]
    Device {
        /// The device.
        path: PathBuf,
        /// Why.
        error: DeviceError,
    },
    /// A property of a pool cannot have this value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A cache file cannot be used.
    #[error("cannot use cache file {}: {reason}", path.display())]
    CacheFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A cache file is a pipe, a device or a folder.
    #[error("cannot use cache file {}: it is not a regular file; name another one", path.display())]
    CacheFileKind {
        /// Its path.
        path: PathBuf,
    },
    /// The pool's configuration or MOS cannot be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An error concerning a dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// An error concerning a file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Two states of a file system cannot be compared.
    #[error(transparent)]
    Diff(#[from] DiffError),
    /// A snapshot cannot be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A stream cannot be received.
    #[error(transparent)]
    Receive(Box<millpond_receive::ReceiveProblem>),
    /// An error concerning a volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

fn joined(guids: &[u64]) -> String {
    guids
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Error {
    /// Whether loading the dataset's key would resolve the error.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Dataset(error) => error.is_locked(),
            Self::File(error) => error.is_locked(),
            Self::Volume(error) => error.is_locked(),
            _ => false,
        }
    }
}
