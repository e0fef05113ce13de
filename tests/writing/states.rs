//! Leaves that fail, go offline and return.
//!
//! They are probed, no longer used after a failure, and never shown as healthy while they miss data.

use crate::exhaustive::{Files, State, each_state, files_of, is_all, judge};
use crate::sim;
use millpond_block::{LeafCondition, LeafReason, LeafState};
use millpond_engine::{
    Caller, NewLayout, NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single, NewMode, Offline,
    Pool, VdevSetting, WriteAt,
};
use millpond_env::mark;
use millpond_ondisk::Guid;
use millpond_pool::import::{VdevAux, VdevState};
use millpond_sim::{Fault, FaultPlan, Scope, Seed, World};
use millpond_tests::workload::Life;
use millpond_vdev::LeafId;

const MIRROR: (NewLayout, usize) = (Mirror, 2);
const RAIDZ: (NewLayout, usize) = (Raidz(1), 3);

fn leaf(pool: &Pool, number: usize) -> Guid {
    let topology = pool.inner().store().topology();
    let mut leaves = topology.tree.leaves();
    leaves.nth(number).unwrap().1.config.guid
}

fn condition(pool: &Pool, number: usize) -> LeafCondition {
    let leaf = leaf(pool, number);
    pool.inner().leaf_condition(leaf).unwrap()
}

fn everything_fails() -> FaultPlan {
    let plan = FaultPlan::new(Seed::new(3));
    let plan = plan.with(Scope::Reads, Fault::Fail, 1_000_000);
    plan.with(Scope::Writes, Fault::Fail, 1_000_000)
}

/// The displayed states of the pool and of a leaf, and the number of txgs in the leaf's dirty time log.
fn shown(pool: &millpond_engine::View, number: usize) -> (VdevState, VdevState, VdevAux, u64) {
    let assembly = pool.inner().assembly();
    let node = assembly.nodes[assembly.leaves[number].node];
    (assembly.state(), node.state, node.aux, node.missed_txgs)
}

fn lived(world: &World, shape: &str, top: (NewLayout, usize)) -> (Pool, Life) {
    let pool = sim::create(world, &[top], 128);
    let mut life = Life::new("tank", shape, 5);
    life.file_bytes_max = 100_000;
    life.steps(&pool, 30);
    pool.sync().unwrap();
    (pool, life)
}

#[test]
fn a_leaf_that_fails_its_probe_is_faulted_for_good() {
    let _mark = mark::expect("probe-failed");
    for (shape, top) in [("mirror probed", MIRROR), ("raidz probed", RAIDZ)] {
        let world = World::without_journal(90);
        let (pool, mut life) = lived(&world, shape, top);
        let bad = world.disks()[0].clone();
        bad.set_faults(Some(everything_fails()));
        life.steps(&pool, 10);
        pool.sync().unwrap();
        assert_eq!(condition(&pool, 0).state, LeafState::Online);
        pool.inner().check_leaves();
        let faulted = LeafCondition::new(LeafState::Faulted, LeafReason::IoFailures);
        assert_eq!(condition(&pool, 0), faulted);
        let asked = bad.broken_promises();
        life.steps(&pool, 20);
        pool.sync().unwrap();
        life.compare(&pool.committed().unwrap(), shape);
        assert_eq!(bad.broken_promises(), asked, "{shape}: asked again");
        let (root, own, aux, missed) = shown(&pool.committed().unwrap(), 0);
        assert_eq!((root, own), (VdevState::Degraded, VdevState::Faulted));
        assert_eq!(aux, VdevAux::ErrorsExceeded);
        assert!(missed > 0);

        // The next open tries the leaf again. The missing txgs are known and shown.
        pool.export().unwrap();
        bad.set_faults(None);
        let pool = sim::open(&world).unwrap();
        assert_eq!(condition(&pool, 0).state, LeafState::Online);
        let (root, own, aux, missed) = shown(&pool.committed().unwrap(), 0);
        assert_eq!((root, own), (VdevState::Degraded, VdevState::Degraded));
        assert!(
            aux == VdevAux::None && missed > 0,
            "{shape}: {aux:?} {missed}"
        );
        life.compare(
            &pool.committed().unwrap(),
            &format!("{shape}, opened again"),
        );
        life.steps(&pool, 10);
        pool.export().unwrap();
        let read = sim::read(&world).unwrap();
        sim::verify(&read).unwrap();
        life.compare(&read, &format!("{shape}, gone on"));
    }
}

