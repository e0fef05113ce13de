//! Opening pools to change them, and finding files in what is open.

use super::Global;
use super::address::Address;
use super::global::refused;
use super::pools::explained;
use crate::program::hostid;
use crate::session::Failure;
use millpond::live::{
    FILE_SYSTEM_VERSION, FileError, LiveFileSystem, LiveNode, LivePool, LiveVolume, WriteOptions,
};
use millpond::{FileKind, Pool, PoolState};
use millpond_env::Env;
use millpond_env::host;
use millpond_env::sync::Arc;
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// The pools that a verb has opened to change them, each once. A pool that is not left by
/// [`WritePools::finish`] is left as a crash would leave it: whole.
pub struct WritePools<'g> {
    global: &'g Global,
    takes_foreign: bool,
    open: BTreeMap<String, LivePool>,
}

/// What an address names in a pool that is open for changes.
pub enum Opened {
    /// A file system, and the path in it as given, `/` for the root.
    Files {
        files: Arc<LiveFileSystem>,
        dataset: String,
        path: Vec<u8>,
    },
    Volume(Arc<LiveVolume>),
}

impl<'g> WritePools<'g> {
    /// None opened yet. A pool that another system used last, and did not export, is taken only if
    /// `takes_foreign`.
    pub fn new(global: &'g Global, takes_foreign: bool) -> Self {
        Self {
            global,
            takes_foreign,
            open: BTreeMap::new(),
        }
    }

    /// Whether a pool is open.
    pub fn has(&self, called: &str) -> bool {
        self.open.contains_key(called)
    }

    /// Opens a pool by name or guid.
    ///
    /// # Errors
    /// If it is not there, cannot be opened or may not be written, with everything that stands
    /// against it.
    pub fn pool(&mut self, called: &str) -> Result<LivePool, Failure> {
        if let Some(pool) = self.open.get(called) {
            return Ok(pool.clone());
        }
        let told = |error: &millpond::Error| refused(explained(error));
        let found = LivePool::find(&self.global.search, called).map_err(|error| told(&error))?;
        let own = hostid();
        let is_foreign =
            found.state == PoolState::Active && found.hostid != 0 && found.hostid != own;
        if is_foreign && !self.takes_foreign {
            let host = found.hostname.clone().unwrap_or_default();
            return Err(refused(format!(
                "'{called}' was last used by another system ({host}, hostid {:x}) and not exported\n\
                 --force-import takes it, if you know that the other system does not use it any more",
                found.hostid
            )));
        }
        let writing = WriteOptions {
            hostid: own,
            hostname: host::hostname(),
            ..WriteOptions::default()
        };
        let pool = LivePool::open_candidate(&Env::real(), &found, &self.global.open, &writing);
        let pool = pool.map_err(|error| told(&error))?;
        self.open.insert(called.to_owned(), pool.clone());
        Ok(pool)
    }

