//! Snapshots that are created, renamed and destroyed as directories in `.zfs/snapshot`.

use super::{Stage, USER};

/// A pool with the file system `tank/a`, where directories in `.zfs/snapshot` are snapshots.
fn stage() -> Option<Stage> {
    let stage = Stage::new()?;
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("echo first > HERE/tank/a/file && millpond tunable zfs_admin_snapshot 1");
    Some(stage)
}

fn snapshots(stage: &Stage) -> Vec<String> {
    let listed = stage.done("zfs list -H -o name -t snapshot -s name");
    listed.lines().map(str::to_owned).collect()
}

/// The error that a program prints, for a line that must fail.
fn errno(stage: &Stage, line: &str) -> String {
    let message = stage.refused(line);
    let words = message.trim().rsplit(": ");
    words.into_iter().next().unwrap_or_default().to_owned()
}

#[test]
fn directories_in_the_snapshot_directory_are_snapshots() {
    let Some(stage) = stage() else { return };
    // Its time is that of the last change of a snapshot, also one that a command made.
    let mtime = || stage.done("stat -c %Y HERE/tank/a/.zfs/snapshot");
    let changed = || stage.done("zfs get -Hpo value snapshots_changed tank/a");
    assert_eq!((mtime(), changed()), ("0\n".into(), "-\n".into()));
    stage.done("zfs snapshot tank/a@zero");
    assert_eq!(mtime(), changed());
    stage.done("zfs destroy tank/a@zero");
    stage.done("mkdir HERE/tank/a/.zfs/snapshot/one");
    assert_eq!(mtime(), changed());
    assert_eq!(snapshots(&stage), ["tank/a@one"]);
    stage.done("echo second > HERE/tank/a/file && mkdir HERE/tank/a/.zfs/snapshot/two");
    let read = "cd HERE/tank/a/.zfs/snapshot && cat one/file two/file";
    assert_eq!(stage.done(read), "first\nsecond\n");
    // It is renamed and destroyed also if this mount has not looked it up, and under the name that the file system has now.
    stage.done("zfs snapshot tank/a@three && zfs rename -u tank/a tank/b");
    stage.done("cd HERE/tank/a/.zfs/snapshot && mv -T three four && rmdir one");
    assert_eq!(snapshots(&stage), ["tank/b@four", "tank/b@two"]);
    assert_eq!(stage.done("ls HERE/tank/a/.zfs/snapshot"), "four\ntwo\n");
    assert_eq!(
        stage.done("cat HERE/tank/a/.zfs/snapshot/four/file"),
        "second\n"
    );
    // A directory that a program works in is renamed, and becomes unusable with its snapshot.
    stage.done("cd HERE/tank/a/.zfs/snapshot/four && mv -T ../four ../five && cat file");
    stage.done("cd HERE/tank/a/.zfs/snapshot/five && rmdir ../five && ! cat file");
    // The name is free again, for other contents.
    stage.done("echo third > HERE/tank/a/file && mkdir HERE/tank/a/.zfs/snapshot/five");
    assert_eq!(
        stage.done("cat HERE/tank/a/.zfs/snapshot/five/file"),
        "third\n"
    );
    // They are recorded as the commands are.
    let history = stage.done("zpool history -il tank");
    for line in [
        "zfs snapshot tank/a@one [user 0 (root)",
        "zfs rename tank/b@three tank/b@four [user 0 (root)",
        "zfs destroy tank/b@five [user 0 (root)",
        "snapshot tank/a@one (",
        "destroy tank/b@one (",
    ] {
        assert!(history.contains(line), "{line}: {history}");
    }
    let events = stage.done("zpool events -v tank");
    assert!(
        events.contains("history_internal_name = \"snapshot\""),
        "{events}"
    );
    stage.done("zpool export tank && zpool import -d HERE/disk tank");
    assert_eq!(snapshots(&stage), ["tank/b@five", "tank/b@two"]);
    stage.done("zpool scrub -w tank && zpool export tank");
}

