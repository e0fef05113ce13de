//! Splitting: each pool has everything, and a crash loses nothing of the old pool.

use crate::attach::{leaf_at, of_disk};
use crate::encryption;
use crate::exhaustive::{Files, State, each_state, files_in, files_of, is_all};
use crate::removal;
use crate::rig::Rig;
use crate::scan::{lived, scrub};
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    AllocationClass::{self, Log, Normal, Special},
    Caller, Error, HalfError, NewHalf,
    NewLayout::{self, Mirror, Raidz, Single},
    NewMode, OpenOptions, Pool, PoolBuilder, PoolCandidate, PoolSetting, SettingTime, SplitError,
    View, WriteAt, WriteOptions,
};
use millpond_env::mark;
use millpond_ondisk::Guid;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_sim::{PowerCut, Seed, World};
use millpond_tests::oracle::zdb;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The pools on the world's disks.
fn pools(world: &World) -> Vec<PoolCandidate> {
    find_pools(&scan_devices(sim::candidates(world)), 0)
}

fn candidate(world: &World, name: &str) -> Option<PoolCandidate> {
    pools(world).into_iter().find(|pool| pool.name == name)
}

fn read(world: &World, name: &str) -> Result<View, Error> {
    read_as(world, name, name)
}

fn read_as(world: &World, name: &str, other: &str) -> Result<View, Error> {
    let options = OpenOptions {
        cache_bytes: Some(16 << 20),
        ..OpenOptions::default()
    };
    let mut found = candidate(world, name).unwrap_or_else(|| panic!("no pool {name}"));
    found.name = other.to_owned();
    View::open_candidate(&found, &options)
}

fn open(world: &World, name: &str) -> Result<Pool, Error> {
    sim::open_candidate(world, &candidate(world, name).unwrap())
}

fn split(pool: &Pool, sides: &[usize]) -> Result<(), HalfError> {
    let sides: Vec<Guid> = sides.iter().map(|disk| of_disk(pool, *disk)).collect();
    split_guids(pool, sides)
}

fn split_guids(pool: &Pool, sides: Vec<Guid>) -> Result<(), HalfError> {
    let half = NewHalf {
        name: "half",
        sides,
        settings: &[],
        writing: sim::by_caller(),
    };
    pool.split(&half)
}

fn judge(world: &World, name: &str, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    zdb::judge(folder.path(), name).unwrap().require(what);
}

fn is_sound(view: &View, what: &str) {
    sim::verify(view).unwrap_or_else(|found| panic!("{what}: {found}"));
    let faults = millpond_tests::recount::faults_of(view.inner());
    assert!(faults.is_empty(), "{what}: {}", faults.join("\n"));
}

