//! Runs a daemon in this process: pools on image files, mock mounts, and requests over a real socket.

use millpond_control::{
    ChangeError, ControlError, DatasetChange, DatasetQuery, HistoryEvent, ImportError,
    ImportRequest, MountProblem, MountRequest, NewDevices, NewPoolRequest, Note, PoolChange,
    Property, SearchPaths as Where, Service, Source, TopRequest, Value, VdevState, Wanted,
};
use millpond_daemon::metrics::{self, MetricsListener, MetricsServer};
use millpond_daemon::{
    Daemon, Listener, NoMounter, PretendMounter, StartError, StateDirs, StateError,
};
use millpond_dataset::properties::{Kinds, by_name};
use millpond_engine::{AllocationClass, FeatureChoice, NewLayout};
use millpond_env::Env;
use millpond_rpc::{Access, Caller, Client, serve};
use millpond_service::CacheFile;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Stage {
    folder: tempfile::TempDir,
    mounter: PretendMounter,
}

impl Stage {
    fn new() -> Self {
        let quick = Path::new("/dev/shm");
        let folder = match quick.is_dir() {
            true => tempfile::tempdir_in(quick),
            false => tempfile::tempdir(),
        };
        Self {
            folder: folder.unwrap(),
            mounter: PretendMounter::default(),
        }
    }

    fn image(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        if !path.exists() {
            std::fs::File::create(&path)
                .unwrap()
                .set_len(96 << 20)
                .unwrap();
        }
        path.to_string_lossy().into_owned()
    }

    fn places(&self, name: &str) -> StateDirs {
        StateDirs::in_folder(&self.folder.path().join(name))
    }

    fn start(&self, name: &str) -> Arc<Daemon> {
        let mounter = Box::new(self.mounter.clone());
        let told = Box::new(|line: &millpond_daemon::Line| println!("daemon: {line}"));
        Daemon::start(&Env::real(), &self.places(name), mounter, told).unwrap()
    }

    fn request(&self, name: &str, image: &str) -> NewPoolRequest {
        NewPoolRequest {
            temporary_name: None,
            name: name.into(),
            devices: NewDevices {
                tops: vec![TopRequest {
                    class: AllocationClass::Normal,
                    layout: NewLayout::Single,
                    paths: vec![self.image(image)],
                }],
                ..NewDevices::default()
            },
            features: FeatureChoice::Default,
            properties: vec![],
            root_properties: vec![],
            only_check: false,
        }
    }

    fn import(&self, pool: &str) -> ImportRequest {
        ImportRequest {
            pool: pool.into(),
            places: Where {
                paths: vec![self.folder.path().to_string_lossy().into_owned()],
                cache_file: None,
            },
            mount: true,
            ..ImportRequest::default()
        }
    }
}

/// A client whose peer is served by a thread.
fn client(daemon: &Arc<Daemon>, user: u32) -> Client {
    let (here, there) = UnixStream::pair().unwrap();
    let daemon = Arc::clone(daemon);
    std::thread::spawn(move || {
        let caller = Caller { user, process: 0 };
        let _ = serve(there, daemon.as_ref(), caller, Access::of(caller, 1000));
    });
    Client::new(here)
}

/// Waits until no thread serves the daemon any more.
fn gone(daemon: Arc<Daemon>) {
    while Arc::strong_count(&daemon) > 1 {
        std::thread::yield_now();
    }
}

fn create(name: &str) -> PoolChange {
    PoolChange::Dataset(DatasetChange::CreateFileSystem {
        name: name.into(),
        properties: vec![],
        mount: true,
    })
}

fn mounted(client: &Client) -> Vec<String> {
    let mounts = client.mounts().unwrap().into_iter();
    mounts
        .map(|mount| format!("{} {}", mount.dataset, mount.mountpoint))
        .collect()
}

