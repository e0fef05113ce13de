//! Every figure of every dataset counted anew from the blocks that it reaches.

use millpond_block::{BlockAddress, BlockStore};
use millpond_dataset::{Dataset, Directory};
use millpond_env::sync::Arc;
use millpond_object::{Object, ObjectSet};
use millpond_ondisk::dsl::{hex_key_number, keys};
use millpond_ondisk::{
    BlockPointer, BpObjectEntry, BpObjectPhys, BpTreeEntry, BpTreePhys, DeadlistPhys, Dnode,
    Endian, ObjectId, ObjectType, Txg, live_pointers,
};
use millpond_pool::Pool;
use millpond_zap::Zap;
use std::collections::{BTreeMap, BTreeSet};

/// What a block counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sizes {
    used: i64,
    compressed: i64,
    uncompressed: i64,
}

impl std::ops::AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }
}

/// A block by its first address and birth; embedded ones by their words.
type Key = [u64; 16];

#[derive(Debug, Clone, Copy)]
struct Found {
    sizes: Sizes,
    birth: Txg,
}

type Blocks = BTreeMap<Key, Found>;

/// Deflated bytes of a pointer: what its vdevs' widths would take of 128 KiB is left out.
fn used_bytes(store: &BlockStore, pointer: &BlockPointer) -> i64 {
    let topology = store.topology();
    let used = pointer.dvas().map(|dva| {
        let typical = topology.tree.asize(dva.vdev, 128 << 10, Txg(0));
        let ratio = (128 << 10) / (typical.unwrap_or(128 << 10) >> 9);
        (dva.asize_bytes >> 9) * ratio
    });
    used.sum::<u64>() as i64
}

fn sizes_of(store: &BlockStore, pointer: &BlockPointer) -> Sizes {
    let is_data = pointer.level().0 == 0 && !pointer.object_type().is_metadata();
    if pointer.is_hole() {
        return Sizes::default();
    }
    if pointer.is_embedded() {
        let uncompressed = if is_data {
            pointer.lsize_bytes() as i64
        } else {
            0
        };
        return Sizes {
            uncompressed,
            ..Sizes::default()
        };
    }
    let psize = pointer.psize_bytes() as i64;
    Sizes {
        used: used_bytes(store, pointer),
        compressed: psize,
        uncompressed: if is_data {
            pointer.lsize_bytes() as i64
        } else {
            psize
        },
    }
}

struct Recount {
    pool: Arc<Pool>,
    faults: Vec<String>,
    /// Who owns each address.
    owners: BTreeMap<(u32, u64), String>,
}

/// What is wrong in a pool, a line each.
pub fn faults_of(pool: &Arc<Pool>) -> Vec<String> {
    let mut recount = Recount {
        pool: Arc::clone(pool),
        faults: vec![],
        owners: BTreeMap::new(),
    };
    recount.run();
    recount.faults
}

impl Recount {
    fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    fn expect(
        &mut self,
        name: &str,
        what: &str,
        stored: impl Into<i128>,
        counted: impl Into<i128>,
    ) {
        let (stored, counted) = (stored.into(), counted.into());
        if stored != counted {
            self.fault(format!(
                "{name}: {what}: stored {stored}, counted {counted}"
            ));
        }
    }

    fn own(&mut self, blocks: &Blocks, keys: impl Iterator<Item = Key>, who: &str) {
        let _ = blocks;
        for words in keys {
            let pointer = BlockPointer { words };
            for dva in pointer.dvas() {
                let at = (dva.vdev.0, dva.offset_bytes);
                if let Some(other) = self.owners.insert(at, who.to_owned()) {
                    self.fault(format!("{who}: block at {at:?} also belongs to {other}"));
                }
            }
        }
    }

    fn run(&mut self) {
        let mut mos = Blocks::new();
        let set = Arc::clone(self.pool.mos());
        walk(&set, Txg(0), &mut mos);
        self.own(&mos.clone(), mos.keys().copied(), "the MOS");
        let mos_sizes = sum(mos.values());
        let free = self.count_free();
        let root = Directory::root(&self.pool).unwrap();
        self.directory(&root, mos_sizes, free);
    }

