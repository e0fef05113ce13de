use super::*;
use crate::import::{PoolState as FoundState, find_pools, scan_devices};
use crate::tests::made::NoDatasets;
use crate::{HistoryCommand, NewDevice, NewLayout, NewTop, SettingTime, SyncMode, check_writable};
use crate::{OpenOptions, PoolView};
use millpond_device::{Candidate, FileDevice, MemoryDevice, OpenOptions as DeviceOptions};
use millpond_env::mark;
use millpond_ondisk::ObjectId;
use millpond_vdev::AllocationClass;
use std::path::PathBuf;

const MIB: usize = 1 << 20;

#[test]
fn names_of_pools_are_valid_as_in_openzfs() {
    for name in [
        "tank",
        "a",
        "Tank-1_2.3:4",
        "logs",
        "two words",
        &"x".repeat(239),
    ] {
        assert_eq!(check_pool_name(name), Ok(()), "{name}");
    }
    for name in [
        "",
        "1tank",
        "-x",
        "tank/fs",
        "tank@s",
        "a%b",
        "mirror",
        "mirrored",
        "raidz2",
        "draid",
        "spares",
        "log",
        "a ",
        &"x".repeat(240),
    ] {
        assert!(check_pool_name(name).is_err(), "{name}");
    }
}

fn disks(first: usize, count: usize, mib: usize) -> Vec<NewDevice> {
    (first..first + count)
        .map(|n| {
            let device = Arc::new(MemoryDevice::new(vec![0; mib * MIB]));
            NewDevice::file(&format!("/d{n}"), device)
        })
        .collect()
}

fn new_pool(vdevs: NewVdevs) -> NewPool {
    NewPool {
        settings: vec![
            PoolSetting::parse("ashift", "12", SettingTime::Creation).unwrap(),
            PoolSetting::parse("comment", "made here", SettingTime::Creation).unwrap(),
        ],
        writing: WriteOptions {
            hostid: 7,
            hostname: Some("here".into()),
            sync_mode: SyncMode::Caller,
            ..WriteOptions::default()
        },
        system: "here 6.1 #1 x86_64".into(),
        cache_bytes: Some(16 << 20),
        ..NewPool::new("tank", vdevs)
    }
}

fn create(new: &NewPool) -> Result<Arc<Pool>, CreateError> {
    Pool::create(
        &Env::real(),
        new,
        &|_| false,
        Arc::new(NoDatasets::default()),
    )
}

fn all_devices(vdevs: &NewVdevs) -> Vec<NewDevice> {
    let tops = vdevs.tops.iter().flat_map(|top| &top.devices);
    tops.chain(&vdevs.spares)
        .chain(&vdevs.caches)
        .cloned()
        .collect()
}

/// Opens the pool for reading, as another program finding its devices would.
fn read_back(devices: &[NewDevice]) -> (Arc<PoolView>, FoundState) {
    let candidates = devices.iter().map(|one| Candidate {
        path: PathBuf::from(&one.path),
        aliases: vec![],
        partition: None,
        device: Arc::clone(&one.device),
        is_live: false,
    });
    let found = scan_devices(candidates.collect());
    let mut pools = find_pools(&found, 7);
    assert_eq!(pools.len(), 1);
    let candidate = pools.remove(0);
    let pool = PoolView::open(&Env::real(), &candidate, &OpenOptions::default()).unwrap();
    (pool, candidate.state)
}

fn classes() -> NewVdevs {
    let class = |layout, class, devices| NewTop {
        layout,
        class,
        devices,
    };
    NewVdevs {
        tops: vec![
            NewTop::normal(NewLayout::Mirror, disks(0, 2, 64)),
            class(NewLayout::Mirror, AllocationClass::Special, disks(2, 2, 64)),
            class(NewLayout::Single, AllocationClass::Log, disks(4, 1, 64)),
        ],
        spares: disks(5, 1, 64),
        caches: disks(6, 1, 64),
    }
}

