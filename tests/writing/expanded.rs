//! Pools whose RAID-Z was expanded by OpenZFS: blocks of the old width and of the new one are read, freed and repaired,
//! new ones are written in the new width, and children are resilvered and replaced.

use crate::exhaustive::{State, each_state};
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    AttachKind, Caller, NewDevice, NewMode, NewVdevOptions, Pool, ScrubRange, View, WriteAt,
};
use millpond_pool::Offline;
use millpond_sim::{Seed, World};
use millpond_tests::oracle::zdb;
use millpond_tests::workload::manifest;
use millpond_tests::{images, leaves, record};

/// Made by OpenZFS: RAID-Z1 of 3 disks, expanded to 4.
const CASE: &str = "expanded";
const POOL: &str = "pexpanded";
const OURS: &[u8] = b"ours";

/// Puts the disks of a case into the world; false if only the large set has it.
pub(crate) fn with_case(world: &World, case: &str) -> bool {
    let folder = images::golden_set().unwrap().folder.join(case);
    if !folder.is_dir() {
        println!("{case}: passed over, only the large set has the case");
        return false;
    }
    for image in &record::load(&folder).unwrap().images {
        let name = image.file.trim_end_matches(".zst");
        let bytes = images::read_file(&folder, name).unwrap();
        assert_eq!(bytes.len() as u64, image.size_bytes);
        let disk = world.disk(image.size_bytes, 512);
        for (at, page) in (0u64..).step_by(1 << 16).zip(bytes.chunks(1 << 16)) {
            if page.iter().any(|byte| *byte != 0) {
                disk.write(at, page).unwrap();
            }
        }
        disk.flush().unwrap();
    }
    world.forget();
    true
}

/// What the pool holds, without what this file writes.
fn old_lines(view: &View) -> Vec<String> {
    let mut lines = manifest(view).unwrap();
    let ours = String::from_utf8_lossy(OURS).into_owned();
    // The root directory changes with what is in it.
    let is_root = |line: &str| line.starts_with(&format!("{POOL}\t")) && line.ends_with("\t.");
    lines.retain(|line| !line.contains(&ours) && !is_root(line));
    assert!(lines.len() > 20, "{} lines prove little", lines.len());
    lines
}

fn same(old: &[String], new: &[String], what: &str) {
    let differ = millpond_tests::oracle::kernel::only_one_has(old.to_vec(), new.to_vec());
    assert!(differ.is_empty(), "{what}:\n  {}", differ.join("\n  "));
}

/// Writes files of many sizes, over those of an earlier call.
fn write(pool: &Pool, round: u8) {
    let files = pool.file_system(POOL).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let at = match root.lookup(OURS) {
        Ok(at) => at,
        Err(_) => {
            let mode = NewMode::exactly(0o700);
            files.make_directory(&caller, &root, OURS, mode).unwrap()
        }
    };
    for number in 0..24usize {
        let name = format!("f{number}").into_bytes();
        let mode = NewMode::exactly(0o600);
        let (node, _) = files.create(&caller, &at, &name, mode, false).unwrap();
        let noise: Vec<u8> = (0..1u32 << (number / 2 + 6))
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8 ^ round ^ number as u8)
            .collect();
        let start = WriteAt::Offset(number as u64 * 100);
        files.write(&caller, &node, start, &noise).unwrap();
    }
    drop((at, root, files));
    pool.sync().unwrap();
}

/// Every block, copy and parity is right, and so says `zdb`.
fn is_sound(world: &World, old: &[String], what: &str) {
    let view = sim::read(world).unwrap();
    sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
    let faults = millpond_tests::recount::faults_of(view.inner());
    assert!(faults.is_empty(), "{what}: {}", faults.join("\n"));
    same(old, &old_lines(&view), what);
    drop(view);
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    zdb::judge(folder.path(), POOL).unwrap().require(what);
}

