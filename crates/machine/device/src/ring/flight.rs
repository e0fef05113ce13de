//! Operations under way on one ring, and waiting for them whatever happens.

use super::{DEPTH, give_back};
use io_uring::{EnterFlags, IoUring, squeue};
use millpond_env::thread::yield_now;
use rustix::io::Errno;

/// How often in a row the kernel may say that it has no memory for operations before they are given up.
const BUSY_MAX: u32 = 100;

/// A borrowed ring with the operations that were put on it.
///
/// What keeps it sound: the kernel takes an operation in [`Flight::enter`] and touches the operation's
/// memory until its completion is seen. When a flight ends, by whatever way, it waits for the completion
/// of everything the kernel took; what the kernel did not take is closed together with the ring and is
/// never taken. A kernel that cannot be waited for ends the process: memory under way is
/// never given back. Whoever makes a flight must keep it in a local variable, below the memory of its operations.
pub(super) struct Flight {
    /// `None` only after the end.
    ring: Option<IoUring>,
    /// Operations put on the ring.
    pushed: usize,
    /// Operations whose completion was seen.
    completed: usize,
}

impl Flight {
    pub(super) fn new(ring: IoUring) -> Self {
        Self {
            ring: Some(ring),
            pushed: 0,
            completed: 0,
        }
    }

    /// Operations that have not come back.
    pub(super) fn outstanding(&self) -> usize {
        self.pushed - self.completed
    }

    /// Whether another operation may be put on.
    pub(super) fn has_room(&self) -> bool {
        self.outstanding() < DEPTH as usize
    }

    /// Puts an operation on the ring; false if there is no room. The kernel takes it at the next
    /// [`Flight::enter`].
    ///
    /// # Safety
    /// The file and all memory that `operation` names must stay valid, and be neither written (of a write)
    /// nor looked at (of a read) by others, until this flight has shown its completion or has ended.
    pub(super) unsafe fn push(&mut self, operation: &squeue::Entry) -> bool {
        let Some(ring) = &mut self.ring else {
            return false;
        };
        // SAFETY: the caller's promise is what the queue asks for.
        let is_pushed = unsafe { ring.submission().push(operation) }.is_ok();
        self.pushed += usize::from(is_pushed);
        is_pushed
    }

    /// Gives the kernel what was put on the ring and waits until at least one operation came back, or all
    /// of them. It may return without either: look, and call again.
    ///
    /// # Errors
    /// What the kernel says if it takes nothing more; what it took before may still be under way.
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
                    // Only operations that end give memory back.
                    self.wait_for_one();
                }
                error => return Err(error),
            }
        }
    }

    /// What came back since the last call: number of the operation and result.
    pub(super) fn completions(&mut self) -> impl Iterator<Item = (u64, i32)> + '_ {
        let completed = &mut self.completed;
        let queue = self.ring.as_mut().map(IoUring::completion);
        queue.into_iter().flatten().map(move |completion| {
            *completed += 1;
            (completion.user_data(), completion.result())
        })
    }

    /// Operations that the kernel took and that have not come back.
    fn under_way(&mut self) -> usize {
        let queued = match &mut self.ring {
            Some(ring) => ring.submission().len(),
            None => 0,
        };
        self.outstanding().saturating_sub(queued)
    }

    /// Waits for a completion, submitting nothing. With nothing under way it lets others run and returns.
    fn wait_for_one(&mut self) {
        if self.under_way() == 0 {
            yield_now();
            return;
        }
        let Some(ring) = &self.ring else { return };
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no argument is passed (its type says nothing then), nothing is submitted.
        let outcome = unsafe { ring.submitter().enter::<()>(0, 1, flags, None) };
        let error = outcome.err().and_then(|error| Errno::from_io_error(&error));
        match error {
            None => {}
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => yield_now(),
            // The kernel may write to memory that would be given back: nothing sound can follow.
            Some(_) => std::process::abort(),
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.completions().for_each(drop);
        while self.under_way() > 0 {
            self.wait_for_one();
            self.completions().for_each(drop);
        }
        // A ring with operations that the kernel did not take must never be entered again.
        if let Some(ring) = self.ring.take()
            && self.pushed == self.completed
        {
            give_back(ring);
        }
    }
}
