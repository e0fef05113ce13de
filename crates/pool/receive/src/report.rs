//! What a receive did, and why it went no further, as plain data.

/// What kind of stream a failure concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IncomingKind {
    /// It is not known yet.
    #[default]
    Unknown,
    /// It makes a new file system or volume.
    New,
    /// It changes an existing one.
    Incremental,
    /// It continues an interrupted one.
    Resuming,
}

/// One step of a receive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReceiveStep {
    /// The snapshot that a clone begins with was found here.
    FoundOrigin {
        /// Its full name.
        name: String,
    },
    /// A stream was begun.
    Stream {
        /// Whether it is full.
        is_full: bool,
        /// The full name of the snapshot at the sender.
        sent_name: String,
        /// Its full name here.
        name: String,
        /// The length of the stream without the header of its beginning, in bytes; `None` if it was not received to
        /// its end.
        bytes: Option<u64>,
        /// How long it took, in nanoseconds.
        time_ns: u64,
    },
    /// Damaged blocks of a snapshot were repaired with its stream.
    Repaired {
        /// Its full name here.
        name: String,
        /// How many blocks.
        blocks: u64,
        /// Their stored bytes.
        bytes: u64,
    },
    /// The snapshot exists here already.
    Present {
        /// Its full name here.
        name: String,
    },
    /// A property of a package was not taken over.
    PropertyRefused {
        /// The file system or volume.
        dataset: String,
        /// The property.
        property: String,
        /// Why.
        reason: String,
    },
    /// A snapshot or dataset that the sender does not have was destroyed.
    Destroyed {
        /// Its full name.
        name: String,
        /// Whether it is gone.
        is_done: bool,
    },
    /// A clone was promoted, as at the sender.
    Promoted {
        /// Its full name.
        name: String,
        /// Whether it was possible.
        is_done: bool,
    },
    /// A snapshot or dataset got the name that it has at the sender.
    Renamed {
        /// Its old full name.
        from: String,
        /// Its new full name.
        to: String,
        /// Whether it was possible.
        is_done: bool,
    },
}

/// Why a receive went no further.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReceiveFailure {
    /// The kind of stream.
    pub kind: IncomingKind,
    /// Why.
    pub problem: ReceiveProblem,
}

