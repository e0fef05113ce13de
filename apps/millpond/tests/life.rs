//! The daemon as a process with real mounts: killed repeatedly, terminated, and used by another user.
//!
//! Needs root and /dev/fuse: `make test-daemon`.

#[path = "support/shell.rs"]
mod shell;

use shell::Shell;
use std::process::Command;

struct Stage {
    shell: Shell,
}

impl std::ops::Deref for Stage {
    type Target = Shell;
    fn deref(&self) -> &Shell {
        &self.shell
    }
}

impl Stage {
    /// Returns `None`, with a message, if the test cannot run.
    fn new() -> Option<Self> {
        let shell = Shell::new()?;
        shell.image("disk", 256);
        Some(Self { shell })
    }

    fn process(&self) -> String {
        let text = std::fs::read_to_string(self.path("state/lock")).expect("a lock");
        text.trim().to_owned()
    }

    /// Sends a signal to the daemon and waits until it has ended.
    fn signal(&self, signal: &str) {
        let process = self.process();
        self.done(&format!(
            "kill -{signal} {process}; while kill -0 {process} 2>/dev/null; do sleep 0.05; done"
        ));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.run("zpool export -a; kill -TERM $(cat HERE/state/lock)");
        self.run("umount -l HERE/mnt 2>/dev/null");
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-daemon"]
fn repeated_kills_of_the_daemon_lose_no_synced_data() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk && zfs create tank/home");
    let rounds: u32 = std::env::var("MILLPOND_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    for round in 0..rounds {
        stage.done(&format!(
            "echo {round} > HERE/mnt/home/{round} && dd if=/dev/urandom of=HERE/mnt/home/data bs=64k count=40 2>/dev/null && sha256sum < HERE/mnt/home/data > HERE/mnt/sum && zpool sync tank && cat HERE/mnt/sum > HERE/expected"
        ));
        // More writes, without a sync, that are in progress when the daemon is killed.
        stage.done("(for n in 1 2 3 4 5; do echo x > HERE/mnt/later$n; done) 2>/dev/null; true");
        stage.signal("KILL");
        assert!(
            stage.run("ls HERE/mnt/home").stdout.is_empty(),
            "mounted without a daemon"
        );
        // The next command removes the dead mounts, imports the pools and mounts them again.
        assert_eq!(
            stage.done("zpool list -H -o name,health").trim(),
            "tank\tONLINE"
        );
        for old in 0..=round {
            assert_eq!(
                stage.done(&format!("cat HERE/mnt/home/{old}")).trim(),
                old.to_string()
            );
        }
        let sum = stage.done("sha256sum < HERE/mnt/home/data");
        assert_eq!(
            sum,
            std::fs::read_to_string(stage.path("expected")).expect("a sum")
        );
    }
    let log = std::fs::read_to_string(stage.path("state/daemon.log")).unwrap_or_default();
    assert_eq!(log, "", "what the daemon complained of");
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-daemon"]
fn a_stop_unmounts_and_the_next_start_mounts_again() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk && echo kept > HERE/mnt/file");
    stage.signal("TERM");
    assert!(
        !stage
            .done("cat /proc/self/mounts")
            .contains(&*stage.path("mnt").to_string_lossy())
    );
    assert_eq!(stage.done("zfs get -H -o value mounted tank").trim(), "yes");
    assert_eq!(stage.done("cat HERE/mnt/file").trim(), "kept");
    stage.done("zpool export tank");
    assert!(stage.done("zpool import -d HERE").contains("pool: tank"));
    stage.done("zpool import -d HERE tank");
    assert_eq!(stage.done("cat HERE/mnt/file").trim(), "kept");
    stage.done("zpool destroy tank");
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-daemon"]
fn a_busy_file_system_stays_and_a_second_daemon_is_refused() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk");
    let refused = stage.run("cd HERE/mnt && zpool export tank");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("pool or dataset is busy"), "{text}");
    stage.done("ls HERE/mnt");
    let refused = stage.run("MILLPOND_DIR=HERE/other zpool import -d HERE -f tank");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    stage.run("kill -TERM $(cat HERE/other/lock)");
    let second = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["daemon", "--foreground"])
        .env("MILLPOND_DIR", stage.path("state"))
        .output()
        .expect("the program");
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(text.contains("another daemon"), "{text}");
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-daemon"]
fn another_user_may_only_read() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/mnt tank HERE/disk");
    let program = env!("CARGO_BIN_EXE_millpond");
    let copy = stage.path("copy-for-others");
    // Others may run it. Copied by a process of its own, so that no test inherits the open file.
    let copied = Command::new("cp").arg(program).arg(&copy).status();
    assert!(copied.expect("cp").success());
    let other = "setpriv --reuid 65534 --regid 65534 --clear-groups HERE/copy-for-others";
    assert_eq!(
        stage.done(&format!("{other} zpool list -H -o name")).trim(),
        "tank"
    );
    assert_eq!(
        stage
            .done(&format!("{other} zfs get -H -o value type tank"))
            .trim(),
        "filesystem"
    );
    for refused in [
        "zfs create tank/x",
        "zpool export tank",
        "zpool scrub tank",
        "zfs set atime=off tank",
    ] {
        let output = stage.run(&format!("{other} {refused}"));
        assert_ne!(output.status.code(), Some(0), "{refused}");
    }
    assert_eq!(stage.done("zfs list -H -o name").trim(), "tank");
}
