//! Single rules.

use super::*;
use millpond_object::{Accounting, NewObject, ObjectError};
use millpond_ondisk::{BlockId, Level, ObjectId, ObjectType};

fn file(block_bytes: u32) -> NewObject {
    let mut new = NewObject::new(ObjectType::OTHER_U8).with_block_bytes(block_bytes);
    new.indirect_shift = 12;
    new
}

fn dataset() -> Bench {
    Bench::new(ObjectSetKind::Other, WritePolicy::dataset())
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn an_empty_set_is_an_object_set_block_alone() {
    let bench = dataset();
    assert!(bench.set.is_dirty(Txg(4)));
    let (_, set) = bench.sync();
    assert_eq!(set.root().lsize_bytes(), 4096);
    assert_eq!(set.root().fill(), 0);
    assert_eq!(set.phys().meta_dnode.levels, 6);
    assert!(!bench.set.is_dirty(Txg(4)));
}

#[test]
fn a_set_without_changes_is_not_written() {
    let bench = dataset();
    bench.sync();
    let writes = bench.sink.writes();
    let root = bench.set.root();
    let (synced, _) = bench.sync();
    assert_eq!((synced.root, bench.sink.writes()), (root, writes));
}

#[test]
fn even_one_object_has_five_indirect_blocks_above_it_in_a_dataset_and_none_in_the_mos() {
    for (kind, policy, levels) in [
        (ObjectSetKind::FileSystem, WritePolicy::dataset(), 6),
        (ObjectSetKind::Meta, WritePolicy::mos(), 1),
    ] {
        let bench = Bench::new(kind, policy);
        let tx = bench.begin();
        let object = bench.set.allocate(&tx, file(512)).unwrap();
        assert_eq!(object.id(), ObjectId(1));
        drop(tx);
        let (_, set) = bench.sync();
        assert_eq!(set.phys().meta_dnode.levels, levels);
        assert_eq!(set.object_count(), 1);
        assert_eq!(
            set.object(ObjectId(1))
                .unwrap()
                .dnode()
                .block_pointers
                .len(),
            3
        );
    }
}

#[test]
fn block_three_of_an_object_with_three_pointers_adds_a_level() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &noise(1, 3 * 512)).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(set.object(object.id()).unwrap().dnode().levels, 1);
    let tx = bench.begin();
    object.write(&tx, 3 * 512, &noise(2, 512)).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!((read.dnode().levels, read.block_id_max()), (2, BlockId(3)));
    assert!(read.dnode().block_pointers[1].is_hole());
    let mut all = vec![0; 4 * 512];
    read.read(0, &mut all).unwrap();
    assert!(all == [noise(1, 3 * 512), noise(2, 512)].concat());
}

#[test]
fn a_block_far_out_hangs_from_the_third_pointer() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    // 32 pointers in an indirect block of 4 KiB.
    object.write_block(&tx, BlockId(64), noise(1, 512)).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let dnode = set.object(object.id()).unwrap().dnode().clone();
    assert_eq!(dnode.levels, 2);
    let holes: Vec<bool> = dnode
        .block_pointers
        .iter()
        .map(|one| one.is_hole())
        .collect();
    assert_eq!(holes, [true, true, false]);
    let tx = bench.begin();
    object.write_block(&tx, BlockId(96), noise(2, 512)).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(set.object(object.id()).unwrap().dnode().levels, 3);
}

#[test]
fn truncation_shortens_keeps_levels_and_leaves_holes_with_births() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(4096)).unwrap();
    object.write(&tx, 0, &noise(1, 10 * 4096)).unwrap();
    drop(tx);
    bench.sync();
    let at = |set: &Arc<ObjectSet>, level: u8, id: u64| {
        let object = set.object(object.id()).unwrap();
        object.pointer(Level(level), BlockId(id)).unwrap()
    };
    // Blocks 2 and 3: the length stays.
    let tx = bench.begin();
    object.free_range(&tx, 2 * 4096, 2 * 4096).unwrap();
    assert_eq!(object.block_id_max(), BlockId(9));
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(at(&set, 0, 2).words[6], 0x0019_0000_0000_0007);
    assert_eq!(at(&set, 0, 2).birth(), Txg(5));
    // From block 4 to the end; holes that are there stay as they are.
    let tx = bench.begin();
    object.free_range(&tx, 2 * 4096, u64::MAX).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!(read.block_id_max(), BlockId(1));
    assert_eq!(at(&set, 0, 2).birth(), Txg(5));
    assert_eq!(at(&set, 0, 4).birth(), Txg(6));
    // All of it.
    let tx = bench.begin();
    object.free_range(&tx, 0, u64::MAX).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!((read.dnode().levels, read.dnode().used), (2, 0));
    assert_eq!(read.block_id_max(), BlockId(0));
    let top = read.dnode().block_pointers[0];
    assert_eq!(top.words[6], 0x0119_0000_0000_0007);
    assert_eq!(top.birth(), Txg(7));
    // What is written again under it fills the rest with holes of that birth.
    let tx = bench.begin();
    object.write_block(&tx, BlockId(5), noise(9, 4096)).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(at(&set, 0, 4).words[6], 0x0019_0000_0000_0007);
    assert_eq!(
        (at(&set, 0, 4).birth(), at(&set, 0, 5).birth()),
        (Txg(7), Txg(8))
    );
    assert_eq!(at(&set, 0, 31).birth(), Txg(7));
}

