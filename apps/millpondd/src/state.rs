//! The state directory.

use crate::places::Places;
use millpond::control::MountInfo;
use millpond_env::Env;
use millpond_nvlist::NvList;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The largest record of mounts that is read, in bytes.
const MOUNTS_BYTES_MAX: u64 = 64 << 20;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A file or folder cannot be used.
    #[error("cannot use {}: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another daemon has it.
    #[error(
        "another daemon{} uses {}; stop it first, or choose another folder with MILLPOND_DIR",
        process.map_or_else(String::new, |process| format!(" (process {process})")),
        state.display()
    )]
    Taken {
        /// The directory.
        state: PathBuf,
        /// Whose it is, if it says.
        process: Option<u32>,
    },
    /// A cache file cannot be made of the pools.
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

/// The state directory of a running daemon; the lock goes with it.
#[derive(Debug)]
pub struct State {
    places: Places,
    _lock: File,
}

impl State {
    /// Makes the directory if need be and takes it.
    ///
    /// # Errors
    /// [`StateError::Taken`] if another daemon lives.
    pub fn take(places: &Places) -> Result<Self, StateError> {
        for folder in [&places.state, &places.runtime] {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(folder);
            made.map_err(at(folder))?;
        }
        let path = places.state.join("lock");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(0o644).open(&path).map_err(at(&path))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut text = String::new();
            let _ = (&file).take(32).read_to_string(&mut text);
            return Err(StateError::Taken {
                state: places.state.clone(),
                process: text.trim().parse().ok(),
            });
        }
        // Only for the words above: the lock alone decides.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self {
            places: places.clone(),
            _lock: file,
        })
    }

    /// Where everything is.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// This system's number: that of `/etc/hostid`, else one that is made once and kept here, so that
    /// a pool in use by another system is known in containers too.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub fn hostid(&self, env: &Env) -> Result<u64, StateError> {
        let read = |path: &Path| {
            let bytes = fs::read(path).ok()?;
            let word = bytes.first_chunk::<4>()?;
            Some(u64::from(u32::from_ne_bytes(*word))).filter(|id| *id != 0)
        };
        let kept = self.places.state.join("hostid");
        if let Some(id) = read(Path::new("/etc/hostid")).or_else(|| read(&kept)) {
            return Ok(id);
        }
        let mut word = [0; 4];
        env.entropy.fill(&mut word);
        // Never 0, which means none.
        let [first, ..] = &mut word;
        *first |= 1;
        self.replace(&kept, &word)?;
        Ok(u64::from(u32::from_ne_bytes(word)))
    }

    /// Writes a file so that a crash leaves the old or the new content.
    fn replace(&self, path: &Path, content: &[u8]) -> Result<(), StateError> {
        replace(path, content).map_err(at(path))
    }

    /// Notes the mounts, for whoever comes after a crash.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn note_mounts(&self, mounts: &[MountInfo]) -> Result<(), StateError> {
        let path = self.places.state.join("mounts");
        let bytes = serde_json::to_vec(mounts).unwrap_or_default();
        self.replace(&path, &bytes)
    }

    /// The mounts that the daemon before this noted. A record that makes no sense counts as none.
    pub fn noted_mounts(&self) -> Vec<MountInfo> {
        let path = self.places.state.join("mounts");
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
    let mut file = File::create(&fresh)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Notes pools in a cache file, in OpenZFS's form: a list of configurations by name, in native encoding.
/// A file without pools stays, empty.
///
/// # Errors
/// [`StateError`].
pub fn write_cache_file(path: &Path, pools: &[(String, NvList)]) -> Result<(), StateError> {
    if pools.is_empty() {
        // A file that never was is not made.
        if path.exists() {
            replace(path, b"").map_err(at(path))?;
        }
        return Ok(());
    }
    let mut list = NvList::new();
    for (name, config) in pools {
        list.insert(name.as_str(), config.clone());
    }
    let bytes = list
        .encode_native()
        .map_err(|error| StateError::CacheFile {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    if fs::read(path).is_ok_and(|known| known == bytes) {
        return Ok(());
    }
    replace(path, &bytes).map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_daemons_cannot_have_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::in_folder(folder.path());
        let first = State::take(&places).unwrap();
        let second = State::take(&places);
        let own = std::process::id();
        assert!(
            matches!(&second, Err(StateError::Taken { process, .. }) if *process == Some(own)),
            "{second:?}"
        );
        drop(first);
        State::take(&places).unwrap();
    }

    #[test]
    fn the_host_id_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::take(&Places::in_folder(folder.path())).unwrap();
        let id = state.hostid(&Env::real()).unwrap();
        assert_ne!(id, 0);
        assert_eq!(state.hostid(&Env::real()).unwrap(), id);
    }

    #[test]
    fn what_is_noted_in_a_cache_file_is_found_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        write_cache_file(&path, &[]).unwrap();
        assert!(!path.exists());
        let mut config = NvList::new();
        config.insert("pool_guid", 7u64);
        write_cache_file(&path, &[("tank".into(), config)]).unwrap();
        let search = millpond::Search::in_cache_file(&path).unwrap();
        assert_eq!(search.configs.len(), 1);
        assert_eq!(search.configs[0].u64("pool_guid"), Ok(7));
        write_cache_file(&path, &[]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_damaged_record_of_mounts_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::take(&Places::in_folder(folder.path())).unwrap();
        fs::write(folder.path().join("mounts"), b"[{\"dataset\":").unwrap();
        assert!(state.noted_mounts().is_empty());
    }
}
