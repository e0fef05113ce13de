//! Entries in a slab, each on one of several doubly linked lists.

/// No entry: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// One list of a [`Lists`]: its ends, and what its entries weigh.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    newest: u32,
    oldest: u32,
    pub(crate) entries: u64,
    pub(crate) weight_bytes: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// `None` while the slot is free; `newer` is then the next free slot.
    item: Option<T>,
    weight_bytes: u64,
    newer: u32,
    older: u32,
    list: u8,
}

/// `N` lists over one slab of entries. Every operation takes constant time.
#[derive(Debug)]
pub(crate) struct Lists<T, const N: usize> {
    slots: Vec<Slot<T>>,
    free: u32,
    ends: [Ends; N],
}

impl<T, const N: usize> Lists<T, N> {
    pub(crate) fn new() -> Self {
        let empty = Ends {
            newest: NONE,
            oldest: NONE,
            entries: 0,
            weight_bytes: 0,
        };
        Self {
            slots: Vec::new(),
            free: NONE,
            ends: [empty; N],
        }
    }
    pub(crate) fn list(&self, list: usize) -> &Ends {
        &self.ends[list]
    }
    /// The weight of all entries of all lists, in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.ends.iter().map(|ends| ends.weight_bytes).sum()
    }
    /// The number of entries on all lists.
    pub(crate) fn len(&self) -> u64 {
        self.ends.iter().map(|ends| ends.entries).sum()
    }
    pub(crate) fn oldest(&self, list: usize) -> Option<u32> {
        let oldest = self.ends[list].oldest;
        (oldest != NONE).then_some(oldest)
    }
    pub(crate) fn item(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.item.as_ref()
    }
    pub(crate) fn item_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.item.as_mut()
    }
    pub(crate) fn list_of(&self, slot: u32) -> usize {
        usize::from(self.slots[slot as usize].list)
    }

    /// Adds an entry as the newest of a list. `None` if there are four thousand million entries.
    pub(crate) fn push(&mut self, list: usize, item: T, weight_bytes: u64) -> Option<u32> {
        let slot = match self.free {
            NONE => {
                let slot = u32::try_from(self.slots.len())
                    .ok()
                    .filter(|s| *s != NONE)?;
                self.slots.push(Slot {
                    item: None,
                    weight_bytes: 0,
                    newer: NONE,
                    older: NONE,
                    list: 0,
                });
                slot
            }
            slot => {
                self.free = self.slots[slot as usize].newer;
                slot
            }
        };
        let entry = &mut self.slots[slot as usize];
        entry.item = Some(item);
        entry.weight_bytes = weight_bytes;
        self.link(slot, list);
        Some(slot)
    }

    /// Makes an entry the newest of a list.
    pub(crate) fn move_to(&mut self, slot: u32, list: usize) {
        if self.ends[list].newest != slot {
            self.unlink(slot);
            self.link(slot, list);
        }
    }

    /// Changes what an entry weighs, in bytes. It stays where it is.
    pub(crate) fn set_weight(&mut self, slot: u32, weight_bytes: u64) {
        let Some(entry) = self.slots.get_mut(slot as usize) else {
            return;
        };
        let before = std::mem::replace(&mut entry.weight_bytes, weight_bytes);
        let ends = &mut self.ends[usize::from(entry.list)];
        ends.weight_bytes = ends.weight_bytes - before + weight_bytes;
    }
    /// What an entry weighs, in bytes.
    pub(crate) fn weight_of(&self, slot: u32) -> u64 {
        self.slots[slot as usize].weight_bytes
    }

    /// Removes an entry. Returns it with its weight in bytes.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<(T, u64)> {
        let item = self.slots.get_mut(slot as usize)?.item.take()?;
        self.unlink(slot);
        let entry = &mut self.slots[slot as usize];
        entry.newer = self.free;
        self.free = slot;
        Some((item, entry.weight_bytes))
    }

    /// Gives the memory of free slots at the end of the slab back.
    pub(crate) fn shrink(&mut self) {
        if self.len() == 0 {
            self.slots = Vec::new();
            self.free = NONE;
        }
    }

    /// The entries of a list from the oldest to the newest, or the other way.
    pub(crate) fn walk(&self, list: usize, is_from_newest: bool) -> impl Iterator<Item = &T> {
        let first = match is_from_newest {
            true => self.ends[list].newest,
            false => self.ends[list].oldest,
        };
        let next = move |slot: &u32| {
            let entry = self.slots.get(*slot as usize)?;
            let next = match is_from_newest {
                true => entry.older,
                false => entry.newer,
            };
            (next != NONE).then_some(next)
        };
        let first = (first != NONE).then_some(first);
        std::iter::successors(first, next).filter_map(|slot| self.item(slot))
    }

    /// The slots in use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = (0u32..).zip(&self.slots);
        numbered.filter_map(|(number, slot)| Some((number, slot.item.as_ref()?)))
    }

    fn link(&mut self, slot: u32, list: usize) {
        let ends = &mut self.ends[list];
        let older = std::mem::replace(&mut ends.newest, slot);
        if older == NONE {
            ends.oldest = slot;
        }
        let entry = &mut self.slots[slot as usize];
        ends.entries += 1;
        ends.weight_bytes += entry.weight_bytes;
        entry.list = list as u8;
        entry.newer = NONE;
        entry.older = older;
        if older != NONE {
            self.slots[older as usize].newer = slot;
        }
    }

    fn unlink(&mut self, slot: u32) {
        let entry = &self.slots[slot as usize];
        let (newer, older, list) = (entry.newer, entry.older, usize::from(entry.list));
        let ends = &mut self.ends[list];
        ends.entries -= 1;
        ends.weight_bytes -= entry.weight_bytes;
        if newer == NONE {
            ends.newest = older;
        }
        if older == NONE {
            ends.oldest = newer;
        }
        if newer != NONE {
            self.slots[newer as usize].older = older;
        }
        if older != NONE {
            self.slots[older as usize].newer = newer;
        }
    }
}
