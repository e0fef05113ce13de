//! Scrubs and resilvers through the commands: what they print, their events and their records in the history.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/stage.rs"]
mod stage;

use millpond_engine::{Caller, NewMode, Pool, WriteAt};
use millpond_sim::Seed;
use stage::Stage;
use std::os::unix::fs::FileExt;
use std::process::Command;

impl Stage {
    /// The classes of the events of scans, in order.
    fn scan_events(&self) -> Vec<String> {
        let events = self.done("zpool events -H");
        let classes = events.lines().filter_map(|line| line.split('\t').nth(1));
        let classes = classes.filter_map(|class| class.strip_prefix("sysevent.fs.zfs."));
        classes
            .filter(|class| class.contains("scrub") || class.contains("resilver"))
            .map(str::to_owned)
            .collect()
    }

    /// The names and texts of the internal records of scans, in order.
    fn scan_records(&self) -> Vec<String> {
        let history = self.done("zpool history -i tank");
        let records = history
            .lines()
            .filter_map(|line| line.split_once("] ").map(|(_, record)| record));
        records
            .filter(|record| {
                let words = ["scan ", "error scrub", "rebuild "];
                words.iter().any(|word| record.contains(word))
            })
            .map(|record| record.trim_end().to_owned())
            .collect()
    }

    fn pool(&self) -> Pool {
        let pool = self.served.daemon.pools().get("tank").unwrap();
        pool.live().unwrap().clone()
    }

    /// Writes a file of one block.
    fn write(&self, name: &str, content: &[u8]) {
        let files = self.pool().file_system("tank").unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let mode = NewMode::exactly(0o644);
        let (node, _) = (files.create(&caller, &root, name.as_bytes(), mode, true)).unwrap();
        let at = WriteAt::Offset(0);
        files.write(&caller, &node, at, content).unwrap();
        self.done("zpool sync tank");
    }

    /// Replaces these bytes wherever they are in an image.
    fn replace(&self, image: &str, from: &[u8], to: &[u8]) {
        let path = self.folder.path().join(image);
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let mut count = 0;
        for offset in (0..bytes.len()).step_by(512) {
            if bytes[offset..].starts_with(from) {
                file.write_all_at(to, offset as u64).unwrap();
                count += 1;
            }
        }
        assert_eq!(count, 1, "{image}");
    }
}

#[test]
fn scrubs_have_events_and_records() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank @a");
    stage.write("file", &Seed::new(1).bytes(100_000));
    stage.done("zpool scrub -w tank");
    let status = stage.done("zpool status tank");
    let line = "\n  scan: scrub repaired 0B in 00:00:0";
    assert!(status.contains(line), "{status}");
    assert_eq!(stage.scan_events(), ["scrub_start", "scrub_finish"]);
    let records = stage.scan_records();
    assert_eq!(records.len(), 2, "{records:?}");
    let setup = "scan setup func=1 mintxg=0 maxtxg=";
    assert!(records[0].starts_with(setup), "{records:?}");
    assert_eq!(records[1], "scan done errors=0");
    // Nothing to pause is no error; OpenZFS sees it so, too.
    assert_eq!(stage.done("zpool scrub -p tank"), "");
}

#[test]
fn a_device_that_returns_has_the_events_of_a_resilver() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank mirror @a @b");
    stage.done("zpool offline tank @b");
    stage.write("file", &Seed::new(1).bytes(100_000));
    stage.done("zpool online tank @b");
    let begun = std::time::Instant::now();
    while stage.scan_events().last().map(String::as_str) != Some("resilver_finish") {
        assert!(begun.elapsed().as_secs() < 60);
    }
    assert_eq!(stage.scan_events(), ["resilver_start", "resilver_finish"]);
    // The event comes while its txg is written.
    stage.done("zpool wait -t resilver tank");
    let status = stage.done("zpool status tank");
    assert!(status.contains("\n  scan: resilvered "), "{status}");
    let records = stage.scan_records();
    let setup = "scan setup func=2 mintxg=";
    assert!(records[0].starts_with(setup), "{records:?}");
    assert_eq!(records[1..], ["scan done errors=0"]);
}

