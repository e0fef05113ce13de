//! Decides whether a thread that has answered a request busy polls for the next one.
//!
//! A program that walks a tree sends a request, waits for the reply, and sends the next request microseconds
//! later. Putting a thread to sleep and waking it between two such requests takes longer than most replies.
//! Therefore one thread of a connection polls for the next request for a moment before it sleeps. Each poll
//! without a request doubles the number of requests until the next poll, so that polling costs little on an
//! idle mount or on a machine with other work.

use millpond_env::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How long a thread polls. Sleeping and waking cost about as much.
pub(crate) const BUSY_POLL: Duration = Duration::from_micros(40);
/// The most requests that a thread takes by polling in a row. Then other threads may serve the connection.
pub(crate) const IN_A_ROW_MAX: u32 = 4096;
/// The most failed polls that count. After n failed polls in a row, 2 to the power of n, less one, requests
/// follow without a poll.
const VAIN_MAX: u32 = 10;

/// The busy poll state of one connection.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// Whether a thread is polling.
    is_taken: AtomicBool,
    /// The number of failed polls since the last successful one.
    vain: AtomicU32,
    /// The number of requests to serve without a poll.
    skip: AtomicU32,
}

impl BusyPoll {
    /// Whether the caller, which has just answered a request, should poll. If so, it must call
    /// [`BusyPoll::end`].
    pub fn begin(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
            return false;
        }
        !self.is_taken.swap(true, Ordering::Acquire)
    }
    /// Ends the poll. `has_come` says whether a request arrived.
    pub fn end(&self, has_come: bool) {
        let vain = match has_come {
            true => 0,
            false => (self.vain.load(Ordering::Relaxed) + 1).min(VAIN_MAX),
        };
        self.vain.store(vain, Ordering::Relaxed);
        self.skip.store((1 << vain) - 1, Ordering::Relaxed);
        self.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `count` consecutive requests are followed by a poll, if every poll fails.
    fn waits(linger: &BusyPoll, count: usize) -> usize {
        let waits = (0..count).filter(|_| {
            let waits = linger.begin();
            if waits {
                linger.end(false);
            }
            waits
        });
        waits.count()
    }

    #[test]
    fn one_thread_waits_at_a_time() {
        let linger = BusyPoll::default();
        assert!(linger.begin());
        assert!(!linger.begin());
        linger.end(true);
        assert!(linger.begin());
    }

    #[test]
    fn busy_polls_without_success_become_rare() {
        let linger = BusyPoll::default();
        assert!(waits(&linger, 10_000) < 25);
        assert!(waits(&linger, 10_240) <= 10);
        while !linger.begin() {}
        linger.end(true);
        assert!(linger.begin());
    }
}
