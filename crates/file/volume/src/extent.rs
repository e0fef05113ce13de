//! Finds which parts of a volume hold data.

use crate::{Volume, VolumeError};
use millpond_ondisk::BlockId;

/// A range of a volume that is either all data or all hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VolumeExtent {
    /// Where the range begins, in bytes.
    pub offset_bytes: u64,
    /// The length of the range in bytes; never 0.
    pub length_bytes: u64,
    /// Whether blocks are stored for the range. A hole reads as zeros; data may be zeros too.
    pub is_data: bool,
}

impl Volume {
    /// Lists data and holes in order, without gaps, from `offset_bytes` to the end of the volume.
    ///
    /// Only indirect blocks are read.
    #[must_use]
    pub fn extents(&self, offset_bytes: u64) -> VolumeExtents<'_> {
        VolumeExtents {
            volume: self,
            at: Some(offset_bytes),
        }
    }
}

/// The extents of a volume; see [`Volume::extents`]. Iteration ends after an error.
#[derive(Debug)]
pub struct VolumeExtents<'a> {
    volume: &'a Volume,
    at: Option<u64>,
}

impl VolumeExtents<'_> {
    fn extent_at(&self, offset_bytes: u64) -> Result<VolumeExtent, VolumeError> {
        // Data and holes are searched in several steps.
        let writing = self.volume.writing().ok();
        let _range = writing.map(|writing| writing.ranges().read(0..u64::MAX));
        let data = self.volume.data();
        let size = data.block_bytes().max(1);
        let here = BlockId(offset_bytes / size);
        let first_data = data
            .next_data_block(here)
            .map_err(|error| self.volume.errors().object(error))?;
        let (is_data, end) = match first_data {
            None => (false, None),
            Some(block) if block > here => (false, Some(block)),
            Some(block) => {
                let hole = data
                    .next_hole_block(block)
                    .map_err(|error| self.volume.errors().object(error))?;
                (true, Some(hole))
            }
        };
        let volume_end = self.volume.size_bytes();
        let end_bytes = end.map_or(volume_end, |block| {
            block.0.saturating_mul(size).min(volume_end)
        });
        Ok(VolumeExtent {
            offset_bytes,
            length_bytes: end_bytes.saturating_sub(offset_bytes),
            is_data,
        })
    }
}

impl Iterator for VolumeExtents<'_> {
    type Item = Result<VolumeExtent, VolumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        if at >= self.volume.size_bytes() {
            return None;
        }
        let extent = self.extent_at(at);
        if let Ok(extent) = &extent {
            // An extent of length 0 would repeat forever.
            self.at = (extent.length_bytes > 0)
                .then(|| extent.offset_bytes.saturating_add(extent.length_bytes));
        }
        Some(extent)
    }
}
