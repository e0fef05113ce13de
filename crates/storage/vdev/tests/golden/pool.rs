//! A minimal reader that finds every block of a pool: labels, the best uberblock, the configuration, the
//! mappings of removed vdevs, and all block pointers below them.

use std::collections::HashSet;

use millpond_checksum::{Checksummer, verify_label};
use millpond_nvlist::NvList;
use millpond_ondisk::*;
use millpond_vdev::*;

use crate::images::Image;

pub struct Pool {
    pub images: Vec<Image>,
    /// The image of each leaf.
    pub leaves: Vec<Option<usize>>,
    pub tree: VdevTree,
    pub health: LeafTable,
    pub indirect: IndirectTables,
    /// Every block found: its address and its pointer.
    pub blocks: Vec<(BlockRange, BlockPointer)>,
    /// Leaves that return wrong bytes.
    pub liars: Vec<LeafId>,
    checksums: Checksummer,
    seen: HashSet<Dva>,
    uberblock: Uberblock,
}

/// The contents of one leaf's label.
struct Label {
    image: usize,
    config: NvList,
}

fn label_of(images: &[Image], image: usize) -> Option<Label> {
    let layout = LeafLayout::new(images[image].size as u64)?;
    let configs = layout
        .label_offsets_bytes()
        .into_iter()
        .filter_map(|offset| {
            let at = offset + LABEL_CONFIG_OFFSET_BYTES;
            NvList::decode(&images[image].read(at, LABEL_CONFIG_BYTES as u64)?).ok()
        });
    let config = configs.max_by_key(|config| config.u64("txg").unwrap_or(0))?;
    config
        .contains("vdev_tree")
        .then_some(Label { image, config })
}

fn best_uberblock(images: &[Image], labels: &[Label]) -> Uberblock {
    let mut best: Option<Uberblock> = None;
    for label in labels {
        let image = &images[label.image];
        let ashift = label
            .config
            .list("vdev_tree")
            .unwrap()
            .u64("ashift")
            .unwrap();
        let ring = UberblockRing::new(Ashift(ashift as u8));
        for offset in LeafLayout::new(image.size as u64)
            .unwrap()
            .label_offsets_bytes()
        {
            let at = offset + UBERBLOCK_RING_OFFSET_BYTES;
            let bytes = image.read(at, UBERBLOCK_RING_BYTES as u64).unwrap();
            for (slot_at, slot) in ring.slots(&bytes) {
                let Ok(uberblock) = Uberblock::decode(slot) else {
                    continue;
                };
                let is_sealed = verify_label(slot, offset + slot_at).is_ok();
                if is_sealed
                    && best
                        .as_ref()
                        .is_none_or(|best| best.rank() < uberblock.rank())
                {
                    best = Some(uberblock);
                }
            }
        }
    }
    best.unwrap()
}

impl Pool {
    pub fn open(images: Vec<Image>) -> Self {
        let labels: Vec<Label> = (0..images.len())
            .filter_map(|image| label_of(&images, image))
            .collect();
        let uberblock = best_uberblock(&images, &labels);
        let reflow = Reflow {
            offset_bytes: uberblock.raidz_reflow.offset_bytes(),
            scratch_state: uberblock.raidz_reflow.scratch_state(),
        };
        let newest = labels
            .iter()
            .max_by_key(|label| label.config.u64("txg").unwrap())
            .unwrap();
        let count = newest.config.u64("vdev_children").unwrap();
        let tops = (0..count)
            .map(|id| {
                let of_top =
                    |label: &&Label| label.config.list("vdev_tree").unwrap().u64("id") == Ok(id);
                let best = labels.iter().filter(of_top);
                let best = best.max_by_key(|label| label.config.u64("txg").unwrap());
                best.map_or_else(VdevConfig::missing, |label| {
                    VdevConfig::from_nvlist(label.config.list("vdev_tree").unwrap()).unwrap()
                })
            })
            .collect();
        let guid = Guid(newest.config.u64("pool_guid").unwrap());
        let tree = VdevTree::new(VdevConfig::root(guid, tops), reflow).unwrap();
        let mut pool = Self {
            images,
            leaves: Vec::new(),
            tree: tree.clone(),
            health: LeafTable::default(),
            indirect: IndirectTables::default(),
            blocks: Vec::new(),
            liars: Vec::new(),
            checksums: Checksummer::new(None),
            seen: HashSet::new(),
            uberblock,
        };
        pool.take_tree(tree, &labels);
        let config = pool.mos_config();
        let config = VdevConfig::from_nvlist(config.list("vdev_tree").unwrap()).unwrap();
        pool.take_tree(VdevTree::new(config, reflow).unwrap(), &labels);
        pool.load_mappings();
        pool.load_dirty_time_logs();
        assert_eq!(pool.tree.guid_sum(), pool.uberblock.guid_sum);
        pool.find_blocks();
        pool
    }

