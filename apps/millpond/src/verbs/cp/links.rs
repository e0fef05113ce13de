//! Hard links: further names of a file become links to its first copy.

use millpond_env::sync::{Arc, Mutex};
use std::collections::HashMap;
use std::hash::Hash;

/// The files with several names found so far.
///
/// Holds at most [`FILES_MAX`] files; a file beyond that is copied once per name. `I` identifies a source
/// file, `D` is a directory of the destination, `C` is the location of a copy.
pub struct Links<I, D, C> {
    files: Mutex<HashMap<I, Known<D, C>>>,
}

struct Known<D, C> {
    /// Number of names not found yet.
    left: u64,
    state: State<D, C>,
}

enum State<D, C> {
    /// The file is being copied; these names wait for the copy.
    Copying(Vec<Name<D>>),
    /// The copy is at this location.
    Done(C),
    /// The copy failed.
    Failed,
}

/// A name in a directory of the destination.
pub struct Name<D> {
    pub directory: Arc<D>,
    pub name: Vec<u8>,
}

/// What the caller has to do with a name.
pub enum Claim<C> {
    /// Copy the file, then call [`Links::settle`].
    Copy,
    /// Copy the file; no other name refers to this copy.
    CopyAlone,
    /// Nothing: the thread that copies the file also creates this name.
    Waits,
    /// Link to this copy.
    Link(C),
    /// The file could not be copied under its first name.
    Failed,
}

impl<I, D, C> Default for Links<I, D, C> {
    fn default() -> Self {
        Self {
            files: Mutex::new(HashMap::new()),
        }
    }
}

impl<I: Eq + Hash, D, C: Clone> Links<I, D, C> {
    /// Decides what to do with a name of a file that has `links` names.
    pub fn claim(&self, id: I, links: u64, directory: &Arc<D>, name: &[u8]) -> Claim<C> {
        let mut files = self.files.lock();
        let is_full = files.len() >= FILES_MAX;
        let Some(known) = files.get_mut(&id) else {
            if is_full {
                return Claim::CopyAlone;
            }
            let known = Known {
                left: links.saturating_sub(1),
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
            State::Done(copy) => Claim::Link(copy.clone()),
            State::Failed => Claim::Failed,
        };
        if is_last {
            files.remove(&id);
        }
        claim
    }

    /// Records that the copy exists, or that it failed. Returns the names that wait for it.
    pub fn settle(&self, id: I, copy: Option<C>) -> Vec<Name<D>> {
        let mut files = self.files.lock();
        let Some(known) = files.get_mut(&id) else {
            return vec![];
        };
        let state = copy.map_or(State::Failed, State::Done);
        let before = std::mem::replace(&mut known.state, state);
        if known.left == 0 {
            files.remove(&id);
        }
        match before {
            State::Copying(waiting) => waiting,
            State::Done(_) | State::Failed => vec![],
        }
    }
}

const FILES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    type TestLinks = Links<(usize, u64), (), &'static str>;

    #[test]
    fn names_seen_during_a_copy_wait_for_it() {
        let (links, top) = (TestLinks::default(), Arc::new(()));
        assert!(matches!(links.claim((0, 7), 3, &top, b"a"), Claim::Copy));
        assert!(matches!(links.claim((0, 7), 3, &top, b"b"), Claim::Waits));
        // The same object id in another dataset is another file.
        assert!(matches!(links.claim((1, 7), 3, &top, b"a"), Claim::Copy));
        let waiting = links.settle((0, 7), Some("dir/a"));
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].name, b"b");
        let third = links.claim((0, 7), 3, &top, b"c");
        assert!(matches!(third, Claim::Link("dir/a")));
        // All three names were found, so the file is forgotten.
        assert_eq!(links.files.lock().len(), 1);
    }

    #[test]
    fn names_of_a_file_that_could_not_be_copied_fail_with_it() {
        let (links, top) = (TestLinks::default(), Arc::new(()));
        assert!(matches!(links.claim((0, 7), 2, &top, b"a"), Claim::Copy));
        assert!(links.settle((0, 7), None).is_empty());
        assert!(matches!(links.claim((0, 7), 2, &top, b"b"), Claim::Failed));
    }
}