#[test]
fn both_pools_have_everything_and_go_their_own_ways() {
    let _mark = mark::expect("pool-split");
    for (shape, tops, sides, stay) in [
        ("one mirror", vec![(Normal, Mirror, 2)], vec![1], vec![0]),
        (
            "three sides",
            vec![(Normal, Mirror, 3)],
            vec![0],
            vec![1, 2],
        ),
        (
            "mirrors, special and a log",
            vec![
                (Normal, Mirror, 2),
                (Normal, Mirror, 2),
                (Log, Mirror, 2),
                (Special, Mirror, 2),
            ],
            vec![1, 2, 7],
            vec![0, 3, 4, 5, 6],
        ),
        (
            "a single log",
            vec![(Log, Single, 1), (Normal, Mirror, 2)],
            vec![2],
            vec![0, 1],
        ),
    ] {
        let world = World::without_journal(80);
        let pool = sim::create_of(&world, &tops, 128, sim::by_caller());
        let mut life = millpond_tests::workload::Life::new("tank", shape, 5);
        life.file_bytes_max = 100_000;
        life.steps(&pool, 80);
        pool.sync().unwrap();
        let old_guid = pool.inner().guid();
        split(&pool, &sides).unwrap();
        let was = life.clone();
        // The old pool is changed further, without the sides.
        life.steps(&pool, 20);
        assert_eq!(scrub(&pool).errors, 0, "{shape}");
        pool.export().unwrap();
        let names: Vec<String> = pools(&world).into_iter().map(|pool| pool.name).collect();
        assert_eq!(names.len(), 2, "{shape}: {names:?}");
        for name in ["tank", "half"] {
            let view = read(&world, name).unwrap();
            assert_eq!(view.inner().guid() == old_guid, name == "tank");
            is_sound(&view, &format!("{shape}: {name}"));
            match name {
                "tank" => life.compare(&view, shape),
                // The same datasets, by the old name.
                _ => was.compare(&read_as(&world, name, "tank").unwrap(), shape),
            }
            drop(view);
            judge(&world, name, shape);
        }
        // Each works without the devices of the other.
        for (name, own, others) in [("half", &sides, &stay), ("tank", &stay, &sides)] {
            for disk in others {
                world.disks()[*disk].set_absent(true);
            }
            let pool = open(&world, name).unwrap_or_else(|error| panic!("{shape}: {error}"));
            write(&pool, name, 30, &mut Files::new());
            assert_eq!(scrub(&pool).errors, 0, "{shape}: {name}");
            pool.export().unwrap();
            is_sound(
                &read(&world, name).unwrap(),
                &format!("{shape}: {name} alone"),
            );
            for disk in others {
                world.disks()[*disk].set_absent(false);
            }
            assert!(!own.is_empty());
            judge(&world, name, shape);
        }
    }
}

#[test]
fn both_pools_have_what_a_removed_vdev_held() {
    let world = World::without_journal(86);
    let tops = [
        (Normal, Single, 1),
        (Normal, Mirror, 2),
        (Normal, Mirror, 2),
    ];
    let pool = sim::create_of(&world, &tops, 128, sim::by_caller());
    let mut life = millpond_tests::workload::Life::new("tank", "removed, split", 6);
    life.file_bytes_max = 100_000;
    life.steps(&pool, 80);
    removal::remove(&pool, 0);
    removal::evacuate(&pool, &mut life, 1);
    life.steps(&pool, 5);
    split(&pool, &[2, 4]).unwrap();
    let was = life.clone();
    life.steps(&pool, 40);
    assert_eq!(scrub(&pool).errors, 0);
    pool.export().unwrap();
    life.compare(&read(&world, "tank").unwrap(), "tank");
    was.compare(&read_as(&world, "half", "tank").unwrap(), "half");
    world.disks()[0].set_absent(true);
    for (name, others) in [("half", [1, 3]), ("tank", [2, 4])] {
        let what = format!("removed, split: {name}");
        let away = |is_away| others.map(|disk: usize| world.disks()[disk].set_absent(is_away));
        away(true);
        is_sound(&read(&world, name).unwrap(), &what);
        let pool = open(&world, name).unwrap();
        write(&pool, name, 30, &mut Files::new());
        assert_eq!(scrub(&pool).errors, 0, "{what}");
        pool.export().unwrap();
        is_sound(&read(&world, name).unwrap(), &what);
        away(false);
        judge(&world, name, &what);
    }
}

