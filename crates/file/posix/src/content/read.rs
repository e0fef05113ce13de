//! Reads content, and finds data and holes.

use super::check_regular;
use crate::FileKind;
use crate::error::FileError;
use crate::node::Node;
use crate::range_lock::RangeGuard;
use millpond_object::{CacheHint, unhurried};
use millpond_ondisk::BlockId;
use millpond_sa::FileFlags;

/// A run of bytes that may contain data. Everything outside of runs is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The offset of the first byte.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub length_bytes: u64,
}

/// What [`Node::seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole. The end of the file counts as a hole.
    Hole,
}

impl Node {
    /// Fills `buffer` from `offset_bytes`, up to the end of the file. Returns how many bytes were read.
    ///
    /// It does not update the access time; see [`crate::FileSystem::touch_atime`].
    ///
    /// # Errors
    /// [`FileError::IsADirectory`]; [`FileError::AccessDenied`] for a quarantined file that is open for change;
    /// or if a block cannot be read. The buffer's content is then undefined.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.read_with_hint(offset_bytes, buffer, CacheHint::Retain)
    }

    /// Like [`Node::read`]. `hint` controls caching of the content.
    ///
    /// # Errors
    /// As [`Node::read`].
    pub fn read_with_hint(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError> {
        check_regular(self.kind())?;
        let end = offset_bytes.saturating_add(buffer.len() as u64);
        let _range = match self.open_node() {
            None => None,
            Some(node) if node.state().flags.contains(FileFlags::AV_QUARANTINED) => {
                return Err(FileError::AccessDenied);
            }
            Some(node) => Some(node.ranges.read(offset_bytes..end)),
        };
        let left = self.size_bytes().saturating_sub(offset_bytes);
        let count = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        // While this read waits for a device, it blocks only requests for the same bytes of this file.
        let is_end = count as u64 == left;
        unhurried(|| {
            let object = self.object();
            object.read_until(offset_bytes, &mut buffer[..count], hint, is_end)
        })?;
        Ok(count)
    }

    /// The runs of data in order, as `SEEK_DATA` and `SEEK_HOLE` report them.
    ///
    /// Runs are whole blocks, cut at the end of the file.
    pub fn extents(&self) -> impl Iterator<Item = Result<Extent, FileError>> + '_ {
        let mut at = Some(0u64);
        std::iter::from_fn(move || {
            let from = at?;
            match self.next_extent(from) {
                Ok(Some(extent)) => {
                    at = extent.offset_bytes.checked_add(extent.length_bytes);
                    Some(Ok(extent))
                }
                Ok(None) => {
                    at = None;
                    None
                }
                Err(error) => {
                    at = None;
                    Some(Err(error))
                }
            }
        })
    }

    /// The first run of data at or after `from_bytes`; `None` if there is none before the end.
    ///
    /// # Errors
    /// If an indirect block cannot be read.
    pub fn next_extent(&self, from_bytes: u64) -> Result<Option<Extent>, FileError> {
        let _range = self.lock_content();
        self.extent_after(from_bytes, self.size_bytes())
    }

    /// Keeps the content from changing while several of its parts are compared.
    fn lock_content(&self) -> Option<RangeGuard<'_>> {
        self.open_node().map(|node| node.ranges.read(0..u64::MAX))
    }

    fn extent_after(&self, from_bytes: u64, size: u64) -> Result<Option<Extent>, FileError> {
        if from_bytes >= size {
            return Ok(None);
        }
        let block = self.object().block_bytes();
        if !block.is_power_of_two() {
            // A single block whose size is no power of two counts as data, even if it is a hole.
            let length_bytes = size - from_bytes;
            return Ok(Some(Extent {
                offset_bytes: from_bytes,
                length_bytes,
            }));
        }
        let Some(first) = self.object().next_data_block(BlockId(from_bytes / block))? else {
            return Ok(None);
        };
        let start = first.0.saturating_mul(block).max(from_bytes);
        if start >= size {
            return Ok(None);
        }
        let hole = self.object().next_hole_block(first)?;
        let end = hole.0.saturating_mul(block).min(size);
        Ok(Some(Extent {
            offset_bytes: start,
            length_bytes: end.saturating_sub(start),
        }))
    }

    /// Finds the next data or the next hole at or after `offset_bytes`, in whole blocks.
    ///
    /// # Errors
    /// [`FileError::NoData`] at or after the end of the file, and if no data follows.
    pub fn seek(&self, what: Seek, offset_bytes: u64) -> Result<u64, FileError> {
        if self.kind() != FileKind::Regular {
            return Err(FileError::NotSupported);
        }
        let _range = self.lock_content();
        let size = self.size_bytes();
        if offset_bytes >= size {
            return Err(FileError::NoData);
        }
        match (what, self.extent_after(offset_bytes, size)?) {
            (Seek::Data, Some(extent)) => Ok(extent.offset_bytes),
            (Seek::Data, None) => Err(FileError::NoData),
            (Seek::Hole, Some(extent)) if extent.offset_bytes <= offset_bytes => {
                Ok(extent.offset_bytes.saturating_add(extent.length_bytes))
            }
            (Seek::Hole, _) => Ok(offset_bytes),
        }
    }
}
