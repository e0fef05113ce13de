//! The state directory.

use crate::state_dirs::StateDirs;
use millpond_control::MountInfo;
use millpond_engine::{NvList, read_cache_file};
use millpond_env::Env;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The largest record of mounts that is read, in bytes.
const MOUNTS_BYTES_MAX: u64 = 64 << 20;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A file or directory cannot be used.
    #[error("cannot use {}: {error}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another user could change the directory.
    #[error(
        "cannot use {}: {why}; it must be a folder of user {own} that no other user can write to; set MILLPOND_DIR to use another",
        path.display()
    )]
    Untrusted {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// The uid that must own it.
        own: u32,
    },
    /// Another daemon uses the directory.
    #[error(
        "another daemon{} uses {}; stop it first, or choose another folder with MILLPOND_DIR",
        process.map_or_else(String::new, |process| format!(" (process {process})")),
        state.display()
    )]
    InUse {
        /// The directory.
        state: PathBuf,
        /// The process id of that daemon, if known.
        process: Option<u32>,
    },
    /// The pools cannot be noted in a cache file.
    #[error("cannot note the pools in {}: {reason}", path.display())]
    CacheFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Io { path, error }
}

/// `O_NOFOLLOW` as an integer.
pub const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Creates a directory if necessary, regardless of the umask, and checks that no other user can change it.
///
/// # Errors
/// [`StateError::Untrusted`], or if it cannot be created.
pub fn take_folder(folder: &Path) -> Result<(), StateError> {
    let is_new = fs::symlink_metadata(folder).is_err();
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(folder);
    made.map_err(at(folder))?;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(NOFOLLOW);
    let untrusted = |why: String| StateError::Untrusted {
        path: folder.to_owned(),
        why,
        own: rustix::process::geteuid().as_raw(),
    };
    let opened = options
        .open(folder)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => untrusted("it is a symbolic link".into()),
            _ => at(folder)(error),
        })?;
    let metadata = opened.metadata().map_err(at(folder))?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(untrusted(format!("it belongs to user {}", metadata.uid())));
    }
    if is_new {
        let mode = fs::Permissions::from_mode(0o755);
        opened.set_permissions(mode).map_err(at(folder))?;
    } else if metadata.mode() & 0o022 != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(untrusted(format!("others may write to it (mode {mode:o})")));
    }
    Ok(())
}

/// The state directory of a running daemon. Dropping this releases the lock.
#[derive(Debug)]
pub struct State {
    dirs: StateDirs,
    _lock: File,
}

impl State {
    /// Creates the directory if necessary, and locks it.
    ///
    /// # Errors
    /// [`StateError::InUse`] if another daemon is running.
    pub fn take(dirs: &StateDirs) -> Result<Self, StateError> {
        for folder in [&dirs.state, &dirs.runtime] {
            take_folder(folder)?;
        }
        let path = dirs.state.join("lock");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let options = options.mode(0o644).custom_flags(NOFOLLOW);
        let mut file = options.open(&path).map_err(at(&path))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut text = String::new();
            let _ = (&file).take(32).read_to_string(&mut text);
            return Err(StateError::InUse {
                state: dirs.state.clone(),
                process: text.trim().parse().ok(),
            });
        }
        // The process id is for error messages only. The lock is authoritative.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self {
            dirs: dirs.clone(),
            _lock: file,
        })
    }

    /// The paths of the daemon.
    pub fn dirs(&self) -> &StateDirs {
        &self.dirs
    }

    /// This system's host id: the one that an administrator has set, otherwise one that is generated once and stored here.
    /// Thus a pool in use by another system is also detected in containers.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn hostid(&self, env: &Env) -> Result<u64, StateError> {
        let read = |path: &Path| {
            let bytes = fs::read(path).ok()?;
            let word = bytes.first_chunk::<4>()?;
            Some(u64::from(u32::from_ne_bytes(*word))).filter(|id| *id != 0)
        };
        let kept = self.dirs.state.join("hostid");
        let set = Some(millpond_env::host::hostid()).filter(|id| *id != 0);
        if let Some(id) = set.or_else(|| read(&kept)) {
            return Ok(id);
        }
        let mut word = [0; 4];
        env.entropy.fill(&mut word);
        // 0 would mean that there is no host id.
        let [first, ..] = &mut word;
        *first |= 1;
        self.replace(&kept, &word)?;
        Ok(u64::from(u32::from_ne_bytes(word)))
    }

    /// An anonymous temporary file, for data that does not fit in memory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn scratch(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        Ok(rustix::fs::open(&self.dirs.state, flags, mode)?.into())
    }

    /// Writes a file atomically: after a crash it has either the old or the new content.
    fn replace(&self, path: &Path, content: &[u8]) -> Result<(), StateError> {
        replace(path, content).map_err(at(path))
    }

    /// Records the mounts, for the daemon that starts after a crash.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn note_mounts(&self, mounts: &[MountInfo]) -> Result<(), StateError> {
        let path = self.dirs.state.join("mounts");
        let bytes = serde_json::to_vec(mounts).unwrap_or_default();
        self.replace(&path, &bytes)
    }

    /// The mounts that the previous daemon recorded. An invalid record counts as empty.
    pub fn noted_mounts(&self) -> Vec<MountInfo> {
        let path = self.dirs.state.join("mounts");
        let Ok(file) = File::open(path) else {
            return vec![];
        };
        serde_json::from_reader(file.take(MOUNTS_BYTES_MAX)).unwrap_or_default()
    }
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    // A leftover from a crash is removed rather than written to: it may be a link.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o644);
    let mut file = options.open(&fresh)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Writes pools to a cache file in OpenZFS's format: a native nvlist of configurations by name. Without