#[test]
fn what_cannot_be_split_is_refused_and_changes_nothing() {
    for (tops, sides, words) in [
        (
            vec![(Normal, Raidz(1), 3)],
            vec![2],
            "composed only of mirrors",
        ),
        (
            vec![(Normal, Single, 1)],
            vec![0],
            "composed only of mirrors",
        ),
        (
            vec![(Normal, Mirror, 2), (Normal, Single, 1)],
            vec![1, 2],
            "composed only of mirrors",
        ),
        (
            vec![(Normal, Mirror, 2), (Normal, Mirror, 2)],
            vec![1],
            "at most one disk from each mirror",
        ),
        (
            vec![(Normal, Mirror, 2), (Normal, Mirror, 2)],
            vec![0, 1],
            "at most one disk from each mirror",
        ),
        (
            vec![(Normal, Mirror, 2), (Log, Mirror, 2)],
            vec![1, 3],
            "at most one disk from each mirror",
        ),
    ] {
        let world = World::without_journal(81);
        let pool = sim::create_of(&world, &tops, 128, sim::by_caller());
        let before = pool.inner().config().root;
        let error = split(&pool, &sides).unwrap_err();
        assert!(
            matches!(error, HalfError::Split(_)) && error.to_string().contains(words),
            "{error}"
        );
        assert_eq!(pool.inner().config().root, before);
    }
    // A side that lacks data, and the only complete side.
    let world = World::without_journal(82);
    let (pool, mut life) = lived(&world, "incomplete", &[(Mirror, 2)], 20);
    pool.inner()
        .offline_leaf(of_disk(&pool, 1), Default::default())
        .unwrap();
    life.steps(&pool, 10);
    for side in [1, 0] {
        let error = split(&pool, &[side]).unwrap_err().to_string();
        let words = ["no valid replicas", "lacks data; wait for the resilver"][side];
        assert!(error.contains(words), "{error}");
    }
}

/// An intent log that begins on a log vdev stays behind, and so does the dataset's pointer to it.
#[test]
fn a_pool_whose_log_vdev_is_in_use_is_split() {
    for log in [(Log, Single, 1), (Log, Mirror, 2)] {
        let world = World::without_journal(85);
        let tops = [(Normal, Mirror, 2), log, (Normal, Mirror, 2)];
        let pool = sim::create_of(&world, &tops, 96, sim::by_caller());
        let mut files = Files::new();
        for number in 0..3 {
            write_synced(&pool, "tank", number, &mut files);
            pool.sync().unwrap();
        }
        // What is only in the log is committed first.
        write_synced(&pool, "tank", 3, &mut files);
        let old = files.clone();
        let last = 2 + log.2;
        split(&pool, &[1, last]).unwrap_or_else(|error| panic!("{log:?}: {error}"));
        // The log vdev is used again.
        write_synced(&pool, "tank", 4, &mut files);
        pool.export().unwrap();
        for name in ["tank", "half"] {
            let what = format!("{log:?}: {name}");
            let view = read(&world, name).unwrap();
            let found = files_in(&view.dataset(name).unwrap()).unwrap();
            assert_eq!(
                found,
                if name == "tank" {
                    files.clone()
                } else {
                    old.clone()
                }
            );
            is_sound(&view, &what);
            drop(view);
            judge(&world, name, &what);
        }
        let pool = open(&world, "half").unwrap();
        write_synced(&pool, "half", 5, &mut old.clone());
        assert_eq!(scrub(&pool).errors, 0);
        pool.export().unwrap();
        judge(&world, "half", "used again");
    }
}

/// The new pool has no keys, and would lose what was promised.
#[test]
fn a_pool_with_a_log_that_waits_for_a_key_is_not_split() {
    let world = World::new(86);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    encryption::root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    let mut files = Files::new();
    write_synced(&pool, "tank/e", 0, &mut files);
    write_synced(&pool, "tank/e", 1, &mut files);
    let world = world.reborn(world.recorded(), &PowerCut::NothingUnflushed);
    drop(pool);
    let pool = sim::open(&world).unwrap();
    let before = pool.inner().config().root;
    let refused = split(&pool, &[1]).unwrap_err();
    assert!(matches!(refused, HalfError::Split(SplitError::LockedLogs)));
    assert_eq!(pool.inner().config().root, before);
    encryption::unlock(&pool, "tank/e", encryption::KEY);
    drop(pool.file_system("tank/e").unwrap());
    split(&pool, &[1]).unwrap();
    pool.export().unwrap();
    let pool = open(&world, "half").unwrap();
    encryption::unlock(&pool, "half/e", encryption::KEY);
    let view = pool.committed().unwrap();
    assert_eq!(files_in(&view.dataset("half/e").unwrap()).unwrap(), files);
    drop(view);
    pool.export().unwrap();
    judge(&world, "half", "unlocked first");
}

