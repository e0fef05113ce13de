//! Scrubs and resilvers of blocks that files share.

use crate::cloning::{LENGTH, RECORD, content, copy, copy_file, make, node, pool_on};
use crate::scan::{finish, leaf, online, scanner, state};
use crate::sim;
use millpond_device::Device;
use millpond_engine::{
    Caller,
    NewLayout::{Mirror, Single},
    Pool, Scanner, ScrubRange, View, WriteAt,
};
use millpond_env::mark;
use millpond_object::ObjectView;
use millpond_ondisk::{
    BlockId, DslDatasetPhys, Level, ObjectId, ObjectType, ScanPhase, VDEV_DATA_START_BYTES,
};
use millpond_sim::{World, noise};

/// Overwrites where these bytes are stored, which is one place.
pub(crate) fn spoil(world: &World, bytes: &[u8]) {
    let sector = 512;
    let mut spoiled = 0;
    for disk in world.disks() {
        let pages: Vec<u64> = disk.content().pages().map(|(offset, _)| offset).collect();
        for offset in pages {
            let mut page = vec![0; 4096];
            disk.read(offset, &mut page).unwrap();
            let at = page.chunks(sector).position(|now| now == &bytes[..sector]);
            if let Some(at) = at {
                disk.rot(offset + (at * sector) as u64, &noise(99, sector));
                spoiled += 1;
            }
        }
    }
    assert_eq!(spoiled, 1, "a block is stored once");
}

#[test]
fn all_files_that_share_a_lost_block_are_named() {
    let world = World::without_journal(530);
    let pool = pool_on(&world, &[(Single, 1)]);
    let [a, b] = ["tank/a", "tank/b"].map(|name| pool.file_system(name).unwrap());
    let source = make(&a, "source", &content(4));
    pool.sync().unwrap();
    copy_file(&a, &source, "copy");
    copy_file(&b, &source, "elsewhere");
    let kept = make(&a, "kept", &content(5));
    pool.sync().unwrap();
    drop((source, kept));
    spoil(&world, &content(4)[2 * RECORD as usize..]);
    let wanted = ["tank/a/copy", "tank/a/source", "tank/b/elsewhere"];

    pool.inner().start_scrub(ScrubRange::All).unwrap();
    while Scanner::default().slice(pool.inner()).unwrap() {}
    let logged = pool.committed().unwrap().inner().logged_errors().unwrap();
    assert_eq!(logged.len(), wanted.len(), "{logged:?}");
    drop((a, b));
    pool.export().unwrap();

    let view = sim::read(&world).unwrap();
    let progress = millpond_verify::Progress::default();
    let report = view.verify(&progress, &|_| ()).unwrap();
    let named = |dataset: &Option<String>, path: &Option<Vec<u8>>| {
        let path = String::from_utf8(path.clone().unwrap()).unwrap();
        format!(
            "{}/{}",
            dataset.clone().unwrap(),
            path.trim_start_matches('/')
        )
    };
    let damaged = report.damaged.iter();
    let mut damaged: Vec<String> = damaged.map(|one| named(&one.dataset, &one.path)).collect();
    damaged.sort();
    assert_eq!(damaged, wanted);
    let losses = report.losses.objects.iter();
    let mut losses: Vec<String> = losses.map(|one| named(&one.dataset, &one.path)).collect();
    losses.sort();
    assert_eq!(losses, wanted);
}

#[test]
fn a_resilver_misses_no_block_that_is_cloned_meanwhile() {
    misses_nothing("resilver", 540, |pool| {
        assert!(pool.inner().start_resilver().unwrap());
    });
}

/// At its end leaves that lack something count as complete, as after a resilver.
#[test]
fn a_scrub_of_everything_misses_no_block_that_is_cloned_meanwhile() {
    misses_nothing("scrub", 541, |pool| {
        pool.inner().start_scrub(ScrubRange::All).unwrap();
    });
}