#[test]
fn what_cannot_be_done_with_a_snapshot_has_an_error_number() {
    let Some(stage) = stage() else { return };
    stage.done("mkdir HERE/tank/a/.zfs/snapshot/one HERE/tank/a/.zfs/snapshot/two");
    let at = |line: &str| errno(&stage, &format!("cd HERE/tank/a/.zfs/snapshot && {line}"));
    let invalid = "Invalid or incomplete multibyte or wide character";
    for name in ["a@b", "'%a'", "a#b", "'a$b'", "$'\\xff'"] {
        assert_eq!(at(&format!("mkdir {name}")), invalid, "{name}");
    }
    assert_eq!(at("mv -T one 'o@o'"), invalid);
    assert_eq!(at("mkdir one"), "File exists");
    assert_eq!(at("mv -Tf one two"), "File exists");
    let long = "x".repeat(251);
    assert_eq!(at(&format!("mkdir {long}")), "File name too long");
    assert_eq!(at("rmdir none"), "No such file or directory");
    // A snapshot stays where it is, and nothing else becomes one.
    // This is how mv calls `EINVAL`.
    let invalid = "to a subdirectory of itself";
    assert!(at("mv -T one ../../one").contains(invalid));
    assert!(at("mkdir ../../dir && mv -T ../../dir three").contains(invalid));
    assert_eq!(at("mkdir ../other"), "Operation not permitted");
    assert_eq!(at("touch three"), "Operation not permitted");
    assert_eq!(at("mkdir one/dir"), "Read-only file system");
    // Holds and clones keep it.
    stage.done("zfs hold keep tank/a@one && zfs clone -o mountpoint=none tank/a@two tank/c");
    assert_eq!(at("rmdir one"), "Device or resource busy");
    assert_eq!(at("rmdir two"), "File exists");
    stage.done("zfs release keep tank/a@one && zfs destroy tank/c");
    // One that is mounted elsewhere is unmounted first, unless it is in use.
    stage.done("mkdir HERE/x && mount.zfs tank/a@one HERE/x");
    assert_eq!(
        at("exec 7< HERE/x/file; rmdir one"),
        "Device or resource busy"
    );
    assert_eq!(snapshots(&stage).len(), 2);
    let mounted = stage.mounts().len();
    stage.done("rmdir HERE/tank/a/.zfs/snapshot/one");
    assert_eq!(stage.mounts().len(), mounted - 1);
    // Limits of space and the number of snapshots; root is held by none of the latter.
    stage.done("zfs set snapshot_limit=1 tank/a && mkdir HERE/tank/a/.zfs/snapshot/more");
    stage.done("head -c 20M /dev/urandom > HERE/tank/a/big && zpool sync tank");
    stage.done("zfs set refreservation=25M tank/a");
    stage.run("head -c 100M /dev/urandom > HERE/tank/fill; zpool sync tank");
    assert_eq!(at("mkdir full"), "No space left on device");
    // Pools and file systems that are read-only.
    stage.done("zfs set readonly=on tank/a");
    assert_eq!(at("mkdir four"), "Read-only file system");
    stage.done("zpool export tank && zpool import -o readonly=on -d HERE/disk tank");
    assert_eq!(at("mkdir four"), "Read-only file system");
    assert_eq!(at("rmdir two"), "Read-only file system");
    stage.done("zpool export tank");
}

#[test]
fn the_setting_and_the_property_decide_whether_there_are_directories() {
    let Some(stage) = stage() else { return };
    stage.done("zfs snapshot tank/a@one");
    stage.done("millpond tunable zfs_admin_snapshot 0");
    let at = |line: &str| errno(&stage, &format!("cd HERE/tank/a/.zfs/snapshot && {line}"));
    for line in ["mkdir two", "rmdir one", "mv -T one two"] {
        assert_eq!(at(line), "Permission denied", "{line}");
    }
    // What `find -delete` does to a whole file system does not reach its snapshots.
    stage.done("zfs set snapdir=visible tank/a");
    stage.run("find HERE/tank/a -mindepth 1 -delete");
    assert_eq!(snapshots(&stage), ["tank/a@one"]);
    stage.done("millpond tunable zfs_admin_snapshot 1");
    assert_eq!(stage.done("ls -A HERE/tank/a"), ".zfs\n");
    stage.done("mkdir HERE/tank/a/.zfs/snapshot/two");
    stage.done("zfs set snapdir=disabled tank/a");
    assert_eq!(stage.done("ls -A HERE/tank/a"), "");
    let gone = errno(&stage, "mkdir HERE/tank/a/.zfs/snapshot/three");
    assert_eq!(gone, "No such file or directory");
    stage.done("! ls HERE/tank/a/.zfs && ! mkdir HERE/tank/a/.zfs");
    stage.done("zfs set snapdir=hidden tank/a && rmdir HERE/tank/a/.zfs/snapshot/two");
    assert_eq!(snapshots(&stage), ["tank/a@one"]);
    stage.done("zpool export tank");
}