fn property(client: &Client, dataset: &str, name: &str) -> Option<Property> {
    let query = DatasetQuery {
        root: dataset.into(),
        depth: 0,
        kinds: Kinds::ALL,
        wanted: Wanted::Named(vec![by_name(name).unwrap()]),
    };
    let mut found = None;
    let told = client.datasets(&query, &mut |info| {
        found = info.property(name).cloned();
        Ok(())
    });
    told.unwrap();
    found
}

/// Commands and internal events of the pool itself, in order.
fn told(client: &Client) -> Vec<String> {
    let mut all = vec![];
    let read = client.history("tank", &mut |record| {
        match record.event {
            HistoryEvent::Command(command) => all.push(command),
            HistoryEvent::Internal {
                event,
                dataset: None,
                text,
            } if text.starts_with("pool version") => all.push(event),
            _ => {}
        }
        Ok(())
    });
    read.unwrap();
    all
}

#[test]
fn a_pool_lives_from_one_start_to_the_next() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked
        .create_pool(&stage.request("tank", "a"), "zpool create tank a")
        .unwrap();
    asked
        .change("tank", &[create("tank/home")], "zfs create tank/home")
        .unwrap();
    assert_eq!(mounted(&asked), ["tank /tank", "tank/home /tank/home"]);
    let is_mounted = property(&asked, "tank/home", "mounted").unwrap();
    assert_eq!(is_mounted.value, Some(Value::Number(1)));
    assert_eq!(asked.pool("tank").unwrap().health(), "ONLINE");

    // Simulates a kill: nothing is exported or unmounted, and no record is written.
    drop(asked);
    gone(daemon);
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    assert_eq!(asked.pools().unwrap(), ["tank"]);
    assert_eq!(mounted(&asked), ["tank /tank", "tank/home /tank/home"]);
    assert_eq!(
        told(&asked),
        [
            "create",
            "zpool create tank a",
            "zfs create tank/home",
            "open"
        ]
    );

    // After export the pool is gone, also after a restart.
    asked
        .change("tank", &[PoolChange::Export], "zpool export tank")
        .unwrap();
    assert!(mounted(&asked).is_empty());
    drop(asked);
    gone(daemon);
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    assert!(asked.pools().unwrap().is_empty());
    assert_eq!(
        asked
            .import(&stage.import("tank"), "zpool import tank")
            .unwrap()
            .name,
        "tank"
    );
    assert_eq!(mounted(&asked).len(), 2);
    assert_eq!(
        told(&asked)[4..],
        ["zpool export tank", "open", "import", "zpool import tank"]
    );
}

#[test]
fn what_lies_in_file_systems_and_volumes_is_set_by_commands() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked
        .create_pool(&stage.request("tank", "a"), "zpool create tank a")
        .unwrap();
    let volume = PoolChange::Dataset(DatasetChange::CreateVolume {
        name: "tank/v".into(),
        properties: vec![("volsize".into(), Value::Number(8 << 20))],
    });
    asked
        .change("tank", &[create("tank/home"), volume], "zfs create")
        .unwrap();
    let set = |dataset: &str, name: &str, number: u64| {
        let change = DatasetChange::Set {
            name: dataset.into(),
            properties: vec![
                ("org.x:note".into(), Value::Text("beside".into())),
                (name.into(), Value::Number(number)),
            ],
            mount: false,
        };
        asked.change("tank", &[PoolChange::Dataset(change)], "zfs set")
    };
    let shown = |dataset: &str, name: &str| property(&asked, dataset, name).and_then(|p| p.value);
    assert_eq!(shown("tank/home", "defaultuserquota"), None);
    set("tank/home", "defaultuserquota", 1 << 20).unwrap();
    set("tank/home", "defaultprojectobjquota", 7).unwrap();
    for (name, wanted) in [
        ("defaultuserquota", 1 << 20),
        ("defaultprojectobjquota", 7),
        ("defaultgroupquota", 0),
    ] {
        assert_eq!(
            shown("tank/home", name),
            Some(Value::Number(wanted)),
            "{name}"
        );
    }
    let back = PoolChange::Dataset(DatasetChange::Inherit {
        name: "tank/home".into(),
        property: "defaultuserquota".into(),
        to_received: true,
    });
    asked.change("tank", &[back], "zfs inherit -S").unwrap();
    assert_eq!(
        shown("tank/home", "defaultuserquota"),
        Some(Value::Number(0))
    );
    for bytes in [32 << 20, 1 << 20, 16 << 20] {
        set("tank/v", "volsize", bytes).unwrap();
        assert_eq!(shown("tank/v", "volsize"), Some(Value::Number(bytes)));
    }
    // If one property of a request cannot be set, none is.
    asked
        .change("tank", &[create("tank/other")], "zfs create")
        .unwrap();
    set("tank/other", "version", 4).unwrap_err();
    assert_eq!(shown("tank/other", "org.x:note"), None);
    assert_eq!(
        shown("tank/home", "org.x:note"),
        Some(Value::Text("beside".into()))
    );
}

