//! `multihost`: two daemons with host ids of their own share the image files of a pool.

#[path = "support/shell.rs"]
mod shell;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A system: its daemon is a process of its own.
struct Host {
    folder: tempfile::TempDir,
    images: PathBuf,
    hostid: Option<&'static str>,
}

impl Host {
    fn new(images: &Path, hostid: Option<&'static str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        shell::link_programs(folder.path());
        Self {
            folder,
            images: images.to_owned(),
            hostid,
        }
    }

    /// Runs a command; `@` stands for the folder of the images. Returns what it prints, errors first, and its status.
    fn run(&self, line: &str) -> (String, i32) {
        let folder = format!("{}/", self.images.display());
        let line = line.replace('@', &folder);
        let mut words = line.split(' ').peekable();
        let mut set = vec![];
        if words.next_if_eq(&"env").is_some() {
            while let Some(pair) = words.next_if(|word| word.contains('=')) {
                set.extend(pair.split_once('='));
            }
        }
        let mut command = Command::new(self.folder.path().join(words.next().unwrap()));
        command
            .envs(set)
            .args(words)
            .env("MILLPOND_DIR", self.folder.path().join("state"))
            .env("ZPOOL_IMPORT_PATH", &self.images)
            .env("ZFS_HOSTID", self.hostid.unwrap_or("0"));
        let done = command.output().unwrap();
        let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
        (text, done.status.code().unwrap())
    }

    fn done(&self, line: &str) -> String {
        let (text, status) = self.run(line);
        assert_eq!(status, 0, "{line}: {text}");
        text
    }

    fn failed(&self, line: &str) -> String {
        let (text, status) = self.run(line);
        assert_ne!(status, 0, "{line}: {text}");
        text
    }

    fn signal(&self, signal: &str) {
        let lock = self.folder.path().join("state/lock");
        if let Ok(process) = fs::read_to_string(lock) {
            let _ = Command::new("kill").args([signal, process.trim()]).status();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.signal("-KILL");
    }
}

fn images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let image = File::create(folder.path().join(name)).unwrap();
        image.set_len(128 << 20).unwrap();
    }
    folder
}

/// A pool of host `one`, whose heartbeats may fail for five seconds.
fn make(one: &Host) {
    one.done("millpond tunable zfs_multihost_interval 500");
    one.done("zpool create -O mountpoint=none -o multihost=on tank mirror @a @b");
    assert_eq!(one.done("zpool get -H -o value multihost tank"), "on\n");
}

#[test]
fn another_host_takes_the_pool_only_after_watching_it() {
    let folder = images();
    let [one, two] = ["aa", "bb"].map(|id| Host::new(folder.path(), Some(id)));
    make(&one);
    let seen = two.done("zpool import");
    assert!(seen.contains("status: The pool is currently imported by another system.\n"));
    assert!(
        seen.contains("(hostid=aa)\n\tbefore it can be safely imported.\n"),
        "{seen}"
    );
    let unset = Host::new(folder.path(), None);
    let seen = unset.done("zpool import");
    assert!(seen.contains("action: Set a unique system hostid with the zgenhostid(8) command.\n"));
    // The other host crashes. It may be alive as far as this one can know: it watches, even with -f.
    one.signal("-KILL");
    let refused = two.failed("zpool import tank");
    let words = "cannot import 'tank': pool was previously in use from another system.\n";
    assert!(refused.starts_with(words), "{refused}");
    let refused = unset.failed("zpool import -f tank");
    let words = "Cannot import 'tank': pool has the multihost property on and the\nsystem's hostid is not set.";
    assert!(refused.starts_with(words), "{refused}");
    let watched = two.done("env MILLPOND_PROGRESS=json zpool import -f tank");
    let progress = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let lines = watched.lines().filter(|line| line.starts_with('{'));
    let steps: Vec<_> = lines.map(progress).collect();
    let shown = steps.iter().map(|step| &step["progress"]);
    let words = "Checking for activity of another system";
    let watching: Vec<_> = shown.filter(|step| step["action"] == words).collect();
    let has_time = |step: &&serde_json::Value| step["seconds_left"].is_u64();
    assert!(watching.iter().any(has_time), "{watched}");
    two.done("zpool set comment=two tank");
    // What was exported is free at once.
    two.done("zpool export tank");
    // The daemon that starts has it in its cache file, but another system used it since.
    assert_eq!(one.done("zpool list"), "no pools available\n");
    one.done("zpool import tank");
    assert_eq!(one.done("zpool get -H -o value comment tank"), "two\n");
    one.done("zpool set multihost=off tank");
    one.signal("-KILL");
    assert!(
        unset
            .done("zpool import")
            .contains("status: The pool was last accessed by another system.\n")
    );
    unset.done("zpool import -f tank");
    let refused = unset.failed("zpool set multihost=on tank");
    assert_eq!(
        refused,
        "cannot set property for 'tank': requires a non-zero system hostid\n"
    );
    unset.done("zpool destroy tank");
}

#[test]
fn a_host_that_was_stopped_too_long_does_not_write_any_more() {
    let folder = images();
    let one = Host::new(folder.path(), Some("cc"));
    make(&one);
    one.signal("-STOP");
    std::thread::sleep(Duration::from_secs(6));
    let before = fs::read(folder.path().join("a")).unwrap();
    one.signal("-CONT");
    let (refused, _) = one.run("zpool set comment=late tank");
    assert!(refused.contains("suspended"), "{refused}");
    let status = one.done("zpool status tank");
    let words = "The pool is suspended because multihost writes failed or were delayed;";
    assert!(status.contains(words), "{status}");
    assert!(before == fs::read(folder.path().join("a")).unwrap());
    // Another host may have had it meanwhile; this one imports it as if it had crashed.
    one.done("zpool export tank");
    one.done("zpool import tank");
    assert_eq!(one.done("zpool get -H -o value comment tank"), "-\n");
    one.done("zpool destroy tank");
}

/// The watch can take an hour, as the pool says. Other pools do not wait for it, and the daemon does not either when it ends.
#[test]
fn other_pools_are_imported_while_one_is_watched() {
    let folder = images();
    let [one, two] = ["dd", "ee"].map(|id| Host::new(folder.path(), Some(id)));
    one.done("millpond tunable zfs_multihost_interval 60000");
    one.done("zpool create -O mountpoint=none -o multihost=on tank @a");
    one.signal("-KILL");
    two.done("zpool create -O mountpoint=none other @b");
    two.done("zpool export other");
    std::thread::scope(|scope| {
        let import = scope.spawn(|| two.run("zpool import -f -d @a tank"));
        // The watch begins soon. If it had not yet, this test would pass without trying anything.
        std::thread::sleep(Duration::from_secs(3));
        for _ in 0..3 {
            two.done("zpool import -d @b other");
            assert_eq!(two.done("zpool list -H -o name"), "other\n");
            two.done("zpool export other");
        }
        assert!(!import.is_finished());
        two.signal("-TERM");
        let (refused, status) = import.join().unwrap();
        assert_ne!(status, 0, "{refused}");
    });
    two.done("zpool import -d @b other");
    two.done("zpool destroy other");
}
