use millpond_object::ObjectError;
use millpond_posix::TransactionError;
use millpond_zap::ZapError;

/// Why a volume could not be opened, read or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The dataset is not a volume.
    #[error("'{name}' is not a volume")]
    NotAVolume {
        /// The dataset's name.
        name: String,
    },
    /// The data, or the object that leads to it, could not be read.
    #[error("{name}: {error}")]
    Object {
        /// The volume's name.
        name: String,
        /// The cause.
        error: ObjectError,
    },
    /// The table that holds the size could not be read.
    #[error("{name}: {error}")]
    Zap {
        /// The volume's name.
        name: String,
        /// The cause.
        error: ZapError,
    },
    /// No transaction could begin. Writes to a volume that is not open for change fail with
    /// [`TransactionError::ReadOnly`].
    #[error("{name}: {error}")]
    Transaction {
        /// The volume's name.
        name: String,
        /// The cause.
        error: TransactionError,
    },
    /// The size or block size is invalid for a volume.
    #[error("{name}: {reason}")]
    Refused {
        /// The volume's name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The volume's table has no size.
    #[error("{name}: the volume has no size")]
    NoSize {
        /// The volume's name.
        name: String,
    },
    /// The requested range ends beyond the volume.
    #[error(
        "{name}: {length_bytes} bytes at {offset_bytes} are not in a volume of {size_bytes} bytes"
    )]
    BeyondEnd {
        /// The volume's name.
        name: String,
        /// Where the range begins, in bytes.
        offset_bytes: u64,
        /// The length of the range in bytes.
        length_bytes: u64,
        /// The size of the volume in bytes.
        size_bytes: u64,
    },
}

impl VolumeError {
    /// Whether it failed because devices are missing or do not respond. A retry may succeed once they are
    /// back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object { error, .. } => error.needs_devices(),
            Self::Zap { error, .. } => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether loading the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Object { error, .. } => error.is_locked(),
            Self::Zap { error, .. } => error.is_locked(),
            _ => false,
        }
    }
}

/// Builds errors that name the volume.
#[derive(Clone, Copy)]
pub(crate) struct Errors<'n>(pub(crate) &'n str);

impl Errors<'_> {
    pub(crate) fn object(self, error: ObjectError) -> VolumeError {
        VolumeError::Object {
            name: self.0.to_owned(),
            error,
        }
    }
    pub(crate) fn zap(self, error: ZapError) -> VolumeError {
        VolumeError::Zap {
            name: self.0.to_owned(),
            error,
        }
    }
    pub(crate) fn begin(self, error: TransactionError) -> VolumeError {
        VolumeError::Transaction {
            name: self.0.to_owned(),
            error,
        }
    }
    pub(crate) fn read_only(self) -> VolumeError {
        self.begin(TransactionError::ReadOnly)
    }
    pub(crate) fn refused(self, reason: &'static str) -> VolumeError {
        VolumeError::Refused {
            name: self.0.to_owned(),
            reason,
        }
    }
    pub(crate) fn check_size(self, size_bytes: u64, block_bytes: u64) -> Result<(), VolumeError> {
        if size_bytes == 0
            || !size_bytes.is_multiple_of(block_bytes)
            || size_bytes > i64::MAX as u64
        {
            return Err(self.refused("a volume's size is a multiple of its block size, not 0"));
        }
        Ok(())
    }
}