#[test]
fn a_property_that_the_new_pool_cannot_have_is_refused_before() {
    let world = World::without_journal(87);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    let before = pool.inner().config().root;
    let settings = [PoolSetting::parse("version", "28", SettingTime::Later).unwrap()];
    let half = NewHalf {
        name: "half",
        sides: vec![of_disk(&pool, 1)],
        settings: &settings,
        writing: sim::by_caller(),
    };
    let refused = pool.split(&half).unwrap_err();
    assert!(matches!(refused, HalfError::Split(_)), "{refused}");
    assert_eq!(pool.inner().config().root, before);
    split(&pool, &[1]).unwrap();
}

/// A side that the mirror does not need hides that it cannot be read alone.
#[test]
fn sides_that_cannot_be_read_alone_do_not_leave() {
    let world = World::without_journal(88);
    let pool = sim::create(&world, &[(Mirror, 2)], 96);
    let mut files = Files::new();
    write(&pool, "tank", 0, &mut files);
    pool.sync().unwrap();
    let before = pool.inner().config().root;
    // All but the labels.
    world.disks()[1].write(4 << 20, &vec![7; 91 << 20]).unwrap();
    let refused = split(&pool, &[1]).unwrap_err();
    assert!(
        matches!(refused, HalfError::Split(SplitError::Unreadable { .. })),
        "{refused}"
    );
    assert_eq!(pool.inner().config().root, before);
    split(&pool, &[0]).unwrap();
    let view = read(&world, "half").unwrap();
    assert_eq!(files_in(&view.dataset("half").unwrap()).unwrap(), files);
}

fn write_synced(pool: &Pool, dataset: &str, number: u8, files: &mut Files) {
    write(pool, dataset, number, files);
    let system = pool.file_system(dataset).unwrap();
    let node = system.root().unwrap().lookup(&[b'a' + number]).unwrap();
    system.fsync(&node).unwrap();
}

fn write(pool: &Pool, dataset: &str, number: u8, files: &mut Files) {
    let system = pool.file_system(dataset).unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let (name, bytes) = (vec![b'a' + number], Seed::new(number.into()).bytes(40_000));
    let mode = NewMode::exactly(0o600);
    let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
    let at = WriteAt::Offset(0);
    system.write(&caller, &node, at, &bytes).unwrap();
    files.insert(name, bytes);
}

#[test]
fn a_split_survives_every_crash() {
    cut_everywhere("split", &[(Normal, Mirror, 2), (Normal, Mirror, 2)]);
}

#[test]
fn a_split_of_a_pool_with_a_log_vdev_survives_every_crash() {
    let tops = [(Normal, Mirror, 2), (Normal, Mirror, 2), (Log, Single, 1)];
    cut_everywhere("split, log", &tops);
}

