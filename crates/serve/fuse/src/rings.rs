//! The threads that serve a mounted file system through io_uring.
//!
//! The kernel has a queue for each processor and wants all of them served. Each queue has some threads, each with one
//! [`Slot`]: a request goes to the thread that answered last, so that others sleep until several are under way at once. The
//! threads stay on their queue's processor, where the program waits for the answer: waking a thread of the same processor is far
//! cheaper than waking another processor. Only who moves much data leaves it, since copying can go on beside the program.

use crate::server::{Connection, Shared};
use crate::transport::{Next, Slot};
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread::{self, JoinHandle};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// So many requests of one queue are worked on at once, where [`THREADS_MAX`] allows it.
const THREADS_PER_QUEUE: usize = 4;
/// With fewer, one slow request would hold up all others of its processor.
const THREADS_PER_QUEUE_MIN: usize = 2;
/// All mounted file systems of a server have so many of these threads, at most, each with a slot of 1 MiB. Those that are mounted
/// beyond that are served in the ordinary way.
const THREADS_MAX: usize = 128;
/// The number of pages for a request is agreed on as of this size.
const PAGE_BYTES_MAX: usize = 4096;
/// Requests of up to so many bytes are copied; longer ones leave so much room for the reply.
const SCRATCH_BYTES: usize = 16384;
/// Who moves so many bytes at once leaves its processor, and comes back after so many requests that move less.
const MUCH_BYTES: usize = 65536;
const LITTLE_IN_A_ROW: u32 = 16;

/// Whether the threads of a connection begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Nothing was agreed on with the kernel yet.
    Closed,
    Open,
    Never,
}

/// A connection's.
#[derive(Debug)]
pub(crate) struct Rings {
    gate: Mutex<Gate>,
    decided: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Default for Rings {
    fn default() -> Self {
        Self {
            gate: Mutex::new(Gate::Closed),
            decided: Condvar::new(),
            threads: Mutex::default(),
        }
    }
}

/// How many threads of this kind a server has.
#[derive(Debug, Default)]
pub(crate) struct Taken(AtomicUsize);

impl Taken {
    /// Takes `queues` times as many as there may be; returns how many for each queue.
    fn take(&self, queues: usize) -> Option<usize> {
        let mut each = None;
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                let left = THREADS_MAX.saturating_sub(taken);
                each = left.checked_div(queues).map(|n| n.min(THREADS_PER_QUEUE));
                each = each.filter(|each| *each >= THREADS_PER_QUEUE_MIN);
                Some(taken + each? * queues)
            });
        each
    }
    fn give_back(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::AcqRel);
    }
}

/// Whether root has allowed it to the kernel's FUSE.
fn is_enabled() -> bool {
    let text = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// How many queues the kernel has: as many as there can be processors.
fn queues() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    count(text.trim())
}

/// How many numbers a list as `0-3,8` has.
fn count(list: &str) -> Option<usize> {
    let each = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    each.sum()
}

impl Rings {
    /// Starts the threads of a connection that is not mounted yet; they wait until [`Rings::decide`] was called. Returns
    /// whether there are any: otherwise io_uring must not be agreed on.
    pub fn prepare(shared: &Arc<Shared>, connection: &Arc<Connection>) -> bool {
        // The kernel wants room for as many pages as were agreed on for a request: more than a slot has where they are larger.
        let fits = rustix::param::page_size() <= PAGE_BYTES_MAX;
        let Some(queues) = (fits && is_enabled()).then(queues).flatten() else {
            return false;
        };
        let Some(each) = shared.ring_threads.take(queues) else {
            return false;
        };
        let slots = (0..queues).flat_map(|queue| (0..each).map(move |_| queue));
        let slots: Option<Vec<Slot>> = slots
            .map(|queue| Slot::new(u16::try_from(queue).ok()?).ok())
            .collect();
        let Some(slots) = slots else {
            shared.ring_threads.give_back(queues * each);
            return false;
        };
        let rings = &connection.rings;
        let mut threads = rings.threads.lock();
        for slot in slots {
            let (server, served) = (Arc::clone(shared), Arc::clone(connection));
            let name = format!("fuse-ring-{}", slot.queue());
            let thread = thread::spawn(&name, move || {
                if served.rings.waits_for_open() {
                    serve(&server, &served, slot);
                }
                server.ring_threads.give_back(1);
            });
            match thread {
                Ok(thread) => threads.push(thread),
                Err(_) => {
                    shared.ring_threads.give_back(queues * each - threads.len());
                    rings.decide(false);
                    return false;
                }
            }
        }
        true
    }

