//! Pages of mapped files that programs changed before the files were replaced.

use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_posix::vfs::InodeNumber;
use std::collections::HashSet;

/// Which files still have such pages in the kernel, and which lost changes by that.
///
/// The kernel writes changed pages before it drops them. These changes belong to the files before, as those that were
/// written: they are not made, and the next `fsync` or `msync` of the file fails.
#[derive(Default)]
pub(super) struct StalePages {
    /// Whether there are any: nearly always not.
    is_any: AtomicBool,
    state: Mutex<State, rank::Leaf>,
}

#[derive(Default)]
struct State {
    stale: HashSet<InodeNumber>,
    lost: HashSet<InodeNumber>,
}

impl StalePages {
    /// All these files may have such pages.
    pub(super) fn add(&self, numbers: impl Iterator<Item = InodeNumber>) {
        let mut state = self.state.lock();
        state.stale.extend(numbers);
        self.is_any.store(true, Ordering::Release);
    }

    /// The kernel has dropped the pages of a file.
    pub(super) fn dropped(&self, number: InodeNumber) {
        let mut state = self.state.lock();
        state.stale.remove(&number);
        self.is_any.store(state.has_any(), Ordering::Release);
    }

    /// Whether pages that the kernel writes are to be dropped. Notes the loss.
    pub(super) fn drops(&self, number: InodeNumber) -> bool {
        if !self.is_any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let is_stale = state.stale.contains(&number);
        if is_stale {
            state.lost.insert(number);
        }
        is_stale
    }

    /// Whether a file lost changes since the last call.
    pub(super) fn take_loss(&self, number: InodeNumber) -> bool {
        if !self.is_any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let has_lost = state.lost.remove(&number);
        self.is_any.store(state.has_any(), Ordering::Release);
        has_lost
    }

    /// The kernel knows a file no longer.
    pub(super) fn forget(&self, number: InodeNumber) {
        if self.is_any.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            state.stale.remove(&number);
            state.lost.remove(&number);
            self.is_any.store(state.has_any(), Ordering::Release);
        }
    }
}

impl State {
    fn has_any(&self) -> bool {
        !self.stale.is_empty() || !self.lost.is_empty()
    }
}