#[test]
fn users_change_snapshots_as_far_as_it_was_delegated_to_them() {
    let Some(stage) = stage() else { return };
    stage.done("zfs snapshot tank/a@old && zfs allow -u 65534 snapshot tank/a");
    let at = |who: &str, line: &str| format!("cd HERE/tank/a/.zfs/snapshot && {who} {line}");
    let refused = |who: &str, line: &str| errno(&stage, &at(who, line));
    let denied = "Operation not permitted";
    stage.done(&at(USER, "mkdir by-user"));
    assert_eq!(refused(USER, "rmdir old"), denied);
    assert_eq!(refused(USER, "mv -T old new"), denied);
    // `destroy` needs `mount` too, `rename` also `create`.
    stage.done("zfs allow -u 65534 destroy,rename tank/a");
    assert_eq!(refused(USER, "rmdir old"), denied);
    stage.done("zfs allow -u 65534 mount tank/a");
    stage.done(&at(USER, "rmdir by-user"));
    assert_eq!(refused(USER, "mv -T old new"), denied);
    stage.done("zfs allow -u 65534 create tank/a");
    stage.done(&at(USER, "mv -T old new"));
    // Another user has nothing, except through a group that is not the first one.
    let other = "setpriv --reuid 65533 --regid 65533 --clear-groups";
    let member = "setpriv --reuid 65533 --regid 65533 --groups 4711,4712";
    assert_eq!(refused(other, "mkdir by-group"), denied);
    assert_eq!(refused(member, "mkdir by-group"), denied);
    stage.done("zfs allow -g 4712 snapshot tank/a");
    assert_eq!(refused(other, "mkdir by-group"), denied);
    stage.done(&at(member, "mkdir by-group"));
    assert_eq!(snapshots(&stage), ["tank/a@by-group", "tank/a@new"]);
    let history = stage.done("zpool history -l tank");
    assert!(
        history.contains("zfs snapshot tank/a@by-group [user 65533"),
        "{history}"
    );
    // Root without its capability, or with that of a container only, is not root here.
    let bare = "setpriv --bounding-set -sys_admin --inh-caps -sys_admin";
    assert_eq!(refused(bare, "mkdir bare"), denied);
    assert_eq!(
        refused("unshare --map-root-user --user", "mkdir bare"),
        denied
    );
    stage.done("zpool set delegation=off tank");
    assert_eq!(refused(USER, "mkdir off"), denied);
    stage.done("zpool export tank");
}

/// Requests that wait for txgs do not occupy the threads that answer other requests, and do not stop txgs.
#[test]
fn snapshots_are_made_while_files_are_written_and_synced() {
    let Some(stage) = stage() else { return };
    stage.done("for n in 1 2 3 4; do zfs create tank/a/$n; done");
    stage.done(
        "cd HERE/tank/a; for n in 1 2 3 4; do \
           (for i in $(seq 25); do mkdir $n/.zfs/snapshot/s$i || exit 1; done) & \
           (for i in $(seq 25); do dd if=/dev/zero of=$n/f$i bs=64K count=4 conv=fsync 2>/dev/null || exit 1; done) & \
         done; \
         for i in $(seq 10); do zpool sync tank; ls */.zfs/snapshot > /dev/null; done; \
         for job in $(jobs -p); do wait $job || exit 1; done",
    );
    assert_eq!(snapshots(&stage).len(), 100);
    stage.done("rmdir HERE/tank/a/*/.zfs/snapshot/*");
    assert_eq!(snapshots(&stage), Vec::<String>::new());
    stage.done("zpool export tank");
}

#[test]
fn clones_go_with_their_snapshot_whatever_theirs_are_called() {
    let Some(stage) = stage() else { return };
    stage.done("zfs snapshot tank@s && zfs clone tank@s tank/c && zfs snapshot tank/c@s");
    let told = stage.done("zfs destroy -R -n -v tank@s");
    assert_eq!(
        told.matches("would destroy tank/c@s\n").count(),
        1,
        "{told}"
    );
    stage.done("zfs destroy -R tank@s");
    assert_eq!(
        stage.done("zfs list -H -o name -t all -r tank"),
        "tank\ntank/a\n"
    );
}