    fn waits_for_open(&self) -> bool {
        let mut gate = self.gate.lock();
        while *gate == Gate::Closed {
            self.decided.wait(&mut gate);
        }
        *gate == Gate::Open
    }

    /// Lets the threads begin, or end. Only the first call counts.
    pub fn decide(&self, begins: bool) {
        let mut gate = self.gate.lock();
        if *gate == Gate::Closed {
            *gate = if begins { Gate::Open } else { Gate::Never };
        }
        drop(gate);
        self.decided.notify_all();
    }

    /// The kernel did not agree after all.
    fn forgo(&self) {
        *self.gate.lock() = Gate::Never;
    }

    /// Whether requests come this way.
    pub fn are_used(&self) -> bool {
        *self.gate.lock() == Gate::Open
    }

    /// Waits for the threads of a connection that is over.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// What each thread does.
fn serve(shared: &Shared, connection: &Connection, mut slot: Slot) {
    let mut scratch = vec![0; SCRATCH_BYTES];
    let mut place = Place::new(usize::from(slot.queue()));
    let mut is_registered = false;
    loop {
        match slot.next(connection.channel.fd(), shared.stop.as_fd()) {
            Next::Request => is_registered = true,
            Next::Stopped => return,
            // Root forbade it after it was offered, so that the kernel did not agree: requests come through the device.
            Next::Over(Errno::OPNOTSUPP) if !is_registered => return connection.rings.forgo(),
            Next::Over(error) => {
                // Else it is over already, and something else may be mounted there by now.
                if !matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) {
                    connection.cut_off();
                }
                return shared.finish(connection);
            }
        }
        let moved = slot.answer(&mut scratch, |message, reply| {
            Shared::answer(connection, message, reply).map(<[u8]>::len)
        });
        place.note(moved);
    }
}

/// Where a thread may run.
struct Place {
    anywhere: Option<CpuSet>,
    here: CpuSet,
    is_here: bool,
    little: u32,
}

impl Place {
    fn new(processor: usize) -> Self {
        let anywhere = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        // A processor that this process may not use is not insisted on.
        let may = processor < CpuSet::MAX_CPU
            && anywhere.as_ref().is_some_and(|all| all.is_set(processor));
        if may {
            here.set(processor);
        }
        Self {
            is_here: may && sched_setaffinity(None, &here).is_ok(),
            anywhere: anywhere.filter(|_| may),
            here,
            little: 0,
        }
    }

    /// Moves after a request that moved so many bytes, if that is better.
    fn note(&mut self, bytes: usize) {
        let Some(anywhere) = &self.anywhere else {
            return;
        };
        match (self.is_here, bytes >= MUCH_BYTES) {
            (true, true) => {
                let _ = sched_setaffinity(None, anywhere);
                self.is_here = false;
                self.little = 0;
            }
            (false, true) => self.little = 0,
            (false, false) if self.little >= LITTLE_IN_A_ROW => {
                self.is_here = sched_setaffinity(None, &self.here).is_ok();
                self.little = 0;
            }
            (false, false) => self.little += 1,
            (true, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for nonsense in ["", "-", "3-1", "a", "0-", "0-18446744073709551615"] {
            assert_eq!(count(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_server_has_a_limited_number_of_threads() {
        let taken = Taken::default();
        assert_eq!(taken.take(16), Some(4));
        assert_eq!(taken.take(16), Some(4));
        assert_eq!(taken.take(1), None);
        taken.give_back(32);
        assert_eq!(taken.take(16), Some(2));
        assert_eq!(taken.take(16), None);
        assert_eq!(Taken::default().take(65), None);
        assert_eq!(Taken::default().take(0), None);
    }
}
