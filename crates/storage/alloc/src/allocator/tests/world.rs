//! A pool in memory that is written, crashes and is reopened, with a model of its expected state.

use super::image::{Image, Memory};
use super::*;
use crate::RangeSet;

pub(super) struct World {
    pub(super) vdevs: Vec<VdevSpace>,
    pub(super) forms: SpaceMapForms,
    pub(super) block_bytes: u64,
    pub(super) allocator: PoolAllocator,
    pub(super) memory: Arc<Memory>,
    /// The state of the last uberblock.
    pub(super) committed: Image,
    /// The space owned by blocks, now and as of the last uberblock.
    pub(super) blocks: Vec<Dva>,
    committed_blocks: Vec<Dva>,
    /// Allocated in the current txg.
    pub(super) young: Vec<Dva>,
    /// Already allocated in the next txg, as intent log blocks are.
    pub(super) early: Vec<Dva>,
    /// Intent log blocks found after a crash.
    claimed: Vec<Dva>,
    /// Freed, with the txg: not allocatable until two more are synced.
    waiting: Vec<(Txg, Dva)>,
    pub(super) txg: Txg,
    /// Metaslabs last changed while not loaded: their histograms are inexact.
    guessed: BTreeSet<MetaslabId>,
    committed_guessed: BTreeSet<MetaslabId>,
}