#[test]
fn a_new_pool_of_every_layout_opens_and_is_writable() {
    for vdevs in [
        NewVdevs::of(vec![NewTop::normal(NewLayout::Single, disks(0, 1, 64))]),
        NewVdevs::of(vec![NewTop::normal(NewLayout::Mirror, disks(0, 3, 64))]),
        NewVdevs::of(vec![NewTop::normal(NewLayout::Raidz(1), disks(0, 3, 64))]),
        NewVdevs::of(vec![NewTop::normal(NewLayout::Raidz(2), disks(0, 5, 64))]),
        NewVdevs::of(
            (0..3)
                .map(|n| NewTop::normal(NewLayout::Single, disks(n, 1, 64)))
                .collect(),
        ),
        classes(),
    ] {
        let new = new_pool(vdevs);
        let live = create(&new).unwrap();
        assert_eq!(live.uberblock().txg, FIRST_TXG);
        live.sync_task(|ctx| ctx.set_directory_number("test:count", 1))
            .unwrap();
        let devices = all_devices(&new.vdevs);
        let (read, state) = read_back(&devices);
        assert_eq!(state, FoundState::Active);
        assert_eq!((read.name(), read.version()), ("tank", 5000));
        assert_eq!(check_writable(&read), Ok(()));
        assert_eq!(read.directory_number("test:count"), Ok(Some(1)));
        assert_eq!(read.config().string("comment"), Ok("made here"));
        assert_eq!(read.config().u64("hostid"), Ok(7));
        let config = PoolConfig::from_nvlist(read.config()).unwrap();
        for vdev in &config.root.children {
            assert_ne!(vdev.metaslab_array, ObjectId(0));
            assert!(vdev.zap_top.is_some());
        }
        assert!(config.root.zap_root.is_some());
        assert_eq!(read.spares().len(), new.vdevs.spares.len());
        assert_eq!(read.caches().len(), new.vdevs.caches.len());
        live.export().unwrap();
        assert_eq!(read_back(&devices).1, FoundState::Exported);
    }
}

#[test]
fn feature_counts_of_a_new_pool_match_openzfs() {
    let new = new_pool(classes());
    let live = create(&new).unwrap();
    let (read, _) = read_back(&all_devices(&new.vdevs));
    let count = |name: &str| {
        let guid = Feature::by_name(name).unwrap().guid;
        read.features().count(guid)
    };
    assert_eq!(count("allocation_classes"), Some(1));
    assert_eq!(count("vdev_zaps_v2"), Some(1));
    assert_eq!(count("log_spacemap"), Some(1));
    assert_eq!(count("lz4_compress"), Some(1));
    assert_eq!(count("draid"), Some(0));
    assert_eq!(read.features(), &live.features());
    let property = |name: &str| read.property(name).unwrap().unwrap();
    assert_eq!(property("ashift").literal(None), "12");
    assert_eq!(property("comment").literal(None), "made here");
    let listed = read.config().list("features_for_read").unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|pair| pair.name.to_string_lossy())
        .collect();
    assert_eq!(
        listed,
        [
            "com.delphix:hole_birth",
            "com.delphix:embedded_data",
            "com.klarasystems:vdev_zaps_v2"
        ]
    );
}

#[test]
fn a_pool_without_features_has_empty_tables_and_labels() {
    let _mark = mark::expect("third-sync-pass");
    let _mark = mark::expect("frees-deferred");
    let mut new = new_pool(NewVdevs::of(vec![NewTop::normal(
        NewLayout::Single,
        disks(0, 1, 64),
    )]));
    new.features = FeatureChoice::OnlyNamed;
    let live = create(&new).unwrap();
    for expected in 1..=3 {
        live.sync_task(|ctx| ctx.set_directory_number("test:count", expected))
            .unwrap();
    }
    let (read, _) = read_back(&all_devices(&new.vdevs));
    assert_eq!(read.features(), &crate::Features::default());
    assert!(read.config().list("features_for_read").unwrap().is_empty());
    assert_eq!(read.directory_number("test:count"), Ok(Some(3)));
    assert_eq!(check_writable(&read), Ok(()));
}

