//! `zpool initialize` and `zpool trim` through the commands: what they print, and their records in the history.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/stage.rs"]
mod stage;

use stage::Stage;

#[test]
fn the_texts_are_those_of_openzfs() {
    let stage = Stage::new(&["a", "b"], 64);
    stage.done("zpool create tank mirror @a @b");
    let none = "cannot initialize '@a': there is no active initialization\n\
                cannot initialize '@b': there is no active initialization\n";
    assert_eq!(stage.run("zpool initialize -s tank"), (none.into(), 255));
    assert_eq!(stage.run("zpool initialize -c tank"), (none.into(), 255));
    let missing = "cannot initialize '@none': no such device in pool\n";
    let found = stage.run("zpool initialize tank @none");
    assert_eq!(found, (missing.into(), 255));
    assert_eq!(stage.run("zpool initialize -c -s tank").1, 2);
    assert_eq!(stage.run("zpool initialize nosuch").1, 255);
    assert!(
        stage
            .done("zpool status -i tank")
            .contains("@a  ONLINE       0     0     0  (uninitialized)")
    );
    assert_eq!(stage.done("zpool initialize -w tank @a"), "");
    let status = stage.done("zpool status -i tank");
    assert!(
        status.contains("  (100% initialized, completed at "),
        "{status}"
    );
    assert!(status.contains("  (uninitialized)"), "{status}");
    assert_eq!(stage.done("zpool initialize tank @b"), "");
    assert_eq!(stage.done("zpool wait -t initialize tank"), "");
    let image = std::fs::read(stage.folder.path().join("b")).unwrap();
    let pattern = 0xdead_beef_dead_beee_u64.to_le_bytes();
    let words = image.chunks_exact(8).filter(|word| *word == pattern);
    assert!(words.count() * 8 > 40 << 20);
    assert_eq!(stage.done("zpool initialize -u tank"), "");
    let status = stage.done("zpool status -i tank");
    assert_eq!(status.matches("(uninitialized)").count(), 2, "{status}");
    let history = stage.done("zpool history -i tank");
    for (name, text) in [
        ("initialize", "@a activated"),
        ("initialize", "@b complete"),
        ("uninitialize", "@a"),
    ] {
        let record = format!("{name} vdev={text}");
        assert!(history.contains(&record), "{record} in {history}");
    }
}

#[test]
fn it_continues_after_an_import() {
    let stage = Stage::new(&["a", "b"], 64);
    stage.done("zpool create tank @a");
    stage.done("zpool initialize tank");
    stage.done("zpool export tank");
    stage.done("zpool import tank");
    stage.done("zpool wait -t initialize tank");
    let status = stage.done("zpool status -i tank");
    assert!(
        status.contains("  (100% initialized, completed at "),
        "{status}"
    );
}

#[test]
fn without_the_daemon_the_command_does_it_itself() {
    let stage = Stage::new(&["a", "b"], 64);
    stage.done("zpool create tank @a");
    stage.done("zpool export tank");
    let found = stage.run_alone("zpool initialize -w tank");
    assert_eq!(found, (String::new(), 0));
    let (status, _) = stage.run_alone("zpool status -i tank");
    assert!(
        status.contains("  (100% initialized, completed at "),
        "{status}"
    );
}

