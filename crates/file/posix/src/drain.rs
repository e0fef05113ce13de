//! Background work of a mounted file system: frees large files and completes the accounting of owners.
//!
//! Removing the last name of a large file does not wait until its blocks are free. The file goes to the
//! unlinked set, and a background thread frees it chunk by chunk. The thread starts when there is something
//! to free and ends when it is done. What it does not finish is freed after the next mount.

use crate::FileSystem;
use crate::error::FileError;
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex, Weak};
use millpond_env::thread;
use millpond_ondisk::ObjectId;
use std::collections::VecDeque;
use std::time::Duration;

/// How long unmounting waits for a chunk that is being freed. In a suspended pool the chunk may never finish.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// A work item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainWork {
    /// Free everything in the unlinked set.
    All,
    /// Free one file of the unlinked set.
    File(ObjectId),
    /// Complete the accounting of owners.
    Accounting,
}

/// The work queue of one file system.
#[derive(Debug, Default)]
pub(crate) struct DrainQueue {
    state: Mutex<State, rank::Leaf>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a thread may run.
    is_allowed: bool,
    is_running: bool,
    work: VecDeque<DrainWork>,
}

impl DrainQueue {
    /// Whether large files are freed in the background.
    pub(crate) fn is_allowed(&self) -> bool {
        self.state.lock().is_allowed
    }

    /// Whether accounting may continue: no other work waits.
    fn continues(&self) -> bool {
        let state = self.state.lock();
        let mut work = state.work.iter();
        state.is_allowed && work.all(|one| *one == DrainWork::Accounting)
    }

    /// Queues work for the thread. Returns false if no thread may run.
    fn push(&self, files: &Arc<FileSystem>, work: DrainWork) -> bool {
        let mut state = self.state.lock();
        if !state.is_allowed {
            return false;
        }
        if !state.work.contains(&work) {
            state.work.push_back(work);
        }
        if !state.is_running {
            let weak = Arc::downgrade(files);
            state.is_running = thread::spawn("posix-drain", move || drain(&weak)).is_ok();
        }
        // If no thread could be started, the work is left for the next mount.
        true
    }

    /// Takes the next work item. If there is none, the thread ends.
    fn pop(&self) -> Option<DrainWork> {
        let mut state = self.state.lock();
        let work = state.work.pop_front().filter(|_| state.is_allowed);
        if work.is_none() {
            state.is_running = false;
            self.ended.notify_all();
        }
        work
    }
}

fn drain(files: &Weak<FileSystem>) {
    loop {
        let Some(files) = files.upgrade() else { return };
        let work = files.drain_queue().and_then(DrainQueue::pop);
        let Some(work) = work else { return };
        let outcome = match work {
            DrainWork::All => files.free_unlinked(),
            DrainWork::File(id) => files.free_orphan(id).map(|_| ()),
            DrainWork::Accounting => files.complete_accounting_between(),
        };
        // A file that failed stays in the unlinked set, and its damage is among the pool's damaged blocks.
        // Accounting is completed after the next mount.
        let _ = outcome;
    }
}

/// Large files are freed in the background while this exists.
#[derive(Debug)]
pub struct BackgroundDrain {
    files: Arc<FileSystem>,
}

impl BackgroundDrain {
    /// Starts with the files that the last use of the file system left in the unlinked set.
    ///
    /// If threads are not available, those files are freed before this returns, and the operation that
    /// removes a large file also frees it.
    ///
    /// # Errors
    /// As [`FileSystem::free_unlinked`].
    pub fn start(files: &Arc<FileSystem>) -> Result<Self, FileError> {
        let drain = Self {
            files: Arc::clone(files),
        };
        if thread::is_alone() {
            files.free_unlinked()?;
            files.complete_accounting(&|| true)?;
            return Ok(drain);
        }
        let queue = files.writing()?.unlinked().drain();
        queue.state.lock().is_allowed = true;
        if files.has_unlinked()? {
            queue.push(files, DrainWork::All);
        }
        files.complete_accounting_in_background();
        Ok(drain)
    }
}

impl Drop for BackgroundDrain {
    fn drop(&mut self) {
        let Some(queue) = self.files.drain_queue() else {
            return;
        };
        let mut state = queue.state.lock();
        state.is_allowed = false;
        state.work.clear();
        if state.is_running {
            queue.ended.wait_for(&mut state, STOP_WAIT);
        }
    }
}

impl FileSystem {
    /// Completes the accounting of owners. Freeing files has priority: the accounting stops for it and is
    /// queued again.
    fn complete_accounting_between(&self) -> Result<(), FileError> {
        let writing = self.writing()?;
        let queue = writing.unlinked().drain();
        self.complete_accounting(&|| queue.continues())?;
        if self.incomplete_accounting() == 0 {
            // Shown at once, like other changes of this kind.
            let _ = writing.source().wait_open_synced();
        } else {
            let mut state = queue.state.lock();
            if state.is_allowed && !state.work.contains(&DrainWork::Accounting) {
                state.work.push_back(DrainWork::Accounting);
            }
        }
        Ok(())
    }

    /// Starts to complete the accounting of owners, if that is incomplete and the file system is mounted.
    pub fn complete_accounting_in_background(&self) {
        if self.incomplete_accounting() != 0
            && let Some(queue) = self.drain_queue()
            && let Ok(files) = self.shared()
        {
            queue.push(&files, DrainWork::Accounting);
        }
    }

    /// Leaves a file of the unlinked set to the background thread. Returns whether it was queued.
    pub(crate) fn leave_to_drain(&self, id: ObjectId) -> bool {
        match (self.drain_queue(), self.shared()) {
            (Some(queue), Ok(files)) => queue.push(&files, DrainWork::File(id)),
            _ => false,
        }
    }

    /// Waits until the background thread has freed what it was given, at most so long.
    pub fn wait_for_drain(&self, limit: Duration) {
        let Some(queue) = self.drain_queue() else {
            return;
        };
        let mut state = queue.state.lock();
        if state.is_running {
            queue.ended.wait_for(&mut state, limit);
        }
    }

    fn drain_queue(&self) -> Option<&DrainQueue> {
        self.writing()
            .ok()
            .map(|writing| writing.unlinked().drain())
    }
}
