//! The order of all writes and flushes of a world, and the disks after a power cut.

use crate::page_cache::{pages, pages_of};
use crate::{Content, Discarded, Seed};
use millpond_env::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A change of a disk.
#[derive(Debug, Clone)]
pub enum Event {
    /// A write.
    Write {
        /// Index of the disk.
        disk: usize,
        /// Offset in bytes.
        offset_bytes: u64,
        /// The bytes written.
        bytes: Arc<[u8]>,
    },
    /// A discard.
    Discard {
        /// Index of the disk.
        disk: usize,
        /// Offset in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        length_bytes: u64,
        /// What is there afterwards.
        leaves: Discarded,
    },
    /// A successful flush.
    Flush {
        /// Index of the disk.
        disk: usize,
        /// Restricts the flush to writes that touch the pages of these bytes; `None` for a full flush.
        part: Option<Range<u64>>,
    },
    /// A failed flush that lost the unflushed writes.
    LostWrites {
        /// Index of the disk.
        disk: usize,
        /// As for a flush.
        part: Option<Range<u64>>,
    },
}

impl Event {
    /// The disk that changed.
    #[must_use]
    pub fn disk(&self) -> usize {
        match self {
            Self::Write { disk, .. }
            | Self::Discard { disk, .. }
            | Self::Flush { disk, .. }
            | Self::LostWrites { disk, .. } => *disk,
        }
    }
    fn apply(&self, content: &mut Content) {
        match self {
            Self::Write {
                offset_bytes,
                bytes,
                ..
            } => content.write(*offset_bytes, bytes),
            Self::Discard {
                offset_bytes,
                length_bytes,
                leaves,
                ..
            } => content.discard(*offset_bytes, *length_bytes, *leaves),
            Self::Flush { .. } | Self::LostWrites { .. } => {}
        }
    }
    /// Whether a write or discard touches the pages of a part.
    fn touches(&self, part: Option<&Range<u64>>) -> bool {
        let Some(part) = part else { return true };
        let (offset, length) = match self {
            Self::Write {
                offset_bytes,
                bytes,
                ..
            } => (*offset_bytes, bytes.len() as u64),
            Self::Discard {
                offset_bytes,
                length_bytes,
                ..
            } => (*offset_bytes, *length_bytes),
            Self::Flush { .. } | Self::LostWrites { .. } => return false,
        };
        let (own, part) = (pages(offset, length), pages_of(part));
        own.start() <= part.end() && part.start() <= own.end()
    }
}

/// Which unflushed requests survive a power cut.
#[derive(Debug, Clone)]
pub enum PowerCut {
    /// All of them.
    EverythingWritten,
    /// None of them.
    NothingUnflushed,
    /// A random choice. Some writes survive only in part (torn between sectors).
    Torn(Seed),
    /// Only the first of each disk, in order; the value is their number.
    First(usize),
    /// All but this one, by its index over all disks from the oldest.
    AllBut(usize),
    /// Only these, whole or in part, by their index over all disks from the oldest.
    Only(BTreeMap<usize, Kept>),
}

/// How much of a request survives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// The whole request.
    Whole,
    /// These sectors of a write.
    Sectors(Range<usize>),
}

/// All events on the disks of a world since it was made or last cleared.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    pub(crate) start: Vec<(Content, u32)>,
    pub(crate) events: Vec<Event>,
}

