//! Frees destroyed datasets in the background, one time slice per txg.
//!
//! Page `docs/format/bpobj.md`, "Freeing in the background".

use crate::heads::features;
use crate::heads::sink::counts;
use crate::heads::space::Use;
use crate::mos::{During, contradiction};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::destroy_head::{DELETED_LIVELISTS, TREE_QUEUE};
use crate::tasks::destroy_snapshot::FREE_LIST;
use crate::tasks::destroyed_tree::{Freer, Stop, traverse};
use millpond_env::mark;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{
    BP_TREE_ENTRY_BYTES, BlockBookmark, BlockPointer, BpObjectEntry, BpTreeEntry, Endian, ObjectId,
    Txg, live_pointers,
};
use millpond_pool::PoolError;
use millpond_pool::{BpObject, Drain, SpaceChange, SyncContext};

/// The longest duration of a time slice.
const SLICE_NS: u64 = 1_000_000_000;
/// The most blocks freed per time slice by default. Bounds the memory for their pointers.
pub(crate) const SLICE_BLOCKS: u64 = 100_000;
const WHAT: &str = "freeing in the background";

/// The remaining budget of a time slice.
struct Slice<'c> {
    ctx: &'c SyncContext<'c>,
    ends_ns: u64,
    blocks_left: u64,
    freed: SpaceChange,
    /// Blocks to free together; `None` if each is freed with the txg's other blocks.
    waiting: Option<Vec<BlockPointer>>,
}

/// How many blocks of a tree are freed together that cannot wait. Bounds the memory for their pointers.
const FREED_AT_ONCE: usize = 10_000;

impl Slice<'_> {
    fn is_over(&self) -> bool {
        let now = self.ctx.pool().env().clock.monotonic_ns();
        self.blocks_left == 0 || now >= self.ends_ns
    }
    fn free(&mut self, pointer: &BlockPointer) -> Result<(), PoolError> {
        self.blocks_left = self.blocks_left.saturating_sub(1);
        if !counts(pointer) {
            return Ok(());
        }
        self.freed += self.ctx.space_of(pointer);
        match &mut self.waiting {
            None => self.ctx.free_block(pointer),
            Some(waiting) => {
                waiting.push(*pointer);
                match waiting.len() >= FREED_AT_ONCE {
                    true => self.free_waiting(),
                    false => Ok(()),
                }
            }
        }
    }
    fn free_waiting(&mut self) -> Result<(), PoolError> {
        let waiting = self.waiting.as_mut().map(std::mem::take);
        self.ctx.free_blocks_now(&waiting.unwrap_or_default())
    }
}

impl Freer for Slice<'_> {
    type Error = PoolError;
    fn may_continue(&mut self) -> bool {
        !self.is_over()
    }
    fn visit(&mut self, pointer: &BlockPointer) -> Result<(), PoolError> {
        self.free(pointer)
    }
}

/// The state after a time slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing is waiting to be freed.
    Nothing,
    /// The next time slice continues.
    More,
    /// Something could not be read. Freeing stops until the pool is opened again.
    Stuck,
}

