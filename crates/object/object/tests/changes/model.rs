//! Random operations on object sets, compared with a plain model.

use super::*;
use crate::judge::birth_of;
use millpond_object::{NewObject, Object, ObjectView};
use millpond_ondisk::{BlockId, CompressionKind, ObjectId, ObjectType};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// The expected state of an object: every block ever written, and its end.
#[derive(Debug, Clone, PartialEq)]
struct ModelObject {
    block_bytes: usize,
    blocks: BTreeMap<u64, Vec<u8>>,
    block_id_max: u64,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
    /// Distinguishes objects that reuse an id.
    identity: u64,
    /// Incremented when the block size changes.
    shape: u64,
}

type Model = BTreeMap<u64, ModelObject>;

#[derive(Debug, Clone)]
enum Step {
    Make {
        block: u8,
        slots: u8,
        shift: u8,
    },
    Free(prop::sample::Index),
    /// Object, offset and length in units of a seventh of a block, seed (0 for zeros).
    Write(prop::sample::Index, u16, u16, u8),
    /// Clones a block of one object to a block of another or the same.
    Clone(prop::sample::Index, u16, prop::sample::Index, u16),
    Punch(prop::sample::Index, u16, u16),
    Truncate(prop::sample::Index, u16),
    Resize(prop::sample::Index, u8),
    Bonus(prop::sample::Index, u8),
    Spill(prop::sample::Index, u8),
    Read(prop::sample::Index, u16, u16),
    /// Closes the open txg.
    Close,
    /// Writes the oldest closed txg.
    Sync,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    // Mostly near the front, sometimes far away.
    let place = || prop_oneof![4 => 0u16..60, 2 => 0u16..900, 1 => 0u16..9000];
    let span = || prop_oneof![4 => 1u16..20, 1 => 1u16..300];
    prop_oneof![
        2 => (0u8..5, 1u8..6, 12u8..15)
            .prop_map(|(block, slots, shift)| Step::Make { block, slots, shift }),
        1 => index().prop_map(Step::Free),
        12 => (index(), place(), span(), 0u8..8)
            .prop_map(|(object, at, count, seed)| Step::Write(object, at, count, seed)),
        8 => (index(), 0u16..8, index(), 0u16..8)
            .prop_map(|(from, block, to, at)| Step::Clone(from, block, to, at)),
        4 => (index(), place(), prop_oneof![3 => span(), 1 => 1u16..6000])
            .prop_map(|(object, at, count)| Step::Punch(object, at, count)),
        2 => (index(), place()).prop_map(|(object, at)| Step::Truncate(object, at)),
        1 => (index(), 0u8..6).prop_map(|(object, size)| Step::Resize(object, size)),
        1 => (index(), 0u8..200).prop_map(|(object, bytes)| Step::Bonus(object, bytes)),
        1 => (index(), 0u8..5).prop_map(|(object, size)| Step::Spill(object, size)),
        3 => (index(), place(), span())
            .prop_map(|(object, at, count)| Step::Read(object, at, count)),
        4 => Just(Step::Close),
        4 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

fn block_bytes(choice: u8) -> u32 {
    [512, 1024, 4096, 512, 1536, 8192][usize::from(choice % 6)]
}

impl ModelObject {
    fn block(&self, id: u64) -> Vec<u8> {
        let zeros = || vec![0; self.block_bytes];
        self.blocks.get(&id).cloned().unwrap_or_else(zeros)
    }
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let size = self.block_bytes as u64;
        let bytes = (offset..offset + length as u64).map(|at| {
            let block = self.blocks.get(&(at / size));
            block.map_or(0, |block| block[(at % size) as usize])
        });
        bytes.collect()
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let size = self.block_bytes as u64;
        for (at, byte) in (offset..).zip(bytes) {
            let mut block = self.blocks.remove(&(at / size));
            let content = block.get_or_insert_with(|| vec![0; size as usize]);
            content[(at % size) as usize] = *byte;
            self.blocks.insert(at / size, block.unwrap());
            self.block_id_max = self.block_id_max.max(at / size);
        }
    }
    fn free(&mut self, offset: u64, end: u64) {
        let size = self.block_bytes as u64;
        let ids: Vec<u64> = self.blocks.keys().copied().collect();
        for id in ids {
            let (low, high) = (id * size, (id + 1) * size);
            if offset <= low && high <= end {
                self.blocks.remove(&id);
            } else if low < end && offset < high {
                let block = self.blocks.get_mut(&id).unwrap();
                let from = (offset.max(low) - low) as usize;
                let to = (end.min(high) - low) as usize;
                block[from..to].fill(0);
            }
        }
        let (first, after) = (offset.div_ceil(size), end / size);
        if first < after && first <= self.block_id_max && after > self.block_id_max {
            self.block_id_max = first.saturating_sub(1);
        }
    }
}

struct Life {
    bench: Bench,
    model: Model,
    made: u64,
    /// Closed txgs with the state at their end.
    closed: VecDeque<(Txg, Model)>,
    syncing: Option<SyncingTxg>,
    /// The last synced state, used to check birth txgs.
    synced: Option<(Txg, Model)>,
    /// Handles stay open as long as the set. A reopened set gets new ones.
    open: BTreeMap<u64, Arc<Object>>,
}

impl Life {
    fn new(compression: CompressionKind) -> Self {
        let mut policy = WritePolicy::dataset();
        policy.compression = compression;
        let shape = NewObjectSet {
            key: None,
            raw: None,
            indirect_shift: 14,
            flags: 0,
        };
        Self {
            bench: Bench::with_shape(ObjectSetKind::Other, policy, shape),
            model: Model::new(),
            made: 0,
            closed: VecDeque::new(),
            syncing: None,
            synced: None,
            open: BTreeMap::new(),
        }
    }

