//! Scrubs of the blocks with known errors, and which files those errors concern.

use crate::cloning::make;
use crate::exhaustive::{State, each_state};
use crate::scan::{self, finish, scanner, scrub};
use crate::sim;
use millpond_engine::{Caller, NewLayout::Single, Pool, PoolSetting, ScrubRange, WriteAt};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{ErrorScrubPhys, ScanPhase};
use millpond_sim::{Seed, World};
use millpond_vdev::AllocationClass::Normal;

/// What was at a place of a disk before it was damaged.
struct Damage {
    disk: usize,
    offset: u64,
    before: Vec<u8>,
}

/// Damages all copies of the files with this number, on all disks.
fn damage(world: &World, number: u64) -> Vec<Damage> {
    let content = Seed::new(number).bytes(512);
    let mut damaged = vec![];
    for (number, disk) in world.disks().iter().enumerate() {
        let mut bytes = vec![0; 128 << 20];
        disk.content().read(0, &mut bytes);
        for offset in (0..bytes.len()).step_by(512) {
            if bytes[offset..offset + 512] == content[..] {
                let offset = offset as u64;
                disk.rot(offset, &[0x5a; 512]);
                damaged.push(Damage {
                    disk: number,
                    offset,
                    before: content.clone(),
                });
            }
        }
    }
    damaged
}

fn mend(world: &World, damaged: &[Damage]) {
    for damage in damaged {
        world.disks()[damage.disk].rot(damage.offset, &damage.before);
    }
}

/// The damaged files that `zpool status -v` lists, in order.
fn names(pool: &Pool) -> Vec<String> {
    let mut names = millpond_service::damaged_files(&pool.committed().unwrap());
    names.sort();
    names
}

fn known(pool: &Pool) -> u64 {
    let view = pool.committed().unwrap();
    view.inner().known_error_count().unwrap()
}

fn state(pool: &Pool) -> Option<ErrorScrubPhys> {
    let view = pool.committed().unwrap();
    let value = view.inner().directory_value(key::ERROR_SCRUB).unwrap()?;
    let words: Vec<u64> = value.integers().collect();
    Some(ErrorScrubPhys::from_words(&words).unwrap())
}

/// Runs an error scrub in slices of `blocks` entries.
fn run(pool: &Pool) -> ErrorScrubPhys {
    pool.inner().start_error_scrub().unwrap();
    go_on(pool)
}

fn go_on(pool: &Pool) -> ErrorScrubPhys {
    while scanner().error_slice(pool.inner()).unwrap() {}
    let state = state(pool).unwrap();
    assert_eq!(state.phase, ScanPhase::Finished);
    state
}

/// The snapshots and clones that have the files of the first two snapshots.
const OF_ONE: [&str; 6] = [
    "tank/a",
    "tank/a@one",
    "tank/a@three",
    "tank/a@two",
    "tank/b",
    "tank/b@four",
];
const OF_THREE: [&str; 2] = ["tank/a", "tank/a@three"];

fn files_of(file: &str, datasets: &[&str]) -> Vec<String> {
    let datasets = datasets.iter();
    datasets.map(|name| format!("{name}:/{file}")).collect()
}

/// Every dataset that has a file of `scan::chained` with this number.
fn all_files(number: u64) -> Vec<String> {
    let mut all = files_of(&format!("one{number}"), &OF_ONE);
    let of_two = OF_ONE.iter().filter(|name| **name != "tank/a@one");
    all.extend(of_two.map(|name| format!("{name}:/two{number}")));
    all.extend(files_of(&format!("three{number}"), &OF_THREE));
    all.extend(files_of(&format!("head{number}"), &["tank/a"]));
    all.extend(files_of(
        &format!("clone{number}"),
        &["tank/b", "tank/b@four"],
    ));
    all.extend(files_of(&format!("later{number}"), &["tank/b"]));
    all.sort();
    all
}

/// Head and snapshot have different blocks at the same place of a file, and both are lost.
#[test]
fn a_file_that_was_overwritten_is_named_in_the_head_and_in_the_snapshot() {
    let world = World::without_journal(61);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    pool.datasets().create_filesystem("tank/a", &[]).unwrap();
    let files = pool.file_system("tank/a").unwrap();
    let file = make(&files, "file", &Seed::new(10).bytes(4096));
    pool.sync().unwrap();
    pool.datasets().snapshot(&["tank/a@one"], &[]).unwrap();
    let at = WriteAt::Offset(0);
    let caller = Caller::root();
    files
        .write(&caller, &file, at, &Seed::new(11).bytes(4096))
        .unwrap();
    pool.sync().unwrap();
    for number in [10, 11] {
        assert_eq!(damage(&world, number).len(), 1);
    }
    assert_eq!(scrub(&pool).errors, 2);
    assert_eq!(names(&pool), ["tank/a:/file", "tank/a@one:/file"]);
    pool.export().unwrap();
}

