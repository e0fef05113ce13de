//! Decodes the mapping object of a removed vdev.

use millpond_ondisk::{
    DecodeError, Endian, INDIRECT_BIRTH_ENTRY_BYTES, INDIRECT_MAPPING_ENTRY_BYTES,
    IndirectBirthEntry, IndirectMappingEntry, Txg,
};

use super::Segment;

/// The mapping of one removed vdev. Entries ascend by source and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndirectMapping {
    entries: Vec<IndirectMappingEntry>,
    births: Vec<IndirectBirthEntry>,
}

impl IndirectMapping {
    /// Decodes the contents of the mapping object (24 bytes per entry, the first `count` of them) and of
    /// the births object (16 bytes per entry, all of `births`; empty if it could not be read).
    ///
    /// Allocates no more than the size of the inputs.
    ///
    /// # Errors
    /// [`DecodeError`] if an entry is truncated, unsorted, overlapping, empty or without a destination, or
    /// if births do not ascend.
    pub fn decode(
        mapping: &[u8],
        count: u64,
        births: &[u8],
        endian: Endian,
    ) -> Result<Self, DecodeError> {
        let fail = |reason| DecodeError::new("indirect mapping", reason, 0);
        let held = mapping.len() / INDIRECT_MAPPING_ENTRY_BYTES;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > held {
            return Err(fail("fewer entries than its header says"));
        }
        let pieces = mapping
            .chunks_exact(INDIRECT_MAPPING_ENTRY_BYTES)
            .take(count);
        let entries: Result<Vec<_>, DecodeError> = pieces
            .map(|bytes| IndirectMappingEntry::decode(bytes, endian))
            .collect();
        if !births.len().is_multiple_of(INDIRECT_BIRTH_ENTRY_BYTES) {
            return Err(fail("a birth is cut off"));
        }
        let pieces = births.chunks_exact(INDIRECT_BIRTH_ENTRY_BYTES);
        let births: Result<Vec<_>, DecodeError> = pieces
            .map(|bytes| IndirectBirthEntry::decode(bytes, endian))
            .collect();
        Self::from_entries(entries?, births?)
            .ok_or_else(|| fail("entries overlap or do not ascend"))
    }

    /// A mapping of these entries; `None` unless both lists ascend, and entries are not empty and do not
    /// overlap.
    #[must_use]
    pub fn from_entries(
        entries: Vec<IndirectMappingEntry>,
        births: Vec<IndirectBirthEntry>,
    ) -> Option<Self> {
        let mut end = 0;
        for entry in &entries {
            if entry.source_offset_bytes < end || entry.length_bytes() == 0 {
                return None;
            }
            end = entry
                .source_offset_bytes
                .checked_add(entry.length_bytes())?;
        }
        let ascend = births.is_sorted_by_key(|birth| birth.end_offset_bytes);
        ascend.then_some(Self { entries, births })
    }

    /// All entries, ascending by source.
    #[must_use]
    pub fn entries(&self) -> &[IndirectMappingEntry] {
        &self.entries
    }

    /// The segments of `size_bytes` at `offset_bytes`; `None` if any byte is not mapped. Allocates one
    /// segment for each entry involved.
    #[must_use]
    pub fn resolve(&self, offset_bytes: u64, size_bytes: u64) -> Option<Vec<Segment>> {
        let end = offset_bytes.checked_add(size_bytes)?;
        let first = self
            .entries
            .partition_point(|entry| entry.source_end_bytes() <= offset_bytes);
        let mut at = offset_bytes;
        let mut pieces = Vec::new();
        for entry in self.entries.get(first..)? {
            if at >= end {
                break;
            }
            let skip = at.checked_sub(entry.source_offset_bytes)?;
            let size = end.min(entry.source_end_bytes()).checked_sub(at)?;
            pieces.push(Segment {
                source_bytes: at,
                vdev: entry.destination.vdev,
                offset_bytes: entry.destination.offset_bytes.checked_add(skip)?,
                size_bytes: size,
                birth: self.birth(at),
            });
            at = at.checked_add(size)?;
        }
        (at == end).then_some(pieces)
    }

    /// The segments of the parts of a range that are mapped, in order. Allocates one segment for each entry involved.
    #[must_use]
    pub fn mapped_parts(&self, range: &core::ops::Range<u64>) -> Vec<Segment> {
        let first = self
            .entries
            .partition_point(|entry| entry.source_end_bytes() <= range.start);
        let entries = self.entries.get(first..).unwrap_or_default().iter();
        let inside = entries.take_while(|entry| entry.source_offset_bytes < range.end);
        let parts = inside.filter_map(|entry| {
            let start = entry.source_offset_bytes.max(range.start);
            let end = entry.source_end_bytes().min(range.end);
            let skip = start.checked_sub(entry.source_offset_bytes)?;
            Some(Segment {
                source_bytes: start,
                vdev: entry.destination.vdev,
                offset_bytes: entry.destination.offset_bytes.checked_add(skip)?,
                size_bytes: end.checked_sub(start)?,
                birth: self.birth(start),
            })
        });
        parts.collect()
    }

    /// Appends entries after all others, copied in `txg`. Returns whether they ascend; if not, nothing changes.
    pub fn append(&mut self, entries: &[IndirectMappingEntry], txg: Txg) -> bool {
        let mut end = self.end_bytes();
        for entry in entries {
            if entry.source_offset_bytes < end || entry.length_bytes() == 0 {
                return false;
            }
            end = entry.source_end_bytes();
        }
        self.entries.extend_from_slice(entries);
        if let Some(last) = self.births.last_mut()
            && last.birth == txg
        {
            last.end_offset_bytes = end;
        } else if !entries.is_empty() {
            self.births.push(IndirectBirthEntry {
                end_offset_bytes: end,
                birth: txg,
            });
        }
        true
    }

    /// The end of the last segment, 0 if there is none: the offset up to which everything was copied.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        let last = self.entries.last();
        last.map_or(0, IndirectMappingEntry::source_end_bytes)
    }

    /// All births, ascending by the ends of their ranges.
    #[must_use]
    pub fn births(&self) -> &[IndirectBirthEntry] {
        &self.births
    }

    /// The txg in which the byte at `offset_bytes` was copied.
    #[must_use]
    pub fn birth(&self, offset_bytes: u64) -> Option<Txg> {
        let at = self
            .births
            .partition_point(|birth| birth.end_offset_bytes <= offset_bytes);
        self.births.get(at).map(|birth| birth.birth)
    }
}