    /// What waits to be freed.
    fn count_free(&mut self) -> Sizes {
        let mut sizes = Sizes::default();
        if let Some(list) = self.pool.find_directory_object("free_bpobj").unwrap() {
            let (_, entries) = list_entries(&self.pool, list);
            for entry in &entries {
                sizes += sizes_of(self.pool.store(), &entry.pointer);
            }
            let keys: Vec<Key> = entries.iter().map(|entry| entry.pointer.words).collect();
            self.own(&Blocks::new(), keys.into_iter(), "the free list");
        }
        if let Some(queue) = self.pool.find_directory_object("bptree_obj").unwrap() {
            let object = self.pool.mos().object(queue).unwrap();
            let phys = BpTreePhys::decode(object.bonus().unwrap(), Endian::Little).unwrap();
            let mut in_queue = Sizes::default();
            for at in phys.begin..phys.end {
                let bytes = read(&object, at * 168, 168);
                let entry = BpTreeEntry::decode(&bytes, Endian::Little).unwrap();
                assert_eq!(entry.resume.object, 0, "slices are counted whole here");
                let set =
                    ObjectSet::open(Arc::clone(self.pool.store()), 1 << 40, entry.pointer, None);
                let mut blocks = Blocks::new();
                walk(&set.unwrap(), entry.birth, &mut blocks);
                in_queue += sum(blocks.values());
                self.own(
                    &blocks.clone(),
                    blocks.keys().copied(),
                    "the queue of trees",
                );
            }
            self.expect("queue of trees", "bytes", phys.bytes, in_queue.used);
            self.expect(
                "queue of trees",
                "physical",
                phys.compressed_bytes,
                in_queue.compressed,
            );
            self.expect(
                "queue of trees",
                "logical",
                phys.uncompressed_bytes,
                in_queue.uncompressed,
            );
            sizes += in_queue;
        }
        if let Some(set) = self
            .pool
            .find_directory_object("com.delphix:deleted_clones")
            .unwrap()
        {
            let zap = Zap::open(self.pool.mos().object(set).unwrap()).unwrap();
            for entry in zap.iter() {
                let id = ObjectId(entry.unwrap().value.first().unwrap());
                let live = self.livelist(id);
                sizes += sum(live.values());
                self.own(&live.clone(), live.keys().copied(), "a deleted clone");
            }
        }
        sizes
    }

    /// The blocks that a livelist says are alive, without checksums.
    fn livelist(&mut self, id: ObjectId) -> Blocks {
        let mut blocks = Blocks::new();
        let object = self.pool.mos().object(id).unwrap();
        let phys = DeadlistPhys::decode(object.bonus().unwrap(), Endian::Little).unwrap();
        for (key, list) in entries_of(object) {
            let (_, entries) = list_entries(&self.pool, list);
            for pointer in live_pointers(&entries) {
                let birth = pointer.birth();
                if birth <= key {
                    self.fault(format!("livelist {id}: birth {birth} under key {key}"));
                }
                let sizes = sizes_of(self.pool.store(), &pointer);
                blocks.insert(pointer.words, Found { sizes, birth });
            }
        }
        let all = sum(blocks.values());
        self.expect("livelist", "used", phys.used_bytes, all.used);
        blocks
    }