#[test]
fn the_history_records_creation_and_commands() {
    let new = new_pool(NewVdevs::of(vec![NewTop::normal(
        NewLayout::Single,
        disks(0, 1, 64),
    )]));
    let live = create(&new).unwrap();
    for command in ["zpool create tank /d0", "zfs create tank/a"] {
        live.record_command(&HistoryCommand {
            command: command.into(),
            user: 0,
        })
        .unwrap();
    }
    let (read, _) = read_back(&all_devices(&new.vdevs));
    let records: Vec<NvList> = read
        .history()
        .unwrap()
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(records[0].string("internal_name"), Ok("create"));
    assert!(
        records[0]
            .string("history internal str")
            .unwrap()
            .starts_with("pool version 5000; software version millpond-")
    );
    let sets = records
        .iter()
        .filter(|record| record.string("internal_name") == Ok("set"));
    assert_eq!(sets.count(), 2 + 44);
    let commands: Vec<_> = records
        .iter()
        .filter_map(|record| record.string("history command").ok())
        .collect();
    assert_eq!(commands, ["zpool create tank /d0", "zfs create tank/a"]);
    assert_eq!(records[0].u64("history txg"), Ok(4));
    assert_eq!(records[0].string("history hostname"), Ok("here"));
}

#[test]
fn properties_are_set_and_read_back_and_features_enabled_later() {
    let mut new = new_pool(NewVdevs::of(vec![NewTop::normal(
        NewLayout::Single,
        disks(0, 1, 64),
    )]));
    new.features = FeatureChoice::OnlyNamed;
    let live = create(&new).unwrap();
    for (name, value) in [
        ("failmode", "continue"),
        ("autotrim", "on"),
        ("com.example:note", "a text"),
        ("comment", "another"),
        ("compatibility", "grub2"),
        ("feature@large_microzap", "enabled"),
    ] {
        let setting = PoolSetting::parse(name, value, SettingTime::Later).unwrap();
        live.set_property(&setting).unwrap();
    }
    assert_eq!(live.failmode(), FailMode::Continue);
    let devices = all_devices(&new.vdevs);
    let text = |name: &str| {
        let (read, _) = read_back(&devices);
        let property = read.property(name).unwrap();
        property.map(|property| property.literal(crate::properties::table::find(name)))
    };
    assert_eq!(text("failmode").as_deref(), Some("continue"));
    assert_eq!(text("autotrim").as_deref(), Some("on"));
    assert_eq!(text("com.example:note").as_deref(), Some("a text"));
    assert_eq!(text("comment").as_deref(), Some("another"));
    assert_eq!(text("compatibility").as_deref(), Some("grub2"));
    let none = PoolSetting::parse("com.example:note", "", SettingTime::Later).unwrap();
    live.set_property(&none).unwrap();
    assert_eq!(text("com.example:note"), None);
    let (read, _) = read_back(&devices);
    assert_eq!(
        read.features().count("com.klarasystems:large_microzap"),
        Some(0)
    );
    let enabled = live.upgrade(None).unwrap();
    assert!(enabled.contains(&"log_spacemap") && !enabled.contains(&"large_microzap"));
    for expected in 1..=3 {
        live.sync_task(|ctx| ctx.set_directory_number("test:count", expected))
            .unwrap();
    }
    let (read, _) = read_back(&devices);
    assert!(read.features().is_active("com.delphix:log_spacemap"));
    assert_eq!(read.directory_number("test:count"), Ok(Some(3)));
}

#[test]
fn added_vdevs_take_blocks_from_the_next_txg() {
    let new = new_pool(NewVdevs::of(vec![NewTop::normal(
        NewLayout::Single,
        disks(0, 1, 64),
    )]));
    let live = create(&new).unwrap();
    let mut more = NewVdevs::of(vec![
        NewTop::normal(NewLayout::Single, disks(1, 1, 80)),
        NewTop {
            layout: NewLayout::Single,
            class: AllocationClass::Special,
            devices: disks(2, 1, 64),
        },
    ]);
    more.spares = disks(3, 1, 64);
    let force = NewVdevOptions {
        force: true,
        ..NewVdevOptions::default()
    };
    live.add_vdevs(&more, force, &|_| false).unwrap();
    let mut devices = all_devices(&new.vdevs);
    devices.extend(all_devices(&more));
    let (read, _) = read_back(&devices);
    assert_eq!(read.assembly().root.children.len(), 3);
    assert_eq!(read.spares().len(), 1);
    assert_eq!(
        read.features().count("org.zfsonlinux:allocation_classes"),
        Some(1)
    );
    let added = &read.assembly().root.children[1];
    assert_eq!((added.ashift, added.id), (12, Some(1)));
    for expected in 1..=4 {
        live.sync_task(|ctx| ctx.set_directory_number("test:count", expected))
            .unwrap();
    }
    let (read, _) = read_back(&devices);
    assert_eq!(read.directory_number("test:count"), Ok(Some(4)));
    let used: Vec<u64> = live
        .space()
        .vdevs
        .iter()
        .map(|v| v.allocated_bytes)
        .collect();
    // Metadata is allocated on the special vdev as soon as one exists.
    assert!(used[2] > 0, "{used:?}");
    // The pool's own devices are refused, with or without force.
    let again = NewVdevs::of(vec![NewTop::normal(
        NewLayout::Single,
        vec![devices[1].clone()],
    )]);
    assert!(matches!(
        live.add_vdevs(&again, force, &|_| false),
        Err(CreateError::Vdevs(NewVdevError::InUse(_)))
    ));
    assert!(live.suspension().is_none());
}

