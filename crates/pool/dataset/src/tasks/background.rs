//! Frees destroyed datasets in the background, one time slice per txg.
//!
//! Page `docs/format/bpobj.md`, "Freeing in the background".

use crate::heads::features;
use crate::heads::sink::counts;
use crate::heads::space::Use;
use crate::mos::{During, contradiction};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::deadlist::stored;
use crate::tasks::destroy_head::{DELETED_LIVELISTS, TREE_QUEUE};
use crate::tasks::destroy_snapshot::FREE_LIST;
use crate::tasks::destroyed_tree::{Freer, OnLoss, Stop, traverse};
use millpond_env::mark;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::{
    BP_TREE_ENTRY_BYTES, BlockBookmark, BlockPointer, BpObjectEntry, BpTreeEntry, BpTreePhys,
    Endian, ObjectId, Txg, live_pointers,
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
    /// Something could not be read. Freeing stops until the pool is opened again, or may leak.
    Stuck,
}

/// Destroyed datasets whose space cannot be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckFreeing {
    /// How many they are.
    pub datasets: u64,
    /// What cannot be read, and why.
    pub reason: String,
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
            self.datasets.note_stuck(None);
            return Ok(Rest::Nothing);
        };
        let leaks = self.datasets.leaks_unreadable(self.ctx.pool());
        let on_loss = |place: &str, reason: &str| {
            mark::hit("destroyed-tree-leaks");
            tracing::warn!(%place, %reason, "what lies below it stays allocated");
            self.ctx.note_lost_tree(place, reason);
        };
        // Trees in a row that cannot be freed, and why the first of them cannot.
        let (mut stuck, mut why) = (0, None);
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
            let on_loss = leaks.then_some(&on_loss as OnLoss<'_>);
            let outcome = traverse(self.ctx.pool().store(), &entry, slice, on_loss);
            let change = before - slice.freed;
            let (place, reason) = match outcome {
                Ok(()) => {
                    self.end_tree(queue, header, change)?;
                    (stuck, why) = (0, None);
                    continue;
                }
                Err(Stop::Visitor(error)) => return Err(error),
                Err(Stop::Enough(place)) => (place, None),
                Err(Stop::Unreadable(_, reason)) if leaks => {
                    self.ctx
                        .note_lost_tree("the rest of a destroyed dataset", &reason);
                    self.end_tree(queue, header, change)?;
                    continue;
                }
                Err(Stop::Unreadable(place, reason)) => (place, Some(reason)),
            };
            let position = |bookmark: &BlockBookmark| (bookmark.object, bookmark.block_id);
            if !change.is_zero() || position(&entry.resume) != position(&place) {
                entry.resume = place;
                object
                    .write(self.ctx.tx(), at, &entry.encode())
                    .during(WHAT)?;
                self.put_tree_queue(queue, header, change)?;
                header = self.tree_queue(queue)?;
            }
            let Some(reason) = reason else {
                return Ok(Rest::More);
            };
            let reason = why.get_or_insert(reason);
            stuck += 1;
            if stuck >= header.end.saturating_sub(header.begin) {
                tracing::warn!(%reason, trees = stuck, "destroyed datasets cannot be freed");
                let reason = std::mem::take(reason);
                self.datasets.note_stuck(Some(StuckFreeing {
                    datasets: stuck,
                    reason,
                }));
                return Ok(Rest::Stuck);
            }
            // The others need not wait for it: its place in the queue does not matter.
            mark::hit("stuck-tree-moved-back");
            let end = header.end.saturating_mul(BP_TREE_ENTRY_BYTES as u64);
            (object.write(self.ctx.tx(), end, &entry.encode())).during(WHAT)?;
            header.end = header.end.saturating_add(1);
            self.end_tree(queue, header, SpaceChange::default())?;
        }
        self.datasets.note_stuck(None);
        self.move_to_leak(queue)?;
        self.free_object(queue)?;
        self.ctx.remove_directory_entry(TREE_QUEUE)?;
        if self.feature_count(features::ASYNC_DESTROY) > 0 {
            self.ctx.feature_decrement(features::ASYNC_DESTROY)?;
        }
        Ok(Rest::Nothing)
    }

    /// Takes the first entry out of the queue.
    fn end_tree(
        &self,
        queue: ObjectId,
        mut header: BpTreePhys,
        change: SpaceChange,
    ) -> Result<(), PoolError> {
        let at = header.begin.saturating_mul(BP_TREE_ENTRY_BYTES as u64);
        header.begin = header.begin.saturating_add(1);
        self.put_tree_queue(queue, header, change)?;
        let cleared = vec![0; BP_TREE_ENTRY_BYTES];
        let object = self.object(queue, WHAT)?;
        object.write(self.ctx.tx(), at, &cleared).during(WHAT)
    }

    /// Charges to `$LEAK` what the queue still counts when it has no entry any more: it could not be freed.
    fn move_to_leak(&self, queue: ObjectId) -> Result<(), PoolError> {
        let header = self.tree_queue(queue)?;
        let space = stored(
            header.bytes,
            header.compressed_bytes,
            header.uncompressed_bytes,
        );
        if space.is_zero() {
            return Ok(());
        }
        let root = self.root_directory()?;
        let leak = match self.child(root, keys::LEAK_DIRECTORY)? {
            Some(leak) => leak,
            None => self.create_directory(Some(root), keys::LEAK_DIRECTORY)?,
        };
        let free = self.special_directory(keys::FREE_DIRECTORY)?;
        self.charge_space(free, Use::Head, -space)?;
        self.charge_space(leak, Use::Head, space)
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
        match traverse(self.ctx.pool().store(), &entry, &mut slice, None) {
            Ok(()) => {
                slice.free_waiting()?;
                Ok(slice.freed)
            }
            Err(Stop::Visitor(error)) => Err(error),
            Err(_) => Err(contradiction(WHAT, "a block of the dataset cannot be read")),
        }
    }
}
