//! Attach, detach and replace: data stays whole, and every crash leaves the pool before or after.

use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::scan::{finish, lived, online, scrub, state};
use crate::sim;
use millpond_engine::{
    AttachError, AttachKind, Caller, NewDevice,
    NewLayout::{self, Mirror, Raidz, Single},
    NewMode, NewVdevOptions, Pool, View, WriteAt,
};
use millpond_env::mark;
use millpond_ondisk::{Guid, ScanPhase};
use millpond_sim::{PowerCut, Seed, SimDisk, World};
use millpond_vdev::{VdevConfig, VdevType};
use std::sync::Arc;

const MIRROR: (NewLayout, usize) = (Mirror, 2);

pub fn new_device(disk: &Arc<SimDisk>) -> NewDevice {
    NewDevice::file(
        &format!("/sim/d{}.img", disk.number()),
        Arc::clone(disk) as _,
    )
}

pub(crate) fn leaf_at(pool: &Pool, path: &str) -> Guid {
    let topology = pool.inner().store().topology();
    let mut leaves = topology.tree.leaves();
    let found = leaves.find(|(_, node)| node.config.path.as_deref() == Some(path));
    found
        .unwrap_or_else(|| panic!("no leaf {path}"))
        .1
        .config
        .guid
}

pub(crate) fn of_disk(pool: &Pool, number: usize) -> Guid {
    leaf_at(pool, &format!("/sim/d{number}.img"))
}

pub(crate) fn attach(
    pool: &Pool,
    old: Guid,
    disk: &Arc<SimDisk>,
    kind: AttachKind,
) -> Result<Guid, AttachError> {
    let options = NewVdevOptions::default();
    let device = new_device(disk);
    pool.inner()
        .attach_leaf(old, &device, kind, options, &|_| false)
}

/// Resilvers to the end and finishes replacements.
pub(crate) fn complete(pool: &Pool) {
    finish(pool);
    let state = state(pool);
    assert_eq!((state.phase, state.errors), (ScanPhase::Finished, 0));
    assert!(!pool.inner().needs_resilver());
    pool.inner().finish_replacements().unwrap();
}

pub(crate) fn tops(pool: &Pool) -> Vec<VdevConfig> {
    pool.inner().config().root.children
}

pub(crate) fn kinds(vdev: &VdevConfig) -> Vec<VdevType> {
    vdev.children.iter().map(|child| child.kind).collect()
}

pub(crate) fn is_sound(view: &View, what: &str) {
    sim::verify(view).unwrap_or_else(|found| panic!("{what}: {found}"));
}

#[test]
fn a_disk_becomes_a_mirror_and_either_side_may_go() {
    for stays in [0, 1] {
        let world = World::without_journal(60);
        let (pool, mut life) = lived(&world, "attached", &[(Single, 1), (Single, 1)], 100);
        let disk = world.disk(128 << 20, 512);
        attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Mirror).unwrap();
        assert_eq!(tops(&pool)[0].kind, VdevType::Mirror);
        life.steps(&pool, 10);
        let early = pool.inner().detach_leaf(of_disk(&pool, 0)).unwrap_err();
        assert_eq!(early.to_string(), "no valid replicas");
        complete(&pool);
        life.steps(&pool, 10);
        pool.sync().unwrap();
        let (stays, goes) = match stays {
            0 => (0, 2),
            _ => (2, 0),
        };
        pool.inner().detach_leaf(of_disk(&pool, goes)).unwrap();
        assert_eq!(tops(&pool)[0].path, Some(format!("/sim/d{stays}.img")));
        life.steps(&pool, 10);
        scrub(&pool);
        pool.export().unwrap();
        world.disks()[goes].set_absent(true);
        let view = sim::read(&world).unwrap();
        is_sound(&view, "detached");
        life.compare(&view, "detached");
        drop(view);
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 10);
        pool.export().unwrap();
        // The detached disk belongs to nothing.
        world.disks()[goes].set_absent(false);
        let view = sim::read(&world).unwrap();
        is_sound(&view, "detached disk back");
        life.compare(&view, "detached disk back");
        judge(&world, "a disk that was a mirror");
    }
}