#[test]
fn zeros_over_nothing_stay_without_birth_and_zeros_over_data_get_one() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &noise(1, 512)).unwrap();
    object.write(&tx, 512, &[0; 1024]).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!(read.block_id_max(), BlockId(2));
    assert_eq!(read.dnode().block_pointers[2].words, [0; 16]);
    let tx = bench.begin();
    object.write(&tx, 0, &[0; 1024]).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let pointers = set
        .object(object.id())
        .unwrap()
        .dnode()
        .block_pointers
        .clone();
    assert_eq!(pointers[0].birth(), Txg(5));
    assert_eq!(pointers[1].words, [0; 16]);
    // A hole with a birth, zeroed again, is a younger hole.
    let tx = bench.begin();
    object.write(&tx, 0, &[0; 512]).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let pointers = set
        .object(object.id())
        .unwrap()
        .dnode()
        .block_pointers
        .clone();
    assert_eq!(pointers[0].birth(), Txg(6));
}

#[test]
fn without_compression_zeros_are_stored() {
    let mut policy = WritePolicy::dataset();
    policy.compression = millpond_ondisk::CompressionKind::Off;
    let bench = Bench::new(ObjectSetKind::Other, policy);
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &[0; 512]).unwrap();
    drop(tx);
    bench.sync();
    assert_eq!(object.used_bytes(), 512);
}

#[test]
fn a_freed_object_leaves_nothing() {
    let bench = dataset();
    let tx = bench.begin();
    let kept = bench.set.allocate(&tx, file(512)).unwrap();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &noise(1, 4000 * 512)).unwrap();
    kept.write(&tx, 0, &noise(2, 700)).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(set.object(object.id()).unwrap().dnode().levels, 4);
    let tx = bench.begin();
    bench.set.free(&tx, object.id()).unwrap();
    let missing = bench.set.object(object.id()).unwrap_err();
    assert!(matches!(missing, ObjectError::NotFound { .. }));
    assert!(object.write(&tx, 0, &[1]).is_err());
    assert!(bench.set.free(&tx, object.id()).is_err());
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(set.object_count(), 1);
    assert!(set.object(object.id()).is_err());
    assert!(bench.set.object(object.id()).is_err());
    let tx = bench.begin();
    bench.set.free(&tx, kept.id()).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    // The array's only block is a hole with a birth, as are the blocks above it.
    assert_eq!(set.phys().meta_dnode.used, 0);
    assert_eq!(set.phys().meta_dnode.block_pointers[0].birth(), Txg(6));
}

#[test]
fn an_object_made_and_freed_in_one_txg_was_never_there() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &noise(1, 4096)).unwrap();
    bench.set.free(&tx, object.id()).unwrap();
    assert_eq!(bench.set.next_object(ObjectId(0)).unwrap(), None);
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(set.object_count(), 0);
    assert_eq!(bench.sink.alive().len(), 2);
}

#[test]
fn numbers_are_not_used_twice_while_the_array_has_one_block() {
    let mut bench = dataset();
    for round in 1..=20 {
        let tx = bench.begin();
        let object = bench.set.allocate(&tx, file(512)).unwrap();
        assert_eq!(object.id(), ObjectId(round));
        drop(tx);
        bench.sync();
        let tx = bench.begin();
        bench.set.free(&tx, object.id()).unwrap();
        drop(tx);
        bench.sync();
    }
    // What was used before it was opened cannot be known.
    bench.reopen();
    let tx = bench.begin();
    assert_eq!(
        bench.set.allocate(&tx, file(512)).unwrap().id(),
        ObjectId(32)
    );
}