impl World {
    pub(super) fn new(vdevs: Vec<VdevSpace>, block_bytes: u64, forms: SpaceMapForms) -> Self {
        let memory = Memory::new(&vdevs, block_bytes, Image::default());
        let allocator = PoolAllocator::new(vdevs.clone(), memory.clone(), forms).unwrap();
        Self {
            vdevs,
            forms,
            block_bytes,
            allocator,
            memory,
            committed: Image::default(),
            blocks: vec![],
            committed_blocks: vec![],
            young: vec![],
            early: vec![],
            claimed: vec![],
            waiting: vec![],
            txg: Txg(4),
            guessed: BTreeSet::new(),
            committed_guessed: BTreeSet::new(),
        }
    }
    /// Everything that must not be allocated.
    fn taken(&self) -> Vec<Dva> {
        let owned = self.blocks.iter().chain(&self.young);
        let owned = owned.chain(&self.early).chain(&self.claimed);
        let waiting = self.waiting.iter().map(|(_, dva)| dva);
        owned.chain(waiting).copied().collect()
    }
    pub(super) fn index(&self, vdev: VdevId) -> usize {
        self.vdevs
            .iter()
            .position(|one| one.vdev() == vdev)
            .unwrap()
    }
    /// Allocates, checks that the space is not owned by any block, and keeps it.
    pub(super) fn allocate(&mut self, request: &AllocRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let found = self.hand_out(self.txg, request)?;
        self.young.extend(&found);
        Ok(found)
    }
    /// Allocates in the next txg.
    pub(super) fn allocate_early(&mut self, request: &AllocRequest<'_>) -> Result<(), NoSpace> {
        let found = self.hand_out(Txg(self.txg.0 + 1), request)?;
        self.early.extend(&found);
        Ok(())
    }
    fn hand_out(&self, txg: Txg, request: &AllocRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let found = self.allocator.allocate(txg, request)?;
        assert_eq!(found.len(), usize::from(request.copies));
        for dva in &found {
            let geometry = self.vdevs[self.index(dva.vdev)].geometry;
            let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
            assert!(
                geometry.metaslab_of(&range).is_some(),
                "{dva:?} lies across metaslabs"
            );
            assert!(dva.offset_bytes.is_multiple_of(geometry.ashift().bytes()));
            let itself = found.iter().filter(|other| *other != dva);
            for other in self.taken().into_iter().chain(itself.copied()) {
                let end = other.offset_bytes + other.asize_bytes;
                assert!(
                    other.vdev != dva.vdev || end <= range.start || range.end <= other.offset_bytes,
                    "{dva:?} was handed out though {other:?} is in use"
                );
            }
        }
        Ok(found)
    }
    /// Frees an old block. The free is deferred even if the caller claims that nothing points to it.
    pub(super) fn free_old(&mut self, index: usize) {
        let dva = self.blocks.swap_remove(index);
        let is_claimed_unreferenced = dva.offset_bytes & 512 == 0;
        self.allocator
            .free(self.txg, &dva, Txg(0), is_claimed_unreferenced)
            .unwrap();
        self.waiting.push((self.txg, dva));
    }
    /// Frees a block of this txg that nothing points to: it is allocatable at once.
    pub(super) fn free_young(&mut self, index: usize) {
        let dva = self.young.swap_remove(index);
        self.allocator.free(self.txg, &dva, self.txg, true).unwrap();
    }
    /// Frees a block of this txg that something on disk may point to.
    pub(super) fn free_young_later(&mut self, index: usize) {
        let dva = self.young.swap_remove(index);
        self.allocator
            .free(self.txg, &dva, self.txg, false)
            .unwrap();
        self.waiting.push((self.txg, dva));
    }
    pub(super) fn pass(&mut self, pass: u32) -> bool {
        let memory = self.memory.clone();
        for id in self.allocator.dirty_metaslabs(self.txg) {
            if self.allocator.metaslab(id).unwrap().1.is_loaded() {
                self.guessed.remove(&id);
            } else {
                self.guessed.insert(id);
            }
        }
        self.allocator.sync_pass(self.txg, pass, &*memory).unwrap()
    }
    /// Writes the uberblock of this txg, after all passes.
    pub(super) fn commit(&mut self) {
        assert!(!self.allocator.has_changes(self.txg));
        self.committed = self.memory.snapshot();
        self.blocks.append(&mut self.young);
        self.blocks.append(&mut self.claimed);
        self.committed_blocks = self.blocks.clone();
        self.committed_guessed = self.guessed.clone();
        // The allocator must agree: deferred space is not available yet.
        assert_eq!(self.stated_bytes(), self.taken_bytes());
        let until = if self.is_short() {
            self.txg.0
        } else {
            self.txg.0 - 2
        };
        assert_eq!(self.allocator.is_short(), self.is_short());
        self.allocator.synced(self.txg, Txg(until), &[]).unwrap();
        self.waiting.retain(|(txg, _)| txg.0 > until);
        assert_eq!(self.stated_bytes(), self.taken_bytes());
        self.young.append(&mut self.early);
        self.check();
        self.txg = Txg(self.txg.0 + 1);
    }
    fn taken_bytes(&self) -> u64 {
        self.taken().iter().map(|dva| dva.asize_bytes).sum()
    }
    /// Allocated bytes according to the allocator.
    pub(super) fn stated_bytes(&self) -> u64 {
        let usage = self.allocator.usage();
        usage.vdevs.iter().map(|vdev| vdev.allocated_bytes).sum()
    }
    /// Whether no more than the slop is free, so that frees are not deferred for two txgs.
    fn is_short(&self) -> bool {
        let (mut all, mut left) = (0, 0);
        for vdev in &self.vdevs {
            all += vdev.geometry.space_bytes() / 512 * vdev.deflate_ratio;
            let taken = self
                .taken()
                .into_iter()
                .filter(|dva| dva.vdev == vdev.vdev());
            let taken: u64 = taken.map(|dva| dva.asize_bytes).sum();
            let free = vdev.geometry.space_bytes() - taken;
            left += free / 512 * vdev.deflate_ratio;
        }
        // For pools this small the slop is a half.
        left <= all / 2
    }
    /// Checks that the space allocated on disk is exactly that owned by blocks.
    pub(super) fn check(&self) {
        let found = self
            .committed
            .check(&self.vdevs, self.block_bytes, &self.committed_guessed);
        for (vdev, found) in self.vdevs.iter().zip(found) {
            let mut owned = RangeSet::new();
            for dva in self
                .committed_blocks
                .iter()
                .filter(|dva| dva.vdev == vdev.vdev())
            {
                owned
                    .add(dva.offset_bytes..dva.offset_bytes + dva.asize_bytes)
                    .unwrap();
            }
            let mut on_disk = RangeSet::new();
            for range in found {
                on_disk.add(range).unwrap();
            }
            assert_eq!(on_disk, owned, "vdev {}", vdev.vdev());
        }
    }
    /// Runs one whole txg.
    pub(super) fn sync(&mut self) {
        let mut pass = 1;
        while self.pass(pass) {
            pass += 1;
        }
        self.commit();
    }
    /// Crashes and reopens the pool from its last uberblock. With `is_claiming` everything allocated since
    /// then is an intent log chain that is found again.
    pub(super) fn crash(&mut self, is_claiming: bool) {
        let (allocator, memory) = self
            .committed
            .open(&self.vdevs, self.block_bytes, self.forms);
        self.allocator = allocator;
        self.memory = memory;
        self.guessed = self.committed_guessed.clone();
        self.blocks = self.committed_blocks.clone();
        self.claimed.clear();
        self.waiting.clear();
        let mut lost = core::mem::take(&mut self.young);
        lost.append(&mut self.early);
        for dva in lost.iter().filter(|_| is_claiming) {
            self.allocator.claim(self.txg, dva).unwrap();
            assert!(self.allocator.claim(self.txg, dva).is_err());
            self.claimed.push(*dva);
        }
    }
}