#[test]
fn a_leaf_is_replaced_in_every_kind_of_vdev_alive_or_dead() {
    let _mark = mark::expect("replacement-finished");
    for (shape, top) in [
        ("single replaced", (Single, 1)),
        ("mirror replaced", MIRROR),
        ("raidz1 replaced", (Raidz(1), 3)),
        ("raidz2 replaced", (Raidz(2), 5)),
        ("raidz3 replaced", (Raidz(3), 6)),
    ] {
        for is_dead in [false, true] {
            if is_dead && top.1 == 1 {
                continue;
            }
            let world = World::without_journal(61);
            let (pool, mut life) = lived(&world, shape, &[top], 100);
            if is_dead {
                world.disks()[0].set_absent(true);
                life.steps(&pool, 10);
                pool.sync().unwrap();
                pool.inner().check_leaves();
            }
            let disk = world.disk(128 << 20, 512);
            attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Replacement).unwrap();
            life.steps(&pool, 10);
            complete(&pool);
            life.steps(&pool, 10);
            pool.sync().unwrap();
            let new = format!("/sim/d{}.img", disk.number());
            let vdevs = tops(&pool);
            match top.1 {
                1 => assert_eq!(vdevs[0].path.as_ref(), Some(&new), "{shape}"),
                _ => {
                    assert!(
                        kinds(&vdevs[0]).iter().all(|kind| kind.is_leaf()),
                        "{shape}"
                    );
                    assert_eq!(vdevs[0].children[0].path.as_ref(), Some(&new), "{shape}");
                }
            }
            scrub(&pool);
            pool.export().unwrap();
            world.disks()[0].set_absent(true);
            let view = sim::read(&world).unwrap();
            is_sound(&view, shape);
            life.compare(&view, shape);
            drop(view);
            let pool = sim::open(&world).unwrap();
            life.steps(&pool, 10);
            pool.export().unwrap();
            judge(&world, shape);
        }
    }
}

#[test]
fn a_replacement_can_be_given_up_and_continues_after_import() {
    let world = World::without_journal(62);
    let (pool, mut life) = lived(&world, "given up", &[(Raidz(1), 4)], 80);
    let disk = world.disk(128 << 20, 512);
    let old = of_disk(&pool, 2);
    attach(&pool, old, &disk, AttachKind::Replacement).unwrap();
    let before = attach(&pool, old, &disk, AttachKind::Replacement).unwrap_err();
    assert!(matches!(
        before,
        AttachError::Device(_) | AttachError::Attach(_)
    ));
    life.steps(&pool, 5);
    pool.inner()
        .detach_leaf(of_disk(&pool, disk.number()))
        .unwrap();
    assert!(kinds(&tops(&pool)[0]).iter().all(|kind| kind.is_leaf()));
    finish(&pool);
    assert!(!pool.inner().needs_resilver());
    // Again, with an export in the middle.
    attach(&pool, old, &disk, AttachKind::Replacement).unwrap();
    crate::scan::scanner().slice(pool.inner()).unwrap();
    life.steps(&pool, 5);
    pool.export().unwrap();
    judge(&world, "a replacement under way");
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().needs_resilver());
    life.steps(&pool, 5);
    complete(&pool);
    pool.export().unwrap();
    let view = sim::read(&world).unwrap();
    is_sound(&view, "given up");
    life.compare(&view, "given up");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let world = World::without_journal(63);
    let (pool, _) = lived(&world, "refused", &[(Raidz(1), 3), MIRROR], 20);
    let before = tops(&pool);
    let refused =
        |old, disk: &Arc<SimDisk>, kind| attach(&pool, old, disk, kind).unwrap_err().to_string();
    let small = world.disk(100 << 20, 512);
    let large_sectors = world.disk(256 << 20, 4096);
    let fit = world.disk(128 << 20, 512);
    let (column, side) = (of_disk(&pool, 0), of_disk(&pool, 3));
    let text = "can only attach to mirrors and top-level disks";
    assert_eq!(refused(column, &fit, AttachKind::Mirror), text);
    assert_eq!(
        refused(side, &small, AttachKind::Mirror),
        "device is too small"
    );
    assert!(refused(side, &large_sectors, AttachKind::Replacement).contains("sector size"));
    assert_eq!(
        refused(Guid(5), &fit, AttachKind::Mirror),
        "no such device in pool"
    );
    let own = world.disks()[1].clone();
    assert!(refused(side, &own, AttachKind::Mirror).contains("in use"));
    let detached = pool.inner().detach_leaf(column).unwrap_err().to_string();
    assert_eq!(detached, "only applicable to mirror and replacing vdevs");
    assert_eq!(tops(&pool), before);
    // The last complete side of a mirror stays.
    let away = of_disk(&pool, 4);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    let required = pool.inner().detach_leaf(side).unwrap_err().to_string();
    assert_eq!(required, "no valid replicas");
    online(&world, &pool, 4);
    pool.export().unwrap();
}

fn write(pool: &Pool, number: u8, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(9000));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    files.insert(name, bytes);
}

pub(crate) fn add_spare(pool: &Pool, disk: &Arc<SimDisk>) {
    let new = millpond_engine::NewVdevs {
        spares: vec![new_device(disk)],
        ..Default::default()
    };
    let options = NewVdevOptions::default();
    pool.inner().add_vdevs(&new, options, &|_| false).unwrap();
}

/// Attaches or replaces while files are written, resilvers and detaches; the power fails at every point.
pub(crate) fn cut_at_every_place(shape: &str, top: (NewLayout, usize), kind: AttachKind) {
    let prepare = |world: &World, pool: &Pool| {
        let disk = world.disk(64 << 20, 512);
        if kind == AttachKind::Spare {
            add_spare(pool, &disk);
        }
    };
    let begin = |world: &World, pool: &Pool| {
        let disks = world.disks();
        attach(pool, of_disk(pool, 0), disks.last().unwrap(), kind).unwrap();
    };
    let end = |pool: &Pool| match kind {
        AttachKind::Mirror | AttachKind::Spare => {
            pool.inner().detach_leaf(of_disk(pool, 0)).unwrap();
        }
        AttachKind::Replacement => assert_eq!(pool.inner().finish_replacements().unwrap(), 1),
    };
    cut_everywhere(shape, top, prepare, begin, end);
}