#[test]
fn a_number_can_be_asked_for_when_it_is_free() {
    let mut bench = dataset();
    let tx = bench.begin();
    let taken = |bench: &Bench, tx: &Transaction, id| {
        let new = file(512).with_slots(4);
        bench
            .set
            .allocate_at(tx, ObjectId(id), new)
            .map(|one| one.id().0)
    };
    assert_eq!(taken(&bench, &tx, 100), Ok(100));
    assert!(taken(&bench, &tx, 97).is_err());
    assert!(taken(&bench, &tx, 103).is_err());
    assert!(taken(&bench, &tx, 126).is_err(), "would leave its block");
    assert!(taken(&bench, &tx, 0).is_err());
    assert_eq!(taken(&bench, &tx, 104), Ok(104));
    drop(tx);
    bench.sync();
    bench.reopen();
    let tx = bench.begin();
    assert!(taken(&bench, &tx, 97).is_err());
    assert_eq!(taken(&bench, &tx, 96), Ok(96));
    bench.set.free(&tx, ObjectId(104)).unwrap();
    assert!(taken(&bench, &tx, 104).is_err(), "only after the sync");
    drop(tx);
    bench.sync();
    let tx = bench.begin();
    assert_eq!(taken(&bench, &tx, 104), Ok(104));
    drop(tx);
    let (synced, _) = bench.sync();
    assert!(synced.seen.large_dnodes);
}

#[test]
fn bonus_and_spill_share_the_room() {
    let bench = dataset();
    let tx = bench.begin();
    let new = file(512).with_bonus(ObjectType::SA, vec![7; 100]);
    let object = bench.set.allocate(&tx, new).unwrap();
    assert_eq!(object.bonus_bytes_max(), 320);
    object.set_bonus(&tx, vec![8; 320]).unwrap();
    assert!(object.set_bonus(&tx, vec![8; 321]).is_err());
    assert!(object.set_spill(&tx, Some(vec![1; 512])).is_err());
    object.set_bonus(&tx, vec![9; 192]).unwrap();
    object.set_spill(&tx, Some(noise(3, 1024))).unwrap();
    assert_eq!(object.bonus_bytes_max(), 192);
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!(read.bonus().unwrap(), [9; 192]);
    assert_eq!(
        read.read_spill().unwrap().unwrap().bytes,
        millpond_env::sync::Arc::new(noise(3, 1024))
    );
}

#[test]
fn spills_outlive_reopening_and_die_with_their_object() {
    let mut bench = dataset();
    let tx = bench.begin();
    let new = file(512).with_bonus(ObjectType::SA, vec![7; 100]);
    let id = bench.set.allocate(&tx, new).unwrap().id();
    let object = bench.set.object(id).unwrap();
    object.set_spill(&tx, Some(noise(3, 1024))).unwrap();
    drop(tx);
    bench.sync();
    drop(object);
    bench.reopen();
    let object = bench.set.object(id).unwrap();
    assert_eq!(
        object.spill().unwrap().unwrap().bytes,
        millpond_env::sync::Arc::new(noise(3, 1024))
    );
    let tx = bench.begin();
    object.set_spill(&tx, Some(noise(4, 512))).unwrap();
    assert_eq!(
        object.spill().unwrap().unwrap().bytes,
        millpond_env::sync::Arc::new(noise(4, 512))
    );
    drop(tx);
    bench.sync();
    let tx = bench.begin();
    object.set_spill(&tx, None).unwrap();
    object.set_bonus(&tx, vec![5; 320]).unwrap();
    object
        .set_types(&tx, ObjectType::METADATA_ZAP, ObjectType::SA)
        .unwrap();
    assert_eq!(object.spill().unwrap(), None);
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(id).unwrap();
    assert_eq!((read.dnode().spill, read.dnode().used), (None, 0));
    assert_eq!(read.dnode().object_type, ObjectType::METADATA_ZAP);
    let tx = bench.begin();
    object.set_bonus(&tx, vec![5; 8]).unwrap();
    object.set_spill(&tx, Some(noise(5, 512))).unwrap();
    drop(tx);
    bench.sync();
    let tx = bench.begin();
    bench.set.free(&tx, id).unwrap();
    drop(tx);
    bench.sync();
}