#[test]
fn a_pool_whose_disk_is_late_is_not_forgotten() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("late", "a"), "").unwrap();
    drop(asked);
    gone(daemon);
    let (image, away) = (stage.image("a"), stage.folder.path().join("away"));
    std::fs::create_dir(&away).unwrap();
    std::fs::rename(&image, away.join("a")).unwrap();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("other", "b"), "").unwrap();
    assert_eq!(asked.pools().unwrap(), ["other"]);
    drop(asked);
    gone(daemon);
    std::fs::rename(away.join("a"), &image).unwrap();
    let daemon = stage.start("state");
    assert_eq!(client(&daemon, 0).pools().unwrap(), ["late", "other"]);
}

#[test]
fn two_daemons_never_have_one_pool() {
    let stage = Stage::new();
    let first = stage.start("one");
    client(&first, 0)
        .create_pool(&stage.request("tank", "a"), "")
        .unwrap();
    let again = Daemon::start(
        &Env::real(),
        &stage.places("one"),
        Box::new(NoMounter("no".into())),
        Box::new(|_| {}),
    );
    assert!(matches!(
        again.err(),
        Some(StartError::State(StateError::Taken { .. }))
    ));

    let second = stage.start("two");
    let asked = client(&second, 0);
    let mut request = stage.import("tank");
    let refused = asked.import(&request, "");
    assert!(
        matches!(
            refused,
            Err(ImportError::HeldElsewhere { .. } | ImportError::Busy(_))
        ),
        "{refused:?}"
    );
    request.force = true;
    let refused = asked.import(&request, "");
    assert!(matches!(refused, Err(ImportError::Busy(_))), "{refused:?}");
    let refused = asked.create_pool(
        &NewPoolRequest {
            temporary_name: None,
            devices: NewDevices {
                may_take_used: true,
                ..stage.request("other", "a").devices
            },
            ..stage.request("other", "a")
        },
        "",
    );
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(client(&first, 0).pools().unwrap(), ["tank"]);
}

#[test]
fn others_may_look_and_nothing_else() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    client(&daemon, 1000)
        .create_pool(&stage.request("tank", "a"), "")
        .unwrap();
    let other = client(&daemon, 1001);
    assert_eq!(other.pools().unwrap(), ["tank"]);
    assert_eq!(other.pool("tank").unwrap().name, "tank");
    assert!(property(&other, "tank", "used").is_some());
    let refused = other.change("tank", &[create("tank/x")], "").unwrap_err();
    assert_eq!(refused.error, ChangeError::Denied);
    assert_eq!(
        other.create_pool(&stage.request("b", "b"), ""),
        Err(ChangeError::Denied)
    );
    assert_eq!(
        other.import(&stage.import("tank"), ""),
        Err(ImportError::Denied)
    );
    assert_eq!(
        other.unmount("tank", false).unwrap_err().1,
        MountProblem::Denied
    );
    assert_eq!(
        other.mount("tank", &MountRequest::default()),
        Err(MountProblem::Denied)
    );
    assert_eq!(
        other.history("tank", &mut |_| Ok(())),
        Err(ControlError::Denied)
    );
    assert_eq!(mounted(&other), ["tank /tank"]);
}

