//! A part of the cache, behind one lock: the adaptive replacement.

use crate::expanded::Expanded;
use crate::ghost::Ghosts;
use crate::lists::Lists;
use crate::{CacheStatistics, Class, Forms, Outcome, Retention};
use hashbrown::HashTable;

/// Prefetched and not requested yet, or requested in part.
pub(crate) const SPECULATIVE: usize = 4;
/// The list of entries that were requested once lately, or more often. Ghosts are on the list that their entry was on.
pub(crate) const fn list_of(class: Class, is_frequent: bool) -> usize {
    class as usize * 2 + is_frequent as usize
}

/// Requests of an entry count as one until the shard has seen this many events: one reader often asks for a
/// block many times in a row.
const ONE_USE_EVENTS: u64 = 16;

/// The whole of a target that is kept as a fraction.
const WHOLE: u64 = 1 << 16;
/// Targets stay between this and the rest of the whole, so that no list is starved.
const SHARE_MIN: u64 = WHOLE / 32;
/// How much more a missed block of metadata counts than one of data. Reads of metadata wait for one another,
/// and many more blocks are found through each.
const METADATA_FACTOR: u64 = 4;

#[derive(Debug)]
pub(crate) struct Item<K, V> {
    key: K,
    /// The compact form, or the only one.
    value: V,
    /// What look-ups find instead.
    pub(crate) expanded: Option<Expanded<V>>,
    /// What the content is charged with in the statistics, expanded or not, in bytes.
    content_bytes: u64,
    hash: u64,
    class: Class,
    /// The events that the shard had seen when the entry's present use began.
    used_at: u64,
    /// Requests so far, 255 at most.
    requests: u8,
    /// Whether its key was evicted a short while ago.
    has_returned: bool,
    /// Whether it may be copied elsewhere.
    is_candidate: bool,
}

impl<K, V: Clone> Item<K, V> {
    /// The form that a look-up finds.
    fn form(&self) -> V {
        match &self.expanded {
            Some(expanded) => expanded.value.clone(),
            None => self.value.clone(),
        }
    }
    /// The key and the compact form, if it may be copied elsewhere.
    pub(crate) fn candidate(&self) -> Option<(&K, &V)> {
        self.is_candidate.then_some((&self.key, &self.value))
    }
    /// The form that a request finds.
    fn request_form(&mut self) -> V {
        match &mut self.expanded {
            Some(expanded) => {
                expanded.is_used = true;
                expanded.value.clone()
            }
            None => self.value.clone(),
        }
    }
}

/// An entry that is no longer in the cache.
pub(crate) struct Removed<V> {
    compact: V,
    expanded: Option<V>,
    /// What both forms weighed, in bytes.
    weight_bytes: u64,
    /// What the compact form weighed, in bytes.
    compact_bytes: u64,
}

impl<V> Removed<V> {
    /// All forms.
    fn forms(self) -> impl Iterator<Item = V> {
        [Some(self.compact), self.expanded].into_iter().flatten()
    }
    /// The form that a look-up would have found. The other one is added to `gone`.
    fn form(self, gone: &mut Vec<V>) -> V {
        match self.expanded {
            Some(expanded) => {
                gone.push(self.compact);
                expanded
            }
            None => self.compact,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shard<K, V> {
    pub(crate) lists: Lists<Item<K, V>, 5>,
    /// The slots of entries with an expanded form, see `expanded.rs`. Their weights are those of that form.
    pub(crate) expanded: Lists<u32, 2>,
    /// The sum of the entries' `content_bytes`.
    content_bytes: u64,
    table: HashTable<u32>,
    ghosts: Ghosts<4>,
    /// How much of each class's weight entries may take that were not used again, of [`WHOLE`].
    recent_share: [u64; 2],
    /// How much of the whole weight metadata may take, of [`WHOLE`].
    metadata_share: u64,
    /// Events so far: insertions and prefetch's requests for space. Time is measured in these.
    events: u64,
    statistics: CacheStatistics,
}

impl<K: Eq + Clone, V: Clone> Shard<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            lists: Lists::new(),
            expanded: Lists::new(),
            content_bytes: 0,
            table: HashTable::new(),
            ghosts: Ghosts::new(),
            recent_share: [WHOLE / 2; 2],
            metadata_share: WHOLE / 4,
            events: 0,
            statistics: CacheStatistics::default(),
        }
    }