fn cut_everywhere(shape: &str, tops: &[(AllocationClass, NewLayout, usize)]) {
    let world = World::new(83);
    let pool = sim::create_of(&world, tops, 64, sim::by_caller());
    let mut files = Files::new();
    write_synced(&pool, "tank", 0, &mut files);
    pool.sync().unwrap();
    let old = files.clone();
    world.forget();
    split(&pool, &[1, 2]).unwrap();
    let is_over = world.recorded();
    write(&pool, "tank", 1, &mut files);
    pool.sync().unwrap();
    drop(pool);
    let (mut judged, mut seen) = (0, [0; 3]);
    let mut visit = |state: State<'_>| {
        let (what, after) = (state.what, state.after);
        if is_all() && !state.tried.is_multiple_of(7) {
            return;
        }
        // The old pool has everything, whatever became of the new one.
        let pool = open(after, "tank").unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = files_of(&pool.committed().unwrap()).unwrap();
        assert!(found == old || found == files, "{what}: files are missing");
        let kinds: Vec<_> = pool
            .inner()
            .config()
            .root
            .children
            .iter()
            .map(|top| top.kind.is_leaf())
            .collect();
        assert!(
            kinds[..2] == [true; 2] || kinds[..2] == [false; 2],
            "{what}: half split"
        );
        let mut wanted = found;
        write(&pool, "tank", 9, &mut wanted);
        pool.export().unwrap();
        let view = read(after, "tank").unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files_of(&view).unwrap(), wanted, "{what}");
        is_sound(&view, what);
        drop(view);
        // The new pool is not there yet, or it is whole.
        let half = candidate(after, "half");
        let half = half.and_then(|found| sim::open_candidate(after, &found).ok());
        assert!(
            half.is_some() || state.count < is_over,
            "{what}: the new pool is gone"
        );
        match half {
            None => seen[usize::from(kinds[0])] += 1,
            Some(pool) => {
                assert_eq!(kinds[..2], [true; 2], "{what}: a disk in two pools");
                seen[2] += 1;
                pool.export().unwrap();
                let view = read(after, "half").unwrap();
                let dataset = view.dataset("half").unwrap();
                assert_eq!(files_in(&dataset).unwrap(), old, "{what}");
                is_sound(&view, what);
            }
        }
        if state.tried.is_multiple_of(if is_all() { 150 } else { 20 }) {
            judge(after, "tank", what);
            judged += 1;
        }
    };
    each_state(shape, &world, &mut Seed::new(84), &mut visit);
    println!("{shape}: {judged} judged by zdb; unsplit, detached, both: {seen:?}");
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_pool_is_split_while_programs_write() {
    let rig = Rig::new(4, 128);
    let images = rig.images.clone();
    let builder = PoolBuilder::new("tank").mirror(&images[..2]);
    let pool = builder.mirror(&images[2..]).create().unwrap();
    let mut before = Files::new();
    write(&pool, "tank", 0, &mut before);
    pool.sync().unwrap();
    let is_over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (1..4)
            .map(|writer: u8| {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || write_until(pool, writer, is_over))
            })
            .collect();
        let leaf = |image: &Path| leaf_at(&pool, image.to_str().unwrap());
        let half = NewHalf {
            name: "half",
            sides: vec![leaf(&images[1]), leaf(&images[2])],
            settings: &[],
            writing: WriteOptions::default(),
        };
        // The writers are at work before and after.
        std::thread::sleep(Duration::from_millis(200));
        let done = pool.split(&half);
        std::thread::sleep(Duration::from_millis(200));
        is_over.store(true, Ordering::SeqCst);
        done.unwrap();
        let written = writers.into_iter().map(|writer| writer.join().unwrap());
        written.fold(Files::new(), |mut all, files| {
            all.extend(files);
            all
        })
    });
    pool.export().unwrap();
    let all: Files = before.clone().into_iter().chain(written).collect();
    for name in ["tank", "half"] {
        rig.judge(name);
        let view = rig.read(name);
        sim::verify(&view).unwrap();
        let found = files_in(&view.dataset(name).unwrap()).unwrap();
        match name {
            "tank" => assert!(found == all, "the old pool lost files"),
            // Every file that it has is whole, or was created and not written yet.
            _ => {
                assert!(found.len() > before.len() && found.len() < all.len());
                for (file, bytes) in &found {
                    assert!(bytes.is_empty() || all.get(file) == Some(bytes), "{file:?}");
                }
            }
        }
    }
}

/// Creates files until told to stop, and makes some of them durable at once.
fn write_until(pool: &Pool, writer: u8, is_over: &AtomicBool) -> Files {
    let system = pool.file_system("tank").unwrap();
    let (root, caller) = (system.root().unwrap(), Caller::root());
    let mut files = Files::new();
    for number in 0u32.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("w{writer}-{number}").into_bytes();
        let bytes = Seed::new((u64::from(number) << 8) | u64::from(writer)).bytes(20_000);
        let mode = NewMode::exactly(0o600);
        let (node, _) = system.create(&caller, &root, &name, mode, true).unwrap();
        let at = WriteAt::Offset(0);
        system.write(&caller, &node, at, &bytes).unwrap();
        if number.is_multiple_of(4) {
            system.fsync(&node).unwrap();
        }
        files.insert(name, bytes);
    }
    files
}
