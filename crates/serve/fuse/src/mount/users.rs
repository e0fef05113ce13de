//! What keeps a mount in use.

use super::table::mounted_on;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::{rank, thread};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::path::Arg;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most processes that are named.
const USERS_MAX: usize = 8;
/// The most open files and directories of processes that are looked at.
const LINKS_MAX: usize = 1 << 20;
const SEARCH_MAX: Duration = Duration::from_secs(2);

/// A device number, major and minor.
pub(super) type DeviceNumber = (u32, u32);

/// A process that keeps a mount in use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MountUser {
    /// Its id.
    pub process: u32,
    /// The name of its program.
    pub name: String,
}

/// Where something lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    /// The id of the mount.
    pub mount: u64,
    /// The device number of the file system.
    pub device: DeviceNumber,
}

/// What keeps a mount in use, as far as it can be found out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountUsers {
    /// Processes with an open file, working directory, root, program or mapped file on it, at most eight. Those that use the
    /// mount of this namespace come before those that use a copy in another one.
    pub processes: Vec<MountUser>,
    /// Where another file system is mounted on it.
    pub mounted: Option<PathBuf>,
}

/// A search that another thread makes.
#[derive(Default)]
struct Search {
    found: Mutex<Option<Vec<MountUser>>, rank::Leaf>,
    ended: Condvar,
}

impl MountUsers {
    /// Nothing is asked of the mounted file system itself. Looking at a process can hang, if it works on a network file system
    /// whose server does not answer: so another thread looks, for two seconds at most.
    pub(super) fn of(mountpoint: &Path, id: Option<u64>) -> Self {
        let search = Arc::new(Search::default());
        let (there, path) = (Arc::clone(&search), mountpoint.to_owned());
        // If no thread can be started, nobody is named.
        let started = thread::spawn("mount-users", move || {
            let processes = location(&path).map_or_else(Vec::new, processes_at);
            *there.found.lock() = Some(processes);
            there.ended.notify_all();
        });
        let mut processes = search.found.lock();
        if started.is_ok() && processes.is_none() {
            let _ = search.ended.wait_for(&mut processes, SEARCH_MAX);
        }
        Self {
            processes: processes.take().unwrap_or_default(),
            mounted: id.and_then(mounted_on),
        }
    }
}

/// The processes that use a mount at this location.
fn processes_at(place: Location) -> Vec<MountUser> {
    let own = std::process::id();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let (mut here, mut elsewhere) = (vec![], vec![]);
    let mut links_left = LINKS_MAX;
    for entry in all {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(process) = number.filter(|process| *process != own) else {
            continue;
        };
        let folder = entry.path();
        let places = links(&folder).take(links_left).inspect(|_| links_left -= 1);
        let places = places.filter_map(location);
        let uses: Vec<Location> = places.filter(|used| used.device == place.device).collect();
        let is_here = uses.contains(&place);
        if uses.is_empty() && !is_mapped(&folder, place.device) {
            continue;
        }
        let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let name = name.trim_end().to_owned();
        let found = if is_here { &mut here } else { &mut elsewhere };
        found.push(MountUser { process, name });
        if here.len() >= USERS_MAX {
            break;
        }
    }
    here.append(&mut elsewhere);
    here.truncate(USERS_MAX);
    here
}

/// What a process holds besides mapped memory.
fn links(process: &Path) -> impl Iterator<Item = PathBuf> {
    let single = ["cwd", "root", "exe"].map(|name| process.join(name));
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten();
    single
        .into_iter()
        .chain(files.flatten().map(|file| file.path()))
}

/// Where a path leads, from what the kernel knows without asking the file system's server.
pub(super) fn location(path: impl Arg) -> Option<Location> {
    let opened = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&opened, "", flags, StatxFlags::MNT_ID).ok()?;
    Some(Location {
        mount: found.stx_mnt_id,
        device: (found.stx_dev_major, found.stx_dev_minor),
    })
}

/// Whether a process has mapped a file of a device.
fn is_mapped(process: &Path, (major, minor): DeviceNumber) -> bool {
    let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
    let device = format!("{major:02x}:{minor:02x}");
    maps.lines()
        .any(|line| line.split_whitespace().nth(3) == Some(&device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_found_by_its_working_directory() {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new("cat");
        let child = child.current_dir(place.path()).stdin(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let found: Vec<Location> = links(&PathBuf::from(format!("/proc/{}", child.id())))
            .filter_map(location)
            .collect();
        let own = location(place.path()).unwrap();
        assert!(found.contains(&own), "{found:?} {own:?}");
        // It ends with its input.
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn mapped_files_are_found_by_their_device() {
        let place = tempfile::tempdir().unwrap();
        let line = "7f0-7f1 r--p 00000000 00:41 12345    /tank/lib.so\n7f2-7f3 rw-p 0 00:00 0\n";
        std::fs::write(place.path().join("maps"), line).unwrap();
        assert!(is_mapped(place.path(), (0, 0x41)));
        assert!(!is_mapped(place.path(), (0, 0x42)));
        assert!(!is_mapped(&place.path().join("gone"), (0, 0x41)));
    }
}