#[test]
fn blocks_of_both_widths_are_written_freed_and_scrubbed() {
    let world = World::without_journal(331);
    if !with_case(&world, CASE) {
        return;
    }
    let old = old_lines(&sim::read(&world).unwrap());
    let pool = sim::open(&world).unwrap();
    write(&pool, 1);
    // The second time frees blocks of the first.
    write(&pool, 2);
    pool.export().unwrap();
    is_sound(&world, &old, "written");
    // Each disk in turn has wrong sectors in a part of it.
    for (number, disk) in world.disks().iter().enumerate() {
        let mut seed = Seed::new(40 + number as u64);
        let pages: Vec<u64> = disk.content().pages().map(|(offset, _)| offset).collect();
        let data = (4 << 20)..disk.size_bytes() - (512 << 10);
        let mut count = 0;
        for offset in pages.into_iter().filter(|offset| data.contains(offset)) {
            if seed.happens(200_000) {
                disk.rot(offset, &seed.bytes(512));
                count += 1;
            }
        }
        assert!(count > 20, "disk {number}: {count}");
        let pool = sim::open(&world).unwrap();
        pool.inner().start_scrub(ScrubRange::All).unwrap();
        crate::scan::finish(&pool);
        let state = crate::scan::state(&pool);
        assert_eq!(state.errors, 0, "disk {number}");
        assert!(state.processed_bytes > 0, "disk {number}");
        write(&pool, 3 + number as u8);
        pool.export().unwrap();
        is_sound(&world, &old, &format!("disk {number} scrubbed"));
    }
}

#[test]
fn children_are_resilvered_and_replaced() {
    let world = World::without_journal(332);
    if !with_case(&world, CASE) {
        return;
    }
    let old = old_lines(&sim::read(&world).unwrap());
    let pool = sim::open(&world).unwrap();
    for number in 0..4 {
        let leaf = leaves::all(&pool)[number];
        let how = Offline {
            is_fault: false,
            is_temporary: false,
        };
        pool.inner().offline_leaf(leaf, how).unwrap();
        write(&pool, number as u8);
        crate::scan::online(&world, &pool, number);
        pool.inner().start_resilver().unwrap();
        crate::scan::finish(&pool);
        assert!(!pool.inner().needs_resilver(), "child {number}");
    }
    let replaced = leaves::all(&pool)[1];
    let disk = world.disk(world.disks()[0].size_bytes(), 512);
    let device = NewDevice::file("/sim/d4.img", disk);
    let options = NewVdevOptions {
        ashift: None,
        force: true,
    };
    let kind = AttachKind::Replacement;
    let attached = pool
        .inner()
        .attach_leaf(replaced, &device, kind, options, &|_| false);
    attached.unwrap();
    write(&pool, 9);
    crate::scan::finish(&pool);
    assert_eq!(pool.inner().finish_replacements().unwrap(), 1);
    write(&pool, 10);
    pool.export().unwrap();
    is_sound(&world, &old, "replaced");
    // The new child holds its part: each of the others can be absent.
    for number in [0, 2, 3] {
        world.disks()[number].set_absent(true);
        let view = sim::read(&world).unwrap();
        same(&old, &old_lines(&view), &format!("without child {number}"));
        world.disks()[number].set_absent(false);
    }
}

#[test]
fn power_cuts_lose_nothing_of_either_width() {
    let world = World::new(333);
    if !with_case(&world, CASE) {
        return;
    }
    let pool = sim::open(&world).unwrap();
    write(&pool, 1);
    world.forget();
    write(&pool, 2);
    drop(pool);
    let old = old_lines(&sim::read(&world).unwrap());
    let mut seed = Seed::new(34);
    let tried = each_state("expanded", &world, &mut seed, &mut |state| {
        let State { after, what, .. } = state;
        let view = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        sim::verify_blocks(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
        let faults = millpond_tests::recount::faults_after_a_cut(&view);
        assert!(faults.is_empty(), "{what}: {}", faults.join("\n"));
        same(&old, &old_lines(&view), what);
    });
    assert!(tried > 10, "{tried} states prove nothing");
}
