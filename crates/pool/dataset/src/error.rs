use millpond_block::BlockError;
use millpond_object::ObjectError;
use millpond_ondisk::DecodeError;
use millpond_pool::PoolError;
use millpond_zap::ZapError;

/// Why a dataset could not be found or opened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// There is no dataset with this name.
    #[error("'{name}': dataset does not exist")]
    NotFound {
        /// The requested full name.
        name: String,
    },
    /// The name violates the naming rules.
    #[error("'{name}': {reason}")]
    InvalidName {
        /// The requested name.
        name: String,
        /// The violated rule.
        reason: &'static str,
    },
    /// An object of the dataset layer could not be read.
    #[error("{name}: {error}")]
    Object {
        /// The affected dataset.
        name: String,
        /// The underlying error.
        error: ObjectError,
    },
    /// A table of the dataset layer could not be read.
    #[error("{name}: {error}")]
    Zap {
        /// The affected dataset.
        name: String,
        /// The underlying error.
        error: ZapError,
    },
    /// A structure of the dataset layer is invalid: no correct writer produces it.
    #[error("{name}: {error}")]
    Invalid {
        /// The affected dataset.
        name: String,
        /// The underlying error.
        error: DecodeError,
    },
    /// The pool returned an error.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The dataset is encrypted and its key is not loaded.
    #[error("'{name}': encryption key not loaded")]
    Locked {
        /// The affected dataset.
        name: String,
    },
    /// The dataset's key has a version that is only read.
    #[error(
        "'{name}': it was encrypted by an early release and cannot be written (errata 3); copy it with 'zfs send' into a new dataset"
    )]
    OldKey {
        /// The affected dataset.
        name: String,
    },
    /// The request was refused; nothing has changed.
    #[error("'{name}': {why}")]
    Refused {
        /// The affected dataset.
        name: String,
        /// The reason.
        why: Refusal,
    },
    /// The value is invalid for the property.
    #[error("'{name}': '{property}' {reason}")]
    InvalidProperty {
        /// The affected dataset.
        name: String,
        /// The property.
        property: String,
        /// The reason, as text for the user.
        reason: String,
    },
    /// The key does not unlock the dataset.
    #[error("Key load error: {reason}")]
    Key {
        /// The affected dataset.
        name: String,
        /// The reason, as text for the user.
        reason: String,
    },
}

impl DatasetError {
    /// Whether devices were missing or did not answer. A retry may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        match self {
            Self::Object { error, .. } => error.needs_devices(),
            Self::Zap { error, .. } => error.needs_devices(),
            Self::Pool(error) => error.needs_devices(),
            _ => false,
        }
    }
    /// Whether a block of the dataset has no right copy.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        let Self::Object { error, .. } = self else {
            return false;
        };
        matches!(error, ObjectError::Block(BlockError::Corrupt { .. }))
    }
    /// Whether loading the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Locked { .. } => true,
            Self::Object { error, .. } => error.is_locked(),
            Self::Zap { error, .. } => error.is_locked(),
            _ => false,
        }
    }
}

/// A static text of this program.
pub type Words = &'static str;