#[test]
fn known_errors_are_scrubbed_until_they_are_gone() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank @a");
    // Nothing is known, so nothing is done.
    assert_eq!(stage.done("zpool scrub -e -w tank"), "");
    let content = Seed::new(1).bytes(100_000);
    stage.write("file", &content);
    stage.replace("a", &content[..512], &[1; 512]);
    stage.done("zpool scrub -w tank");
    let lists = |file: &str| {
        let status = stage.done("zpool status -v tank");
        let list = "errors: Permanent errors have been detected in the following files:\n\n";
        let has_list = status.contains(list) && status.contains(file);
        assert!(has_list || status.contains("errors: No known data errors"));
        has_list
    };
    assert!(lists("        /tank/file\n"));
    stage.done("zfs unmount tank");
    assert!(lists("        tank:/file\n"));
    stage.done("zfs mount tank");
    assert!(lists("        /tank/file\n"));
    // Which request found it, and which block is lost.
    let events = stage.done("zpool events -v");
    let of = |class: &str| {
        let (_, event) = events
            .split_once(class)
            .unwrap_or_else(|| panic!("{events}"));
        event.split("\n\n").next().unwrap().to_owned()
    };
    let (wrong, lost) = (of("ereport.fs.zfs.checksum"), of("ereport.fs.zfs.data"));
    for value in [
        "zio_err = 0x34",
        "zio_size = 0x",
        "vdev_cksum_errors = 0x1",
        "zio_blkid = 0x0",
    ] {
        assert!(wrong.contains(value), "{value}: {wrong}");
    }
    for value in [
        "zio_err = 0x5",
        "zio_objset = 0x",
        "zio_object = 0x",
        "zio_level = 0x0",
    ] {
        assert!(lost.contains(value), "{value}: {lost}");
    }
    stage.done("zpool scrub -e -w tank");
    assert!(lists("file\n"));
    let status = stage.done("zpool status tank");
    let line = "\n scrub: scrubbed 1 error blocks in 0 days 00:00:0";
    assert!(status.contains(line), "{status}");
    // The disk returns the right bytes again.
    stage.replace("a", &[1; 512], &content[..512]);
    stage.done("zpool scrub -e -w tank");
    assert!(!lists("file\n"));
    let ends = ["errorscrub_start", "errorscrub_finish"];
    assert_eq!(stage.scan_events()[2..], [ends, ends].concat());
    let records = stage.scan_records();
    assert!(records[2].starts_with("error scrub setup func=3 mintxg=0 maxtxg="));
    let rest = [&records[3], &records[5]];
    assert_eq!(
        rest,
        ["error scrub done errors=1", "error scrub done errors=0"]
    );
}

#[test]
fn a_wiped_disk_is_replaced_at_its_own_path() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank mirror @a @b");
    stage.write("file", &Seed::new(1).bytes(100_000));
    let image = std::fs::File::create(stage.folder.path().join("b")).unwrap();
    image.set_len(128 << 20).unwrap();
    drop(image);
    stage.done("zpool replace -w tank @b @b");
    let status = stage.done("zpool status tank");
    assert!(status.contains("\n state: ONLINE\n"), "{status}");
    assert!(!status.contains("replacing"), "{status}");
    let devices: Vec<&str> = status
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('@'))
        .collect();
    assert_eq!(devices.len(), 2, "{status}");
    stage.done("zpool export tank");
    let folder = stage.folder.path().display().to_string();
    let verified = stage.done(&format!("millpond -d {folder} verify -q tank"));
    assert!(
        verified.ends_with("verdict: sound: no errors\n"),
        "{verified}"
    );
}

