//! Sequential resilvers: data stays whole while disks are copied, and every crash leaves the pool before or after.

use crate::attach::{kinds, new_device, of_disk, tops};
use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::scan::{finish, lived, scrub};
use crate::sim;
use millpond_engine::{
    AllocationClass::Normal,
    AttachError, AttachKind, Caller,
    NewLayout::{self, Mirror, Raidz, Single},
    NewMode, NewPool, NewTop, NewVdevOptions, NewVdevs, Pool, RebuildLimits, ResilverKind, WriteAt,
    WriteOptions,
};
use millpond_env::mark;
use millpond_ondisk::{Guid, RebuildPhase, RebuildPhys, ScanPhase};
use millpond_sim::{Fault, FaultPlan, Scope, Seed, SimDisk, World};
use millpond_tests::workload::Life;
use millpond_vdev::VdevType;
use std::sync::Arc;

const TWO: (NewLayout, usize) = (Mirror, 2);
const THREE: (NewLayout, usize) = (Mirror, 3);
pub(crate) const REBUILD: &str = "org.openzfs:device_rebuild";

pub(crate) fn attach(
    pool: &Pool,
    old: Guid,
    disk: &Arc<SimDisk>,
    kind: AttachKind,
) -> Result<Guid, AttachError> {
    let (options, device) = (NewVdevOptions::default(), new_device(disk));
    let how = ResilverKind::Sequential;
    pool.inner()
        .attach_leaf_as(how, old, &device, kind, options, &|_| false)
}

/// Slices that are small, so that a rebuild needs many.
pub(crate) fn limits() -> RebuildLimits {
    RebuildLimits {
        bytes: 64 << 10,
        slice_ns: u64::MAX / 2,
        threads: 1,
    }
}

pub(crate) fn slice(pool: &Pool) -> bool {
    pool.inner().rebuild_slice(&limits()).unwrap()
}

pub(crate) fn rebuild(pool: &Pool) -> RebuildPhys {
    pool.inner().rebuilds()[0].1
}

/// Rebuilds to the end, with something else between slices.
pub(crate) fn finish_with(pool: &Pool, mut between: impl FnMut(&Pool)) -> Option<RebuildPhys> {
    let mut slices = 0;
    while pool.inner().is_rebuilding() {
        assert!(slice(pool));
        between(pool);
        slices += 1;
        assert!(slices < 10_000, "a rebuild without an end");
    }
    let first = pool.inner().rebuilds().into_iter().next();
    first.map(|(_, state, _)| state)
}

pub(crate) fn is_complete(pool: &Pool) {
    let state = finish_with(pool, |_| ()).unwrap();
    assert_eq!((state.phase, state.errors), (RebuildPhase::Complete, 0));
    assert!(!pool.inner().needs_resilver());
    assert!(pool.inner().take_scrub_due());
    assert_eq!(pool.inner().features().count(REBUILD), Some(0));
    pool.inner().finish_replacements().unwrap();
}

/// A scrub has nothing to repair.
pub(crate) fn is_same_everywhere(pool: &Pool) {
    let scan = scrub(pool);
    assert_eq!((scan.processed_bytes, scan.errors), (0, 0));
}

/// Opens the pool with this disk only, out of those of the one mirror.
fn each_alone(world: &World, disks: &[usize], look: &dyn Fn(&str)) {
    for stays in disks {
        for goes in disks.iter().filter(|goes| *goes != stays) {
            world.disks()[*goes].set_absent(true);
        }
        look(&format!("disk {stays} alone"));
        for disk in disks {
            world.disks()[*disk].set_absent(false);
        }
    }
}