/// As [`cut_at_every_place`], with any way to attach and to end.
pub(crate) fn cut_everywhere(
    shape: &str,
    top: (NewLayout, usize),
    prepare: impl FnOnce(&World, &Pool),
    begin: impl FnOnce(&World, &Pool),
    end: impl FnOnce(&Pool),
) {
    let world = World::new(64);
    let pool = sim::create(&world, &[top], 64);
    prepare(&world, &pool);
    let mut files = Files::new();
    write(&pool, 0, &mut files);
    pool.sync().unwrap();
    world.forget();
    let mut states = vec![(0, files.clone())];
    let mut promised = |pool: &Pool, files: &Files| {
        pool.sync().unwrap();
        states.push((world.recorded(), files.clone()));
    };
    begin(&world, &pool);
    write(&pool, 1, &mut files);
    promised(&pool, &files);
    finish(&pool);
    write(&pool, 2, &mut files);
    promised(&pool, &files);
    end(&pool);
    write(&pool, 3, &mut files);
    promised(&pool, &files);
    drop(pool);
    let mut judged = 0;
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        if is_all() && !state.tried.is_multiple_of(7) {
            return;
        }
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let least = states.iter().rposition(|(at, _)| *at <= state.count);
        let mut matching = states.iter().skip(least.unwrap());
        let is_known = matching.any(|(_, state)| {
            // A file that was not promised yet may be there too.
            found
                .iter()
                .all(|(name, bytes)| files.get(name) == Some(bytes))
                && state
                    .iter()
                    .all(|(name, bytes)| found.get(name) == Some(bytes))
        });
        assert!(is_known, "{what}: a promise is broken");
        // What was begun is finished.
        while pool.inner().needs_resilver() {
            pool.inner().start_resilver().unwrap();
            finish(&pool);
        }
        finish(&pool);
        pool.inner().finish_replacements().unwrap();
        let mut wanted = found;
        write(&pool, 9, &mut wanted);
        pool.export().unwrap();
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&read).unwrap(), wanted, "{what}, gone on");
        is_sound(&read, what);
        drop(read);
        if state.tried.is_multiple_of(if is_all() { 150 } else { 20 }) {
            judge(after, what);
            judged += 1;
        }
    };
    each_state(shape, &world, &mut Seed::new(65), &mut visit);
    println!("{shape}: {judged} judged by zdb");
}

#[test]
fn attach_and_detach_survive_every_crash() {
    cut_at_every_place("attach", (Single, 1), AttachKind::Mirror);
}

#[test]
fn replacing_a_side_of_a_mirror_survives_every_crash() {
    cut_at_every_place("replace, mirror", MIRROR, AttachKind::Replacement);
}

#[test]
fn replacing_a_column_of_raidz_survives_every_crash() {
    cut_at_every_place("replace, raidz", (Raidz(1), 3), AttachKind::Replacement);
}

/// The power fails after a disk was attached, while a resilver of another disk is in the middle. That resilver does not
/// write what it has already visited to the new disk.
#[test]
fn a_disk_attached_during_a_resilver_is_resilvered_from_the_beginning() {
    let world = World::new(91);
    let pool = sim::create(&world, &[MIRROR], 64);
    crate::scan::fill(&pool, "tank", "a", 60);
    pool.sync().unwrap();
    let behind = of_disk(&pool, 1);
    pool.inner()
        .offline_leaf(behind, Default::default())
        .unwrap();
    crate::scan::fill(&pool, "tank", "b", 160);
    pool.sync().unwrap();
    online(&world, &pool, 1);
    assert!(pool.inner().start_resilver().unwrap());
    for _ in 0..2 {
        assert!(crate::scan::scanner().slice(pool.inner()).unwrap());
    }
    assert_eq!(state(&pool).phase, ScanPhase::Scanning);
    let disk = world.disk(64 << 20, 512);
    let before = world.recorded();
    attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Mirror).unwrap();
    let after = world.recorded();
    drop(pool);
    let mut attached = 0;
    for count in (before..=after).step_by(7) {
        let world = world.reborn(count, &PowerCut::EverythingWritten);
        let pool = sim::open(&world).unwrap();
        attached += usize::from(kinds(&tops(&pool)[0]).len() == 3);
        finish(&pool);
        while pool.inner().needs_resilver() {
            pool.inner().start_resilver().unwrap();
            finish(&pool);
        }
        pool.export().unwrap();
        is_sound(
            &sim::read(&world).unwrap(),
            &format!("after {count} requests"),
        );
    }
    assert!(attached > 3, "{attached}");
}
