//! Threads whose turns a seed decides; only with `--cfg millpond_sim`.
//!
//! In [`run`] every thread that is started through [`crate::thread`] is a thread of the operating system, but only
//! one of them runs at a time: the one that has the *baton*. Who gets it next is decided by the seed wherever threads can meet
//! (each lock, wait, notification, message, start and end of a thread: a *point*). Thus the same seed gives the same
//! run, and what a lock, a condition variable or a channel waits for is always known: when nobody can go on the run ends
//! as stuck, with what everybody waits for.
//!
//! Between two points nothing else runs, so races between atomics without a lock between them are not explored.
//!
//! Threads outside of [`run`] find the same types to be ordinary locks. What is used by both at once is no business of
//! this module.
//!
//! Timeouts are of the world's time ([`Time`]): one that has passed lets its thread go on, and when nobody else can, time goes on to
//! the next. `docs/simulation.md` has the reasons and the figures.

mod baton;
mod channel;
mod condvar;
mod guard;
mod lock;
mod once;
mod rwlock;
mod thread;

use baton::Baton;
pub(crate) use baton::is_managed;
pub use channel::{Receiver, Sender, bounded};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use lock::{MappedMutexGuard, Mutex, MutexGuard};
pub use once::OnceLock;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
pub use thread::{JoinHandle, Scope, ScopedJoinHandle, scope};
pub(crate) use thread::{spawn, yield_now};

/// Processors that [`crate::thread::parallelism`] tells of in [`run`], whatever the machine has.
pub const PARALLELISM: usize = 3;

/// How the next thread is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At a point the running thread is interrupted once in so many (1: always), and any that can run is next, all alike.
    Random {
        /// At least 1.
        one_in: u32,
    },
    /// Each thread has a rank by chance, and the highest that can run does. Once in so many points the running thread becomes the
    /// lowest. Finds what needs few, but long interruptions.
    Ranks {
        /// At least 1.
        one_in: u32,
    },
}

/// What decides a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// All choices follow from it.
    pub seed: u64,
    /// How they are made.
    pub policy: Policy,
    /// A run with more points is stuck.
    pub points_max: u64,
}

/// What happened in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Places where another thread might have gone on.
    pub points: u64,
    /// Times that another thread did.
    pub switches: u64,
    /// Threads that were started, the first included.
    pub threads: u64,
    /// Over all choices in their order: two runs that are alike have the same.
    pub digest: u64,
    /// Threads that still waited when the body had returned and nobody could run. They wait for ever.
    pub left: u64,
}

/// A run that did not end as its body would have had it.
pub enum Ended {
    /// Nobody can go on, or there were too many points. Its threads wait for ever.
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

/// The time that timeouts are reckoned in, in nanoseconds.
pub trait Time: Send + Sync {
    /// Now.
    fn now_ns(&self) -> u64;
    /// Lets time pass until then, if that is later than now.
    fn advance_to(&self, ns: u64);
}

/// Has timeouts of the run that this thread belongs to reckoned in this time from now on. Outside of a run nothing happens.
pub fn set_time(time: Arc<dyn Time>) {
    baton::with_mine(|baton, _| baton.set_time(time));
}

/// Lets this thread wait for so long, in the world's time, while others go on. Outside of a run it does not wait, and says so by `false`.
pub fn sleep(ns: u64) -> bool {
    is_managed() && {
        baton::Waiters::new().wait("its time", Some(ns));
        true
    }
}

/// Runs `body`, and all threads that it starts, one at a time as the schedule says.
///
/// # Errors
/// If it is stuck or panics.
pub fn run<T: Send + 'static>(
    schedule: Schedule,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, Report), Ended> {
    let baton = Baton::new(schedule);
    let first = baton.enter("first");
    let (send, receive) = crossbeam_channel::bounded(1);
    let inside = {
        let baton = Arc::clone(&baton);
        let watched = crate::mark::inherited();
        move || {
            watched.take_up();
            let outcome = baton.live(first, || catch_unwind(AssertUnwindSafe(body)));
            // Nobody listens after being stuck.
            let _ = send.send(outcome);
        }
    };
    let thread = std::thread::Builder::new()
        .name("first".to_owned())
        .spawn(inside);
    let _thread = thread.map_err(|error| Ended::Stuck(error.to_string()))?;
    let (report, stuck) = baton.wait_for_the_end();
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
