//! Files that could not be read or written, for the log.

use millpond_env::sync::Mutex;
use millpond_posix::vfs::InodeNumber;
use std::collections::BTreeSet;

/// The most files that wait for [`Troubles::take`]. Further ones are dropped.
const WAITING_MAX: usize = 64;
/// The most files that one session reports.
const TOLD_MAX: usize = 1000;

/// A file for which a program got `EIO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The file.
    pub file: InodeNumber,
    /// The error message.
    pub reason: String,
}

/// The failed files of one session. Each is reported once.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: BTreeSet<u64>,
    waiting: Vec<Trouble>,
}

impl Troubles {
    pub(crate) fn note(&self, file: InodeNumber, reason: &dyn std::fmt::Display) {
        let mut state = self.0.lock();
        if state.waiting.len() >= WAITING_MAX || state.told.len() >= TOLD_MAX {
            return;
        }
        if state.told.insert(file.0) {
            let reason = reason.to_string();
            state.waiting.push(Trouble { file, reason });
        }
    }
    pub(crate) fn take(&self) -> Vec<Trouble> {
        std::mem::take(&mut self.0.lock().waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_of_once_and_not_all_of_very_many() {
        let troubles = Troubles::default();
        troubles.note(InodeNumber(7), &"gone");
        troubles.note(InodeNumber(7), &"gone");
        let wanted = Trouble {
            file: InodeNumber(7),
            reason: "gone".to_owned(),
        };
        assert_eq!(troubles.take(), [wanted]);
        troubles.note(InodeNumber(7), &"gone");
        assert_eq!(troubles.take(), []);
        for number in 100..100_000 {
            troubles.note(InodeNumber(number), &"gone");
        }
        assert_eq!(troubles.take().len(), WAITING_MAX);
    }
}
