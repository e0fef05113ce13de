//! Why a stream cannot be received.

use millpond_dataset::DatasetError;
use millpond_object::ObjectError;
use millpond_stream::{RawKeysError, StreamError, StreamFeatures};

/// Why a stream was not received, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The stream cannot be read.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The dataset cannot be created, changed or completed.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// An object cannot be read or changed.
    #[error(transparent)]
    Object(ObjectError),
    /// A record that no sender writes, or that does not fit the objects that are here.
    #[error("invalid record at byte {at} of the stream: {reason}")]
    Invalid {
        /// Where the record begins, in bytes from the start of the input.
        at: u64,
        /// What is wrong.
        reason: String,
    },
    /// The stream has features that are not known.
    #[error(
        "stream has unsupported feature, feature flags = {:x} (unknown flags = {:x})",
        features.bits(),
        unknown.bits()
    )]
    UnknownFeatures {
        /// All of the stream.
        features: StreamFeatures,
        /// Those that are not known.
        unknown: StreamFeatures,
    },
    /// The stream was deduplicated by an old sender.
    #[error(
        "stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs recv [...]'"
    )]
    Deduplicated,
    /// The keys in a raw stream are not usable.
    #[error(transparent)]
    Keys(#[from] RawKeysError),
    /// Streams of this kind are not received yet.
    #[error("{0} are not received yet")]
    Unsupported(&'static str),
}

impl ReceiveError {
    /// An error of an object whose change the record at `at` asked for.
    pub(crate) fn of_object(at: u64, error: ObjectError) -> Self {
        match error {
            // What the stream asks for is not possible. The object set and the devices are sound.
            ObjectError::Refused { reason, object, .. } => Self::Invalid {
                at,
                reason: format!("object {object}: {reason}"),
            },
            ObjectError::NotFound { object, .. } => Self::Invalid {
                at,
                reason: format!("object {object} does not exist"),
            },
            other => Self::Object(other),
        }
    }
}
