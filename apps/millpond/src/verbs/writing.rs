//! Opens pools for changes, and finds files in them.

use super::Global;
use super::address::Address;
use super::global::refused;
use super::pools::explained;
use crate::session::Failure;
use millpond_engine::{
    FileError, FileSystem, Node, Pool, PoolState, Symlinks, View, Volume, WriteOptions,
};
use millpond_env::Env;
use millpond_env::host;
use millpond_env::host::hostid;
use millpond_env::sync::Arc;
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// The pools that a command has opened for changes. Each is opened once.
///
/// A pool that is not closed with [`WritePools::finish`] is left as after a crash: consistent, possibly
/// without the last changes.
pub struct WritePools<'g> {
    global: &'g Global,
    takes_foreign: bool,
    open: BTreeMap<String, Pool>,
}

/// What an address names in a pool that is open for changes.
pub enum Opened {
    /// A file system, and the path in it as given, `/` for the root.
    Files {
        files: Arc<FileSystem>,
        dataset: String,
        path: Vec<u8>,
    },
    Volume(Arc<Volume>),
}

impl<'g> WritePools<'g> {
    /// Creates an empty set.
    ///
    /// A pool that another system used last and did not export, or that has older copies of devices, is opened only if
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
    /// If the pool is not found, cannot be opened or is not writable. The message lists all reasons.
    pub fn pool(&mut self, called: &str) -> Result<Pool, Failure> {
        if let Some(pool) = self.open.get(called) {
            return Ok(pool.clone());
        }
        if self.global.is_past() {
            return Err(refused(format!(
                "'{called}': an older state is only read, so that nothing newer is lost\n\
                 to give up everything newer: zpool import -T TXG, or zpool import --rewind-to-checkpoint"
            )));
        }
        if let Some(imported) = self.global.imported(called) {
            return Err(refused(imported.why_not_changed()));
        }
        let to_error = |error: &millpond_engine::Error| refused(self.global.explained(error));
        let found = Pool::find(&self.global.search, called).map_err(|error| to_error(&error))?;
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
        if let Some(why) = found.why_older(None).filter(|_| !self.takes_foreign) {
            return Err(refused(format!(
                "'{called}' can only be read: {why}\n--force-import writes to it all the same"
            )));
        }
        let writing = WriteOptions {
            hostid: own,
            is_hostid_set: own != 0,
            hostname: host::hostname(),
            ..WriteOptions::default()
        };
        let pool = Pool::open_candidate(&Env::real(), &found, &self.global.open, &writing);
        let pool = pool.map_err(|error| to_error(&error))?;
        let committed = pool.committed().map_err(|error| to_error(&error))?;
        self.global.load_keys(&committed, called)?;
        self.open.insert(called.to_owned(), pool.clone());
        Ok(pool)
    }

    /// Returns a view of the last commit of an open pool; `None` if the pool is not open.
    ///
    /// # Errors
    /// If the commit cannot be read.
    pub fn committed(&self, called: &str) -> Result<Option<View>, Failure> {
        let Some(pool) = self.open.get(called) else {
            return Ok(None);
        };
        let to_error = |error: millpond_engine::Error| refused(explained(&error));
        pool.sync().map_err(to_error)?;
        pool.committed().map(Some).map_err(to_error)
    }

    /// Opens the dataset that an address names.
    ///
    /// # Errors
    /// If the word is not an address or names a snapshot; if the dataset is not found or not writable.
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
        let to_error = |error: millpond_engine::Error| refused(explained(&error));
        let path = address.path.unwrap_or_else(|| b"/".to_vec());
        match pool.file_system(&name) {
            Ok(files) => {
                if files.settings().is_read_only {
                    return Err(refused(format!(
                        "'{name}' is read-only: its property readonly is on"
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
                Err(_) => Err(to_error(error)),
            },
        }
    }

    /// Like [`WritePools::open`], for commands that accept only files.
    ///
    /// # Errors
    /// Those of [`WritePools::open`]; also if the address names a volume.
    pub fn files(&mut self, word: &OsStr) -> Result<(Arc<FileSystem>, Vec<u8>), Failure> {
        match self.open(word)? {
            Opened::Files { files, path, .. } => Ok((files, path)),
            Opened::Volume(volume) => Err(refused(format!(
                "'{}' is a volume and has no files",
                volume.name()
            ))),
        }
    }

    /// Writes all changes to stable storage and exports the pools.
    ///
    /// # Errors
    /// If that fails. The changes of the last seconds may then be lost.
    pub fn finish(self) -> Result<(), Failure> {
        for (_, pool) in self.open {
            pool.export().map_err(|error| refused(explained(&error)))?;
        }
        Ok(())
    }
}

/// Looks up a path in a file system.
///
/// Symbolic links on the way are followed; a final link only if `follows`.
///
/// # Errors
/// Those of [`FileSystem::resolve`], without the path.
pub fn resolve(files: &FileSystem, path: &[u8], follows: bool) -> Result<Node, FileError> {
    let symlinks = match follows || path.ends_with(b"/") {
        true => Symlinks::Follow,
        false => Symlinks::Keep,
    };
    files.resolve(path, symlinks).map_err(|error| match error {
        FileError::Path { error, .. } => *error,
        error => error,
    })
}

/// Splits a path into directory and name; `None` for the root, and for `.` and `..`.
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

/// Returns the directory of a path and the name in it.
///
/// # Errors
/// If the path has no parent directory, or it cannot be opened.
pub fn parent<'p>(files: &FileSystem, path: &'p [u8]) -> Result<(Node, &'p [u8]), FileError> {
    let (above, name) = split_last(path).ok_or(FileError::Invalid {
        reason: "this has no name of its own",
    })?;
    Ok((resolve(files, above, true)?, name))
}

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