    fn take_tree(&mut self, tree: VdevTree, labels: &[Label]) {
        self.health = LeafTable::all_good(tree.leaf_count());
        self.leaves.clear();
        for (id, leaf) in tree.leaves() {
            let guid = leaf.config.guid.0;
            let label = labels
                .iter()
                .find(|label| label.config.u64("guid") == Ok(guid));
            self.leaves.push(label.map(|label| label.image));
            let config = &leaf.config;
            let is_out = config.offline || config.faulted || config.removed;
            self.health.entry(id).unwrap().is_readable =
                (label.is_some() || !leaf.is_device()) && !is_out;
        }
        self.tree = tree;
    }

    pub fn serve(&self, reads: &[LeafRead]) -> Vec<LeafOutcome> {
        reads
            .iter()
            .map(|read| {
                let image = self.leaves[read.leaf.0 as usize].ok_or(LeafFault::Absent)?;
                let bytes = self.images[image].read(read.offset_bytes, read.length_bytes);
                let mut bytes = bytes.ok_or(LeafFault::OutOfRange)?;
                if self.liars.contains(&read.leaf) {
                    bytes
                        .iter_mut()
                        .zip(0u64..)
                        .for_each(|(byte, at)| *byte ^= (at * at % 255) as u8 + 1);
                }
                Ok(bytes.into())
            })
            .collect()
    }

    pub fn range(&self, bp: &BlockPointer, dva: Dva) -> BlockRange {
        BlockRange {
            vdev: dva.vdev,
            offset_bytes: dva.offset_bytes,
            size_bytes: bp.psize_bytes(),
            birth: bp.physical_birth(),
        }
    }

    pub fn read(&self, range: BlockRange, bp: &BlockPointer) -> Result<Resolved, Failure> {
        let mut plan = ReadPlan::new(&self.tree, &self.health, &self.indirect, range).unwrap();
        let mut outcomes = Vec::new();
        loop {
            match plan.advance(outcomes, &mut |bytes| {
                self.checksums.verify(bp, bytes).is_ok()
            }) {
                Step::Read(reads) => outcomes = self.serve(&reads),
                Step::Done(resolved) => return Ok(resolved),
                Step::Failed(failure) => return Err(failure),
            }
        }
    }

    pub fn audit(&self, range: BlockRange, bp: &BlockPointer) -> AuditReport {
        let mut plan = AuditPlan::new(&self.tree, &self.health, &self.indirect, range).unwrap();
        let mut outcomes = Vec::new();
        loop {
            match plan.advance(outcomes, &mut |bytes| {
                self.checksums.verify(bp, bytes).is_ok()
            }) {
                AuditStep::Read(reads) => outcomes = self.serve(&reads),
                AuditStep::Done(report) => return report,
            }
        }
    }

