//! The second level of a shard: expanded forms of its values.
//!
//! While the shard has space, every expanded form stays. When space is needed, expanded forms above their share
//! go first: the one that is oldest and was not requested since it was passed over last (the "clock" or
//! second-chance rule, so that a hit only sets a flag). Those of speculative entries stay until the entry was
//! requested: their share is that of the speculative entries.

use crate::Forms;
use crate::shard::{SPECULATIVE, Shard};

/// The expanded forms of requested entries.
const REQUESTED: usize = 0;
/// The expanded forms of speculative entries.
const NOT_REQUESTED: usize = 1;

/// What the expanded forms of a shard may weigh in any case, in bytes, if that is at most a quarter of its
/// share: a few of the usual records.
const EXPANDED_BYTES_MIN: u64 = 4 << 20;

/// The expanded form of an entry.
#[derive(Debug)]
pub(crate) struct Expanded<V> {
    pub(crate) value: V,
    weight_bytes: u64,
    /// Its slot in `Shard::expanded`.
    pub(crate) place: u32,
    /// Whether it was requested since it was passed over last.
    pub(crate) is_used: bool,
}

/// What the expanded forms of requested entries may weigh when space is needed, in bytes: a 32nd of the shard.
fn expanded_bytes_max(share_bytes: u64) -> u64 {
    (share_bytes / 32).max(EXPANDED_BYTES_MIN.min(share_bytes / 4))
}

impl<K: Eq + Clone, V: Clone> Shard<K, V> {
    /// Adds an expanded form to an entry that has none.
    pub(crate) fn attach(&mut self, slot: u32, value: V, weight_bytes: u64) {
        let list = match self.lists.list_of(slot) == SPECULATIVE {
            true => NOT_REQUESTED,
            false => REQUESTED,
        };
        let Some(place) = self.expanded.push(list, slot, weight_bytes) else {
            return;
        };
        let total_bytes = self.lists.weight_of(slot) + weight_bytes;
        self.lists.set_weight(slot, total_bytes);
        if let Some(item) = self.lists.item_mut(slot) {
            item.expanded = Some(Expanded {
                value,
                weight_bytes,
                place,
                is_used: false,
            });
        }
    }

    /// Adds an expanded form to the entry of a key, if there is one without.
    pub(crate) fn expand(
        &mut self,
        hash: u64,
        key: &K,
        (value, weight_bytes): (V, u64),
        share_bytes: u64,
        gone: &mut Vec<V>,
    ) {
        let slot_without = |shard: &Self| {
            let slot = shard.find(hash, key)?;
            let item = shard.lists.item(slot)?;
            item.expanded.is_none().then_some(slot)
        };
        let Some(slot) = slot_without(self) else {
            return;
        };
        if self.lists.weight_of(slot) + weight_bytes > share_bytes / 8 * 7 {
            return;
        }
        // Expanded forms count against the share of speculative entries, too.
        let speculative_bytes = self.lists.list(SPECULATIVE).weight_bytes + weight_bytes;
        if self.lists.list_of(slot) == SPECULATIVE && speculative_bytes > share_bytes / 4 {
            return;
        }
        self.make_space(weight_bytes, weight_bytes, share_bytes, gone);
        // Making space may have evicted the entry itself.
        if let Some(slot) = slot_without(self) {
            self.attach(slot, value, weight_bytes);
        }
    }

    /// Says that an entry was requested that was speculative until now.
    pub(crate) fn note_requested(&mut self, place: Option<u32>) {
        if let Some(place) = place {
            self.expanded.move_to(place, REQUESTED);
        }
    }

    /// Removes the expanded form of an entry. Returns it with its weight in bytes.
    pub(crate) fn collapse(&mut self, slot: u32) -> Option<(V, u64)> {
        let expanded = self.lists.item_mut(slot)?.expanded.take()?;
        self.expanded.remove(expanded.place);
        let compact_bytes = self.lists.weight_of(slot) - expanded.weight_bytes;
        self.lists.set_weight(slot, compact_bytes);
        Some((expanded.value, expanded.weight_bytes))
    }

    /// What the expanded forms weigh above their share, in bytes.
    pub(crate) fn collapsible_bytes(&self, share_bytes: u64) -> u64 {
        let bytes = self.expanded.list(REQUESTED).weight_bytes;
        bytes.saturating_sub(expanded_bytes_max(share_bytes))
    }

    /// Removes one expanded form if, with `new_bytes` more, they weigh more than their share. Returns whether
    /// it did.
    pub(crate) fn collapse_one(
        &mut self,
        new_bytes: u64,
        share_bytes: u64,
        gone: &mut Vec<V>,
    ) -> bool {
        let requested = *self.expanded.list(REQUESTED);
        if requested.weight_bytes + new_bytes <= expanded_bytes_max(share_bytes) {
            return false;
        }
        // Each is passed over at most once.
        for _ in 0..=requested.entries {
            let Some(place) = self.expanded.oldest(REQUESTED) else {
                return false;
            };
            let slot = self.expanded.item(place).copied().unwrap_or(u32::MAX);
            let expanded = (self.lists.item_mut(slot)).and_then(|item| item.expanded.as_mut());
            match expanded {
                Some(expanded) if expanded.is_used => {
                    expanded.is_used = false;
                    self.expanded.move_to(place, REQUESTED);
                }
                _ => {
                    gone.extend(self.collapse(slot).map(|(value, _)| value));
                    return true;
                }
            }
        }
        false
    }
}

impl<V> Forms<V> {
    /// What all forms weigh, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.compact_bytes.saturating_add(self.expanded_bytes())
    }
    /// What the expanded form weighs, in bytes.
    pub(crate) fn expanded_bytes(&self) -> u64 {
        self.expanded.as_ref().map_or(0, |(_, bytes)| *bytes)
    }
}
