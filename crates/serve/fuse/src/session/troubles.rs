//! Files that could not be read or written, for the log.

use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_posix::vfs::InodeNumber;
use std::collections::BTreeSet;

/// The most files that wait for [`Troubles::take`]. Further ones are dropped.
const WAITING_MAX: usize = 64;
/// The most files that one session reports.
const REPORTED_MAX: usize = 1000;

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
pub(crate) struct Troubles(Mutex<State, rank::Leaf>);

#[derive(Debug, Default)]
struct State {
    reported: BTreeSet<u64>,
    waiting: Vec<Trouble>,
}

impl Troubles {
    pub(crate) fn note(&self, file: InodeNumber, reason: &dyn std::fmt::Display) {
        let mut state = self.0.lock();
        if state.waiting.len() >= WAITING_MAX || state.reported.len() >= REPORTED_MAX {
            return;
        }
        if state.reported.insert(file.0) {
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
    fn files_with_errors_are_reported_once_up_to_a_limit() {
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