    /// Checks a directory and everything below; returns what its parent is charged.
    fn directory(
        &mut self,
        directory: &Arc<Directory>,
        mos: Sizes,
        free: Sizes,
    ) -> (i64, i64, Sizes) {
        let name = directory.name().to_owned();
        let phys = directory.phys().clone();
        let parts = phys.used_breakdown;
        let sum_of_parts = parts.head_bytes
            + parts.snapshots_bytes
            + parts.children_bytes
            + parts.children_reserved_bytes
            + parts.ref_reserved_bytes;
        self.expect(&name, "used", phys.used_bytes, sum_of_parts);

        let (mut children, mut reserved) = (0, 0);
        let mut sizes = Sizes::default();
        let mut counts = (0u64, 0u64);
        for (component, id) in directory.child_entries().unwrap() {
            let child = directory.open_child(&component, id).unwrap();
            if child.phys().parent != Some(directory.id()) {
                self.fault(format!("{name}/{component}: another parent"));
            }
            let below = match component.as_str() {
                "$MOS" => (mos.used, 0, mos),
                "$FREE" => (free.used, 0, free),
                _ => self.directory(&child, mos, free),
            };
            if component.starts_with('$') {
                let phys = child.phys();
                let full = format!("{name}/{component}");
                self.expect(&full, "used", phys.used_bytes, below.2.used);
                self.expect(&full, "physical", phys.compressed_bytes, below.2.compressed);
                self.expect(
                    &full,
                    "logical",
                    phys.uncompressed_bytes,
                    below.2.uncompressed,
                );
            } else {
                counts.0 += 1;
                let number = |key| child.extension(key).unwrap().map_or(0, |words| words[0]);
                counts.0 += number(keys::FILESYSTEM_COUNT);
                counts.1 += number(keys::SNAPSHOT_COUNT);
            }
            children += below.0;
            reserved += below.1;
            sizes += below.2;
        }
        self.expect(&name, "children", parts.children_bytes, children);
        self.expect(
            &name,
            "children's reservations",
            parts.children_reserved_bytes,
            reserved,
        );
        let mut used = children + reserved;
        if let Some(head) = directory.head().unwrap() {
            counts.1 += head.snapshot_entries().unwrap().len() as u64;
            let (own_used, own) = self.chain(directory, &head);
            used += own_used;
            sizes += own;
        }
        if let Some(words) = directory.extension(keys::FILESYSTEM_COUNT).unwrap() {
            self.expect(&name, "file systems counted", words[0], counts.0);
        }
        if let Some(words) = directory.extension(keys::SNAPSHOT_COUNT).unwrap() {
            self.expect(&name, "snapshots counted", words[0], counts.1);
        }
        self.expect(&name, "used", phys.used_bytes, used);
        self.expect(&name, "physical", phys.compressed_bytes, sizes.compressed);
        self.expect(
            &name,
            "logical",
            phys.uncompressed_bytes,
            sizes.uncompressed,
        );
        let unused = phys.reserved_bytes.saturating_sub(phys.used_bytes) as i64;
        (used, unused, sizes)
    }

    /// Checks a head with its snapshots. Returns what they and the refreservation charge.
    fn chain(&mut self, directory: &Arc<Directory>, head: &Dataset) -> (i64, Sizes) {
        let name = directory.name().to_owned();
        let origin_txg = match directory.phys().origin {
            Some(origin) => {
                Dataset::by_id(&self.pool, origin)
                    .unwrap()
                    .phys()
                    .creation_txg
            }
            None => Txg(0),
        };
        // Oldest first, the head last.
        let mut chain: Vec<Dataset> = vec![head.clone()];
        loop {
            let last = chain.last().unwrap().phys().clone();
            let Some(previous) = last.previous_snapshot else {
                break;
            };
            let before = Dataset::by_id(&self.pool, previous).unwrap();
            let before_txg = before.phys().creation_txg;
            self.expect(
                &name,
                "previous txg",
                last.previous_snapshot_txg.0,
                before_txg.0,
            );
            if before.phys().directory != directory.id() {
                self.check_origin(&name, &before, chain.last().unwrap().id(), head.id());
                break;
            }
            let next = before.phys().next_snapshot;
            if next != Some(chain.last().unwrap().id()) {
                self.fault(format!("{name}: next of {} is {next:?}", before.name()));
            }
            chain.push(before);
        }
        chain.reverse();
        if chain.len() != head.snapshot_entries().unwrap().len() + 1 {
            self.fault(format!("{name}: the chain has {} datasets", chain.len()));
        }
        let origin_blocks = chain[0]
            .phys()
            .previous_snapshot
            .map(|id| self.blocks(&Dataset::by_id(&self.pool, id).unwrap()))
            .unwrap_or_default();
        let blocks: Vec<Blocks> = chain.iter().map(|dataset| self.blocks(dataset)).collect();
        let mut distinct = Blocks::new();
        for (at, dataset) in chain.iter().enumerate() {
            let previous = if at == 0 {
                &origin_blocks
            } else {
                &blocks[at - 1]
            };
            let next = blocks.get(at + 1);
            self.dataset(dataset, &blocks[at], previous, next, at > 0);
            let own = blocks[at]
                .iter()
                .filter(|(_, found)| found.birth > origin_txg);
            distinct.extend(own.map(|(key, found)| (*key, *found)));
        }
        self.own(&distinct.clone(), distinct.keys().copied(), &name);
        let all = sum(distinct.values());
        let of_head = sum(blocks[chain.len() - 1]
            .values()
            .filter(|found| found.birth > origin_txg));
        let parts = directory.phys().used_breakdown;
        self.expect(&name, "head's part", parts.head_bytes, of_head.used);
        self.expect(
            &name,
            "snapshots' part",
            parts.snapshots_bytes,
            all.used - of_head.used,
        );
        let reserved = directory.property("refreservation", false).unwrap();
        let reserved = match reserved {
            Some((millpond_dataset::PropertyValue::Number(number), _)) => number,
            _ => 0,
        };
        let unused = reserved.saturating_sub(head.phys().unique_bytes);
        self.expect(
            &name,
            "refreservation's part",
            parts.ref_reserved_bytes,
            unused,
        );
        if let Some(words) = directory.extension(keys::LIVELIST).unwrap() {
            let live = self.livelist(ObjectId(words[0]));
            let places = |blocks: &Blocks| -> BTreeSet<[u64; 2]> {
                let own = blocks.iter().filter(|(_, found)| found.birth > origin_txg);
                own.filter(|(key, _)| !BlockPointer { words: **key }.is_embedded())
                    .map(|(key, _)| [key[0], key[1]])
                    .collect()
            };
            if places(&live) != places(&blocks[chain.len() - 1]) && chain.len() == 1 {
                self.fault(format!("{name}: the livelist is not what the clone has"));
            }
        }
        // A bookmark of a snapshot that is still there counts what the dataset after it lacks.
        for mark in head.bookmarks().unwrap() {
            let is_counting = mark
                .phys
                .to_words()
                .get(4)
                .is_some_and(|flags| flags & 3 == 3);
            let at = chain
                .iter()
                .position(|dataset| dataset.phys().guid == mark.phys.guid);
            let Some(at) = at.filter(|at| is_counting && at + 1 < chain.len()) else {
                continue;
            };
            let gone = blocks[at]
                .iter()
                .filter(|(key, _)| !blocks[at + 1].contains_key(*key));
            let gone = sum(gone.map(|(_, found)| found));
            let full = format!("{name}#{}", mark.name);
            let freed = mark.phys.freed_before_next;
            self.expect(&full, "freed before next", freed.referenced, gone.used);
            self.expect(&full, "freed, physical", freed.compressed, gone.compressed);
            self.expect(
                &full,
                "freed, logical",
                freed.uncompressed,
                gone.uncompressed,
            );
        }
        // What a clone shares with its origin is the origin's.
        (all.used + unused as i64, all)
    }

