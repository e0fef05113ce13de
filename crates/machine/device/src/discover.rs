//! The search for devices that might belong to a pool.

use crate::file::{FileIdentity, identity_of};
use crate::{
    Device, DeviceError, FileDevice, GptPartition, OpenOptions, PartitionDevice, read_gpt,
};
use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use millpond_env::thread;
use std::collections::HashMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Which devices the search accepts, and how it opens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchOptions {
    /// Skip smaller files and devices (in bytes).
    pub size_min_bytes: u64,
    /// How to open the devices.
    pub open: OpenOptions,
    /// Read partition tables too, and offer the pool partitions in them.
    pub partitions: bool,
}

/// A device that was found and opened.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The path by which the search found it first.
    pub path: PathBuf,
    /// Other paths of the same device, in search order.
    pub aliases: Vec<PathBuf>,
    /// The partition number, if it is a partition inside the file or device at `path`.
    pub partition: Option<u32>,
    /// The device.
    pub device: Arc<dyn Device>,
    /// Whether another program may be writing to it.
    pub is_live: bool,
}

impl Candidate {
    /// The display name: the path, with the partition after a `#`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.partition {
            None => self.path.display().to_string(),
            Some(number) => format!("{}#{number}", self.path.display()),
        }
    }
}

/// The result of a search.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    /// The devices that were opened, in search order, each once.
    pub candidates: Vec<Candidate>,
    /// The paths that could not be opened, and why.
    pub failures: Vec<(PathBuf, DeviceError)>,
}

/// The default search directories. Device names that survive a reboot come before those that do not.
#[must_use]
pub fn default_search_paths() -> Vec<PathBuf> {
    [
        "/dev/disk/by-vdev",
        "/dev/mapper",
        "/dev/disk/by-partlabel",
        "/dev/disk/by-partuuid",
        "/dev/disk/by-label",
        "/dev/disk/by-uuid",
        "/dev/disk/by-id",
        "/dev/disk/by-path",
        "/dev",
    ]
    .into_iter()
    .map(PathBuf::from)
    .filter(|path| path.is_dir())
    .collect()
}

/// Opens every regular file and block device in `search`.
///
/// A path to a file or device is opened itself. Of a directory, the direct entries are opened in name
/// order. Links are followed. In directories, the search silently skips entries that are too small or of
/// another kind, as well as watchdogs and timers, which opening would start. A path that was given
/// explicitly yields a failure instead. With `partitions` off, only metadata is read.
#[must_use]
pub fn discover(search: &[PathBuf], options: SearchOptions) -> Discovery {
    let mut state = State {
        found: Discovery::default(),
        seen: HashMap::new(),
        options,
    };
    for path in search {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => state.directory(path),
            Ok(_) => state.path(path, true),
            Err(error) => state.fail(path, DeviceError::open(path, &error)),
        }
    }
    state.found
}

struct State {
    found: Discovery,
    /// Known devices and their index among the candidates; `None` if they did not become one.
    seen: HashMap<FileIdentity, Option<usize>>,
    options: SearchOptions,
}

/// The timeout for reading a partition table.
const SILENCE: Duration = Duration::from_secs(10);

/// The partitions of a device; `None` if it does not answer within the timeout. Without a table, or with a
/// damaged one, the list is empty, and only the whole device is offered.
fn partitions_of(device: &Arc<dyn Device>) -> Option<Vec<GptPartition>> {
    type Table = Option<Vec<GptPartition>>;
    if thread::is_alone() {
        return Some(read_gpt(device.as_ref()).unwrap_or_default());
    }
    let answer: Arc<(Mutex<Table, rank::Leaf>, Condvar)> = Arc::default();
    let (other, shared) = (Arc::clone(device), Arc::clone(&answer));
    let reader = thread::spawn("partitions", move || {
        let parts = read_gpt(other.as_ref()).unwrap_or_default();
        // Drop the device before the answer is published: a later open must not find it in use.
        drop(other);
        *shared.0.lock() = Some(parts);
        shared.1.notify_all();
    });
    if reader.is_err() {
        return Some(read_gpt(device.as_ref()).unwrap_or_default());
    }
    let mut parts = answer.0.lock();
    if parts.is_none() {
        let _ = answer.1.wait_for(&mut parts, SILENCE);
    }
    parts.take()
}

