//! Space and file counts of a file system.

use crate::FileSystem;
use crate::Node;
use crate::error::FileError;
use crate::quota::{QuotaMeasure, QuotaOwner};
use millpond_sa::FileFlags;

/// The result of `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemStat {
    /// The unit of the block counts, in bytes.
    pub block_bytes: u64,
    /// The total number of blocks.
    pub blocks: u64,
    /// The number of free blocks.
    pub blocks_free: u64,
    /// The total number of files.
    pub files: u64,
    /// The number of files that can still be created.
    pub files_free: u64,
    /// The longest name that can be created, in bytes.
    pub name_bytes_max: u32,
}

/// The maximum number of objects of a file system.
const OBJECTS_MAX: u64 = 1 << 48;

impl FileSystem {
    /// Space and file counts as seen from a file.
    ///
    /// Below a directory that passes on its project, the project's quotas limit the result. A committed state
    /// does not report free or used space.
    ///
    /// # Errors
    /// If quotas or counters cannot be read.
    pub fn stat_file_system(&self, node: &Node) -> Result<FileSystemStat, FileError> {
        let unit = u64::from(self.record_bytes());
        let name_bytes_max = self.name_bytes_max() as u32;
        if let Some(set) = self.committed() {
            return Ok(FileSystemStat {
                block_bytes: unit,
                blocks: 0,
                blocks_free: 0,
                files: set.object_count(),
                files_free: 0,
                name_bytes_max,
            });
        }
        let writing = self.writing()?;
        let space = writing.source().space();
        let free = space.available_bytes / unit;
        let referenced = space.referenced_bytes.div_ceil(unit).saturating_mul(unit);
        let objects = writing.set().root().fill();
        let files_free = OBJECTS_MAX
            .saturating_sub(objects)
            .min(space.available_bytes / 512);
        let mut stat = FileSystemStat {
            block_bytes: unit,
            blocks: referenced.saturating_add(space.available_bytes) / unit,
            blocks_free: free,
            files: files_free.saturating_add(objects),
            files_free,
            name_bytes_max,
        };
        let state = node.for_change()?.state();
        let project = state.project_or_zero();
        if state.flags.contains(FileFlags::PROJECT_INHERIT) && project != 0 {
            let quota_and_rest = |measure| -> Result<Option<(u64, u64)>, FileError> {
                let Some(quota) = self.quota(QuotaOwner::Project, measure, project)? else {
                    return Ok(None);
                };
                let used = self.used(QuotaOwner::Project, measure, project)?;
                Ok(Some((quota, quota.saturating_sub(used))))
            };
            if let Some((quota, left)) = quota_and_rest(QuotaMeasure::Bytes)? {
                stat.blocks = quota / unit;
                stat.blocks_free = stat.blocks_free.min(left / unit);
            }
            if let Some((quota, left)) = quota_and_rest(QuotaMeasure::Objects)? {
                stat.files = quota;
                stat.files_free = stat.files_free.min(left);
            }
        }
        Ok(stat)
    }
}