#[test]
fn a_vanished_disk_is_removed_until_it_is_set_online() {
    let world = World::without_journal(91);
    let (pool, mut life) = lived(&world, "gone", MIRROR);
    let away = world.disks()[1].clone();
    away.set_absent(true);
    life.steps(&pool, 10);
    pool.sync().unwrap();
    pool.inner().check_leaves();
    assert_eq!(condition(&pool, 1).state, LeafState::Removed);
    pool.sync().unwrap();
    let guid = leaf(&pool, 1);
    let still_gone = pool.inner().online_leaf(guid, None).unwrap();
    assert_eq!(still_gone.state, LeafState::Unavailable);
    away.set_absent(false);
    let back = pool.inner().online_leaf(guid, None).unwrap();
    assert_eq!(back, LeafCondition::default());
    let (root, own, _, missed) = shown(&pool.committed().unwrap(), 1);
    assert_eq!((root, own), (VdevState::Degraded, VdevState::Degraded));
    assert!(missed > 0);
    life.steps(&pool, 10);
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    sim::verify(&read).unwrap();
    life.compare(&read, "gone and back");
}

#[test]
fn a_required_leaf_degrades_and_clear_resumes_the_pool() {
    let world = World::without_journal(92);
    let (pool, mut life) = lived(&world, "required", MIRROR);
    let disks = world.disks();
    disks[0].set_faults(Some(everything_fails()));
    life.steps(&pool, 10);
    pool.sync().unwrap();
    pool.inner().check_leaves();
    assert_eq!(condition(&pool, 0).state, LeafState::Faulted);
    // One failing read, and failing probes.
    let view = pool.committed().unwrap();
    disks[1].set_faults(Some(everything_fails()));
    assert!(sim::verify(&view).is_err());
    drop(view);
    pool.inner().check_leaves();
    let degraded = LeafCondition::new(LeafState::Degraded, LeafReason::IoFailures);
    assert_eq!(condition(&pool, 1), degraded);
    for disk in &disks {
        disk.set_faults(None);
    }
    pool.sync().unwrap();
    let order = pool
        .inner()
        .offline_leaf(leaf(&pool, 1), Offline::default());
    assert_eq!(order.unwrap_err().to_string(), "no valid replicas");
    pool.inner().clear_leaves(None);
    pool.sync().unwrap();
    assert_eq!(condition(&pool, 0), LeafCondition::default());
    assert_eq!(condition(&pool, 1), LeafCondition::default());
    // Only the second leaf has the data that the first one misses.
    let order = pool
        .inner()
        .offline_leaf(leaf(&pool, 1), Offline::default());
    assert_eq!(order.unwrap_err().to_string(), "no valid replicas");
    let order = pool
        .inner()
        .offline_leaf(leaf(&pool, 0), Offline::default());
    order.unwrap();
    life.steps(&pool, 10);
    pool.export().unwrap();
    let read = sim::read(&world).unwrap();
    sim::verify(&read).unwrap();
    life.compare(&read, "required");
}