#[test]
fn the_texts_of_trim_are_those_of_openzfs() {
    let stage = Stage::new(&["a", "b"], 64);
    stage.done("zpool create tank @a @b");
    let none = "cannot trim '@a': there is no active trim\n\
                cannot trim '@b': there is no active trim\n";
    assert_eq!(stage.run("zpool trim -s tank"), (none.into(), 255));
    assert_eq!(stage.run("zpool trim -c tank"), (none.into(), 255));
    let missing = "cannot trim '@none': no such device in pool\n";
    assert_eq!(stage.run("zpool trim tank @none"), (missing.into(), 255));
    let secure = "cannot trim '@a': trim operations are not supported by this device\n\
                  cannot trim '@b': trim operations are not supported by this device\n";
    assert_eq!(stage.run("zpool trim -d tank"), (secure.into(), 255));
    let (text, status) = stage.run("zpool trim -r abc tank");
    let usage = "\ttrim [-dw] [-r <rate>] [-c | -s] <pool> [<device> ...]\n";
    let rate = format!("invalid value for rate: bad numeric value 'abc'\nusage:\n{usage}");
    assert_eq!((status, text.trim_end()), (2, rate.trim_end()));
    let (text, status) = stage.run("zpool trim -a tank");
    let all = "-a cannot be combined with individual zpools or vdevs\n";
    assert!(status == 2 && text.starts_with(all), "{text}");
    assert_eq!(stage.run("zpool trim nosuch").1, 255);
    assert_eq!(stage.run("zpool trim").1, 2);
    let status = stage.done("zpool status -t tank");
    assert!(
        status.contains("@a  ONLINE       0     0     0  (untrimmed)\n"),
        "{status}"
    );
    // So slow that it does not end.
    stage.done("zpool trim -r 1 tank @a");
    let running = ("cannot trim '@a': currently trimming\n".into(), 255);
    assert_eq!(stage.run("zpool trim tank @a"), running);
    let status = stage.done("zpool status -t tank");
    assert!(status.contains("% trimmed, started at "), "{status}");
    assert!(stage.done("zpool status tank").contains("  (trimming)\n"));
    stage.done("zpool trim -s tank @a");
    let status = stage.done("zpool status -t tank");
    assert!(
        status.contains("% trimmed, suspended, started at "),
        "{status}"
    );
    stage.done("zpool trim -c tank @a");
    assert_eq!(stage.done("zpool trim -w tank @a"), "");
    let status = stage.done("zpool status -t tank");
    let lines: Vec<&str> = status.lines().filter(|line| line.contains('@')).collect();
    assert!(
        lines[0].contains("  (100% trimmed, completed at "),
        "{status}"
    );
    assert!(lines[1].ends_with("  (untrimmed)"), "{status}");
    let events = stage.done("zpool events tank");
    for event in ["start", "suspend", "cancel", "finish"] {
        let event = format!("sysevent.fs.zfs.trim_{event}");
        assert!(events.contains(&event), "{event} in {events}");
    }
    let history = stage.done("zpool history -i tank");
    for text in ["activated", "suspended", "canceled", "complete"] {
        let record = format!("trim vdev=@a {text}");
        assert!(history.contains(&record), "{record} in {history}");
    }
    assert_eq!(
        stage.done("zpool get -Ho value trim_support tank @a"),
        "on\n"
    );
    let bytes = stage.done("zpool get -Hpo value trim_bytes tank @a");
    assert!(bytes.trim().parse::<u64>().unwrap() > 30 << 20, "{bytes}");
}

#[test]
fn trim_gives_space_back_to_the_file_system() {
    use std::os::unix::fs::MetadataExt;
    let stage = Stage::new(&["a", "b"], 64);
    let blocks = || {
        let image = stage.folder.path().join("a");
        std::fs::metadata(image).unwrap().blocks() * 512
    };
    stage.done("zpool create tank @a");
    stage.done("zpool initialize -w tank");
    let before = blocks();
    assert!(before > 40 << 20, "{before}");
    stage.done("zpool trim -a");
    stage.done("zpool wait -t trim tank");
    let after = blocks();
    assert!(after < before / 4, "{after} of {before}");
    assert!(
        stage
            .done("zpool status -t tank")
            .contains("  (100% trimmed")
    );
    stage.done("zpool export tank");
    // Without the daemon the command does it itself.
    assert_eq!(stage.run_alone("zpool trim -w tank"), (String::new(), 0));
}

#[test]
fn waiting_is_for_the_named_devices_alone() {
    let stage = Stage::new(&["a", "b"], 64);
    stage.quietly("zpool create tank @a @b");
    // At this rate it does not end by itself.
    stage.quietly("zpool trim -r 1 tank @a");
    stage.quietly("zpool trim -w tank @b");
    let (status, _) = stage.run("zpool status -t tank");
    assert!(status.contains("trimmed, started at"), "{status}");
    stage.quietly("zpool trim -c tank @a");
    stage.quietly("zpool wait -t trim tank");
}