/// Why a change of datasets was refused.
///
/// The two variants with static texts cannot be deserialized by another program; send their text instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Refusal {
    /// The name already exists.
    #[error("dataset already exists")]
    Exists,
    /// The parent directory does not exist.
    #[error("parent does not exist")]
    NoParent,
    /// Volumes have no children.
    #[error("parent is not a filesystem")]
    ParentIsVolume,
    /// The name has too many components.
    #[error("maximum name nesting depth exceeded")]
    TooDeep,
    /// The name or the name of a descendant would be too long.
    #[error("dataset name is too long")]
    NameTooLong,
    /// It is open or being changed.
    #[error("dataset is busy")]
    Busy,
    /// It has child datasets.
    #[error("filesystem has children")]
    HasChildren,
    /// It has snapshots.
    #[error("filesystem has snapshots")]
    HasSnapshots,
    /// It has clones.
    #[error("snapshot is cloned")]
    HasClones,
    /// It has holds.
    #[error("it's being held")]
    IsHeld,
    /// The root dataset can be destroyed only with its pool.
    #[error("operation does not apply to pools")]
    IsRoot,
    /// The request names two snapshots of one dataset.
    #[error("multiple snapshots of same fs not allowed")]
    SameDatasetTwice,
    /// Only clones can be promoted.
    #[error("not a cloned filesystem")]
    NotAClone,
    /// Both datasets have a snapshot of this name.
    #[error("conflicting snapshot '{0}'")]
    SnapshotExists(String),
    /// Both datasets have a bookmark of this name, or the bookmark already exists.
    #[error("bookmark exists")]
    BookmarkExists(String),
    /// The bookmark's snapshot is not an ancestor of the dataset.
    #[error("source is not an ancestor of the new bookmark's dataset")]
    NotAnAncestor,
    /// The snapshot is not the latest one.
    #[error("more recent snapshots or bookmarks exist")]
    NotTheLatest,
    /// A hold with this tag already exists.
    #[error("tag already exists on this dataset")]
    TagExists,
    /// There is no hold with this tag.
    #[error("no such tag on this dataset")]
    NoSuchTag,
    /// The tag is longer than 255 bytes.
    #[error("tag too long")]
    TagTooLong,
    /// The dataset would become its own descendant.
    #[error("New dataset name cannot be a descendant of current dataset name")]
    WithinItself,
    /// A rename cannot move a dataset to another pool.
    #[error("datasets must be within same pool")]
    OtherPool,
    /// A rename cannot move a snapshot to another dataset.
    #[error("snapshots must be part of same dataset")]
    OtherDataset,
    /// It is incomplete because a receive was interrupted.
    #[error("dataset is inconsistent")]
    Inconsistent,
    /// It was partly received, and that can be resumed or is still under way.
    #[error("contains partially-complete state from \"zfs receive -s\"")]
    PartlyReceived,
    /// It holds no interrupted receive, or that of another stream.
    #[error("does not have any resumable receive state")]
    NotResumable,
    /// A continued full receive would replace it, and that was not asked for.
    #[error("exists, and only a forced receive replaces it")]
    ResumeReplaces,
    /// The snapshot that a stream is a change of does not exist here.
    #[error("most recent snapshot does not match incremental source")]
    NoSource,
    /// It has changed since the snapshot that a stream is a change of.
    #[error("has been modified since most recent snapshot")]
    Modified,
    /// It has large blocks, which the stream splits.
    #[error("incremental send stream requires -L (--large-block), to match previous receive.")]
    NeedsLargeBlocks,
    /// A redaction list is not complete.
    #[error("its redaction list is not complete: destroy the bookmark and run 'zfs redact' again")]
    UnfinishedList,
    /// A redaction list would be too long.
    #[error("more than 1048576 ranges of blocks are not listed")]
    LongList,
    /// More snapshots are named than a redacted dataset can list.
    #[error("a dataset can be redacted with respect to at most 1024 snapshots")]
    ManyRedactionSnapshots,
    /// The older snapshot lacks redacted blocks that the stream does not have either.
    #[error(
        "the older snapshot is redacted, and the stream does not have what it lacks: send one that is redacted with respect to the same snapshots, or from the redaction bookmark"
    )]
    RedactedOtherwise,
    /// A clone cannot be replaced by a full stream.
    #[error("is a clone")]
    IsClone,
    /// An encrypted dataset cannot be replaced by a full stream.
    #[error(
        "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an encrypted one"
    )]
    EncryptionReplaced,
    /// A raw stream is a change of a dataset that is not encrypted here.
    #[error("cannot perform raw receive on top of existing unencrypted dataset")]
    RawOntoPlain,
    /// A raw stream is a change of a dataset with another key.
    #[error("encryption key does not match existing key")]
    OtherKey,
    /// The older snapshot of a raw stream has no IV set guid, here or at the sender.
    #[error(
        "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER."
    )]
    IvSetMissing,
    /// The blocks of the older snapshot of a raw stream are encrypted in another way here.
    #[error(
        "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw encrypted send streams."
    )]
    IvSetMismatch,
    /// A limit on file systems or snapshots is reached.
    #[error("out of space")]
    LimitReached,
    /// A quota is used up.
    #[error("disk quota exceeded")]
    OverQuota,
    /// The pool is full.
    #[error("out of space")]
    NoSpace,
    /// The quota is below the space in use.
    #[error("size is less than current used or reserved space")]
    BelowUse,
    /// The reservation exceeds the available space.
    #[error("size is greater than available space")]
    AboveAvailable,
    /// The dataset or its settings do not permit it.
    #[error("permission denied")]
    NotPermitted,
    /// No permission has this name.
    #[error("operation not applicable to datasets of this type")]
    NoSuchPermission,
    /// A required feature of the pool is not enabled.
    #[error("pool must be upgraded to do this")]
    FeatureDisabled,
    /// The pool's version is too low.
    #[error("pool must be upgraded")]
    OldPool,
    /// The pool's version is too low for snapshots that are destroyed later.
    #[error("unsupported version or feature")]
    NeverLater,
    /// Its key or encryption root does not permit it.
    #[error(transparent)]
    Key(KeyRefusal),
    /// The request is invalid.
    #[error("{0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Invalid(Words),
    /// Not implemented yet.
    #[error("{0}: not supported yet")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Unsupported(Words),
}

