//! Allocates object ids for new objects.
//!
//! Ids are allocated going forward through the blocks of the dnode array, so that an id is not soon reused.
//! Only after many objects were freed does the search restart at the front. While the array has only one
//! block, no id is ever reused: readers of incremental streams rely on this. Page `docs/format/dnode.md`,
//! "Numbers of new objects".

use crate::core::SLOTS_PER_BLOCK;
use millpond_env::mark;
use millpond_ondisk::{ObjectId, Txg};
use std::collections::BTreeMap;

/// Which slots of a block are in use, unsynced changes included.
#[derive(Debug, Clone, Copy, Default)]
struct Occupancy {
    used: u32,
    /// Slots freed in this txg. A later txg may reuse them.
    waiting: (Txg, u32),
    /// The last txg in which a slot was taken. Until it is synced, the on-disk block does not show the slot.
    taken_in: Txg,
}

/// The result of a search for an object id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// This id is free and is now taken.
    Found(ObjectId),
    /// The caller must first report which slots of this block are in use ([`ObjectIdAllocator::learn`]).
    MustLearn(u64),
    /// No object id is left.
    Exhausted,
}

#[derive(Debug)]
pub(crate) struct ObjectIdAllocator {
    /// Where the search continues.
    next: u64,
    blocks: BTreeMap<u64, Occupancy>,
    freed_since_start: u64,
    /// Slots freed in the last synced txg, as masks by block, for blocks that are not in `blocks`.
    recent: (Txg, BTreeMap<u64, u32>),
    synced: Txg,
}

/// The number of freed objects after which the search restarts at the front.
const FREED_BEFORE_RESTART: u64 = 131_072;
/// The number of blocks whose slots are remembered, not counting blocks with unsynced changes.
const REMEMBERED_MAX: usize = 4096;
const NUMBERS_MAX: u64 = 1 << 48;

impl ObjectIdAllocator {
    /// Starts a search in a set whose dnode array ends with block `block_id_max`, or in a new set (`None`).
    pub(crate) fn new(block_id_max: Option<u64>) -> Self {
        let next = match block_id_max {
            None => 1,
            // It is unknown which ids of the only block were in use before.
            Some(0) => SLOTS_PER_BLOCK,
            Some(last) => last.saturating_mul(SLOTS_PER_BLOCK),
        };
        Self {
            next,
            blocks: BTreeMap::new(),
            freed_since_start: 0,
            recent: (Txg(0), BTreeMap::new()),
            synced: Txg(0),
        }
    }

    /// Searches for `slots` free slots in a row within a block. `last_on_disk` is the array's last block.
    pub(crate) fn search(&mut self, txg: Txg, slots: u8, last_on_disk: u64) -> Search {
        let slots = u64::from(slots.clamp(1, 32));
        loop {
            let block = self.next / SLOTS_PER_BLOCK;
            let start = self.next % SLOTS_PER_BLOCK;
            let may_restart = last_on_disk > 0 && start == 0;
            if may_restart && self.freed_since_start >= FREED_BEFORE_RESTART {
                mark::hit("object-numbers-from-the-start");
                (self.next, self.freed_since_start) = (1, 0);
                continue;
            }
            if self.next >= NUMBERS_MAX {
                if self.freed_since_start == 0 || last_on_disk == 0 {
                    return Search::Exhausted;
                }
                (self.next, self.freed_since_start) = (1, 0);
                continue;
            }
            if !self.is_known(block, last_on_disk) {
                return Search::MustLearn(block);
            }
            let occupancy = self.occupancy(block, txg);
            let free = (start..=SLOTS_PER_BLOCK - slots)
                .find(|slot| occupancy.used & mask(*slot, slots) == 0);
            if let Some(slot) = free {
                occupancy.used |= mask(slot, slots);
                occupancy.taken_in = occupancy.taken_in.max(txg);
                self.next = block * SLOTS_PER_BLOCK + slot + slots;
                return Search::Found(ObjectId(block * SLOTS_PER_BLOCK + slot));
            }
            self.next = (block + 1) * SLOTS_PER_BLOCK;
        }
    }

    /// Takes exactly this id.
    pub(crate) fn take(&mut self, txg: Txg, id: ObjectId, slots: u8, last_on_disk: u64) -> Search {
        let (block, slot) = (id.0 / SLOTS_PER_BLOCK, id.0 % SLOTS_PER_BLOCK);
        let slots = u64::from(slots.clamp(1, 32));
        if id.0 == 0 || id.0 >= NUMBERS_MAX || slot + slots > SLOTS_PER_BLOCK {
            return Search::Exhausted;
        }
        if !self.is_known(block, last_on_disk) {
            return Search::MustLearn(block);
        }
        let occupancy = self.occupancy(block, txg);
        if occupancy.used & mask(slot, slots) != 0 {
            return Search::Exhausted;
        }
        occupancy.used |= mask(slot, slots);
        occupancy.taken_in = occupancy.taken_in.max(txg);
        Search::Found(id)
    }

    fn is_known(&self, block: u64, last_on_disk: u64) -> bool {
        self.blocks.contains_key(&block) || block > last_on_disk
    }

    fn occupancy(&mut self, block: u64, txg: Txg) -> &mut Occupancy {
        // Id 0 is the dnode array itself.
        let fresh = Occupancy {
            used: u32::from(block == 0),
            ..Occupancy::default()
        };
        let occupancy = self.blocks.entry(block).or_insert(fresh);
        if occupancy.waiting.0 < txg {
            occupancy.used &= !std::mem::take(&mut occupancy.waiting.1);
        }
        occupancy
    }

