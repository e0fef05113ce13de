//! Access times.

use crate::error::FileError;
use crate::settings::Atime;
use crate::state::{Lists, NodeState};
use crate::writing::NODE_BYTES;
use crate::{FileSystem, Node};
use millpond_sa::Timestamp;
use millpond_txg::Estimate;
use millpond_txg::{BeginWait, Transaction};

impl FileSystem {
    /// Whether reading a file now must update its access time.
    fn wants_atime(&self, state: &NodeState, now: Timestamp) -> bool {
        let settings = self.settings();
        let day = 24 * 60 * 60;
        !settings.is_read_only
            && match settings.atime {
                Atime::Off => false,
                Atime::Always => true,
                Atime::Relative => {
                    state.atime <= state.mtime
                        || state.atime <= state.ctime
                        || now.seconds.saturating_sub(state.atime.seconds) >= day
                }
            }
    }

    /// Updates the access time after a read, if the settings and the file's times require it.
    ///
    /// Does nothing if it would have to wait for another change of the file or for a transaction. Reads
    /// therefore neither fail nor wait because of it.
    pub fn touch_atime(&self, node: &Node) {
        let (Ok(writing), Ok(node)) = (self.writing(), node.for_change()) else {
            return;
        };
        let now = writing.now();
        if !self.wants_atime(&node.state(), now) {
            return;
        }
        let Some(_change) = node.try_lock_changes() else {
            return;
        };
        let Ok(tx) = self.begin_at_once(NODE_BYTES) else {
            return;
        };
        let mut state = node.state();
        state.atime = now;
        // The access time is best effort, so errors are ignored.
        let _ = self.store(&tx, node, state, &Lists::default());
    }

    /// Begins a small transaction if that is possible without waiting.
    fn begin_at_once(&self, bytes: u64) -> Result<Transaction, FileError> {
        let writing = self.writing()?;
        self.check_writable()?;
        Ok(writing.source().begin(Estimate {
            bytes,
            wait: BeginWait::Never,
            ..Estimate::default()
        })?)
    }
}
