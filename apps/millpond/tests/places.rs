//! Which directories and daemons are used: real daemons, two users.
//!
//! Needs root; skipped otherwise.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Prefix that runs a command as an ordinary user.
const USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Option<Self> {
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
        if !is_root {
            println!("needs root; passed over");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        // A copy, because other users cannot access the build directory. Made by a process of its own: a command that
        // another test starts meanwhile would inherit the open file, which then cannot be run ("Text file busy").
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_millpond"))
            .arg(folder.path().join("millpond"))
            .status();
        assert!(copied.expect("cp").success());
        let open = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("permissions");
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a line in which HERE is the test directory, with the state directory `state`.
    fn run(&self, state: &str, line: &str) -> Output {
        let line = line.replace("HERE", &self.folder.path().to_string_lossy());
        Command::new("bash")
            .args(["-c", &line])
            .env("MILLPOND_DIR", self.path(state))
            .env_remove("MILLPOND_SEARCH")
            .output()
            .expect("bash")
    }

    fn done(&self, state: &str, line: &str) -> String {
        let output = self.run(state, line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {text}{error}");
        text
    }

    fn refused(&self, state: &str, line: &str) -> String {
        let output = self.run(state, line);
        assert!(!output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.run(
            ".",
            "for lock in HERE/*/lock; do kill -TERM $(cat $lock); done",
        );
    }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("it is there").mode() & 0o7777
}

#[test]
fn umask_and_inherited_descriptors_do_not_matter() {
    let Some(stage) = Stage::new() else { return };
    stage.done(
        "open",
        "umask 0; exec 7>HERE/inherited; HERE/millpond zpool list",
    );
    assert_eq!(mode(&stage.path("open")), 0o755);
    for file in ["lock", "daemon.log", "hostid"] {
        let path = stage.path("open").join(file);
        // If the system has a host id, none is created.
        if path.exists() {
            assert_eq!(mode(&path) & 0o022, 0, "{file}");
        }
    }
    let open = stage.done("open", "ls -l /proc/$(cat HERE/open/lock)/fd");
    assert!(!open.contains("inherited"), "{open}");
    assert!(open.contains("socket"), "{open}");
    // Other users can access the state, even though the daemon was started with a strict umask.
    stage.done("shut", "umask 077; HERE/millpond zpool list");
    assert_eq!(mode(&stage.path("shut")), 0o755);
    stage.done("shut", &format!("{USER} HERE/millpond zpool list"));
}

#[test]
fn a_daemon_of_another_user_gets_no_requests() {
    let Some(stage) = Stage::new() else { return };
    stage.done("theirs", "mkdir HERE/theirs && chown 65534 HERE/theirs");
    stage.done("theirs", &format!("{USER} HERE/millpond zpool list"));
    assert!(stage.path("theirs/socket").exists());
    let message = stage.refused("theirs", "HERE/millpond zpool list");
    assert!(message.contains("belongs to user 65534"), "{message}");
    // Another user's socket in our directory: a new daemon starts and replaces the socket.
    stage.done(
        "ours",
        "mkdir HERE/ours && ln HERE/theirs/socket HERE/ours/socket",
    );
    stage.done("ours", "HERE/millpond zpool list");
    let owner = stage
        .path("ours/socket")
        .metadata()
        .expect("a socket")
        .uid();
    assert_eq!(owner, 0);
}

#[test]
fn folders_writable_by_others_are_refused() {
    let Some(stage) = Stage::new() else { return };
    stage.done("x", "mkdir HERE/real HERE/writable && ln -s real HERE/link");
    stage.done("x", "chmod 1777 HERE/writable");
    let message = stage.refused("link", "HERE/millpond zpool list");
    assert!(message.contains("symbolic link"), "{message}");
    let message = stage.refused("writable", "HERE/millpond zpool list");
    assert!(message.contains("mode 1777"), "{message}");
    assert!(!stage.path("writable/daemon.log").exists());
    // Without a home directory there is no daemon of the user's own, and nothing in /tmp.
    let line = format!(
        "env -u MILLPOND_DIR -u HOME -u XDG_STATE_HOME -u XDG_RUNTIME_DIR {USER} HERE/millpond zpool list"
    );
    stage.run("x", &line);
    assert!(!Path::new("/tmp/millpond-65534").exists());
}

#[test]
fn users_and_their_groups_do_what_was_delegated_to_them() {
    let Some(stage) = Stage::new() else { return };
    let root = |line: &str| stage.done("state", &format!("HERE/millpond {line}"));
    let with = |ids: &str, line: &str| {
        let output = stage.run("state", &format!("setpriv {ids} HERE/millpond {line}"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    let user = |line: &str| with("--reuid 65534 --regid 65534 --clear-groups", line);
    let member = |line: &str| with("--reuid 65533 --regid 65533 --groups 65531,65532", line);
    stage.done("state", "truncate -s 128M HERE/disk");
    root("zpool create -O mountpoint=none tank HERE/disk");
    root("zfs create -u -o mountpoint=HERE/mnt tank/a");
    let denied = |reason: &str| format!("{reason}: permission denied\n");
    let refused = (Some(1), denied("cannot create snapshots "));
    assert_eq!(user("zfs snapshot tank/a@1"), refused);
    assert_eq!(member("zfs snapshot tank/a@1"), refused);
    root("zfs allow 65534 create,mount,snapshot,compression tank/a");
    root("zfs allow -g 65532 snapshot,allow tank/a");
    assert_eq!(user("zfs snapshot tank/a@1"), (Some(0), String::new()));
    assert_eq!(member("zfs snapshot tank/a@2"), (Some(0), String::new()));
    let made = "filesystem successfully created, but it may only be mounted by root\n";
    assert_eq!(user("zfs create tank/a/new"), (Some(1), made.to_owned()));
    let done = (Some(0), String::new());
    assert_eq!(user("zfs set compression=lz4 tank/a"), done);
    let refused = (Some(255), denied("cannot set property for 'tank/a'"));
    assert_eq!(user("zfs set exec=off tank/a"), refused);
    let refused = (Some(1), denied("cannot destroy snapshots"));
    assert_eq!(user("zfs destroy tank/a@1"), refused);
    let refused = (Some(1), denied("cannot rename 'tank/a'"));
    assert_eq!(user("zfs rename tank/a tank/b"), refused);
    let refused = (Some(1), denied("cannot set permissions on 'tank/a'"));
    assert_eq!(user("zfs allow 65533 create tank/a"), refused);
    assert_eq!(member("zfs allow 65533 hold tank/a"), refused);
    assert_eq!(member("zfs allow 65533 snapshot tank/a"), done);
    let who = "zpool history -i tank | grep -c 'ul.65533 snapshot'";
    assert_eq!(root(who).trim(), "1");
    root("zpool set delegation=off tank");
    let refused = (Some(1), denied("cannot create snapshots "));
    assert_eq!(user("zfs snapshot tank/a@3"), refused);
}

#[test]
fn a_caller_without_a_process_number_is_answered() {
    let Some(stage) = Stage::new() else { return };
    // A daemon in a PID namespace of its own does not see its callers' process ids, and its lock holds a
    // process id of that namespace. Its state is therefore in a directory where the test's cleanup does not
    // look for daemons to end.
    std::fs::create_dir_all(stage.path("deep")).expect("a folder");
    let inner = stage.path("deep/inner");
    let daemon = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(stage.path("millpond"))
        .args(["daemon", "--foreground"])
        .env("MILLPOND_DIR", &inner)
        .spawn();
    let Ok(mut daemon) = daemon else {
        println!("needs unshare; passed over");
        return;
    };
    while !inner.join("socket").exists() {
        if daemon.try_wait().expect("its state").is_some() {
            println!("no namespace can be had; passed over");
            return;
        }
        std::thread::yield_now();
    }
    let output = stage.run("deep/inner", "HERE/millpond zpool list");
    daemon.kill().expect("it ends");
    daemon.wait().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.trim(), "no pools available");
}

#[test]
fn an_image_that_may_only_be_read_is_imported_for_reading() {
    let Some(stage) = Stage::new() else { return };
    stage.done(
        "root",
        "truncate -s 128M HERE/disk; HERE/millpond zpool create -O mountpoint=none tank HERE/disk && \
         HERE/millpond zpool export tank && chmod 444 HERE/disk && mkdir HERE/user && chown 65534 HERE/user",
    );
    let said = stage.run(
        "user",
        &format!("{USER} HERE/millpond zpool import -d HERE/disk -f tank"),
    );
    assert!(said.status.success(), "{said:?}");
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        why.contains("cannot be written: Permission denied"),
        "{why}"
    );
    let shown = stage.done(
        "user",
        &format!("{USER} HERE/millpond zpool get -H -o value readonly tank"),
    );
    assert_eq!(shown, "on\n");
}

#[test]
fn spares_and_cache_devices_are_held_as_long_as_their_pool() {
    let Some(stage) = Stage::new() else { return };
    let free = |name: &str| stage.run("state", &format!("flock --nonblock HERE/{name} true"));
    let is_free = |name: &str| free(name).status.success();
    stage.done("state", "truncate -s 128M HERE/{a,b,spare,cache,later}");
    let create = "HERE/millpond zpool create -O mountpoint=none";
    let devices = "HERE/a spare HERE/spare cache HERE/cache";
    stage.done("state", &format!("{create} tank {devices}"));
    for name in ["a", "spare", "cache"] {
        assert!(!is_free(name), "{name}");
    }
    assert!(is_free("later"));
    stage.done("state", "HERE/millpond zpool add tank spare HERE/later");
    assert!(!is_free("later"));
    // The labels, not the lock, show which pool uses a device.
    let message = stage.refused(
        "state",
        &format!("{create} -f other HERE/b cache HERE/spare"),
    );
    assert!(
        message.contains("reserved as a hot spare for pool tank"),
        "{message}"
    );
    // Another daemon imports the pool.
    stage.done("state", "kill -KILL $(cat HERE/state/lock)");
    // The system closes a killed program's sockets and files a moment later, in this order.
    stage.done("state", "flock HERE/a true");
    stage.done("state", "HERE/millpond zpool list tank");
    for name in ["a", "spare", "cache", "later"] {
        assert!(!is_free(name), "{name}");
    }
    stage.done("state", "HERE/millpond zpool export tank");
    for name in ["a", "spare", "cache", "later"] {
        assert!(is_free(name), "{name}");
    }
}

#[test]
fn a_deleted_image_is_reported() {
    let Some(stage) = Stage::new() else { return };
    stage.done("state", "truncate -s 128M HERE/{a,b}");
    let create = "HERE/millpond zpool create -O mountpoint=none tank HERE/a HERE/b";
    stage.done("state", create);
    let healthy = stage.done("state", "HERE/millpond zpool status -x");
    assert!(healthy.contains("all pools are healthy"), "{healthy}");
    stage.done("state", "rm HERE/b");
    let message = stage.done("state", "HERE/millpond zpool status -x");
    assert!(
        message.contains("image files of the pool were deleted"),
        "{message}"
    );
    let line = message.lines().find(|line| line.contains("/b "));
    let line = line.unwrap_or_default();
    assert!(line.contains("its file was deleted"), "{message}");
    assert!(
        !message.contains("/a  ONLINE       0     0     0  its"),
        "{message}"
    );
}