#[test]
fn too_many_errors_fault_a_leaf_that_answers_its_probe() {
    for (shape, io_n) in [
        ("usual", None),
        ("never", Some("0")),
        ("many", Some("100000")),
    ] {
        let world = World::without_journal(98);
        let (pool, mut life) = lived(&world, shape, MIRROR);
        let engine = pool.inner();
        let topology = engine.store().topology();
        if let Some(io_n) = io_n {
            // A property of the mirror applies to both sides.
            let mirror = topology.tree.tops().next().unwrap().1.config.guid;
            let setting = VdevSetting::parse("io_n", io_n).unwrap();
            engine.set_vdev_property(mirror, &setting).unwrap();
        }
        let fails = FaultPlan::failing(Scope::Writes);
        world.disks()[0].set_faults(Some(fails.sparing(4 << 20)));
        life.steps(&pool, 20);
        pool.sync().unwrap();
        assert!(topology.leaf_stats(LeafId(0)).write_errors >= 10);
        engine.check_leaves();
        let expected = match io_n {
            None => LeafCondition::new(LeafState::Faulted, LeafReason::ErrorsExceeded),
            Some(_) => LeafCondition::default(),
        };
        assert_eq!(condition(&pool, 0), expected, "{shape}");
        life.compare(&pool.committed().unwrap(), shape);
        if io_n == Some("0") {
            // The property is stored in the pool and read when the pool is opened.
            pool.export().unwrap();
            let pool = sim::open(&world).unwrap();
            life.steps(&pool, 20);
            pool.sync().unwrap();
            pool.inner().check_leaves();
            assert_eq!(condition(&pool, 0), LeafCondition::default());
        }
    }
}

#[test]
fn wrong_bytes_and_failed_reads_count_by_the_pool_s_clock() {
    let world = World::without_journal(93);
    let (pool, life) = lived(&world, "rates", MIRROR);
    let fails = FaultPlan::new(Seed::new(4)).with(Scope::Reads, Fault::Corrupt, 1_000_000);
    world.disks()[0].set_faults(Some(fails.sparing(4 << 20)));
    for _ in 0..4 {
        sim::read(&world).map(drop).unwrap_or_default();
        let view = pool.committed().unwrap();
        let _ = sim::verify(&view);
    }
    pool.inner().check_leaves();
    let degraded = LeafCondition::new(LeafState::Degraded, LeafReason::ErrorsExceeded);
    assert_eq!(condition(&pool, 0), degraded);
    world.disks()[0].set_faults(None);
    pool.sync().unwrap();
    pool.export().unwrap();
    // The state persists until it is cleared.
    let pool = sim::open(&world).unwrap();
    assert_eq!(condition(&pool, 0), degraded);
    pool.inner().clear_leaves(None);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    assert_eq!(condition(&pool, 0), LeafCondition::default());
    life.compare(&pool.committed().unwrap(), "rates");
}

#[test]
fn offline_states_survive_export_unless_temporary() {
    let world = World::without_journal(94);
    let (mut pool, mut life) = lived(&world, "kept", (Raidz(2), 4));
    let [offline, faulted] = [LeafState::Offline, LeafState::Faulted];
    for is_temporary in [false, true] {
        for (number, is_fault, state) in [(0, false, offline), (1, true, faulted)] {
            let how = Offline {
                is_fault,
                is_temporary,
            };
            pool.inner().offline_leaf(leaf(&pool, number), how).unwrap();
            assert_eq!(condition(&pool, number).state, state);
        }
        life.steps(&pool, 10);
        pool.export().unwrap();
        let read = sim::read(&world).unwrap();
        life.compare(&read, "kept");
        pool = sim::open(&world).unwrap();
        if !is_temporary {
            assert_eq!(condition(&pool, 0).state, offline);
            let kept = LeafCondition::new(faulted, LeafReason::External);
            assert_eq!(condition(&pool, 1), kept);
            let (root, own, ..) = shown(&pool.committed().unwrap(), 0);
            assert_eq!((root, own), (VdevState::Degraded, VdevState::Offline));
            // Back in use for the second iteration.
            let disk = world.disks()[0].clone() as _;
            pool.inner()
                .online_leaf(leaf(&pool, 0), Some(&disk))
                .unwrap();
            let disk = world.disks()[1].clone() as _;
            assert!(pool.inner().reopen_leaf(leaf(&pool, 1), &disk).unwrap());
            assert_eq!(condition(&pool, 1), kept, "only clear takes it back");
            pool.inner().clear_leaves(None);
            pool.sync().unwrap();
        }
        for number in [0, 1] {
            assert_eq!(condition(&pool, number), LeafCondition::default());
            let (_, own, _, missed) = shown(&pool.committed().unwrap(), number);
            assert_eq!(own, VdevState::Degraded);
            assert!(missed > 0);
        }
    }
    pool.export().unwrap();
    sim::verify(&sim::read(&world).unwrap()).unwrap();
}