    fn check_origin(&mut self, name: &str, origin: &Dataset, oldest: ObjectId, head: ObjectId) {
        let has = |table: Option<ObjectId>, number: u64| {
            table.is_some_and(|table| {
                let zap = Zap::open(self.pool.mos().object(table).unwrap()).unwrap();
                zap.lookup_u64(format!("{number:x}").as_bytes()).unwrap() == Some(number)
            })
        };
        let in_next = has(origin.phys().next_clones, oldest.0);
        let in_clones = has(origin.directory().phys().clones, head.0);
        if origin.phys().next_snapshot != Some(oldest) && !in_next {
            self.fault(format!("{name}: its origin does not know {oldest}"));
        }
        if (!origin.name().contains("$ORIGIN") || in_next) && !in_clones {
            self.fault(format!(
                "{name}: the origin's directory does not know {head}"
            ));
        }
    }

    fn blocks(&self, dataset: &Dataset) -> Blocks {
        let mut blocks = Blocks::new();
        if dataset.phys().block_pointer.is_hole() {
            return blocks;
        }
        let set = dataset.object_set(None).unwrap();
        walk(&set, Txg(0), &mut blocks);
        blocks
    }

    fn dataset(
        &mut self,
        dataset: &Dataset,
        blocks: &Blocks,
        previous: &Blocks,
        next: Option<&Blocks>,
        has_sibling_before: bool,
    ) {
        let name = dataset.name().to_owned();
        let phys = dataset.phys().clone();
        let all = sum(blocks.values());
        self.expect(&name, "referenced", phys.referenced_bytes, all.used);
        self.expect(&name, "physical", phys.compressed_bytes, all.compressed);
        self.expect(&name, "logical", phys.uncompressed_bytes, all.uncompressed);
        let is_unique = |key: &Key, found: &Found| {
            let in_previous = if has_sibling_before || next.is_none() {
                previous.contains_key(key)
            } else {
                found.birth <= phys.previous_snapshot_txg
            };
            !in_previous && next.is_none_or(|next| !next.contains_key(key))
        };
        let unique = sum(blocks
            .iter()
            .filter(|(key, found)| is_unique(key, found))
            .map(|(_, found)| found));
        self.expect(&name, "unique", phys.unique_bytes, unique.used);

        // The deadlist: what the one before has and this one has not.
        let gone: Vec<(&Key, &Found)> = previous
            .iter()
            .filter(|(key, _)| !blocks.contains_key(*key))
            .collect();
        let dead = sum(gone.iter().map(|(_, found)| *found));
        let object = self.pool.mos().object(phys.deadlist.unwrap()).unwrap();
        let header = DeadlistPhys::decode(object.bonus().unwrap(), Endian::Little).unwrap();
        self.expect(&name, "dead", header.used_bytes, dead.used);
        self.expect(
            &name,
            "dead, physical",
            header.compressed_bytes,
            dead.compressed,
        );
        self.expect(
            &name,
            "dead, logical",
            header.uncompressed_bytes,
            dead.uncompressed,
        );
        let mut listed = 0;
        let lists = entries_of(object);
        for (at, (key, list)) in lists.iter().enumerate() {
            let (header, entries) = list_entries(&self.pool, *list);
            let mut sizes = Sizes::default();
            for entry in &entries {
                let birth = entry.pointer.birth();
                let end = lists.get(at + 1).map_or(u64::MAX, |(next, _)| next.0);
                if birth <= *key || birth.0 > end {
                    self.fault(format!("{name}: birth {birth} under key {key} (to {end})"));
                }
                sizes += sizes_of(self.pool.store(), &entry.pointer);
            }
            self.expect(&name, "a list's bytes", header.bytes, sizes.used);
            self.expect(
                &name,
                "a list's physical",
                header.compressed_bytes,
                sizes.compressed,
            );
            listed += entries.len();
        }
        if listed != gone.len() {
            self.fault(format!(
                "{name}: {listed} dead blocks listed, {} counted",
                gone.len()
            ));
        }
        // Every snapshot further back has its key, so that deadlists can be split there.
        if !dataset.is_snapshot() {
            let mut at = phys.previous_snapshot;
            while let Some(id) = at {
                let before = Dataset::by_id(&self.pool, id).unwrap().phys().clone();
                let key = before.previous_snapshot_txg;
                if !lists.iter().any(|(known, _)| *known == key) {
                    self.fault(format!("{name}: its deadlist has no key {key}"));
                }
                at = before.previous_snapshot;
            }
            let snapshots = self.keys_needed(dataset);
            for (key, _) in &lists {
                if !snapshots.contains(key) {
                    self.fault(format!(
                        "{name}: its deadlist has the key {key} for nothing"
                    ));
                }
            }
        }
    }

