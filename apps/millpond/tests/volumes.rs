//! Volumes as block devices below /dev/zvol: a daemon of its own, real loop devices, real file systems on them.
//!
//! Needs root, /dev/fuse, loop devices and mkfs.ext4. Passed over otherwise, and it says so.

#[path = "support/shell.rs"]
mod shell;

use shell::Shell;
use std::path::Path;
use std::time::{Duration, Instant};

/// Prints the names that the loop devices of a state directory carry.
const LOOPS: &str = r#"
import errno, fcntl, glob, os, sys
state = os.stat(sys.argv[1])
own = b"millpond %x:%x " % (state.st_dev, state.st_ino)
for path in glob.glob("/sys/block/loop*/loop/backing_file"):
    status = bytearray(232)
    try:
        fcntl.ioctl(open("/dev/" + path.split("/")[3], "rb"), 0x4C05, status)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            print("dead")
        continue
    if status[56:].startswith(own):
        print(status[56:120].split(b"\0")[0].decode())
"#;

struct Stage {
    shell: Shell,
    /// Names of pools are the same for the whole system in /dev/zvol.
    pool: String,
}

impl Stage {
    /// A daemon with a pool on an image of 512 MiB; `None`, with a message, if the test cannot run.
    fn new(test: &str) -> Option<Self> {
        let shell = Shell::new()?;
        let has_tools = Path::new("/sbin/mkfs.ext4").exists();
        if !Path::new("/dev/loop-control").exists() || !has_tools {
            println!("PASSED OVER: needs /dev/loop-control and mkfs.ext4");
            return None;
        }
        shell.image("disk", 512);
        let pool = format!("millpond-{test}-{}", std::process::id());
        let stage = Self { shell, pool };
        stage.done("zpool create -m none POOL HERE/disk");
        Some(stage)
    }

