//! Vdevs grow with their devices: only when told, in every kind of vdev, and every crash leaves the old size or the new
//! one.

use crate::attach::{attach, complete, of_disk, tops};
use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::scan::{lived, online, scrub};
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    AttachKind, Caller, GrowError, Growth,
    NewLayout::{self, Mirror, Raidz, Single},
    NewMode, Pool, PoolSetting, WriteAt,
};
use millpond_env::mark;
use millpond_ondisk::{
    Ashift, Guid, LeafLayout, UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES, Uberblock,
    UberblockRing,
};
use millpond_pool::import::read_labels;
use millpond_sim::{Seed, SimDisk, World};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn resize(world: &World, disks: impl IntoIterator<Item = usize>, mib: u64) {
    for disk in disks {
        world.disks()[disk].resize(mib * MIB);
    }
}

fn expandable(pool: &Pool) -> u64 {
    pool.inner().committed().unwrap().expandable_bytes()
}

/// The pool's raw space in bytes, of all vdevs.
fn space(pool: &Pool) -> u64 {
    let usage = pool.inner().allocator().usage();
    usage.vdevs.iter().map(|vdev| vdev.space_bytes).sum()
}

fn autoexpand(pool: &Pool) {
    let on = PoolSetting::Number {
        name: "autoexpand",
        value: 1,
        text: "on".into(),
    };
    pool.inner().set_property(&on).unwrap();
}

/// Writes a file of this many MiB that does not compress, and checks it.
fn write_large(pool: &Pool, name: &[u8], mib: u64, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, name, mode, true).unwrap();
    let bytes = Seed::new(mib + u64::from(name[0])).bytes((mib * MIB) as usize);
    for (part, at) in bytes.chunks(MIB as usize).zip((0..).step_by(MIB as usize)) {
        system
            .write(&caller, &node, WriteAt::Offset(at), part)
            .unwrap();
    }
    pool.sync().unwrap();
    files.insert(name.to_vec(), bytes);
}

/// The number of metaslabs that hold anything, from this one on.
fn used_from(pool: &Pool, index: u64) -> usize {
    let view = pool.inner().committed().unwrap();
    let maps = millpond_pool::PoolSpaceMaps::load(&view).unwrap();
    let headers = maps.headers(millpond_ondisk::VdevId(0)).unwrap();
    let used = headers.iter().filter(|(place, header)| {
        place.id.index >= index
            && header
                .as_ref()
                .is_some_and(|header| header.allocated_bytes > 0)
    });
    used.count()
}

/// The txgs of the uberblocks in the ring of each label.
fn txgs_of_rings(disk: &SimDisk) -> [Vec<u64>; 4] {
    let layout = LeafLayout::new(disk.size_bytes()).unwrap();
    layout.label_offsets_bytes().map(|label| {
        let mut ring = vec![0; UBERBLOCK_RING_BYTES];
        let at = label + UBERBLOCK_RING_OFFSET_BYTES;
        disk.read(at, &mut ring).unwrap();
        let slots = UberblockRing::new(Ashift(9)).slots(&ring);
        let valid = slots.filter_map(|(_, slot)| Uberblock::decode(slot).ok());
        valid.map(|uberblock| uberblock.txg.0).collect()
    })
}

#[test]
fn every_kind_of_vdev_grows_when_told_and_the_space_is_used() {
    let _marks = [mark::expect("vdev-grown"), mark::expect("end-labels-moved")];
    for (shape, top, data_disks) in [
        ("single grown", (Single, 1), 1),
        ("mirror grown", (Mirror, 2), 1),
        ("raidz1 grown", (Raidz(1), 3), 2),
        ("raidz2 grown", (Raidz(2), 4), 2),
    ] {
        let world = World::without_journal(70);
        let pool = sim::create(&world, &[top], 64);
        let mut files = Files::new();
        write_large(&pool, b"before", 8, &mut files);
        let before = tops(&pool)[0].clone();
        let slabs = before.asize_bytes >> before.metaslab_shift;
        let old = space(&pool);
        let leaf = of_disk(&pool, 0);
        // All disks but the last: the vdev does not grow.
        resize(&world, 0..top.1 - 1, 256);
        pool.inner()
            .grow_vdevs(Some(leaf), Growth::Ordered)
            .unwrap();
        assert_eq!((space(&pool), expandable(&pool)), (old, 0), "{shape}");
        // All: without an order it does not grow either, but shows that it could.
        resize(&world, 0..top.1, 256);
        let none = pool.inner().grow_vdevs(Some(leaf), Growth::IfAutomatic);
        assert_eq!(none.unwrap(), 0, "{shape}");
        assert_eq!(space(&pool), old, "{shape}");
        let possible = expandable(&pool);
        assert!(possible >= 128 * MIB, "{shape}: {possible}");
        for disk in world.disks() {
            let labels = read_labels(disk.as_ref());
            assert!(labels.iter().all(Result::is_ok), "{shape}: labels moved");
            // With the uberblocks from before, so that what was there does not matter.
            let [first, .., last] = txgs_of_rings(&disk);
            assert!(
                first.len() > 2 && first == last,
                "{shape}: {first:?} {last:?}"
            );
        }
        let added = pool
            .inner()
            .grow_vdevs(Some(leaf), Growth::Ordered)
            .unwrap();
        assert_eq!((added, expandable(&pool)), (possible, 0), "{shape}");
        assert_eq!(space(&pool), old + added, "{shape}");
        let after = tops(&pool)[0].clone();
        assert_eq!(after.metaslab_shift, before.metaslab_shift);
        assert_eq!(after.metaslab_array, before.metaslab_array);
        // More than there was room for.
        write_large(&pool, b"after", 70 * data_disks, &mut files);
        assert_eq!(scrub(&pool).errors, 0, "{shape}");
        pool.export().unwrap();
        judge(&world, shape);
        let pool = sim::open(&world).unwrap();
        assert_eq!(space(&pool), old + added, "{shape}, opened again");
        assert!(used_from(&pool, slabs) > 0, "{shape}");
        write_large(&pool, b"more", 20, &mut files);
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        assert_eq!(files_of(&view).unwrap(), files, "{shape}");
        sim::verify(&view).unwrap();
        drop(view);
        judge(&world, shape);
    }
}