/// pools, an existing file is replaced by an empty one.
///
/// The list has each name once. A pool whose name one before it has is entered by its guid. No pool can have that as its
/// name.
///
/// # Errors
/// [`StateError`]. What is no regular file is not replaced.
pub fn write_cache_file(path: &Path, pools: &[(String, NvList)]) -> Result<(), StateError> {
    let fail = |reason: String| StateError::CacheFile {
        path: path.to_owned(),
        reason,
    };
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let reason = "it is not a regular file; name another one with: zpool set cachefile";
        return Err(fail(reason.into()));
    }
    if pools.is_empty() {
        // Do not create a file just to have it empty.
        if path.exists() {
            replace(path, b"").map_err(|error| fail(error.to_string()))?;
        }
        return Ok(());
    }
    let mut list = NvList::new();
    for (name, config) in pools {
        let guid = config.u64("pool_guid").ok();
        match guid.filter(|_| list.get(name).is_some()) {
            Some(guid) => list.insert(guid.to_string().as_str(), config.clone()),
            None => list.insert(name.as_str(), config.clone()),
        }
    }
    let bytes = list
        .encode_native()
        .map_err(|error| fail(error.to_string()))?;
    if read_cache_file(path).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    replace(path, &bytes).map_err(|error| fail(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_daemons_cannot_have_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        let dirs = StateDirs::in_folder(folder.path());
        let first = State::take(&dirs).unwrap();
        let second = State::take(&dirs);
        let own = std::process::id();
        assert!(
            matches!(&second, Err(StateError::InUse { process, .. }) if *process == Some(own)),
            "{second:?}"
        );
        drop(first);
        State::take(&dirs).unwrap();
    }

    #[test]
    fn a_state_folder_writable_by_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |path: &Path| {
            let refused = State::take(&StateDirs::in_folder(path));
            let error = refused.expect_err("it was taken");
            assert!(matches!(error, StateError::Untrusted { .. }), "{error}");
            error.to_string()
        };
        let real = folder.path().join("real");
        drop(State::take(&StateDirs::in_folder(&real)).unwrap());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(refusal(&link).contains("symbolic link"));
        fs::set_permissions(&real, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(refusal(&real).contains("mode 775"));
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        // Links inside the directory are not followed either.
        let elsewhere = folder.path().join("elsewhere");
        fs::remove_file(real.join("lock")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, real.join("lock")).unwrap();
        assert!(State::take(&StateDirs::in_folder(&real)).is_err());
        std::os::unix::fs::symlink(&elsewhere, real.join("mounts.new")).unwrap();
        fs::remove_file(real.join("lock")).unwrap();
        let state = State::take(&StateDirs::in_folder(&real)).unwrap();
        state.note_mounts(&[]).unwrap();
        assert!(!elsewhere.exists());
        drop(state);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&real, Some(65_534), None).unwrap();
            assert!(refusal(&real).contains("user 65534"));
        }
    }

    #[test]
    fn the_host_id_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::take(&StateDirs::in_folder(folder.path())).unwrap();
        let id = state.hostid(&Env::real()).unwrap();
        assert_ne!(id, 0);
        assert_eq!(state.hostid(&Env::real()).unwrap(), id);
    }

    #[test]
    fn pools_of_a_cache_file_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        write_cache_file(&path, &[]).unwrap();
        assert!(!path.exists());
        let mut config = NvList::new();
        config.insert("pool_guid", 7u64);
        write_cache_file(&path, &[("tank".into(), config)]).unwrap();
        let search = millpond_engine::Search::in_cache_file(&path).unwrap();
        let configs = search.configs.unwrap();
        assert_eq!(configs.len(), 1);
        assert_eq!(configs[0].u64("pool_guid"), Ok(7));
        write_cache_file(&path, &[]).unwrap();
        let search = millpond_engine::Search::in_cache_file(&path).unwrap();
        assert_eq!(search.configs, Some(vec![]));
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_damaged_record_of_mounts_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::take(&StateDirs::in_folder(folder.path())).unwrap();
        fs::write(folder.path().join("mounts"), b"[{\"dataset\":").unwrap();
        assert!(state.noted_mounts().is_empty());
    }
}
