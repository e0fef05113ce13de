//! Batches of reads and writes through io_uring.
//!
//! A [`Transfer`] is a batch of contiguous file ranges, each with the memory to fill or to write. Adjacent
//! requests are merged into one range. [`Transfer::perform`] borrows one of the process's rings, keeps up
//! to 64 ranges in flight and returns when all have completed. The caller blocks, so the memory of a batch
//! outlives every operation on it: see [`InFlightBatch`].
//!
//! If the system does not permit io_uring (old kernels, containers that forbid the call), nothing is
//! performed and the caller falls back to ordinary system calls.

mod flight;
mod transfer;

pub(crate) use transfer::{Outcome, Transfer};

use io_uring::{IoUring, Probe, opcode};
use millpond_env::rank;
use millpond_env::sync::{Mutex, OnceLock};

/// File ranges of one batch in flight.
pub(crate) const DEPTH: u32 = 64;
/// Idle rings that are kept for the next batch; others are closed. Each takes about 20 KiB of kernel
/// memory.
const IDLE_MAX: usize = 16;

/// Idle rings. The lock is held only for a push or a pop.
static IDLE: Mutex<Vec<IoUring>, rank::Leaf> = Mutex::new(Vec::new());

/// Whether the system permits io_uring reads and writes to this process. Tried once.
#[must_use]
pub fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        let Ok(ring) = build() else { return false };
        let mut probe = Probe::new();
        let is_known = ring.submitter().register_probe(&mut probe).is_ok()
            && [
                opcode::Read::CODE,
                opcode::Readv::CODE,
                opcode::Write::CODE,
                opcode::Writev::CODE,
            ]
            .into_iter()
            .all(|code| probe.is_supported(code));
        if is_known {
            give_back(ring);
        }
        is_known
    })
}

/// An idle or new ring; `None` if the system provides none.
fn take() -> Option<IoUring> {
    #[cfg(test)]
    if trouble::is_refused() {
        return None;
    }
    if !is_permitted() {
        return None;
    }
    let idle = IDLE.lock().pop();
    idle.or_else(|| build().ok())
}

/// Keeps an idle ring. It must have no queued operation, none in flight, and no unread completion.
fn give_back(ring: IoUring) {
    let mut idle = IDLE.lock();
    if idle.len() < IDLE_MAX {
        idle.push(ring);
    }
}

fn build() -> std::io::Result<IoUring> {
    // The waiting thread does not need an interrupt for completions. Kernels before 5.19 do not support
    // this flag.
    IoUring::builder()
        .dontfork()
        .setup_coop_taskrun()
        .build(DEPTH)
        .or_else(|_| IoUring::builder().dontfork().build(DEPTH))
}

/// Injected kernel errors of the calling thread, for tests.
#[cfg(test)]
pub(crate) mod trouble {
    use std::cell::Cell;

    thread_local! {
        static REFUSED: Cell<bool> = const { Cell::new(false) };
        static ENTERS: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
    }

    /// Simulates a system without io_uring while `work` runs.
    pub(crate) fn refused<T>(work: impl FnOnce() -> T) -> T {
        REFUSED.set(true);
        let outcome = work();
        REFUSED.set(false);
        outcome
    }

    pub(super) fn is_refused() -> bool {
        REFUSED.get()
    }

    /// Lets `good` calls that submit or wait succeed; the next one fails, or panics.
    pub(crate) fn fail_enter(good: u32, panics: bool) {
        ENTERS.set(Some((good, panics)));
    }

    /// Whether the present call must fail.
    pub(super) fn fails_now() -> bool {
        match ENTERS.get() {
            Some((0, panics)) => {
                ENTERS.set(None);
                assert!(!panics, "a panic while operations are under way");
                true
            }
            Some((good, panics)) => {
                ENTERS.set(Some((good - 1, panics)));
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
