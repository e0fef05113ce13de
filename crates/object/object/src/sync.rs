//! Writes the changes of one txg: objects first, then the dnode array, then the object set block.

mod head;

use crate::accounting::{Ledger, Owners, ProjectBounds};
use crate::byteswap;
use crate::core::{Core, SyncedHead, special_id};
use crate::dnode_array::{DnodeArray, encode};
use crate::partial_write::PartialWrite;
use crate::state::{BlockChange, DirtyBlock};
use crate::writer::{ReadyNode, Run, TreeWriter};
use crate::{BlockAddress, ObjectError};
use crate::{BlockSink, BlockTraits, FeatureUse, Object, SyncedSet, WriteJob};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockPointer, Dnode, DnodeFlags, Endian, Level, ObjectId, ObjectSetKind, ObjectSetPhys,
    ObjectType, SPILL_BLOCK_ID, Txg,
};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of content (already in memory) and of indirect blocks that are passed to the sink at once.
pub(crate) const BATCH_BYTES: u64 = 64 << 20;
/// What each object adds to the size of a batch, so that many small objects end it too.
const OBJECT_BYTES: u64 = 4096;
/// Blocks taken from an object in one step.
const STEP: usize = 256;

/// The slot that receives a written block's pointer.
enum PointerSlot {
    Leaf(usize, u64),
    Spill(usize),
}

#[derive(Default)]
struct Batch {
    jobs: Vec<WriteJob>,
    targets: Vec<PointerSlot>,
    bytes: u64,
}

/// The accounting state of an object before the sync.
struct Before {
    owners: Option<Owners>,
    used_bytes: u64,
    flags: DnodeFlags,
}

/// An object being written.
struct Active {
    object: Arc<Object>,
    tree: TreeWriter,
    before: Before,
    was_on_disk: bool,
    is_freed: bool,
    /// Whether all leaves and the spill block have been passed on for writing.
    is_gathered: bool,
    old_spill: BlockPointer,
}

/// A change to one leaf or several.
enum Step {
    Free(u64, u64),
    Write(u64, DirtyBlock),
    /// The block is a clone of a stored one.
    Clone(u64, BlockPointer),
    /// The parts go over the content in the synced tree.
    Patch(u64, PartialWrite),
}

/// A completed object with its new dnode, or `None` if it was freed.
struct Retired {
    object: Arc<Object>,
    dnode: Option<Arc<Dnode>>,
    slots: u64,
}

pub(crate) struct Sync<'a> {
    pub(crate) run: Run<'a>,
    projects: ProjectBounds,
    ledger: Ledger,
    seen: FeatureUse,
    retired: Vec<Retired>,
}

pub(crate) fn sync(
    core: &Core,
    txg: Txg,
    pass: u32,
    sink: &dyn BlockSink,
) -> Result<SyncedSet, ObjectError> {
    let gate = core.gate.write();
    let (objects, change, head) = {
        let table = core.table.lock();
        let dirty = table.dirty.get(&txg).cloned().unwrap_or_default();
        (dirty, table.heads.get(&txg).copied(), table.synced.clone())
    };
    if objects.is_empty() && change.is_none() {
        return Ok(SyncedSet {
            root: head.root,
            accounting: Vec::new(),
            restarts_projects: false,
            seen: FeatureUse::default(),
        });
    }
    let change = change.unwrap_or_default();
    let projects = ProjectBounds::of(&head, &change);
    let mut sync = Sync {
        run: Run {
            core,
            policy: core.policy.read().clone(),
            txg,
            pass,
            sink,
        },
        projects,
        ledger: Ledger::default(),
        seen: FeatureUse::default(),
        retired: Vec::new(),
    };
    let first_special = special_id(2);
    let (plain, special): (Vec<_>, Vec<_>) =
        (objects.into_values()).partition(|object| object.id() < first_special);

    let mut array = DnodeArray::new(core, &head.meta);
    array.reach(&sync.run, &plain)?;
    sync.write_objects(plain, &mut |sync, id, slots, was_on_disk, bytes| {
        array.put(sync, id, slots, was_on_disk, bytes)
    })?;
    array.finish(&mut sync)?;

    let mut specials: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
    sync.write_objects(special, &mut |_, id, _, _, bytes| {
        specials.insert(id, bytes.map(<[u8]>::to_vec).unwrap_or_default());
        Ok(())
    })?;

    let new_head = sync.write_head(&head, array.tree.dnode, &change, &specials)?;
    let root = new_head.root;
    sync.commit(new_head);
    drop(gate);
    Ok(SyncedSet {
        root,
        accounting: sync.ledger.into_changes(),
        restarts_projects: projects.restarts,
        seen: sync.seen,
    })
}