impl SyncTaskContext<'_> {
    /// Frees for one time slice.
    pub(crate) fn free_in_background(&self) -> Result<Rest, PoolError> {
        let has_work = self.has_free_list()?
            || self.ctx.directory_object(TREE_QUEUE)?.is_some()
            || self.ctx.directory_object(DELETED_LIVELISTS)?.is_some();
        if !has_work {
            return Ok(Rest::Nothing);
        }
        let now = self.ctx.pool().env().clock.monotonic_ns();
        let mut slice = Slice {
            ctx: self.ctx,
            ends_ns: now.saturating_add(SLICE_NS),
            blocks_left: self.datasets.slice_blocks(),
            freed: SpaceChange::default(),
            waiting: None,
        };
        let mut rest = self.drain_free_list(&mut slice)?;
        if rest == Rest::Nothing {
            rest = self.free_trees(&mut slice)?;
        }
        if rest != Rest::More {
            let livelists = self.free_livelists(&mut slice)?;
            if livelists != Rest::Nothing {
                rest = livelists;
            }
        }
        let free = self.special_directory(keys::FREE_DIRECTORY)?;
        self.charge_space(free, Use::Head, -slice.freed)?;
        Ok(rest)
    }

    fn has_free_list(&self) -> Result<bool, PoolError> {
        match self.ctx.directory_object(FREE_LIST)? {
            Some(list) => Ok(!BpObject::open(self.ctx, list)?.phys()?.is_empty()),
            None => Ok(false),
        }
    }

    fn drain_free_list(&self, slice: &mut Slice<'_>) -> Result<Rest, PoolError> {
        let Some(list) = self.ctx.directory_object(FREE_LIST)? else {
            return Ok(Rest::Nothing);
        };
        let list = BpObject::open(self.ctx, list)?;
        let is_empty = list.drain(self.ctx, &mut |entry: &BpObjectEntry| {
            if slice.is_over() {
                return Ok(Drain::Stop);
            }
            slice.free(&entry.pointer)?;
            Ok(Drain::Remove)
        })?;
        Ok(if is_empty { Rest::Nothing } else { Rest::More })
    }

    fn free_trees(&self, slice: &mut Slice<'_>) -> Result<Rest, PoolError> {
        let Some(queue) = self.ctx.directory_object(TREE_QUEUE)? else {
            return Ok(Rest::Nothing);
        };
        loop {
            let mut header = self.tree_queue(queue)?;
            if header.begin >= header.end {
                break;
            }
            let object = self.object(queue, WHAT)?;
            let at = header.begin.saturating_mul(BP_TREE_ENTRY_BYTES as u64);
            let mut bytes = vec![0; BP_TREE_ENTRY_BYTES];
            object.read(at, &mut bytes).during(WHAT)?;
            let mut entry = BpTreeEntry::decode(&bytes, Endian::Little).during(WHAT)?;
            let before = slice.freed;
            let outcome = traverse(self.ctx.pool().store(), &entry, slice);
            let change = before - slice.freed;
            let (place, rest) = match outcome {
                Ok(()) => {
                    header.begin = header.begin.saturating_add(1);
                    self.put_tree_queue(queue, header, change)?;
                    let cleared = vec![0; BP_TREE_ENTRY_BYTES];
                    object.write(self.ctx.tx(), at, &cleared).during(WHAT)?;
                    continue;
                }
                Err(Stop::Visitor(error)) => return Err(error),
                Err(Stop::Enough(place)) => (place, Rest::More),
                Err(Stop::Unreadable(place, _)) => (place, Rest::Stuck),
            };
            let position = |bookmark: &BlockBookmark| (bookmark.object, bookmark.block_id);
            if !change.is_zero() || position(&entry.resume) != position(&place) {
                entry.resume = place;
                object
                    .write(self.ctx.tx(), at, &entry.encode())
                    .during(WHAT)?;
                self.put_tree_queue(queue, header, change)?;
            }
            return Ok(rest);
        }
        self.free_object(queue)?;
        self.ctx.remove_directory_entry(TREE_QUEUE)?;
        if self.feature_count(features::ASYNC_DESTROY) > 0 {
            self.ctx.feature_decrement(features::ASYNC_DESTROY)?;
        }
        Ok(Rest::Nothing)
    }

    fn free_livelists(&self, slice: &mut Slice<'_>) -> Result<Rest, PoolError> {
        let Some(set) = self.ctx.directory_object(DELETED_LIVELISTS)? else {
            return Ok(Rest::Nothing);
        };
        for livelist in self.set_members(set)? {
            // Process each sub-list as a whole: a part of it could contain frees without their births.
            let entries = self.deadlist_entries(livelist)?;
            for (key, list) in entries.iter() {
                if slice.is_over() {
                    return Ok(Rest::More);
                }
                self.free_sub_list(livelist, *key, *list, slice)?;
            }
            mark::hit("clone-freed-by-livelist");
            self.free_deadlist(livelist)?;
            self.set_remove(set, livelist.0)?;
            self.ctx.feature_decrement(features::LIVELIST)?;
        }
        self.free_object(set)?;
        self.ctx.remove_directory_entry(DELETED_LIVELISTS)?;
        Ok(Rest::Nothing)
    }

    fn free_sub_list(
        &self,
        livelist: ObjectId,
        key: Txg,
        list: ObjectId,
        slice: &mut Slice<'_>,
    ) -> Result<(), PoolError> {
        let space = self.list_space(list)?;
        let mut entries = vec![];
        BpObject::open(self.ctx, list)?.for_each(self.ctx, &mut |entry: &BpObjectEntry| {
            entries.push(*entry);
            Ok(())
        })?;
        let mut freed = SpaceChange::default();
        for pointer in live_pointers(&entries) {
            freed += self.ctx.space_of(&pointer);
            slice.free(&pointer)?;
        }
        if freed != space {
            return Err(contradiction(
                WHAT,
                "a livelist's sums are not those of its entries",
            ));
        }
        self.add_to_deadlist(livelist, -space)?;
        BpObject::free(self.ctx, list)?;
        self.drop_deadlist_entry(livelist, key)
    }

    /// Frees a tree immediately, for pools that cannot queue it.
    pub(crate) fn free_tree_now(
        &self,
        pointer: &BlockPointer,
        born_after: Txg,
    ) -> Result<SpaceChange, PoolError> {
        let mut slice = Slice {
            ctx: self.ctx,
            ends_ns: u64::MAX,
            blocks_left: u64::MAX,
            freed: SpaceChange::default(),
            waiting: Some(vec![]),
        };
        let entry = BpTreeEntry {
            pointer: *pointer,
            birth: born_after,
            resume: BlockBookmark::default(),
        };
        match traverse(self.ctx.pool().store(), &entry, &mut slice) {
            Ok(()) => {
                slice.free_waiting()?;
                Ok(slice.freed)
            }
            Err(Stop::Visitor(error)) => Err(error),
            Err(_) => Err(contradiction(WHAT, "a block of the dataset cannot be read")),
        }
    }
}
