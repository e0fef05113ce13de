mod world;

use crate::*;
use millpond_block::BlockAddress;
use millpond_ondisk::{BlockPointer, ObjectId, ObjectType, Txg};
use std::collections::BTreeSet;
use world::{FANOUT, NEW, Recorder, World, address};

fn tree(root: BlockPointer) -> Tree<()> {
    Tree::new(5, root, ())
}

fn in_order(world: &World, root: BlockPointer, order: Order) -> Vec<BlockAddress> {
    let recorder = Recorder::default();
    let traversal = Traversal::new(&world.store, &recorder);
    let outcome = traversal.run_in_order(tree(root), order, None);
    assert_eq!(outcome, Outcome::Complete);
    assert_eq!(*recorder.faults.lock(), []);
    recorder
        .seen()
        .iter()
        .map(|(address, _)| *address)
        .collect()
}

#[test]
fn every_order_visits_each_block_once() {
    let world = World::new();
    let root = world.varied();
    let expected: BTreeSet<_> = in_order(&world, root, Order::ParentsFirst)
        .into_iter()
        .collect();
    // The set, two accounting blocks, 41 dnodes in 6 blocks below one, and the files. Eight small files have an
    // indirect block, and one a spill block.
    let small: usize = (0..40)
        .filter(|n| ![5, 7, 11].contains(n))
        .map(|n| n % 4 + 1)
        .sum();
    let count = 1 + 2 + 6 + 1 + small + 8 + 1 + (100 + 4 + 1) + (1100 + 35 + 2);
    assert_eq!(expected.len(), count);
    let children_first = in_order(&world, root, Order::ChildrenFirst);
    assert_eq!(children_first.len(), count);
    assert_eq!(children_first.last(), Some(&BlockAddress::object_set(5)));
    for threads in [1, 4] {
        let recorder = Recorder::default();
        let traversal = Traversal::new(&world.store, &recorder);
        let outcome = traversal.run_parallel(vec![tree(root)], vec![], threads);
        assert_eq!(outcome, Outcome::Complete);
        assert_eq!(
            recorder.sorted(),
            expected.iter().copied().collect::<Vec<_>>()
        );
        // The set itself, the dnodes, 40 objects and two for accounting.
        assert_eq!(recorder.objects_done.lock().len(), 1 + 1 + 40 + 2);
    }
}

#[test]
fn parents_are_visited_before_or_after_children_as_asked() {
    let world = World::new();
    let root = world.varied();
    for order in [Order::ParentsFirst, Order::ChildrenFirst] {
        let seen = in_order(&world, root, order);
        let place = |wanted| seen.iter().position(|address| *address == wanted).unwrap();
        let pairs = [
            (address(8, 2, 0), address(8, 1, 3)),
            (address(8, 1, 3), address(8, 0, 3 * FANOUT as u64 + 5)),
            (address(0, 1, 0), address(0, 0, 1)),
            (address(0, 0, 1), address(8, 2, 0)),
            (BlockAddress::object_set(5), address(0, 1, 0)),
        ];
        for (parent, child) in pairs {
            let is_before = place(parent) < place(child);
            assert_eq!(is_before, order == Order::ParentsFirst, "{parent}, {child}");
        }
        assert!(place(address(6, 0, 99)) < place(address(8, 0, 0)));
    }
}

#[test]
fn resuming_at_any_bookmark_visits_each_block_exactly_once() {
    for order in [Order::ParentsFirst, Order::ChildrenFirst] {
        let world = World::new();
        let root = world.varied();
        let all = in_order(&world, root, order);
        for stop in 0..all.len() {
            let first = Recorder {
                stops_after: Some(stop),
                ..Recorder::default()
            };
            let outcome =
                Traversal::new(&world.store, &first).run_in_order(tree(root), order, None);
            let Outcome::Stopped(place) = outcome else {
                panic!("{outcome:?} after {stop}");
            };
            // As another process would read it from the pool.
            let place = place.map(|place| Bookmark::decode(&place.encode(5)).unwrap());
            let second = Recorder::default();
            let outcome =
                Traversal::new(&world.store, &second).run_in_order(tree(root), order, place);
            assert_eq!(outcome, Outcome::Complete);
            let seen = first.seen().into_iter().chain(second.seen());
            let seen: Vec<_> = seen.map(|(address, _)| address).collect();
            assert_eq!(
                seen, all,
                "{order:?}, stopped before block {stop} at {place:?}"
            );
        }
    }
}