#[test]
fn mounts_follow_what_happens_to_datasets() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let change = |change: DatasetChange| asked.change("t", &[PoolChange::Dataset(change)], "");
    let set = |name: &str, property: &str, value: Value| DatasetChange::Set {
        name: name.into(),
        properties: vec![(property.into(), value)],
        mount: true,
    };
    for name in ["t/a", "t/a/b"] {
        asked.change("t", &[create(name)], "").unwrap();
    }
    change(set("t/a", "mountpoint", Value::Text("/else".into()))).unwrap();
    assert_eq!(mounted(&asked), ["t /t", "t/a /else", "t/a/b /else/b"]);
    change(DatasetChange::Rename {
        from: "t/a".into(),
        to: "t/c".into(),
        recursively: false,
        mount: true,
    })
    .unwrap();
    assert_eq!(mounted(&asked), ["t /t", "t/c /else", "t/c/b /else/b"]);
    // A busy file system blocks the change, and those already unmounted are restored.
    stage.mounter.busy.lock().push(PathBuf::from("/else"));
    let refused = change(set("t/c", "mountpoint", Value::Text("/x".into()))).unwrap_err();
    let ChangeError::Mounted { mountpoint, why } = refused.error else {
        panic!("{refused:?}");
    };
    assert_eq!((mountpoint.as_str(), why), ("/else", MountProblem::Busy));
    assert_eq!(mounted(&asked), ["t /t", "t/c /else", "t/c/b /else/b"]);
    let refused = asked.change("t", &[PoolChange::Export], "").unwrap_err();
    assert!(
        matches!(refused.error, ChangeError::Mounted { .. }),
        "{refused:?}"
    );
    assert_eq!(asked.pools().unwrap(), ["t"]);
    stage.mounter.busy.lock().clear();
    change(set("t/c/b", "canmount", Value::Number(0))).unwrap();
    assert_eq!(mounted(&asked), ["t /t", "t/c /else"]);
    assert_eq!(
        asked.mount("t/c/b", &MountRequest::default()),
        Err(MountProblem::Off)
    );
    change(set("t/c", "mountpoint", Value::Text("none".into()))).unwrap();
    assert_eq!(mounted(&asked), ["t /t"]);
    assert_eq!(
        asked.mount("t/c", &MountRequest::default()),
        Err(MountProblem::NoMountpoint)
    );
    asked.unmount("t", false).unwrap();
    assert_eq!(
        asked.unmount("t", false).unwrap_err().1,
        MountProblem::NotMounted
    );
    change(DatasetChange::Inherit {
        name: "t/c".into(),
        property: "mountpoint".into(),
        to_received: false,
    })
    .unwrap();
    assert_eq!(mounted(&asked), ["t/c /t/c"]);
    change(DatasetChange::Destroy {
        name: "t/c/b".into(),
    })
    .unwrap();
    change(DatasetChange::Destroy { name: "t/c".into() }).unwrap();
    assert!(mounted(&asked).is_empty());
}

#[test]
fn a_pool_below_another_root_is_in_no_cache_file() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let mut request = stage.request("tank", "a");
    request.properties = vec![("altroot".into(), "/mnt/alt".into())];
    asked.create_pool(&request, "").unwrap();
    assert_eq!(mounted(&asked), ["tank /mnt/alt/tank"]);
    let cache = stage.places("state").cache_file();
    assert!(!cache.exists());
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    let mut request = stage.import("tank");
    request.properties = vec![("readonly".into(), "on".into())];
    asked.import(&request, "").unwrap();
    let refused = asked.change("tank", &[create("tank/x")], "").unwrap_err();
    assert!(
        matches!(refused.error, ChangeError::ReadOnlyPool(_)),
        "{refused:?}"
    );
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    let own = stage.folder.path().join("own.cache");
    let mut request = stage.import("tank");
    request.new_name = Some("neu".into());
    request.properties = vec![("cachefile".into(), own.to_string_lossy().into_owned())];
    asked.import(&request, "").unwrap();
    assert_eq!(CacheFile::parse("none"), CacheFile::None);
    assert!(std::fs::metadata(&own).unwrap().len() > 0);
    assert!(!cache.exists());
    let found = millpond_engine::Search::in_cache_file(&own).unwrap();
    assert_eq!(found.configs[0].string("name"), Ok("neu"));
}