    fn pick(&self, index: &prop::sample::Index) -> Option<u64> {
        let ids: Vec<u64> = self.model.keys().copied().collect();
        (!ids.is_empty()).then(|| *index.get(&ids))
    }

    fn object(&mut self, id: u64) -> Arc<Object> {
        // Half of the objects are looked up each time and may have been evicted from memory.
        if id.is_multiple_of(2) {
            return self.bench.set.object(ObjectId(id)).unwrap();
        }
        let set = &self.bench.set;
        let open = self.open.entry(id);
        let object = open.or_insert_with(|| set.object(ObjectId(id)).unwrap());
        Arc::clone(object)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Make {
                block,
                slots,
                shift,
            } => {
                let tx = self.bench.begin();
                let bytes = block_bytes(*block);
                let mut new = NewObject::new(ObjectType::PLAIN_FILE).with_block_bytes(bytes);
                new.indirect_shift = *shift;
                let new = new
                    .with_slots(*slots)
                    .with_bonus(ObjectType::SA, vec![1; 40]);
                let object = self.bench.set.allocate(&tx, new).unwrap();
                self.made += 1;
                let model = ModelObject {
                    block_bytes: bytes as usize,
                    blocks: BTreeMap::new(),
                    block_id_max: 0,
                    bonus: vec![1; 40],
                    spill: None,
                    identity: self.made,
                    shape: 0,
                };
                let before = self.model.insert(object.id().0, model);
                assert!(before.is_none(), "number in use given out");
            }
            Step::Free(index) => {
                let Some(id) = self.pick(index) else { return };
                let tx = self.bench.begin();
                self.bench.set.free(&tx, ObjectId(id)).unwrap();
                self.model.remove(&id);
                self.open.remove(&id);
            }
            Step::Write(index, at, count, seed) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = self.model.get_mut(&id).unwrap();
                let unit = model.block_bytes as u64 / 7;
                let offset = u64::from(*at) * unit;
                let bytes: Vec<u8> = (0..u64::from(*count) * unit)
                    .map(|at| match seed {
                        0 => 0,
                        1 => 7,
                        _ => (at * at * u64::from(*seed) % 251) as u8,
                    })
                    .collect();
                let tx = self.bench.begin();
                let end = offset + bytes.len() as u64;
                let size = model.block_bytes;
                if !size.is_power_of_two() && end > size as u64 {
                    assert!(object.write(&tx, offset, &bytes).is_err());
                    return;
                }
                object.write(&tx, offset, &bytes).unwrap();
                model.write(offset, &bytes);
            }
            Step::Clone(from, block, to, at) => {
                let (Some(from), Some(to)) = (self.pick(from), self.pick(to)) else {
                    return;
                };
                let (block, at) = (u64::from(*block), u64::from(*at));
                let tx = self.bench.begin();
                let pointer = self.object(from).stored_pointer(BlockId(block)).unwrap();
                // Changes that are not synced have no pointer yet.
                let Some(pointer) = pointer.filter(|pointer| !pointer.is_hole()) else {
                    return;
                };
                let content = self.model[&from].block(block);
                let object = self.object(to);
                let done = object.clone_block(&tx, BlockId(at), &pointer);
                let model = self.model.get_mut(&to).unwrap();
                let fits = content.len() == model.block_bytes;
                let is_one = !model.block_bytes.is_power_of_two();
                assert_eq!(done.is_ok(), fits && (at == 0 || !is_one), "{done:?}");
                if done.is_ok() {
                    model.blocks.insert(at, content);
                    model.block_id_max = model.block_id_max.max(at);
                }
            }
            Step::Punch(index, at, count) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = self.model.get_mut(&id).unwrap();
                let unit = model.block_bytes as u64 / 7;
                let (offset, length) = (u64::from(*at) * unit, u64::from(*count) * unit);
                let tx = self.bench.begin();
                object.free_range(&tx, offset, length).unwrap();
                model.free(offset, offset + length);
            }
            Step::Truncate(index, at) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = self.model.get_mut(&id).unwrap();
                let offset = u64::from(*at) * (model.block_bytes as u64 / 7);
                let tx = self.bench.begin();
                object.free_range(&tx, offset, u64::MAX).unwrap();
                model.free(offset, u64::MAX);
            }
            Step::Resize(index, size) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = self.model.get_mut(&id).unwrap();
                let bytes = block_bytes(*size);
                let tx = self.bench.begin();
                let done = object.set_block_bytes(&tx, bytes, None);
                if model.block_id_max > 0 && bytes as usize != model.block_bytes {
                    assert!(done.is_err());
                    return;
                }
                done.unwrap();
                model.block_bytes = bytes as usize;
                model.shape += 1;
                for block in model.blocks.values_mut() {
                    block.resize(bytes as usize, 0);
                }
            }
            Step::Bonus(index, bytes) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = self.model.get_mut(&id).unwrap();
                let tx = self.bench.begin();
                let bonus = vec![bytes | 1; usize::from(*bytes)];
                if bonus.len() <= object.bonus_bytes_max() {
                    object.set_bonus(&tx, bonus.clone()).unwrap();
                    model.bonus = bonus;
                }
            }
            Step::Spill(index, size) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = self.model.get_mut(&id).unwrap();
                let tx = self.bench.begin();
                let content: Vec<u8> = (0..usize::from(*size) * 512)
                    .map(|at| (at % 97) as u8 + size)
                    .collect();
                let content = Some(content).filter(|one| !one.is_empty());
                let buffer = object.bonus_bytes_max();
                let may = model.spill.is_some() || model.bonus.len() + 128 <= buffer;
                let done = object.set_spill(&tx, content.clone());
                assert_eq!(done.is_ok(), may || content.is_none());
                if done.is_ok() {
                    model.spill = content;
                }
            }
            Step::Read(index, at, count) => {
                let Some(id) = self.pick(index) else { return };
                let object = self.object(id);
                let model = &self.model[&id];
                let unit = model.block_bytes as u64 / 7;
                let (offset, length) = (u64::from(*at) * unit, u64::from(*count) * unit);
                let mut read = vec![0xee; length as usize];
                object.read(offset, &mut read).unwrap();
                assert!(read == model.read(offset, length as usize), "object {id}");
                let block = BlockId(offset / model.block_bytes as u64);
                let read = object.read_block(block).unwrap();
                assert!(
                    read.bytes == millpond_env::sync::Arc::new(model.block(block.0)),
                    "object {id} block {block}"
                );
                self.look_for_data(&object, model, block.0);
            }
            Step::Close => self.close(),
            Step::Sync => self.sync(),
            Step::Reopen => {
                self.sync_all();
                self.open.clear();
                self.bench.reopen();
                self.judge_live();
            }
        }
    }

    /// Checks that data is found where the model has data, and that none is missed.
    fn look_for_data(&self, object: &Object, model: &ModelObject, from: u64) {
        let found = object.next_data(BlockId(from), false).unwrap();
        let not_zero = |(id, block): (&u64, &Vec<u8>)| {
            let is_data = block.iter().any(|byte| *byte != 0);
            is_data.then_some(*id)
        };
        let surely = model.blocks.range(from..).find_map(not_zero);
        if let Some(surely) = surely {
            assert!(found.is_some_and(|found| found.0 <= surely));
        }
        if let Some(found) = found {
            assert!(found.0 >= from && model.blocks.contains_key(&found.0));
        }
        if let Some(hole) = object.next_data(BlockId(from), true).unwrap() {
            let block = model.block(hole.0);
            assert!(hole.0 >= from && block.iter().all(|byte| *byte == 0));
            assert!(hole.0 <= model.block_id_max);
        }
    }

    fn close(&mut self) {
        let txg = self.bench.groups.open_txg();
        // At most one txg may quiesce while another syncs.
        if self.closed.len() < 2 {
            self.bench.groups.ask(txg);
            if self.syncing.is_none() {
                self.syncing = self.bench.groups.next_to_sync(Duration::ZERO);
            }
            self.closed.push_back((txg, self.model.clone()));
            assert_eq!(self.bench.groups.open_txg().0, txg.0 + 1);
        }
    }

    fn sync(&mut self) {
        let Some(syncing) = self.syncing.take() else {
            return;
        };
        let (txg, state) = self.closed.pop_front().unwrap();
        assert_eq!(txg, syncing.txg());
        let synced = self.bench.set.sync(txg, 1, &*self.bench.sink).unwrap();
        self.bench.groups.synced(txg);
        assert_eq!(synced.root, self.bench.set.root());
        assert!(!self.bench.set.is_dirty(txg));
        let set = self.bench.judged();
        assert_eq!(set.object_count(), state.len() as u64);
        for (id, model) in &state {
            let object = set.object(ObjectId(*id)).unwrap();
            judge_object(&object, model);
            if let Some((before_txg, before)) = &self.synced
                && let Some(before) = before.get(id)
                && (before.identity, before.shape) == (model.identity, model.shape)
            {
                judge_births(&object, *before_txg, before, model);
            }
        }
        self.synced = Some((txg, state));
        if !self.closed.is_empty() {
            self.syncing = self.bench.groups.next_to_sync(Duration::ZERO);
        }
        self.judge_live();
    }

    fn sync_all(&mut self) {
        if self.closed.len() == 2 {
            self.sync();
        }
        self.close();
        while !self.closed.is_empty() {
            self.sync();
        }
    }

    /// Checks the newest state, synced or not.
    fn judge_live(&mut self) {
        let mut ids = vec![];
        let mut at = ObjectId(0);
        while let Some(id) = self.bench.set.next_object(at).unwrap() {
            ids.push(id.0);
            at = id;
        }
        let expected: Vec<u64> = self.model.keys().copied().collect();
        assert_eq!(ids, expected);
        for id in ids {
            let object = self.object(id);
            let model = &self.model[&id];
            assert_eq!(object.block_bytes(), model.block_bytes as u64);
            assert_eq!(object.block_id_max().0, model.block_id_max);
            assert_eq!(*object.bonus(), model.bonus);
            let spill = object.spill().unwrap().map(|block| block.bytes.clone());
            assert!(spill == model.spill.clone().map(millpond_env::sync::Arc::new));
            for block in model.blocks.keys().chain([&model.block_id_max]) {
                let read = object.read_block(BlockId(*block)).unwrap();
                assert!(
                    read.bytes == millpond_env::sync::Arc::new(model.block(*block)),
                    "object {id} block {block}"
                );
            }
            self.look_for_data(&object, model, 0);
        }
    }
}

