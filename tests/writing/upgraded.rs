//! File systems older than the features for space accounting by owner.
//!
//! A pool created without these features is upgraded.

use crate::exhaustive::judge;
use crate::sim;
use millpond_check::{CheckOptions, check_pool};
use millpond_engine::{
    Caller, FeatureChoice, FileSystem, NewDevice, NewLayout, NewMode, NewPool, NewTop,
    NewVdevOptions, NewVdevs, OpenOptions, Pool, QuotaMeasure, QuotaOwner, WriteAt, WriteOptions,
};
use millpond_env::mark;
use millpond_sim::World;

/// More than one transaction can complete.
const FILES: usize = 200;
const USER: u32 = 1000;

fn without_features(world: &World) -> Pool {
    let disk = world.disk(128 << 20, 512);
    let device = NewDevice::file("/sim/d0.img", disk);
    let top = NewTop::normal(NewLayout::Single, vec![device]);
    let new = NewPool {
        vdev_options: NewVdevOptions {
            ashift: Some(9),
            force: true,
        },
        features: FeatureChoice::OnlyNamed,
        // Another thread changes files too: the one that completes the accounting.
        writing: WriteOptions::default(),
        system: "sim".into(),
        cache_bytes: Some(16 << 20),
        ..NewPool::new("tank", NewVdevs::of(vec![top]))
    };
    Pool::create(&world.env(), &new).unwrap()
}

fn make(files: &FileSystem, name: &str, user: u32) {
    let (root, mode) = (files.root().unwrap(), NewMode::exactly(0o644));
    let caller = Caller {
        uid: user,
        ..Caller::root()
    };
    let (node, _) = files
        .create(&caller, &root, name.as_bytes(), mode, true)
        .unwrap();
    files
        .write(&caller, &node, WriteAt::Offset(0), name.as_bytes())
        .unwrap();
}

fn used(files: &FileSystem, measure: QuotaMeasure) -> u64 {
    files
        .used(QuotaOwner::User, measure, u64::from(USER))
        .unwrap()
}

fn is_whole(pool: Pool, world: &World) {
    pool.export().unwrap();
    let read = sim::read(world).unwrap();
    let report = check_pool(read.inner(), &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    for feature in ["userobj_accounting", "project_quota"] {
        let guid = format!("org.zfsonlinux:{feature}");
        assert_eq!(read.inner().features().count(&guid), Some(1), "{feature}");
    }
    drop(read);
    judge(world, "upgraded");
}

#[test]
fn after_an_upgrade_every_file_is_counted_and_quotas_hold() {
    let _mark = mark::expect("accounting-goes-on-in-next-transaction");
    let world = World::without_journal(51);
    let pool = without_features(&world);
    let files = pool.file_system("tank").unwrap();
    for number in 0..FILES {
        make(&files, &format!("old{number}"), USER);
    }
    pool.sync().unwrap();
    assert_eq!(used(&files, QuotaMeasure::Objects), 0);
    drop(files);
    let served = pool.served("tank").unwrap();
    pool.inner().upgrade(None).unwrap();
    pool.features_changed();
    assert_ne!(served.files().incomplete_accounting(), 0);
    make(served.files(), "first", USER + 1);
    while served.files().incomplete_accounting() != 0 {
        pool.sync().unwrap();
    }
    pool.sync().unwrap();
    let files = served.files();
    assert_eq!(used(files, QuotaMeasure::Objects), FILES as u64);
    let projects = files
        .used(QuotaOwner::Project, QuotaMeasure::Objects, 0)
        .unwrap();
    assert!(projects > FILES as u64, "{projects}");
    files
        .set_quota(
            QuotaOwner::User,
            QuotaMeasure::Objects,
            u64::from(USER),
            FILES as u64 + 1,
        )
        .unwrap();
    make(files, "last", USER);
    pool.sync().unwrap();
    let (root, mode) = (files.root().unwrap(), NewMode::exactly(0o644));
    let caller = Caller {
        uid: USER,
        ..Caller::root()
    };
    let refused = files.create(&caller, &root, b"more", mode, true);
    assert!(refused.is_err());
    make(files, "of-another", USER + 1);
    drop(served);
    is_whole(pool, &world);
}

#[test]
fn interrupted_upgrades_complete_after_the_next_mount() {
    let world = World::without_journal(52);
    let pool = without_features(&world);
    let files = pool.file_system("tank").unwrap();
    for number in 0..FILES {
        make(&files, &format!("old{number}"), USER);
    }
    drop(files);
    pool.sync().unwrap();
    pool.inner().upgrade(None).unwrap();
    // Not mounted: only changed files are counted.
    let files = pool.file_system("tank").unwrap();
    assert_ne!(files.incomplete_accounting(), 0);
    files
        .set_quota(QuotaOwner::User, QuotaMeasure::Objects, u64::from(USER), 1)
        .unwrap();
    make(&files, "new", USER);
    pool.sync().unwrap();
    make(&files, "newer", USER);
    drop(files);
    pool.sync().unwrap();
    drop(pool);
    let (options, writing) = (OpenOptions::default(), WriteOptions::default());
    let pool = sim::candidate(&world);
    let pool = Pool::open_candidate(&world.env(), &pool, &options, &writing).unwrap();
    let served = pool.served("tank").unwrap();
    while served.files().incomplete_accounting() != 0 {
        pool.sync().unwrap();
    }
    pool.sync().unwrap();
    assert_eq!(
        used(served.files(), QuotaMeasure::Objects),
        FILES as u64 + 2
    );
    drop(served);
    is_whole(pool, &world);
}
