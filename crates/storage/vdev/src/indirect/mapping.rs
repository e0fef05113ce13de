//! The mapping object of a removed vdev, decoded.

use millpond_ondisk::{DecodeError, Dva, Endian, Reader, Txg, VdevId};

use super::Segment;

/// Bytes of one entry of the mapping object.
pub const MAPPING_ENTRY_BYTES: usize = 24;
/// Bytes of one entry of the births object.
const BIRTH_ENTRY_BYTES: usize = 16;
/// Bit 63 of an entry's first word is a mark used in memory.
const SOURCE_MASK: u64 = !(1 << 63);

/// One contiguous piece that moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingEntry {
    /// First byte on the removed vdev.
    pub source_bytes: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// The vdev it moved to.
    pub vdev: VdevId,
    /// First byte there.
    pub offset_bytes: u64,
}

impl MappingEntry {
    fn end(&self) -> Option<u64> {
        self.source_bytes.checked_add(self.size_bytes)
    }
}

/// Where everything on one removed vdev went. Entries ascend by source and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndirectMapping {
    entries: Vec<MappingEntry>,
    births: Vec<(u64, Txg)>,
}

impl IndirectMapping {
    /// Decodes the contents of the mapping object (24 bytes an entry, the first `count` of them) and
    /// of the births object (16 bytes an entry, all of `births`; empty if it could not be read).
    ///
    /// Allocates no more than the inputs' size.
    ///
    /// # Errors
    /// [`DecodeError`] when an entry is cut off, not sorted, overlaps its neighbour, is empty, or
    /// names no destination; and when births do not ascend.
    pub fn decode(
        mapping: &[u8],
        count: u64,
        births: &[u8],
        endian: Endian,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("indirect mapping", mapping, endian);
        let held = mapping.len() / MAPPING_ENTRY_BYTES;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > held {
            return Err(reader.fail("fewer entries than its header says"));
        }
        let mut entries: Vec<MappingEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let source = (reader.u64()? & SOURCE_MASK)
                .checked_mul(512)
                .ok_or_else(|| reader.fail("source beyond 64 bits"))?;
            let words = [reader.u64()?, reader.u64()?];
            let dva = Dva::from_words(words).ok_or_else(|| reader.fail("no destination"))?;
            let entry = MappingEntry {
                source_bytes: source,
                size_bytes: dva.asize_bytes,
                vdev: dva.vdev,
                offset_bytes: dva.offset_bytes,
            };
            let begins = entries.last().map_or(Some(0), MappingEntry::end);
            if entry.size_bytes == 0 || entry.end().is_none() {
                return Err(reader.fail("a piece of impossible length"));
            }
            if begins.is_none_or(|end| end > entry.source_bytes) {
                return Err(reader.fail("entries overlap or do not ascend"));
            }
            entries.push(entry);
        }
        Ok(Self {
            entries,
            births: decode_births(births, endian)?,
        })
    }

    /// A mapping of entries that are known to ascend without overlap; `None` if they do not.
    #[must_use]
    pub fn from_entries(entries: Vec<MappingEntry>, births: Vec<(u64, Txg)>) -> Option<Self> {
        let mut end = 0;
        for entry in &entries {
            if entry.source_bytes < end || entry.size_bytes == 0 {
                return None;
            }
            end = entry.end()?;
        }
        Some(Self { entries, births })
    }

    /// All entries, ascending by source.
    #[must_use]
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// The pieces of `size_bytes` at `offset_bytes`; `None` if any byte of it is not mapped.
    /// Allocates one piece for each entry touched.
    #[must_use]
    pub fn resolve(&self, offset_bytes: u64, size_bytes: u64) -> Option<Vec<Segment>> {
        let end = offset_bytes.checked_add(size_bytes)?;
        let first = self
            .entries
            .partition_point(|entry| entry.end().is_some_and(|end| end <= offset_bytes));
        let mut at = offset_bytes;
        let mut pieces = Vec::new();
        for entry in self.entries.get(first..)? {
            if at >= end {
                break;
            }
            let skip = at.checked_sub(entry.source_bytes)?;
            let size = end.min(entry.end()?).checked_sub(at)?;
            pieces.push(Segment {
                source_bytes: at,
                vdev: entry.vdev,
                offset_bytes: entry.offset_bytes.checked_add(skip)?,
                size_bytes: size,
                birth: self.birth(at),
            });
            at = at.checked_add(size)?;
        }
        (at == end).then_some(pieces)
    }

    /// When the byte at `offset_bytes` was copied.
    #[must_use]
    pub fn birth(&self, offset_bytes: u64) -> Option<Txg> {
        let at = self.births.partition_point(|(end, _)| *end <= offset_bytes);
        self.births.get(at).map(|(_, txg)| *txg)
    }
}

fn decode_births(bytes: &[u8], endian: Endian) -> Result<Vec<(u64, Txg)>, DecodeError> {
    let mut reader = Reader::new("indirect births", bytes, endian);
    let mut births: Vec<(u64, Txg)> = Vec::with_capacity(bytes.len() / BIRTH_ENTRY_BYTES);
    while reader.remaining() > 0 {
        let (end, txg) = (reader.u64()?, reader.u64()?);
        if births.last().is_some_and(|(before, _)| *before > end) {
            return Err(reader.fail("entries do not ascend"));
        }
        births.push((end, Txg(txg)));
    }
    Ok(births)
}