    fn line(&self, line: &str) -> String {
        let line = line.replace("POOL", &self.pool).replace("DEV", "/dev/zvol");
        format!("export MILLPOND_VOLUMES=on; {line}")
    }
    fn done(&self, line: &str) -> String {
        self.shell.done(&self.line(line))
    }
    /// Runs a line that must fail and returns its error.
    fn refused(&self, line: &str) -> String {
        let output = self.shell.run(&self.line(line));
        assert!(!output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
    fn is_link(&self, name: &str) -> bool {
        let path = format!("/dev/zvol/{}{name}", self.pool);
        std::fs::symlink_metadata(path).is_ok()
    }
    /// The labels of the loop devices of this daemon, and "dead" for each that a killed one left: of any test.
    fn all_loops(&self) -> Vec<String> {
        std::fs::write(self.shell.path("loops.py"), LOOPS).unwrap();
        let listed = self.done("python3 HERE/loops.py HERE/state");
        listed.lines().map(str::to_owned).collect()
    }
    /// The labels of the loop devices of this daemon.
    fn loops(&self) -> Vec<String> {
        let mut all = self.all_loops();
        all.retain(|label| label != "dead");
        all
    }
    /// Whether none of its devices is left. Those that killed daemons of other tests left go with the next daemon of theirs.
    fn has_no_loops(&self) -> bool {
        (0..200).any(|_| {
            let is_empty = self.all_loops().is_empty();
            if !is_empty {
                std::thread::sleep(Duration::from_millis(100));
            }
            is_empty
        })
    }
    /// Kills the daemon, and waits until it is gone.
    fn kill(&self, signal: &str) {
        // A process whose parent does not wait for it stays as a zombie, with its first thread only.
        self.done(&format!(
            "P=$(cat HERE/state/lock); kill -{signal} $P; for I in $(seq 200); do \
             [ \"$(grep -l '^State:.[^Z]' /proc/$P/task/*/status 2>/dev/null)\" ] || exit 0; sleep 0.1; done; exit 1"
        ));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shell.run(&self.line(
            "grep -o \"HERE[^ ]*\" /proc/self/mounts | sort -r | xargs -r -n1 umount -l; zpool export -af; \
             kill -TERM $(cat HERE/state/lock); sleep 0.5",
        ));
    }
}

#[test]
fn a_file_system_on_a_volume_is_there_again_after_an_import() {
    let Some(stage) = Stage::new("ext4") else {
        return;
    };
    stage.done("zfs create -V 128M POOL/vol && test -b DEV/POOL/vol");
    assert_eq!(
        stage.done("blockdev --getsize64 --getss DEV/POOL/vol"),
        "134217728\n512\n"
    );
    stage.done("mkfs.ext4 -q DEV/POOL/vol && mkdir HERE/mnt && mount DEV/POOL/vol HERE/mnt");
    stage.done("dd if=/dev/urandom of=HERE/mnt/f bs=1M count=40 conv=fsync status=none && cp -r /etc HERE/mnt/");
    let sums = "cd HERE/mnt && find . -type f -print0 | sort -z | xargs -0 sha256sum";
    let before = stage.done(sums);
    // What uses the device keeps everything that would take it away from being done.
    for line in ["zfs destroy POOL/vol", "zfs destroy -r POOL/vol"] {
        assert!(stage.refused(line).contains("dataset is busy"));
    }
    assert!(stage.refused("zpool export POOL").contains("pool is busy"));
    assert!(stage.refused("zpool destroy POOL").contains("pool is busy"));
    stage.done("zfs snapshot POOL/vol@s");
    assert!(
        stage
            .refused("zfs rollback POOL/vol@s")
            .contains("dataset is busy")
    );
    // Nothing newer is destroyed for a rollback that cannot be made.
    stage.done("zfs snapshot POOL/vol@newer");
    let rollback = stage.refused("zfs rollback -r POOL/vol@s");
    assert!(rollback.contains("dataset is busy"), "{rollback}");
    stage.done("zfs clone POOL/vol@newer POOL/clone");
    let rollback = stage.refused("zfs rollback -R POOL/vol@s");
    assert!(rollback.contains("dataset is busy"), "{rollback}");
    let kept = "zfs list -H -t all -o name POOL/vol@newer POOL/clone";
    assert_eq!(stage.done(kept).lines().count(), 2);
    stage.done("test -b DEV/POOL/clone");
    assert_eq!(stage.done(sums), before);
    stage.done("umount HERE/mnt && zpool export POOL");
    assert!(!stage.is_link("") && stage.loops().is_empty());
    stage.done(
        "zpool import -d HERE POOL && e2fsck -fn DEV/POOL/vol && mount DEV/POOL/vol HERE/mnt",
    );
    assert_eq!(stage.done(sums), before);
    stage.done("umount HERE/mnt && zfs rollback -R POOL/vol@s && test -b DEV/POOL/vol");
    stage.refused("zfs list POOL/vol@newer");
    assert!(!stage.is_link("/clone"));
    stage.done("zfs destroy -r POOL/vol");
    assert_eq!(stage.loops(), <[&str; 0]>::default());
    assert!(!stage.is_link("/vol"));
}

#[test]
fn a_discard_gives_space_back_and_synced_bytes_survive_a_kill() {
    let Some(stage) = Stage::new("discard") else {
        return;
    };
    stage.done("zfs create -V 128M -o compression=off POOL/vol");
    stage.done(
        "dd if=/dev/urandom of=DEV/POOL/vol bs=1M count=64 conv=fsync status=none; zpool sync POOL",
    );
    let used = || {
        stage
            .done("zfs get -Hpo value referenced POOL/vol")
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    assert!(used() > 60 << 20);
    stage.done("blkdiscard -o 4194304 DEV/POOL/vol && zpool sync POOL");
    assert!(used() < 8 << 20, "{}", used());
    let sum = "head -c 4194304 DEV/POOL/vol | sha256sum";
    stage.done("dd if=/dev/urandom of=DEV/POOL/vol bs=1M count=4 conv=fsync status=none");
    let before = stage.done(sum);
    stage.kill("KILL");
    stage.done("zpool list POOL && test -b DEV/POOL/vol");
    assert_eq!(stage.done(sum), before);
    assert_eq!(stage.loops().len(), 1);
}

#[test]
fn properties_and_names_are_followed() {
    let Some(stage) = Stage::new("follow") else {
        return;
    };
    stage.done("zfs create -V 32M POOL/vol && zfs create -s -V 32M -o volmode=none POOL/none");
    assert!(!stage.is_link("/none"));
    stage.done(
        "echo first | dd of=DEV/POOL/vol conv=sync,fsync status=none && zfs snapshot POOL/vol@s",
    );
    stage.done("echo second | dd of=DEV/POOL/vol conv=sync,fsync status=none");
    assert!(!stage.is_link("/vol@s"));
    stage.done("zfs set snapdev=visible POOL");
    assert_eq!(
        stage.done("head -n 1 DEV/POOL/vol@s; head -n 1 DEV/POOL/vol"),
        "first\nsecond\n"
    );
    stage.refused("echo x | dd of=DEV/POOL/vol@s conv=sync,fsync status=none");
    stage.done("zfs snapshot POOL/vol@t && test -b DEV/POOL/vol@t && zfs destroy POOL/vol@t");
    assert!(!stage.is_link("/vol@t"));
    // A snapshot that goes with its last hold or clone takes its device along, unless a program has it open.
    stage.done("zfs snapshot POOL/vol@h && zfs hold tag POOL/vol@h && zfs destroy -d POOL/vol@h");
    assert!(stage.is_link("/vol@h"));
    stage.done("zfs release tag POOL/vol@h");
    assert!(!stage.is_link("/vol@h"));
    stage.refused("zfs list POOL/vol@h");
    stage.done(
        "zfs snapshot POOL/vol@c && zfs clone POOL/vol@c POOL/clone && zfs clone POOL/vol@c POOL/other && zfs destroy -d POOL/vol@c",
    );
    // As long as another clone keeps it, its device stays.
    stage.done("zfs destroy POOL/other");
    assert!(stage.is_link("/vol@c"));
    stage.done("zfs destroy POOL/clone");
    assert!(!stage.is_link("/vol@c"));
    stage.done("zfs snapshot POOL/vol@o && zfs hold tag POOL/vol@o && zfs destroy -d POOL/vol@o");
    stage.done("exec 7<DEV/POOL/vol@o; zfs release tag POOL/vol@o && head -n 1 <&7 | grep second");
    stage.done("zfs list POOL/vol@o && zfs destroy POOL/vol@o");
    assert!(!stage.is_link("/vol@o"));
    stage.done("zfs set snapdev=hidden POOL");
    assert!(!stage.is_link("/vol@s") && stage.is_link("/vol"));

    stage.done("zfs set readonly=on POOL/vol");
    stage.refused("echo x | dd of=DEV/POOL/vol conv=sync,fsync status=none");
    stage.done("zfs inherit readonly POOL/vol && echo third | dd of=DEV/POOL/vol conv=sync,fsync status=none");

    stage.done("zfs set volsize=64M POOL/vol");
    assert_eq!(
        stage.done("blockdev --getsize64 DEV/POOL/vol"),
        "67108864\n"
    );

    stage.done("zfs create POOL/deep && zfs rename POOL/vol POOL/deep/new");
    assert!(!stage.is_link("/vol"));
    assert_eq!(stage.done("head -n 1 DEV/POOL/deep/new"), "third\n");
    stage.done("zfs clone POOL/deep/new@s POOL/clone && zfs promote POOL/clone");
    assert_eq!(
        stage.done("head -n 1 DEV/POOL/clone; head -n 1 DEV/POOL/deep/new"),
        "first\nthird\n"
    );

    stage.done("zfs set volmode=none POOL/deep/new");
    assert!(!stage.is_link("/deep"));
    stage.done("zfs set volmode=dev POOL/deep/new && test -b DEV/POOL/deep/new");
    stage.done(
        "zfs send POOL/clone@s | zfs receive POOL/got && cmp -n 512 DEV/POOL/got DEV/POOL/clone",
    );
    stage.done("zpool export POOL && zpool import -o readonly=on -d HERE POOL");
    assert_eq!(stage.done("head -n 1 DEV/POOL/deep/new"), "third\n");
    stage.refused("echo x | dd of=DEV/POOL/deep/new conv=sync,fsync status=none");
}

#[test]
fn tunables_decide_which_new_volumes_have_devices() {
    let Some(stage) = Stage::new("tunables") else {
        return;
    };
    stage.done("millpond tunable zvol_volmode 3 && zfs create -V 8M POOL/none");
    stage.done("zfs create -V 8M -o volmode=full POOL/full");
    assert!(!stage.is_link("/none") && stage.is_link("/full"));
    stage.done("millpond tunable zvol_volmode 1 && millpond tunable zvol_inhibit_dev 1");
    stage.done("zfs create -V 8M POOL/late && zfs set readonly=on POOL/full");
    assert!(!stage.is_link("/late") && stage.is_link("/full"));
    stage.done("millpond tunable zvol_inhibit_dev 0");
    // A redacted volume has one only if that was asked for.
    stage.done("zfs snapshot POOL/late@1 && zfs clone POOL/late@1 POOL/changed");
    stage.done("echo x | dd of=DEV/POOL/changed conv=sync,fsync status=none");
    stage.done("zfs snapshot POOL/changed@1 && zfs redact POOL/late@1 book POOL/changed@1");
    stage.done("zfs send --redact book POOL/late@1 | zfs receive POOL/got");
    assert!(!stage.is_link("/got"));
    stage.done("millpond tunable zfs_allow_redacted_dataset_mount 1");
    stage.done("zpool export POOL && zpool import -d HERE POOL");
    assert!(stage.is_link("/got"));
    stage.done("zpool export POOL");
}

/// Its number may belong to someone else then: the link must not lead there.
#[test]
fn a_device_that_another_program_detached_is_made_again() {
    let Some(stage) = Stage::new("taken") else {
        return;
    };
    stage.done("zfs create -V 16M POOL/v");
    stage.done("echo kept | dd of=DEV/POOL/v conv=sync,fsync status=none");
    stage.done("losetup -d $(readlink DEV/POOL/v)");
    stage.done("zfs rename POOL/v POOL/w");
    let label = stage.loops();
    assert!(
        label.len() == 1 && label.iter().all(|one| one.ends_with("/w")),
        "{label:?}"
    );
    assert_eq!(stage.done("head -c 5 DEV/POOL/w"), "kept\n");
    assert!(!stage.is_link("/v"));
    // Nor is a device left read-only for who gets it next.
    stage.done("zfs set readonly=on POOL/w");
    let path = stage.done("readlink DEV/POOL/w");
    let mark = format!("cat /sys/block/{}/ro", path.trim_end().replace("/dev/", ""));
    assert_eq!(stage.done(&mark), "1\n");
    stage.done("zpool export POOL");
    assert_eq!(stage.done(&mark), "0\n");
}

#[test]
fn an_encrypted_volume_has_a_device_while_its_key_is_loaded() {
    let Some(stage) = Stage::new("key") else {
        return;
    };
    stage.done("echo password > HERE/key");
    stage.done("zfs create -V 32M -o encryption=on -o keyformat=passphrase -o keylocation=file://HERE/key POOL/vol");
    stage.done("echo secret | dd of=DEV/POOL/vol conv=sync,fsync status=none");
    // A clone has the same key, wherever it is.
    stage
        .done("zfs snapshot POOL/vol@s && zfs clone POOL/vol@s POOL/copy && test -b DEV/POOL/copy");
    stage.done("sleep 30 < DEV/POOL/vol > HERE/out 2>&1 & echo $! > HERE/reader");
    stage.refused("zfs unload-key POOL/vol");
    stage.done("kill $(cat HERE/reader); zfs unload-key POOL/vol");
    assert!(!stage.is_link("/vol") && !stage.is_link("/copy"));
    stage.done("zfs load-key POOL/vol");
    assert_eq!(stage.done("head -n 1 DEV/POOL/vol"), "secret\n");
    assert_eq!(stage.done("head -n 1 DEV/POOL/copy"), "secret\n");
}

#[test]
fn a_device_in_use_is_cut_off_when_the_daemon_ends_and_not_replaced_by_a_stream() {
    let Some(stage) = Stage::new("end") else {
        return;
    };
    stage
        .done("zfs create -V 64M POOL/vol && mkfs.ext4 -q DEV/POOL/vol && zfs snapshot POOL/vol@a");
    stage.done("zfs send POOL/vol@a | zfs receive POOL/copy && mkdir HERE/mnt && mount DEV/POOL/copy HERE/mnt");
    stage
        .done("echo x | dd of=DEV/POOL/vol conv=sync,fsync status=none && zfs snapshot POOL/vol@b");
    let error = stage.refused("zfs send -i a POOL/vol@b | zfs receive -F POOL/copy");
    assert!(error.contains("busy"), "{error}");
    stage.done("echo kept > HERE/mnt/f && sync -f HERE/mnt/f");
    stage.kill("TERM");
    assert!(!stage.is_link(""));
    stage.refused("echo lost > HERE/mnt/g && sync HERE/mnt/g");
    // The device of the ended daemon is still mounted, and the new one has another.
    stage.done(
        "zpool list POOL && test -b DEV/POOL/copy; umount HERE/mnt; mount DEV/POOL/copy HERE/mnt",
    );
    assert_eq!(stage.done("cat HERE/mnt/f"), "kept\n");
    stage.done("umount HERE/mnt && zfs send -i a POOL/vol@b | zfs receive -F POOL/copy");
    stage.done("cmp -n 512 DEV/POOL/vol DEV/POOL/copy");
    stage.done("zpool export POOL");
    assert!(stage.has_no_loops());
}

#[test]
fn a_pool_lies_on_a_volume_of_another_pool() {
    let Some(stage) = Stage::new("stacked") else {
        return;
    };
    stage.done("zfs create -V 256M POOL/vol && zpool create -m HERE/inner POOL-in DEV/POOL/vol");
    stage.done("dd if=/dev/urandom of=HERE/inner/f bs=1M count=50 conv=fsync status=none");
    let before = stage.done("sha256sum HERE/inner/f");
    assert!(stage.refused("zpool export POOL").contains("pool is busy"));
    assert!(
        stage
            .refused("zfs destroy POOL/vol")
            .contains("dataset is busy")
    );
    // No pool can wait for itself.
    stage.done("zfs create -V 64M POOL/own && zfs create -V 64M POOL-in/deep");
    for device in ["POOL/own", "POOL-in/deep"] {
        let error = stage.refused(&format!("zpool add -f POOL DEV/{device}"));
        assert!(error.contains("own volumes"), "{error}");
    }
    // In order.
    stage.kill("TERM");
    assert!(!stage.is_link(""));
    stage.done("zpool list POOL POOL-in");
    assert_eq!(stage.done("sha256sum HERE/inner/f"), before);
    // In the middle of writes.
    stage.done("(while dd if=/dev/zero of=HERE/inner/g bs=1M count=20 conv=fsync status=none; do :; done) 2>/dev/null >&2 & sleep 1");
    let begin = Instant::now();
    stage.kill("KILL");
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    stage.done("zpool list POOL POOL-in");
    assert_eq!(stage.done("sha256sum HERE/inner/f"), before);
    stage.done("zpool scrub -w POOL-in && zpool status -x | grep -q healthy");
    stage.done("zpool export POOL-in && zpool export POOL");
    assert!(stage.has_no_loops());
}