#[test]
fn what_cannot_be_mounted_is_told_and_the_rest_is_done() {
    let stage = Stage::new();
    let daemon = Daemon::start(
        &Env::real(),
        &stage.places("state"),
        Box::new(NoMounter("there is no way".into())),
        Box::new(|_| {}),
    )
    .unwrap();
    let asked = client(&daemon, 0);
    let mut request = stage.request("tank", "a");
    let at = stage
        .folder
        .path()
        .join("mnt")
        .to_string_lossy()
        .into_owned();
    request.root_properties = vec![("mountpoint".into(), at)];
    let made = asked.create_pool(&request, "").unwrap();
    assert!(
        matches!(
            &made.notes[..],
            [Note::NotMounted {
                why: MountProblem::Unavailable(_),
                ..
            }]
        ),
        "{made:?}"
    );
    assert_eq!(asked.pools().unwrap(), ["tank"]);
}

#[test]
fn commands_reach_the_daemon_through_its_socket() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let socket = stage.places("state").socket();
    let listener = Listener::bind(&socket).unwrap();
    let serving = Arc::clone(&daemon);
    let accepted = std::thread::spawn(move || listener.accept(&serving));
    let asked = Client::connect(&socket).unwrap();
    assert!(asked.pools().unwrap().is_empty());
    assert_eq!(asked.about().unwrap().process, std::process::id());
    assert!(asked.events(0).unwrap().is_empty());
    accepted.join().unwrap().unwrap();
}

#[test]
fn mounts_come_back_as_they_were_or_stay_where_they_are() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let change = |change: DatasetChange| asked.change("t", &[PoolChange::Dataset(change)], "");
    for name in ["t/a", "t/a/b", "t/n"] {
        asked.change("t", &[create(name)], "").unwrap();
    }
    let set = |name: &str, property: &str, value: u64| DatasetChange::Set {
        name: name.into(),
        properties: vec![(property.into(), Value::Number(value))],
        mount: true,
    };
    let remounted = || std::mem::take(&mut *stage.mounter.asked.lock());
    let at = |path: &str, read_only| (PathBuf::from(path), read_only);
    // A rename without `mount` keeps the mount points. Nothing is unmounted, although it is in use.
    remounted();
    stage.mounter.busy.lock().push(PathBuf::from("/t/a"));
    change(DatasetChange::Rename {
        from: "t/a".into(),
        to: "t/c".into(),
        recursively: false,
        mount: false,
    })
    .unwrap();
    assert!(remounted().is_empty());
    assert_eq!(
        mounted(&asked),
        ["t /t", "t/c /t/a", "t/c/b /t/a/b", "t/n /t/n"]
    );
    stage.mounter.busy.lock().clear();
    // After a rollback, a file system that was mounted manually is mounted again; one that was not mounted is
    // not.
    change(set("t/n", "canmount", 2)).unwrap();
    asked.unmount("t/n", false).ok();
    asked.mount("t/n", &MountRequest::default()).unwrap();
    let names = vec!["t/n@s".into(), "t/c@s".into()];
    let properties = vec![];
    change(DatasetChange::Snapshot { names, properties }).unwrap();
    asked.unmount("t/c", false).unwrap();
    remounted();
    for snapshot in ["t/n@s", "t/c@s"] {
        let snapshot = snapshot.into();
        change(DatasetChange::Rollback { snapshot }).unwrap();
    }
    assert_eq!(remounted(), [at("/t/n", false)]);
    assert_eq!(mounted(&asked), ["t /t", "t/n /t/n"]);
    // Read-only and back, by property and by mount option.
    change(set("t/n", "readonly", 1)).unwrap();
    change(set("t/n", "atime", 0)).unwrap();
    change(set("t/n", "readonly", 0)).unwrap();
    assert_eq!(remounted(), [at("/t/n", true), at("/t/n", false)]);
    let again = |words: &str| MountRequest {
        options: vec![words.into()],
        ..MountRequest::default()
    };
    asked.mount("t/n", &again("remount,ro")).unwrap();
    assert_eq!(remounted(), [at("/t/n", true)]);
    stage.mounter.busy.lock().push(PathBuf::from("/t/n"));
    let refused = asked.mount("t/n", &again("remount,rw")).unwrap_err();
    assert_eq!(refused, MountProblem::Busy);
    // All or none: one file system in use keeps the others mounted too.
    asked.mount("t/c", &MountRequest::default()).unwrap();
    let names: Vec<String> = ["t/n@s", "t/n", "t/c/b", "t/c@s", "t/c"]
        .map(Into::into)
        .into();
    let all = || DatasetChange::DestroyInOrder {
        names: names.clone(),
    };
    let refused = change(all()).unwrap_err();
    assert!(
        matches!(refused.error, ChangeError::Mounted { .. }),
        "{refused:?}"
    );
    assert_eq!(mounted(&asked).len(), 3);
    stage.mounter.busy.lock().clear();
    change(all()).unwrap();
    assert_eq!(mounted(&asked), ["t /t"]);
}

