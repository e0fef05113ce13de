//! Runs a daemon in this process: pools on image files, mock mounts, and requests over a real socket.

mod cache_files;
mod delegation;
mod devices;
mod elsewhere;
mod encryption;
mod mounts;
mod noted_pools;
mod older_vdevs;
mod program;
mod receiving;

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

    fn dirs(&self, name: &str) -> StateDirs {
        StateDirs::in_folder(&self.folder.path().join(name))
    }

    fn start(&self, name: &str) -> Arc<Daemon> {
        let mounter = Box::new(self.mounter.clone());
        let log = Box::new(|line: &millpond_daemon::Line| println!("daemon: {line}"));
        Daemon::start(&Env::real(), &self.dirs(name), mounter, log).unwrap()
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
            root_quotas: vec![],
            root_key: None,
            only_check: false,
        }
    }

    fn import(&self, pool: &str) -> ImportRequest {
        ImportRequest {
            pool: pool.into(),
            search: Where {
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
        let caller = Caller {
            user,
            ..Caller::default()
        };
        let access = Access::of(&caller, 1000);
        let _ = serve(there, daemon.as_ref(), &caller, access);
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
        key: None,
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
        names_damaged: false,
    };
    let mut found = None;
    let listing = client.datasets(&query, &mut |info| {
        found = info.property(name).cloned();
        Ok(())
    });
    listing.unwrap();
    found
}

/// Commands and internal events of the pool itself, in order.
fn listing(client: &Client) -> Vec<String> {
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
fn an_imported_pool_returns_after_a_daemon_restart() {
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
        listing(&asked),
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
        listing(&asked)[4..],
        ["zpool export tank", "open", "import", "zpool import tank"]
    );
}

#[test]
fn settings_inside_datasets_are_set_by_commands() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked
        .create_pool(&stage.request("tank", "a"), "zpool create tank a")
        .unwrap();
    let volume = PoolChange::Dataset(DatasetChange::CreateVolume {
        name: "tank/v".into(),
        properties: vec![("volsize".into(), Value::Number(8 << 20))],
        key: None,
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
fn a_pool_with_a_late_disk_is_imported_later() {
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
        &stage.dirs("one"),
        Box::new(NoMounter("no".into())),
        Box::new(|_| {}),
    );
    assert!(matches!(
        again.err(),
        Some(StartError::State(StateError::InUse { .. }))
    ));

    let second = stage.start("two");
    let asked = client(&second, 0);
    let mut request = stage.import("tank");
    let refused = asked.import(&request, "");
    assert!(
        matches!(
            refused,
            Err(ImportError::InUseElsewhere { .. } | ImportError::Busy(_))
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
fn other_users_may_only_read() {
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
fn mounts_follow_changes_of_datasets() {
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
    let cache = stage.dirs("state").cache_file();
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
    assert_eq!(found.configs.unwrap()[0].string("name"), Ok("neu"));
}

#[test]
fn failed_mounts_are_reported_and_the_rest_is_mounted() {
    let stage = Stage::new();
    let daemon = Daemon::start(
        &Env::real(),
        &stage.dirs("state"),
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
    let socket = stage.dirs("state").socket();
    let listener = Listener::bind(&socket).unwrap();
    let serving = Arc::clone(&daemon);
    let accepted = std::thread::spawn(move || listener.accept(&serving));
    let asked = Client::connect(&socket).unwrap();
    assert!(asked.pools().unwrap().is_empty());
    assert_eq!(asked.about().unwrap().process, std::process::id());
    assert!(asked.events(0, 0).unwrap().is_empty());
    accepted.join().unwrap().unwrap();
}
