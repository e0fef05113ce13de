//! `zpool checkpoint` and rewinding to it through the commands: what they print, refuse and leave behind.
//!
//! Each command is a process of its own. The daemon runs in this process, on real image files.

#[path = "support/stage.rs"]
mod stage;

use stage::Stage;

const STANDS: &str = "checkpoint exists\n";

#[test]
fn the_texts_are_those_of_openzfs() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    stage.done("zpool create tank mirror @a @b");
    let refused = |command: &str, text: &str, status: i32| {
        assert_eq!(stage.run(command), (text.into(), status), "{command}");
    };
    refused(
        "zpool checkpoint -d tank",
        "cannot discard checkpoint in 'tank': checkpoint does not exist\n",
        1,
    );
    let (text, status) = stage.run("zpool checkpoint -w tank");
    assert!(text.starts_with("--wait only valid when --discard also specified\n"));
    assert_eq!(status, 2);
    assert_eq!(stage.done("zpool checkpoint tank"), "");
    refused(
        "zpool checkpoint tank",
        &format!("cannot checkpoint 'tank': {STANDS}"),
        1,
    );
    let status = stage.done("zpool status tank");
    assert!(status.contains("\ncheckpoint: created "), "{status}");
    assert!(status.contains(", consumes "), "{status}");
    let listed = stage.done("zpool list -Hp -o checkpoint tank");
    assert!(listed.trim().parse::<u64>().is_ok(), "{listed}");
    refused(
        "zpool remove tank mirror-0",
        &format!("cannot remove mirror-0: {STANDS}"),
        1,
    );
    refused(
        "zpool reguid tank",
        &format!("cannot reguid 'tank': {STANDS}"),
        255,
    );
    refused(
        "zpool attach tank @a @c",
        &format!("cannot attach @c to @a: {STANDS}"),
        255,
    );
    refused(
        "zpool replace tank @a @c",
        &format!("cannot replace @a with @c: {STANDS}"),
        255,
    );
    refused(
        "zpool detach tank @a",
        &format!("cannot detach @a: {STANDS}"),
        255,
    );
    refused(
        "zpool split tank other",
        &format!("Unable to split tank: {STANDS}"),
        1,
    );
    stage.done("zpool add -f tank @c");
    assert_eq!(stage.done("zpool checkpoint -d -w tank"), "");
    let status = stage.done("zpool status tank");
    assert!(!status.contains("checkpoint"), "{status}");
    let history = stage.done("zpool history -i tank");
    for record in [
        "spa checkpoint checkpointed uberblock txg=",
        "spa discard checkpoint started discarding checkpointed state from the pool",
        "spa discard checkpoint finished discarding checkpointed state from the pool",
    ] {
        assert!(history.contains(record), "{record} in {history}");
    }
    stage.done("zpool reguid tank");
}

#[test]
fn a_rewound_pool_is_as_it_was() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create tank @a");
    stage.done("zfs create tank/kept");
    stage.done("zpool checkpoint tank");
    stage.done("zfs destroy tank/kept");
    stage.done("zfs create tank/new");
    stage.done("zpool add tank @b");
    stage.done("zpool export tank");
    // A look at it changes nothing.
    stage.done("zpool import -o readonly=on --rewind-to-checkpoint tank");
    let names = stage.done("zfs list -H -o name -r tank");
    assert_eq!(names, "tank\ntank/kept\n");
    let status = stage.done("zpool status tank");
    assert!(!status.contains("checkpoint"), "{status}");
    // Nor does destroying it: a pool that cannot be written is only exported.
    let warned = stage.done("zpool destroy tank");
    assert!(warned.contains("nothing is destroyed"), "{warned}");
    stage.done("zpool import tank");
    assert_eq!(
        stage.done("zfs list -H -o name -r tank"),
        "tank\ntank/new\n"
    );
    stage.done("zpool export tank");
    stage.done("zpool import --rewind-to-checkpoint tank");
    let names = stage.done("zfs list -H -o name -r tank");
    assert_eq!(names, "tank\ntank/kept\n");
    let status = stage.done("zpool status tank");
    assert!(
        !status.contains("checkpoint") && !status.contains("@b"),
        "{status}"
    );
    let history = stage.done("zpool history -i tank");
    let record = "checkpoint rewind rewound state to txg=";
    assert!(history.contains(record), "{record} in {history}");
    stage.done("zfs create tank/later");
    stage.done("zpool export tank");
    stage.done("zpool import tank");
    let names = stage.done("zfs list -H -o name -r tank");
    assert_eq!(names, "tank\ntank/kept\ntank/later\n");
}

#[test]
fn without_the_daemon_the_command_does_it_itself() {
    let stage = Stage::new(&["a"], 128);
    stage.done("zpool create tank @a");
    stage.done("zpool export tank");
    let alone = |command: &str| stage.run_alone(command);
    assert_eq!(alone("zpool checkpoint tank"), (String::new(), 0));
    let (status, _) = alone("zpool status tank");
    assert!(status.contains("\ncheckpoint: created "), "{status}");
    assert_eq!(alone("zpool checkpoint -d tank"), (String::new(), 0));
    let (status, _) = alone("zpool status tank");
    assert!(!status.contains("checkpoint"), "{status}");
}
