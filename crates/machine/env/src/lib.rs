//! Layer `machine`: the only ways to lock, to start a thread, to tell the time and to roll dice.
//!
//! Everything above takes its locks from [`sync`], its threads from [`thread`], and its time and
//! randomness from an [`Env`] that is handed in. Under `--cfg millpond_sim` the same names
//! stand for threads whose turns a seed decides (module `sim`), so that the real engine runs in the simulator.
//!
//! This crate knows no device and no format.
//!
//! ```
//! use millpond_env::Env;
//! let env = Env::real();
//! assert!(env.clock.wall_ns() > 0);
//! ```
#![forbid(unsafe_code)]

use std::sync::Arc;

pub mod host;
pub mod mark;
#[cfg(millpond_sim)]
pub mod sim;
pub mod sync;
pub mod thread;

/// Time as the engine sees it.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since an arbitrary start; never goes back.
    fn monotonic_ns(&self) -> u64;
}

/// Randomness as the engine sees it.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` with unpredictable bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// The outside world that is not a device: handed down from the program or the simulator.
#[derive(Clone)]
pub struct Env {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Rolls dice.
    pub entropy: Arc<dyn Entropy>,
}

impl Env {
    /// The real clock and the operating system's randomness.
    #[must_use]
    pub fn real() -> Self {
        Self {
            clock: Arc::new(real::RealClock::new()),
            entropy: Arc::new(real::OsEntropy),
        }
    }
}

mod real;
