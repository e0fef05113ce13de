//! Reads before floods of writes.

use crate::{Device, DeviceError, ReadRequest, WriteRequest};
use millpond_env::sync::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;

/// Neighbours of a batch of writes are given to the device together up to this many bytes.
pub const RUN_BYTES_MAX: u64 = 1 << 20;
/// Runs of batches that the device works on at once.
const RUNS_MAX: usize = 4;
/// The same while somebody waits for a read or a single write.
const RUNS_MAX_BESIDE_URGENT: usize = 1;

/// A device whose batches of writes ([`Device::write_many`]) give way to everything else.
///
/// The rule: reads and single writes are *urgent* and start at once. A batch is cut into runs of
/// neighbours of at most 1 MiB (a longer single request is a run by itself), and a run starts only
/// while fewer than 4 runs are under way, or fewer than 1 while anything urgent is under way. So an
/// urgent request finds at most 4 MiB of batches before it, and a batch always moves on. Flushes and
/// discards pass through.
pub struct QueuedDevice {
    inner: Arc<dyn Device>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    urgent: usize,
    runs: usize,
    waiting: usize,
    figures: QueueFigures,
}

/// What went through a [`QueuedDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueFigures {
    /// Reads and single writes.
    pub urgent: u64,
    /// Writes of batches.
    pub batched: u64,
    /// Runs that they were given to the device in.
    pub runs: u64,
    /// Runs that had to wait.
    pub delayed: u64,
    /// The most runs that were under way at once.
    pub runs_at_once: u64,
}

impl QueuedDevice {
    /// Stands before `inner`, which should not be used by another way at the same time.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self {
            inner,
            gate: Mutex::new(Gate::default()),
            changed: Condvar::new(),
        }
    }

    /// What went through so far.
    #[must_use]
    pub fn figures(&self) -> QueueFigures {
        self.gate.lock().figures
    }

    fn urgent<T>(&self, request: impl FnOnce() -> T) -> T {
        let _ticket = Ticket::urgent(self);
        request()
    }
}

/// One request under way; its end is noted even if the device panics.
struct Ticket<'a> {
    queue: &'a QueuedDevice,
    is_urgent: bool,
}

impl<'a> Ticket<'a> {
    fn urgent(queue: &'a QueuedDevice) -> Self {
        let mut gate = queue.gate.lock();
        gate.urgent += 1;
        gate.figures.urgent += 1;
        Self {
            queue,
            is_urgent: true,
        }
    }

    /// Waits until a run may start.
    fn run(queue: &'a QueuedDevice, requests: usize) -> Self {
        let mut gate = queue.gate.lock();
        let mut was_delayed = false;
        while gate.runs >= gate.runs_max() {
            was_delayed = true;
            gate.waiting += 1;
            queue.changed.wait(&mut gate);
            gate.waiting -= 1;
        }
        gate.runs += 1;
        let under_way = gate.runs as u64;
        gate.figures.runs += 1;
        gate.figures.batched += requests as u64;
        gate.figures.delayed += u64::from(was_delayed);
        gate.figures.runs_at_once = gate.figures.runs_at_once.max(under_way);
        Self {
            queue,
            is_urgent: false,
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut gate = self.queue.gate.lock();
        if self.is_urgent {
            gate.urgent -= 1;
        } else {
            gate.runs -= 1;
        }
        if gate.waiting > 0 && gate.runs < gate.runs_max() {
            self.queue.changed.notify_all();
        }
    }
}

impl Gate {
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
    fn read_vec(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        self.urgent(|| self.inner.read_vec(offset_bytes, length_bytes))
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.urgent(|| self.inner.read_many(requests));
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.urgent(|| self.inner.write(offset_bytes, bytes))
    }
    fn write_many(&self, mut requests: &mut [WriteRequest<'_>]) {
        while !requests.is_empty() {
            let (run, rest) = requests.split_at_mut(run_length(requests));
            let ticket = Ticket::run(self, run.len());
            self.inner.write_many(run);
            drop(ticket);
            requests = rest;
        }
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

/// How many requests from the first on are one run; at least 1.
fn run_length(requests: &[WriteRequest<'_>]) -> usize {
    let Some(first) = requests.first() else {
        return 1;
    };
    let pairs = requests.iter().zip(requests.iter().skip(1));
    let joined = pairs.take_while(|(one, next)| {
        one.end_bytes() == next.offset_bytes
            && next.end_bytes().saturating_sub(first.offset_bytes) <= RUN_BYTES_MAX
    });
    joined.count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use millpond_env::sync::bounded;
    use millpond_env::thread;

    /// A device that tells of each call and waits to be let go.
    #[derive(Debug)]
    struct Held {
        inner: MemoryDevice,
        begun: millpond_env::sync::Sender<(char, usize)>,
        go: millpond_env::sync::Receiver<()>,
    }

    impl Held {
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
            run_length(&requests)
        };
        assert_eq!(of(&[(0, 512), (512, 512), (1024, 512), (2048, 512)]), 3);
        let half = 512 << 10;
        assert_eq!(of(&[(0, half), (half as u64, half), (1 << 20, 512)]), 2);
        assert_eq!(of(&[(0, 3 << 20), (3 << 20, 512)]), 1);
    }

    #[test]
    fn while_a_read_is_under_way_one_run_of_writes_goes_on_and_others_wait() {
        let (begun, begins) = bounded(16);
        let (go, gate) = bounded(16);
        let queue = QueuedDevice::new(Arc::new(Held {
            inner: MemoryDevice::new(vec![0; 1 << 20]),
            begun,
            go: gate,
        }));
        thread::scope(|scope| {
            scope.spawn(|| queue.read(0, &mut [0; 512]).unwrap());
            assert_eq!(begins.recv().unwrap(), ('r', 1));
            for at in 0..3 {
                let queue = &queue;
                scope.spawn(move || batch(queue, at * 4096));
            }
            assert_eq!(begins.recv().unwrap(), ('b', 1));
            // The two others stand at the gate; nothing else can have begun.
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
        let figures = queue.figures();
        assert_eq!((figures.urgent, figures.runs, figures.delayed), (2, 3, 2));
    }

    #[test]
    fn without_reads_four_runs_are_under_way_and_a_fifth_waits() {
        let (begun, begins) = bounded(16);
        let (go, gate) = bounded(16);
        let queue = QueuedDevice::new(Arc::new(Held {
            inner: MemoryDevice::new(vec![0; 1 << 20]),
            begun,
            go: gate,
        }));
        thread::scope(|scope| {
            for at in 0..5 {
                let queue = &queue;
                scope.spawn(move || batch(queue, at * 4096));
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
        let figures = queue.figures();
        assert_eq!((figures.runs, figures.runs_at_once), (5, 4));
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
        let figures = queue.figures();
        assert_eq!((figures.batched, figures.runs, figures.delayed), (4, 3, 0));
        assert_eq!(queue.read_vec(64, 4).unwrap(), [64, 65, 66, 67]);
    }
}