#[test]
fn a_disk_that_the_pool_needs_is_not_replaced_at_its_own_path() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank @a");
    stage.write("file", &Seed::new(1).bytes(100_000));
    // Its labels are gone, nothing else.
    let image = std::fs::File::options()
        .write(true)
        .open(stage.folder.path().join("a"))
        .unwrap();
    for offset in [0, (128 << 20) - (512 << 10)] {
        image.write_all_at(&[0; 512 << 10], offset).unwrap();
    }
    let folder = stage.folder.path().join("a").display().to_string();
    let refused = stage.failed(&format!("zpool replace tank {folder} {folder}"));
    assert!(refused.contains("no valid replicas"), "{refused}");
    assert!(
        stage
            .done("zpool status tank")
            .contains("\n state: ONLINE\n")
    );
    stage.done("zpool scrub -w tank");
}

#[test]
fn a_resilver_on_request_needs_its_feature() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create -d tank mirror @a @b");
    let refused = stage.failed("zpool resilver tank");
    let text = "cannot restart resilver on tank: this action requires the resilver_defer feature\n";
    assert_eq!(refused, text);
}

#[test]
fn a_resilver_runs_when_online_returns() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank mirror @a @b");
    stage.done("zpool offline tank @b");
    stage.write("file", &Seed::new(1).bytes(100_000));
    stage.done("zpool online tank @b");
    assert_eq!(
        stage.scan_events().first().map(String::as_str),
        Some("resilver_start")
    );
    stage.done("zpool wait -t resilver tank");
    assert_eq!(stage.scan_events(), ["resilver_start", "resilver_finish"]);
}

#[test]
fn scans_stop_and_go_on_by_order() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank mirror @a @b");
    let name = "zfs_scan_suspend_progress";
    assert_eq!(stage.done(&format!("millpond tunable {name}")), "0\n");
    stage.done(&format!("millpond tunable {name} 1"));
    assert_eq!(stage.done(&format!("millpond tunable {name}")), "1\n");
    stage.done("zpool scrub tank");
    for _ in 0..3 {
        stage.pool().sync().unwrap();
        assert!(
            stage
                .done("zpool status tank")
                .contains("scrub in progress since")
        );
    }
    stage.done(&format!("millpond tunable {name} 0"));
    stage.done("zpool wait -t scrub tank");
    let status = stage.done("zpool status tank");
    assert!(status.contains("scrub repaired 0B"), "{status}");
    let (refused, status) = stage.run(&format!("millpond tunable {name} -1"));
    assert_eq!(
        (refused, status),
        (
            format!("millpond: {name}: '-1' is not a number from 0 on\n"),
            22
        )
    );
    let refused = stage.failed(&format!("millpond tunable {name} 2"));
    assert!(refused.contains("the value must be at most 1"), "{refused}");
    let refused = stage.failed("millpond tunable zfs_no_such_thing 2");
    assert!(
        refused.contains("zfs_no_such_thing: no such tunable"),
        "{refused}"
    );
    assert!(stage.done("millpond tunable").contains(name));
}

#[test]
fn waiting_for_a_replacement_ends_when_it_is_given_up() {
    let stage = Stage::new(&["a", "b"], 128);
    let new = std::fs::File::create(stage.folder.path().join("c")).unwrap();
    new.set_len(128 << 20).unwrap();
    stage.done("zpool create tank mirror @a @b");
    let name = "zfs_scan_suspend_progress";
    stage.done(&format!("millpond tunable {name} 1"));
    stage.done("zpool replace tank @b @c");
    let mut waits = Command::new(stage.tools.path().join("zpool"))
        .args(["wait", "-t", "replace", "tank"])
        .env("MILLPOND_DIR", stage.tools.path().join("state"))
        .spawn()
        .unwrap();
    // Two txgs, in which the resilver would have ended.
    stage.done("zpool sync tank");
    stage.done("zpool sync tank");
    assert!(waits.try_wait().unwrap().is_none());
    stage.done("zpool detach tank @c");
    // The resilver is still there, and stands still.
    assert!(waits.wait().unwrap().success());
    let status = stage.done("zpool status tank");
    assert!(status.contains("resilver in progress"), "{status}");
    stage.done(&format!("millpond tunable {name} 0"));
    stage.done("zpool wait -t resilver tank");
}

