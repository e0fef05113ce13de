use millpond_dataset::DatasetError;
use millpond_object::ObjectError;
use millpond_posix::live::BeginError;
use millpond_zap::ZapError;

/// Why a volume could not be opened, read or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Its dataset could not be opened.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The dataset holds no volume.
    #[error("'{name}' is not a volume")]
    NotAVolume {
        /// The dataset's name.
        name: String,
    },
    /// Data, or the object that leads to it, could not be read.
    #[error("{name}: {error}")]
    Object {
        /// The volume's name.
        name: String,
        /// What went wrong.
        error: ObjectError,
    },
    /// The table with the size could not be read.
    #[error("{name}: {error}")]
    Zap {
        /// The volume's name.
        name: String,
        /// What went wrong.
        error: ZapError,
    },
    /// No transaction was to be had.
    #[error("{name}: {error}")]
    Begin {
        /// The volume's name.
        name: String,
        /// Why not.
        error: BeginError,
    },
    /// A size or block size that no volume can have.
    #[error("{name}: {reason}")]
    Refused {
        /// The volume's name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The volume does not say how large it is.
    #[error("{name}: the volume has no size")]
    NoSize {
        /// The volume's name.
        name: String,
    },
    /// The range asked for ends behind the volume.
    #[error(
        "{name}: {length_bytes} bytes at {offset_bytes} are not in a volume of {size_bytes} bytes"
    )]
    BeyondEnd {
        /// The volume's name.
        name: String,
        /// Where the range begins.
        offset_bytes: u64,
        /// How long it is.
        length_bytes: u64,
        /// How large the volume is.
        size_bytes: u64,
    },
}

impl VolumeError {
    /// Whether it failed because devices were missing or did not answer: it may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object { error, .. } => error.needs_devices(),
            Self::Zap { error, .. } => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Dataset(DatasetError::Locked { .. }) => true,
            Self::Object { error, .. } => error.is_locked(),
            Self::Zap { error, .. } => error.is_locked(),
            _ => false,
        }
    }
}