#[test]
fn a_stop_at_an_object_loses_none_of_its_blocks() {
    let world = World::new();
    let root = world.varied();
    let objects = (0..=40).map(ObjectId);
    let objects: Vec<_> = objects
        .chain([ObjectId::GROUP_USED, ObjectId::USER_USED])
        .collect();
    for order in [Order::ParentsFirst, Order::ChildrenFirst] {
        let all = in_order(&world, root, order);
        let (mut seen, mut place) = (vec![], None);
        for stops_at in objects.iter().copied().map(Some).chain([None]) {
            let recorder = Recorder {
                stops_at,
                ..Recorder::default()
            };
            let traversal = Traversal::new(&world.store, &recorder);
            let outcome = traversal.run_in_order(tree(root), order, place);
            place = match outcome {
                Outcome::Stopped(place) => place,
                _ => None,
            };
            assert_eq!(outcome == Outcome::Complete, stops_at.is_none());
            seen.extend(recorder.seen().iter().map(|(address, _)| *address));
        }
        assert_eq!(seen, all, "{order:?}");
    }
}

#[test]
fn a_traversal_over_budget_can_resume() {
    let world = World::new();
    let root = world.varied();
    let all = in_order(&world, root, Order::ChildrenFirst);
    let (mut seen, mut place, mut runs) = (vec![], None, 0);
    loop {
        let recorder = Recorder::default();
        let traversal = Traversal::new(&world.store, &recorder).metadata_bytes_max(5 * 4096);
        let outcome = traversal.run_in_order(tree(root), Order::ChildrenFirst, place);
        seen.extend(recorder.seen().iter().map(|(address, _)| *address));
        runs += 1;
        match outcome {
            Outcome::OverBudget(next) if next != place => place = next,
            outcome => {
                assert_eq!(outcome, Outcome::Complete);
                break;
            }
        }
    }
    assert_eq!(seen, all);
    assert!(runs > 5, "{runs} runs");
}

#[test]
fn a_resumed_traversal_does_not_prefetch_what_was_visited() {
    let mut world = World::new();
    let root = world.varied();
    let first = Recorder {
        stops_after: Some(700),
        ..Recorder::default()
    };
    let order = Order::ChildrenFirst;
    let outcome = Traversal::new(&world.store, &first).run_in_order(tree(root), order, None);
    let Outcome::Stopped(place) = outcome else {
        panic!("{outcome:?}");
    };
    let done = first.parents.lock();
    assert!(done.len() > 10, "{} blocks", done.len());
    world.reopen();
    let second = Recorder::default();
    Traversal::new(&world.store, &second).run_in_order(tree(root), order, place);
    world.store.wait_for_prefetch();
    assert!(world.store.prefetch_stats().requests > 0);
    let is_cached = |pointer: &&BlockPointer| world.store.cached(pointer, None).is_some();
    assert_eq!(done.iter().filter(is_cached).count(), 0);
}

#[test]
fn trees_with_other_indirect_blocks_are_both_visited_whole() {
    let world = World::new();
    let mut old = world.file(&[Txg(5); 1]);
    let content = old.block_pointers[0].encode().repeat(64);
    let indirect = || world.block(&content, ObjectType::OTHER_U8, 1, Txg(5));
    old.block_pointers = vec![indirect(), indirect()];
    (old.levels, old.indirect_block_shift) = (2, 13);
    let now = world.set(&[world.file(&[NEW; 40])], NEW);
    let wanted = Tree {
        previous: Some(world.set(&[old], Txg(5))),
        ..tree(now)
    };
    let recorder = Recorder::default();
    Traversal::new(&world.store, &recorder).run_parallel(vec![wanted], vec![], 1);
    let data = |side| -> Vec<u64> {
        let mut seen = recorder.seen();
        seen.retain(|(at, of)| at.object.0 == 1 && at.level.0 == 0 && *of == side);
        seen.sort_by_key(|(at, _)| at.block);
        seen.iter().map(|(at, _)| at.block.0).collect()
    };
    assert_eq!(data(Side::Old), (0..128).collect::<Vec<_>>());
    assert_eq!(data(Side::New), (0..40).collect::<Vec<_>>());
}

#[test]
fn a_dnode_in_the_slot_of_object_0_is_a_fault() {
    let world = World::new();
    let mut bytes = world.file(&[NEW; 2]).encode().unwrap();
    bytes.extend(world.file(&[NEW; 2]).encode().unwrap());
    let root = world.set_of(&bytes, NEW);
    let recorder = Recorder::default();
    Traversal::new(&world.store, &recorder).run_parallel(vec![tree(root)], vec![], 1);
    let faults = recorder.faults.lock();
    assert!(matches!(
        faults[..],
        [Fault::Dnode {
            object: ObjectId(0),
            slot: 0,
            ..
        }]
    ));
    assert!(recorder.sorted().contains(&address(1, 0, 1)));
}

