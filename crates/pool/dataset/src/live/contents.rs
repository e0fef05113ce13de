//! The first objects of new datasets, which upper layers make.

use millpond_env::sync::Arc;
use millpond_object::LiveObjectSet;
use millpond_ondisk::{DslDatasetFlags, ObjectSetKind};
use millpond_txg::Transaction;
use std::error::Error;

/// What a new file system or volume is to be; fixed for its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewContents {
    /// A file system.
    FileSystem(NewFileSystem),
    /// A volume.
    Volume {
        /// Its size in bytes, a multiple of the block size.
        size_bytes: u64,
        /// Size of its blocks in bytes, a power of two from 512.
        block_bytes: u32,
    },
}

/// The choices of a new file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewFileSystem {
    /// 0 none, 0x10 form D, 0x20 form KD, 0x50 form C, 0x60 form KC.
    pub normalization: u64,
    /// Names that are not UTF-8 are refused.
    pub is_utf8_only: bool,
    /// 0 sensitive, 1 insensitive, 2 mixed.
    pub case_sensitivity: u64,
    /// Whether the root directory and new files have project numbers. Not in the root of a new pool.
    pub has_projects: bool,
    /// Default quotas of users, groups and projects, in bytes, then in objects; as OpenZFS 2.4 keeps
    /// them. `None`: not kept.
    pub default_quotas: Option<[u64; 6]>,
    /// Owner of the root directory.
    pub owner: (u32, u32),
}

impl NewContents {
    /// What the object set holds.
    #[must_use]
    pub fn kind(&self) -> ObjectSetKind {
        match self {
            Self::FileSystem(_) => ObjectSetKind::FileSystem,
            Self::Volume { .. } => ObjectSetKind::Volume,
        }
    }
    /// Flags that a dataset of these contents has from the start.
    pub(crate) fn dataset_flags(&self) -> DslDatasetFlags {
        match self {
            Self::FileSystem(new) if new.case_sensitivity == 1 => DslDatasetFlags::CASE_INSENSITIVE,
            _ => DslDatasetFlags::default(),
        }
    }
}

/// Makes what a new dataset contains. Implemented by the layer that knows files and volumes.
pub trait ContentsPort: Send + Sync {
    /// Makes the first objects in an empty object set, in one txg.
    ///
    /// # Errors
    /// Whatever went wrong; the pool suspends.
    fn create(
        &self,
        set: &Arc<LiveObjectSet>,
        tx: &Transaction,
        new: &NewContents,
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}