/// Why a stream cannot be received.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReceiveProblem {
    /// The caller may not do this.
    #[error("permission denied")]
    Denied,
    /// The input ends before a stream begins.
    #[error("the input ends before a stream begins")]
    NoStream,
    /// The input is no stream.
    #[error("the input is no stream")]
    BadMagic,
    /// The stream does not name a snapshot, or one that its package is not about.
    #[error("the stream names no snapshot, or one that its package is not about")]
    BadName,
    /// The list at the beginning of a package cannot be read.
    #[error("the list at the beginning of the package cannot be read")]
    BadList,
    /// The stream has features that are not known. With all its features, and those that are unknown, as bits.
    #[error("the stream has unknown features: {1:#x} of {0:#x}")]
    UnknownFeatures(u64, u64),
    /// The stream was deduplicated.
    #[error("the stream was deduplicated; 'zstream redup' makes one that can be received")]
    Deduplicated,
    /// A snapshot was named, and the package has several.
    #[error("a snapshot was named, and the package has several")]
    SeveralSnapshots,
    /// There is no snapshot of this full name to repair.
    #[error("'{0}' does not exist, and only a snapshot that is here can be repaired")]
    NoSnapshotToRepair(String),
    /// The snapshot to repair is another one than that of the stream.
    #[error("the snapshot here is not that of the stream")]
    OtherSnapshot,
    /// Damaged blocks could not be repaired.
    #[error("{blocks} damaged blocks of '{name}' could not be repaired with this stream")]
    NotRepaired {
        /// The full name of the snapshot.
        name: String,
        /// How many blocks.
        blocks: u64,
    },
    /// There is no such dataset to receive below.
    #[error("'{0}' does not exist")]
    NoBase(String),
    /// The parent of the new dataset does not exist.
    #[error("the parent '{0}' does not exist")]
    NoParent(String),
    /// The parent of the new dataset is a volume.
    #[error("the parent '{0}' is a volume")]
    ParentIsVolume(String),
    /// The dataset of an incremental stream does not exist.
    #[error("'{0}' does not exist, and the stream is only a change of it")]
    NoDestination(String),
    /// The dataset exists, and replacing it was not asked for.
    #[error("'{0}' exists")]
    Exists(String),
    /// The dataset exists, and the receive that continues was to replace it.
    #[error("'{0}' exists, and the interrupted receive was to replace it: force this one too")]
    ResumeReplaces(String),
    /// The dataset to replace has snapshots, for example the second one.
    #[error("'{0}' has snapshots, such as '{1}': destroy them first")]
    HasSnapshots(String, String),
    /// The dataset to replace is a clone.
    #[error("'{0}' is a clone: destroy it first")]
    IsClone(String),
    /// A volume cannot replace a file system with children, for example the second one.
    #[error("'{0}' has children, such as '{1}', and a volume has none")]
    HasChildren(String, String),
    /// A volume cannot replace the dataset of the pool.
    #[error("'{0}' is the dataset of the pool, and no volume")]
    IsRoot(String),
    /// The dataset to replace is encrypted, or would be.
    #[error("an encrypted dataset cannot be replaced by a full stream")]
    EncryptionReplaced,
    /// A raw stream is a change of a dataset that is not encrypted here.
    #[error("a raw stream cannot change a dataset that is not encrypted")]
    RawOntoPlain,
    /// A raw stream is a change of a dataset with another key.
    #[error("the dataset has another key than the raw stream")]
    OtherKey,
    /// The older snapshot of a raw stream has no IV set guid, here or at the sender.
    #[error("the older snapshot of the raw stream has no IV set guid")]
    IvSetMissing,
    /// The older snapshot of a raw stream was not received raw here.
    #[error("the older snapshot of the raw stream has other IVs here: it was not received raw")]
    IvSetMismatch,
    /// A raw stream brings this property itself.
    #[error("'{0}' cannot be set or excluded for a raw stream")]
    RawProperty(String),
    /// The snapshot that a clone begins with is not here.
    #[error("the snapshot that the clone '{0}' begins with is not here")]
    NoOrigin(String),
    /// The given snapshot for a clone to begin with does not exist.
    #[error("'{0}' does not exist, and the clone is to begin with it")]
    NoGivenOrigin(String),
    /// The dataset does not have the older snapshot.
    #[error("'{0}' does not have the snapshot that the stream is a change of")]
    NoSource(String),
    /// The dataset has changed since the older snapshot.
    #[error("'{0}' has changed since the snapshot that the stream is a change of")]
    Modified(String),
    /// The snapshot of this full name exists, and is another one.
    #[error("'{0}' exists, and is another snapshot")]
    SnapshotExists(String),
    /// The dataset has an unfinished receive.
    #[error("'{0}' has an unfinished receive: resume it or give it up")]
    PartlyReceived(String),
    /// The dataset has large blocks, and the stream splits them.
    #[error("the dataset has large blocks: send the stream with them")]
    NeedsLargeBlocks,
    /// The pool lacks a feature.
    #[error("the pool lacks a feature of the stream: upgrade it")]
    FeatureDisabled,
    /// Blocks in pointers cannot be received into an encrypted dataset.
    #[error(
        "blocks in pointers cannot be received into an encrypted dataset: send the stream without them"
    )]
    EmbeddedEncrypted,
    /// The key of an encrypted dataset is not loaded.
    #[error("the key of the encrypted dataset is not loaded")]
    Locked,
    /// The dataset's quota does not hold it.
    #[error("the quota of '{0}' does not hold it")]
    OverQuota(String),
    /// The pool is full.
    #[error("the pool is full")]
    NoSpace,
    /// A record is not valid. The text says which.
    #[error("{0}")]
    Invalid(String),
    /// A checksum is wrong.
    #[error("a checksum of the stream is wrong")]
    Checksum,
    /// The input ends within the stream.
    #[error("the stream is incomplete")]
    Truncated,
    /// A resumable receive was interrupted. With the token for resuming it.
    #[error(
        "the stream is incomplete or damaged; what was received is kept, and a stream for the token {0} continues"
    )]
    Interrupted(String),
    /// There is nothing to resume, or the stream continues another receive.
    #[error("'{0}' has no interrupted receive that this stream continues")]
    NotResumable(String),
    /// The file system is in use at this mount point. The text says why.
    #[error("'{0}' is in use: {1}")]
    Mounted(String, String),
    /// The dataset is in use.
    #[error("'{0}' is in use")]
    Busy(String),
    /// It is not received yet.
    #[error("{0} are not received yet")]
    Unsupported(String),
    /// A property cannot be set. The text says why.
    #[error("{0}")]
    Property(String),
    /// The text says why.
    #[error("{0}")]
    Failed(String),
}
