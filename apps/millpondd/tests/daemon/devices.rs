//! Events, devices, properties of vdevs and metrics.

use super::*;
use millpond_control::ScanFunction;

#[test]
fn history_entries_are_events_too() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let events = asked.events(0, 0).unwrap();
    let classes: Vec<&str> = events.iter().map(|event| event.class.as_str()).collect();
    let history = "sysevent.fs.zfs.history_event";
    assert_eq!(
        classes[..3],
        ["sysevent.fs.zfs.pool_create", history, history]
    );
    let last = events.last().unwrap().id;
    asked.change("t", &[create("t/a")], "").unwrap();
    let events = asked.events(last, 0).unwrap();
    let text = |name: &str| {
        let mut values = events[0].values.iter();
        let found = values.find(|(known, _)| known == name);
        format!("{:?}", found.unwrap().1)
    };
    assert_eq!(events[0].class, history);
    assert_eq!(text("history_internal_name"), "Text(\"create\")");
    assert_eq!(text("history_dsname"), "Text(\"t/a\")");
    assert!(asked.clear_events().unwrap() > 3);
    assert!(asked.events(0, 0).unwrap().is_empty());
    // An answer that waits comes with the event, or empty after its time.
    let last = events.last().unwrap().id;
    assert!(asked.events(last, 1).unwrap().is_empty());
    let waiting = client(&daemon, 0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut answers = (0..60).map(|_| waiting.events(last, u64::MAX).unwrap());
            answers.find(|events| !events.is_empty())
        });
        asked.change("t", &[create("t/b")], "").unwrap();
        let events = waits.join().unwrap().unwrap();
        assert_eq!(events[0].class, history);
    });
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
    let imported_pool = daemon.pools().get("visitor").unwrap();
    assert_eq!(imported_pool.cache_file(), CacheFile::None);
    drop(imported_pool);
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

/// A pool `tank` that is a mirror of the images `a` and `b`.
fn make_mirror(stage: &Stage, asked: &Client) {
    let mut request = stage.request("tank", "a");
    request.devices.tops[0].layout = NewLayout::Mirror;
    request.devices.tops[0].paths.push(stage.image("b"));
    asked.create_pool(&request, "").unwrap();
}

#[test]
fn a_returned_disk_is_reopened_on_request() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    make_mirror(&stage, &asked);
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
        expand: false,
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
    // The device is in use, and the resilver has begun.
    assert_eq!(leaf(1).state, VdevState::Healthy);
    assert_eq!(leaf(1).checksum_errors, 0);
    let scan = asked.pool("tank").unwrap().scan.unwrap();
    assert_eq!(scan.function, ScanFunction::Resilver);
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
fn vdev_properties_persist_until_removed() {
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
    let stored = |guid| -> Vec<(String, Option<Value>)> {
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
    assert_eq!(stored(leaf), kept);
    let of_root = [("slow_io_n".to_owned(), Some(Value::Number(9)))];
    assert_eq!(stored(pool), of_root);
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    asked.import(&stage.import("tank"), "").unwrap();
    assert_eq!(stored(leaf), kept);
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

/// The labels of a detached device keep what it was, and open no pool.
#[test]
fn labels_of_a_detached_device_can_be_cleared() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    make_mirror(&stage, &asked);
    let leaf = asked.pool("tank").unwrap().root.children[0].children[1].guid;
    let detach = PoolChange::Detach { leaf };
    asked.change("tank", &[detach], "").unwrap();
    asked.clear_labels(&stage.image("b"), false).unwrap();
    let again = asked.clear_labels(&stage.image("b"), false);
    assert!(matches!(again, Err(ChangeError::NoLabel)), "{again:?}");
    let in_use = asked.clear_labels(&stage.image("a"), true);
    assert!(
        matches!(in_use, Err(ChangeError::InUse { .. })),
        "{in_use:?}"
    );
}