#[test]
fn what_the_history_notes_is_an_event_too() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let events = asked.events(0).unwrap();
    let classes: Vec<&str> = events.iter().map(|event| event.class.as_str()).collect();
    let history = "sysevent.fs.zfs.history_event";
    assert_eq!(
        classes[..3],
        ["sysevent.fs.zfs.pool_create", history, history]
    );
    let last = events.last().unwrap().id;
    asked.change("t", &[create("t/a")], "").unwrap();
    let events = asked.events(last).unwrap();
    let text = |name: &str| {
        let mut values = events[0].values.iter();
        let found = values.find(|(known, _)| known == name);
        format!("{:?}", found.unwrap().1)
    };
    assert_eq!(events[0].class, history);
    assert_eq!(text("history_internal_name"), "Text(\"create\")");
    assert_eq!(text("history_dsname"), "Text(\"t/a\")");
    assert!(asked.clear_events().unwrap() > 3);
    assert!(asked.events(0).unwrap().is_empty());
}

#[test]
fn a_temporary_name_lasts_until_the_pool_is_exported() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let request = NewPoolRequest {
        temporary_name: Some("visitor".into()),
        ..stage.request("home", "a")
    };
    asked.create_pool(&request, "").unwrap();
    assert_eq!(asked.pools().unwrap(), ["visitor"]);
    asked.change("visitor", &[create("visitor/a")], "").unwrap();
    assert_eq!(
        mounted(&asked),
        ["visitor /visitor", "visitor/a /visitor/a"]
    );
    let held = daemon.pools().get("visitor").unwrap();
    assert_eq!(held.cache_file(), CacheFile::None);
    drop(held);
    let export = |pool: &str| asked.change(pool, &[PoolChange::Export], "").unwrap();
    export("visitor");
    let mut request = stage.import("home");
    request.new_name = Some("guest".into());
    request.is_name_temporary = true;
    assert_eq!(asked.import(&request, "").unwrap().name, "guest");
    asked.change("guest", &[create("guest/b")], "").unwrap();
    export("guest");
    // Its devices still have the name.
    assert_eq!(
        asked.import(&stage.import("home"), "").unwrap().name,
        "home"
    );
    assert!(property(&asked, "home/b", "used").is_some());
    export("home");
}