impl Journal {
    /// The number of events. The power can be cut after any number of events up to this.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }
    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
    /// The events, oldest first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
    /// The contents of the disks if the power had been cut after the first `count` events.
    #[must_use]
    pub fn crash_at(&self, count: usize, cut: &PowerCut) -> Vec<Content> {
        let events = self.events.get(..count).unwrap_or(&self.events);
        let mut disks: Vec<Content> = self.start.iter().map(|(disk, _)| disk.clone()).collect();
        let mut unflushed: Vec<Vec<usize>> = vec![vec![]; disks.len()];
        for (index, event) in events.iter().enumerate() {
            let Some(pending) = unflushed.get_mut(event.disk()) else {
                continue;
            };
            match event {
                Event::Flush { part, .. } => {
                    let is_hit = |at: &mut usize| events[*at].touches(part.as_ref());
                    for durable in pending.extract_if(.., is_hit) {
                        events[durable].apply(&mut disks[event.disk()]);
                    }
                }
                Event::LostWrites { part, .. } => {
                    pending.retain(|at| !events[*at].touches(part.as_ref()));
                }
                Event::Write { .. } | Event::Discard { .. } => pending.push(index),
            }
        }
        self.settle(&mut disks, events, &unflushed, cut);
        disks
    }
    /// The unflushed requests after the first `count` events, oldest first.
    ///
    /// [`PowerCut::AllBut`] and [`PowerCut::Only`] use the index into this list. The value is the number of
    /// sectors of a write, and 1 for other requests.
    #[must_use]
    pub fn unflushed_at(&self, count: usize) -> Vec<usize> {
        let events = self.events.get(..count).unwrap_or(&self.events);
        let mut pending: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            match event {
                Event::Flush { disk, part } | Event::LostWrites { disk, part } => {
                    pending.retain(|at, _| {
                        let pending = &events[*at];
                        pending.disk() != *disk || !pending.touches(part.as_ref())
                    });
                }
                Event::Write { disk, bytes, .. } => {
                    let sector = self.start.get(*disk).map_or(512, |(_, sector)| *sector);
                    let sectors = bytes.len().div_ceil(sector.max(1) as usize);
                    pending.insert(index, sectors);
                }
                Event::Discard { .. } => {
                    pending.insert(index, 1);
                }
            }
        }
        pending.into_values().collect()
    }

    fn settle(
        &self,
        disks: &mut [Content],
        events: &[Event],
        unflushed: &[Vec<usize>],
        cut: &PowerCut,
    ) {
        let all: BTreeSet<usize> = unflushed.iter().flatten().copied().collect();
        let lost = match cut {
            PowerCut::AllBut(which) => all.iter().nth(*which).copied(),
            _ => None,
        };
        let mut seed = match cut {
            PowerCut::Torn(seed) => seed.clone(),
            _ => Seed::new(0),
        };
        for (number, pending) in unflushed.iter().enumerate() {
            let sector = self.start.get(number).map_or(512, |(_, sector)| *sector);
            let mut order = pending.clone();
            if matches!(cut, PowerCut::Torn(_)) {
                // A disk may write back its cache in any order. Where two writes overlap, either may be
                // last.
                for at in (1..order.len()).rev() {
                    let other = usize::try_from(seed.below(at as u64 + 1)).unwrap_or(0);
                    order.swap(at, other);
                }
            }
            for (place, index) in order.iter().enumerate() {
                let event = &events[*index];
                match cut {
                    PowerCut::EverythingWritten => event.apply(&mut disks[number]),
                    PowerCut::NothingUnflushed => {}
                    PowerCut::First(count) if place < *count => event.apply(&mut disks[number]),
                    PowerCut::First(_) => {}
                    PowerCut::AllBut(_) => {
                        if lost != Some(*index) {
                            event.apply(&mut disks[number]);
                        }
                    }
                    PowerCut::Only(kept) => {
                        let ordinal = all.range(..index).count();
                        match kept.get(&ordinal) {
                            None => {}
                            Some(Kept::Whole) => event.apply(&mut disks[number]),
                            Some(Kept::Sectors(range)) => {
                                keep_sectors(event, &mut disks[number], sector, |index| {
                                    range.contains(&index)
                                });
                            }
                        }
                    }
                    PowerCut::Torn(_) => tear(event, &mut disks[number], sector, &mut seed),
                }
            }
        }
    }
}

/// Applies some sectors of a write.
fn keep_sectors(
    event: &Event,
    content: &mut Content,
    sector: u32,
    mut is_kept: impl FnMut(usize) -> bool,
) {
    let Event::Write {
        offset_bytes,
        bytes,
        ..
    } = event
    else {
        return;
    };
    let sector = sector.max(1) as usize;
    for (index, piece) in bytes.chunks(sector).enumerate() {
        if is_kept(index) {
            content.write(offset_bytes + (index * sector) as u64, piece);
        }
    }
}

/// Applies a request in full, not at all, or only some sectors of a write.
fn tear(event: &Event, content: &mut Content, sector: u32, seed: &mut Seed) {
    match seed.below(4) {
        0 => {}
        1 | 2 => event.apply(content),
        _ => keep_sectors(event, content, sector, |_| seed.below(2) == 0),
    }
}