/// Writes one file per step.
fn write(pool: &Pool, number: u8, files: &mut Files) {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, mode) = (vec![b'a' + number], NewMode::exactly(0o600));
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let bytes: Vec<u8> = (0..6000u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> (8 + number % 8)) as u8)
        .collect();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    files.insert(name, bytes);
}

/// No leaf in use holds wrong bytes outside the txgs in its dirty time log. Labels may be torn.
fn blocks_are_whole(read: &millpond_engine::View, what: &str) {
    let report = read.verify(&millpond_verify::Progress::default(), &|_| {});
    let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
    let leaves = report.leaves.values();
    let wrong: u64 = leaves.map(|leaf| leaf.wrong + leaf.faults).sum();
    let bad = [report.lost, report.repairable, report.invalid, wrong];
    assert_eq!(bad, [0; 4], "{what}: {report:#?}");
}

/// A leaf goes offline while data is dirty, misses txgs and returns; the power fails at every point.
///
/// Every state opens with all promised data and the correct dirty time log: no block that is read from the
/// leaf is wrong.
fn cut_at_every_place(shape: &str, top: (NewLayout, usize), how: Offline) {
    let world = World::new(95);
    let pool = sim::create(&world, &[top], 64);
    pool.sync().unwrap();
    let disk = world.disks()[0].clone() as _;
    world.forget();
    let mut files = Files::new();
    let mut states = vec![(0, files.clone())];
    let guid = leaf(&pool, 0);
    write(&pool, 0, &mut files);
    pool.inner().offline_leaf(guid, how).unwrap();
    states.push((world.recorded(), files.clone()));
    write(&pool, 1, &mut files);
    pool.sync().unwrap();
    states.push((world.recorded(), files.clone()));
    write(&pool, 2, &mut files);
    match how.is_fault {
        true => pool.inner().clear_leaves(None),
        false => drop(pool.inner().online_leaf(guid, Some(&disk)).unwrap()),
    }
    pool.sync().unwrap();
    states.push((world.recorded(), files.clone()));
    write(&pool, 3, &mut files);
    pool.sync().unwrap();
    states.push((world.recorded(), files.clone()));
    drop(pool);
    let mut met = [0; 3];
    let mut visit = |state: State<'_>| {
        // A temporary offline state is not stored on disk, so a sample of states is enough.
        if is_all() && how.is_temporary && !state.tried.is_multiple_of(11) {
            return;
        }
        let (what, after) = (state.what, state.after);
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&read).unwrap_or_else(|error| panic!("{what}: {error}"));
        let least = states.iter().rposition(|(at, _)| *at <= state.count);
        let least = least.unwrap();
        let mut matching = states.iter().skip(least);
        assert!(
            matching.any(|(_, state)| *state == found),
            "{what}: is no state from {least} on"
        );
        blocks_are_whole(&read, what);
        let (_, own, _, missed) = shown(&read, 0);
        assert!(own != VdevState::Healthy || missed == 0, "{what}");
        drop(read);
        let pool = sim::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let now = condition(&pool, 0).state;
        met[usize::from(now != LeafState::Online)] += 1;
        let disk = after.disks()[0].clone() as _;
        pool.inner().online_leaf(guid, Some(&disk)).unwrap();
        pool.inner().clear_leaves(None);
        let mut wanted = found;
        write(&pool, 9, &mut wanted);
        pool.export().unwrap();
        let read = sim::read(after).unwrap();
        assert_eq!(files_of(&read).unwrap(), wanted, "{what}, gone on");
        sim::verify(&read).unwrap_or_else(|error| panic!("{what}, gone on: {error}"));
        drop(read);
        // All data that the leaf missed is on the other leaves.
        after.disks()[0].set_absent(true);
        let read = sim::read(after).unwrap_or_else(|error| panic!("{what}, alone: {error}"));
        assert_eq!(files_of(&read).unwrap(), wanted, "{what}, without it");
        drop(read);
        after.disks()[0].set_absent(false);
        if state.tried.is_multiple_of(if is_all() { 150 } else { 20 }) {
            judge(after, what);
            met[2] += 1;
        }
    };
    each_state(shape, &world, &mut Seed::new(96), &mut visit);
    assert!(met[0] + met[1] > 0, "{shape}: {met:?}");
    let is_kept = !how.is_temporary;
    assert!(!is_all() || !is_kept || met[1] > 0, "{shape}: {met:?}");
}