    pub(crate) fn find(&self, hash: u64, key: &K) -> Option<u32> {
        let is_same = |slot: &u32| self.lists.item(*slot).is_some_and(|item| item.key == *key);
        self.table.find(hash, is_same).copied()
    }

    pub(crate) fn peek(&self, hash: u64, key: &K) -> Option<V> {
        let slot = self.find(hash, key)?;
        self.lists.item(slot).map(Item::form)
    }

    pub(crate) fn contains(&self, hash: u64, key: &K) -> bool {
        self.find(hash, key).is_some()
    }

    /// The value for a reader that keeps it, as a candidate or not.
    pub(crate) fn get(
        &mut self,
        hash: u64,
        key: &K,
        class: Class,
        is_candidate: bool,
    ) -> Option<V> {
        let Some(slot) = self.find(hash, key) else {
            self.count_miss(class);
            return None;
        };
        let list = self.lists.list_of(slot);
        let events = self.events;
        let item = self.lists.item_mut(slot)?;
        let value = item.request_form();
        item.is_candidate |= is_candidate;
        item.requests = item.requests.saturating_add(1);
        let is_again = events - item.used_at >= ONE_USE_EVENTS;
        self.statistics.demand.hits += 1;
        self.statistics.demand.metadata_hits += u64::from(item.class == Class::Metadata);
        let class = item.class;
        if list == SPECULATIVE {
            item.used_at = events;
            let is_frequent = item.has_returned;
            self.statistics.speculative_used += u64::from(item.requests == 1);
            let place = item.expanded.as_ref().map(|expanded| expanded.place);
            self.lists.move_to(slot, list_of(class, is_frequent));
            self.note_requested(place);
        } else if list == list_of(class, true) {
            self.statistics.frequent_hits += 1;
            self.lists.move_to(slot, list);
        } else {
            self.statistics.recent_hits += 1;
            if is_again {
                item.used_at = events;
                self.lists.move_to(slot, list_of(class, true));
            } else {
                self.lists.move_to(slot, list);
            }
        }
        Some(value)
    }

    /// The value for a reader that does not keep it. What else there was of a removed entry is added to `gone`.
    pub(crate) fn get_transient(
        &mut self,
        hash: u64,
        key: &K,
        class: Class,
        retention: Retention,
        gone: &mut Vec<V>,
    ) -> Option<V> {
        let Some(slot) = self.find(hash, key) else {
            self.count_miss(class);
            return None;
        };
        let is_speculative = self.lists.list_of(slot) == SPECULATIVE;
        let events = self.events;
        let item = self.lists.item_mut(slot)?;
        let is_first = item.requests == 0;
        item.requests = item.requests.saturating_add(1);
        self.statistics.demand.hits += 1;
        self.statistics.demand.metadata_hits += u64::from(item.class == Class::Metadata);
        self.statistics.transient_hits += 1;
        self.statistics.speculative_used += u64::from(is_speculative && is_first);
        if retention == Retention::Drop {
            return self.remove_slot(hash, slot).map(|entry| entry.form(gone));
        }
        let value = item.request_form();
        if is_speculative {
            item.used_at = events;
            self.lists.move_to(slot, SPECULATIVE);
        }
        Some(value)
    }

    fn count_miss(&mut self, class: Class) {
        self.statistics.demand.misses += 1;
        self.statistics.demand.metadata_misses += u64::from(class == Class::Metadata);
    }

    /// Takes the count of a miss back.
    pub(crate) fn uncount_miss(&mut self, class: Class) {
        let (demand, is_metadata) = (&mut self.statistics.demand, class == Class::Metadata);
        demand.misses = demand.misses.saturating_sub(1);
        demand.metadata_misses = (demand.metadata_misses).saturating_sub(is_metadata.into());
    }

    pub(crate) fn count_io_hit(&mut self, class: Class) {
        self.statistics.demand.io_hits += 1;
        self.statistics.demand.metadata_io_hits += u64::from(class == Class::Metadata);
    }

    pub(crate) fn count_prefetch(&mut self, class: Class, outcome: Outcome) {
        let counts = &mut self.statistics.prefetch;
        let (all, of_metadata) = match outcome {
            Outcome::Hit => (&mut counts.hits, &mut counts.metadata_hits),
            Outcome::IoHit => (&mut counts.io_hits, &mut counts.metadata_io_hits),
            Outcome::Miss => (&mut counts.misses, &mut counts.metadata_misses),
        };
        *all += 1;
        *of_metadata += u64::from(class == Class::Metadata);
    }

