//! Checks that everything allocated is owned exactly once, by the MOS or by `sync_bplist`.

use crate::tests::made::{CHARGED, counted, open_read_only};
use crate::{PoolSpaceMaps, PoolView};
use millpond_alloc::{RangeSet, UnflushedLogs, load_metaslab};
use millpond_block::BlockAddress;
use millpond_env::sync::Arc;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{
    BlockId, BlockPointer, BpObjectEntries, BpObjectPhys, Endian, ObjectId, ObjectSetPhys, VdevId,
};
use millpond_sim::World;
use std::collections::BTreeMap;

/// Asserts that space maps and block trees of a pool without datasets agree to the byte, and that the
/// charged space equals the size of the MOS. Returns the bytes allocated.
pub(crate) fn check(pool: &Arc<PoolView>) -> u64 {
    check_with(pool, &[])
}

/// Like [`check`], for a pool in which these data blocks are allocated too, each once.
pub(crate) fn check_with(pool: &Arc<PoolView>, data: &[BlockPointer]) -> u64 {
    let mut owned = allocated(pool);
    let total: u64 = owned.values().map(RangeSet::bytes).sum();
    for pointer in data {
        claim(pool, &mut owned, pointer);
    }
    let mut used = 0;
    walk_mos(pool, &mut |pointer| {
        used += pool.deflated_pointer_bytes(pointer);
        claim(pool, &mut owned, pointer);
    });
    if let Some(id) = pool.find_directory_object(key::SYNC_BPLIST).unwrap() {
        let object = pool.mos().object(id).unwrap();
        let phys = BpObjectPhys::decode(object.bonus().unwrap(), Endian::Little).unwrap();
        let mut bytes = vec![0; usize::try_from(phys.pointer_count * 128).unwrap()];
        object.read(0, &mut bytes).unwrap();
        let mut sum = 0;
        for entry in BpObjectEntries::new(&bytes, Endian::Little) {
            sum += pool.deflated_pointer_bytes(&entry.pointer);
            claim(pool, &mut owned, &entry.pointer);
        }
        assert_eq!(sum, phys.bytes, "sum of sync_bplist");
    }
    for (vdev, left) in &owned {
        let left: Vec<_> = left.iter().collect();
        assert!(
            left.is_empty(),
            "leaked on vdev {vdev} at count {}, txg {}: {left:x?}",
            counted(pool),
            pool.uberblock().txg
        );
    }
    let charged = pool.directory_number(CHARGED).unwrap();
    assert_eq!(charged, Some(used), "charged for the MOS");
    total
}

/// Opens the pool for reading and checks it and its count.
pub(crate) fn check_reopened(world: &World, count: u64) {
    let read = open_read_only(world).unwrap();
    assert_eq!(counted(&read), count);
    check(&read);
}

fn allocated(pool: &PoolView) -> BTreeMap<VdevId, RangeSet> {
    let maps = PoolSpaceMaps::load(pool).unwrap();
    let geometries = maps.geometries();
    let logs = UnflushedLogs::load(&maps, &geometries, &|_| true).unwrap();
    let mut all = BTreeMap::new();
    for (id, geometry) in &geometries {
        let mut set = RangeSet::new();
        for index in 0..geometry.metaslab_count() {
            let metaslab = geometry.metaslab(index).unwrap();
            let space = load_metaslab(&maps, metaslab.clone(), &logs).unwrap();
            for range in space.free.gaps(&metaslab.range) {
                set.add(range).unwrap();
            }
        }
        all.insert(*id, set);
    }
    all
}

fn claim(pool: &PoolView, owned: &mut BTreeMap<VdevId, RangeSet>, pointer: &BlockPointer) {
    let extents = pool.store().extents(pointer, BlockAddress::default());
    for dva in extents.unwrap() {
        let range = dva.offset_bytes..dva.offset_bytes + dva.asize_bytes;
        owned
            .get_mut(&dva.vdev)
            .unwrap()
            .remove(range)
            .unwrap_or_else(|conflict| panic!("{dva:x?} is not allocated: {conflict}"));
    }
}

fn walk_mos(pool: &Arc<PoolView>, each: &mut dyn FnMut(&BlockPointer)) {
    let mos = pool.mos();
    each(mos.root());
    let block = pool
        .store()
        .read(mos.root(), BlockAddress::object_set(0), None)
        .unwrap();
    let phys = ObjectSetPhys::decode(&block.bytes, block.endian).unwrap();
    for pointer in &phys.meta_dnode.block_pointers {
        walk(pool, pointer, each);
    }
    let mut after = ObjectId(0);
    while let Some(object) = mos.next_object(after).unwrap() {
        after = object.id();
        for pointer in &object.dnode().block_pointers {
            walk(pool, pointer, each);
        }
        // Every block must also be readable.
        let mut next = BlockId(0);
        while let Some(id) = object.next_data_block(next).unwrap() {
            object.read_block(id).unwrap();
            next = BlockId(id.0 + 1);
        }
    }
}

fn walk(pool: &Arc<PoolView>, pointer: &BlockPointer, each: &mut dyn FnMut(&BlockPointer)) {
    if pointer.is_hole() {
        return;
    }
    each(pointer);
    if pointer.level().0 > 0 {
        let block = pool
            .store()
            .read(pointer, BlockAddress::default(), None)
            .unwrap();
        for bytes in block.bytes.chunks(128) {
            let below = BlockPointer::decode(bytes, block.endian).unwrap();
            walk(pool, &below, each);
        }
    }
}
