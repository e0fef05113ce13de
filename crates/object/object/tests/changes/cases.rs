//! The shapes of trees of blocks, of the array of dnodes and of the head.

use super::*;
use millpond_object::Accounting;
use millpond_ondisk::{BlockId, CompressionKind, Level, ObjectId};

#[test]
fn an_empty_object_set_is_one_block() {
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
fn one_object_has_five_indirect_levels_outside_the_mos() {
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
fn truncation_keeps_levels_and_leaves_holes_with_births() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(4096)).unwrap();
    object.write(&tx, 0, &noise(1, 10 * 4096)).unwrap();
    drop(tx);
    bench.sync();
    let at = |set: &Arc<ObjectSetView>, level: u8, id: u64| {
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
    // From block 4 to the end. Existing holes stay unchanged.
    let tx = bench.begin();
    object.free_range(&tx, 2 * 4096, u64::MAX).unwrap();
    drop(tx);
    let (_, set) = bench.sync();
    let read = set.object(object.id()).unwrap();
    assert_eq!(read.block_id_max(), BlockId(1));
    assert_eq!(at(&set, 0, 2).birth(), Txg(5));
    assert_eq!(at(&set, 0, 4).birth(), Txg(6));
    // The whole object.
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
    // A block written again below it turns the rest into holes with that birth.
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
fn zeros_over_data_become_holes_with_a_birth() {
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
    let synced = || {
        let object = bench.sync().1.object(object.id()).unwrap();
        object.dnode().block_pointers.clone()
    };
    let pointers = synced();
    assert_eq!(pointers[0].birth(), Txg(5));
    assert_eq!(pointers[1].words, [0; 16]);
    // A hole with a birth that is zeroed again gets a newer birth.
    let tx = bench.begin();
    object.write(&tx, 0, &[0; 512]).unwrap();
    drop(tx);
    assert_eq!(synced()[0].birth(), Txg(6));
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
fn accounting_dnodes_are_in_the_object_set_header() {
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
fn a_block_of_zeros_is_a_hole_before_it_is_written_if_it_becomes_one() {
    let plain = WritePolicy {
        compression: CompressionKind::Off,
        ..WritePolicy::dataset()
    };
    for (policy, is_hole) in [(WritePolicy::dataset(), true), (plain, false)] {
        let bench = Bench::new(ObjectSetKind::FileSystem, policy);
        let tx = bench.begin();
        let object = bench.set.allocate(&tx, file(512)).unwrap();
        let content = [noise(1, 512), vec![0; 512], noise(2, 512)].concat();
        object.write(&tx, 0, &content).unwrap();
        let expected = match is_hole {
            true => [Some(BlockId(2)), Some(BlockId(1))],
            false => [Some(BlockId(1)), None],
        };
        let found = || [false, true].map(|hole| object.next_data(BlockId(1), hole).unwrap());
        assert_eq!(found(), expected);
        drop(tx);
        bench.sync();
        assert_eq!(found(), expected);
    }
}