    fn forget_some(&mut self) {
        if self.blocks.len() >= REMEMBERED_MAX {
            let synced = self.synced;
            self.blocks.retain(|_, one| one.taken_in > synced);
        }
    }

    /// Records which slots of a block are in use on disk. No sync may come between reading the block and this
    /// call.
    pub(crate) fn learn(&mut self, block: u64, used: u32) {
        self.forget_some();
        let recent = self.recent.1.get(&block).copied().unwrap_or(0);
        self.blocks.entry(block).or_insert(Occupancy {
            used: used | recent | u32::from(block == 0),
            waiting: (self.recent.0, recent),
            taken_in: Txg(0),
        });
    }

    /// Records that `txg` is synced and freed these objects. Later txgs may reuse their ids.
    pub(crate) fn synced(&mut self, txg: Txg, freed: &[(ObjectId, u64)]) {
        if self.recent.0 != txg {
            self.recent = (txg, BTreeMap::new());
        }
        self.synced = txg;
        self.forget_some();
        self.freed_since_start = self.freed_since_start.saturating_add(freed.len() as u64);
        for (id, slots) in freed {
            let (block, slot) = (id.0 / SLOTS_PER_BLOCK, id.0 % SLOTS_PER_BLOCK);
            let freed = mask(slot, *slots);
            *self.recent.1.entry(block).or_default() |= freed;
            if let Some(occupancy) = self.blocks.get_mut(&block) {
                if occupancy.waiting.0 != txg {
                    occupancy.used &= !occupancy.waiting.1;
                    occupancy.waiting = (txg, 0);
                }
                occupancy.waiting.1 |= freed;
            }
        }
    }
}

fn mask(slot: u64, slots: u64) -> u32 {
    let run = ((1u64 << slots.min(32)) - 1) << slot.min(31);
    (run & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(search: Search) -> u64 {
        match search {
            Search::Found(id) => id.0,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_new_set_counts_from_one() {
        let mut numbers = ObjectIdAllocator::new(None);
        // The array of a new set has no blocks yet, so only block 0 must be learnt.
        numbers.learn(0, 0);
        let ids: Vec<u64> = (0..40)
            .map(|_| found(numbers.search(Txg(4), 1, 0)))
            .collect();
        assert_eq!(ids, (1..41).collect::<Vec<_>>());
    }

    #[test]
    fn large_dnodes_stay_within_a_block() {
        let mut numbers = ObjectIdAllocator::new(None);
        numbers.learn(0, 0);
        assert_eq!(found(numbers.search(Txg(4), 20, 0)), 1);
        assert_eq!(found(numbers.search(Txg(4), 12, 0)), 32);
        assert_eq!(found(numbers.search(Txg(4), 32, 0)), 64);
        assert_eq!(found(numbers.search(Txg(4), 1, 0)), 96);
    }

    #[test]
    fn an_opened_set_with_one_block_never_uses_its_numbers_again() {
        let mut numbers = ObjectIdAllocator::new(Some(0));
        assert_eq!(found(numbers.search(Txg(9), 1, 0)), 32);
    }

    #[test]
    fn object_ids_continue_in_the_last_block() {
        let mut numbers = ObjectIdAllocator::new(Some(3));
        assert_eq!(numbers.search(Txg(9), 1, 3), Search::MustLearn(3));
        numbers.learn(3, 0b1011);
        assert_eq!(found(numbers.search(Txg(9), 1, 3)), 98);
        assert_eq!(found(numbers.search(Txg(9), 1, 3)), 100);
    }

    #[test]
    fn a_freed_number_waits_for_a_later_txg() {
        let mut numbers = ObjectIdAllocator::new(Some(1));
        numbers.learn(1, u32::MAX);
        assert_eq!(numbers.take(Txg(9), ObjectId(40), 1, 1), Search::Exhausted);
        numbers.synced(Txg(9), &[(ObjectId(40), 1)]);
        assert_eq!(numbers.take(Txg(9), ObjectId(40), 1, 1), Search::Exhausted);
        assert_eq!(found(numbers.take(Txg(10), ObjectId(40), 1, 1)), 40);
        // The same for a block that is learnt only after the sync.
        let mut numbers = ObjectIdAllocator::new(Some(1));
        numbers.synced(Txg(9), &[(ObjectId(40), 1)]);
        numbers.learn(1, 0);
        assert_eq!(numbers.take(Txg(9), ObjectId(40), 1, 1), Search::Exhausted);
        assert_eq!(found(numbers.take(Txg(10), ObjectId(40), 1, 1)), 40);
    }

    #[test]
    fn the_search_starts_over_after_many_were_freed() {
        let _mark = mark::expect("object-numbers-from-the-start");
        let mut numbers = ObjectIdAllocator::new(Some(9));
        let freed: Vec<_> = (0..FREED_BEFORE_RESTART)
            .map(|_| (ObjectId(5), 1))
            .collect();
        numbers.synced(Txg(9), &freed);
        numbers.learn(9, u32::MAX);
        numbers.learn(0, 0);
        // The search is at a block's first slot, so it restarts at once.
        assert_eq!(found(numbers.search(Txg(10), 1, 9)), 1);
    }
}