/// Waits for what follows by itself.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed().as_secs() < 60, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn sequential_resilvers_are_shown_waited_for_and_followed_by_a_scrub() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank @a");
    stage.write("file", &Seed::new(1).bytes(3_000_000));
    stage.done("millpond tunable zfs_scan_suspend_progress 1");
    stage.done("zpool attach -s tank @a @b");
    let status = stage.done("zpool status tank");
    assert!(
        status.contains("\n  scan: resilver (mirror-0) in progress since "),
        "{status}"
    );
    assert!(status.contains("is currently being resilvered"), "{status}");
    let features = stage.done("zpool get -Ho property,value all tank");
    assert!(
        features.contains("\nfeature@device_rebuild\tactive\n"),
        "{features}"
    );
    for line in ["zpool scrub tank", "zpool resilver tank"] {
        let refused = stage.failed(line);
        assert!(
            refused.ends_with("tank: currently sequentially resilvering\n"),
            "{refused}"
        );
    }
    let image = std::fs::File::create(stage.folder.path().join("c")).unwrap();
    image.set_len(128 << 20).unwrap();
    let refused = stage.failed("zpool attach tank @a @c");
    assert_eq!(
        refused,
        "cannot attach @c to @a: currently sequentially resilvering\n"
    );
    let refused = stage.failed("zpool detach tank @a");
    assert_eq!(refused, "cannot detach @a: no valid replicas\n");
    stage.done("millpond tunable zfs_scan_suspend_progress 0");
    stage.done("zpool wait -t resilver tank");
    wait_until("a scrub", || {
        let status = stage.done("zpool status tank");
        status.contains("\n  scan: scrub repaired 0B in ")
    });
    let status = stage.done("zpool status tank");
    let lines: Vec<&str> = status
        .lines()
        .filter(|line| line.contains("scan: "))
        .collect();
    assert!(
        lines[1].starts_with("  scan: resilvered (mirror-0) "),
        "{status}"
    );
    assert!(lines[1].contains(" with 0 errors on "), "{status}");
    assert!(!status.contains("status: "), "{status}");
    let json = stage.done("zpool status -j tank");
    for member in [
        "\"rebuild_stats\":{\"mirror-0\":{",
        "\"state\":\"COMPLETE\"",
        "\"to_scan\":",
    ] {
        assert!(json.contains(member), "{member}: {json}");
    }
    // A replacement goes by itself, and is waited for.
    stage.done("zpool replace -sw tank @a @c");
    let status = stage.done("zpool status tank");
    assert!(!status.contains("@a") && status.contains("@c"), "{status}");
    let records = stage.scan_records();
    let rebuilds = records.iter().filter(|record| record.contains("rebuild "));
    let words = rebuilds.filter_map(|record| record.rsplit(' ').next());
    let expected = ["started", "complete", "started", "complete"];
    assert_eq!(words.collect::<Vec<_>>(), expected, "{records:?}");
    stage.done("zpool destroy tank");
    stage.done("zpool create -d tank @a");
    let refused = stage.failed("zpool attach -s tank @a @b");
    let why = "device_rebuild feature must be enabled in order to use sequential reconstruction";
    assert_eq!(refused, format!("cannot attach @b to @a: {why}\n"));
}

#[test]
fn columns_of_raidz_are_not_resilvered_sequentially() {
    let stage = Stage::new(&["a", "b"], 128);
    for name in ["c", "d"] {
        let image = std::fs::File::create(stage.folder.path().join(name)).unwrap();
        image.set_len(128 << 20).unwrap();
    }
    stage.done("zpool create tank raidz @a @b @c");
    let refused = stage.failed("zpool replace -s tank @a @d");
    let why = "only mirror and dRAID vdevs support sequential reconstruction";
    assert_eq!(refused, format!("cannot replace @a with @d: {why}\n"));
    stage.done("zpool replace -w tank @a @d");
}