#[test]
fn blocks_outside_the_births_are_pruned() {
    let world = World::new();
    let old = world.file(&[Txg(5); 40]);
    let mixed: Vec<Txg> = (0..40)
        .map(|number| Txg(if number == 35 { 20 } else { 5 }))
        .collect();
    let mixed = world.file(&mixed);
    let root = world.set(&[old, mixed], NEW);
    let young = Recorder::default();
    let wanted = Tree {
        born_after: Some(Txg(5)),
        ..tree(root)
    };
    Traversal::new(&world.store, &young).run_parallel(vec![wanted], vec![], 1);
    let of_files = |recorder: &Recorder| -> Vec<BlockAddress> {
        let seen = recorder.sorted().into_iter();
        seen.filter(|address| (1..=2).contains(&address.object.0))
            .collect()
    };
    assert_eq!(of_files(&young), [address(2, 0, 35), address(2, 1, 1)]);
    let elder = Recorder::default();
    let wanted = Tree {
        born_max: Some(Txg(5)),
        ..tree(root)
    };
    Traversal::new(&world.store, &elder).run_in_order(wanted, Order::ParentsFirst, None);
    let seen = of_files(&elder);
    assert_eq!(seen.len(), 40 + 2 + 39 + 1);
    assert!(!seen.contains(&address(2, 0, 35)) && seen.contains(&address(2, 0, 34)));
    assert!(!elder.sorted().contains(&BlockAddress::object_set(5)));
}

#[test]
fn two_states_differ_along_the_path_to_a_changed_block() {
    let world = World::new();
    let same = world.file(&[Txg(5); 40]);
    let before = world.file(&[Txg(5); 3]);
    let mut after = before.clone();
    after.block_pointers[1] = world.block(&[8; 512], ObjectType::OTHER_U8, 0, NEW);
    let old = world.set(&[same.clone(), before], Txg(5));
    let new = world.set(&[same, after], NEW);
    let recorder = Recorder::default();
    let wanted = Tree {
        previous: Some(old),
        ..tree(new)
    };
    Traversal::new(&world.store, &recorder).run_parallel(vec![wanted], vec![], 2);
    let seen = recorder.seen.lock();
    let of_files: Vec<_> = seen
        .iter()
        .filter(|(a, _)| (1..=2).contains(&a.object.0))
        .collect();
    let changed = address(2, 0, 1);
    assert_eq!(of_files, [&(changed, Side::Old), &(changed, Side::New)]);
    drop(seen);
    let unchanged = Recorder::default();
    let wanted = Tree {
        previous: Some(new),
        ..tree(new)
    };
    Traversal::new(&world.store, &unchanged).run_parallel(vec![wanted], vec![], 2);
    assert_eq!(unchanged.seen(), []);
}

#[test]
fn a_forged_tree_that_repeats_itself_ends_at_the_budget() {
    let world = World::new();
    let data = world.block(&[7; 512], ObjectType::OTHER_U8, 0, NEW);
    let mut file = world.file(&[NEW; 1]);
    // 2^60 data blocks in 12 indirect blocks.
    let mut pointer = data;
    for level in 1..12 {
        pointer = world.indirect(&[pointer; FANOUT], ObjectType::OTHER_U8, level);
    }
    (file.levels, file.block_pointers) = (12, vec![pointer]);
    let root = world.set(&[file], NEW);
    for threads in [1, 4] {
        let recorder = Recorder::default();
        let traversal = Traversal::new(&world.store, &recorder).metadata_bytes_max(4 << 20);
        let outcome = traversal.run_parallel(vec![tree(root)], vec![], threads);
        assert!(matches!(outcome, Outcome::OverBudget(_)));
        let read = recorder
            .seen()
            .iter()
            .filter(|(address, _)| address.level.0 > 0)
            .count();
        assert!(read < 1200, "{read} blocks of 4 KiB in 4 MiB");
    }
    let recorder = Recorder::default();
    let traversal = Traversal::new(&world.store, &recorder).metadata_bytes_max(4 << 20);
    let outcome = traversal.run_in_order(tree(root), Order::ChildrenFirst, None);
    assert!(matches!(outcome, Outcome::OverBudget(_)));
}