#[test]
fn a_disk_that_was_away_is_used_again_when_it_is_asked_for() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let mut request = stage.request("tank", "a");
    request.devices.tops[0].layout = NewLayout::Mirror;
    request.devices.tops[0].paths.push(stage.image("b"));
    asked.create_pool(&request, "").unwrap();
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    let (image, away) = (stage.image("b"), stage.folder.path().join("away"));
    std::fs::create_dir(&away).unwrap();
    std::fs::rename(&image, away.join("b")).unwrap();
    asked.import(&stage.import("tank"), "").unwrap();
    asked.change("tank", &[create("tank/without")], "").unwrap();
    let leaf = |at: usize| asked.pool("tank").unwrap().root.children[0].children[at].clone();
    assert_eq!(leaf(1).state, VdevState::CannotOpen);
    let clear = PoolChange::Clear { leaves: None };
    asked
        .change("tank", std::slice::from_ref(&clear), "")
        .unwrap();
    assert_eq!(leaf(1).state, VdevState::CannotOpen);
    // A device with another label is not used.
    std::fs::copy(stage.image("a"), &image).unwrap();
    let online = PoolChange::Online {
        leaves: vec![leaf(1).guid],
    };
    asked
        .change("tank", std::slice::from_ref(&online), "")
        .unwrap();
    assert_eq!(leaf(1).state, VdevState::CannotOpen);
    std::fs::remove_file(&image).unwrap();
    std::fs::rename(away.join("b"), &image).unwrap();
    asked
        .change("tank", &[online, create("tank/with")], "")
        .unwrap();
    // The device is in use, but not shown as healthy while its dirty time log is not empty.
    assert_eq!(leaf(1).state, VdevState::Degraded);
    assert!(leaf(1).missed_txgs > 0);
    assert_eq!(asked.pool("tank").unwrap().health(), "DEGRADED");
    assert_eq!(leaf(1).checksum_errors, 0);
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    // Its labels are as new as the other's; only its dirty time log records what it missed.
    asked.import(&stage.import("tank"), "").unwrap();
    for name in ["tank/without", "tank/with"] {
        assert!(property(&asked, name, "used").is_some(), "{name}");
    }
    assert_eq!(leaf(0).checksum_errors + leaf(1).checksum_errors, 0);
    asked.change("tank", &[PoolChange::Export], "").unwrap();
}

#[test]
fn properties_of_vdevs_are_kept_until_they_are_taken_away() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 1000);
    let request = stage.request("tank", "a");
    asked.create_pool(&request, "zpool create").unwrap();
    let root = asked.pool("tank").unwrap().root;
    let (pool, leaf) = (root.guid, root.children[0].guid);
    let set = |guid, name: &str, value: &str| {
        let change = PoolChange::SetVdev {
            guid,
            name: name.into(),
            value: value.into(),
        };
        asked.change("tank", &[change], "zpool set").map(drop)
    };
    for (guid, name, value) in [
        (leaf, "comment", "hi there"),
        (leaf, "failfast", "off"),
        (leaf, "checksum_n", "5"),
        (leaf, "io_t", "7"),
        (leaf, "com.x:y", "hello"),
        (pool, "slow_io_n", "9"),
        (leaf, "com.x:gone", "1"),
        (leaf, "com.x:gone", ""),
        (leaf, "io_t", "none"),
        (leaf, "slow_io_t", "3"),
        (leaf, "failfast", "on"),
        (leaf, "comment", ""),
    ] {
        set(guid, name, value).unwrap();
    }
    for (name, value, why) in [
        ("size", "5", "'size' is readonly"),
        ("bogus", "5", "invalid property 'bogus'"),
        ("io_n", "abc", "'io_n' must be a number"),
        ("failfast", "maybe", "'failfast' must be one of 'on | off'"),
        ("path", "/x", "property 'path' is not supported yet"),
    ] {
        let error = set(leaf, name, value).unwrap_err().error;
        let ChangeError::Setting(error) = error else {
            panic!("{error:?}")
        };
        assert_eq!(error.to_string(), why);
    }
    assert!(set(77, "comment", "x").is_err());
    let told = |guid| -> Vec<(String, Option<Value>)> {
        let all = asked.vdev_properties("tank", guid).unwrap();
        let own = all.into_iter().filter(|p| p.source == Source::Local);
        own.map(|p| (p.name, p.value)).collect()
    };
    let text = |text: &str| Some(Value::Text(text.into()));
    let kept = [
        ("comment".to_owned(), text("")),
        ("checksum_n".to_owned(), Some(Value::Number(5))),
        ("slow_io_t".to_owned(), Some(Value::Number(3))),
        ("com.x:y".to_owned(), text("hello")),
    ];
    assert_eq!(told(leaf), kept);
    let of_root = [("slow_io_n".to_owned(), Some(Value::Number(9)))];
    assert_eq!(told(pool), of_root);
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    asked.import(&stage.import("tank"), "").unwrap();
    assert_eq!(told(leaf), kept);
}

