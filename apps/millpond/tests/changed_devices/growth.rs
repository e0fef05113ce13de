//! Vdevs that grow with their devices, or by one more.

use crate::stage::Stage;
use millpond_posix::{Caller, NewMode, WriteAt};
use millpond_sim::noise;

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