#[test]
fn pointers_that_contradict_their_position_are_faults() {
    let world = World::new();
    let data = world.block(&[7; 512], ObjectType::OTHER_U8, 0, NEW);
    let large = world.block(&[7; 1024], ObjectType::OTHER_U8, 0, NEW);
    let mut loops = world.file(&[NEW; 1]);
    // The indirect block of level 1 has a pointer that says level 2.
    let indirect = world.indirect(&[data], ObjectType::OTHER_U8, 2);
    (loops.levels, loops.block_pointers) = (2, vec![indirect]);
    let mut odd = world.file(&[NEW; 40]);
    odd.block_pointers = vec![world.indirect(&[large], ObjectType::OTHER_U8, 1), large];
    let root = world.set(&[loops, odd, world.file(&[NEW])], NEW);
    let recorder = Recorder::default();
    let traversal = Traversal::new(&world.store, &recorder);
    assert_eq!(
        traversal.run_parallel(vec![tree(root)], vec![], 2),
        Outcome::Complete
    );
    let mut faults: Vec<String> = recorder
        .faults
        .lock()
        .iter()
        .map(ToString::to_string)
        .collect();
    faults.sort();
    let level = "pointer's level contradicts its place";
    assert_eq!(faults, [level, level]);
    // Data blocks are checked where they are read or freed.
    let recorder = Recorder::default();
    let traversal = Traversal::new(&world.store, &recorder);
    traversal.run_in_order(tree(root), Order::ChildrenFirst, None);
    assert_eq!(recorder.faults.lock().len(), 3);
    assert!(recorder.sorted().contains(&address(3, 0, 0)));
}

/// Walks in order up to the first fault, which is in the first block of this object.
fn stopped_at(world: &World, root: BlockPointer, object: ObjectId) -> Recorder {
    let stopping = Recorder {
        stops_at_faults: true,
        ..Recorder::default()
    };
    let traversal = Traversal::new(&world.store, &stopping);
    let outcome = traversal.run_in_order(tree(root), Order::ChildrenFirst, None);
    let place = Bookmark {
        object,
        level: 0,
        block: 0,
    };
    assert_eq!(outcome, Outcome::Stopped(Some(place)));
    stopping
}

#[test]
fn an_unreadable_block_hides_only_what_is_below_it() {
    let world = World::new();
    let file = world.file(&[NEW; 40]);
    world.damage(&file.block_pointers[0]);
    let root = world.set(&[file, world.file(&[NEW; 2])], NEW);
    let recorder = Recorder::default();
    Traversal::new(&world.store, &recorder).run_parallel(vec![tree(root)], vec![], 2);
    assert!(matches!(recorder.faults.lock()[..], [Fault::Read(_)]));
    let seen = recorder.sorted();
    assert!(seen.contains(&address(1, 0, 39)) && !seen.contains(&address(1, 0, 31)));
    assert!(seen.contains(&address(2, 0, 1)));
    let stopping = stopped_at(&world, root, ObjectId(1));
    assert_eq!(stopping.seen(), []);
}

#[test]
fn a_damaged_dnode_ends_the_walk_after_earlier_objects() {
    let world = World::new();
    let mut bytes = vec![0; 512];
    bytes.extend(world.file(&[NEW; 2]).encode().unwrap());
    bytes.extend([0xff; 512]);
    bytes.extend(world.file(&[NEW; 2]).encode().unwrap());
    let root = world.set_of(&bytes, NEW);
    let recorder = Recorder::default();
    Traversal::new(&world.store, &recorder).run_parallel(vec![tree(root)], vec![], 1);
    let faults = recorder.faults.lock();
    assert!(matches!(
        faults[..],
        [Fault::Dnode {
            object: ObjectId(2),
            slot: 2,
            ..
        }]
    ));
    let stopping = stopped_at(&world, root, ObjectId(2));
    assert_eq!(stopping.sorted(), [address(1, 0, 0), address(1, 0, 1)]);
}

#[test]
fn a_cancelled_traversal_ends_with_its_progress() {
    let world = World::new();
    let root = world.varied();
    let progress = Progress::default();
    let recorder = Recorder::default();
    let traversal = Traversal::new(&world.store, &recorder).progress(&progress);
    assert_eq!(
        traversal.run_parallel(vec![tree(root)], vec![], 2),
        Outcome::Complete
    );
    assert_eq!(progress.blocks(), recorder.seen().len() as u64);
    assert!((progress.fraction(progress.allocated_bytes() * 2) - 0.5).abs() < 1e-9);
    progress.cancel();
    let cancelled = Recorder::default();
    let traversal = Traversal::new(&world.store, &cancelled).progress(&progress);
    let outcome = traversal.run_parallel(vec![tree(root)], vec![], 2);
    assert_eq!(outcome, Outcome::Stopped(None));
    assert_eq!(cancelled.seen(), []);
}

#[test]
fn one_object_is_visited_without_its_set() {
    let world = World::new();
    let file = world.file(&[NEW; 100]);
    let recorder = Recorder::default();
    let traversal = Traversal::new(&world.store, &recorder);
    let dnode = millpond_env::sync::Arc::new(file);
    let outcome = traversal.run_object(tree(BlockPointer::default()), ObjectId(3), &dnode);
    assert_eq!(outcome, Outcome::Complete);
    assert_eq!(recorder.seen().len(), 100 + 4 + 1);
    assert_eq!(recorder.seen()[0].0, address(3, 2, 0));
}