    /// The keys that a head's deadlist may have.
    fn keys_needed(&self, head: &Dataset) -> BTreeSet<Txg> {
        let mut keys = BTreeSet::from([Txg(0)]);
        let mut at = Some(head.phys().previous_snapshot_txg);
        let mut id = head.phys().previous_snapshot;
        while let (Some(txg), Some(before)) = (at, id) {
            keys.insert(txg);
            let phys = Dataset::by_id(&self.pool, before).unwrap().phys().clone();
            at = Some(phys.previous_snapshot_txg);
            id = phys.previous_snapshot;
        }
        keys.remove(&head.phys().previous_snapshot_txg);
        // Bookmarks of the head and of those that it descends from keep keys, too.
        let mut heads = vec![head.clone()];
        let mut at = head.directory().phys().origin;
        while let Some(origin) = at {
            let snapshot = Dataset::by_id(&self.pool, origin).unwrap();
            heads.extend(snapshot.directory().head().unwrap());
            at = snapshot.directory().phys().origin;
        }
        for head in heads {
            for mark in head.bookmarks().unwrap() {
                keys.insert(mark.phys.creation_txg);
            }
        }
        keys
    }
}

fn sum<'a>(found: impl IntoIterator<Item = &'a Found>) -> Sizes {
    let mut all = Sizes::default();
    for one in found {
        all += one.sizes;
    }
    all
}

fn read(object: &Object, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![];
    let block = object.block_bytes();
    let mut at = offset;
    while bytes.len() < length {
        let content = object
            .read_block(millpond_ondisk::BlockId(at / block))
            .unwrap();
        let from = (at % block) as usize;
        let take = (length - bytes.len()).min(content.bytes.len() - from);
        bytes.extend_from_slice(&content.bytes[from..from + take]);
        at += take as u64;
    }
    bytes
}