    /// Uses an entry as a look-up does, but counts only that a prefetched one was used. Adds a removed value to
    /// `gone`.
    pub(crate) fn note_used(
        &mut self,
        hash: u64,
        key: &K,
        class: Class,
        retention: Retention,
        gone: &mut Vec<V>,
    ) {
        let before = self.statistics;
        let value = match retention {
            Retention::Keep => self.get(hash, key, class, true),
            Retention::KeepInMemory => self.get(hash, key, class, false),
            other => self.get_transient(hash, key, class, other, gone),
        };
        self.statistics = CacheStatistics {
            speculative_used: self.statistics.speculative_used,
            ..before
        };
        gone.extend(value.filter(|_| retention == Retention::Drop));
    }

    pub(crate) fn insert(&mut self, mut new: New<K, V>, share_bytes: u64, gone: &mut Vec<V>) {
        if let Some(slot) = self.find(new.hash, &new.key) {
            gone.extend(
                self.remove_slot(new.hash, slot)
                    .into_iter()
                    .flat_map(Removed::forms),
            );
        }
        if new.forms.weight_bytes() > share_bytes / 8 * 7 {
            gone.extend(new.forms.expanded.take().map(|(value, _)| value));
        }
        if new.forms.weight_bytes() > share_bytes / 8 * 7 {
            return;
        }
        let has_returned = self.learn(new.hash, share_bytes);
        let expanded_bytes = new.forms.expanded_bytes();
        self.make_space(new.forms.weight_bytes(), expanded_bytes, share_bytes, gone);
        let list = list_of(new.class, has_returned);
        self.put(new, list, has_returned);
    }

    fn put(&mut self, new: New<K, V>, list: usize, has_returned: bool) {
        self.events += 1;
        let item = Item {
            key: new.key,
            value: new.forms.compact,
            expanded: None,
            content_bytes: new.forms.content_bytes,
            hash: new.hash,
            class: new.class,
            used_at: self.events,
            // A prefetched value becomes one when it is requested.
            is_candidate: new.is_candidate && new.requests > 0,
            requests: new.requests,
            has_returned,
        };
        let Some(slot) = self.lists.push(list, item, new.forms.compact_bytes) else {
            return;
        };
        self.content_bytes += new.forms.content_bytes;
        let lists = &self.lists;
        let hash_of = |slot: &u32| lists.item(*slot).map_or(0, |item| item.hash);
        self.table.insert_unique(new.hash, slot, hash_of);
        if let Some((value, weight_bytes)) = new.forms.expanded {
            self.attach(slot, value, weight_bytes);
        }
    }

    /// Learns from a key that comes back soon after it was evicted: its list should have been larger. Returns
    /// whether it does.
    fn learn(&mut self, hash: u64, share_bytes: u64) -> bool {
        let Some((list, weight_bytes)) = self.ghosts.forget(hash) else {
            return false;
        };
        let (class, is_frequent) = (list / 2, list % 2 == 1);
        let is_metadata = class == Class::Metadata as usize;
        self.statistics.ghost_hits += 1;
        self.statistics.frequent_ghost_hits += u64::from(is_frequent);
        // A list with few ghosts is learnt from as fast as one with many.
        let own = self.ghosts.weight_bytes(list).max(1);
        let factor = (self.ghosts.weight_bytes(list ^ 1) / own).clamp(1, 16);
        let step = (weight_bytes * WHOLE / share_bytes.max(1)).max(1);
        let share = &mut self.recent_share[class];
        *share = shifted(*share, step * factor, !is_frequent);
        let weight = if is_metadata { METADATA_FACTOR } else { 1 };
        self.metadata_share = shifted(self.metadata_share, step * weight, is_metadata);
        true
    }

    /// Evicts until `weight_bytes` more fit into the share, of which `expanded_bytes` are an expanded form.
    pub(crate) fn make_space(
        &mut self,
        weight_bytes: u64,
        expanded_bytes: u64,
        share_bytes: u64,
        gone: &mut Vec<V>,
    ) {
        while self.lists.weight_bytes() + weight_bytes > share_bytes {
            if self.collapse_one(expanded_bytes, share_bytes, gone) {
                continue;
            }
            let victim = (self.stale_speculative())
                .or_else(|| self.victim(share_bytes))
                .or_else(|| self.lists.oldest(SPECULATIVE));
            let Some(victim) = victim else { return };
            self.evict(victim, share_bytes, gone);
        }
    }