#[test]
fn known_errors_are_read_again_and_go_when_they_are_mended() {
    let world = World::without_journal(60);
    let pool = scan::chained(&world);
    // Without known errors there is nothing to do.
    pool.inner().start_error_scrub().unwrap();
    assert!(!pool.inner().is_error_scrubbing());
    assert_eq!(state(&pool), None);

    let damaged = [damage(&world, 0), damage(&world, 1)].map(|found| {
        assert_eq!(found.len(), 12, "six files on two disks");
        found
    });
    assert_eq!(scrub(&pool).errors, 12);
    assert_eq!(known(&pool), 12);
    let mut both = all_files(0);
    both.extend(all_files(1));
    both.sort();
    assert_eq!(names(&pool), both);

    // All are bad again.
    let again = run(&pool);
    assert_eq!(
        (again.examined, again.errors, again.to_examine),
        (12, 12, 0)
    );
    assert_eq!(names(&pool), both);
    // One side of the first ones is right again: the other is repaired.
    let one_side: Vec<Damage> = (damaged.into_iter().next().unwrap().into_iter())
        .filter(|damage| damage.disk == 0)
        .collect();
    mend(&world, &one_side);
    let again = run(&pool);
    assert_eq!((again.examined, again.errors), (12, 6));
    assert_eq!(names(&pool), all_files(1));
    assert_eq!(known(&pool), 6);
    let sound = scan::scrub(&pool);
    assert_eq!((sound.errors, sound.processed_bytes), (6, 0));
    assert_eq!(state(&pool), Some(ErrorScrubPhys::default()));
    pool.export().unwrap();
}

#[test]
fn blocks_that_were_freed_are_no_errors_any_more() {
    let world = World::without_journal(61);
    let pool = scan::chained(&world);
    damage(&world, 0);
    scrub(&pool);
    let remove = |dataset: &str, file: &str| {
        let files = pool.file_system(dataset).unwrap();
        files
            .unlink(&files.root().unwrap(), file.as_bytes())
            .unwrap();
        pool.sync().unwrap();
    };
    // A search that ends early says so.
    let view = pool.committed().unwrap();
    let first = view.inner().known_errors(None, 1).unwrap();
    let (error, mut looks) = (first.first().unwrap(), 1);
    let found = millpond_engine::references(view.inner(), error, &mut looks);
    assert!(found.is_partial && found.datasets.len() <= 1 && looks == 0);
    drop(view);
    // Only the head had it, so its name goes with it.
    remove("tank/a", "head0");
    let mut left = all_files(0);
    left.retain(|name| name != "tank/a:/head0");
    assert_eq!(names(&pool), left);
    // The other datasets still have it.
    remove("tank/a", "one0");
    left.retain(|name| name != "tank/a:/one0");
    assert_eq!(names(&pool), left);
    assert_eq!(known(&pool), 6);
    let again = run(&pool);
    assert_eq!((again.examined, again.errors), (5, 5));
    assert_eq!(known(&pool), 5);
    assert_eq!(names(&pool), left);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    assert_eq!(names(&pool), left);
    pool.export().unwrap();
}

#[test]
fn error_scrubs_are_paused_resumed_and_cancelled() {
    let world = World::without_journal(62);
    let pool = scan::chained(&world);
    damage(&world, 0);
    scrub(&pool);
    let refused =
        |outcome: Result<(), millpond_engine::PoolError>| outcome.unwrap_err().to_string();
    let inner = pool.inner();
    inner.start_error_scrub().unwrap();
    let running = "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub";
    assert_eq!(refused(inner.start_error_scrub()), running);
    assert_eq!(refused(inner.start_scrub(ScrubRange::All)), running);
    inner.pause_scrub().unwrap();
    let paused = "error scrub is paused; use 'zpool scrub -e' to resume error scrub";
    assert_eq!(refused(inner.pause_scrub()), paused);
    assert_eq!(refused(inner.start_scrub(ScrubRange::All)), paused);
    assert!(!scanner().error_slice(inner).unwrap());
    pool.export().unwrap();

    let pool = sim::open(&world).unwrap();
    assert!(state(&pool).unwrap().is_paused && !pool.inner().is_error_scrubbing());
    pool.inner().start_error_scrub().unwrap();
    pool.inner().cancel_scrub().unwrap();
    assert_eq!(state(&pool).unwrap().phase, ScanPhase::Cancelled);
    assert_eq!(
        refused(pool.inner().cancel_scrub()),
        "there is no active scrub"
    );
    assert_eq!(known(&pool), 6);
    // One that runs continues after an import.
    pool.inner().start_error_scrub().unwrap();
    drop(pool);
    let pool = sim::open(&world).unwrap();
    assert!(pool.inner().is_error_scrubbing());
    assert_eq!(go_on(&pool).errors, 6);
    assert_eq!(names(&pool), all_files(0));
    let classes: Vec<_> = (pool.inner().take_scan_notes().iter())
        .map(|note| note.class)
        .collect();
    assert_eq!(classes, ["errorscrub_finish"]);
    pool.export().unwrap();
}

