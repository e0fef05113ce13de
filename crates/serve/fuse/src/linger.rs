//! Whether a thread that has answered a request waits for the next one awake.
//!
//! A program that walks a tree asks, waits for the answer, and asks again some microseconds later. Putting a thread to sleep and
//! waking it between two such requests takes longer than most answers do. So one thread of a connection asks for the next
//! request again and again for a moment before it goes to sleep; where nobody came in time it does so more and more seldom, so
//! that neither an idle mount nor a machine with other work pays for it.

use millpond_env::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How long a thread waits awake. Going to sleep and being woken costs about as much.
pub(crate) const LINGER: Duration = Duration::from_micros(40);
/// So many requests are taken awake in a row at most; then others get their turn.
pub(crate) const IN_A_ROW_MAX: u32 = 4096;
/// After so many waits in vain, or more, 2 to the power of this many requests follow without one.
const VAIN_MAX: u32 = 10;

/// One connection's.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    /// Somebody waits awake.
    is_taken: AtomicBool,
    /// Waits in vain since the last that was not.
    vain: AtomicU32,
    /// So many requests follow without waiting.
    skip: AtomicU32,
}

impl Linger {
    /// Whether the caller, who has just answered a request, shall wait; then it must call [`Linger::end`].
    pub fn begin(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
            return false;
        }
        !self.is_taken.swap(true, Ordering::Acquire)
    }
    /// The wait is over: whether a request came.
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

    /// How many of `count` requests that are answered one after the other are followed by a wait, all in vain.
    fn waits(linger: &Linger, count: usize) -> usize {
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
        let linger = Linger::default();
        assert!(linger.begin());
        assert!(!linger.begin());
        linger.end(true);
        assert!(linger.begin());
    }

    #[test]
    fn who_waits_in_vain_waits_seldom() {
        let linger = Linger::default();
        assert!(waits(&linger, 10_000) < 25);
        assert!(waits(&linger, 10_240) <= 10);
        while !linger.begin() {}
        linger.end(true);
        assert!(linger.begin());
    }
}