    /// Evicts what a lower limit has no space for. Speculative entries keep to their share of it.
    pub(crate) fn shrink(&mut self, share_bytes: u64, gone: &mut Vec<V>) {
        while self.lists.list(SPECULATIVE).weight_bytes > share_bytes / 4 {
            let Some(victim) = self.lists.oldest(SPECULATIVE) else {
                break;
            };
            self.evict(victim, share_bytes, gone);
        }
        self.make_space(0, 0, share_bytes, gone);
    }

    /// The entry that is evicted next: from the class above its target, and there from the list above its
    /// target.
    fn victim(&self, share_bytes: u64) -> Option<u32> {
        let weight = |class, is_frequent| self.lists.list(list_of(class, is_frequent)).weight_bytes;
        let of_class = |class| weight(class, false) + weight(class, true);
        let metadata_bytes = of_class(Class::Metadata);
        let is_above = metadata_bytes > scaled(share_bytes, self.metadata_share);
        let class = match is_above || of_class(Class::Data) == 0 {
            true => Class::Metadata,
            false => Class::Data,
        };
        let recent_max = scaled(of_class(class), self.recent_share[class as usize]);
        let is_recent = weight(class, false) > recent_max || weight(class, true) == 0;
        self.lists.oldest(list_of(class, !is_recent))
    }

    fn evict(&mut self, slot: u32, share_bytes: u64, gone: &mut Vec<V>) {
        let list = self.lists.list_of(slot);
        let Some(hash) = self.lists.item(slot).map(|item| item.hash) else {
            return;
        };
        let Some(entry) = self.remove_slot(hash, slot) else {
            return;
        };
        self.statistics.evicted += 1;
        self.statistics.evicted_bytes += entry.weight_bytes;
        if list != SPECULATIVE {
            self.ghosts
                .add(list, hash, entry.compact_bytes, share_bytes);
        }
        gone.extend(entry.forms());
    }

    /// The oldest speculative entry, if it is stale: since it was inserted, the shard has seen more than
    /// two events for each entry, plus 64. Its reader is unlikely to come.
    fn stale_speculative(&self) -> Option<u32> {
        let slot = self.lists.oldest(SPECULATIVE)?;
        let events_max = self.lists.len() * 2 + 64;
        let age = self.events - self.lists.item(slot)?.used_at;
        (age > events_max).then_some(slot)
    }

    pub(crate) fn has_room_for_speculative(
        &mut self,
        weight_bytes: u64,
        share_bytes: u64,
        gone: &mut Vec<V>,
    ) -> bool {
        // Each request for space ages the existing entries, so that it succeeds in the end.
        self.events += 1;
        while self.lists.list(SPECULATIVE).weight_bytes + weight_bytes > share_bytes / 4 {
            let Some(victim) = self.stale_speculative() else {
                return false;
            };
            self.evict(victim, share_bytes, gone);
        }
        let frequent = [Class::Data, Class::Metadata].map(|class| list_of(class, true));
        let held =
            [frequent[0], frequent[1], SPECULATIVE].map(|list| self.lists.list(list).weight_bytes);
        let held = held.iter().sum::<u64>();
        held.saturating_sub(self.collapsible_bytes(share_bytes)) + weight_bytes <= share_bytes
    }

    /// Returns whether the entry was kept.
    pub(crate) fn insert_speculative(
        &mut self,
        new: New<K, V>,
        share_bytes: u64,
        gone: &mut Vec<V>,
    ) -> bool {
        if self.contains(new.hash, &new.key) {
            return true;
        }
        let weight_bytes = new.forms.weight_bytes();
        if !self.has_room_for_speculative(weight_bytes, share_bytes, gone) {
            return false;
        }
        while self.lists.weight_bytes() + weight_bytes > share_bytes {
            if self.collapse_one(0, share_bytes, gone) {
                continue;
            }
            let recent = [Class::Data, Class::Metadata].map(|class| list_of(class, false));
            let victim = recent.iter().find_map(|list| self.lists.oldest(*list));
            let Some(victim) = victim else { return false };
            self.evict(victim, share_bytes, gone);
        }
        let has_returned = self.learn(new.hash, share_bytes);
        self.put(new, SPECULATIVE, has_returned);
        true
    }

