use super::*;
use millpond_device::{DeviceError, MemoryDevice, Unwatched};
use millpond_env::sync::{Receiver, Sender, bounded};
use millpond_env::thread;

/// A device that reports each batch and blocks until it is released.
#[derive(Debug)]
struct Held {
    inner: MemoryDevice,
    begun: Sender<usize>,
    go: Receiver<()>,
    depth: usize,
}

impl Device for Held {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(offset_bytes, bytes)
    }
    fn writes_at_once(&self) -> usize {
        self.depth
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.begun.send(requests.len()).unwrap();
        self.go.recv().unwrap();
        self.inner.write_many(requests);
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A queue before a device that blocks.
struct Rig {
    queue: LeafQueue,
    device: Held,
    begins: Receiver<usize>,
    go: Sender<()>,
}

impl Rig {
    fn new(bytes: usize, depth: usize) -> Self {
        let (begun, begins) = bounded(64);
        let (go, gate) = bounded(64);
        Self {
            queue: LeafQueue::default(),
            device: Held {
                inner: MemoryDevice::new(vec![0; bytes]),
                begun,
                go: gate,
                depth,
            },
            begins,
            go,
        }
    }

    fn write(&self, class: IoClass, offset_bytes: u64, length: usize) {
        let bytes = vec![1u8; length];
        let mut requests = [WriteRequest::new(offset_bytes, &bytes)];
        (self.queue).write(&self.device, class, &mut requests, &Unwatched);
        assert_eq!(requests[0].outcome, Ok(()));
    }

    fn wait_for_waiting(&self, count: usize) {
        while self.queue.state.lock().waiting < count {
            std::hint::spin_loop();
        }
        assert!(self.begins.is_empty());
    }

    fn release(&self, count: usize) {
        for _ in 0..count {
            self.go.send(()).unwrap();
        }
    }
}

#[test]
fn background_writes_beside_a_read_start_one_by_one() {
    let rig = Rig::new(1 << 20, 1);
    thread::scope(|scope| {
        let read = rig.queue.enter(IoClass::SyncRead);
        for at in 0..3 {
            let rig = &rig;
            scope.spawn(move || rig.write(IoClass::AsyncWrite, at * 4096, 512));
        }
        assert_eq!(rig.begins.recv().unwrap(), 1);
        rig.wait_for_waiting(2);
        // Foreground requests do not wait.
        drop(rig.queue.enter(IoClass::SyncRead));
        scope.spawn(|| rig.write(IoClass::SyncWrite, 65_536, 512));
        assert_eq!(rig.begins.recv().unwrap(), 1);
        // Without foreground requests the others start.
        rig.release(2);
        drop(read);
        assert_eq!(rig.begins.recv().unwrap(), 1);
        rig.release(2);
    });
    assert_eq!(rig.queue.state.lock().active, [0; IoClass::COUNT]);
}

#[test]
fn foreground_requests_in_a_row_hold_back_writes_in_between() {
    let mut state = State::default();
    let admits = |state: &State, class| state.admits(class, 512, 0);
    state.active[IoClass::AsyncWrite as usize] = 1;
    state.active[IoClass::AsyncRead as usize] = 8;
    assert!(admits(&state, IoClass::AsyncWrite));
    state.begun(IoClass::SyncWrite);
    state.active[IoClass::SyncWrite as usize] = 0;
    // It has ended, but the next may come at any time.
    assert!(!admits(&state, IoClass::AsyncWrite));
    assert!(
        admits(&state, IoClass::AsyncRead),
        "prefetch has its own limits"
    );
    for _ in 0..LINGER {
        assert!(!admits(&state, IoClass::AsyncWrite));
        state.begun(IoClass::AsyncWrite);
        state.active[IoClass::AsyncWrite as usize] = 1;
    }
    assert!(admits(&state, IoClass::AsyncWrite));
}

#[test]
fn more_dirty_data_lets_more_writes_start_beside_reads() {
    assert_eq!(
        [0, 30, 31, 45, 60, 100].map(|percent| between(1, 10, percent)),
        [1, 1, 1, 5, 10, 10]
    );
    let rig = Rig::new(1 << 20, 1);
    rig.queue.set_dirty_percent(45);
    thread::scope(|scope| {
        let _read = rig.queue.enter(IoClass::SyncRead);
        for at in 0..6 {
            let rig = &rig;
            scope.spawn(move || rig.write(IoClass::AsyncWrite, at * 4096, 512));
        }
        for _ in 0..5 {
            rig.begins.recv().unwrap();
        }
        rig.wait_for_waiting(1);
        rig.release(6);
    });
}

#[test]
fn sixteen_background_writes_start_and_another_waits() {
    let rig = Rig::new(1 << 20, 1);
    thread::scope(|scope| {
        for at in 0..17 {
            let rig = &rig;
            scope.spawn(move || rig.write(IoClass::AsyncWrite, at * 4096, 512));
        }
        for _ in 0..16 {
            rig.begins.recv().unwrap();
        }
        rig.wait_for_waiting(1);
        rig.release(17);
    });
}

#[test]
fn background_writes_with_the_device_are_bounded_in_bytes() {
    let rig = Rig::new(64 << 20, 1);
    thread::scope(|scope| {
        for at in 0..5 {
            let rig = &rig;
            scope.spawn(move || rig.write(IoClass::AsyncWrite, at * (4 << 20), 4 << 20));
        }
        for _ in 0..4 {
            rig.begins.recv().unwrap();
        }
        rig.wait_for_waiting(1);
        rig.release(5);
    });
    // A run above the limit starts alone.
    rig.release(1);
    rig.write(IoClass::AsyncWrite, 0, 20 << 20);
    assert_eq!(rig.queue.state.lock().write_bytes, 0);
}

#[test]
fn a_deep_device_gets_many_runs_with_one_call() {
    let rig = Rig::new(1 << 20, 64);
    let bytes = [1u8; 512];
    let scattered = || -> Vec<_> {
        (0..20)
            .map(|at| WriteRequest::new(at * 1024, &bytes))
            .collect()
    };
    rig.release(2);
    let mut requests = scattered();
    (rig.queue).write(&rig.device, IoClass::AsyncWrite, &mut requests, &Unwatched);
    assert!(requests.iter().all(|request| request.outcome == Ok(())));
    let calls = [rig.begins.recv().unwrap(), rig.begins.recv().unwrap()];
    assert_eq!(calls, [16, 4]);
    // Beside a read, one run at a time.
    let _read = rig.queue.enter(IoClass::SyncRead);
    rig.release(20);
    let mut requests = scattered();
    (rig.queue).write(&rig.device, IoClass::AsyncWrite, &mut requests, &Unwatched);
    assert!((0..20).all(|_| rig.begins.recv().unwrap() == 1));
}

#[test]
fn scrub_reads_wait_for_each_other_beside_foreground_reads() {
    let queue = LeafQueue::default();
    let all: Vec<_> = (0..8).map(|_| queue.enter(IoClass::Scrub)).collect();
    assert!(!queue.state.lock().admits(IoClass::Scrub, 0, 0));
    drop(all);
    let _read = queue.enter(IoClass::SyncRead);
    let _one = queue.enter(IoClass::Scrub);
    assert!(!queue.state.lock().admits(IoClass::Scrub, 0, 100));
    assert!(queue.state.lock().admits(IoClass::AsyncRead, 0, 0));
    assert!(queue.state.lock().admits(IoClass::SyncRead, 0, 0));
}

#[test]
fn a_watched_batch_begins_and_ends_run_by_run() {
    struct Recorder(Mutex<Vec<(char, usize, usize)>>);
    impl Watch for Recorder {
        fn begun(&self, requests: Range<usize>) {
            self.0.lock().push(('b', requests.start, requests.end));
        }
        fn ended(&self, requests: Range<usize>) {
            self.0.lock().push(('e', requests.start, requests.end));
        }
    }
    let queue = LeafQueue::default();
    let device = MemoryDevice::new(vec![0; 4096]);
    let bytes: Vec<u8> = (0..=255).collect();
    let mut requests = [
        WriteRequest::new(0, &bytes[..64]),
        WriteRequest::new(64, &bytes[64..128]),
        WriteRequest::new(2048, &bytes[128..]),
        WriteRequest::new(4090, &bytes[..64]),
    ];
    let recorder = Recorder(Mutex::default());
    queue.write(&device, IoClass::AsyncWrite, &mut requests, &recorder);
    let good: Vec<_> = requests.iter().map(|r| r.outcome.is_ok()).collect();
    assert_eq!(good, [true, true, true, false]);
    assert_eq!(device.to_vec()[..128], bytes[..128]);
    let recorder = recorder.0.into_inner();
    let expected = [('b', 0, 2), ('e', 0, 2), ('b', 2, 3), ('e', 2, 3)];
    assert_eq!(recorder[..4], expected);
}

#[test]
fn runs_are_short_beside_foreground_requests() {
    let bytes = vec![1u8; 128 << 10];
    let piece = bytes.len() as u64;
    let requests: Vec<_> = (0..9u64)
        .map(|at| WriteRequest::new(at * piece, &bytes))
        .collect();
    let counts = |most| -> Vec<usize> { runs_of(&requests, most).map(|run| run.0).collect() };
    assert_eq!(counts(u64::MAX), [8, 1]);
    assert_eq!(counts(RUN_BYTES_BESIDE_MAX), [4, 4, 1]);
    // A request is not cut.
    assert_eq!(counts(1), [1; 9]);
}
