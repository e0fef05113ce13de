//! Hard links: the second name of a file becomes a link to the copy of the first.

use super::place::Directory;
use millpond_env::sync::{Arc, Mutex};
use std::collections::HashMap;

/// A file: which source, which object.
pub type FileId = (usize, u64);

/// Files with several names that were met. Holds at most [`FILES_MAX`]; further ones are copied once
/// for each name.
#[derive(Default)]
pub struct Links {
    files: Mutex<HashMap<FileId, Known>>,
}

struct Known {
    /// Names not met yet.
    left: u64,
    state: State,
}

enum State {
    /// The copy is being made; these names want it.
    Copying(Vec<Name>),
    /// It stands in this directory below the destination, under this name.
    Done(Vec<u8>, Vec<u8>),
    /// There is none.
    Failed,
}

/// A name in a directory of the destination.
pub struct Name {
    pub directory: Arc<Directory>,
    pub name: Vec<u8>,
}

/// What to do with a name.
pub enum Claim {
    /// Copy the file, then say [`Links::settle`].
    Copy,
    /// Copy the file; nobody else will ask.
    CopyAlone,
    /// Whoever copies it makes this name, too.
    Waits,
    /// Link to this name in this directory below the destination.
    Link(Vec<u8>, Vec<u8>),
    /// It could not be copied under its first name.
    Failed,
}

impl Links {
    /// Says what to do with a name of a file that has `links` names.
    pub fn claim(&self, id: FileId, links: u64, directory: &Arc<Directory>, name: &[u8]) -> Claim {
        let mut files = self.files.lock();
        let is_full = files.len() >= FILES_MAX;
        let Some(known) = files.get_mut(&id) else {
            if is_full {
                return Claim::CopyAlone;
            }
            let known = Known {
                left: links - 1,
                state: State::Copying(vec![]),
            };
            files.insert(id, known);
            return Claim::Copy;
        };
        known.left = known.left.saturating_sub(1);
        let is_last = known.left == 0;
        let claim = match &mut known.state {
            State::Copying(waiting) => {
                waiting.push(Name {
                    directory: Arc::clone(directory),
                    name: name.to_vec(),
                });
                return Claim::Waits;
            }
            State::Done(below, name) => Claim::Link(below.clone(), name.clone()),
            State::Failed => Claim::Failed,
        };
        if is_last {
            files.remove(&id);
        }
        claim
    }

    /// Says that the copy stands, or that there is none; returns the names that wait for it.
    pub fn settle(&self, id: FileId, copy: Option<(&[u8], &[u8])>) -> Vec<Name> {
        let mut files = self.files.lock();
        let Some(known) = files.get_mut(&id) else {
            return vec![];
        };
        let state = match copy {
            Some((below, name)) => State::Done(below.to_vec(), name.to_vec()),
            None => State::Failed,
        };
        let before = std::mem::replace(&mut known.state, state);
        if known.left == 0 {
            files.remove(&id);
        }
        match before {
            State::Copying(waiting) => waiting,
            State::Done(..) | State::Failed => vec![],
        }
    }
}

const FILES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::super::place::{DIRECTORY_FLAGS, Directory};
    use super::super::report::Report;
    use super::*;
    use rustix::fs::{Mode, open};

    fn top() -> Arc<Directory> {
        let folder = tempfile::tempdir().unwrap();
        let fd = open(folder.path(), DIRECTORY_FLAGS, Mode::empty()).unwrap();
        Directory::top(fd, &Arc::new(Report::new(false)))
    }

    #[test]
    fn names_that_come_while_the_first_is_copied_wait_for_it() {
        let (links, top) = (Links::default(), top());
        assert!(matches!(links.claim((0, 7), 3, &top, b"a"), Claim::Copy));
        assert!(matches!(links.claim((0, 7), 3, &top, b"b"), Claim::Waits));
        // The same number in another dataset is another file.
        assert!(matches!(links.claim((1, 7), 3, &top, b"a"), Claim::Copy));
        let waiting = links.settle((0, 7), Some((b"dir", b"a")));
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].name, b"b");
        match links.claim((0, 7), 3, &top, b"c") {
            Claim::Link(below, name) => {
                assert_eq!((&below[..], &name[..]), (&b"dir"[..], &b"a"[..]))
            }
            _ => panic!("the copy is there"),
        }
        // All three names were met: nothing is remembered.
        assert_eq!(links.files.lock().len(), 1);
    }

    #[test]
    fn names_of_a_file_that_could_not_be_copied_fail_with_it() {
        let (links, top) = (Links::default(), top());
        assert!(matches!(links.claim((0, 7), 2, &top, b"a"), Claim::Copy));
        assert!(links.settle((0, 7), None).is_empty());
        assert!(matches!(links.claim((0, 7), 2, &top, b"b"), Claim::Failed));
    }
}