    pub(crate) fn take_if_used_once(&mut self, hash: u64, key: &K, gone: &mut Vec<V>) -> Option<V> {
        let slot = self.find(hash, key)?;
        let item = self.lists.item(slot)?;
        let is_once = item.requests == 1 && self.lists.list_of(slot) != SPECULATIVE;
        is_once.then(|| self.remove(hash, key, gone))?
    }

    /// Removes an entry and returns the form that a look-up would have found. The other is added to `gone`.
    pub(crate) fn remove(&mut self, hash: u64, key: &K, gone: &mut Vec<V>) -> Option<V> {
        let slot = self.find(hash, key)?;
        self.remove_slot(hash, slot).map(|entry| entry.form(gone))
    }

    /// Removes the entries with this hash whose key is chosen.
    pub(crate) fn remove_each(
        &mut self,
        hash: u64,
        is_chosen: &impl Fn(&K) -> bool,
        gone: &mut Vec<V>,
    ) {
        loop {
            let is_wanted =
                |slot: &u32| (self.lists.item(*slot)).is_some_and(|item| is_chosen(&item.key));
            let Some(slot) = self.table.find(hash, is_wanted).copied() else {
                return;
            };
            let removed = self.remove_slot(hash, slot);
            gone.extend(removed.into_iter().flat_map(Removed::forms));
        }
    }

    fn remove_slot(&mut self, hash: u64, slot: u32) -> Option<Removed<V>> {
        if let Ok(found) = self.table.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        let expanded = self.collapse(slot);
        let expanded_bytes = expanded.as_ref().map_or(0, |(_, bytes)| *bytes);
        let (item, compact_bytes) = self.lists.remove(slot)?;
        self.content_bytes -= item.content_bytes;
        Some(Removed {
            compact: item.value,
            expanded: expanded.map(|(value, _)| value),
            weight_bytes: compact_bytes + expanded_bytes,
            compact_bytes,
        })
    }

    /// Removes the entries whose key is chosen.
    pub(crate) fn remove_where(&mut self, is_chosen: &impl Fn(&K) -> bool, gone: &mut Vec<V>) {
        let slots = self.lists.slots().filter(|(_, item)| is_chosen(&item.key));
        let chosen: Vec<(u32, u64)> = slots.map(|(slot, item)| (slot, item.hash)).collect();
        for (slot, hash) in chosen {
            gone.extend(
                self.remove_slot(hash, slot)
                    .into_iter()
                    .flat_map(Removed::forms),
            );
        }
        if self.lists.len() == 0 {
            self.lists.shrink();
            self.expanded.shrink();
            self.table = HashTable::new();
            self.ghosts = Ghosts::new();
        }
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        let weight = |list: usize| self.lists.list(list).weight_bytes;
        let frequent = |class| weight(list_of(class, true));
        let of_class = |class| weight(list_of(class, false)) + frequent(class);
        CacheStatistics {
            weight_bytes: self.lists.weight_bytes(),
            expanded_bytes: self.expanded.weight_bytes(),
            content_bytes: self.content_bytes,
            entries: self.lists.len(),
            speculative_bytes: weight(SPECULATIVE),
            metadata_bytes: of_class(Class::Metadata),
            data_bytes: of_class(Class::Data),
            frequent_bytes: frequent(Class::Data) + frequent(Class::Metadata),
            ghost_bytes: (0..4).map(|list| self.ghosts.weight_bytes(list)).sum(),
            frequent_ghost_bytes: [Class::Data, Class::Metadata]
                .map(|class| self.ghosts.weight_bytes(list_of(class, true)))
                .iter()
                .sum(),
            ..self.statistics
        }
    }
}

/// An entry to be inserted.
pub(crate) struct New<K, V> {
    pub(crate) key: K,
    pub(crate) forms: Forms<V>,
    pub(crate) hash: u64,
    pub(crate) class: Class,
    /// Requests so far: none for a prefetched entry.
    pub(crate) requests: u8,
    pub(crate) is_candidate: bool,
}

fn scaled(bytes: u64, share: u64) -> u64 {
    (u128::from(bytes) * u128::from(share) / u128::from(WHOLE)) as u64
}

fn shifted(share: u64, step: u64, is_up: bool) -> u64 {
    let moved = match is_up {
        true => share.saturating_add(step),
        false => share.saturating_sub(step),
    };
    moved.clamp(SHARE_MIN, WHOLE - SHARE_MIN)
}