/// Entries of a deadlist, by key.
fn entries_of(object: Object) -> Vec<(Txg, ObjectId)> {
    let zap = Zap::open(object).unwrap();
    let mut entries: Vec<_> = zap
        .iter()
        .map(|entry| {
            let entry = entry.unwrap();
            let key = Txg(hex_key_number(&entry.name).unwrap());
            (key, ObjectId(entry.value.first().unwrap()))
        })
        .collect();
    entries.sort();
    entries
}

/// A list's header, and its entries with those of lists below.
fn list_entries(pool: &Arc<Pool>, list: ObjectId) -> (BpObjectPhys, Vec<BpObjectEntry>) {
    let object = pool.mos().object(list).unwrap();
    assert_eq!(object.dnode().object_type, ObjectType::BPOBJ);
    let header = BpObjectPhys::decode(object.bonus().unwrap(), Endian::Little).unwrap();
    let mut entries = vec![];
    for at in 0..header.pointer_count {
        let bytes = read(&object, at * 128, 128);
        entries.push(BpObjectEntry::decode(&bytes, Endian::Little).unwrap());
    }
    if let Some(array) = header.sub_objects {
        let array = pool.mos().object(array).unwrap();
        for at in 0..header.sub_object_count {
            let bytes = read(&array, at * 8, 8);
            let sub = u64::from_le_bytes(bytes.try_into().unwrap());
            entries.extend(list_entries(pool, ObjectId(sub)).1);
        }
    }
    (header, entries)
}

/// Collects every block of an object set that was born after `born_after`.
fn walk(set: &Arc<ObjectSet>, born_after: Txg, blocks: &mut Blocks) {
    collect(set.store(), set.root(), born_after, blocks);
    let phys = set.phys();
    tree(set, &phys.meta_dnode, true, born_after, blocks);
    for dnode in [&phys.user_used, &phys.group_used, &phys.project_used]
        .into_iter()
        .flatten()
    {
        tree(set, dnode, false, born_after, blocks);
    }
}

fn collect(
    store: &BlockStore,
    pointer: &BlockPointer,
    born_after: Txg,
    blocks: &mut Blocks,
) -> bool {
    if pointer.is_hole() || pointer.birth() <= born_after {
        return false;
    }
    // As lists keep it: without checksum and fill.
    let entry = BpObjectEntry {
        pointer: *pointer,
        is_freed: false,
    };
    let mut words = if pointer.is_embedded() {
        pointer.words
    } else {
        BlockPointer::decode(&entry.encode().unwrap(), Endian::Little)
            .unwrap()
            .words
    };
    // Equal embedded blocks are different blocks.
    if pointer.is_embedded() {
        let mut n = 0;
        while blocks.contains_key(&words) {
            n += 1;
            words[15] = words[15].wrapping_add(n << 32);
        }
    }
    let found = Found {
        sizes: sizes_of(store, pointer),
        birth: pointer.birth(),
    };
    blocks.insert(words, found);
    true
}

fn tree(
    set: &Arc<ObjectSet>,
    dnode: &Dnode,
    is_dnodes: bool,
    born_after: Txg,
    blocks: &mut Blocks,
) {
    let mut open: Vec<BlockPointer> = dnode.block_pointers.clone();
    open.extend(dnode.spill);
    while let Some(pointer) = open.pop() {
        if !collect(set.store(), &pointer, born_after, blocks) {
            continue;
        }
        let is_indirect = pointer.level().0 > 0;
        if !is_indirect && !is_dnodes {
            continue;
        }
        let block = set
            .store()
            .read(&pointer, BlockAddress::default(), None)
            .unwrap();
        if is_indirect {
            for bytes in block.bytes.chunks_exact(128) {
                open.push(BlockPointer::decode(bytes, block.endian).unwrap());
            }
        } else {
            let mut slot = 0;
            while slot * 512 < block.bytes.len() {
                let bytes = &block.bytes[slot * 512..];
                slot += Dnode::slot_count(bytes);
                if let Some(dnode) = Dnode::decode(bytes, block.endian).unwrap() {
                    tree(set, &dnode, false, born_after, blocks);
                }
            }
        }
    }
}