#[test]
fn disks_are_attached_and_replaced_while_the_pool_is_used() {
    let _mark = mark::expect("rebuild-ends");
    for (shape, top, kind) in [
        ("single attached", (Single, 1), AttachKind::Mirror),
        ("mirror attached", TWO, AttachKind::Mirror),
        ("single replaced", (Single, 1), AttachKind::Replacement),
        ("mirror replaced", TWO, AttachKind::Replacement),
        ("three replaced", THREE, AttachKind::Replacement),
    ] {
        let world = World::without_journal(160);
        let (pool, mut life) = lived(&world, shape, &[top], 100);
        let disk = world.disk(128 << 20, 512);
        let new = attach(&pool, of_disk(&pool, 0), &disk, kind).unwrap();
        assert_eq!(pool.inner().features().count(REBUILD), Some(1));
        assert_eq!(rebuild(&pool).phase, RebuildPhase::Active);
        if top.1 == 1 {
            let early = pool.inner().detach_leaf(of_disk(&pool, 0)).unwrap_err();
            assert_eq!(early.to_string(), "no valid replicas");
        }
        let mut slices = 0;
        let state = finish_with(&pool, |pool| {
            life.steps(pool, 1);
            slices += 1;
        });
        let state = state.unwrap();
        assert!(slices >= 5, "{slices} slices");
        assert_eq!((state.phase, state.errors), (RebuildPhase::Complete, 0));
        assert!(state.issued_bytes >= state.estimated_bytes / 2, "{state:?}");
        assert!(pool.inner().leaf_condition(new).is_some());
        is_complete(&pool);
        life.steps(&pool, 10);
        pool.sync().unwrap();
        is_same_everywhere(&pool);
        pool.export().unwrap();
        let all: Vec<usize> = match kind {
            AttachKind::Mirror => (0..=top.1).collect(),
            _ => (1..=top.1).collect(),
        };
        each_alone(&world, &all, &|what| {
            let view = sim::read(&world).unwrap();
            sim::verify(&view).unwrap_or_else(|found| panic!("{shape}, {what}: {found}"));
            life.compare(&view, shape);
        });
        let pool = sim::open(&world).unwrap();
        life.steps(&pool, 10);
        pool.export().unwrap();
        judge(&world, shape);
    }
}

#[test]
fn a_rebuild_continues_after_an_import_and_can_be_given_up() {
    let world = World::without_journal(161);
    let (pool, mut life) = lived(&world, "rebuild imported", &[TWO], 100);
    let disk = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Mirror).unwrap();
    for _ in 0..4 {
        assert!(slice(&pool));
        life.steps(&pool, 5);
    }
    let before = rebuild(&pool);
    assert!(before.last_offset > 0);
    pool.export().unwrap();
    judge(&world, "a rebuild under way");
    let pool = sim::open(&world).unwrap();
    assert_eq!(rebuild(&pool), before);
    assert!(!pool.inner().start_resilver().unwrap());
    life.steps(&pool, 5);
    is_complete(&pool);
    is_same_everywhere(&pool);
    // Another one is given up.
    let other = world.disk(128 << 20, 512);
    let old = of_disk(&pool, 1);
    attach(&pool, old, &other, AttachKind::Replacement).unwrap();
    assert!(slice(&pool));
    life.steps(&pool, 5);
    let number = other.number();
    pool.inner().detach_leaf(of_disk(&pool, number)).unwrap();
    assert_eq!(rebuild(&pool).phase, RebuildPhase::Canceled);
    assert_eq!(pool.inner().features().count(REBUILD), Some(0));
    assert!(!slice(&pool) && !pool.inner().needs_resilver());
    pool.export().unwrap();
    judge(&world, "a rebuild given up");
    let view = sim::read(&world).unwrap();
    life.compare(&view, "rebuild imported");
}

