use millpond_object::ObjectError;
use millpond_ondisk::DecodeError;
use millpond_pool::PoolError;
use millpond_zap::ZapError;

/// Why a dataset could not be found or opened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// No dataset has this name.
    #[error("'{name}': dataset does not exist")]
    NotFound {
        /// The full name asked for.
        name: String,
    },
    /// The name breaks the rules for names.
    #[error("'{name}': {reason}")]
    InvalidName {
        /// The name asked for.
        name: String,
        /// Which rule.
        reason: &'static str,
    },
    /// An object of the dataset layer could not be read.
    #[error("{name}: {error}")]
    Object {
        /// The dataset concerned.
        name: String,
        /// What went wrong.
        error: ObjectError,
    },
    /// A table of the dataset layer could not be read.
    #[error("{name}: {error}")]
    Zap {
        /// The dataset concerned.
        name: String,
        /// What went wrong.
        error: ZapError,
    },
    /// A structure of the dataset layer cannot be what a correct writer wrote.
    #[error("{name}: {error}")]
    Invalid {
        /// The dataset concerned.
        name: String,
        /// What is wrong.
        error: DecodeError,
    },
    /// The pool could not serve the request.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The dataset is encrypted and its key is not loaded.
    #[error("'{name}': encryption key not loaded")]
    Locked {
        /// The dataset concerned.
        name: String,
    },
    /// What was asked for is not done; nothing has changed.
    #[error("'{name}': {why}")]
    Refused {
        /// The dataset concerned.
        name: String,
        /// Why.
        why: Refusal,
    },
    /// A property cannot be given this value.
    #[error("'{name}': '{property}' {reason}")]
    InvalidProperty {
        /// The dataset concerned.
        name: String,
        /// The property.
        property: String,
        /// Why, in the words users know.
        reason: String,
    },
    /// The key given does not unlock the dataset.
    #[error("Key load error: {reason}")]
    Key {
        /// The dataset concerned.
        name: String,
        /// Why, in the words users know.
        reason: String,
    },
}

/// A text of the program's own.
pub type Words = &'static str;

/// Why a change of datasets is refused. The two variants with texts of our own do not travel between
/// programs: whoever sends one sends its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Refusal {
    /// The name is taken.
    #[error("dataset already exists")]
    Exists,
    /// The directory above does not exist.
    #[error("parent does not exist")]
    NoParent,
    /// Volumes have no children.
    #[error("parent is not a filesystem")]
    ParentIsVolume,
    /// The name has too many components.
    #[error("maximum name nesting depth exceeded")]
    TooDeep,
    /// The name would be too long, its own or that of something below.
    #[error("dataset name is too long")]
    NameTooLong,
    /// It is open, or changes at this moment.
    #[error("dataset is busy")]
    Busy,
    /// There are datasets below it.
    #[error("filesystem has children")]
    HasChildren,
    /// It has snapshots.
    #[error("filesystem has snapshots")]
    HasSnapshots,
    /// Clones were made of it.
    #[error("snapshot is cloned")]
    HasClones,
    /// Somebody holds it.
    #[error("it's being held")]
    IsHeld,
    /// The root of a pool goes with its pool only.
    #[error("operation does not apply to pools")]
    IsRoot,
    /// Two snapshots of one dataset in one request.
    #[error("multiple snapshots of same fs not allowed")]
    SameDatasetTwice,
    /// Only clones can be promoted.
    #[error("not a cloned filesystem")]
    NotAClone,
    /// Both datasets have a snapshot of this name.
    #[error("conflicting snapshot '{0}'")]
    SnapshotExists(String),
    /// Both datasets have a bookmark of this name, or one of this name exists.
    #[error("bookmark exists")]
    BookmarkExists(String),
    /// The bookmark's snapshot is not in the past of its dataset.
    #[error("source is not an ancestor of the new bookmark's dataset")]
    NotAnAncestor,
    /// It is no longer the latest.
    #[error("more recent snapshots or bookmarks exist")]
    NotTheLatest,
    /// A hold with this tag is there.
    #[error("tag already exists on this dataset")]
    TagExists,
    /// There is no hold with this tag.
    #[error("no such tag on this dataset")]
    NoSuchTag,
    /// Tags have at most 255 bytes.
    #[error("tag too long")]
    TagTooLong,
    /// It would lie in itself.
    #[error("New dataset name cannot be a descendant of current dataset name")]
    WithinItself,
    /// Pools do not exchange datasets by renaming.
    #[error("datasets must be within same pool")]
    OtherPool,
    /// Snapshots keep their dataset.
    #[error("snapshots must be part of same dataset")]
    OtherDataset,
    /// It is only partly received.
    #[error("dataset is inconsistent")]
    Inconsistent,
    /// A limit on file systems or snapshots is reached.
    #[error("out of space")]
    LimitReached,
    /// A quota is used up.
    #[error("disk quota exceeded")]
    OverQuota,
    /// The pool is full.
    #[error("out of space")]
    NoSpace,
    /// A quota below what is in use.
    #[error("size is less than current used or reserved space")]
    BelowUse,
    /// A reservation above what there is.
    #[error("size is greater than available space")]
    AboveAvailable,
    /// The dataset or its settings forbid it.
    #[error("permission denied")]
    NotPermitted,
    /// A feature of the pool is not enabled.
    #[error("pool must be upgraded to do this")]
    FeatureDisabled,
    /// Not a change that makes sense.
    #[error("{0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Invalid(Words),
    /// Not built yet.
    #[error("{0}: not supported yet")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Unsupported(Words),
}

impl Refusal {
    pub(crate) fn error(name: &str, why: Refusal) -> DatasetError {
        DatasetError::Refused {
            name: name.to_owned(),
            why,
        }
    }
}

/// Attaches a dataset's name to errors from below.
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
