//! A seeded thread scheduler; only with `--cfg millpond_sim`.
//!
//! In [`run`], every thread started through [`crate::thread`] is a thread of the operating system, but only
//! one runs at a time. The seed picks the next thread at each *scheduling point*: each lock, wait,
//! notification and message, and the start and end of a thread. The same seed therefore gives the same run.
//! The scheduler knows what each blocked thread waits for. If no thread can run, the run ends as stuck and
//! reports what each thread waits for.
//!
//! No other thread runs between two scheduling points. Races between atomics without a lock between them
//! are therefore not explored.
//!
//! Outside of [`run`], the same types are ordinary locks. Sharing a lock between threads of a run and
//! threads outside of it is not supported.
//!
//! Timeouts use simulated time ([`Time`]). A thread becomes ready when its timeout expires. If no thread is
//! ready, time advances to the next timeout. `docs/simulation.md` has the reasons and the measurements.

mod channel;
mod condvar;
mod guard;
mod lock;
mod once;
mod rwlock;
mod scheduler;
mod thread;

pub use channel::{Receiver, Sender, bounded};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use lock::{MappedMutexGuard, Mutex, MutexGuard};
pub use once::OnceLock;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use scheduler::Scheduler;
pub(crate) use scheduler::is_managed;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
pub use thread::{JoinHandle, Scope, ScopedJoinHandle, scope};
pub(crate) use thread::{spawn, yield_now};

/// The value of [`crate::thread::parallelism`] in [`run`], on any machine.
pub const PARALLELISM: usize = 3;

/// How the scheduler chooses the next thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At a scheduling point, preempt the running thread with probability 1 in `one_in` (1: always). The
    /// next thread is any ready thread, with equal probability.
    Random {
        /// At least 1.
        one_in: u32,
    },
    /// Each thread has a random rank, and the ready thread of the highest rank runs. With probability 1 in
    /// `one_in` per scheduling point, the running thread gets the lowest rank. Finds defects that need few
    /// but long interruptions.
    Ranks {
        /// At least 1.
        one_in: u32,
    },
}

/// The parameters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The seed of all choices.
    pub seed: u64,
    /// How the scheduler chooses.
    pub policy: Policy,
    /// A run with more scheduling points than this is stuck.
    pub points_max: u64,
}

/// Statistics of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Scheduling points, where another thread could run.
    pub points: u64,
    /// Scheduling points at which another thread was chosen.
    pub switches: u64,
    /// Threads that were started, including the first.
    pub threads: u64,
    /// A hash over all choices in order. Two identical runs have the same digest.
    pub digest: u64,
    /// Threads that were still blocked when the body had returned and no thread was ready. They block for
    /// ever.
    pub left: u64,
}

/// Why a run failed.
pub enum Ended {
    /// No thread can run, or there were too many scheduling points. The threads of the run block for ever.
    Stuck(String),
    /// The body panicked.
    Panic(Box<dyn Any + Send>),
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck(text) => write!(f, "stuck: {text}"),
            Self::Panic(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                write!(f, "panic: {}", text.unwrap_or("no words"))
            }
        }
    }
}

/// The clock that timeouts use, in nanoseconds.
pub trait Time: Send + Sync {
    /// The current time.
    fn now_ns(&self) -> u64;
    /// Advances the clock to `ns`, if that is later than now.
    fn advance_to(&self, ns: u64);
}

/// Sets the clock for the timeouts of this thread's run, from now on. Does nothing outside of a run.
pub fn set_time(time: Arc<dyn Time>) {
    scheduler::with_mine(|scheduler, _| scheduler.set_time(time));
}

/// Blocks this thread for `ns` nanoseconds of simulated time, while other threads run.
///
/// Outside of a run it returns `false` at once.
pub fn sleep(ns: u64) -> bool {
    is_managed() && {
        scheduler::Waiters::new().wait("its time", Some(ns));
        true
    }
}

/// Runs `body` and all threads that it starts, one at a time, as the schedule determines.
///
/// # Errors
/// If the run is stuck or `body` panics.
pub fn run<T: Send + 'static>(
    schedule: Schedule,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, Report), Ended> {
    let scheduler = Scheduler::new(schedule);
    let first = scheduler.enter("first");
    let (send, receive) = crossbeam_channel::bounded(1);
    let inside = {
        let scheduler = Arc::clone(&scheduler);
        let watched = crate::mark::inherited();
        move || {
            watched.take_up();
            let outcome = scheduler.live(first, || catch_unwind(AssertUnwindSafe(body)));
            // After a stuck run there is no receiver.
            let _ = send.send(outcome);
        }
    };
    let thread = std::thread::Builder::new()
        .name("first".to_owned())
        .spawn(inside);
    let _thread = thread.map_err(|error| Ended::Stuck(error.to_string()))?;
    let (report, stuck) = scheduler.wait_for_the_end();
    match stuck {
        Some(text) => Err(Ended::Stuck(text)),
        None => match receive.recv() {
            Ok(Ok(value)) => Ok((value, report)),
            Ok(Err(panic)) => Err(Ended::Panic(panic)),
            Err(_) => Err(Ended::Stuck("the first thread has vanished".to_owned())),
        },
    }
}

#[cfg(test)]
mod tests;