#[test]
fn another_new_side_starts_the_rebuild_again() {
    let world = World::without_journal(162);
    let (pool, mut life) = lived(&world, "rebuild reset", &[(Single, 1), TWO], 100);
    let disks: Vec<_> = (0..3).map(|_| world.disk(128 << 20, 512)).collect();
    attach(&pool, of_disk(&pool, 0), &disks[0], AttachKind::Mirror).unwrap();
    for _ in 0..3 {
        assert!(slice(&pool));
    }
    assert!(rebuild(&pool).last_offset > 0);
    attach(&pool, of_disk(&pool, 0), &disks[1], AttachKind::Mirror).unwrap();
    assert_eq!(rebuild(&pool).last_offset, 0);
    assert_eq!(pool.inner().features().count(REBUILD), Some(1));
    // One of another vdev continues beside it.
    let old = of_disk(&pool, 1);
    attach(&pool, old, &disks[2], AttachKind::Replacement).unwrap();
    assert_eq!(pool.inner().features().count(REBUILD), Some(2));
    life.steps(&pool, 10);
    is_complete(&pool);
    is_same_everywhere(&pool);
    assert_eq!(tops(&pool)[0].children.len(), 3);
    pool.export().unwrap();
    each_alone(&world, &[0, 3, 4], &|what| {
        let view = sim::read(&world).unwrap();
        sim::verify(&view).unwrap_or_else(|found| panic!("{what}: {found}"));
        life.compare(&view, what);
    });
    judge(&world, "two rebuilds");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let world = World::without_journal(163);
    let (pool, _) = lived(&world, "rebuild refused", &[TWO, (Raidz(1), 3)], 40);
    let disks: Vec<_> = (0..3).map(|_| world.disk(128 << 20, 512)).collect();
    let text = |result: Result<Guid, AttachError>| result.unwrap_err().to_string();
    let (side, column) = (of_disk(&pool, 0), of_disk(&pool, 2));
    let refused = text(attach(&pool, column, &disks[0], AttachKind::Replacement));
    let only_mirrors = "only mirror and dRAID vdevs support sequential reconstruction";
    assert_eq!(refused, only_mirrors);
    attach(&pool, side, &disks[0], AttachKind::Mirror).unwrap();
    let rebuilding = "currently sequentially resilvering";
    let healing = crate::attach::attach(&pool, side, &disks[1], AttachKind::Mirror);
    assert_eq!(text(healing), rebuilding);
    let inner = pool.inner();
    let scrub = inner.start_scrub(Default::default()).unwrap_err();
    assert_eq!(scrub.to_string(), rebuilding);
    let resilver = inner.restart_resilver().unwrap_err();
    assert_eq!(resilver.to_string(), rebuilding);
    is_complete(&pool);
    crate::attach::attach(&pool, side, &disks[1], AttachKind::Mirror).unwrap();
    let refused = text(attach(&pool, side, &disks[2], AttachKind::Mirror));
    assert_eq!(refused, "currently resilvering");
    finish(&pool);
    // A scrub gives way.
    pool.inner().start_scrub(Default::default()).unwrap();
    attach(&pool, side, &disks[2], AttachKind::Mirror).unwrap();
    let scan = pool.inner().scan().unwrap().0;
    assert_eq!(scan.phase, ScanPhase::Cancelled);
    is_complete(&pool);
    pool.export().unwrap();
    judge(&world, "refused");
}

/// Fails all requests of a kind behind the labels.
pub(crate) fn fail(disk: &SimDisk, scope: Scope, per_million: u32) {
    let plan = FaultPlan::new(Seed::new(9)).with(scope, Fault::Fail, per_million);
    disk.set_faults(Some(plan.sparing(4 << 20)));
}

/// Looks at the pool with each set of disks that must be enough.
pub(crate) type EachSet = fn(&World, &[usize], &dyn Fn(&str));

/// A healing resilver does what a rebuild could not.
pub(crate) fn is_healed(
    world: &World,
    pool: Pool,
    life: &Life,
    (each_set, disks): (EachSet, &[usize]),
    shape: &str,
) {
    assert!(pool.inner().needs_resilver(), "{shape}");
    assert_eq!(pool.inner().features().count(REBUILD), Some(0));
    while pool.inner().needs_resilver() {
        assert!(pool.inner().start_resilver().unwrap());
        finish(&pool);
    }
    pool.inner().finish_replacements().unwrap();
    assert!(!pool.inner().take_scrub_due());
    is_same_everywhere(&pool);
    // Its result is that of the resilver now.
    assert!(pool.inner().rebuilds().is_empty());
    pool.export().unwrap();
    each_set(world, disks, &|what| {
        let view = sim::read(world).unwrap();
        sim::verify(&view).unwrap_or_else(|found| panic!("{shape}, {what}: {found}"));
        life.compare(&view, shape);
    });
    judge(world, shape);
}

