//! The order in which all disks of a world were written and flushed, and what a power cut leaves.

use crate::page_cache::{pages, pages_of};
use crate::{Content, Seed};
use millpond_env::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One thing that reached a disk.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were given to a disk.
    Write {
        /// Number of the disk.
        disk: usize,
        /// Where, in bytes.
        offset_bytes: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// A range was said to be unneeded.
    Discard {
        /// Number of the disk.
        disk: usize,
        /// Where, in bytes.
        offset_bytes: u64,
        /// How much, in bytes.
        length_bytes: u64,
    },
    /// A disk was told to make what was written durable, and did.
    Flush {
        /// Number of the disk.
        disk: usize,
        /// Only what touches the pages of these bytes; `None` for everything.
        part: Option<Range<u64>>,
    },
    /// A disk was told to make what was written durable, failed, and lost it.
    LostWrites {
        /// Number of the disk.
        disk: usize,
        /// As of a flush.
        part: Option<Range<u64>>,
    },
}

impl Event {
    /// The disk that it happened to.
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
                ..
            } => content.clear(*offset_bytes, *length_bytes),
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

/// What becomes of requests that were not flushed when the power is cut.
#[derive(Debug, Clone)]
pub enum PowerCut {
    /// All of them reached the disk.
    EverythingWritten,
    /// None of them did.
    NothingUnflushed,
    /// Each of them did or did not, and some only in part (torn between sectors), as the seed says.
    Torn(Seed),
    /// Only the first so many of each disk did, in order.
    First(usize),
    /// All but this one did (counted over all disks from the oldest).
    AllBut(usize),
    /// Just these did (counted over all disks from the oldest), whole or in part.
    Only(BTreeMap<usize, Kept>),
}

/// How much of a request reached the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// All.
    Whole,
    /// Of a write, these of its sectors.
    Sectors(Range<usize>),
}

/// Everything that happened to the disks of a world since it was last rebuilt.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    pub(crate) start: Vec<(Content, u32)>,
    pub(crate) events: Vec<Event>,
}

impl Journal {
    /// How many things happened: power can be cut at any number up to this.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }
    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
    /// What happened, oldest first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
    /// The disks' contents, had the power been cut after the first `count` events.
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
    /// The requests among the first `count` events that no flush covers, oldest first: what
    /// [`PowerCut::AllBut`] and [`PowerCut::Only`] count in. Of a write how many sectors it has; 1 of others.
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
                // A disk may write its cache back in any order; where two overlap, either may win.
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
                                keep_sectors(event, &mut disks[number], sector, range);
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
fn keep_sectors(event: &Event, content: &mut Content, sector: u32, range: &Range<usize>) {
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
        if range.contains(&index) {
            content.write(offset_bytes + (index * sector) as u64, piece);
        }
    }
}

/// Applies all, nothing, or some sectors of a write.
fn tear(event: &Event, content: &mut Content, sector: u32, seed: &mut Seed) {
    match seed.below(4) {
        0 => {}
        1 | 2 => event.apply(content),
        _ => {
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
                if seed.below(2) == 0 {
                    content.write(offset_bytes + (index * sector) as u64, piece);
                }
            }
        }
    }
}
