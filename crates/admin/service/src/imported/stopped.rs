//! Channel programs that were stopped and have not ended yet.

use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Condvar, Mutex};
use std::time::Duration;

/// The longest that a query waits for the end of a stopped program: its txg may wait for a device.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Counts the stopped programs of a pool that have not ended.
///
/// A program that is stopped keeps what it has changed until then. Who killed its command finds these changes by the next
/// query, as in OpenZFS.
#[derive(Default)]
pub(super) struct StoppedPrograms {
    left: Mutex<usize, rank::Leaf>,
    ended: Condvar,
}

/// A running program, which may be stopped.
pub(crate) struct RunningProgram<'s> {
    stopped: &'s StoppedPrograms,
    is_stopped: AtomicBool,
}

impl StoppedPrograms {
    pub fn begin(&self) -> RunningProgram<'_> {
        RunningProgram {
            stopped: self,
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Waits until all stopped programs have ended, for a few seconds at most.
    pub fn wait(&self) {
        let mut left = self.left.lock();
        while *left > 0 {
            if self.ended.wait_for(&mut left, WAIT_MAX).timed_out() {
                return;
            }
        }
    }
}

impl RunningProgram<'_> {
    /// Notes that the program is stopped.
    pub fn stop(&self) {
        if !self.is_stopped.swap(true, Ordering::AcqRel) {
            *self.stopped.left.lock() += 1;
            mark::hit("program-stopped");
        }
    }
}

impl Drop for RunningProgram<'_> {
    fn drop(&mut self) {
        if self.is_stopped.load(Ordering::Acquire) {
            *self.stopped.left.lock() -= 1;
            self.stopped.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_env::thread;

    #[test]
    fn a_query_waits_for_stopped_programs_only() {
        let programs = StoppedPrograms::default();
        let running = programs.begin();
        programs.wait();
        running.stop();
        running.stop();
        assert_eq!(*programs.left.lock(), 1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| programs.wait());
            drop(running);
            waiting.join().unwrap();
        });
        assert_eq!(*programs.left.lock(), 0);
    }
}
