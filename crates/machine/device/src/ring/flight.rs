//! Operations in flight on one ring.

use super::{DEPTH, give_back};
use io_uring::{EnterFlags, IoUring, squeue};
use millpond_env::thread::yield_now;
use rustix::io::Errno;

/// How often in a row the kernel may report that it lacks memory for operations before the caller gets the
/// error.
const BUSY_MAX: u32 = 100;

/// A borrowed ring with its operations in flight.
///
/// Soundness: the kernel accepts an operation in [`InFlightBatch::enter`] and accesses the operation's memory
/// until its completion is seen. Dropping a flight waits for the completion of every operation that the
/// kernel accepted, on every path. Operations that the kernel did not accept are discarded with the ring.
/// If waiting fails, the process aborts, because memory in use by the kernel must never be released. The
/// creator must keep a flight in a local variable, declared after the memory of its operations.
pub(super) struct InFlightBatch {
    /// `None` only after the drop.
    ring: Option<IoUring>,
    /// Operations pushed to the ring.
    pushed: usize,
    /// Operations whose completion was seen.
    completed: usize,
}

impl InFlightBatch {
    pub(super) fn new(ring: IoUring) -> Self {
        Self {
            ring: Some(ring),
            pushed: 0,
            completed: 0,
        }
    }

    /// Operations without a completion.
    pub(super) fn outstanding(&self) -> usize {
        self.pushed - self.completed
    }

    /// Whether another operation may be pushed.
    pub(super) fn has_room(&self) -> bool {
        self.outstanding() < DEPTH as usize
    }

    /// Pushes an operation to the ring; returns `false` if the ring is full. The kernel accepts it at the
    /// next [`InFlightBatch::enter`].
    ///
    /// # Safety
    /// The file and all memory that `operation` names must stay valid until this flight has returned its
    /// completion or has been dropped. Until then, other code must not write the memory (for a write) or
    /// access it (for a read).
    pub(super) unsafe fn push(&mut self, operation: &squeue::Entry) -> bool {
        let Some(ring) = &mut self.ring else {
            return false;
        };
        // SAFETY: the caller's contract is that of the queue.
        let is_pushed = unsafe { ring.submission().push(operation) }.is_ok();
        self.pushed += usize::from(is_pushed);
        is_pushed
    }

    /// Submits the pushed operations and waits until at least one has completed, or all of them.
    ///
    /// It may return early; the caller must check and call again.
    ///
    /// # Errors
    /// The kernel's error if it accepts nothing more. Operations that it accepted before may still be in
    /// flight.
    pub(super) fn enter(&mut self, waits_for_all: bool) -> Result<(), Errno> {
        #[cfg(test)]
        if super::trouble::fails_now() {
            return Err(Errno::INVAL);
        }
        let mut busy = 0;
        loop {
            let want = match self.outstanding() {
                0 => return Ok(()),
                outstanding if waits_for_all => outstanding,
                _ => 1,
            };
            let Some(ring) = &mut self.ring else {
                return Ok(());
            };
            let error = match ring.submit_and_wait(want) {
                Ok(_) => return Ok(()),
                Err(error) => Errno::from_io_error(&error).unwrap_or(Errno::IO),
            };
            if !ring.completion().is_empty() {
                return Ok(());
            }
            match error {
                Errno::INTR => {}
                Errno::AGAIN | Errno::BUSY if busy < BUSY_MAX => {
                    busy += 1;
                    // Only completed operations free memory.
                    self.wait_for_one();
                }
                error => return Err(error),
            }
        }
    }

    /// The completions since the last call: operation number and result.
    pub(super) fn completions(&mut self) -> impl Iterator<Item = (u64, i32)> + '_ {
        let completed = &mut self.completed;
        let queue = self.ring.as_mut().map(IoUring::completion);
        queue.into_iter().flatten().map(move |completion| {
            *completed += 1;
            (completion.user_data(), completion.result())
        })
    }

    /// Operations that the kernel accepted and that have not completed.
    fn under_way(&mut self) -> usize {
        let queued = match &mut self.ring {
            Some(ring) => ring.submission().len(),
            None => 0,
        };
        self.outstanding().saturating_sub(queued)
    }

    /// Waits for a completion without submitting anything. If nothing is in flight it yields and returns.
    fn wait_for_one(&mut self) {
        if self.under_way() == 0 {
            yield_now();
            return;
        }
        let Some(ring) = &self.ring else { return };
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no argument is passed (its type is then irrelevant), and nothing is submitted.
        let outcome = unsafe { ring.submitter().enter::<()>(0, 1, flags, None) };
        let error = outcome.err().and_then(|error| Errno::from_io_error(&error));
        match error {
            None => {}
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => yield_now(),
            // The kernel may still write to memory that would be released. No sound way to continue exists.
            Some(_) => std::process::abort(),
        }
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        self.completions().for_each(drop);
        while self.under_way() > 0 {
            self.wait_for_one();
            self.completions().for_each(drop);
        }
        // A ring with operations that the kernel did not accept must never be entered again.
        if let Some(ring) = self.ring.take()
            && self.pushed == self.completed
        {
            give_back(ring);
        }
    }
}
