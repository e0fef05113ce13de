//! Space maps: append-only logs of allocations and frees, from which free space is replayed.
//!
//! Metaslabs, the pool-wide log of a txg, pool checkpoints, obsolete ranges of removed vdevs and dirty time
//! logs use the same format. Pages `docs/format/space-map.md` and `docs/format/log-space-map.md`.

mod entry;
mod histogram;
mod writer;

pub use entry::{SpaceAction, SpaceMapEntries, SpaceMapEntry};
pub use histogram::{SPACE_HISTOGRAM_BUCKETS, SpaceHistogram};
pub use writer::SpaceMapWriter;

use crate::{DecodeError, Endian, ObjectId, Reader, Writer};

/// Size of the header without a histogram, in bytes.
pub const SPACE_MAP_HEADER_BYTES: usize = 24;
/// Size of the header with a histogram, in bytes (feature `com.delphix:spacemap_histogram`).
pub const SPACE_MAP_HEADER_BYTES_HISTOGRAM: usize = 320;

/// The header of a space map: the bonus of its object ("space_map_phys"). Page `docs/format/space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceMapPhys {
    /// The map's own object id; `None` if nothing was ever appended. Readers ignore it.
    pub object: Option<ObjectId>,
    /// Bytes of valid entries, a multiple of 8. Data after them is garbage.
    pub length_bytes: u64,
    /// Allocated minus freed bytes of all entries. Negative in maps that mostly free.
    pub allocated_bytes: i64,
    /// Free segments by size; a hint that readers do not check against the entries. `None` in headers of 24
    /// bytes.
    pub histogram: Option<SpaceHistogram>,
}

impl SpaceMapPhys {
    /// Reads a header from a bonus of 24 bytes or more; from 320 bytes on it has a histogram.
    ///
    /// # Errors
    /// If there are fewer than 24 bytes, or the length is not a multiple of 8.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("space map header", bonus, endian);
        let object = ObjectId(reader.u64()?).some();
        let length_bytes = reader.u64()?;
        if !length_bytes.is_multiple_of(8) {
            return Err(DecodeError::new(
                "space map header",
                "length is not a multiple of 8",
                8,
            ));
        }
        let allocated_bytes = i64::from_ne_bytes(reader.u64()?.to_ne_bytes());
        let histogram = if bonus.len() >= SPACE_MAP_HEADER_BYTES_HISTOGRAM {
            reader.skip(40)?;
            let mut histogram = SpaceHistogram::default();
            for count in &mut histogram.buckets {
                *count = reader.u64()?;
            }
            Some(histogram)
        } else {
            None
        };
        Ok(Self {
            object,
            length_bytes,
            allocated_bytes,
            histogram,
        })
    }

    /// Encodes the header as 24 little-endian bytes, or 320 with a histogram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(SPACE_MAP_HEADER_BYTES_HISTOGRAM);
        writer.put_u64(ObjectId::number(self.object));
        writer.put_u64(self.length_bytes);
        writer.put(&self.allocated_bytes.to_le_bytes());
        if let Some(histogram) = &self.histogram {
            writer.pad_to(64);
            for count in histogram.buckets {
                writer.put_u64(count);
            }
        }
        writer.finish()
    }
}

/// The units of a map, in bytes (or, in a dirty time log, in txgs). Page `docs/format/space-map.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapUnits {
    /// log2 of a unit in bytes: the vdev's ashift in metaslab and checkpoint maps, 9 in log maps, 0 in
    /// obsolete maps and dirty time logs.
    pub shift: u8,
    /// Byte offset that corresponds to offset 0: the metaslab's start, else 0.
    pub start_bytes: u64,
    /// Size of the covered range in bytes; `None` if unbounded.
    pub size_bytes: Option<u64>,
}

impl SpaceMapUnits {
    /// Units of a log space map: sectors, unbounded.
    pub const LOG: Self = Self {
        shift: 9,
        start_bytes: 0,
        size_bytes: None,
    };
    /// Units of a dirty time log: each unit is a txg.
    pub const DIRTY_TIME_LOG: Self = Self {
        shift: 0,
        start_bytes: 0,
        size_bytes: None,
    };

    /// The range of bytes `[start, end)` of `run_units` units from `offset_units`.
    ///
    /// # Errors
    /// If the range is empty, does not fit in 64 bits, or exceeds the map's bounds.
    pub fn range_bytes(
        &self,
        offset_units: u64,
        run_units: u64,
    ) -> Result<core::ops::Range<u64>, DecodeError> {
        let fail = |reason| DecodeError::new("space map entry", reason, 0);
        let scale = |units: u64| {
            u64::try_from(u128::from(units) << u32::from(self.shift.min(63)))
                .map_err(|_| fail("range does not fit 64 bits"))
        };
        let (offset, length) = (scale(offset_units)?, scale(run_units)?);
        let end = offset
            .checked_add(length)
            .ok_or_else(|| fail("range does not fit 64 bits"))?;
        if length == 0 {
            return Err(fail("empty range"));
        }
        if self.size_bytes.is_some_and(|size| end > size) {
            return Err(fail("range leaves the map's bounds"));
        }
        let place = |at: u64| {
            at.checked_add(self.start_bytes)
                .ok_or_else(|| fail("range does not fit 64 bits"))
        };
        Ok(place(offset)?..place(end)?)
    }
}

#[cfg(test)]
mod tests;
