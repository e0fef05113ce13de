//! Deadlists of pools before version 26: one list for each dataset, not split by txg.
//!
//! A pool that is raised keeps the lists that it has. What such a list holds of an interval is found by
//! reading all of it.
//!
//! Page `docs/format/deadlist.md`, "Before version 26".

use crate::heads::space::Use;
use crate::mos::{MosView, contradiction, required};
use crate::tasks::context::SyncTaskContext;
use millpond_env::mark;
use millpond_ondisk::{
    BlockPointer, BpObjectEntry, BpObjectForm, DslDatasetPhys, ObjectId, ObjectType, Txg,
};
use millpond_pool::{BpObject, PoolError, SpaceChange};

const WHAT: &str = "deadlist";
/// How many pointers are handled together. Bounds the memory that a long list takes.
const AT_ONCE: usize = 10_000;

impl MosView<'_> {
    /// The txgs at which the past of a dataset was split by snapshots: the keys of its deadlist.
    pub(crate) fn past_keys(&self, newest: Option<ObjectId>) -> Result<Vec<Txg>, PoolError> {
        let mut keys = vec![];
        let (mut at, mut last) = (newest, Txg(u64::MAX));
        while let Some(id) = at {
            let phys = self.dataset(id)?;
            if phys.creation_txg >= last {
                return Err(contradiction(WHAT, "snapshots do not become older"));
            }
            last = phys.creation_txg;
            keys.push(phys.previous_snapshot_txg);
            at = phys.previous_snapshot;
        }
        Ok(keys)
    }
}

impl SyncTaskContext<'_> {
    /// Whether a deadlist has the format of pools before version 26: a single list.
    pub(crate) fn is_old_deadlist(&self, deadlist: ObjectId) -> Result<bool, PoolError> {
        Ok(self.object(deadlist, WHAT)?.object_type() == ObjectType::BPOBJ)
    }

    /// The totals of an old deadlist. The lists of pools before version 3 have only the sum of used bytes.
    pub(crate) fn old_deadlist_space(&self, deadlist: ObjectId) -> Result<SpaceChange, PoolError> {
        let form = BpObject::open(self.ctx, deadlist)?.phys()?.form;
        match form >= BpObjectForm::Sizes {
            true => self.list_space(deadlist),
            false => self.old_space_between(deadlist, Txg(0), None),
        }
    }

    /// The space of blocks in an old deadlist born after `low` and up to `high`.
    pub(crate) fn old_space_between(
        &self,
        deadlist: ObjectId,
        low: Txg,
        high: Option<Txg>,
    ) -> Result<SpaceChange, PoolError> {
        let mut sum = SpaceChange::default();
        BpObject::open(self.ctx, deadlist)?.for_each(self.ctx, &mut |entry: &BpObjectEntry| {
            let birth = entry.pointer.allocation_birth();
            if birth > low && high.is_none_or(|high| birth <= high) {
                sum += self.ctx.space_of(&entry.pointer);
            }
            Ok(())
        })?;
        Ok(sum)
    }

    /// Passes the entries of a list to `each`, many at a time.
    fn old_entries(
        &self,
        deadlist: ObjectId,
        mut each: impl FnMut(&[BlockPointer]) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let mut some = vec![];
        BpObject::open(self.ctx, deadlist)?.for_each(self.ctx, &mut |entry: &BpObjectEntry| {
            some.push(entry.pointer);
            if some.len() >= AT_ONCE {
                each(&std::mem::take(&mut some))?;
            }
            Ok(())
        })?;
        each(&some)
    }

    /// Appends dead pointers to an old deadlist.
    pub(crate) fn append_dead(
        &self,
        deadlist: ObjectId,
        pointers: &[BlockPointer],
    ) -> Result<SpaceChange, PoolError> {
        let mut sum = SpaceChange::default();
        let mut marked = Vec::with_capacity(pointers.len());
        for pointer in pointers {
            sum += self.ctx.space_of(pointer);
            marked.push((*pointer, false));
        }
        BpObject::open(self.ctx, deadlist)?.append_all(self.ctx, &marked)?;
        Ok(sum)
    }

    /// Sorts the blocks of an old deadlist into one that is split by txg. The old one stays as it is.
    pub(crate) fn merge_old_deadlist(
        &self,
        into: ObjectId,
        old: ObjectId,
    ) -> Result<(), PoolError> {
        mark::hit("old-deadlist-split");
        self.old_entries(old, |pointers| self.insert_dead(into, pointers).map(drop))
    }

    /// Frees the blocks that only a snapshot has, where the next dataset has an old deadlist, and gives
    /// the next dataset the rest: what the snapshot's own deadlist has, and what died later and is older
    /// than the snapshot's interval.
    ///
    /// Returns the space that was freed. The snapshot's deadlist is freed.
    pub(crate) fn settle_old_deadlists(
        &self,
        gone: &DslDatasetPhys,
        next: ObjectId,
    ) -> Result<SpaceChange, PoolError> {
        let own = required(gone.deadlist, "a snapshot without a deadlist")?;
        let mut after = self.dataset(next)?;
        let listed = required(after.deadlist, "a dataset without a deadlist")?;
        if !self.is_old_deadlist(own)? {
            return Err(contradiction(WHAT, "a newer form before an older one"));
        }
        mark::hit("old-deadlist-settled");
        let mut freed = SpaceChange::default();
        self.old_entries(listed, |pointers| {
            let is_own =
                |pointer: &BlockPointer| pointer.allocation_birth() > gone.previous_snapshot_txg;
            let (gone, kept): (Vec<BlockPointer>, Vec<BlockPointer>) =
                pointers.iter().partition(|pointer| is_own(pointer));
            self.append_dead(own, &kept)?;
            for pointer in &gone {
                freed += self.ctx.space_of(pointer);
            }
            self.ctx.free_blocks_now(&gone)
        })?;
        after.deadlist = Some(own);
        self.put_dataset(next, &after)?;
        BpObject::free(self.ctx, listed)?;
        self.charge_space(gone.directory, Use::Snapshots, -freed)?;
        Ok(freed)
    }
}