#[test]
fn offline_and_online_of_a_mirror_survive_every_crash() {
    cut_at_every_place("offline, mirror", MIRROR, Offline::default());
}

#[test]
fn offline_and_online_of_a_raidz_survive_every_crash() {
    cut_at_every_place("offline, raidz", RAIDZ, Offline::default());
}

#[test]
fn temporary_offline_of_a_mirror_survives_every_crash_point() {
    let how = Offline {
        is_temporary: true,
        ..Offline::default()
    };
    cut_at_every_place("offline -t, mirror", MIRROR, how);
}

#[test]
fn fault_and_clear_of_a_mirror_survive_every_crash_point() {
    let how = Offline {
        is_fault: true,
        ..Offline::default()
    };
    cut_at_every_place("offline -f, mirror", MIRROR, how);
}

#[test]
fn a_single_disk_is_never_taken_out_of_use() {
    let world = World::without_journal(97);
    let (pool, _) = lived(&world, "single", (Single, 1));
    let guid = leaf(&pool, 0);
    let order = pool.inner().offline_leaf(guid, Offline::default());
    assert_eq!(order.unwrap_err().to_string(), "no valid replicas");
    let fault = Offline {
        is_fault: true,
        ..Offline::default()
    };
    pool.inner().offline_leaf(guid, fault).unwrap();
    let degraded = LeafCondition::new(LeafState::Degraded, LeafReason::External);
    assert_eq!(condition(&pool, 0), degraded);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    assert_eq!(condition(&pool, 0), degraded);
}

#[test]
fn a_leaf_whose_labels_are_overwritten_is_found() {
    let world = World::new(71);
    let (pool, _life) = lived(&world, "overwritten labels", MIRROR);
    pool.sync().unwrap();
    assert_eq!(pool.inner().overwritten_leaves(), []);
    let disk = &world.disks()[1];
    let labels = vec![0; 512 << 10];
    // One pair of labels is enough for it to be known.
    disk.rot(0, &labels);
    assert_eq!(pool.inner().overwritten_leaves(), []);
    disk.rot((128 << 20) - labels.len() as u64, &labels);
    let found = pool.inner().overwritten_leaves();
    assert_eq!(found, [leaf(&pool, 1)]);
    assert!(pool.inner().give_up_leaf(found[0], LeafReason::BadLabel));
    assert_eq!(condition(&pool, 1).state, LeafState::Unavailable);
    assert_eq!(pool.inner().overwritten_leaves(), []);
    // Not the same as a device that is not there.
    let bad_label = |pool: &Pool| {
        let (root, own, aux, _) = shown(&pool.committed().unwrap(), 1);
        let expected = (
            VdevState::Degraded,
            VdevState::CannotOpen,
            VdevAux::BadLabel,
        );
        assert_eq!((root, own, aux), expected);
    };
    bad_label(&pool);
    pool.inner().clear_leaves(None);
    pool.sync().unwrap();
    bad_label(&pool);
}