/// Without a complete side nothing is copied: blocks are resilvered one by one.
#[test]
fn without_a_complete_side_it_is_a_healing_resilver() {
    let world = World::without_journal(164);
    let (pool, mut life) = lived(&world, "no source", &[TWO], 60);
    for number in [0, 1] {
        fail(&world.disks()[number], Scope::Writes, 200_000);
        life.steps(&pool, 10);
        pool.sync().unwrap();
        world.disks()[number].set_faults(None);
    }
    let disk = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Mirror).unwrap();
    assert!(!pool.inner().is_rebuilding() && pool.inner().rebuilds().is_empty());
    finish(&pool);
    assert!(!pool.inner().needs_resilver());
    is_same_everywhere(&pool);
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), "no source");
    judge(&world, "no source");
}

#[test]
fn another_source_is_read_if_one_fails() {
    let world = World::without_journal(167);
    let (pool, mut life) = lived(&world, "sources", &[THREE], 100);
    let disk = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 2), &disk, AttachKind::Replacement).unwrap();
    // The one that is replaced is asked first.
    fail(&world.disks()[2], Scope::Reads, 500_000);
    finish_with(&pool, |pool| life.steps(pool, 2));
    assert!(world.disks()[2].broken_promises() > 0);
    world.disks()[2].set_faults(None);
    is_complete(&pool);
    is_same_everywhere(&pool);
    pool.export().unwrap();
    judge(&world, "sources");
}

#[test]
fn after_errors_a_healing_resilver_follows() {
    let _mark = mark::expect("rebuild-falls-back");
    for (shape, number, scope, per_million) in [
        ("source unreadable", 0, Scope::Reads, 300_000),
        ("target fails writes", 1, Scope::Writes, 900_000),
        ("target loses writes", 1, Scope::Flushes, 1_000_000),
    ] {
        let world = World::without_journal(168);
        let (pool, mut life) = lived(&world, shape, &[(Single, 1)], 100);
        let disk = world.disk(128 << 20, 512);
        attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Mirror).unwrap();
        assert!(slice(&pool));
        fail(&world.disks()[number], scope, per_million);
        for _ in 0..3 {
            slice(&pool);
        }
        assert!(world.disks()[number].broken_promises() > 0, "{shape}");
        world.disks()[number].set_faults(None);
        // What was missed before is not forgotten by an export.
        life.steps(&pool, 5);
        pool.export().unwrap();
        let pool = sim::open(&world).unwrap();
        let state = finish_with(&pool, |pool| life.steps(pool, 2)).unwrap();
        let (phase, has_errors) = (state.phase, state.errors > 0);
        match number {
            0 => assert_eq!((phase, has_errors), (RebuildPhase::Complete, true)),
            _ => assert_eq!((phase, has_errors), (RebuildPhase::Canceled, false)),
        }
        is_healed(&world, pool, &life, (each_alone, &[0, 1]), shape);
    }
}

#[test]
fn a_target_that_goes_away_ends_the_rebuild() {
    let world = World::without_journal(169);
    let (pool, mut life) = lived(&world, "target away", &[TWO], 100);
    let disk = world.disk(128 << 20, 512);
    let new = attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Replacement).unwrap();
    for _ in 0..3 {
        assert!(slice(&pool));
    }
    pool.inner().offline_leaf(new, Default::default()).unwrap();
    life.steps(&pool, 5);
    let state = finish_with(&pool, |_| ()).unwrap();
    assert_eq!(state.phase, RebuildPhase::Canceled);
    let device = Arc::clone(&disk) as _;
    pool.inner().online_leaf(new, Some(&device)).unwrap();
    is_healed(&world, pool, &life, (each_alone, &[1, 2]), "target away");
}