fn misses_nothing(scan: &str, seed: u64, start: fn(&Pool)) {
    let _mark = mark::expect("cloned-during-scan");
    let mut rounds = 0;
    for slices in 0.. {
        let world = World::without_journal(seed);
        let pool = pool_on(&world, &[(Mirror, 2)]);
        let files = pool.file_system("tank/a").unwrap();
        // The resilver comes to it before it comes to the source.
        let target = make(&files, "target", &content(1));
        pool.sync().unwrap();
        let away = leaf(&pool, 1);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
        for number in 0..12 {
            make(&files, &format!("other{number}"), &content(10 + number));
        }
        let source = make(&files, "source", &content(2));
        pool.sync().unwrap();
        online(&world, &pool, 1);
        start(&pool);
        for _ in 0..slices {
            scanner().slice(pool.inner()).unwrap();
        }
        if state(&pool).phase != ScanPhase::Scanning {
            break;
        }
        // From here on only the target has these blocks.
        copy(&files, (&source, 0), (&target, 0), LENGTH);
        let (caller, at) = (Caller::root(), WriteAt::Offset(0));
        files.write(&caller, &source, at, &content(3)).unwrap();
        pool.sync().unwrap();
        finish(&pool);
        for _ in 0..3 {
            pool.inner().start_resilver().unwrap();
            finish(&pool);
        }
        assert!(!pool.inner().needs_resilver());
        drop((files, source, target));
        pool.export().unwrap();
        sim::verify(&sim::read(&world).unwrap())
            .unwrap_or_else(|found| panic!("{scan}, after {slices} slices: {found}"));
        world.disks()[0].set_absent(true);
        let view = sim::read(&world).unwrap();
        let files = view.dataset("tank/a").unwrap().file_system().unwrap();
        let found = crate::cloning::bytes_of(&node(&files, "target"));
        assert!(found == content(2), "{scan}, after {slices} slices");
        rounds += 1;
    }
    assert!(rounds > 3, "{scan}: {rounds} slices");
}

/// Damages all copies of the first block of an object of the MOS.
fn lose(world: &World, view: &View, id: ObjectId) {
    let object = view.inner().mos().object(id).unwrap();
    lose_block(world, view, &object, BlockId(0));
}

/// Damages all copies of a block on all disks.
fn lose_block(world: &World, view: &View, object: &ObjectView, block: BlockId) {
    let pointer = object.pointer(Level(0), block).unwrap();
    assert!(pointer.dvas().count() > 1);
    for (disk, dva) in
        (world.disks().iter()).flat_map(|disk| pointer.dvas().map(move |dva| (disk, dva)))
    {
        disk.rot(VDEV_DATA_START_BYTES + dva.offset_bytes, &noise(7, 512));
    }
    view.inner().store().forget(&pointer);
}

/// The table that says which clones a snapshot has is lost. All that follows is visited all the same.
#[test]
fn clones_are_scanned_although_their_table_is_lost() {
    let _mark = mark::expect("scan-searches-clones");
    let world = World::without_journal(534);
    let pool = pool_on(&world, &[(Single, 1)]);
    let datasets = pool.datasets();
    datasets.snapshot(&["tank/a@1"], &[]).unwrap();
    for number in 0..40 {
        let name = format!("tank/clone{number}");
        datasets.clone_snapshot("tank/a@1", &name, &[]).unwrap();
        let files = pool.file_system(&name).unwrap();
        make(&files, "own", &content(number));
    }
    pool.sync().unwrap();
    let view = pool.committed().unwrap();
    let mos = view.inner().mos();
    let id = view.dataset("tank/a@1").unwrap().inner().id();
    let snapshot = mos.object(id).unwrap();
    let phys = DslDatasetPhys::decode(snapshot.bonus().unwrap(), snapshot.dnode().endian).unwrap();
    lose(&world, &view, phys.next_clones.unwrap());
    drop((snapshot, view));
    spoil(&world, &content(33)[..RECORD as usize]);
    pool.export().unwrap();
    let pool = sim::open(&world).unwrap();
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    finish(&pool);
    assert_eq!(state(&pool).phase, ScanPhase::Finished);
    let logged = pool.committed().unwrap().inner().logged_errors().unwrap();
    let is_named = |dataset: u64, object: u64| {
        (logged.iter()).any(|error| (error.dataset, error.object) == (dataset, object))
    };
    assert!(is_named(0, phys.next_clones.unwrap().0), "{logged:?}");
    let view = pool.committed().unwrap();
    let clone = view.dataset("tank/clone33").unwrap().inner().id();
    assert!(
        logged.iter().any(|error| error.dataset == clone.0),
        "{logged:?}"
    );
    assert_eq!(logged.len(), 2, "{logged:?}");
}