/// Returns the content of the partly overwritten blocks, in order. Several threads read their base content
/// from the synced tree. At most [`STEP`] blocks.
fn patched_blocks(
    object: &Object,
    block_bytes: u64,
    steps: &[Step],
) -> Result<Vec<Arc<Vec<u8>>>, ObjectError> {
    let patches = steps.iter().filter_map(|step| match step {
        Step::Patch(id, parts) => Some((*id, parts)),
        _ => None,
    });
    let patches: Vec<(u64, &PartialWrite)> = patches.collect();
    if patches.is_empty() {
        return Ok(vec![]);
    }
    let synced = Arc::clone(&object.state().synced);
    let tree = object.tree(&synced);
    let mut wanted = Vec::with_capacity(patches.len());
    for (id, parts) in &patches {
        let (pointer, level) = tree.descend(0, *id)?;
        let pointer = if level == 0 {
            pointer
        } else {
            BlockPointer::default()
        };
        // A hole may still have the block size from before a change.
        if !pointer.is_hole() && pointer.lsize_bytes() != block_bytes {
            return Err(tree.invalid("data block's size contradicts the dnode"));
        }
        wanted.push((pointer, tree.address(0, *id), PartialWrite::clone(parts)));
    }
    let (size, object_type) = (block_bytes as usize, synced.object_type);
    let (store, key) = (&object.core.store, object.core.read_key());
    let contents = store.read_many(wanted, key, move |content, endian, parts: PartialWrite| {
        content.resize(size, 0);
        if endian == Endian::Big {
            byteswap::to_native(object_type, content)?;
        }
        parts.apply(content);
        Ok(())
    });
    let mut patched = Vec::with_capacity(contents.len());
    for outcome in contents {
        let content = outcome?.map_err(|reason: &'static str| object.refuse(reason))?;
        patched.push(Arc::new(content));
    }
    Ok(patched)
}

/// Receives an object's id, slots, whether its dnode was on disk, and the new dnode's bytes.
type Retire<'r> =
    dyn FnMut(&mut Sync<'_>, ObjectId, u64, bool, Option<&[u8]>) -> Result<(), ObjectError> + 'r;

impl Sync<'_> {
    /// Writes the trees of these objects, which are sorted by id, and passes on their dnodes in the same
    /// order.
    fn write_objects(
        &mut self,
        objects: Vec<Arc<Object>>,
        retire: &mut Retire<'_>,
    ) -> Result<(), ObjectError> {
        let mut queue = objects.into_iter();
        let mut active: VecDeque<Active> = VecDeque::new();
        loop {
            let mut batch = Batch::default();
            while batch.bytes < BATCH_BYTES {
                if active.back().is_none_or(|last| last.is_gathered) {
                    let Some(object) = queue.next() else { break };
                    batch.bytes += OBJECT_BYTES;
                    active.extend(self.open(object)?);
                }
                let index = active.len().saturating_sub(1);
                if let Some(last) = active.back_mut().filter(|last| !last.is_gathered) {
                    self.gather(last, index, &mut batch)?;
                }
            }
            if active.is_empty() {
                return Ok(());
            }
            self.write_batch(&mut active, batch)?;
            let mut trees: Vec<&mut TreeWriter> =
                active.iter_mut().map(|one| &mut one.tree).collect();
            self.write_nodes(&mut trees)?;
            while active.front().is_some_and(|first| first.is_gathered) {
                if let Some(done) = active.pop_front() {
                    self.retire(done, retire)?;
                }
            }
        }
    }

    /// Starts to write an object: applies its new fields, frees its blocks if it was freed, and adds levels.
    fn open(&self, object: Arc<Object>) -> Result<Option<Active>, ObjectError> {
        let (dnode, shape, was_on_disk, is_freed) = {
            let state = object.state();
            let Some(slot) = state.slot_of(self.run.txg) else {
                return Ok(None);
            };
            (
                Arc::clone(&state.synced),
                slot.shape.clone(),
                state.is_on_disk,
                slot.is_freed,
            )
        };
        let before = self.before(&object, &dnode, was_on_disk);
        let mut new = Dnode::clone(&dnode);
        let old_spill = dnode.spill.unwrap_or_default();
        if !is_freed {
            shape.apply(&mut new);
        }
        let mut tree = TreeWriter::new(self.run.core, object.id(), new);
        if is_freed {
            tree.kill_all(&self.run)?;
        } else {
            tree.grow(&self.run, shape.block_id_max, shape.levels)?;
        }
        Ok(Some(Active {
            object,
            tree,
            before,
            was_on_disk,
            is_freed,
            is_gathered: is_freed,
            old_spill,
        }))
    }

    /// Adds some of an object's changes to the batch.
    fn gather(
        &self,
        active: &mut Active,
        index: usize,
        batch: &mut Batch,
    ) -> Result<(), ObjectError> {
        let run = &self.run;
        let (steps, spill, is_last) = {
            let state = active.object.state();
            let Some(slot) = state.slot_of(run.txg) else {
                return Err(run.core.refuse(active.object.id(), "changed while synced"));
            };
            let mut cursor = Some(active.tree.cursor);
            let mut steps = Vec::new();
            while let Some(from) = cursor.filter(|_| steps.len() < STEP) {
                let write = slot.blocks.range(from..).next();
                let write_id = write.map_or(u64::MAX, |(id, _)| *id);
                let freed = slot.freed.range_from(from);
                let freed = freed.map(|(first, last)| (first.max(from), last));
                cursor = match (freed, write) {
                    // A block that was freed and written again is only written.
                    (Some((first, last)), _) if first < write_id => {
                        let last = last.min(write_id.saturating_sub(1)).max(first);
                        steps.push(Step::Free(first, last));
                        last.checked_add(1)
                    }
                    (_, Some((id, block))) => {
                        steps.push(match block {
                            BlockChange::Whole(block) => Step::Write(*id, block.clone()),
                            BlockChange::Cloned(pointer) => Step::Clone(*id, **pointer),
                            BlockChange::PartialWrite(parts) => Step::Patch(*id, parts.clone()),
                        });
                        id.checked_add(1)
                    }
                    (_, None) => None,
                };
            }
            let spill = slot.spill.as_ref();
            let spill = spill.cloned();
            (steps, spill, cursor.is_none())
        };
        let held_before = active.tree.held_bytes();
        let patched = patched_blocks(&active.object, active.tree.dnode.data_block_bytes(), &steps)?;
        let mut patched = patched.into_iter();
        for step in steps {
            let step = match step {
                Step::Patch(id, _) => {
                    Step::Write(id, DirtyBlock::new(patched.next().unwrap_or_default()))
                }
                step => step,
            };
            match step {
                Step::Free(first, last) => {
                    active.tree.free_leaves(run, first, last)?;
                    active.tree.cursor = last.saturating_add(1);
                }
                Step::Write(id, block) => {
                    let previous = active.tree.pointer(run, 0, id)?;
                    batch.bytes += block.content().len() as u64;
                    let content = Arc::clone(block.content());
                    let mut job = run.job(&active.tree, 0, id, content, previous);
                    job.stored = block.stored_in(run.txg);
                    job.keeps_birth = block.keeps_birth();
                    // A block that must not change its size is not encoded any more.
                    job.encoded = block
                        .encoded()
                        .cloned()
                        .filter(|one| one.seal.is_some() || !job.is_rewritten_late());
                    batch.jobs.push(job);
                    batch.targets.push(PointerSlot::Leaf(index, id));
                    active.tree.cursor = id.saturating_add(1);
                }
                Step::Clone(id, original) => {
                    let previous = active.tree.pointer(run, 0, id)?;
                    let mut job = run.job(&active.tree, 0, id, Arc::default(), previous);
                    job.stored = Some(original.cloned_in(run.txg));
                    job.is_clone = true;
                    batch.bytes += size_of::<WriteJob>() as u64;
                    batch.jobs.push(job);
                    batch.targets.push(PointerSlot::Leaf(index, id));
                    active.tree.cursor = id.saturating_add(1);
                }
                Step::Patch(..) => {}
            }
        }
        batch.bytes += active.tree.held_bytes().saturating_sub(held_before);
        if is_last {
            active.tree.is_swept = true;
            active.is_gathered = true;
            match spill {
                Some(Some(block)) => {
                    batch.bytes += block.content().len() as u64;
                    batch.jobs.push(self.spill_job(active, &block));
                    batch.targets.push(PointerSlot::Spill(index));
                }
                Some(None) if !active.old_spill.is_hole() => {
                    run.sink.kill(&active.old_spill)?;
                    let gone = BlockPointer::default();
                    active.tree.account(run, &active.old_spill, &gone);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn spill_job(&self, active: &Active, block: &DirtyBlock) -> WriteJob {
        let (tree, previous) = (&active.tree, active.old_spill);
        let content = Arc::clone(block.content());
        let mut job = self.run.job(tree, 0, SPILL_BLOCK_ID.0, content, previous);
        job.object_type = tree.dnode.bonus_type;
        job.encoded = block.encoded().cloned();
        job.policy = self.run.policy.block(&BlockTraits {
            object_type: job.object_type,
            level: Level(0),
            is_spill: true,
            lsize_bytes: job.content.len() as u64,
            dnode_checksum: 0,
            dnode_compression: 0,
            is_rewritten_late: job.is_rewritten_late(),
        });
        job
    }

    fn write_batch(
        &mut self,
        active: &mut VecDeque<Active>,
        batch: Batch,
    ) -> Result<(), ObjectError> {
        let pointers = self.write(batch.jobs)?;
        for (pointer, target) in pointers.into_iter().zip(batch.targets) {
            match target {
                PointerSlot::Leaf(index, id) => {
                    active[index].tree.set_pointer(&self.run, 0, id, pointer)?;
                }
                PointerSlot::Spill(index) => {
                    let active = &mut active[index];
                    let old = active.old_spill;
                    active.tree.account(&self.run, &old, &pointer);
                    active.tree.dnode.spill = Some(pointer).filter(|one| !one.is_hole());
                    let has_spill = active.tree.dnode.spill.is_some();
                    let flags = &mut active.tree.dnode.flags;
                    flags.set(DnodeFlags::SPILL_POINTER, has_spill);
                }
            }
        }
        Ok(())
    }

    /// Writes the complete indirect blocks, lowest level first.
    pub(crate) fn write_nodes(&mut self, trees: &mut [&mut TreeWriter]) -> Result<(), ObjectError> {
        let top = trees.iter().map(|tree| tree.levels()).max().unwrap_or(1);
        for level in 1..top {
            let mut jobs = Vec::new();
            let mut targets = Vec::new();
            for (index, tree) in trees.iter_mut().enumerate() {
                for ReadyNode { level, id, job } in tree.take_ready(&self.run, level)? {
                    jobs.push(job);
                    targets.push((index, level, id));
                }
            }
            let pointers = self.write(jobs)?;
            for (pointer, (index, level, id)) in pointers.into_iter().zip(targets) {
                trees[index].set_pointer(&self.run, level, id, pointer)?;
            }
        }
        Ok(())
    }

    /// Passes jobs to the sink. All of them must succeed.
    pub(crate) fn write(&mut self, jobs: Vec<WriteJob>) -> Result<Vec<BlockPointer>, ObjectError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let count = jobs.len();
        let results = self.run.sink.write(jobs);
        if results.len() != count {
            return Err(self
                .run
                .core
                .refuse(ObjectId(0), "the sink lost a block's outcome"));
        }
        let mut pointers = Vec::with_capacity(count);
        for result in results {
            let pointer = result?;
            self.seen.note(&pointer);
            pointers.push(pointer);
        }
        Ok(pointers)
    }

    /// Completes an object's dnode and passes it on.
    fn retire(&mut self, done: Active, retire: &mut Retire<'_>) -> Result<(), ObjectError> {
        let Active {
            object,
            mut tree,
            before,
            was_on_disk,
            is_freed,
            ..
        } = done;
        let id = object.id();
        let is_in_projects = |below: u64| self.run.policy.accounts_projects && id.0 < below;
        let (was_in_projects, is_in_projects) = (
            is_in_projects(self.projects.before),
            is_in_projects(self.projects.after),
        );
        if let Some(owners) = before.owners {
            let bytes = signed(before.used_bytes).saturating_add(ACCOUNTED_BYTES);
            let objects = before.flags.contains(DnodeFlags::USER_OBJECT_ACCOUNTED);
            let objects = -i64::from(objects);
            self.ledger.add(owners, was_in_projects, -bytes, objects);
        }
        let slots = tree.dnode.slots();
        if is_freed {
            if was_on_disk {
                retire(self, id, slots, true, None)?;
            }
            self.retired.push(Retired {
                object,
                dnode: None,
                slots,
            });
            return Ok(());
        }
        self.seen.large_dnodes |= slots > 1;
        if self.is_accounted(id) {
            let with_objects = self.run.policy.accounts_objects;
            let flags = &mut tree.dnode.flags;
            flags.insert(DnodeFlags::USER_USED_ACCOUNTED);
            if with_objects {
                flags.insert(DnodeFlags::USER_OBJECT_ACCOUNTED);
            }
            tree.finish(&self.run);
            if let Some(owners) = self.owners(&object, &tree.dnode) {
                let bytes = signed(tree.dnode.used_bytes()).saturating_add(ACCOUNTED_BYTES);
                let objects = i64::from(with_objects);
                self.ledger.add(owners, is_in_projects, bytes, objects);
            }
        } else {
            tree.finish(&self.run);
        }
        let bytes = encode(self.run.core, id, &tree.dnode)?;
        retire(self, id, slots, was_on_disk, Some(&bytes))?;
        self.retired.push(Retired {
            object,
            dnode: Some(Arc::new(tree.dnode)),
            slots,
        });
        Ok(())
    }

    fn is_accounted(&self, id: ObjectId) -> bool {
        self.run.core.kind == ObjectSetKind::FileSystem
            && self.run.policy.accounts_users
            && id < special_id(2)
    }

    fn before(&self, object: &Object, dnode: &Dnode, was_on_disk: bool) -> Before {
        let is_counted = was_on_disk
            && self.is_accounted(object.id())
            && dnode.flags.contains(DnodeFlags::USER_USED_ACCOUNTED);
        let owners = match dnode.bonus_type {
            ObjectType::SA if is_counted && dnode.bonus.is_empty() => {
                let spill = object.tree(dnode).read_spill().ok().flatten();
                spill.and_then(|spill| owners_in(dnode.bonus_type, &spill.bytes))
            }
            _ if is_counted => owners_in(dnode.bonus_type, &dnode.bonus),
            _ => None,
        };
        Before {
            owners,
            used_bytes: dnode.used_bytes(),
            flags: dnode.flags,
        }
    }

    fn owners(&self, object: &Object, dnode: &Dnode) -> Option<Owners> {
        if dnode.bonus_type != ObjectType::SA || !dnode.bonus.is_empty() {
            return owners_in(dnode.bonus_type, &dnode.bonus);
        }
        let changed = {
            let state = object.state();
            let slot = state.slot_of(self.run.txg);
            let spill = slot.and_then(|slot| slot.spill.clone());
            spill.flatten().map(|spill| Arc::clone(spill.content()))
        };
        match changed {
            Some(content) => owners_in(dnode.bonus_type, &content),
            None => match object.tree(dnode).read_spill().ok().flatten() {
                Some(spill) => owners_in(dnode.bonus_type, &spill.bytes),
                None => Some(Owners::default()),
            },
        }
    }
}

/// Bytes that every accounted object is charged beyond its blocks, regardless of the size of its dnode.
const ACCOUNTED_BYTES: i64 = 512;

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn owners_in(bonus_type: ObjectType, attributes: &[u8]) -> Option<Owners> {
    Owners::of(bonus_type, attributes, Endian::Little)
        .ok()
        .flatten()
}