impl State {
    fn fail(&mut self, path: &Path, error: DeviceError) {
        self.found.failures.push((path.to_owned(), error));
    }
    fn directory(&mut self, path: &Path) {
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return self.fail(path, DeviceError::open(path, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => names.push(entry.file_name()),
                Err(error) => self.fail(path, DeviceError::open(path, &error)),
            }
        }
        names.sort();
        for name in names {
            let starts_something = ["watchdog", "hpet"]
                .iter()
                .any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
            if !starts_something {
                self.path(&path.join(name), false);
            }
        }
    }
    fn path(&mut self, path: &Path, is_named: bool) {
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if is_named => return self.fail(path, DeviceError::open(path, &error)),
            // A dangling link, or a file removed since.
            Err(_) => return,
        };
        if !(metadata.is_file() || metadata.file_type().is_block_device()) {
            if is_named {
                self.fail(
                    path,
                    DeviceError::WrongKind {
                        path: path.display().to_string(),
                    },
                );
            }
            return;
        }
        if let Some(place) = self.seen.get(&identity_of(&metadata)) {
            if let Some(candidate) = place.and_then(|place| self.found.candidates.get_mut(place))
                && candidate.path != path
                && !candidate.aliases.iter().any(|alias| alias == path)
            {
                candidate.aliases.push(path.to_owned());
            }
            return;
        }
        if metadata.is_file() && metadata.len() < self.options.size_min_bytes && !is_named {
            return;
        }
        match FileDevice::open(path, self.options.open) {
            Ok(device) => self.device(path, device, is_named),
            Err(error) => {
                self.seen.insert(identity_of(&metadata), None);
                // A drive without medium in a directory of devices is not worth a report.
                let no_medium = matches!(&error, DeviceError::Open { errno, .. }
                    if [rustix::io::Errno::NOMEDIUM, rustix::io::Errno::NXIO].iter().any(|known| known.raw_os_error() == *errno));
                if is_named || !no_medium {
                    self.fail(path, error);
                }
            }
        }
    }
    fn device(&mut self, path: &Path, device: FileDevice, is_named: bool) {
        let (size_bytes, minimum_bytes) = (device.size_bytes(), self.options.size_min_bytes);
        let identity = device.identity();
        if size_bytes < minimum_bytes {
            self.seen.insert(identity, None);
            if is_named {
                self.fail(
                    path,
                    DeviceError::TooSmall {
                        path: path.display().to_string(),
                        size_bytes,
                        minimum_bytes,
                    },
                );
            }
            return;
        }
        self.seen
            .insert(identity, Some(self.found.candidates.len()));
        let is_live = matches!(device.lock_state(), crate::LockState::HeldElsewhere { .. });
        let whole: Arc<dyn Device> = Arc::new(device);
        let candidate = |partition, device| Candidate {
            path: path.to_owned(),
            aliases: Vec::new(),
            partition,
            device,
            is_live,
        };
        self.found
            .candidates
            .push(candidate(None, Arc::clone(&whole)));
        if !self.options.partitions {
            return;
        }
        let Some(parts) = partitions_of(&whole) else {
            // Reading its labels would hang too.
            self.found.candidates.pop();
            self.seen.insert(identity, None);
            let error = std::io::Error::from(rustix::io::Errno::TIMEDOUT);
            return self.fail(path, DeviceError::io("read", 0, 0, &error));
        };
        for part in parts {
            if part.type_guid == GptPartition::ZFS_TYPE
                && part.length_bytes >= minimum_bytes
                && let Ok(device) =
                    PartitionDevice::new(Arc::clone(&whole), part.start_bytes, part.length_bytes)
            {
                self.found
                    .candidates
                    .push(candidate(Some(part.number), Arc::new(device)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: SearchOptions = SearchOptions {
        size_min_bytes: 1000,
        open: OpenOptions {
            write: false,
            refuse_if_live: false,
        },
        partitions: true,
    };

    fn names(found: &Discovery, folder: &Path) -> Vec<String> {
        let name = |candidate: &Candidate| {
            let path = candidate.path.strip_prefix(folder).unwrap();
            path.display().to_string()
        };
        found.candidates.iter().map(name).collect()
    }

    #[test]
    fn a_directory_offers_its_large_files_once_sorted_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("b"), vec![0; 1000]).unwrap();
        std::fs::write(at("c"), vec![0; 999]).unwrap();
        std::fs::write(at("watchdog0"), vec![0; 1000]).unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/inner"), vec![0; 1000]).unwrap();
        std::os::unix::fs::symlink("b", at("a")).unwrap();
        std::os::unix::fs::symlink("/dev/null", at("e")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("f")).unwrap();
        let found = discover(&[folder.path().to_owned()], OPTIONS);
        assert_eq!(names(&found, folder.path()), ["a"]);
        assert_eq!(found.candidates[0].aliases, [at("b")]);
        assert!(found.failures.is_empty(), "{:?}", found.failures);
    }

    #[test]
    fn explicitly_named_devices_report_their_errors() {
        let folder = tempfile::tempdir().unwrap();
        let small = folder.path().join("small");
        std::fs::write(&small, b"x").unwrap();
        let search = [
            PathBuf::from("/no/such"),
            small.clone(),
            PathBuf::from("/dev/null"),
        ];
        let found = discover(&search, OPTIONS);
        assert!(found.candidates.is_empty());
        let failures: Vec<_> = found
            .failures
            .iter()
            .map(|(path, error)| (path.as_path(), error))
            .collect();
        assert!(matches!(
            failures[..],
            [
                (a, DeviceError::Open { errno: 2, .. }),
                (b, DeviceError::TooSmall { size_bytes: 1, minimum_bytes: 1000, .. }),
                (c, DeviceError::WrongKind { .. })
            ] if a == search[0] && b == small && c == search[2]
        ));
    }

    #[test]
    fn a_file_named_beside_its_directory_is_offered_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, vec![0; 1000]).unwrap();
        let found = discover(&[folder.path().to_owned(), file], OPTIONS);
        assert_eq!(names(&found, folder.path()), ["a"]);
        assert!(found.candidates[0].aliases.is_empty());
    }
}