/// The object of a snapshot is lost, and nothing else. A side that comes back gets what follows the snapshot, and does not
/// count as complete.
#[test]
fn a_side_is_not_complete_if_a_snapshot_could_not_be_visited() {
    let _mark = mark::expect("scan-passes-over-dataset");
    let world = World::without_journal(535);
    let pool = pool_on(&world, &[(Mirror, 2)]);
    let files = pool.file_system("tank/a").unwrap();
    make(&files, "early", &content(1));
    // Many in one txg, so that blocks of the MOS hold nothing but snapshots. All but the one in the middle go.
    let mut names: Vec<String> = (0..40).map(|number| format!("tank/n{number}")).collect();
    for name in &names {
        pool.datasets().create_filesystem(name, &[]).unwrap();
    }
    pool.sync().unwrap();
    names.insert(20, "tank/a".to_owned());
    let names: Vec<String> = names.iter().map(|name| format!("{name}@s")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    pool.datasets().snapshot(&names, &[]).unwrap();
    let kept = names.remove(20);
    let tasks = pool.datasets();
    tasks.destroy_snapshots(&names, Default::default()).unwrap();
    pool.sync().unwrap();
    let away = leaf(&pool, 1);
    pool.inner().offline_leaf(away, Default::default()).unwrap();
    make(&files, "late", &content(2));
    pool.sync().unwrap();
    let view = pool.committed().unwrap();
    let kept = view.dataset(kept).unwrap().inner().id();
    let mos = view.inner().mos();
    let block = BlockId(kept.0 / 32);
    let beside = |object: &ObjectView| object.id().0 / 32 == block.0 && object.id() != kept;
    for other in mos.objects().map(Result::unwrap).filter(beside) {
        // Only what belongs to the snapshot.
        assert_ne!(
            other.dnode().bonus_type,
            ObjectType::DSL_DATASET,
            "{:?}",
            other.id()
        );
        assert_ne!(
            other.dnode().bonus_type,
            ObjectType::DSL_DIRECTORY,
            "{:?}",
            other.id()
        );
    }
    lose_block(&world, &view, &mos.meta_object(), block);
    drop(view);
    drop(files);
    pool.export().unwrap();

    let pool = sim::open(&world).unwrap();
    online(&world, &pool, 1);
    pool.inner().start_resilver().unwrap();
    finish(&pool);
    assert!(pool.inner().needs_resilver());
    let known = pool.committed().unwrap().inner().logged_errors().unwrap();
    assert!(!known.is_empty());
    // A scrub that does not visit the snapshot does not take back what is known.
    pool.inner().start_scrub(ScrubRange::All).unwrap();
    finish(&pool);
    assert!(pool.inner().needs_resilver());
    pool.export().unwrap();
    world.disks()[0].set_absent(true);
    let view = sim::read(&world).unwrap();
    let files = view.dataset("tank/a").unwrap().file_system().unwrap();
    for (name, seed) in [("early", 1), ("late", 2)] {
        let found = crate::cloning::bytes_of(&node(&files, name));
        assert!(found == content(seed), "{name}");
    }
}