#[test]
fn a_pool_with_a_new_identity_is_found_under_it() {
    let new = new_pool(NewVdevs::of(vec![NewTop::normal(
        NewLayout::Mirror,
        disks(0, 2, 64),
    )]));
    let live = create(&new).unwrap();
    let old = live.guid();
    let guid = live.reguid(None).unwrap();
    assert_ne!(guid, old);
    let (read, _) = read_back(&all_devices(&new.vdevs));
    assert_eq!(read.guid(), guid);
    assert_eq!(read.assembly().guid_sum(), read.uberblock().guid_sum);
}

#[test]
fn invalid_pools_are_refused_before_devices_are_touched() {
    let refused = |change: &dyn Fn(&mut NewPool)| {
        let mut new = new_pool(NewVdevs::of(vec![NewTop::normal(
            NewLayout::Single,
            disks(0, 1, 64),
        )]));
        change(&mut new);
        let error = create(&new).unwrap_err();
        let device = &new.vdevs.tops[0].devices[0].device;
        let mut start = vec![0; 512 << 10];
        device.read(0, &mut start).unwrap();
        assert!(start.iter().all(|byte| *byte == 0));
        error
    };
    assert!(matches!(
        refused(&|new| new.name = "mirror".into()),
        CreateError::Name { .. }
    ));
    assert!(matches!(
        refused(&|new| new.vdev_options.ashift = Some(20)),
        CreateError::Vdevs(NewVdevError::Ashift(20))
    ));
    assert!(matches!(
        refused(&|new| new
            .settings
            .push(PoolSetting::EnableFeature("draid_failure_domains"))),
        CreateError::Feature(FeatureError::NotWritten(_))
    ));
}

#[test]
fn the_same_seed_makes_the_same_bytes() {
    let make = || {
        let env = millpond_sim::World::without_journal(9).env();
        let device = Arc::new(MemoryDevice::new(vec![0; 64 * MIB]));
        let one = NewDevice::file("/d0", device.clone());
        let new = new_pool(NewVdevs::of(vec![NewTop::normal(
            NewLayout::Single,
            vec![one],
        )]));
        let live = Pool::create(&env, &new, &|_| false, Arc::new(NoDatasets::default())).unwrap();
        live.sync_task(|ctx| ctx.set_directory_number("test:count", 1))
            .unwrap();
        device.to_vec()
    };
    // Not `assert_eq`: a failure would print 64 MiB.
    assert!(make() == make());
}

#[test]
fn pools_can_be_made_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d0");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let open = || {
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        FileDevice::open(&path, options)
    };
    let device = Arc::new(open().unwrap());
    let vdevs = NewVdevs::of(vec![NewTop::normal(
        NewLayout::Single,
        vec![NewDevice::file(path.to_str().unwrap(), device)],
    )]);
    let mut new = new_pool(vdevs);
    new.writing.sync_mode = SyncMode::Thread;
    let live = create(&new).unwrap();
    // The devices are locked while the pool is open.
    assert!(open().is_err());
    live.export().unwrap();
    let (read, state) = read_back(&all_devices(&new.vdevs));
    assert_eq!((read.name(), state), ("tank", FoundState::Exported));
}