/// The thread that scans does everything by itself.
#[test]
fn a_replacement_ends_by_itself_and_a_scrub_follows() {
    let _mark = mark::expect("scrub-after-rebuild");
    let world = World::without_journal(171);
    let pool = sim::create_with(&world, &[TWO], 128, Default::default());
    pool.start_scanner().unwrap();
    crate::scan::fill(&pool, "tank", "before", 20);
    let disk = world.disk(128 << 20, 512);
    attach(&pool, of_disk(&pool, 0), &disk, AttachKind::Replacement).unwrap();
    crate::scan::fill(&pool, "tank", "meanwhile", 20);
    let begun = std::time::Instant::now();
    // The replaced side goes last.
    let is_replaced = || {
        let scan = pool.inner().scan();
        let is_scrubbed = scan.is_some_and(|(scan, _)| scan.phase == ScanPhase::Finished);
        is_scrubbed && kinds(&tops(&pool)[0]) == [VdevType::File; 2]
    };
    while !is_replaced() {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", rebuild(&pool));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (scan, _) = pool.inner().scan().unwrap();
    assert_eq!((scan.processed_bytes, scan.errors), (0, 0));
    assert_eq!(rebuild(&pool).phase, RebuildPhase::Complete);
    pool.export().unwrap();
    for away in [0, 1] {
        world.disks()[away].set_absent(true);
    }
    sim::verify(&sim::read(&world).unwrap()).unwrap();
}

/// The writer of files and the log, the one of txgs and the rebuild run in threads of their own.
pub(crate) fn write_beside(layout: NewLayout, width: usize) {
    let world = World::without_journal(170);
    let disks: Vec<_> = (0..=width).map(|_| world.disk(96 << 20, 512)).collect();
    let top = NewTop {
        layout,
        class: Normal,
        devices: disks[..width].iter().map(new_device).collect(),
    };
    let new = NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(9),
            force: true,
        },
        // Several threads write.
        writing: WriteOptions::default(),
        system: "sim".into(),
        cache_bytes: Some(16 << 20),
        ..NewPool::new("tank", NewVdevs::of(vec![top]))
    };
    let pool = Pool::create(&world.env(), &new).unwrap();
    let mut life = Life::new("tank", "beside", 5);
    life.file_bytes_max = 60_000;
    life.steps(&pool, 80);
    pool.sync().unwrap();
    for round in 0..4u8 {
        let limits = RebuildLimits {
            bytes: 1 << 20,
            ..RebuildLimits::default()
        };
        let all = disks.len();
        let (goes, comes) = (round as usize % all, (round as usize + all - 1) % all);
        let old = of_disk(&pool, goes);
        let device = &disks[comes];
        attach(&pool, old, device, AttachKind::Replacement).unwrap();
        std::thread::scope(|scope| {
            let rebuilding = scope.spawn(|| {
                while pool.inner().is_rebuilding() {
                    pool.inner().rebuild_slice(&limits).unwrap();
                }
            });
            let mut rounds = 0;
            while !rebuilding.is_finished() || rounds < 10 {
                life.steps(&pool, 3);
                // By `fsync`, or of everything.
                life.commit(&pool).unwrap();
                rounds += 1;
            }
            rebuilding.join().unwrap();
        });
        is_complete(&pool);
        pool.sync().unwrap();
        is_same_everywhere(&pool);
    }
    life.close_file_systems();
    pool.export().unwrap();
    life.compare(&sim::read(&world).unwrap(), "beside");
    judge(&world, "beside");
}

#[test]
fn writes_and_log_writes_run_beside_a_rebuild() {
    write_beside(Mirror, 2);
}

fn write(pool: &Pool, number: u8, is_synced: bool, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(9000));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    if is_synced {
        system.fsync(&node).unwrap();
    }
    files.insert(name, bytes);
}

