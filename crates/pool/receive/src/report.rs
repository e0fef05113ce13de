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
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReceiveProblem {
    /// The caller may not do this.
    Denied,
    /// The input ends before a stream begins.
    NoStream,
    /// The input is no stream.
    BadMagic,
    /// The stream does not name a snapshot.
    BadName,
    /// The list at the beginning of a package cannot be read.
    BadList,
    /// The stream has features that are not known. With all its features, and those that are unknown, as bits.
    UnknownFeatures(u64, u64),
    /// The stream was deduplicated.
    Deduplicated,
    /// A snapshot was named, and the package has several.
    SeveralSnapshots,
    /// There is no such dataset to receive below.
    NoBase(String),
    /// The parent of the new dataset does not exist.
    NoParent(String),
    /// The parent of the new dataset is a volume.
    ParentIsVolume(String),
    /// The dataset of an incremental stream does not exist.
    NoDestination(String),
    /// The dataset exists, and replacing it was not asked for.
    Exists(String),
    /// The dataset to replace has snapshots, for example the second one.
    HasSnapshots(String, String),
    /// The dataset to replace is a clone.
    IsClone(String),
    /// A volume cannot replace a file system with children, for example the second one.
    HasChildren(String, String),
    /// A volume cannot replace the dataset of the pool.
    IsRoot(String),
    /// The dataset to replace is encrypted, or would be.
    EncryptionReplaced,
    /// The snapshot that a clone begins with is not here.
    NoOrigin(String),
    /// The given snapshot for a clone to begin with does not exist.
    NoGivenOrigin(String),
    /// The dataset does not have the older snapshot.
    NoSource(String),
    /// The dataset has changed since the older snapshot.
    Modified(String),
    /// The snapshot of this full name exists, and is another one.
    SnapshotExists(String),
    /// The dataset has an unfinished receive.
    PartlyReceived(String),
    /// The dataset has large blocks, and the stream splits them.
    NeedsLargeBlocks,
    /// The pool lacks a feature.
    FeatureDisabled,
    /// Blocks in pointers cannot be received into an encrypted dataset.
    EmbeddedEncrypted,
    /// The key of an encrypted dataset is not loaded.
    Locked,
    /// The dataset's quota does not hold it.
    OverQuota(String),
    /// The pool is full.
    NoSpace,
    /// A record is not valid. The text says which.
    Invalid(String),
    /// A checksum is wrong.
    Checksum,
    /// The input ends within the stream.
    Truncated,
    /// A resumable receive was interrupted. With the token for resuming it.
    Interrupted(String),
    /// There is nothing to resume, or the stream continues another receive.
    NotResumable(String),
    /// The file system is in use at this mount point. The text says why.
    Mounted(String, String),
    /// The dataset is in use.
    Busy(String),
    /// It is not received yet.
    Unsupported(String),
    /// A property cannot be set. The text says why.
    Property(String),
    /// The text says why.
    Failed(String),
}
