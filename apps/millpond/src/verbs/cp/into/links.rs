//! Hard links: the second name of a file becomes a link to the copy of the first.

use super::tree::Directory;
use millpond::ObjectId;
use millpond_env::sync::{Arc, Mutex};
use std::collections::HashMap;

/// What tells a source's file from all others.
type FileId = (u64, u64);

/// Files with several names that were met. Holds at most [`FILES_MAX`]; further ones are copied once
/// for each name.
#[derive(Default)]
pub struct Links(Mutex<HashMap<FileId, Known>>);

struct Known {
    /// Names not met yet.
    left: u64,
    state: State,
}

enum State {
    /// The copy is being made; these names want it.
    Copying(Vec<Name>),
    /// It is this file.
    Done(ObjectId),
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
    /// Link to this file.
    Link(ObjectId),
    /// It could not be copied under its first name.
    Failed,
}

impl Links {
    /// Says what to do with a name of a file that has `links` names.
    pub fn claim(&self, id: FileId, links: u64, directory: &Arc<Directory>, name: &[u8]) -> Claim {
        let mut files = self.0.lock();
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
            State::Done(id) => Claim::Link(*id),
            State::Failed => Claim::Failed,
        };
        if is_last {
            files.remove(&id);
        }
        claim
    }

    /// Says that the copy stands, or that there is none; returns the names that wait for it.
    pub fn settle(&self, id: FileId, copy: Option<ObjectId>) -> Vec<Name> {
        let mut files = self.0.lock();
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
