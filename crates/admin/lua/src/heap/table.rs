//! Tables: a sequence of values for keys from 1 on, and entries in the order of their insertion.

use crate::value::{TableId, Value};

/// A slot of the index without an entry.
const FREE: u32 = u32::MAX;
/// Bytes of a value in an array.
pub(crate) const VALUE_BYTES: usize = size_of::<Value>();
const ENTRY_BYTES: usize = size_of::<(Value, Value)>();

/// A table without its memory accounting, which [`crate::heap::Heap`] does.
#[derive(Default)]
pub(crate) struct Table {
    /// Values of the keys 1, 2, …; some may be nil.
    array: Vec<Value>,
    /// The other keys and their values. A removed entry keeps its key, so that a traversal can go on from it.
    entries: Vec<(Value, Value)>,
    /// Positions in `entries` by hash, with linear probing. The length is 0 or a power of two.
    slots: Vec<u32>,
    pub(crate) metatable: Option<TableId>,
}

/// What must grow before a key can be inserted.
pub(crate) enum Growth {
    /// Nothing.
    None,
    /// The array, to this capacity.
    Array(usize),
    /// The entries, to this many slots; they take the values of the array if it is almost empty.
    Slots { slots: usize, with_array: bool },
}

impl Table {
    /// The place of a key in the array.
    fn array_place(&self, key: Value) -> Option<usize> {
        match key {
            Value::Integer(number) => {
                let place = usize::try_from(number).ok()?.checked_sub(1)?;
                (place < self.array.len()).then_some(place)
            }
            _ => None,
        }
    }

    /// The position of a key in `entries`, and how many slots were looked at.
    fn find(&self, key: Value, hash: u64) -> (Option<usize>, usize) {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = hash as usize & mask;
        for step in 0..self.slots.len() {
            match self.slots[place] {
                FREE => return (None, step),
                entry if self.entries[entry as usize].0 == key => {
                    return (Some(entry as usize), step);
                }
                _ => place = (place + 1) & mask,
            }
        }
        (None, self.slots.len())
    }

    /// The value of a key, and how many slots were looked at in vain.
    pub(crate) fn get(&self, key: Value, hash: u64) -> (Value, usize) {
        if let Some(place) = self.array_place(key) {
            return (self.array[place], 0);
        }
        let (found, steps) = self.find(key, hash);
        (
            found.map_or(Value::Nil, |entry| self.entries[entry].1),
            steps,
        )
    }

    /// Sets the value of a key that the table has, perhaps with the value nil. Returns whether it has the key, and how
    /// many slots were looked at in vain.
    pub(crate) fn replace(&mut self, key: Value, hash: u64, value: Value) -> (bool, usize) {
        if let Some(place) = self.array_place(key) {
            self.array[place] = value;
            return (true, 0);
        }
        let (found, steps) = self.find(key, hash);
        if let Some(entry) = found {
            self.entries[entry].1 = value;
        }
        (found.is_some(), steps)
    }

    /// Whether a new key belongs to the array.
    fn extends_array(&self, key: Value) -> bool {
        matches!(key, Value::Integer(number) if usize::try_from(number) == Ok(self.array.len() + 1))
    }

    /// What must grow before the table can take a new key.
    pub(crate) fn growth(&self, key: Value) -> Growth {
        if self.extends_array(key) {
            if self.array.len() < self.array.capacity() {
                return Growth::None;
            }
            let live = self.array.iter().filter(|value| **value != Value::Nil);
            // A queue leaves nothing but nils behind: its values move to the entries.
            if self.array.len() < 64 || live.count() * 4 >= self.array.len() {
                return Growth::Array((self.array.capacity() * 2).max(4));
            }
        } else if self.entries.len() < entries_max(self.slots.len()) {
            return Growth::None;
        }
        let live = self
            .entries
            .iter()
            .filter(|(_, value)| *value != Value::Nil);
        let mut live = live.count() + 1;
        let with_array = self.extends_array(key);
        if with_array {
            live += self
                .array
                .iter()
                .filter(|value| **value != Value::Nil)
                .count();
        }
        // A third is left free, so that the next growth is far away.
        let slots = (live * 2).next_power_of_two().max(4);
        Growth::Slots { slots, with_array }
    }

    /// The bytes that a growth needs in addition, while the old parts are still there.
    pub(crate) fn growth_bytes(&self, growth: &Growth) -> usize {
        match growth {
            Growth::None => 0,
            Growth::Array(capacity) => capacity.saturating_mul(VALUE_BYTES),
            Growth::Slots { slots, .. } => slots_bytes(*slots),
        }
    }

    /// Makes the space that [`Table::growth`] asked for.
    pub(crate) fn grow(&mut self, growth: &Growth, hash: impl Fn(Value) -> u64) {
        match growth {
            Growth::None => {}
            Growth::Array(capacity) => {
                self.array
                    .reserve_exact(capacity.saturating_sub(self.array.len()));
            }
            Growth::Slots { slots, with_array } => self.rebuild(*slots, *with_array, hash),
        }
    }

    fn rebuild(&mut self, slots: usize, with_array: bool, hash: impl Fn(Value) -> u64) {
        let mut entries = Vec::with_capacity(entries_max(slots));
        if with_array {
            let array = std::mem::take(&mut self.array);
            let numbered = (1..).map(Value::Integer).zip(array);
            entries.extend(numbered.filter(|(_, value)| *value != Value::Nil));
        }
        let old = self.entries.iter().copied();
        entries.extend(old.filter(|(_, value)| *value != Value::Nil));
        self.entries = entries;
        self.slots = vec![FREE; slots];
        for entry in 0..self.entries.len() {
            self.link(entry, hash(self.entries[entry].0));
        }
    }

