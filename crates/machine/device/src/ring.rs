//! Batches of reads and writes given to the kernel at once, through io_uring.
//!
//! A [`Transfer`] is a batch: stretches of files, each with the memory to fill or to write, neighbours
//! joined. [`Transfer::perform`] borrows one of the process's rings, keeps up to 64 stretches under
//! way and returns when all have come back. Whoever calls it blocks, so the memory of a batch outlives
//! every operation on it: see [`Flight`].
//!
//! Where the system does not permit rings (old kernels, containers that forbid the call) nothing is
//! performed and the caller makes its ordinary calls.

mod flight;
mod transfer;

pub(crate) use transfer::{Outcome, Transfer};

use io_uring::{IoUring, Probe, opcode};
use millpond_env::sync::{Mutex, OnceLock};

/// Stretches of one batch that the kernel works on at once.
pub(crate) const DEPTH: u32 = 64;
/// Rings that are kept for the next batch; more are closed. Each takes some 20 KiB of the kernel's memory.
const IDLE_MAX: usize = 16;

/// Rings that nobody uses. Locked for a push or a pop.
static IDLE: Mutex<Vec<IoUring>> = Mutex::new(Vec::new());

/// Whether the system lets this process use io_uring to read and write. Tried once.
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

/// A ring; `None` if the system gives none (any more).
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

/// Keeps a ring on which nothing is queued, under way or unread.
fn give_back(ring: IoUring) {
    let mut idle = IDLE.lock();
    if idle.len() < IDLE_MAX {
        idle.push(ring);
    }
}

fn build() -> std::io::Result<IoUring> {
    // Completions need no interrupt of the thread that waits for them anyway. Kernels before 5.19 do
    // not know the wish.
    IoUring::builder()
        .dontfork()
        .setup_coop_taskrun()
        .build(DEPTH)
        .or_else(|_| IoUring::builder().dontfork().build(DEPTH))
}

/// Misfortunes that tests cannot get from a kernel, for the calling thread.
#[cfg(test)]
pub(crate) mod trouble {
    use std::cell::Cell;

    thread_local! {
        static REFUSED: Cell<bool> = const { Cell::new(false) };
        static ENTERS: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
    }

    /// While `work` runs there are no rings.
    pub(crate) fn refused<T>(work: impl FnOnce() -> T) -> T {
        REFUSED.set(true);
        let outcome = work();
        REFUSED.set(false);
        outcome
    }

    pub(super) fn is_refused() -> bool {
        REFUSED.get()
    }

    /// After `good` good calls the next that submits or waits fails, or panics.
    pub(crate) fn fail_enter(good: u32, panics: bool) {
        ENTERS.set(Some((good, panics)));
    }

    /// Whether the present call is the one that fails.
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