/// Begins a rebuild while files are written, also by `fsync`, in many slices; the power fails at every point. Of the sample
/// that is tried by default, one state of `one_of` is.
pub(crate) fn cut_everywhere(
    shape: &str,
    top: (NewLayout, usize),
    (each_set, one_of): (EachSet, usize),
    begin: &dyn Fn(&World, &Pool),
) {
    let world = World::new(165);
    let pool = sim::create(&world, &[top], 64);
    let _new = world.disk(64 << 20, 512);
    let mut files = Files::new();
    write(&pool, 0, false, &mut files);
    pool.sync().unwrap();
    world.forget();
    let mut promised = vec![(0, files.clone())];
    begin(&world, &pool);
    let mut number = 1;
    finish_with(&pool, |pool| {
        if number >= 7 {
            return;
        }
        let is_synced = number % 2 == 0;
        write(pool, number, is_synced, &mut files);
        let mut safe = promised.last().unwrap().1.clone();
        if is_synced {
            let name = vec![b'a' + number];
            safe.insert(name.clone(), files[&name].clone());
        }
        if number % 3 == 0 {
            pool.sync().unwrap();
            safe.clone_from(&files);
        }
        promised.push((world.recorded(), safe));
        number += 1;
    });
    assert!(number > 3, "too few slices");
    pool.sync().unwrap();
    assert!(pool.inner().take_scrub_due());
    pool.inner().finish_replacements().unwrap();
    write(&pool, 8, false, &mut files);
    pool.sync().unwrap();
    drop(pool);
    let mut judged = 0;
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        let one_of = if is_all() { 7 } else { one_of };
        if !state.tried.is_multiple_of(one_of) {
            return;
        }
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap());
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut safe = promised.iter().rev();
        let (_, safe) = safe.find(|(at, _)| *at <= state.count).unwrap();
        let is_kept = |(name, bytes)| found.get(name) == Some(bytes);
        assert!(safe.iter().all(is_kept), "{what}: a promise is broken");
        // Files that are not promised may be empty still.
        // What was begun is finished.
        let mut wanted = found;
        write(&pool, 9, true, &mut wanted);
        finish_with(&pool, |_| ());
        let _ = pool.inner().take_scrub_due();
        while pool.inner().needs_resilver() {
            pool.inner().start_resilver().unwrap();
            finish(&pool);
        }
        pool.inner().finish_replacements().unwrap();
        is_same_everywhere(&pool);
        pool.export().unwrap();
        let tree = format!("{:?}", tree_of(after));
        let is_member = |number: &usize| tree.contains(&format!("/sim/d{number}.img"));
        let members: Vec<usize> = (0..world.disks().len()).filter(is_member).collect();
        each_set(after, &members, &|alone| {
            let read = sim::read(after).unwrap_or_else(|error| panic!("{what}, {alone}: {error}"));
            assert!(files_of(&read).unwrap() == wanted, "{what}, {alone}");
            sim::verify(&read).unwrap_or_else(|error| panic!("{what}, {alone}: {error}"));
        });
        if state.tried.is_multiple_of(if is_all() { 150 } else { 20 }) {
            judge(after, what);
            judged += 1;
        }
    };
    each_state(shape, &world, &mut Seed::new(166), &mut visit);
    println!("{shape}: {judged} judged by zdb");
}

fn tree_of(world: &World) -> millpond_vdev::VdevConfig {
    let view = sim::read(world).unwrap();
    view.inner().assembly().root.clone()
}

/// The last disk is attached to the first one.
fn cut_at_every_place(shape: &str, top: (NewLayout, usize), each_set: EachSet, kind: AttachKind) {
    cut_everywhere(shape, top, (each_set, 1), &|world, pool| {
        let disk = world.disks().last().cloned().unwrap();
        attach(pool, of_disk(pool, 0), &disk, kind).unwrap();
    });
}

#[test]
fn attaching_sequentially_survives_every_crash() {
    cut_at_every_place("attach -s", (Single, 1), each_alone, AttachKind::Mirror);
}

#[test]
fn replacing_sequentially_survives_every_crash() {
    cut_at_every_place("replace -s", TWO, each_alone, AttachKind::Replacement);
}
