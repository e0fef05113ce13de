//! Pools whose devices grow, through the commands.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/stage.rs"]
mod stage;

use millpond_posix::{Caller, NewMode, WriteAt};
use millpond_sim::noise;
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
fn a_pool_grows_with_online_e_and_shows_what_it_could() {
    let stage = Stage::new(&["a", "b", "c", "l"], 128);
    stage.quietly("zpool create tank mirror @a @b cache @l spare @c");
    assert_eq!(stage.sizes(), "112M\t-");
    for name in ["a", "b"] {
        stage.resize(name, 256);
    }
    assert_eq!(stage.sizes(), "112M\t-");
    // As soon as the devices are measured, the space is shown; it is not taken.
    stage.quietly("zpool online tank @a");
    assert_eq!(stage.sizes(), "112M\t128M");
    let (list, _) = stage.run("zpool list -v tank");
    let of = |name: &str| {
        let line = list.lines().find(|line| line.trim().starts_with(name));
        let words = line.unwrap_or_default().split_whitespace();
        words.take(6).collect::<Vec<_>>().join(" ")
    };
    assert!(of("mirror-0").ends_with("- 128M"), "{list}");
    assert!(of("@a").contains(" 256M - - "), "{list}");
    stage.quietly("zpool online -e tank @b");
    assert_eq!(stage.sizes(), "240M\t-");
    let (history, _) = stage.run("zpool history -i tank");
    let grown = "vdev online pool 'tank' size: 251658240(+134217728)";
    assert!(history.contains(grown), "{history}");
    assert!(history.contains("zpool online -e tank"), "{history}");
    for (line, words) in [
        (
            "zpool online -e tank @l",
            "cannot expand @l: cannot expand cache devices",
        ),
        (
            "zpool online -e tank @c",
            "cannot expand @c: device is reserved as a hot spare",
        ),
        (
            "zpool online -e tank mirror-0",
            "cannot expand mirror-0: operation not supported on this type of pool",
        ),
        (
            "zpool online -e tank @z",
            "couldn't find device \"@z\" in pool \"tank\"",
        ),
    ] {
        stage.refused(line, words);
    }
    stage.quietly("zpool export tank");
    stage.judge("tank");
    // The same without the daemon, with autoexpand.
    for name in ["a", "b"] {
        stage.resize(name, 512);
    }
    stage.quietly("zpool import tank");
    assert_eq!(stage.sizes(), "240M\t256M");
    stage.quietly("zpool set autoexpand=on tank");
    stage.quietly("zpool export tank");
    stage.quietly("zpool import tank");
    assert_eq!(stage.sizes(), "496M\t-");
    stage.quietly("zpool export tank");
    stage.judge("tank");
    drop(stage.served);
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
fn a_device_that_shrank_is_refused_and_its_vdev_keeps_its_size() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create tank mirror @a @b");
    stage.resize("b", 80);
    let shrank = "cannot expand @b: @b: the device has shrunk from 134217728 to 83886080 bytes; \
                  use 'zpool replace' to replace it";
    stage.refused("zpool online -e tank @b", shrank);
    assert_eq!(stage.sizes(), "112M\t-");
    let (status, _) = stage.run("zpool status tank");
    assert!(status.contains("state: DEGRADED"), "{status}");
    stage.resize("b", 128);
    let (text, code) = stage.run("zpool online tank @b");
    assert_eq!((text.as_str(), code), ("", 0));
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
fn a_distributed_spare_takes_the_place_of_a_child_by_its_name() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    stage.quietly("zpool create tank draid1:2d:1s @a @b @c @d");
    stage.refused(
        "zpool replace tank @a draid1-0-7",
        "cannot open 'draid1-0-7': no such device in /dev\nmust be a full path or shorthand device name",
    );
    stage.quietly("zpool offline tank @a");
    stage.quietly("zpool replace -w tank @a draid1-0-0");
    let (status, _) = stage.run("zpool status tank");
    let line = |name: &str, state: &str| {
        let mut lines = status.lines().map(str::trim_start);
        lines.any(|line| line.starts_with(name) && line.contains(state))
    };
    assert!(line("spare-0", "DEGRADED"), "{status}");
    assert!(line("draid1-0-0", "ONLINE"), "{status}");
    assert!(line("draid1-0-0", "INUSE"), "{status}");
    let words = "cannot replace @b with draid1-0-0: the device is not labelled as a free hot spare; \
                 see 'zpool status'";
    let (text, code) = stage.run("zpool replace tank @b draid1-0-0");
    assert_eq!((text.trim_end(), code), (words, 255));
    stage.quietly("zpool online tank @a");
    stage.quietly("zpool wait -t resilver tank");
    // The spare steps back by itself.
    stage.quietly("zpool scrub -w tank");
    let (status, _) = stage.run("zpool status tank");
    assert!(status.contains("state: ONLINE"), "{status}");
    assert!(!status.contains("spare-0"), "{status}");
    stage.quietly("zpool export tank");
    stage.judge("tank");
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
fn pools_share_a_spare() {
    let stage = Stage::new(&["a", "b", "c", "d", "s"], 128);
    stage.quietly("zpool create tank mirror @a @b spare @s");
    stage.quietly("zpool create other mirror @c @d spare @s");
    let twice = "cannot add to 'tank': one or more vdevs refer to the same device";
    stage.refused("zpool add tank spare @s", twice);
    let spare = |pool: &str| {
        let (text, _) = stage.run(&format!("zpool status {pool}"));
        let line = text.lines().rfind(|line| line.contains("@s "));
        let words = line.unwrap_or_default().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    };
    let both = || (spare("tank"), spare("other"));
    let are = |one: &str, two: &str| assert_eq!(both(), (one.into(), two.into()));
    are("@s AVAIL", "@s AVAIL");
    stage.quietly("zpool replace -w tank @a @s");
    are(
        "@s INUSE currently in use",
        "@s INUSE in use by pool 'tank'",
    );
    let used = "invalid vdev specification\nuse '-f' to override the following errors:\n\
                @s is part of active pool 'tank'";
    stage.refused("zpool replace other @c @s", used);
    // What one pool gives up stays whole while another uses it.
    stage.quietly("zpool remove other @s");
    stage.quietly("zpool scrub -w tank");
    let (text, _) = stage.run("zpool status tank");
    assert!(
        text.contains("with 0 errors") && !text.contains("UNAVAIL"),
        "{text}"
    );
    stage.quietly("zpool detach tank @s");
    stage.quietly("zpool add other spare @s");
    are("@s AVAIL", "@s AVAIL");
    stage.quietly("zpool remove tank @s");
    stage.quietly("zpool add tank spare @s");
    are("@s AVAIL", "@s AVAIL");
    // Both are imported again, and one of them keeps it.
    for pool in ["tank", "other"] {
        stage.quietly(&format!("zpool export {pool}"));
    }
    for pool in ["other", "tank"] {
        stage.quietly(&format!("zpool import {pool}"));
    }
    are("@s AVAIL", "@s AVAIL");
    stage.quietly("zpool replace -w other @c @s");
    are(
        "@s INUSE in use by pool 'other'",
        "@s INUSE currently in use",
    );
    stage.quietly("zpool detach other @c");
    let (text, _) = stage.run("zpool status tank");
    assert!(!text.contains("@s"), "{text}");
    for pool in ["tank", "other"] {
        stage.quietly(&format!("zpool export {pool}"));
        stage.judge(pool);
    }
}

#[test]
fn a_spare_is_used_by_hand() {
    let stage = Stage::new(&["a", "b", "s", "t"], 128);
    stage.quietly("zpool create tank mirror @a @b log @t spare @s");
    let (text, status) = stage.run("zpool replace tank @t @s");
    let words = "cannot replace @t with @s: cannot replace a log with a spare\n";
    assert_eq!((text.as_str(), status), (words, 255));
    let spares = || {
        let (text, _) = stage.run("zpool status tank");
        let at = text.find("spares").map_or("", |at| &text[at..]);
        let lines = at.lines().filter(|line| line.contains('@'));
        let words = lines.flat_map(str::split_whitespace);
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(spares(), "@s AVAIL");
    stage.quietly("zpool replace -w tank @a @s");
    assert_eq!(spares(), "@s INUSE currently in use");
    let used = "invalid vdev specification\nuse '-f' to override the following errors:\n\
                @s is part of active pool 'tank'";
    stage.refused("zpool replace tank @b @s", used);
    stage.quietly("zpool detach tank @s");
    assert_eq!(spares(), "@s AVAIL");
    stage.quietly("zpool replace -w tank @a @s");
    stage.quietly("zpool detach tank @a");
    assert_eq!(spares(), "");
    let (status, _) = stage.run("zpool status tank");
    assert!(
        status.contains("@s") && !status.contains("spare"),
        "{status}"
    );
    let (history, _) = stage.run("zpool history -i tank");
    assert!(
        history.contains("spare in vdev=@s for vdev=@a"),
        "{history}"
    );
    // The old disk may be a spare now, also without the daemon.
    stage.quietly("zpool add tank spare @a");
    stage.quietly("zpool export tank");
    stage.judge("tank");
    let own = format!("millpond -d {} zpool", stage.folder.path().display());
    stage.quietly(&format!("{own} replace tank @b @a"));
    stage.quietly(&format!("{own} detach tank @b"));
    stage.quietly("zpool import tank");
    assert_eq!(spares(), "");
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

#[test]
fn a_raidz_vdev_is_expanded_by_a_device() {
    let stage = Stage::new(&["a", "b", "c", "d", "e", "f"], 128);
    stage.resize("f", 80);
    stage.quietly("zpool create tank raidz1 @a @b @c");
    let bytes = noise(5, 40 << 20);
    {
        let pool = stage.served.daemon.pools().writable("tank").unwrap();
        let files = pool.file_system("tank").unwrap();
        let root = files.root().unwrap();
        let mode = NewMode::exactly(0o600);
        let (made, _) = (files.create(&Caller::root(), &root, b"file", mode, true)).unwrap();
        files
            .write(&Caller::root(), &made, WriteAt::Offset(0), &bytes)
            .unwrap();
    }
    let before = stage.sizes();
    for (line, words) in [
        (
            "zpool attach tank raidz1-7 @d",
            "cannot attach @d to raidz1-7: no such device in pool",
        ),
        (
            "zpool attach tank raidz1-0 @f",
            "cannot attach @f to raidz1-0: device is too small",
        ),
    ] {
        assert_eq!(stage.run(line), (format!("{words}\n"), 255), "{line}");
    }
    stage.quietly("zpool attach -w tank raidz1-0 @d");
    let (status, _) = stage.run("zpool status tank");
    assert!(
        status.contains("expand: expanded raidz1-0 copied"),
        "{status}"
    );
    assert!(status.contains("scrub"), "{status}");
    assert_ne!(stage.sizes(), before);
    stage.quietly("zpool attach tank raidz1-0 @e");
    stage.quietly("zpool wait -t raidz_expand tank");
    stage.quietly("zpool wait -t scrub tank");
    let (status, _) = stage.run("zpool status tank");
    assert!(status.contains("scrub repaired 0B"), "{status}");
    let (off, _) = stage.run("zpool get -Ho value raidz_expanding tank raidz1-0");
    assert_eq!(off, "off\n");
    let (history, _) = stage.run("zpool history -i tank");
    assert_eq!(
        history.matches("raidz vdev expansion completed").count(),
        2,
        "{history}"
    );
    stage.quietly("zpool export tank");
    stage.judge("tank");
    stage.quietly("zpool import -N tank");
    let pool = stage.served.daemon.pools().writable("tank").unwrap();
    let files = pool.file_system("tank").unwrap();
    let node = files.root().unwrap().lookup(b"file").unwrap();
    let mut found = vec![0; bytes.len()];
    assert_eq!(node.read(0, &mut found).unwrap(), bytes.len());
    assert!(found == bytes);
}
