//! Send streams.

/// A stream to send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SendStream {
    /// The full name of the snapshot, or of a file system or volume.
    pub name: String,
    /// The full name of the older snapshot or bookmark that the reader of the stream has already.
    pub from: Option<String>,
    /// Whether the snapshots between the older one and this are sent too.
    pub has_between: bool,
    /// Whether what an interrupted receive left is sent.
    pub is_unfinished: bool,
    /// Blocks of more than 128 KiB are not split.
    pub large_blocks: bool,
    /// Blocks that a pointer holds are sent as such.
    pub embedded: bool,
    /// Compressed blocks are sent compressed.
    pub compressed: bool,
    /// Blocks of encrypted datasets are sent as they are stored.
    pub raw: bool,
    /// What a package has beside its streams.
    pub package: SendPackage,
    /// The full name of the redaction bookmark whose blocks are left out.
    pub redaction: Option<String>,
    /// The object and the offset in it from which an interrupted stream continues.
    pub resume: Option<(u64, u64)>,
    /// The bytes of the interrupted streams.
    pub received_bytes: u64,
    /// The guids of the snapshot and of the older one of an interrupted stream; 0 if everything is sent.
    pub guids: Option<(u64, u64)>,
    /// The guids of the snapshots with respect to which an interrupted stream is redacted.
    pub redacted: Vec<u64>,
    /// The guids of those with respect to which its older snapshot is redacted at its reader.
    pub redacted_from: Vec<u64>,
}

/// What a package has beside its streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SendPackage {
    /// The datasets below are sent too, with all their snapshots.
    pub is_recursive: bool,
    /// Properties are sent.
    pub has_properties: bool,
    /// Only received values of properties are sent.
    pub only_received: bool,
    /// Holds are sent.
    pub has_holds: bool,
    /// Datasets without the snapshot are left out, with those below them.
    pub skips_missing: bool,
    /// Full names of datasets that are left out, with those below them.
    pub excluded: Vec<String>,
}

/// The streams that a request leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SendPlan {
    /// The streams in order.
    pub steps: Vec<SendStep>,
    /// The full names of datasets that are left out, because they lack the snapshot.
    pub skipped: Vec<String>,
}

/// One of the streams that a request leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SendStep {
    /// The full name of the snapshot.
    pub name: String,
    /// The full name of the older snapshot or bookmark.
    pub from: Option<String>,
    /// The length of the stream in bytes, roughly; `None` if it cannot be told before the stream is written.
    pub bytes: Option<u64>,
}

/// Why a stream was not sent, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SendProblem {
    /// The caller may not do this.
    Denied,
    /// There is no such dataset.
    NoDataset,
    /// The dataset has no partly received state.
    NotPartlyReceived,
    /// There is no such older snapshot or bookmark.
    NoSource,
    /// The dataset is encrypted, and its key is not loaded.
    Locked,
    /// The snapshot of an interrupted stream is another one now.
    Replaced,
    /// The older snapshot of an interrupted stream, with this guid, is gone.
    SourceGone(u64),
    /// There is no such redaction bookmark.
    NoRedactionBookmark,
    /// The older snapshot is not one that the newer one descends from.
    NotEarlier,
    /// A package is about a snapshot, and another dataset was named.
    NotSnapshot,
    /// A dataset below lacks the snapshot: its full name, and the name after the `@`.
    MissingSnapshot(String, String),
    /// The encrypted dataset of this name would be sent with properties, and not raw.
    EncryptedProperties(String),
    /// The file system is mounted, so it changes. A snapshot of it can be sent.
    Mounted,
    /// The reader of the stream is gone.
    NoReader,
    /// The text says why.
    Failed(String),
}