/// Parses the samples of a metrics page, by name with labels. Panics if the page violates the format.
fn samples(address: std::net::SocketAddr) -> BTreeMap<String, u64> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let (mut samples, mut typed) = (BTreeMap::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            typed = name.to_owned();
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let bare = name.split('{').next().unwrap();
            let parts = ["", "_bucket", "_sum", "_count"];
            let is_typed = |part: &&str| bare.strip_suffix(*part) == Some(typed.as_str());
            let part = parts.into_iter().find(is_typed).expect(line);
            if part == "_sum" {
                assert!(value.parse::<f64>().is_ok(), "{line}");
                continue;
            }
            let again = samples.insert(name.to_owned(), value.parse().unwrap());
            assert_eq!(again, None, "{line}");
        }
    }
    samples
}

#[test]
fn metrics_follow_the_operations() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let Ok(listener) = MetricsListener::net("127.0.0.1:0") else {
        println!("no network here: nothing tried");
        return;
    };
    let address = listener.address().unwrap();
    let collected = Arc::clone(&daemon);
    let page = Arc::new(move || metrics::page(&collected));
    let _server = MetricsServer::start(vec![listener], page).unwrap();
    assert_eq!(samples(address)["millpond_pools"], 0);
    let client = client(&daemon, 1000);
    client
        .create_pool(&stage.request("tank", "a"), "zpool create")
        .unwrap();
    let before = samples(address);
    client.change("tank", &[create("tank/fs")], "x").unwrap();
    let after = samples(address);
    assert_eq!(after["millpond_pools"], 1);
    assert_eq!(
        after["millpond_pool_state{pool=\"tank\",state=\"ONLINE\"}"],
        1
    );
    assert_eq!(
        after["millpond_pool_state{pool=\"tank\",state=\"DEGRADED\"}"],
        0
    );
    assert_eq!(before["millpond_mounts{pool=\"tank\"}"], 1);
    assert_eq!(after["millpond_mounts{pool=\"tank\"}"], 2);
    let synced = "millpond_txg_synced{pool=\"tank\"}";
    assert!(after[synced] > before[synced]);
    let written = |page: &BTreeMap<String, u64>| {
        let device = stage.image("a");
        let mut samples = page.iter();
        let found = samples.find(|(name, _)| {
            name.starts_with("millpond_device_written_bytes_total{pool=\"tank\"")
                && name.contains(&format!("device=\"{device}\""))
        });
        *found.unwrap().1
    };
    assert!(written(&after) > written(&before));
    assert!(after.contains_key("millpond_fsync_seconds_count{pool=\"tank\"}"));
    // Once no operation is in progress, each one has been timed.
    let is_even = (0..1000).any(|_| {
        let page = samples(address);
        let sum = |start: &str| -> u64 {
            let of_tank = format!("millpond_device_{start}{{pool=\"tank\"");
            let found = page.iter().filter(|(name, _)| name.starts_with(&of_tank));
            found.map(|(_, value)| *value).sum()
        };
        let (reads, writes) = (sum("reads_total"), sum("writes_total"));
        writes > 0
            && sum("read_seconds_count") == reads
            && sum("write_seconds_count") == writes
            && sum("active") + sum("pending") == 0
    });
    assert!(is_even, "{after:?}");
    assert!(after.contains_key("millpond_dataset_used_bytes{pool=\"tank\",dataset=\"tank/fs\"}"));
    assert!(!before.contains_key("millpond_dataset_used_bytes{pool=\"tank\",dataset=\"tank/fs\"}"));
    drop(client);
}
