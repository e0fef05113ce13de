//! A count and a digest of all requests to the disks of a world.

use millpond_env::sync::Arc;
use std::fmt;

/// The number of requests, and a hash over all of them in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trace {
    /// Requests of all kinds, including failed ones.
    pub requests: u64,
    /// A hash over kind, disk, offset, length, bytes and outcome of each request.
    pub digest: u64,
}

impl std::ops::AddAssign for Trace {
    /// Appends a trace.
    fn add_assign(&mut self, next: Self) {
        self.requests += next.requests;
        self.digest = mix(self.digest, next.digest);
    }
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush of the whole disk.
    Flush,
    /// A discard of a range.
    Discard,
    /// A write that is durable when it completes.
    DurableWrite,
}

/// A request as it enters a [`Trace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The kind.
    pub kind: RequestKind,
    /// The index of the disk in its world.
    pub disk: usize,
    /// The offset in bytes.
    pub offset_bytes: u64,
    /// The length in bytes.
    pub length_bytes: u64,
    /// A hash of the bytes to write, or of the bytes read.
    pub hash: u64,
    /// Whether the disk reported success.
    pub is_ok: bool,
    /// The simulated time of its start, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
}

type Watcher = Arc<dyn Fn(&Request) + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Tracer {
    trace: Trace,
    watcher: Option<Watcher>,
}

impl Tracer {
    pub(crate) fn trace(&self) -> Trace {
        self.trace
    }
    pub(crate) fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }
    pub(crate) fn note(&mut self, request: &Request) {
        self.trace.requests += 1;
        let words = [
            request.kind as u64,
            request.disk as u64,
            request.offset_bytes,
            request.length_bytes,
            request.hash,
            u64::from(request.is_ok),
        ];
        for word in words {
            self.trace.digest = mix(self.trace.digest, word);
        }
        if let Some(watcher) = &self.watcher {
            watcher(request);
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            disk,
            offset_bytes,
            length_bytes,
            hash,
            is_ok,
            at_ns,
        } = self;
        let outcome = if *is_ok { "" } else { " failed" };
        write!(
            f,
            "{kind:?} {disk} {offset_bytes} {length_bytes} {hash:016x} {at_ns}{outcome}"
        )
    }
}

/// A fast hash; not cryptographic.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        sum = mix(sum, word.try_into().map_or(0, u64::from_le_bytes));
    }
    words
        .remainder()
        .iter()
        .fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

#[cfg(test)]
mod tests {
    use crate::{PowerCut, Seed, World};
    use millpond_device::Device;
    use millpond_env::sync::{Arc, Mutex};

    #[test]
    fn traces_differ_by_order_offset_bytes_and_outcome() {
        let trace = |requests: &dyn Fn(&World)| {
            let world = World::new(1);
            let _ = (world.disk(1 << 20, 512), world.disk(1 << 20, 512));
            requests(&world);
            world.trace()
        };
        let write = |world: &World, disk: usize, at: u64, byte: u8| {
            world.disks()[disk].write(at, &[byte; 512]).unwrap();
        };
        let traces = [
            trace(&|_| {}),
            trace(&|world| write(world, 0, 0, 1)),
            trace(&|world| write(world, 1, 0, 1)),
            trace(&|world| write(world, 0, 512, 1)),
            trace(&|world| write(world, 0, 0, 2)),
            trace(&|world| world.disks()[0].discard(0, 512).unwrap()),
            trace(&|world| world.disks()[0].flush().unwrap()),
            trace(&|world| world.disks()[0].read(0, &mut [0; 512]).unwrap()),
            trace(&|world| {
                world.disks()[0].set_absent(true);
                world.disks()[0].read(0, &mut [0; 512]).unwrap_err();
            }),
            trace(&|world| {
                write(world, 0, 0, 1);
                write(world, 0, 512, 1);
            }),
            trace(&|world| {
                write(world, 0, 512, 1);
                write(world, 0, 0, 1);
            }),
        ];
        for (number, one) in traces.iter().enumerate() {
            for other in &traces[..number] {
                assert_ne!(one, other, "{number}");
            }
        }
        assert_eq!(traces[1], trace(&|world| write(world, 0, 0, 1)));
    }

    #[test]
    fn traces_and_watchers_continue_after_a_power_cut() {
        let seen: Arc<Mutex<_>> = Arc::new(Mutex::new(vec![]));
        let world = World::new(1);
        let disk = world.disk(1 << 20, 512);
        let list = Arc::clone(&seen);
        world.watch(move |request| list.lock().push(request.to_string()));
        disk.write(0, &[1; 512]).unwrap();
        let world = world.reborn(1, &PowerCut::Torn(Seed::new(1)));
        let before = world.trace();
        world.disks()[0].flush().unwrap();
        assert_eq!((before.requests, world.trace().requests), (1, 2));
        assert_eq!(seen.lock().len(), 2);
        assert!(
            seen.lock()[1].starts_with("Flush 0 0 0"),
            "{:?}",
            seen.lock()
        );
    }
}