fn judge_object(object: &ObjectView, model: &ModelObject) {
    let id = object.id();
    assert_eq!(object.block_bytes(), model.block_bytes as u64);
    assert_eq!(object.block_id_max().0, model.block_id_max, "object {id}");
    assert_eq!(object.bonus().unwrap(), model.bonus);
    let spill = object.read_spill().unwrap();
    assert!(
        spill.map(|block| block.bytes.clone())
            == model.spill.clone().map(millpond_env::sync::Arc::new)
    );
    let mut data = vec![];
    let mut at = object.next_data_block(BlockId(0)).unwrap();
    while let Some(block) = at {
        data.push(block.0);
        at = object.next_data_block(BlockId(block.0 + 1)).unwrap();
    }
    for block in data.iter().chain(model.blocks.keys()) {
        let read = object.read_block(BlockId(*block)).unwrap();
        assert!(
            read.bytes == millpond_env::sync::Arc::new(model.block(*block)),
            "object {id} block {block}"
        );
    }
}

/// Checks that an incremental reader that knows the state of `since` sees every change.
fn judge_births(object: &ObjectView, since: Txg, before: &ModelObject, now: &ModelObject) {
    let end = now.block_id_max;
    for id in before.blocks.keys().chain(now.blocks.keys()) {
        if *id <= end && before.block(*id) != now.block(*id) {
            let birth = birth_of(object, *id);
            assert!(
                birth > since.0,
                "object {} block {id} changed after {since} but was born in {birth}",
                object.id()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_synced_state_is_the_state_at_the_end_of_its_txg(
        steps in prop::collection::vec(step(), 1..120),
        compresses in prop::bool::weighted(0.8),
    ) {
        let compression = if compresses { CompressionKind::Lz4 } else { CompressionKind::Off };
        let mut life = Life::new(compression);
        life.step(&Step::Make { block: 0, slots: 1, shift: 12 });
        for step in &steps {
            life.step(step);
        }
        life.sync_all();
        let ids: Vec<u64> = life.model.keys().copied().collect();
        for id in ids {
            let tx = life.bench.begin();
            life.bench.set.free(&tx, ObjectId(id)).unwrap();
        }
        life.model.clear();
        life.open.clear();
        life.sync_all();
        assert_eq!(life.bench.set.committed().unwrap().phys().meta_dnode.used, 0);
    }
}
