//! Devices that go offline, fail and return, seen through the commands.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/stage.rs"]
mod stage;

use millpond_engine::{NewDevice, NewLayout, NewPool, NewTop, NewVdevs, Pool, WriteOptions};
use millpond_sim::{FaultPlan, Scope, SimDisk, World};
use millpond_tests::oracle::zdb;
use stage::Stage;
use std::sync::Arc;
use std::time::Duration;

impl Stage {
    /// The line of `zpool status` about a vdev, with single blanks.
    fn line(&self, vdev: &str) -> String {
        let (status, _) = self.run("zpool status tank");
        let lines = status.lines().map(|line| line.split_whitespace().collect());
        let mut lines = lines.map(|words: Vec<&str>| words.join(" "));
        let found = lines.find(|line| line.starts_with(&format!("{vdev} ")));
        found.unwrap_or(status)
    }

    fn health(&self) -> String {
        self.run("zpool list -H -o health tank").0.trim().to_owned()
    }

    /// Waits until the device has everything again.
    fn await_resilver(&self, device: &str) {
        let whole = format!("{device} ONLINE 0 0 0");
        for _ in 0..600 {
            if self.line(device) == whole && self.health() == "ONLINE" {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{}", self.run("zpool status tank").0);
    }

    /// Whether the status shows that the device misses data and the pool is degraded. In the pools of this test, which
    /// the daemon did not open, nothing scans.
    fn is_behind(&self, device: &str) -> bool {
        let line = self.line(device);
        let is_listed = self.run("zpool status -x").0.contains("pool: tank");
        let (json, _) = self.run("zpool status -j tank");
        assert!(json.contains("\"state\":\"DEGRADED\""), "{json}");
        line.starts_with(&format!("{device} ONLINE 0 0 0 misses "))
            && line.ends_with(", not read there")
            && self.health() == "DEGRADED"
            && is_listed
    }
}

#[test]
fn an_offline_leaf_is_resilvered_once_online() {
    let stage = Stage::new(&["a", "b", "c", "s"], 128);
    stage.quietly("zpool create tank mirror @a @b spare @s");
    stage.quietly("zpool offline tank @b");
    let (status, _) = stage.run("zpool status -x");
    let head = "  pool: tank\n state: DEGRADED\n\
        status: One or more devices has been taken offline by the administrator.\n\
        \tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.\n\
        action: Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.\n";
    assert!(status.starts_with(head), "{status}");
    assert_eq!(stage.line("@b"), "@b OFFLINE 0 0 0");
    assert_eq!(stage.line("mirror-0"), "mirror-0 DEGRADED 0 0 0");
    let (list, _) = stage.run("zpool list -v tank");
    let sizes = list.lines().filter(|line| line.contains("128M"));
    assert_eq!(sizes.count(), 3, "{list}");
    // Repeating it is no error, and the daemon keeps no handle on the device.
    stage.quietly("zpool offline tank @b");
    let device = std::fs::File::open(stage.image("b")).unwrap();
    device.try_lock().unwrap();
    drop(device);
    stage.quietly("zfs create tank/x");

    stage.quietly("zpool online tank @b");
    stage.await_resilver("@b");
    // The offline state is remembered over export and import.
    for order in [
        "zpool offline tank @b",
        "zpool export tank",
        "zpool import tank",
    ] {
        stage.quietly(order);
    }
    assert_eq!(stage.line("@b"), "@b OFFLINE 0 0 0");
    stage.quietly("zpool online tank @b");
    for order in [
        "zpool offline -t tank @b",
        "zpool export tank",
        "zpool import tank",
    ] {
        stage.quietly(order);
    }
    stage.await_resilver("@b");
    stage.quietly("zpool export tank");
    let verdict = zdb::judge(stage.folder.path(), "tank").unwrap();
    verdict.require("after offline and online");
}

#[test]
fn required_devices_cannot_be_taken_offline() {
    let stage = Stage::new(&["a", "b", "c", "s"], 128);
    stage.quietly("zpool create tank mirror @a @b spare @s");
    let refusals = [
        (
            "zpool offline tank @c",
            "cannot offline @c: no such device in pool",
        ),
        (
            "zpool offline tank mirror-0",
            "cannot offline mirror-0: operation not supported on this type of pool",
        ),
        (
            "zpool offline tank @s",
            "cannot offline @s: device is reserved as a hot spare",
        ),
        (
            "zpool offline none @a",
            "cannot open 'none': no such pool\nfailed to open pool \"none\"",
        ),
        (
            "zpool online tank @c",
            "couldn't find device \"@c\" in pool \"tank\"",
        ),
        (
            "zpool online tank mirror-0",
            "cannot online mirror-0: operation not supported on this type of pool",
        ),
        (
            "zpool clear tank @c",
            "cannot clear errors for @c: no such device in pool",
        ),
    ];
    for (line, words) in refusals {
        stage.refused(line, words);
    }
    // The first device goes offline. The second is refused, because it is the last one.
    stage.refused(
        "zpool offline tank @a @b",
        "cannot offline @b: no valid replicas",
    );
    assert_eq!(stage.line("@a"), "@a OFFLINE 0 0 0");
}

#[test]
fn a_faulted_device_returns_only_by_clear() {
    let stage = Stage::new(&["a", "b", "c", "s"], 128);
    stage.quietly("zpool create tank mirror @a @b");
    for option in ["-f", "-tf"] {
        stage.quietly(&format!("zpool offline {option} tank @b"));
        assert_eq!(stage.line("@b"), "@b FAULTED 0 0 0 external device fault");
        let (status, _) = stage.run("zpool status tank");
        assert!(
            status.contains(
                "status: One or more devices are faulted in response to persistent errors."
            )
        );
        stage.quietly(&format!("zfs create tank/x{option}"));
        let warning = "warning: device '@b' onlined, but remains in faulted state\n\
                       use 'zpool clear' to restore a faulted device\n";
        assert_eq!(stage.run("zpool online tank @b"), (warning.into(), 0));
        if option == "-f" {
            stage.quietly("zpool export tank");
            stage.quietly("zpool import tank");
            assert_eq!(stage.line("@b"), "@b FAULTED 0 0 0 external device fault");
        }
        stage.quietly("zpool clear tank @b");
        stage.await_resilver("@b");
    }
    // The last device cannot be faulted; it is only marked degraded.
    stage.quietly("zpool offline -t tank @b");
    stage.quietly("zpool offline -f tank @a");
    assert_eq!(stage.line("@a"), "@a DEGRADED 0 0 0 external device fault");
    let (events, _) = stage.run("zpool events");
    for class in [
        "resource.fs.zfs.statechange",
        "sysevent.fs.zfs.vdev_clear",
        "sysevent.fs.zfs.vdev_online",
    ] {
        assert!(events.contains(class), "{class}\n{events}");
    }
}

/// Gives the daemon a pool on a mirror of simulated disks.
fn adopted(stage: &Stage) -> (Pool, [Arc<SimDisk>; 2]) {
    let world = World::without_journal(5);
    let disks = [(); 2].map(|()| world.disk(96 << 20, 512));
    let device = |at: usize| NewDevice::file(&format!("/sim/{at}"), Arc::clone(&disks[at]) as _);
    let top = NewTop::normal(NewLayout::Mirror, vec![device(0), device(1)]);
    let new = NewPool {
        writing: WriteOptions {
            can_be_resumed: true,
            ..WriteOptions::default()
        },
        cache_bytes: Some(64 << 20),
        ..NewPool::new("tank", NewVdevs::of(vec![top]))
    };
    let live = Pool::create(&world.env(), &new).unwrap();
    stage.served.daemon.pools().adopt(live.clone());
    (live, disks)
}

#[test]
fn a_failing_device_is_faulted_automatically() {
    for is_gone in [false, true] {
        let stage = Stage::new(&["a", "b", "c", "s"], 128);
        let (live, disks) = adopted(&stage);
        let fails = FaultPlan::failing(Scope::Writes);
        match is_gone {
            true => disks[1].set_absent(true),
            false => disks[1].set_faults(Some(fails)),
        }
        stage.quietly("zfs create tank/x");
        let leaf = |pool: &Pool| {
            let topology = pool.inner().store().topology();
            let guid = topology.tree.leaves().nth(1).unwrap().1.config.guid;
            pool.inner().leaf_condition(guid).unwrap()
        };
        while leaf(&live).is_usable() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let state = if is_gone { "REMOVED" } else { "FAULTED" };
        assert!(
            stage
                .line("/sim/1")
                .starts_with(&format!("/sim/1 {state} "))
        );
        assert_eq!(stage.health(), "DEGRADED");
        stage.quietly("zfs create tank/y");
        let (events, _) = stage.run("zpool events");
        for class in ["statechange", "io", "probe_failure"] {
            assert!(events.contains(&format!(".{class}\n")), "{events}");
        }
        disks[1].set_absent(false);
        disks[1].set_faults(None);
        stage.quietly("zpool clear tank");
        assert!(stage.is_behind("/sim/1"), "{}", stage.line("/sim/1"));
        assert!(live.inner().suspension().is_none());
    }
}

/// Flips a byte of the checksum of each of the four labels.
fn damage_label_checksums(stage: &Stage, image: &str) {
    use std::os::unix::fs::FileExt;
    let mut open = std::fs::OpenOptions::new();
    let file = open.read(true).write(true).open(stage.image(image));
    let file = file.unwrap();
    let size_bytes = file.metadata().unwrap().len();
    let label_bytes = 256 << 10;
    for label in [
        0,
        label_bytes,
        size_bytes - 2 * label_bytes,
        size_bytes - label_bytes,
    ] {
        let at = label + (128 << 10) - 1;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
    }
}

#[test]
fn labels_with_wrong_checksums_are_only_good_for_reading() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create -O canmount=off tank mirror @a @b");
    stage.quietly("zfs create -o canmount=off tank/x");
    stage.quietly("zpool export tank");
    // One side is as good as missing.
    damage_label_checksums(&stage, "b");
    stage.quietly("zpool import tank");
    assert_eq!(stage.health(), "DEGRADED");
    let (status, _) = stage.run("zpool status tank");
    assert!(status.contains("UNAVAIL      0     0     0"), "{status}");
    stage.quietly("zpool export tank");
    // Without a good label on any side, nothing is written.
    damage_label_checksums(&stage, "a");
    let refused = stage.failed("zpool import tank");
    let why = "cannot import 'tank': the checksums of the labels of its devices are wrong\n\
        \tIt can be read: zpool import -o readonly=on tank\n";
    assert_eq!(refused, why);
    stage.quietly("zpool import -o readonly=on tank");
    assert_eq!(stage.done("zfs list -H -o name"), "tank\ntank/x\n");
    stage.quietly("zpool export tank");
    damage_label_checksums(&stage, "a");
    stage.quietly("zpool import tank");
}
