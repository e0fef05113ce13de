//! Hot spares, and distributed ones.

use crate::stage::Stage;

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