    /// A view of what an open pool has committed; `None` if it is not open.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn committed(&self, called: &str) -> Result<Option<Pool>, Failure> {
        let Some(pool) = self.open.get(called) else {
            return Ok(None);
        };
        let told = |error: millpond::Error| refused(explained(&error));
        pool.sync().map_err(told)?;
        pool.committed().map(Some).map_err(told)
    }

    /// Opens the dataset that an address names.
    ///
    /// # Errors
    /// If it is no address or names a snapshot; if it is not there or cannot be written.
    pub fn open(&mut self, word: &OsStr) -> Result<Opened, Failure> {
        let address = Address::parse(word).map_err(Failure::Usage)?;
        if address.dataset.contains('@') {
            return Err(refused(format!(
                "'{}' is a snapshot: nothing changes it",
                address.dataset
            )));
        }
        let called = address.pool();
        let pool = self.pool(called)?;
        let name = format!("{}{}", pool.name(), &address.dataset[called.len()..]);
        let told = |error: millpond::Error| refused(explained(&error));
        let path = address.path.unwrap_or_else(|| b"/".to_vec());
        match pool.file_system(&name) {
            Ok(files) => {
                if files.settings().is_read_only {
                    return Err(refused(format!(
                        "'{name}' is read-only: its property readonly is on"
                    )));
                }
                if files.version() < FILE_SYSTEM_VERSION {
                    return Err(refused(format!(
                        "'{name}' is of version {}, which is only read: zfs upgrade raises it",
                        files.version()
                    )));
                }
                Ok(Opened::Files {
                    files,
                    dataset: name,
                    path,
                })
            }
            Err(error) => match pool.volume(&name) {
                Ok(volume) if path == b"/" => Ok(Opened::Volume(volume)),
                Ok(_) => Err(refused(format!("'{name}' is a volume and has no files"))),
                Err(_) => Err(told(error)),
            },
        }
    }

    /// As [`WritePools::open`], for verbs that want files.
    ///
    /// # Errors
    /// As there, and for volumes.
    pub fn files(&mut self, word: &OsStr) -> Result<(Arc<LiveFileSystem>, Vec<u8>), Failure> {
        match self.open(word)? {
            Opened::Files { files, path, .. } => Ok((files, path)),
            Opened::Volume(volume) => Err(refused(format!(
                "'{}' is a volume and has no files",
                volume.name()
            ))),
        }
    }

    /// Writes everything to stable storage and exports the pools.
    ///
    /// # Errors
    /// If that fails: then the last seconds of changes may be lost.
    pub fn finish(self) -> Result<(), Failure> {
        for (_, pool) in self.open {
            pool.export().map_err(|error| refused(explained(&error)))?;
        }
        Ok(())
    }
}

/// The file at a path of a file system. Links are followed on the way, one at the end only if `follows`.
///
/// # Errors
/// As looking each name up; [`FileError::Invalid`] for links that lead on and on.
pub fn resolve(files: &LiveFileSystem, path: &[u8], follows: bool) -> Result<LiveNode, FileError> {
    let root = files.root()?;
    let mut at = root.clone();
    let mut links = 0;
    // Names still to be looked up, the next one last.
    let mut names: Vec<Vec<u8>> = parts(path);
    while let Some(name) = names.pop() {
        let next = match name.as_slice() {
            b".." if at.id() == root.id() => root.clone(),
            name => files.lookup(&at, name)?,
        };
        let ends_here = names.is_empty() && !path.ends_with(b"/");
        if next.kind() != FileKind::Symlink || (ends_here && !follows) {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(FileError::Invalid {
                reason: "too many symbolic links",
            });
        }
        let target = files.link_target(&next)?;
        if target.starts_with(b"/") {
            at = root.clone();
        }
        names.extend(parts(&target));
    }
    Ok(at)
}

fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').rev();
    let names = names.filter(|name| !name.is_empty());
    names.map(<[u8]>::to_vec).collect()
}

/// A path as the directory and the name in it; `None` for the root, and for `.` and `..`.
pub fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut path = path;
    while let Some(rest) = path.strip_suffix(b"/") {
        path = rest;
    }
    let at = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    let (above, name) = path.split_at(at);
    (!name.is_empty() && name != b"." && name != b"..").then_some((above, name))
}

/// The directory of a path, and the name in it.
///
/// # Errors
/// Why there is none.
pub fn parent<'p>(
    files: &LiveFileSystem,
    path: &'p [u8],
) -> Result<(LiveNode, &'p [u8]), FileError> {
    let (above, name) = split_last(path).ok_or(FileError::Invalid {
        reason: "this has no name of its own",
    })?;
    Ok((resolve(files, above, true)?, name))
}

const LINKS_MAX: u32 = 40;

#[cfg(test)]
mod tests {
    use super::split_last;

    #[test]
    fn a_path_ends_in_a_name() {
        let of = |path: &'static str| split_last(path.as_bytes());
        assert_eq!(of("/a/b"), Some((&b"/a/"[..], &b"b"[..])));
        assert_eq!(of("/a//b//"), Some((&b"/a//"[..], &b"b"[..])));
        assert_eq!(of("/a"), Some((&b"/"[..], &b"a"[..])));
        assert_eq!(of("/"), None);
        assert_eq!(of("/a/.."), None);
        assert_eq!(of("/a/."), None);
    }
}
