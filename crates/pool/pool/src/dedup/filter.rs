//! Tells most keys that a table does not have from those that it may have, without reading the table.
//!
//! A Bloom filter over the stored keys: two bytes for each. The filter of a new table is complete from the start. That of a
//! table that was found grows while blocks are written, one part of the table at a time in the order in which it is
//! stored; until it is complete every key may be there. A key that it does not know although the table has it would be
//! taken for one of a block without further references, so every entry that is stored is entered.

use super::WHAT;
use super::table::{Table, key_of};
use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::SyncContext;
use millpond_env::mark;
use millpond_ondisk::dedup::{DedupClass, DedupKey};

/// Bits for each key.
const BITS_PER_KEY: u64 = 16;
/// Bits that are set for each key.
const PROBES: u64 = 8;
const BITS_MIN: u64 = 1 << 20;
/// 64 MiB: good for 32 million keys, and better than nothing for more.
const BITS_MAX: u64 = 1 << 29;
/// A few megabytes of a table.
const STEP_ENTRIES: usize = 16 << 10;

/// The filter of one table.
#[derive(Debug)]
pub(super) struct Filter {
    words: Vec<u64>,
    /// Keys that were not known when they were entered.
    keys: u64,
    /// Where reading the objects of the classes continues; `None` when the filter is complete.
    progress: Option<Progress>,
    /// The most entries of the table that are read at a time to complete the filter.
    pub(super) step_entries: usize,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    class: usize,
    cookie: u64,
}

impl Filter {
    /// A filter for a table with this number of stored entries.
    pub(super) fn new(entries: u64) -> Self {
        let bits = entries.saturating_mul(2).saturating_mul(BITS_PER_KEY);
        let bits = bits.clamp(BITS_MIN, BITS_MAX).next_power_of_two();
        let start = Progress {
            class: 0,
            cookie: 0,
        };
        Self {
            words: vec![0; usize::try_from(bits / 64).unwrap_or(1)],
            keys: 0,
            progress: (entries > 0).then_some(start),
            step_entries: STEP_ENTRIES,
        }
    }

    fn bits(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    fn probes(&self, key: &DedupKey) -> impl Iterator<Item = (usize, u64)> + use<> {
        // Checksums are as good as random.
        let [first, second, ..] = key.checksum;
        let mask = self.bits() - 1;
        (0..PROBES).map(move |probe| {
            let step = (second | 1).wrapping_mul(probe);
            let bit = first.rotate_left(32).wrapping_add(step) & mask;
            (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
        })
    }

    pub(super) fn insert(&mut self, key: &DedupKey) {
        let mut is_new = false;
        for (word, bit) in self.probes(key) {
            if let Some(word) = self.words.get_mut(word) {
                is_new |= *word & bit == 0;
                *word |= bit;
            }
        }
        self.keys = self.keys.saturating_add(u64::from(is_new));
    }

    /// Whether the table may have the key.
    pub(super) fn may_have(&self, key: &DedupKey) -> bool {
        let has = |(word, bit): (usize, u64)| self.words.get(word).is_some_and(|w| w & bit != 0);
        self.progress.is_some() || self.probes(key).all(has)
    }

    /// Whether more keys were inserted than it was made for.
    fn is_crowded(&self) -> bool {
        self.bits() < BITS_MAX && self.keys.saturating_mul(BITS_PER_KEY) > self.bits()
    }
}

impl Table {
    /// Reads some more entries into a filter that is not complete.
    pub(super) fn complete_filter(&mut self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if self.filter.is_crowded() {
            let entries = self.classes.iter().map(|class| class.entries).sum();
            self.filter = Filter::new(entries);
        }
        let Some(mut progress) = self.filter.progress else {
            return Ok(());
        };
        mark::hit("dedup-filter-grows");
        let mut left = self.filter.step_entries;
        while left > 0 {
            let Some(class) = DedupClass::ALL.get(progress.class) else {
                self.filter.progress = None;
                return Ok(());
            };
            let next = Progress {
                class: progress.class + 1,
                cookie: 0,
            };
            let Some(object) = self.class_mut(*class).object else {
                progress = next;
                continue;
            };
            let mut entries = ctx
                .table(object)?
                .iter_from(progress.cookie)
                .reading(WHAT)?;
            loop {
                if left == 0 {
                    progress.cookie = entries.cookie();
                    break;
                }
                let Some(entry) = entries.next() else {
                    progress = next;
                    break;
                };
                self.filter.insert(&key_of(&entry.reading(WHAT)?)?);
                left -= 1;
            }
        }
        self.filter.progress = Some(progress);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_sim::Seed;

    #[test]
    fn it_knows_every_key_and_few_others() {
        let mut seed = Seed::new(1);
        let mut filter = Filter::new(0);
        let mut key = || DedupKey {
            checksum: [seed.bits(), seed.bits(), seed.bits(), seed.bits()],
            properties: 7,
        };
        let keys: Vec<DedupKey> = (0..60_000).map(|_| key()).collect();
        keys.iter().for_each(|key| filter.insert(key));
        assert!(keys.iter().all(|key| filter.may_have(key)));
        let false_hits = (0..10_000).filter(|_| filter.may_have(&key())).count();
        assert!(false_hits < 20, "{false_hits}");
        assert!(!filter.is_crowded());
        (0..6000).for_each(|_| filter.insert(&key()));
        assert!(filter.is_crowded());
    }
}
