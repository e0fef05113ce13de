//! Why a snapshot cannot be sent.

use millpond_block::BlockError;
use millpond_dataset::DatasetError;
use millpond_env::sync::Arc;
use millpond_object::ObjectError;
use millpond_ondisk::{Guid, ObjectId};

/// Why a stream was not written, or not to its end.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The dataset cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Its object set cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A block cannot be read. The stream ends before it.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The reader of the stream is gone, or its device is full.
    #[error("the stream cannot be written: {0}")]
    Output(Arc<std::io::Error>),
    /// An object or block contradicts the object set that holds it.
    #[error("object {object} cannot be sent: {reason}")]
    Invalid {
        /// The object.
        object: ObjectId,
        /// What is wrong.
        reason: String,
    },
    /// The older snapshot is not one that the newer one descends from.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier,
    /// A package was asked for, and no snapshot was named.
    #[error("a package is about a snapshot")]
    NotSnapshot,
    /// A dataset of a recursive package lacks the snapshot.
    #[error("snapshot {dataset}@{snapshot} does not exist")]
    MissingSnapshot {
        /// The full name of the dataset.
        dataset: String,
        /// The name after the `@`.
        snapshot: String,
    },
    /// An encrypted dataset would be sent with properties, and not as it is stored.
    #[error("encrypted dataset {0} may not be sent with properties without the raw flag")]
    EncryptedProperties(String),
    /// A dataset of a recursive package is a clone of one below it, so neither can be received first.
    #[error("'{0}' is a clone of a dataset that must come after it: send the datasets one by one")]
    OriginBelow(String),
    /// The bookmark with this full name has no usable redaction list of the snapshot.
    #[error(
        "'{0}' is not a redaction bookmark of the snapshot, or not a complete one: make one with 'zfs redact'"
    )]
    NoRedactionList(String),
    /// The redaction bookmark of the snapshot of an interrupted stream does not exist any more.
    #[error(
        "the redaction bookmark of '{0}' that the interrupted stream was made with is gone: receive it again without -s"
    )]
    RedactionGone(String),
    /// Only one plain stream of a dataset that is whole can be redacted.
    #[error(
        "neither a package nor a raw stream nor a dataset that is redacted already can be redacted"
    )]
    NotRedactable,
    /// The first snapshot is not one of a clone of the second, which is to be redacted.
    #[error("'{0}' is not a descendent of snapshot '{1}': redaction takes snapshots of its clones")]
    NotOfClone(String, String),
    /// The dataset has no partly received state.
    #[error("'{0}' has no partly received state")]
    NotPartlyReceived(String),
    /// The partly received state is that of a raw stream.
    #[error("the partly received state of a raw stream is not sent yet: complete it first")]
    PartlyReceivedRaw,
    /// The snapshot of an interrupted stream is another one now.
    #[error("no longer the same snapshot used in the initial send")]
    Replaced,
    /// The older snapshot of an interrupted stream, with this guid, is gone.
    #[error("incremental source {:#x} no longer exists", .0.0)]
    SourceGone(Guid),
    /// The dataset is encrypted, and its key is not loaded.
    #[error("dataset key must be loaded")]
    Locked,
    /// A raw stream was asked for, and the key object is one of the first releases.
    #[error(
        "its key has the form of an old release, which no raw stream can have: send it without -w"
    )]
    OldKey,
    /// It has small tables of more than 128 KiB, and large blocks were not permitted.
    #[error(
        "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream"
    )]
    LargeMicroZap,
    /// It is no snapshot, and the pool needs the space of what was freed since the send began.
    #[error("what is sent has changed meanwhile; send a snapshot of it")]
    Expired,
}

impl From<std::io::Error> for SendError {
    fn from(error: std::io::Error) -> Self {
        Self::Output(Arc::new(error))
    }
}
