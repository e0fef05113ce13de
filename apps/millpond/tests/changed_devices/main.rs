//! Devices are added to pools, change, and leave them, through the commands.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

mod growth;
mod spares;
#[path = "../support/stage.rs"]
mod stage;

use millpond_tests::oracle::zdb;
use stage::Stage;

impl Stage {
    /// Size and space to expand into.
    fn sizes(&self) -> String {
        let (text, _) = self.run("zpool list -H -o size,expandsize tank");
        text.trim().to_owned()
    }

    fn judge(&self, pool: &str) {
        let verdict = zdb::judge(self.folder.path(), pool).unwrap();
        verdict.require(pool);
    }
}

#[test]
fn a_pool_of_mirrors_is_split_as_recorded() {
    let stage = Stage::new(&["d0", "d1", "d2", "d3", "c", "s"], 128);
    stage.quietly("zpool create tank mirror @d0 @d1 mirror @d2 @d3 cache @c spare @s");
    let layout = |sides: [&str; 2]| {
        let [one, two] = sides;
        let head = "would create 'new' with the following layout:\n\n\tnew\n";
        (format!("{head}\t  {one}\n\t  {two}\n"), 0)
    };
    assert_eq!(stage.run("zpool split -n tank new"), layout(["@d1", "@d3"]));
    assert_eq!(
        stage.run("zpool split -n tank new @d0"),
        layout(["@d0", "@d3"])
    );
    for (line, words) in [
        (
            "zpool split tank new @nosuch",
            "cannot resolve path '@nosuch'\nUnable to build a pool from the specified devices",
        ),
        (
            "zpool split -n tank new @d0 @d1",
            "Unable to split tank: Device list must include at most one disk from each mirror",
        ),
        (
            "zpool split tank new @c",
            "Unable to split tank: Device list must include at most one disk from each mirror",
        ),
        (
            "zpool split tank tank",
            "Unable to split tank: pool already exists",
        ),
        (
            "zpool split tank bad/name",
            "Unable to split tank: invalid character '/' in pool name",
        ),
        (
            "zpool split -R folder tank new",
            "invalid alternate root 'folder': must be an absolute path",
        ),
        (
            "zpool import -R folder new",
            "invalid alternate root 'folder': must be an absolute path",
        ),
        (
            "zpool import -o altroot=folder new",
            "invalid alternate root 'folder': must be an absolute path",
        ),
        (
            "zpool events /tmp/tank",
            "cannot open '/tmp/tank': invalid character '/' in pool name",
        ),
        (
            "zpool split nosuch new",
            "cannot open 'nosuch': no such pool",
        ),
    ] {
        stage.refused(line, words);
    }
    stage.quietly("zfs create tank/fs");
    stage.quietly("zpool split -o comment=copy tank new");
    let (status, _) = stage.run("zpool status tank");
    let config: Vec<&str> = status
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with('@') || line.starts_with("tank") || line.contains("mirror"))
        .map(|line| line.split_whitespace().next().unwrap_or_default())
        .collect();
    assert_eq!(config, ["tank", "@d0", "@d2", "@c", "@s"], "{status}");
    stage.refused(
        "zpool split tank new2",
        "Unable to split tank: Source pool must be composed only of mirrors\n",
    );
    let (found, _) = stage.run("zpool import");
    let lines = ["pool: new", "state: ONLINE", "@d1  ONLINE", "@d3  ONLINE"];
    assert!(lines.iter().all(|line| found.contains(line)), "{found}");
    stage.quietly("zpool import -N new");
    let (sizes, _) = stage.run("zpool list -H -o name,size,health,comment");
    assert_eq!(sizes, "new\t224M\tONLINE\tcopy\ntank\t224M\tONLINE\t-\n");
    let (names, _) = stage.run("zfs list -H -o name");
    assert_eq!(names, "new\nnew/fs\ntank\ntank/fs\n");
    let (history, _) = stage.run("zpool history -i new");
    assert!(history.contains("split from pool tank"), "{history}");
    let (history, _) = stage.run("zpool history -i tank");
    assert!(
        history.contains("zpool split -o comment=copy tank new"),
        "{history}"
    );
    for name in ["new", "tank"] {
        stage.quietly(&format!("zfs create {name}/after"));
        stage.quietly(&format!("zpool export {name}"));
    }
    for name in ["new", "tank"] {
        stage.judge(name);
    }
    // With -R, the new pool is imported.
    stage.quietly("zpool import -N tank");
    for (old, side) in [("@d0", "@d1"), ("@d2", "@d3")] {
        stage.quietly(&format!("zpool attach -f -w tank {old} {side}"));
    }
    stage.quietly("zpool split -R /nowhere tank second");
    let (roots, _) = stage.run("zpool list -H -o name,altroot");
    assert_eq!(roots, "second\t/nowhere\ntank\t-\n");
}