#[test]
fn block_sizes_change_while_there_is_one_block() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &noise(1, 300)).unwrap();
    drop(tx);
    bench.sync();
    let tx = bench.begin();
    object.set_block_bytes(&tx, 1536, Some(14)).unwrap();
    object.write(&tx, 1000, &noise(2, 536)).unwrap();
    assert!(object.write(&tx, 1530, &[1; 10]).is_err());
    assert!(object.set_block_bytes(&tx, 1000, None).is_err());
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!(read.block_bytes(), 1536);
    let mut expected = noise(1, 300);
    expected.resize(1000, 0);
    expected.extend(noise(2, 536));
    assert!(read.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
    let tx = bench.begin();
    object.set_block_bytes(&tx, 1 << 20, None).unwrap();
    object.write(&tx, 1 << 20, &[3]).unwrap();
    assert!(object.set_block_bytes(&tx, 512, None).is_err());
    assert!(object.set_block_bytes(&tx, 1 << 20, Some(17)).is_err());
    drop(tx);
    let (synced, _) = bench.sync();
    assert!(synced.seen.large_blocks);
    let mut bytes = vec![0; 1537];
    object.read(0, &mut bytes).unwrap();
    assert!(bytes[..1536] == expected && bytes[1536] == 0);
}

#[test]
fn what_is_written_into_large_blocks_is_charged_alone_and_put_in_when_synced() {
    let mut bench = dataset();
    let size = 128 << 10;
    let tx = bench.begin();
    let id = (bench.set.allocate(&tx, file(size)).unwrap()).id();
    let object = bench.set.object(id).unwrap();
    let mut expected = noise(3, 5 * size as usize);
    object.write(&tx, 0, &expected).unwrap();
    drop((tx, object));
    bench.sync();
    bench.reopen();
    let object = bench.set.object(id).unwrap();
    let mut write = |tx: &Transaction, at: usize, bytes: &[u8]| {
        object.write(tx, at as u64, bytes).unwrap();
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let before = bench.groups.dirty_bytes();
    let tx = bench.begin();
    for at in [0, 5000, 131_000, 300_000] {
        write(&tx, at, &noise(at as u64, 4096));
    }
    assert!(bench.groups.dirty_bytes() - before < 20_000);
    // Filled piece by piece.
    for at in 0..64 {
        write(&tx, 4 * size as usize + at * 2048, &noise(at as u64, 2048));
    }
    drop(tx);
    let syncing = bench.close();
    // On top of what is being written, in the next txg.
    let tx = bench.begin();
    write(&tx, 4000, &noise(9, 3000));
    write(&tx, 300_100, &noise(10, 10));
    let mut read = vec![0; expected.len()];
    object.read(0, &mut read).unwrap();
    assert!(read == expected);
    drop(tx);
    bench.set.sync(syncing.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(syncing.txg());
    bench.judged();
    object.read(0, &mut read).unwrap();
    assert!(read == expected);
    let (_, set) = bench.sync();
    let mut read = vec![0; expected.len()];
    set.object(id).unwrap().read(0, &mut read).unwrap();
    assert!(read == expected);
}

#[test]
fn the_mos_converges_over_passes_by_rewriting_in_place() {
    let bench = Bench::new(ObjectSetKind::Meta, WritePolicy::mos());
    let tx = bench.begin();
    let first = bench.set.allocate(&tx, file(4096)).unwrap();
    first.write(&tx, 0, &noise(1, 4096 * 40)).unwrap();
    drop(tx);
    bench.sync();
    let syncing = bench.close();
    let tx = syncing.transaction();
    for pass in 1..12 {
        first
            .write(&tx, 4096 * 3, &noise(u64::from(pass), 4096))
            .unwrap();
        let more = bench.set.allocate(&tx, file(512)).unwrap();
        more.write(&tx, 0, &noise(77, 600)).unwrap();
        bench.set.sync(syncing.txg(), pass, &*bench.sink).unwrap();
        bench.judged();
    }
    assert!(bench.sink.rewrites() > 20);
    // What is freed in a txg is not used again in it.
    bench.set.free(&tx, ObjectId(5)).unwrap();
    bench.set.sync(syncing.txg(), 12, &*bench.sink).unwrap();
    bench.judged();
    let again = bench.set.allocate_at(&tx, ObjectId(5), file(512));
    assert!(again.is_err());
    bench.groups.synced(syncing.txg());
    let tx = bench.begin();
    bench.set.allocate_at(&tx, ObjectId(5), file(512)).unwrap();
}

#[test]
fn the_head_keeps_flags_and_log_header_by_txg() {
    let mut bench = dataset();
    let tx = bench.begin();
    bench.set.set_flags(&tx, 3);
    let mut header = [0; 24];
    header[0] = 5;
    bench.set.set_log_header(&tx, header);
    let earlier = bench.close_after(tx);
    let tx = bench.begin();
    bench.set.set_flags(&tx, 7);
    assert_eq!(bench.set.flags(), 7);
    drop(tx);
    bench.set.sync(earlier.txg(), 1, &*bench.sink).unwrap();
    assert_eq!(bench.set.committed().unwrap().phys().flags, 3);
    assert_eq!(bench.set.flags(), 7);
    bench.groups.synced(earlier.txg());
    bench.sync();
    bench.reopen();
    assert_eq!((bench.set.flags(), bench.set.log_header()), (7, header));
}

impl Bench {
    fn close_after(&self, tx: Transaction) -> SyncingTxg {
        drop(tx);
        self.close()
    }
}

#[test]
fn accounting_objects_have_their_place_in_the_head() {
    let mut bench = Bench::new(ObjectSetKind::FileSystem, WritePolicy::dataset());
    bench.sync();
    assert!(bench.set.special_if_any(Accounting::User).is_none());
    let tx = bench.begin();
    for which in [Accounting::User, Accounting::Group, Accounting::Project] {
        let object = bench.set.special(which, &tx).unwrap();
        object.write(&tx, 0, &noise(which as u64, 512)).unwrap();
    }
    drop(tx);
    let (_, set) = bench.sync();
    assert_eq!(set.object_count(), 0);
    bench.reopen();
    let object = bench.set.special_if_any(Accounting::Group).unwrap();
    let block = object.read_block(BlockId(0)).unwrap();
    assert_eq!(
        block.bytes,
        millpond_env::sync::Arc::new(noise(Accounting::Group as u64, 512))
    );
    let tx = bench.begin();
    object.write(&tx, 0, &[1]).unwrap();
    drop(tx);
    bench.sync();
}

#[test]
fn objects_are_found_in_order_with_those_not_yet_synced() {
    let bench = dataset();
    let tx = bench.begin();
    for _ in 0..70 {
        bench.set.allocate(&tx, file(512)).unwrap();
    }
    drop(tx);
    bench.sync();
    let tx = bench.begin();
    for id in (1..=70).filter(|id| id % 3 == 0) {
        bench.set.free(&tx, ObjectId(id)).unwrap();
    }
    let last = bench.set.allocate(&tx, file(512)).unwrap().id();
    let far = bench.set.allocate_at(&tx, ObjectId(100_000), file(512));
    let far = far.unwrap().id();
    let list = |bench: &Bench| {
        let mut ids = vec![];
        let mut at = ObjectId(0);
        while let Some(id) = bench.set.next_object(at).unwrap() {
            ids.push(id.0);
            at = id;
        }
        ids
    };
    let mut expected: Vec<u64> = (1..=70).filter(|id| id % 3 != 0).collect();
    expected.extend([last.0, far.0]);
    assert_eq!(list(&bench), expected);
    drop(tx);
    bench.sync();
    assert_eq!(list(&bench), expected);
}

#[test]
fn many_small_objects_go_to_the_sink_in_few_batches() {
    let bench = dataset();
    let tx = bench.begin();
    for seed in 0..2000 {
        let object = bench.set.allocate(&tx, file(512)).unwrap();
        object.write(&tx, 0, &noise(seed, 900)).unwrap();
    }
    drop(tx);
    bench.sync();
    assert!(bench.sink.largest_batch() >= 2000);
}

#[test]
fn a_block_freed_and_written_in_one_txg_forgets_what_the_txg_before_holds() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &[7; 512]).unwrap();
    let first = bench.close_after(tx);
    let tx = bench.begin();
    object.free_range(&tx, 0, u64::MAX).unwrap();
    object.write(&tx, 10, &[9]).unwrap();
    let mut expected = vec![0; 512];
    expected[10] = 9;
    assert!(object.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
    drop(tx);
    bench.set.sync(first.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(first.txg());
    assert!(object.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
    bench.sync();
    assert!(object.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
}

#[test]
fn an_object_freed_in_an_older_txg_has_no_changes_in_the_newer() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate_at(&tx, ObjectId(40), file(512)).unwrap();
    object.write(&tx, 0, &[7; 512]).unwrap();
    drop(tx);
    bench.sync();
    let older = bench.begin();
    bench.groups.ask(older.txg());
    let newer = bench.begin();
    assert!(newer.txg() > older.txg());
    object.write(&newer, 0, &noise(1, 4000)).unwrap();
    bench.set.free(&older, object.id()).unwrap();
    assert!(object.write(&newer, 0, &[1]).is_err());
    drop(older);
    let syncing = bench.groups.next_to_sync(Duration::ZERO).unwrap();
    bench.set.sync(syncing.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(syncing.txg());
    // The number serves again while the newer txg is open.
    let again = bench
        .set
        .allocate_at(&newer, ObjectId(40), file(512))
        .unwrap();
    again.write(&newer, 0, &[5; 600]).unwrap();
    drop(newer);
    let (_, set) = bench.sync();
    assert_eq!(set.object_count(), 1);
    let mut bytes = [0; 600];
    set.object(ObjectId(40))
        .unwrap()
        .read(0, &mut bytes)
        .unwrap();
    assert_eq!(bytes, [5; 600]);
    assert!(Arc::ptr_eq(
        &again,
        &bench.set.object(ObjectId(40)).unwrap()
    ));
}

#[test]
fn a_late_write_in_an_older_txg_is_seen_in_the_newer_one_too() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &[7; 1024]).unwrap();
    drop(tx);
    bench.sync();
    let older = bench.begin();
    bench.groups.ask(older.txg());
    let newer = bench.begin();
    object.write(&newer, 0, &[1; 100]).unwrap();
    object.free_range(&newer, 512, u64::MAX).unwrap();
    object.write(&older, 50, &[2; 100]).unwrap();
    object.write(&older, 600, &[3; 10]).unwrap();
    let mut expected = [[1; 50].as_slice(), &[2; 100], &[7; 362]].concat();
    let mut live = vec![0; 512];
    object.read(0, &mut live).unwrap();
    assert!(live == expected);
    drop((older, newer));
    let first = bench.groups.next_to_sync(Duration::ZERO).unwrap();
    bench.set.sync(first.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(first.txg());
    // The older txg has its own state: without what the newer one wrote.
    let mut synced = vec![0; 512];
    let set = bench.judged();
    set.object(object.id())
        .unwrap()
        .read(0, &mut synced)
        .unwrap();
    expected[..50].fill(7);
    assert!(synced == expected);
    let (_, set) = bench.sync();
    let mut last = vec![0; 1024];
    let mut live = vec![0; 1024];
    set.object(object.id()).unwrap().read(0, &mut last).unwrap();
    object.read(0, &mut live).unwrap();
    assert!(last == live && last[88..98] == [2; 10] && last[600..610] == [3; 10]);
}

#[test]
fn an_encrypted_dataset_is_not_opened_for_change() {
    let bench = dataset();
    bench.sync();
    let mut root = bench.set.root();
    root.words[6] |= 1 << 61;
    let store = Arc::clone(&bench.store);
    let refused = LiveObjectSet::open(store, 7, root, WritePolicy::dataset()).unwrap_err();
    assert!(matches!(refused, ObjectError::Refused { .. }));
}

#[test]
fn what_cannot_be_made_is_refused() {
    let bench = Bench::new(ObjectSetKind::Meta, WritePolicy::mos());
    let tx = bench.begin();
    for new in [
        NewObject::new(ObjectType::NONE),
        NewObject::new(ObjectType(60)),
        file(512).with_slots(2),
        file(512).with_slots(0),
        file(256 << 10),
        file(700),
        file(0),
        file(512).with_bonus(ObjectType::SA, vec![0; 321]),
    ] {
        let refused = bench.set.allocate(&tx, new).unwrap_err();
        assert!(matches!(refused, ObjectError::Refused { .. }));
    }
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    assert!(object.write_block(&tx, BlockId(0), vec![1; 511]).is_err());
    assert!(object.write(&tx, u64::MAX, &[1, 2]).is_err());
    assert!(
        object
            .write_block(&tx, BlockId(u64::MAX), vec![1; 512])
            .is_err()
    );
    assert!(object.set_spill(&tx, Some(vec![0; 513])).is_err());
    assert!(
        object
            .set_types(&tx, ObjectType::NONE, ObjectType::NONE)
            .is_err()
    );
    // A free of everything, twice, and of nothing.
    object.free_range(&tx, 0, u64::MAX).unwrap();
    object.free_range(&tx, u64::MAX, u64::MAX).unwrap();
    object.free_range(&tx, 5, 0).unwrap();
}
