//! Priority of reads over large batches of writes.

use crate::batch::Located;
use crate::watch::Part;
use crate::{Device, DeviceError, ReadRequest, Unwatched, Watch, WriteRequest};
use millpond_env::rank;
use millpond_env::sync::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;

/// Adjacent writes of a batch are sent to the device together, up to this many bytes.
pub const RUN_BYTES_MAX: u64 = 1 << 20;
/// Limit of batch runs in flight.
const RUNS_MAX: usize = 16;
/// Limit of their total bytes, unless a single run is larger.
const RUNS_BYTES_MAX: u64 = 4 << 20;
/// Limit of runs while a read or a single write is in flight.
const RUNS_MAX_BESIDE_URGENT: usize = 1;

/// A device whose write batches ([`Device::write_many`]) yield to all other requests.
///
/// Reads and single writes are *urgent* and start at once. A batch is cut into runs of adjacent writes of
/// at most 1 MiB; a longer single request is a run by itself. A run starts only if fewer than 16 runs are
/// in flight, and they have at most 4 MiB together with it. While an urgent request is in flight, a run
/// starts only if no other run is in flight. An urgent request therefore finds at most 4 MiB of batches
/// ahead of it, and a batch always makes progress.
///
/// A device that works on several runs in parallel ([`Device::writes_at_once`]) gets all runs that may
/// start in one call. Flushes and discards pass through.
pub struct QueuedDevice {
    inner: Arc<dyn Device>,
    gate: Mutex<Gate, rank::Leaf>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    urgent: usize,
    runs: usize,
    /// Total of all runs in flight.
    bytes: u64,
    waiting: usize,
    stats: QueueStats,
}

/// Statistics of a [`QueuedDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Reads and single writes.
    pub urgent: u64,
    /// Writes in batches.
    pub batched: u64,
    /// Runs that these writes were sent in.
    pub runs: u64,
    /// Runs that had to wait.
    pub delayed: u64,
    /// The largest number of runs in flight.
    pub runs_at_once: u64,
}

impl QueuedDevice {
    /// Wraps `inner`. Other users should not access `inner` directly at the same time.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self {
            inner,
            gate: Mutex::new(Gate::default()),
            changed: Condvar::new(),
        }
    }

    /// The statistics so far.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.gate.lock().stats
    }

    fn urgent<T>(&self, request: impl FnOnce() -> T) -> T {
        let _ticket = Ticket::urgent(self);
        request()
    }
}

/// A request in flight. Its drop ends the accounting, even if the device panics.
pub(crate) struct Ticket<'a> {
    queue: &'a QueuedDevice,
    is_urgent: bool,
    /// For a batch: the number of runs and their bytes.
    runs: usize,
    bytes: u64,
}

impl<'a> Ticket<'a> {
    fn urgent(queue: &'a QueuedDevice) -> Self {
        let mut gate = queue.gate.lock();
        gate.urgent += 1;
        gate.stats.urgent += 1;
        Self {
            queue,
            is_urgent: true,
            runs: 0,
            bytes: 0,
        }
    }

    /// Waits until a run may start. Returns how many of the requests may start now, in at most `at_once`
    /// runs.
    fn runs(
        queue: &'a QueuedDevice,
        requests: &[WriteRequest<'_>],
        at_once: usize,
    ) -> (Self, usize) {
        let mut left = requests;
        let (mut count, mut bytes) = next_run(left);
        let mut gate = queue.gate.lock();
        let mut was_delayed = false;
        while !gate.admits(bytes) {
            was_delayed = true;
            gate.waiting += 1;
            queue.changed.wait(&mut gate);
            gate.waiting -= 1;
        }
        let mut ticket = Self {
            queue,
            is_urgent: false,
            runs: 0,
            bytes: 0,
        };
        loop {
            gate.runs += 1;
            gate.bytes = gate.bytes.saturating_add(bytes);
            ticket.runs += 1;
            ticket.bytes = ticket.bytes.saturating_add(bytes);
            left = left.get(count..).unwrap_or_default();
            if left.is_empty() || ticket.runs >= at_once {
                break;
            }
            (count, bytes) = next_run(left);
            if !gate.admits(bytes) {
                break;
            }
        }
        let taken = requests.len() - left.len();
        let under_way = gate.runs as u64;
        gate.stats.runs += ticket.runs as u64;
        gate.stats.batched += taken as u64;
        gate.stats.delayed += u64::from(was_delayed);
        gate.stats.runs_at_once = gate.stats.runs_at_once.max(under_way);
        (ticket, taken)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut gate = self.queue.gate.lock();
        if self.is_urgent {
            gate.urgent -= 1;
        }
        gate.runs -= self.runs;
        gate.bytes = gate.bytes.saturating_sub(self.bytes);
        if gate.waiting > 0 && gate.admits(0) {
            self.queue.changed.notify_all();
        }
    }
}

impl Gate {
    /// Whether a run of this size may start.
    fn admits(&self, bytes: u64) -> bool {
        if self.runs == 0 {
            return true;
        }
        let is_within = self.bytes.saturating_add(bytes) <= RUNS_BYTES_MAX;
        self.runs < self.runs_max() && is_within
    }