    /// The logical content of a block, `None` if no address provides it.
    pub fn content(&self, bp: &BlockPointer) -> Option<Vec<u8>> {
        let mut bytes = vec![0; bp.lsize_bytes() as usize];
        if bp.is_hole() {
            return Some(bytes);
        }
        let stored = match bp.embedded_payload() {
            Some(payload) => payload.as_bytes().to_vec(),
            None => {
                let addresses = bp.dvas().filter(|dva| !dva.is_gang);
                let mut copies = addresses.map(|dva| self.read(self.range(bp, dva), bp));
                copies.find_map(Result::ok)?.data
            }
        };
        millpond_compress::decompress(bp.compression()?, &stored, &mut bytes).unwrap();
        Some(bytes)
    }

    /// Visits every data block of a dnode in order, holes included as zeros; `each` gets the pointers.
    fn walk(&self, dnode: &Dnode, each: &mut dyn FnMut(&BlockPointer, u8)) {
        for bp in &dnode.block_pointers {
            self.walk_pointer(bp, dnode.levels.saturating_sub(1), each);
        }
    }

    fn walk_pointer(&self, bp: &BlockPointer, level: u8, each: &mut dyn FnMut(&BlockPointer, u8)) {
        each(bp, level);
        if level == 0 || bp.is_hole() {
            return;
        }
        let Some(bytes) = self.content(bp) else {
            return;
        };
        for child in bytes.chunks_exact(BLOCK_POINTER_BYTES) {
            let child = BlockPointer::decode(child, bp.endian()).unwrap();
            self.walk_pointer(&child, level - 1, each);
        }
    }