#[test]
fn nothing_grows_by_opening_unless_autoexpand_is_on() {
    let world = World::without_journal(71);
    let (pool, mut life) = lived(&world, "opened larger", &[(Mirror, 2)], 40);
    let old = space(&pool);
    pool.export().unwrap();
    let larger = || {
        let new = World::without_journal(71);
        for disk in world.disks() {
            let _ = new.disk_with(300 * MIB, 512, disk.content());
        }
        new
    };
    let grown = larger();
    let _mark = mark::expect("end-labels-moved");
    let pool = sim::open(&grown).unwrap();
    assert_eq!(space(&pool), old);
    assert!(expandable(&pool) > 0);
    // All four labels are there, with the uberblocks from before.
    for disk in grown.disks() {
        assert!(read_labels(disk.as_ref()).iter().all(Result::is_ok));
    }
    life.steps(&pool, 10);
    autoexpand(&pool);
    pool.export().unwrap();
    judge(&grown, "opened larger");
    let pool = sim::open(&grown).unwrap();
    assert!(space(&pool) > old);
    assert_eq!(expandable(&pool), 0);
    life.steps(&pool, 10);
    pool.export().unwrap();
    let view = sim::read(&grown).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "opened larger");
    drop(view);
    judge(&grown, "grown when opened");
}

#[test]
fn replacing_all_disks_by_larger_ones_grows_with_autoexpand() {
    for is_on in [false, true] {
        let world = World::without_journal(72);
        let (pool, mut life) = lived(&world, "all replaced", &[(Raidz(1), 3)], 40);
        if is_on {
            autoexpand(&pool);
        }
        let old = space(&pool);
        for number in 0..3 {
            assert_eq!(space(&pool), old, "after {number}");
            let disk = world.disk(256 * MIB, 512);
            let leaf = of_disk(&pool, number);
            attach(&pool, leaf, &disk, AttachKind::Replacement).unwrap();
            complete(&pool);
            life.steps(&pool, 5);
        }
        assert_eq!(space(&pool) > old, is_on);
        assert_eq!(expandable(&pool) > 0, !is_on);
        pool.export().unwrap();
        for number in 0..3 {
            world.disks()[number].set_absent(true);
        }
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap();
        life.compare(&view, "all replaced");
    }
}