/// Why a change was refused because of keys or encryption roots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum KeyRefusal {
    /// A key was given for a dataset that is not to be encrypted.
    #[error("Encryption must be turned on to set encryption properties.")]
    EncryptionOff,
    /// A new encryption root needs a key format.
    #[error("Keyformat required for new encryption root.")]
    NoKeyFormat,
    /// Only passphrases are derived in rounds.
    #[error("Cannot specify pbkdf2iters with a non-passphrase keyformat.")]
    IterationsOfOtherFormat,
    /// The pool lacks a feature.
    #[error("Encryption feature not enabled.")]
    FeatureDisabled,
    /// The key that wraps the new dataset's key is unknown.
    #[error("encryption root's key is not loaded or provided")]
    RootKeyMissing,
    /// Only encryption roots have a key location.
    #[error("keylocation may only be set on encryption roots")]
    LocationOfRootOnly,
    /// A dataset that inherits its key stays below its encryption root.
    #[error("cannot move encrypted child outside of its encryption root")]
    MovedOutside,
    /// A clone that inherits its key stays below its encryption root.
    #[error("cannot promote dataset outside its encryption root")]
    PromotedOutside,
    /// The keys of other datasets are wrapped with its key. Some of them are named.
    #[error(
        "it is the encryption root of {0}, which could not be opened without it: run 'zfs change-key' for these datasets first"
    )]
    RootOfOthers(String),
    /// Clones share the key of their origin.
    #[error("Encryption properties must inherit from origin dataset.")]
    OfOrigin,
    /// There is no key to change.
    #[error("Dataset not encrypted.")]
    NotEncrypted,
    /// Clones share the key of their origin, where it is changed.
    #[error("Keys cannot be changed on clones.")]
    OfClone,
    /// The present key is unknown.
    #[error("Key must be loaded.")]
    KeyMissing,
    /// There is nothing to inherit.
    #[error("Parent must be encrypted.")]
    ParentNotEncrypted,
    /// The key to inherit is unknown.
    #[error("Parent key must be loaded.")]
    ParentKeyMissing,
    /// The root dataset of a pool has no parent.
    #[error("Root dataset cannot inherit key.")]
    PoolRoot,
    /// It inherits already.
    #[error("Key inheritting can only be performed on encryption roots.")]
    NotARoot,
    /// The key itself is not usable.
    #[error("{0}")]
    Crypt(String),
}

impl Refusal {
    pub(crate) fn error(name: &str, why: Refusal) -> DatasetError {
        DatasetError::Refused {
            name: name.to_owned(),
            why,
        }
    }
}

/// Adds a dataset's name to a lower-level error.
pub(crate) trait Named<T> {
    fn named(self, name: &str) -> Result<T, DatasetError>;
}

impl<T> Named<T> for Result<T, ObjectError> {
    fn named(self, name: &str) -> Result<T, DatasetError> {
        self.map_err(|error| {
            if error.is_locked() {
                DatasetError::Locked {
                    name: name.to_owned(),
                }
            } else {
                DatasetError::Object {
                    name: name.to_owned(),
                    error,
                }
            }
        })
    }
}

impl<T> Named<T> for Result<T, ZapError> {
    fn named(self, name: &str) -> Result<T, DatasetError> {
        self.map_err(|error| DatasetError::Zap {
            name: name.to_owned(),
            error,
        })
    }
}

impl<T> Named<T> for Result<T, DecodeError> {
    fn named(self, name: &str) -> Result<T, DatasetError> {
        self.map_err(|error| DatasetError::Invalid {
            name: name.to_owned(),
            error,
        })
    }
}