    fn runs_max(&self) -> usize {
        if self.urgent > 0 {
            RUNS_MAX_BESIDE_URGENT
        } else {
            RUNS_MAX
        }
    }
}

impl fmt::Debug for QueuedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuedDevice").field(&self.inner).finish()
    }
}

impl Device for QueuedDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.urgent(|| self.inner.read(offset_bytes, buffer))
    }
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        room: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        self.urgent(|| self.inner.read_into(offset_bytes, length_bytes, room))
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.urgent(|| self.inner.read_many(requests));
    }
    fn locate(&self, offset_bytes: u64, length_bytes: u64) -> Option<Located<'_>> {
        let mut located = self.inner.locate(offset_bytes, length_bytes)?;
        located.tickets.push(Ticket::urgent(self));
        Some(located)
    }
    fn reads_at_once(&self) -> bool {
        self.inner.reads_at_once()
    }
    fn writes_at_once(&self) -> usize {
        self.inner.writes_at_once().min(RUNS_MAX)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.urgent(|| self.inner.write(offset_bytes, bytes))
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.write_many_watched(requests, &Unwatched);
    }
    fn write_many_watched(&self, mut requests: &mut [WriteRequest<'_>], watch: &dyn Watch) {
        let at_once = self.inner.writes_at_once();
        let mut start = 0;
        while !requests.is_empty() {
            let (ticket, count) = Ticket::runs(self, requests, at_once);
            let (runs, rest) = requests.split_at_mut(count);
            let part = Part {
                whole: watch,
                start,
            };
            self.inner.write_many_watched(runs, &part);
            drop(ticket);
            start += count;
            requests = rest;
        }
    }
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        self.urgent(|| self.inner.write_durable(requests));
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn write_back_errors(&self) -> u64 {
        self.inner.write_back_errors()
    }
    fn is_deleted(&self) -> bool {
        self.inner.is_deleted()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// The number of requests, from the first, that form one run, and their bytes; at least 1.
fn next_run(requests: &[WriteRequest<'_>]) -> (usize, u64) {
    let Some(first) = requests.first() else {
        return (1, 0);
    };
    let pairs = requests.iter().zip(requests.iter().skip(1));
    let joined = pairs.take_while(|(one, next)| {
        one.end_bytes() == next.offset_bytes
            && next.end_bytes().saturating_sub(first.offset_bytes) <= RUN_BYTES_MAX
    });
    let count = joined.count() + 1;
    let lengths = requests.iter().take(count);
    let bytes = lengths.map(|request| request.bytes.len() as u64).sum();
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use millpond_env::sync::bounded;
    use millpond_env::thread;

    /// A device that reports each call and blocks until it is released.
    #[derive(Debug)]
    struct Held {
        inner: MemoryDevice,
        begun: millpond_env::sync::Sender<(char, usize)>,
        go: millpond_env::sync::Receiver<()>,
        depth: usize,
    }

    impl Held {
        fn new(
            bytes: usize,
            begun: millpond_env::sync::Sender<(char, usize)>,
            go: millpond_env::sync::Receiver<()>,
        ) -> Self {
            Self {
                inner: MemoryDevice::new(vec![0; bytes]),
                begun,
                go,
                depth: 1,
            }
        }

        fn pause(&self, what: char, requests: usize) {
            self.begun.send((what, requests)).unwrap();
            self.go.recv().unwrap();
        }
    }

    impl Device for Held {
        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }
        fn sector_bytes(&self) -> u32 {
            512
        }
        fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
            self.pause('r', 1);
            self.inner.read(offset_bytes, buffer)
        }
        fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
            self.pause('w', 1);
            self.inner.write(offset_bytes, bytes)
        }
        fn writes_at_once(&self) -> usize {
            self.depth
        }
        fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
            self.pause('b', requests.len());
            self.inner.write_many(requests);
        }
        fn flush(&self) -> Result<(), DeviceError> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn batch(device: &dyn Device, offset: u64) {
        let bytes = [1u8; 512];
        let mut requests = [WriteRequest::new(offset, &bytes)];
        device.write_many(&mut requests);
        assert_eq!(requests[0].outcome, Ok(()));
    }

    #[test]
    fn runs_are_neighbours_up_to_a_mebibyte() {
        let bytes = vec![0u8; 3 << 20];
        let of = |parts: &[(u64, usize)]| {
            let requests: Vec<_> = parts
                .iter()
                .map(|(offset, length)| WriteRequest::new(*offset, &bytes[..*length]))
                .collect();
            next_run(&requests).0
        };
        assert_eq!(of(&[(0, 512), (512, 512), (1024, 512), (2048, 512)]), 3);
        let half = 512 << 10;
        assert_eq!(of(&[(0, half), (half as u64, half), (1 << 20, 512)]), 2);
        assert_eq!(of(&[(0, 3 << 20), (3 << 20, 512)]), 1);
    }

    #[test]
    fn during_a_read_only_one_run_of_writes_is_submitted() {
        let (begun, begins) = bounded(16);
        let (go, gate) = bounded(16);
        let queue = QueuedDevice::new(Arc::new(Held::new(1 << 20, begun, gate)));
        thread::scope(|scope| {
            scope.spawn(|| queue.read(0, &mut [0; 512]).unwrap());
            assert_eq!(begins.recv().unwrap(), ('r', 1));
            for at in 0..3 {
                let queue = &queue;
                scope.spawn(move || batch(queue, at * 4096));
            }
            assert_eq!(begins.recv().unwrap(), ('b', 1));
            // The two others wait at the gate. No other request can have begun.
            while queue.gate.lock().waiting < 2 {
                std::hint::spin_loop();
            }
            assert!(begins.is_empty());
            // A second read does not wait.
            scope.spawn(|| queue.read(0, &mut [0; 512]).unwrap());
            assert_eq!(begins.recv().unwrap(), ('r', 1));
            for _ in 0..5 {
                go.send(()).unwrap();
            }
        });
        let stats = queue.stats();
        assert_eq!((stats.urgent, stats.runs, stats.delayed), (2, 3, 2));
    }

    #[test]
    fn without_reads_sixteen_runs_are_under_way_and_another_waits() {
        let (begun, begins) = bounded(32);
        let (go, gate) = bounded(32);
        let queue = QueuedDevice::new(Arc::new(Held::new(1 << 20, begun, gate)));
        thread::scope(|scope| {
            for at in 0..17 {
                let queue = &queue;
                scope.spawn(move || batch(queue, at * 4096));
            }
            for _ in 0..16 {
                begins.recv().unwrap();
            }
            while queue.gate.lock().waiting < 1 {
                std::hint::spin_loop();
            }
            assert!(begins.is_empty());
            for _ in 0..17 {
                go.send(()).unwrap();
            }
        });
        let stats = queue.stats();
        assert_eq!((stats.runs, stats.runs_at_once), (17, 16));
    }

    #[test]
    fn runs_under_way_have_four_mebibytes_and_another_waits() {
        let (begun, begins) = bounded(16);
        let (go, gate) = bounded(16);
        let queue = QueuedDevice::new(Arc::new(Held::new(16 << 20, begun, gate)));
        let bytes = vec![1u8; 1 << 20];
        thread::scope(|scope| {
            for at in 0..5 {
                let (queue, bytes) = (&queue, &bytes);
                scope.spawn(move || {
                    queue.write_many(&mut [WriteRequest::new(at << 20, bytes)]);
                });
            }
            for _ in 0..4 {
                begins.recv().unwrap();
            }
            while queue.gate.lock().waiting < 1 {
                std::hint::spin_loop();
            }
            assert!(begins.is_empty());
            for _ in 0..5 {
                go.send(()).unwrap();
            }
        });
        let stats = queue.stats();
        assert_eq!((stats.runs, stats.runs_at_once), (5, 4));
        // A run above the limit starts alone.
        let many = vec![1u8; 6 << 20];
        go.send(()).unwrap();
        let mut requests = [WriteRequest::new(0, &many)];
        queue.write_many(&mut requests);
        assert_eq!(requests[0].outcome, Ok(()));
    }

    #[test]
    fn a_deep_queue_submits_many_runs_with_one_call() {
        let (begun, begins) = bounded(64);
        let (go, gate) = bounded(64);
        let mut held = Held::new(1 << 20, begun, gate);
        held.depth = 64;
        let queue = QueuedDevice::new(Arc::new(held));
        let bytes = [1u8; 512];
        let scattered = || -> Vec<_> {
            (0..20)
                .map(|at| WriteRequest::new(at * 1024, &bytes))
                .collect()
        };
        for _ in 0..2 {
            go.send(()).unwrap();
        }
        let mut requests = scattered();
        queue.write_many(&mut requests);
        assert!(requests.iter().all(|request| request.outcome == Ok(())));
        let calls = [begins.recv().unwrap(), begins.recv().unwrap()];
        assert_eq!(calls, [('b', 16), ('b', 4)]);
        thread::scope(|scope| {
            scope.spawn(|| queue.read(0, &mut [0; 512]).unwrap());
            assert_eq!(begins.recv().unwrap(), ('r', 1));
            scope.spawn(|| queue.write_many(&mut scattered()));
            // While the read is in flight, one run of the batch starts. It takes a token before the read
            // ends.
            assert_eq!(begins.recv().unwrap(), ('b', 1));
            for _ in 0..22 {
                go.send(()).unwrap();
            }
        });
        assert_eq!(queue.gate.lock().runs, 0);
        assert_eq!(queue.gate.lock().bytes, 0);
    }

    #[test]
    fn a_watched_batch_begins_and_ends_run_by_run() {
        struct Recorder(Mutex<Vec<(char, usize, usize)>>);
        impl Watch for Recorder {
            fn begun(&self, requests: std::ops::Range<usize>) {
                self.0.lock().push(('b', requests.start, requests.end));
            }
            fn ended(&self, requests: std::ops::Range<usize>) {
                self.0.lock().push(('e', requests.start, requests.end));
            }
        }
        let queue = QueuedDevice::new(Arc::new(MemoryDevice::new(vec![0; 4096])));
        let bytes = [1u8; 512];
        let mut requests = [0, 512, 2048].map(|at| WriteRequest::new(at, &bytes));
        let recorder = Recorder(Mutex::default());
        queue.write_many_watched(&mut requests, &recorder);
        assert!(requests.iter().all(|request| request.outcome == Ok(())));
        let recorder = recorder.0.into_inner();
        assert_eq!(
            recorder,
            [('b', 0, 2), ('e', 0, 2), ('b', 2, 3), ('e', 2, 3)]
        );
    }

    #[test]
    fn neighbours_of_a_batch_reach_the_device_together() {
        let inner = Arc::new(MemoryDevice::new(vec![0; 4096]));
        let queue = QueuedDevice::new(Arc::clone(&inner) as Arc<dyn Device>);
        let bytes: Vec<u8> = (0..=255).collect();
        let mut requests = [
            WriteRequest::new(0, &bytes[..64]),
            WriteRequest::new(64, &bytes[64..128]),
            WriteRequest::new(512, &bytes[128..]),
            WriteRequest::new(4090, &bytes[..64]),
        ];
        queue.write_many(&mut requests);
        let outcomes: Vec<_> = requests.iter().map(|r| r.outcome.is_ok()).collect();
        assert_eq!(outcomes, [true, true, true, false]);
        assert_eq!(inner.to_vec()[..128], bytes[..128]);
        assert_eq!(inner.to_vec()[512..640], bytes[128..]);
        let stats = queue.stats();
        assert_eq!((stats.batched, stats.runs, stats.delayed), (4, 3, 0));
        assert_eq!(queue.read_vec(64, 4).unwrap(), [64, 65, 66, 67]);
    }
}
