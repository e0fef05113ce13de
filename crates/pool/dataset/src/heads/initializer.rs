//! Interface for creating the first objects of new datasets, which upper layers implement.

use millpond_env::sync::Arc;
use millpond_object::ObjectSet;
use millpond_ondisk::{DslDatasetFlags, ObjectSetKind};
use millpond_txg::Transaction;
use std::error::Error;

/// The version of new file systems without the property `version`.
pub(crate) const FILE_SYSTEM_VERSION: u64 = 5;

/// The permanent choices of a new file system or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewContents {
    /// A file system.
    FileSystem(NewFileSystem),
    /// A volume.
    Volume {
        /// Its size in bytes, a multiple of the block size.
        size_bytes: u64,
        /// Block size in bytes, a power of two from 512.
        block_bytes: u32,
    },
}

/// The choices of a new file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFileSystem {
    /// The file system version, 1 to 5.
    pub version: u64,
    /// 0 none, 0x10 form D, 0x20 form KD, 0x50 form C, 0x60 form KC.
    pub normalization: u64,
    /// Whether names that are not UTF-8 are rejected.
    pub is_utf8_only: bool,
    /// 0 sensitive, 1 insensitive, 2 mixed.
    pub case_sensitivity: u64,
    /// Whether the root directory and new files have project ids. False for the root of a new pool.
    pub has_projects: bool,
    /// Default quotas of users, groups and projects, in bytes, then in objects, as OpenZFS 2.4 stores them.
    /// `None`: not stored.
    pub default_quotas: Option<[u64; 6]>,
    /// uid and gid of the root directory's owner.
    pub owner: (u32, u32),
}

impl Default for NewFileSystem {
    fn default() -> Self {
        Self {
            version: FILE_SYSTEM_VERSION,
            normalization: 0,
            is_utf8_only: false,
            case_sensitivity: 0,
            has_projects: false,
            default_quotas: None,
            owner: (0, 0),
        }
    }
}

impl NewContents {
    /// The kind of the object set.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        match self {
            Self::FileSystem(_) => ObjectSetKind::FileSystem,
            Self::Volume { .. } => ObjectSetKind::Volume,
        }
    }
    /// Initial dataset flags for these contents.
    pub(crate) fn dataset_flags(&self) -> DslDatasetFlags {
        match self {
            Self::FileSystem(new) if new.case_sensitivity == 1 => DslDatasetFlags::CASE_INSENSITIVE,
            _ => DslDatasetFlags::default(),
        }
    }
}

/// Creates the contents of a new dataset. Implemented by the layer that knows files and volumes.
pub trait DatasetInitializer: Send + Sync {
    /// Creates the first objects in an empty object set, in one txg.
    ///
    /// # Errors
    /// Any failure; the pool then suspends.
    fn create(
        &self,
        set: &Arc<ObjectSet>,
        tx: &Transaction,
        new: &NewContents,
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}
