//! Finds copies of a mount, also in other mount namespaces.

use super::users::{DeviceNumber, location};
use millpond_env::mark;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The device number of the file system that is mounted at a path, if its mount has this id. Its server is not asked.
pub(super) fn device_at(path: &Path, id: Option<u64>) -> Option<DeviceNumber> {
    let found = location(path)?;
    (Some(found.mount) == id).then_some(found.device)
}

/// Whether a file system is still mounted in the namespace of some process. Mounts that only a file descriptor holds, and
/// namespaces without processes, are not found.
pub(super) fn is_mounted_somewhere(device: DeviceNumber) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut namespaces: BTreeSet<PathBuf> = BTreeSet::new();
    processes.into_iter().any(|entry| {
        let folder = entry.path();
        // Only folders of processes have one.
        let Ok(namespace) = std::fs::read_link(folder.join("ns/mnt")) else {
            return false;
        };
        if !namespaces.insert(namespace.clone()) {
            return false;
        }
        let Ok(table) = std::fs::read(folder.join("mountinfo")) else {
            // It has ended. Another process may be in its namespace.
            namespaces.remove(&namespace);
            return false;
        };
        let found = lists_device(&table, device);
        if found {
            mark::hit("mount-has-a-copy");
        }
        found
    })
}

/// Whether a table of mounts has a file system.
fn lists_device(table: &[u8], (major, minor): DeviceNumber) -> bool {
    let device = format!("{major}:{minor}");
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(2))
        .any(|found| found == device.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn file_systems_are_found_by_their_device() {
        let table =
            b"29 1 0:25 / / rw - ext4 /dev/vda rw\n77 29 0:251 / /tank rw - fuse.zfs tank rw\n";
        assert!(lists_device(table, (0, 251)));
        assert!(lists_device(table, (0, 25)));
        assert!(!lists_device(table, (0, 2)));
        assert!(!lists_device(table, (1, 25)));
    }

    #[test]
    fn a_mount_of_another_namespace_is_found_while_it_is_there() {
        let place = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs none \"$0\" && stat -c %d \"$0\" && read -r _";
        let mut child = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(place.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let Ok(number) = line.trim().parse::<u64>() else {
            eprintln!("not tried: this user may not make mount namespaces");
            child.wait().unwrap();
            return;
        };
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let watch = mark::expect("mount-has-a-copy");
        assert!(is_mounted_somewhere(device));
        drop(watch);
        // It ends with its input.
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_mounted_somewhere(device));
    }
}
