//! The daemon in control groups with little memory, as in a small container: it must not be killed.
//!
//! Needs root, /dev/fuse and the right to make control groups: `make test-daemon`.

#[path = "support/shell.rs"]
mod shell;

use shell::Shell;
use std::fs;
use std::path::PathBuf;

/// A control group with a limit on memory. Removed at the end.
struct Group {
    folder: PathBuf,
    /// The file that counts processes killed for want of memory.
    kills: &'static str,
}

impl Group {
    /// Returns `None`, with a message, if no group can be made.
    fn new(mib: u64) -> Option<Self> {
        let name = format!("millpond-test-{}", std::process::id());
        let limit = (mib << 20).to_string();
        for (root, file, kills) in [
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.oom_control",
            ),
            ("/sys/fs/cgroup", "memory.max", "memory.events"),
        ] {
            let root = PathBuf::from(root);
            let folder = root.join(&name);
            if !root.join("cgroup.procs").exists() || fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self { folder, kills };
            if fs::write(group.folder.join(file), &limit).is_ok() {
                return Some(group);
            }
        }
        eprintln!("not run: no control group for memory can be made here");
        None
    }
    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.kills)).expect("the group");
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("oom_kill "));
        count.expect("a count").trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

fn four_writers(mib: u64) -> Option<()> {
    let shell = Shell::new()?;
    let group = Group::new(mib)?;
    shell.image("a", 3 << 10);
    shell.image("b", 3 << 10);
    let procs = group.folder.join("cgroup.procs");
    let procs = procs.display();
    shell.done(&format!(
        "echo $$ > {procs}; zpool create -m HERE/mnt tank mirror HERE/a HERE/b"
    ));
    let process = shell.done("cat HERE/state/lock").trim().to_owned();
    let members = shell.done(&format!("cat {procs}"));
    assert!(members.lines().any(|member| member == process), "{members}");
    shell.done("dd if=/dev/urandom of=HERE/piece bs=1M count=48 2>/dev/null");
    let each = |work: &str| {
        shell.done(&format!(
            "for w in 1 2 3 4; do (for k in 1 2 3 4 5; do {work}; done) & done; wait"
        ))
    };
    each("cat HERE/piece > HERE/mnt/$w.$k");
    shell.done("mkdir HERE/mnt/many; for n in $(seq 1 3000); do echo $n > HERE/mnt/many/$n; done");
    let same = each("cmp HERE/piece HERE/mnt/$w.$k && echo same");
    assert_eq!(same.lines().filter(|line| *line == "same").count(), 20);
    assert_eq!(shell.done("ls HERE/mnt/many | wc -l").trim(), "3000");
    assert_eq!(group.kills(), 0, "{mib} MiB");
    assert_eq!(shell.done("cat HERE/state/lock").trim(), process);
    shell.done("zpool export tank");
    shell.run(&format!(
        "kill -TERM {process}; while kill -0 {process} 2>/dev/null; do sleep 0.05; done"
    ));
    Some(())
}

#[test]
#[ignore = "needs root, /dev/fuse and control groups: make test-daemon"]
fn a_daemon_with_little_memory_is_not_killed() {
    for mib in [512, 256, 128] {
        if four_writers(mib).is_none() {
            return;
        }
    }
}