#[test]
fn a_side_that_is_away_forbids_growth_and_one_that_comes_back_larger_permits_it() {
    let world = World::without_journal(73);
    let (pool, mut life) = lived(&world, "away", &[(Mirror, 2)], 30);
    let old = space(&pool);
    let away = of_disk(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    resize(&world, [0, 1], 256);
    let leaf = of_disk(&pool, 0);
    assert_eq!(
        pool.inner()
            .grow_vdevs(Some(leaf), Growth::Ordered)
            .unwrap(),
        0
    );
    assert_eq!(space(&pool), old);
    life.steps(&pool, 5);
    online(&world, &pool, 1);
    pool.inner().start_resilver().unwrap();
    complete(&pool);
    assert!(
        pool.inner()
            .grow_vdevs(Some(away), Growth::Ordered)
            .unwrap()
            > 0
    );
    life.steps(&pool, 10);
    assert_eq!(scrub(&pool).errors, 0);
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    sim::verify(&view).unwrap();
    life.compare(&view, "away");
    drop(view);
    judge(&world, "away");
}

#[test]
fn a_disk_that_became_smaller_is_refused() {
    let world = World::without_journal(74);
    let (pool, _) = lived(&world, "smaller", &[(Mirror, 2)], 20);
    let (old, side) = (space(&pool), of_disk(&pool, 1));
    resize(&world, [1], 80);
    let error = pool.inner().grow_vdevs(Some(side), Growth::Ordered);
    let error = error.unwrap_err();
    assert!(matches!(error, GrowError::Device { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("has shrunk from 134217728 to 83886080 bytes")
    );
    // Its data is on the other side, so it is out of use.
    let condition = pool.inner().leaf_condition(side).unwrap();
    assert!(!condition.is_usable());
    assert_eq!(space(&pool), old);
    let unknown = pool.inner().grow_vdevs(Some(Guid(5)), Growth::Ordered);
    assert!(matches!(unknown, Err(GrowError::NoSuchLeaf)));
    // It does not come back either while it is too small.
    let small = World::without_journal(1);
    let small = small.disk_with(80 * MIB, 512, world.disks()[1].content());
    let device: Arc<dyn millpond_device::Device> = small;
    assert!(!pool.inner().reopen_leaf(side, &device).unwrap());
    pool.export().unwrap();
}

#[test]
fn a_disk_that_was_away_while_it_was_measured_is_found_again() {
    let world = World::without_journal(76);
    let (pool, mut life) = lived(&world, "measured", &[(Mirror, 2)], 20);
    let (side, disk) = (of_disk(&pool, 1), world.disks().swap_remove(1));
    disk.set_absent(true);
    let failed = pool.inner().grow_vdevs(Some(side), Growth::Ordered);
    assert!(matches!(failed, Err(GrowError::Device { .. })));
    assert!(!pool.inner().leaf_condition(side).unwrap().is_usable());
    life.steps(&pool, 10);
    disk.set_absent(false);
    let lost = pool.inner().lost_leaves(false);
    assert_eq!(
        lost.iter().map(|(guid, _)| *guid).collect::<Vec<_>>(),
        [side]
    );
    let device: Arc<dyn Device> = disk;
    assert!(pool.inner().reopen_leaf(side, &device).unwrap());
    assert!(pool.inner().lost_leaves(true).is_empty());
    // It also lacks the txg that is open when it comes back, which a resilver covers only from the next one on.
    pool.sync().unwrap();
    assert!(pool.inner().start_resilver().unwrap());
    complete(&pool);
    assert!(!pool.inner().needs_resilver());
    pool.export().unwrap();
}

fn write(pool: &Pool, number: u8, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(300_000));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    files.insert(name, bytes);
}

/// Grows between two writes; the power fails at every point.
fn cut_at_every_place(shape: &str, top: (NewLayout, usize)) {
    let world = World::new(75);
    let pool = sim::create(&world, &[top], 64);
    let mut files = Files::new();
    write(&pool, 0, &mut files);
    pool.sync().unwrap();
    let old = space(&pool);
    resize(&world, 0..top.1, 128);
    world.forget();
    let mut states = vec![(0, old, files.clone())];
    let leaf = of_disk(&pool, 0);
    let added = pool
        .inner()
        .grow_vdevs(Some(leaf), Growth::Ordered)
        .unwrap();
    assert!(added > 0);
    states.push((world.recorded(), old + added, files.clone()));
    write(&pool, 1, &mut files);
    pool.sync().unwrap();
    states.push((world.recorded(), old + added, files.clone()));
    drop(pool);
    let mut judged = 0;
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        if is_all() && !state.tried.is_multiple_of(7) {
            return;
        }
        // No disk ever has less than the two labels at its start, or one of them being written.
        for disk in after.disks() {
            let valid = read_labels(disk.as_ref()).into_iter().flatten();
            let valid = valid.filter(|label| label.is_verified).count();
            assert!(valid >= 2, "{what}: {valid} labels");
        }
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let size = space(&pool);
        let least = states.iter().rposition(|(at, ..)| *at <= state.count);
        let mut matching = states.iter().skip(least.unwrap());
        let is_known = matching.any(|(_, space, files)| (*space, files) == (size, &found));
        assert!(is_known, "{what}: a promise is broken, size {size}");
        // What was begun is finished.
        let leaf = of_disk(&pool, 0);
        pool.inner()
            .grow_vdevs(Some(leaf), Growth::Ordered)
            .unwrap();
        assert_eq!(space(&pool), old + added, "{what}");
        let mut wanted = found;
        write(&pool, 9, &mut wanted);
        pool.export().unwrap();
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&read).unwrap(), wanted, "{what}, gone on");
        sim::verify(&read).unwrap_or_else(|found| panic!("{what}: {found}"));
        drop(read);
        if state.tried.is_multiple_of(if is_all() { 150 } else { 8 }) {
            judge(after, what);
            judged += 1;
        }
    };
    let tried = each_state(shape, &world, &mut Seed::new(76), &mut visit);
    println!("{shape}: {judged} judged by zdb");
    assert!(tried > 10, "{shape}: {tried} states prove nothing");
}

#[test]
fn growth_of_a_disk_survives_every_crash() {
    cut_at_every_place("grow, single", (Single, 1));
}

#[test]
fn growth_of_a_mirror_survives_every_crash() {
    cut_at_every_place("grow, mirror", (Mirror, 2));
}

#[test]
fn growth_of_a_raidz_survives_every_crash() {
    cut_at_every_place("grow, raidz1", (Raidz(1), 3));
}
