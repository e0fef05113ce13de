//! The threads that serve a mounted file system through io_uring.
//!
//! The kernel has one queue per processor and requires that all of them are served. Each queue has a few
//! threads, each with one [`Slot`]. A request goes to the thread that answered last, so the others sleep
//! until several requests are in flight at once. The threads stay on their queue's processor, where the
//! program waits for the reply: waking a thread on the same processor is far cheaper than waking another
//! processor. Only a thread that moves much data leaves it, because copying can then run in parallel with the
//! program.

use crate::server::{Connection, Shared};
use crate::transport::{Next, Slot};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::thread::{self, JoinHandle};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The number of requests of one queue that are served at once, if [`THREADS_MAX`] allows it.
const THREADS_PER_QUEUE: usize = 4;
/// With fewer threads, one slow request would block all other requests of its processor.
const THREADS_PER_QUEUE_MIN: usize = 2;
/// The most such threads of one server, for all its mounted file systems. Each has a slot of 1 MiB. File
/// systems beyond the limit are served through `/dev/fuse`.
const THREADS_MAX: usize = 128;
/// The page size on which the negotiated number of pages per request is based, in bytes.
const PAGE_BYTES_MAX: usize = 4096;
/// Requests up to this size are copied. For longer requests, this is the size limit of the reply.
const SCRATCH_BYTES: usize = 16384;
/// A thread leaves its processor when one request moves this many bytes. It returns after this many
/// consecutive requests that move less.
const MUCH_BYTES: usize = 65536;
const LITTLE_IN_A_ROW: u32 = 16;

/// Whether the threads of a connection start serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// The features are not negotiated with the kernel yet.
    Closed,
    Open,
    Never,
}

/// The io_uring threads of one connection.
#[derive(Debug)]
pub(crate) struct Rings {
    gate: Mutex<Gate, rank::Leaf>,
    decided: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>, rank::Leaf>,
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

/// The number of io_uring threads of a server.
#[derive(Debug, Default)]
pub(crate) struct ThreadBudget(AtomicUsize);

impl ThreadBudget {
    /// Takes the same number of threads for each of `queues` queues, up to the limits. Returns the number per
    /// queue, or `None` if too few are left.
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

/// Whether root has enabled io_uring in the kernel's FUSE.
fn is_enabled() -> bool {
    let text = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// The number of the kernel's queues, which is the number of possible processors.
fn queues() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    count(text.trim())
}

/// Counts the numbers in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let each = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    each.sum()
}

impl Rings {
    /// Starts the threads of a connection that is not mounted yet. They wait for [`Rings::decide`].
    ///
    /// Returns whether they were started. If not, io_uring must not be negotiated.
    pub fn prepare(shared: &Arc<Shared>, connection: &Arc<Connection>) -> bool {
        // The kernel requires space for the negotiated number of pages per request. With larger pages, a slot
        // is too small for that.
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

    /// Lets the threads start serving, or end. Only the first call takes effect.
    pub fn decide(&self, begins: bool) {
        let mut gate = self.gate.lock();
        if *gate == Gate::Closed {
            *gate = if begins { Gate::Open } else { Gate::Never };
        }
        drop(gate);
        self.decided.notify_all();
    }

    /// Records that the kernel rejected io_uring after all.
    fn forgo(&self) {
        *self.gate.lock() = Gate::Never;
    }

    /// Whether requests come through io_uring.
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

/// The main function of each thread.
fn serve(shared: &Shared, connection: &Connection, mut slot: Slot) {
    let mut scratch = vec![0; SCRATCH_BYTES];
    let mut affinity = Affinity::new(usize::from(slot.queue()));
    let mut is_registered = false;
    loop {
        match slot.next(connection.channel.fd(), shared.stop.as_fd()) {
            Next::Request => is_registered = true,
            Next::Stopped => return,
            // Root disabled it after it was offered, so the kernel did not agree. Requests come through the
            // device.
            Next::Over(Errno::OPNOTSUPP) if !is_registered => return connection.rings.forgo(),
            Next::Over(error) => {
                // In the excluded cases the connection is over, and the mount point may hold another mount by
                // now.
                if !matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) {
                    connection.cut_off();
                }
                return shared.finish(connection);
            }
        }
        let moved = slot.answer(&mut scratch, |message, reply| {
            Shared::answer(connection, message, reply).map(<[u8]>::len)
        });
        affinity.note(moved);
    }
}

/// The processors on which a thread may run.
struct Affinity {
    anywhere: Option<CpuSet>,
    here: CpuSet,
    is_here: bool,
    little: u32,
}

impl Affinity {
    fn new(processor: usize) -> Self {
        let anywhere = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        // Ignore a processor that this process may not use.
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

    /// Changes the affinity after a request that moved this many bytes, if that helps.
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
        let taken = ThreadBudget::default();
        assert_eq!(taken.take(16), Some(4));
        assert_eq!(taken.take(16), Some(4));
        assert_eq!(taken.take(1), None);
        taken.give_back(32);
        assert_eq!(taken.take(16), Some(2));
        assert_eq!(taken.take(16), None);
        assert_eq!(ThreadBudget::default().take(65), None);
        assert_eq!(ThreadBudget::default().take(0), None);
    }
}
