//! From errors to what a person is told.

use crate::Error;
use millpond_dataset::{DatasetError, Refusal};
use millpond_receive::{ReceiveError, ReceiveProblem};
use millpond_stream::{HEADER_BYTES, StreamError};

/// Why the first record of the input cannot be read.
pub(super) fn of_first_record(error: StreamError) -> ReceiveProblem {
    match error {
        StreamError::Truncated { at } if at < HEADER_BYTES as u64 => ReceiveProblem::NoStream,
        other => of_stream(other),
    }
}

pub(super) fn of_stream(error: StreamError) -> ReceiveProblem {
    match error {
        StreamError::Magic => ReceiveProblem::BadMagic,
        StreamError::Truncated { .. } => ReceiveProblem::Truncated,
        StreamError::Checksum { .. } => ReceiveProblem::Checksum,
        invalid @ StreamError::Invalid { .. } => ReceiveProblem::Invalid(invalid.to_string()),
        other => ReceiveProblem::Failed(other.to_string()),
    }
}

/// Why a stream was not received into the dataset `name`.
pub(super) fn of_receive(error: ReceiveError, name: &str) -> ReceiveProblem {
    match error {
        ReceiveError::Stream(error) => of_stream(error),
        ReceiveError::Dataset(error) => of_dataset(error, name),
        ReceiveError::UnknownFeatures { features, unknown } => {
            ReceiveProblem::UnknownFeatures(features.bits(), unknown.bits())
        }
        ReceiveError::Deduplicated => ReceiveProblem::Deduplicated,
        ReceiveError::Unsupported(what) => ReceiveProblem::Unsupported(what.to_owned()),
        ReceiveError::Keys(error) => ReceiveProblem::Invalid(error.to_string()),
        invalid @ ReceiveError::Invalid { .. } => ReceiveProblem::Invalid(invalid.to_string()),
        other => ReceiveProblem::Failed(other.to_string()),
    }
}

pub(super) fn of_dataset(error: DatasetError, name: &str) -> ReceiveProblem {
    let own = || name.to_owned();
    match error {
        DatasetError::NotFound { name } => ReceiveProblem::NoDestination(name),
        DatasetError::Locked { .. } => ReceiveProblem::Locked,
        DatasetError::InvalidProperty { .. } => ReceiveProblem::Property(error.to_string()),
        DatasetError::Refused { name: of, why } => match why {
            Refusal::Exists => ReceiveProblem::Exists(own()),
            Refusal::ResumeReplaces => ReceiveProblem::ResumeReplaces(own()),
            Refusal::HasSnapshots => ReceiveProblem::HasSnapshots(own(), String::new()),
            Refusal::HasChildren => ReceiveProblem::HasChildren(own(), String::new()),
            Refusal::IsClone => ReceiveProblem::IsClone(own()),
            Refusal::EncryptionReplaced => ReceiveProblem::EncryptionReplaced,
            Refusal::RawOntoPlain => ReceiveProblem::RawOntoPlain,
            Refusal::OtherKey => ReceiveProblem::OtherKey,
            Refusal::IvSetMissing => ReceiveProblem::IvSetMissing,
            Refusal::IvSetMismatch => ReceiveProblem::IvSetMismatch,
            Refusal::NoParent => ReceiveProblem::NoParent(parent_of(name).to_owned()),
            Refusal::ParentIsVolume => ReceiveProblem::ParentIsVolume(parent_of(name).to_owned()),
            Refusal::NoSource => ReceiveProblem::NoSource(own()),
            Refusal::Modified => ReceiveProblem::Modified(own()),
            Refusal::SnapshotExists(snapshot) => {
                ReceiveProblem::SnapshotExists(format!("{name}@{snapshot}"))
            }
            Refusal::PartlyReceived => ReceiveProblem::PartlyReceived(own()),
            Refusal::NeedsLargeBlocks => ReceiveProblem::NeedsLargeBlocks,
            Refusal::NotResumable => ReceiveProblem::NotResumable(own()),
            Refusal::FeatureDisabled => ReceiveProblem::FeatureDisabled,
            Refusal::OverQuota => ReceiveProblem::OverQuota(own()),
            Refusal::NoSpace => ReceiveProblem::NoSpace,
            Refusal::Busy => ReceiveProblem::Busy(own()),
            why => ReceiveProblem::Failed(DatasetError::Refused { name: of, why }.to_string()),
        },
        other => ReceiveProblem::Failed(other.to_string()),
    }
}

pub(super) fn of_engine(error: Error, name: &str) -> ReceiveProblem {
    match error {
        Error::Dataset(error) => of_dataset(error, name),
        other => ReceiveProblem::Failed(other.to_string()),
    }
}

/// The name of the dataset above.
pub(super) fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(parent, _)| parent)
}
