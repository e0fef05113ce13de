//! The real clock and random source behind [`crate::Env`].

use crate::{Clock, Entropy};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(crate) struct RealClock {
    start: Instant,
}

impl RealClock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for RealClock {
    fn wall_ns(&self) -> u64 {
        let elapsed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }
    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
    fn uptime_ns(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let [s, ns] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
        s.saturating_mul(1_000_000_000).saturating_add(ns)
    }
}

pub(crate) struct OsEntropy;

impl Entropy for OsEntropy {
    /// # Panics
    /// If the operating system provides no randomness. There is no safe fallback.
    fn fill(&self, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())
            {
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the operating system gives no randomness: {error}"),
            }
        }
    }
}