/// A pool on one disk whose log names the datasets in which errors were met.
#[test]
fn without_logs_by_head_the_dataset_is_named_in_which_the_error_was_met() {
    let world = World::without_journal(63);
    let pool = sim::create_without(
        &world,
        &[(Normal, Single, 1)],
        128,
        sim::by_caller(),
        Some("head_errlog"),
    );
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    scan::fill(&pool, "tank/a", "one", 2);
    datasets.snapshot(&["tank/a@one"], &[]).unwrap();
    let files = pool.file_system("tank/a").unwrap();
    files.unlink(&files.root().unwrap(), b"one0").unwrap();
    drop(files);
    pool.sync().unwrap();
    damage(&world, 0);
    assert_eq!(scrub(&pool).errors, 1);
    assert_eq!(names(&pool), ["tank/a@one:/one0"]);
    let refused = pool.inner().start_error_scrub().unwrap_err().to_string();
    assert_eq!(refused, "operation not supported on this type of pool");
    assert_eq!(finish(&pool), 0);
    // The log is converted when the feature is enabled.
    scan::fill(&pool, "tank/a", "head", 1);
    damage(&world, 0);
    assert_eq!(scrub(&pool).errors, 2);
    let both = ["tank/a:/head0", "tank/a@one:/one0"];
    assert_eq!(names(&pool), both);
    let enable = PoolSetting::EnableFeature("head_errlog");
    pool.inner().set_property(&enable).unwrap();
    assert_eq!(
        (known(&pool), names(&pool)),
        (2, both.map(str::to_owned).to_vec())
    );
    let view = pool.committed().unwrap();
    let errors = view.inner().known_errors(None, 10).unwrap();
    assert!(
        errors.iter().all(|error| error.birth.is_some()),
        "{errors:?}"
    );
    drop(view);
    let again = run(&pool);
    assert_eq!((again.examined, again.errors), (2, 2));
    pool.export().unwrap();
}

#[test]
fn no_known_error_is_forgotten_in_a_power_cut() {
    let world = World::new(64);
    let tops = [(Normal, Single, 1)];
    let pool = sim::create_without(&world, &tops, 128, sim::by_caller(), Some("head_errlog"));
    scan::fill(&pool, "tank", "one", 2);
    pool.datasets().snapshot(&["tank@one"], &[]).unwrap();
    let files = pool.file_system("tank").unwrap();
    files.unlink(&files.root().unwrap(), b"one0").unwrap();
    drop(files);
    pool.sync().unwrap();
    damage(&world, 0);
    damage(&world, 1);
    assert_eq!(scrub(&pool).errors, 2);
    // In the older form the block of a file in the head is named once.
    let old = names(&pool);
    world.forget();
    let enable = PoolSetting::EnableFeature("head_errlog");
    pool.inner().set_property(&enable).unwrap();
    let new = names(&pool);
    assert_eq!(new, ["tank:/one1", "tank@one:/one0", "tank@one:/one1"]);
    assert_eq!(run(&pool).errors, 2);
    scrub(&pool);
    drop(pool);
    let mut visit = |state: State<'_>| {
        let what = state.what;
        let pool = sim::open(state.after).unwrap_or_else(|error| panic!("{what}: {error}"));
        let view = pool.committed().unwrap();
        let expected = match view.inner().has_logs_by_head() {
            true => &new,
            false => &old,
        };
        drop(view);
        assert_eq!(&names(&pool), expected, "{what}");
        // What was begun ends.
        finish(&pool);
        while scanner().error_slice(pool.inner()).unwrap() {}
        assert_eq!(&names(&pool), expected, "{what}, later");
        pool.export().unwrap();
    };
    each_state("error logs", &world, &mut Seed::new(65), &mut visit);
}