#[test]
fn a_new_side_with_sectors_that_no_vdev_can_have_is_refused() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create tank @a");
    for command in ["attach", "replace"] {
        for (value, words) in [
            ("off", "ashift must be a number."),
            ("1b", "ashift must be a number."),
            (
                "17",
                "invalid 'ashift=17' property: only values between 9 and 16 are allowed.",
            ),
        ] {
            let line = format!("zpool {command} -o ashift={value} tank @a @b");
            stage.refused(&line, words);
        }
    }
    stage.quietly("zpool attach -o ashift=12 tank @a @b");
}

#[test]
fn log_vdevs_are_removed() {
    let stage = Stage::new(&["a", "b", "l", "m", "n"], 128);
    stage.quietly("zpool create tank mirror @a @b log @n mirror @l @m");
    let words = "cannot remove @l: operation not supported on this type of pool";
    stage.refused("zpool remove tank @l", words);
    stage.refused(
        "zpool remove tank mirror-7",
        "cannot remove mirror-7: no such device in pool",
    );
    stage.refused(
        "zpool remove tank mirror-0",
        "cannot remove mirror-0: out of space",
    );
    let (text, status) = stage.run("zpool remove -n tank mirror-2");
    let memory = "Memory that will be used after removing mirror-2: 0\n";
    assert_eq!((text.as_str(), status), (memory, 0));
    let (text, status) = stage.run("zpool remove -np tank mirror-2");
    assert_eq!((text.as_str(), status), ("mirror-2 0\n", 0));
    stage.quietly("zpool remove -w tank mirror-2");
    let (status, _) = stage.run("zpool status tank");
    assert!(!status.contains("mirror-2"), "{status}");
    assert!(status.contains("logs") && status.contains("@n"), "{status}");
    // The devices can be used at once, and another log has a number of its own.
    stage.quietly("zpool create other @l");
    stage.quietly("zpool add tank log @m");
    for name in ["@n", "@m"] {
        stage.quietly(&format!("zpool remove tank {name}"));
    }
    let (history, _) = stage.run("zpool history -i tank");
    for event in [
        "vdev remove tank vdev 2 (log) mirror-2",
        "zpool remove tank @n",
    ] {
        assert!(history.contains(event), "{event}: {history}");
    }
    let (events, _) = stage.run("zpool events");
    assert!(
        events.contains("sysevent.fs.zfs.vdev_remove_dev"),
        "{events}"
    );
    let (status, _) = stage.run("zpool status tank");
    assert!(!status.contains("logs"), "{status}");
    stage.quietly("zpool destroy other");
    stage.quietly("zpool export tank");
    stage.judge("tank");
    stage.quietly("zpool import tank");
    stage.quietly("zpool export tank");
    stage.judge("tank");
}

#[test]
fn pools_are_reopened() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    stage.quietly("zpool create tank mirror @a @b");
    stage.quietly("zpool create other @c @d");
    let words = "cannot open 'none': no such pool";
    stage.refused("zpool reopen none", words);
    let state = |name: &str| {
        let (text, _) = stage.run("zpool status");
        let line = text.lines().find(|line| line.contains(name));
        let mut words = line.unwrap_or_default().split_whitespace();
        words.nth(1).unwrap_or_default().to_owned()
    };
    // Files that are gone stay open until someone looks.
    let path = |name: &str| stage.folder.path().join(name);
    let away = |name: &str| std::fs::rename(path(name), stage.tools.path().join(name)).unwrap();
    let back = |name: &str| std::fs::rename(stage.tools.path().join(name), path(name)).unwrap();
    away("b");
    away("c");
    assert_eq!(state("@b"), "ONLINE");
    stage.quietly("zpool reopen");
    assert_eq!(
        (state("@a"), state("@b")),
        ("ONLINE".into(), "UNAVAIL".into())
    );
    // Without this one its pool could not go on.
    assert_eq!(state("@c"), "ONLINE");
    stage.quietly("zpool sync tank");
    back("b");
    back("c");
    stage.quietly("zpool reopen -n tank");
    stage.quietly("zpool wait -t resilver tank");
    assert_eq!(state("@b"), "ONLINE");
    // Another file at the path is not taken.
    away("b");
    stage.quietly("zpool reopen tank");
    stage.resize("b", 128);
    stage.quietly("zpool reopen tank");
    assert_eq!(state("@b"), "UNAVAIL");
    back("b");
    stage.quietly("zpool reopen tank other");
    stage.quietly("zpool wait -t resilver tank");
    assert_eq!(state("@b"), "ONLINE");
    // Devices that grew are measured.
    for name in ["a", "b"] {
        stage.resize(name, 256);
    }
    stage.quietly("zpool reopen tank");
    assert_eq!(stage.sizes(), "112M\t128M");
    stage.quietly("zpool set autoexpand=on tank");
    stage.quietly("zpool reopen tank");
    assert_eq!(stage.sizes(), "240M\t-");
    stage.quietly("zpool export tank");
    stage.judge("tank");
}

