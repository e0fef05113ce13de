//! An index of the names in a microzap.
//!
//! Finding a name in a microzap, or the differentiator for a new one, means looking at up to 2047 entries. A
//! caller that uses one microzap often, as a directory, keeps an index of it.

use crate::{Zap, ZapError};
use millpond_ondisk::zap::{MicroZap, MicroZapEntry};
use millpond_ondisk::{BlockId, DecodeError};
use std::collections::BTreeSet;

/// The fewest slots that are worth an index.
const SLOTS_MIN: u16 = 64;

/// The slots of a microzap by the hash of their names, and its free slots.
///
/// About 12 bytes for each entry. The index does not notice when the block changes: it is valid for one object
/// until something else changes that object, and the caller has to drop it then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroIndex {
    used: BTreeSet<Key>,
    free: BTreeSet<u16>,
    slots: u16,
}

/// The place of an entry: its hash (the upper 32 bits, the others are always 0), its differentiator, and its
/// slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    hash: u32,
    cd: u16,
    slot: u16,
}

impl Key {
    fn new(hash: u64, cd: u32, slot: usize) -> Option<Self> {
        Some(Self {
            hash: upper(hash)?,
            cd: u16::try_from(cd).ok()?,
            slot: u16::try_from(slot).ok()?,
        })
    }
}

fn upper(hash: u64) -> Option<u32> {
    let upper = u32::try_from(hash >> 32).ok()?;
    (u64::from(upper) << 32 == hash).then_some(upper)
}

impl Zap {
    /// Makes an index of a microzap. `None` for a fat ZAP, for a microzap of fewer than 64 slots, in which a
    /// search is as fast, and for one that no correct writer produces.
    ///
    /// # Errors
    /// If the microzap is corrupt, or requires a folding that does not exist.
    pub fn micro_index(&self) -> Result<Option<MicroIndex>, ZapError> {
        if self.header().is_some() {
            return Ok(None);
        }
        let corrupt = |error| self.corrupt(BlockId(0), error);
        let (micro, normalisation) = (self.micro()?, self.normalisation()?);
        let slots = u16::try_from(micro.slots()).ok();
        let Some(slots) = slots.filter(|slots| *slots >= SLOTS_MIN) else {
            return Ok(None);
        };
        let mut index = MicroIndex {
            used: BTreeSet::new(),
            free: (0..slots).collect(),
            slots,
        };
        for entry in micro.entries() {
            let (slot, entry) = entry.map_err(corrupt)?;
            let form = normalisation.apply(entry.name).ok_or_else(|| {
                corrupt(DecodeError::new("microzap", "name has no hash form", 64))
            })?;
            if index
                .add(self.hashing.name(&form), entry.cd, slot)
                .is_none()
            {
                return Ok(None);
            }
        }
        Ok(Some(index))
    }
}

impl MicroIndex {
    /// The number of slots of the microzap.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.into()
    }

    /// The entries with this hash, by differentiator.
    fn keys(&self, hash: u64) -> impl Iterator<Item = &Key> {
        let range = upper(hash).map(|hash| {
            let key = |cd, slot| Key { hash, cd, slot };
            self.used.range(key(0, 0)..=key(u16::MAX, u16::MAX))
        });
        range.into_iter().flatten()
    }

    /// The entry with this hash that `is_wanted` accepts, and its slot; if there are several, the one with the
    /// lowest differentiator.
    pub(crate) fn find<'b>(
        &self,
        micro: &MicroZap<'b>,
        hash: u64,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<(usize, MicroZapEntry<'b>)>, DecodeError> {
        for key in self.keys(hash) {
            let slot = usize::from(key.slot);
            if let Some(entry) = micro.entry(slot)?
                && is_wanted(entry.name)
            {
                return Ok(Some((slot, entry)));
            }
        }
        Ok(None)
    }

    /// The first free slot, and the differentiators of all entries with this hash.
    pub(crate) fn room_for(&self, hash: u64) -> (Option<usize>, Vec<u32>) {
        let used = self.keys(hash).map(|key| u32::from(key.cd));
        (self.free.first().copied().map(usize::from), used.collect())
    }

    /// Records a new entry. `None`, with the index unusable, if no index can hold it.
    pub(crate) fn add(&mut self, hash: u64, cd: u32, slot: usize) -> Option<()> {
        let key = Key::new(hash, cd, slot)?;
        self.free.remove(&key.slot);
        self.used.insert(key);
        Some(())
    }

    /// Records that an entry was removed.
    pub(crate) fn remove(&mut self, hash: u64, cd: u32, slot: usize) {
        if let Some(key) = Key::new(hash, cd, slot)
            && self.used.remove(&key)
        {
            self.free.insert(key.slot);
        }
    }

    /// Records that the microzap has grown. `None`, with the index unusable, if no index can hold that.
    pub(crate) fn grow(&mut self, slots: usize) -> Option<()> {
        let slots = u16::try_from(slots).ok()?;
        self.free.extend(self.slots..slots);
        self.slots = self.slots.max(slots);
        Some(())
    }
}
