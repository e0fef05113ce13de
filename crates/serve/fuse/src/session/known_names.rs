//! The names that the kernel may have cached, before and after the files are replaced.

use super::inodes::{Inodes, KnownFile};
use millpond_posix::FileError;
use millpond_posix::vfs::{InodeNumber, Vfs, VfsNode};
use std::collections::{HashMap, HashSet};

/// How many entries are read at once.
const BATCH: usize = 1024;
/// The most names that are kept, where the kernel can be told that any name may have changed. They take some 100 bytes
/// each.
const NAMES_MAX: usize = 1 << 20;

/// The entries of one directory.
type Entries = HashMap<Vec<u8>, InodeNumber>;

/// The entries of all directories that the kernel knows.
pub(super) struct KnownNames {
    directories: Vec<(KnownFile, Entries)>,
    /// Whether some were left out, or names compare in another way now.
    is_incomplete: bool,
}

/// What the kernel must be told of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedNames {
    /// Each directory and name that refers to another file now, or to none.
    These(Vec<(InodeNumber, Vec<u8>)>),
    /// Any name may refer to another file.
    Any,
}

fn entries(vfs: &dyn Vfs, directory: &VfsNode) -> Result<Entries, FileError> {
    let (mut all, mut cookie) = (Entries::new(), 0);
    loop {
        let batch = vfs.list(directory, cookie, BATCH)?;
        let Some(last) = batch.last() else {
            return Ok(all);
        };
        cookie = last.cookie;
        let named = batch.into_iter();
        let named = named.filter(|entry| !matches!(&*entry.name, b"." | b".."));
        all.extend(named.map(|entry| (entry.name, entry.number)));
    }
}

impl KnownNames {
    /// Reads the names before the files are replaced. With `may_leave_out`, not more than a bounded number.
    pub(super) fn read(inodes: &Inodes, vfs: &dyn Vfs, may_leave_out: bool) -> Self {
        let mut names = Self {
            directories: vec![],
            is_incomplete: false,
        };
        let mut count = 0;
        for known in inodes.known() {
            // Snapshots do not change.
            if !known.is_directory || known.number.tag() != 0 {
                continue;
            }
            let read = vfs.node(known.number, known.generation);
            let read = read.and_then(|node| match node.is_virtual() {
                true => Ok(Entries::new()),
                false => entries(vfs, &node),
            });
            // What cannot be read now was perhaps read earlier.
            let read = read.unwrap_or_else(|error| {
                names.is_incomplete |= error != FileError::Stale;
                Entries::new()
            });
            count += read.len();
            if may_leave_out && count > NAMES_MAX {
                names.is_incomplete = true;
                break;
            }
            names.directories.push((known, read));
        }
        names
    }

    /// Any name may have changed.
    pub(super) fn forget(&mut self) {
        self.is_incomplete = true;
    }

    /// Compares with the names after that.
    pub(super) fn changed(self, inodes: &Inodes, vfs: &dyn Vfs) -> ChangedNames {
        if self.is_incomplete {
            return ChangedNames::Any;
        }
        // A number may belong to another file now.
        let known = inodes
            .known()
            .into_iter()
            .filter(|one| one.number.tag() == 0);
        let gone: HashSet<InodeNumber> = known
            .filter(|one| vfs.node(one.number, one.generation).is_err())
            .map(|one| one.number)
            .collect();
        let mut changed = vec![];
        for (directory, mut before) in self.directories {
            let node = vfs.node(directory.number, directory.generation);
            // The kernel drops what lies in a directory together with its own name.
            let Ok(node) = node else { continue };
            if node.is_virtual() {
                continue;
            }
            let Ok(after) = entries(vfs, &node) else {
                return ChangedNames::Any;
            };
            for (name, number) in after {
                let is_same = before.remove(&name) == Some(number) && !gone.contains(&number);
                if !is_same {
                    changed.push((directory.number, name));
                }
            }
            let removed = before.into_keys();
            changed.extend(removed.map(|name| (directory.number, name)));
        }
        ChangedNames::These(changed)
    }
}