#[test]
fn a_device_that_comes_back_is_used_again() {
    let stage = Stage::new(&["a", "b", "c"], 128);
    stage.quietly("zpool create tank mirror @a @b");
    let path = |name: &str| stage.folder.path().join(name);
    let states = || {
        let (text, _) = stage.run("zpool status tank");
        let lines = text.lines().filter(|line| line.starts_with("\t    "));
        let words = lines.filter_map(|line| line.split_whitespace().nth(1));
        words.collect::<Vec<_>>().join(" ")
    };
    let looks = |state: &str| {
        stage.served.daemon.look_at_failed();
        assert_eq!(states(), state);
    };
    std::fs::rename(path("b"), path("away")).unwrap();
    stage.quietly("zpool reopen tank");
    looks("ONLINE UNAVAIL");
    // Another device at its path is none of ours.
    stage.quietly("zpool create other @c");
    stage.quietly("zpool export other");
    std::fs::rename(path("c"), path("b")).unwrap();
    looks("ONLINE UNAVAIL");
    stage.quietly("zfs create tank/new");
    std::fs::rename(path("b"), path("c")).unwrap();
    std::fs::rename(path("away"), path("b")).unwrap();
    looks("ONLINE ONLINE");
    stage.quietly("zpool wait -t resilver tank");
    // A device that an administrator took away is left alone.
    stage.quietly("zpool offline tank @b");
    looks("ONLINE OFFLINE");
    stage.quietly("zpool offline -f tank @b");
    looks("ONLINE FAULTED");
    stage.quietly("zpool clear tank");
    looks("ONLINE ONLINE");
    stage.quietly("zpool wait -t resilver tank");
    stage.quietly("zpool export tank");
    stage.judge("tank");
}

#[test]
fn a_blank_device_at_the_path_of_a_failed_one_replaces_it() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create tank mirror @a @b");
    let path = stage.folder.path().join("b");
    let tree = || {
        let (text, _) = stage.run("zpool status tank");
        let lines = text.lines().filter(|line| line.starts_with('\t'));
        let words = lines.flat_map(|line| line.split_whitespace().take(2));
        words.collect::<Vec<_>>().join(" ")
    };
    let whole = "NAME STATE tank ONLINE mirror-0 ONLINE @a ONLINE @b ONLINE";
    let is_failed = || assert!(tree().contains(" UNAVAIL"), "{}", tree());
    std::fs::remove_file(&path).unwrap();
    stage.quietly("zpool reopen tank");
    // By default nothing is replaced.
    stage.resize("b", 128);
    stage.served.daemon.look_at_failed();
    is_failed();
    stage.quietly("zpool set autoreplace=on tank");
    // Not what holds something, nor what is too small.
    std::fs::write(&path, [[0; 1024], [1; 1024]].concat()).unwrap();
    stage.resize("b", 128);
    stage.served.daemon.look_at_failed();
    is_failed();
    std::fs::remove_file(&path).unwrap();
    stage.resize("b", 100);
    for _ in 0..2 {
        stage.served.daemon.look_at_failed();
        is_failed();
    }
    std::fs::remove_file(&path).unwrap();
    stage.served.daemon.look_at_failed();
    stage.resize("b", 128);
    stage.served.daemon.look_at_failed();
    stage.quietly("zpool wait -t replace tank");
    assert_eq!(tree(), whole);
    let (history, _) = stage.run("zpool history -i tank");
    assert!(history.contains("replace vdev=@b for vdev=@b"), "{history}");
    // A device that an administrator took away is left alone.
    stage.quietly("zpool offline -f tank @b");
    std::fs::remove_file(&path).unwrap();
    stage.resize("b", 128);
    stage.served.daemon.look_at_failed();
    assert!(tree().contains(" FAULTED"), "{}", tree());
    stage.quietly("zpool replace -w tank @b");
    assert_eq!(tree(), whole);
    stage.quietly("zpool export tank");
    stage.judge("tank");
}
