//! Where the bytes of the device are: an ordered map of ranges that do not overlap.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where the bytes of a range are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// In a stream file.
    Stream {
        /// Its number.
        file: u32,
        /// The offset in it, in bytes.
        offset: u64,
    },
    /// Among the bytes that are kept, at this offset.
    Kept {
        /// The offset in bytes.
        offset: u64,
    },
}

impl Source {
    /// The source of the bytes that come `bytes` later.
    pub(crate) fn after(self, bytes: u64) -> Self {
        match self {
            Self::Stream { file, offset } => Self::Stream {
                file,
                offset: offset.saturating_add(bytes),
            },
            Self::Kept { offset } => Self::Kept {
                offset: offset.saturating_add(bytes),
            },
        }
    }
}

/// A range of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it begins, in bytes.
    pub(crate) start: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// Where its bytes are.
    pub(crate) source: Source,
}

impl Extent {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// Where its bytes go in a buffer that begins at this offset. It lies within the buffer.
    pub(crate) fn place_in(&self, buffer_start: u64) -> Range<usize> {
        let index = |at: u64| usize::try_from(at.saturating_sub(buffer_start));
        index(self.start).unwrap_or(usize::MAX)..index(self.end()).unwrap_or(usize::MAX)
    }

    /// The part of it that lies within a range.
    fn within(&self, range: &Range<u64>) -> Option<Self> {
        let start = self.start.max(range.start);
        let end = self.end().min(range.end);
        (start < end).then(|| Self {
            start,
            length: end.saturating_sub(start),
            source: self.source.after(start.saturating_sub(self.start)),
        })
    }
}

/// All ranges of the device that are not zeros.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extents {
    by_start: BTreeMap<u64, (u64, Source)>,
}

impl Extents {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_start.iter().map(extent)
    }

    /// Those that overlap a range, in order.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Extent> + use<'_> {
        let before = self.by_start.range(..range.start).next_back();
        let inside = self.by_start.range(range.start..range.end.max(range.start));
        let all = before.into_iter().chain(inside).map(extent);
        let start = range.start;
        all.filter(move |extent| extent.end() > start)
    }

    /// The parts of them that lie within a range, in order.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Extent> {
        let overlapping = self.overlapping(range.clone());
        overlapping.filter_map(move |extent| extent.within(&range))
    }

    /// Removes a range. Returns what was there.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> Vec<Extent> {
        let overlapping: Vec<Extent> = self.overlapping(range.clone()).collect();
        let mut removed = vec![];
        for extent in overlapping {
            self.by_start.remove(&extent.start);
            let sides = [extent.start..range.start, range.end..extent.end()];
            for kept in sides.iter().filter_map(|side| extent.within(side)) {
                self.by_start.insert(kept.start, (kept.length, kept.source));
            }
            removed.extend(extent.within(range));
        }
        removed
    }

    /// Adds an extent where nothing is. Adjacent ones whose bytes are adjacent too become one.
    pub(crate) fn insert(&mut self, extent: Extent) {
        let Extent {
            start,
            mut length,
            source,
        } = extent;
        if let Some((next_length, next)) = self.by_start.get(&extent.end()).copied()
            && source.after(length) == next
        {
            self.by_start.remove(&extent.end());
            length = length.saturating_add(next_length);
        }
        if let Some((before, (before_length, before_source))) =
            self.by_start.range_mut(..start).next_back()
            && before.saturating_add(*before_length) == start
            && before_source.after(*before_length) == source
        {
            *before_length = before_length.saturating_add(length);
            return;
        }
        self.by_start.insert(start, (length, source));
    }
}

fn extent((start, (length, source)): (&u64, &(u64, Source))) -> Extent {
    Extent {
        start: *start,
        length: *length,
        source: *source,
    }
}
