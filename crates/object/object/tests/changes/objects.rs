//! Creating, freeing and finding objects; their bonus areas and spill blocks.

use super::*;
use millpond_object::ObjectError;
use millpond_ondisk::{BlockId, ObjectId};

#[test]
fn a_freed_object_owns_no_space() {
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
    // The array's only block is a hole with a birth txg, and so are the blocks above it.
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
    // Which ids were used before the set was opened is unknown.
    bench.reopen();
    let tx = bench.begin();
    assert_eq!(
        bench.set.allocate(&tx, file(512)).unwrap().id(),
        ObjectId(32)
    );
}

#[test]
fn a_given_object_id_can_be_allocated_if_free() {
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
fn bonus_and_spill_share_the_space() {
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
fn an_encrypted_dataset_is_not_opened_for_change() {
    let bench = dataset();
    bench.sync();
    let mut root = bench.set.root();
    root.words[6] |= 1 << 61;
    let store = Arc::clone(&bench.store);
    let refused = ObjectSet::open(store, 7, root, WritePolicy::dataset(), None).unwrap_err();
    assert!(matches!(refused, ObjectError::Refused { .. }));
}

#[test]
fn invalid_objects_are_refused() {
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
    // Freeing everything, twice, and freeing an empty range.
    object.free_range(&tx, 0, u64::MAX).unwrap();
    object.free_range(&tx, u64::MAX, u64::MAX).unwrap();
    object.free_range(&tx, 5, 0).unwrap();
}
