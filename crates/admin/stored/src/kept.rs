//! Which kept bytes are in use, and those of them that are in memory.

use std::collections::BTreeMap;

/// How many free ranges are looked at for a new one.
const FREE_RANGES_SEEN: usize = 64;

/// Ranges of kept bytes. Offsets below a bound are in memory, those above it in a file that the device has.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    memory: Vec<u8>,
    memory_max: u64,
    /// The end of all ranges that were given out.
    end: u64,
    /// Ranges that are free again, by their start.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl KeptBytes {
    /// Nothing yet. Offsets below `memory_max` are in memory.
    pub(crate) fn new(memory_max: u64) -> Self {
        Self {
            memory: vec![],
            memory_max,
            end: 0,
            free: BTreeMap::new(),
            free_bytes: 0,
        }
    }

    /// This many bytes, all in a file.
    pub(crate) fn in_file(length: u64) -> Self {
        Self {
            end: length,
            ..Self::new(0)
        }
    }

    /// How many bytes are in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.end.saturating_sub(self.free_bytes)
    }

    /// Gives out a range. Returns its offset.
    pub(crate) fn allocate(&mut self, length: u64) -> u64 {
        let mut seen = self.free.iter().take(FREE_RANGES_SEEN);
        let found = seen.find(|(_, free)| **free >= length);
        let Some((start, free)) = found.map(|(start, free)| (*start, *free)) else {
            let offset = self.end;
            self.end = self.end.saturating_add(length);
            return offset;
        };
        self.free.remove(&start);
        self.free_bytes = self.free_bytes.saturating_sub(length);
        if free > length {
            let rest = start.saturating_add(length);
            self.free.insert(rest, free.saturating_sub(length));
        }
        start
    }

    /// Takes a range back.
    pub(crate) fn free(&mut self, offset: u64, length: u64) {
        self.free_bytes = self.free_bytes.saturating_add(length);
        let (mut start, mut end) = (offset, offset.saturating_add(length));
        if let Some(next) = self.free.remove(&end) {
            end = end.saturating_add(next);
        }
        if let Some((before, length)) = self.free.range(..start).next_back()
            && before.saturating_add(*length) == start
        {
            start = *before;
        }
        self.free.insert(start, end.saturating_sub(start));
    }

    /// How many bytes of a range are in memory: those at its beginning.
    fn in_memory(&self, offset: u64, length: usize) -> usize {
        let below = self.memory_max.saturating_sub(offset);
        usize::try_from(below).unwrap_or(usize::MAX).min(length)
    }

    /// Stores the part of a range that is in memory. Returns its length.
    pub(crate) fn store(&mut self, offset: u64, bytes: &[u8]) -> usize {
        let length = self.in_memory(offset, bytes.len());
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(length);
        if length > 0 && self.memory.len() < end {
            self.memory.resize(end, 0);
        }
        if let (Some(place), Some(part)) = (self.memory.get_mut(start..end), bytes.get(..length)) {
            place.copy_from_slice(part);
        }
        length
    }

    /// Loads the part of a range that is in memory. Returns its length.
    pub(crate) fn load(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let length = self.in_memory(offset, buffer.len());
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.memory.get(start..start.saturating_add(length));
        if let (Some(found), Some(part)) = (found, buffer.get_mut(..length)) {
            part.copy_from_slice(found);
        }
        length
    }

    /// Where bytes are in the file. The first ones are in memory instead.
    pub(crate) fn offset_in_file(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.memory_max)
    }
}
