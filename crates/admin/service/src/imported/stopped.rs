//! Channel programs that were stopped and have not ended yet.

use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Condvar, Mutex};
use std::time::Duration;

/// The longest that a query waits until a running program looks whether it is stopped.
const LOOK_MAX: Duration = Duration::from_millis(100);
/// The longest that a query waits for the end of a stopped program: its txg may wait for a device.
const END_MAX: Duration = Duration::from_secs(5);

/// The channel programs of a pool that run, and those that were stopped and have not ended.
///
/// A program that is stopped keeps what it has changed until then. Who killed its command finds these changes by the next
/// query, as in OpenZFS.
#[derive(Default)]
pub(super) struct StoppedPrograms {
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Programs that look now and then whether they are stopped.
    running: usize,
    /// How often programs have looked.
    looks: u64,
    stopped: usize,
}

/// A running program, which may be stopped.
pub(crate) struct RunningProgram<'s> {
    programs: &'s StoppedPrograms,
    has_looked: AtomicBool,
    is_stopped: AtomicBool,
}

impl StoppedPrograms {
    pub fn begin(&self) -> RunningProgram<'_> {
        RunningProgram {
            programs: self,
            has_looked: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Waits until all programs that were stopped before have ended, for a few seconds at most.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        // A program whose command is gone notices that only when it looks.
        let looks = state.looks;
        while state.running > 0 && state.looks == looks {
            if self.changed.wait_for(&mut state, LOOK_MAX).timed_out() {
                break;
            }
        }
        while state.stopped > 0 {
            if self.changed.wait_for(&mut state, END_MAX).timed_out() {
                return;
            }
        }
    }
}

impl RunningProgram<'_> {
    /// Notes that the program has looked whether it is stopped.
    pub fn look(&self, is_stopped: bool) {
        let mut state = self.programs.state.lock();
        state.looks += 1;
        if !self.has_looked.swap(true, Ordering::AcqRel) {
            state.running += 1;
        }
        if is_stopped && !self.is_stopped.swap(true, Ordering::AcqRel) {
            state.stopped += 1;
            mark::hit("program-stopped");
        }
        drop(state);
        self.programs.changed.notify_all();
    }
}

impl Drop for RunningProgram<'_> {
    fn drop(&mut self) {
        let mut state = self.programs.state.lock();
        state.running -= usize::from(self.has_looked.load(Ordering::Acquire));
        state.stopped -= usize::from(self.is_stopped.load(Ordering::Acquire));
        drop(state);
        self.programs.changed.notify_all();
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
        running.look(false);
        // It does not look again, so this ends after a while.
        programs.wait();
        running.look(true);
        running.look(true);
        assert_eq!(programs.state.lock().stopped, 1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| programs.wait());
            drop(running);
            waiting.join().unwrap();
        });
        let state = programs.state.lock();
        assert_eq!((state.running, state.stopped), (0, 0));
    }
}