    /// The data of an object, with the size given by its block count.
    fn object_bytes(&self, dnode: &Dnode) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.walk(dnode, &mut |bp, level| {
            if level == 0 {
                let block = self.content(bp).expect("metadata is readable");
                bytes.extend_from_slice(&block);
            }
        });
        bytes
    }

    /// Every dnode of an object set, with its object id.
    fn dnodes(&self, root: &BlockPointer) -> Vec<(ObjectId, Dnode)> {
        let Some(bytes) = self.content(root) else {
            return Vec::new();
        };
        let set = ObjectSetPhys::decode(&bytes, root.endian()).unwrap();
        let mut found = Vec::new();
        let mut number = 0;
        self.walk(&set.meta_dnode, &mut |bp, level| {
            let blocks_bytes = set.meta_dnode.data_block_bytes();
            if level > 0 {
                let below = set.meta_dnode.pointers_shift() * u32::from(level);
                if bp.is_hole() {
                    number += (blocks_bytes / 512) << below;
                }
                return;
            }
            let first = number;
            number += blocks_bytes / 512;
            if bp.is_hole() {
                return;
            }
            let Some(bytes) = self.content(bp) else {
                return;
            };
            let mut at = 0;
            while at < bytes.len() {
                let id = ObjectId(first + at as u64 / 512);
                let slots = Dnode::slot_count(&bytes[at..]);
                if let Ok(Some(dnode)) = Dnode::decode(&bytes[at..], bp.endian()) {
                    found.push((id, dnode));
                }
                at += slots.max(1) * 512;
            }
        });
        found
    }

    /// The pool's configuration, recognized by its types.
    fn mos_config(&self) -> NvList {
        let dnodes = self.dnodes(&self.uberblock.root);
        let lists = dnodes.iter().filter(|(_, dnode)| {
            (dnode.object_type, dnode.bonus_type)
                == (ObjectType::PACKED_NVLIST, ObjectType::PACKED_NVLIST_SIZE)
        });
        let lists = lists.filter_map(|(_, dnode)| NvList::decode(&self.object_bytes(dnode)).ok());
        lists
            .into_iter()
            .find(|list| list.contains("vdev_tree"))
            .unwrap()
    }

    fn object(&self, id: ObjectId) -> Dnode {
        let mut all = self.dnodes(&self.uberblock.root).into_iter();
        all.find(|(found, _)| *found == id).unwrap().1
    }

    fn load_mappings(&mut self) {
        // The newest first: older mappings may point to vdevs removed later.
        let mut removed: Vec<(VdevId, VdevConfig)> = self
            .tree
            .tops()
            .filter(|(_, node)| node.kind == VdevKind::Indirect)
            .map(|(id, node)| (id, node.config.clone()))
            .collect();
        let names: Vec<Option<VdevId>> = removed
            .iter()
            .map(|(_, config)| config.prev_indirect_vdev)
            .collect();
        let mut next = removed
            .iter()
            .map(|(id, _)| *id)
            .find(|id| !names.contains(&Some(*id)));
        while let Some(id) = next {
            let at = removed.iter().position(|(found, _)| *found == id).unwrap();
            let (_, config) = removed.swap_remove(at);
            let dnode = self.object(config.indirect_mapping.unwrap());
            let header = IndirectMappingPhys::decode(&dnode.bonus, dnode.endian).unwrap();
            let births = self.object(config.indirect_births.unwrap());
            let births_header = IndirectBirthsPhys::decode(&births.bonus, births.endian).unwrap();
            let births_bytes = self.object_bytes(&births);
            let births_bytes =
                &births_bytes[..births_header.entry_count as usize * INDIRECT_BIRTH_ENTRY_BYTES];
            let bytes = self.object_bytes(&dnode);
            let mapping =
                IndirectMapping::decode(&bytes, header.entry_count, births_bytes, dnode.endian);
            self.indirect.insert(id, mapping.unwrap());
            next = config.prev_indirect_vdev;
        }
        assert!(removed.is_empty());
    }

    fn load_dirty_time_logs(&mut self) {
        let logs: Vec<(LeafId, ObjectId)> = self
            .tree
            .leaves()
            .filter_map(|(id, leaf)| Some((id, leaf.config.dtl?)))
            .collect();
        for (leaf, object) in logs {
            let dnode = self.object(object);
            let header = SpaceMapPhys::decode(&dnode.bonus, dnode.endian).unwrap();
            let bytes = self.object_bytes(&dnode);
            let bytes = &bytes[..header.length_bytes as usize];
            for entry in SpaceMapEntries::new(bytes, dnode.endian) {
                if let SpaceMapEntry::Range {
                    action,
                    offset_units,
                    run_units,
                    ..
                } = entry.unwrap()
                {
                    assert_eq!(action, SpaceAction::Allocate);
                    let missed = offset_units..offset_units + run_units;
                    self.health.entry(leaf).unwrap().missed.push(missed);
                }
            }
        }
    }

    fn find_blocks(&mut self) {
        let mut found = Vec::new();
        let mut sets = vec![self.uberblock.root];
        let dnodes = self.dnodes(&self.uberblock.root);
        for (_, dnode) in &dnodes {
            if dnode.bonus_type == ObjectType::DSL_DATASET {
                let dataset = DslDatasetPhys::decode(&dnode.bonus, dnode.endian).unwrap();
                sets.push(dataset.block_pointer);
            }
        }
        for root in sets.into_iter().filter(|root| !root.is_hole()) {
            found.push(root);
            let set = self
                .content(&root)
                .map(|bytes| ObjectSetPhys::decode(&bytes, root.endian()));
            if let Some(Ok(set)) = set {
                let hidden = [set.user_used, set.group_used, set.project_used];
                for dnode in hidden.into_iter().flatten().chain([set.meta_dnode]) {
                    self.walk(&dnode, &mut |bp, _| found.push(*bp));
                }
            }
            for (_, dnode) in self.dnodes(&root) {
                self.walk(&dnode, &mut |bp, _| found.push(*bp));
                found.extend(dnode.spill);
            }
        }
        for bp in found {
            if bp.is_hole() || bp.is_embedded() {
                continue;
            }
            for dva in bp.dvas().filter(|dva| !dva.is_gang) {
                if self.seen.insert(dva) {
                    self.blocks.push((self.range(&bp, dva), bp));
                }
            }
        }
    }
}
