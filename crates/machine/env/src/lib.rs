//! Layer `machine`: the only source of locks, threads, time and randomness.
//!
//! Every layer above takes its locks from [`sync`], its threads from [`thread`], and its time and
//! randomness from an [`Env`] that the caller passes in. Under `--cfg millpond_sim` the same names refer to
//! a seeded thread scheduler (module `sim`), so that the simulator runs the real engine.
//!
//! This crate contains no device and no on-disk format.
//!
//! ```
//! use millpond_env::Env;
//! let env = Env::real();
//! assert!(env.clock.wall_ns() > 0);
//! ```
#![forbid(unsafe_code)]

use std::sync::Arc;

pub mod host;
mod lock;
pub mod mark;
pub mod memory;
pub mod process;
pub mod rank;
#[cfg(millpond_sim)]
pub mod sim;
pub mod sync;
pub mod thread;

/// The clock that the engine uses.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since an arbitrary start; never decreases.
    fn monotonic_ns(&self) -> u64;
    /// Nanoseconds since an arbitrary start, with the time in which the machine slept.
    fn uptime_ns(&self) -> u64 {
        self.monotonic_ns()
    }
}

/// The random source that the engine uses.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` with unpredictable bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// The environment apart from the devices: a clock and a random source, from the program or the simulator.
#[derive(Clone)]
pub struct Env {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The random source.
    pub entropy: Arc<dyn Entropy>,
    /// The settings that change while the process runs.
    pub tunables: Arc<Tunables>,
}

impl Env {
    /// The real clock and the operating system's randomness.
    #[must_use]
    pub fn real() -> Self {
        Self {
            clock: Arc::new(real::RealClock::new()),
            entropy: Arc::new(real::OsEntropy),
            tunables: Arc::default(),
        }
    }
}

mod real;
mod tunables;
pub use tunables::{Tunable, Tunables};