    fn link(&mut self, entry: usize, hash: u64) {
        let mask = self.slots.len() - 1;
        let mut place = hash as usize & mask;
        while self.slots[place] != FREE {
            place = (place + 1) & mask;
        }
        self.slots[place] = entry as u32;
    }

    /// Inserts a key that the table does not have and for which there is space.
    pub(crate) fn insert(&mut self, key: Value, value: Value, hash: impl Fn(Value) -> u64) {
        if !self.extends_array(key) {
            self.entries.push((key, value));
            self.link(self.entries.len() - 1, hash(key));
            return;
        }
        self.array.push(value);
        // The next keys may be among the entries.
        while !self.entries.is_empty() && self.array.len() < self.array.capacity() {
            let next = Value::Integer(self.array.len() as i64 + 1);
            let Some(entry) = self.find(next, hash(next)).0 else {
                return;
            };
            let value = std::mem::take(&mut self.entries[entry].1);
            if value == Value::Nil {
                return;
            }
            self.array.push(value);
        }
    }

    /// Adds values to the array, for which there is space.
    pub(crate) fn append(&mut self, values: &[Value]) {
        self.array.extend_from_slice(values);
    }

    /// A border: a number `n` with a value at `n` (or 0) and none at `n + 1`.
    pub(crate) fn length(&self, hash: impl Fn(Value) -> u64) -> i64 {
        if self.array.last() == Some(&Value::Nil) {
            // The value at `low` is there (or low is 0), that at `high` is not.
            let (mut low, mut high) = (0, self.array.len());
            while high - low > 1 {
                let middle = low.midpoint(high);
                if self.array[middle - 1] == Value::Nil {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            return low as i64;
        }
        let has = |number: i64| {
            let key = Value::Integer(number);
            self.get(key, hash(key)).0 != Value::Nil
        };
        let mut low = self.array.len() as i64;
        if self.entries.is_empty() || !has(low + 1) {
            return low;
        }
        low += 1;
        let mut high = low.saturating_mul(2);
        while has(high) {
            if high == i64::MAX {
                return high;
            }
            (low, high) = (high, high.saturating_mul(2));
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if has(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The key and value after a key, or the first ones after nil. `None` if the table does not have the key,
    /// `Some(None)` at the end.
    pub(crate) fn next(&self, key: Value, hash: u64) -> Option<Option<(Value, Value)>> {
        let begin = match self.array_place(key) {
            _ if key == Value::Nil => 0,
            Some(place) => place + 1,
            None => self.array.len() + self.find(key, hash).0? + 1,
        };
        let array = self.array.iter().enumerate().skip(begin);
        let array = array.map(|(place, value)| (Value::Integer(place as i64 + 1), *value));
        let entries = self.entries.iter().copied();
        let entries = entries.skip(begin.saturating_sub(self.array.len()));
        Some(array.chain(entries).find(|(_, value)| *value != Value::Nil))
    }

    /// All values of the array.
    pub(crate) fn array(&self) -> &[Value] {
        &self.array
    }

    pub(crate) fn array_mut(&mut self) -> &mut [Value] {
        &mut self.array
    }

    /// The other keys and values; removed entries have the value nil.
    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// Sets the value at a position of `entries` to nil.
    pub(crate) fn remove_entry(&mut self, position: usize) {
        self.entries[position].1 = Value::Nil;
    }

    /// The bytes that the parts use.
    pub(crate) fn bytes(&self) -> usize {
        self.array.capacity() * VALUE_BYTES + slots_bytes(self.slots.len())
    }
}

fn entries_max(slots: usize) -> usize {
    slots / 4 * 3
}

fn slots_bytes(slots: usize) -> usize {
    slots * size_of::<u32>() + entries_max(slots) * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A hash of which many collide.
    fn hash(key: Value) -> u64 {
        match key {
            Value::Integer(number) => number as u64 % 7,
            _ => 3,
        }
    }

    fn set(table: &mut Table, key: Value, value: Value) {
        if table.replace(key, hash(key), value).0 || value == Value::Nil {
            return;
        }
        let growth = table.growth(key);
        let before = table.bytes();
        let granted = table.growth_bytes(&growth);
        table.grow(&growth, hash);
        assert!(table.bytes() <= before + granted);
        table.insert(key, value, hash);
    }

    #[test]
    fn random_changes_match_a_map() {
        let mut random = 1u64;
        let mut below = |limit: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % limit
        };
        for range in [4, 40, 400] {
            let (mut table, mut map) = (Table::default(), BTreeMap::new());
            for _ in 0..4000 {
                let number = below(range) as i64 - (range / 8) as i64;
                let value = match below(3) {
                    0 => Value::Nil,
                    _ => Value::Integer(below(1000) as i64),
                };
                set(&mut table, Value::Integer(number), value);
                match value {
                    Value::Nil => map.remove(&number),
                    value => map.insert(number, value),
                };
                let length = table.length(hash);
                assert!(length == 0 || map.contains_key(&length));
                assert!(!map.contains_key(&(length + 1)));
            }
            let (mut key, mut found) = (Value::Nil, BTreeMap::new());
            while let Some((next, value)) = table.next(key, hash(key)).unwrap() {
                let Value::Integer(number) = next else {
                    panic!("a key that was not set");
                };
                assert_eq!(found.insert(number, value), None);
                key = next;
            }
            assert_eq!(found, map);
        }
    }

    #[test]
    fn a_queue_does_not_keep_its_past() {
        let mut table = Table::default();
        for number in 1..100_000 {
            set(&mut table, Value::Integer(number), Value::Boolean(true));
            set(&mut table, Value::Integer(number - 5), Value::Nil);
        }
        assert!(table.bytes() < 10_000, "{}", table.bytes());
    }
}
