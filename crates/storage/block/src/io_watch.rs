//! Counting requests while they queue and while the disk has them.

use crate::io_stats::{IoClass, IoClock, LeafIoStats, Span};
use crate::leaf_counters::LeafCounters;
use millpond_device::Watch;
use millpond_env::sync::Arc;
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// A batch of reads of any leaves.
///
/// Reading the clock costs half as much as the counting. So it is read when the batch is submitted and
/// whenever a request completes; a request that starts uses the latest reading.
pub(crate) struct WatchedReads<'a> {
    clock: &'a IoClock,
    class: IoClass,
    asked_ns: u64,
    /// The latest reading of the clock.
    now_ns: Cell<u64>,
    /// Most batches have one read, which never shows up as waiting.
    first: Option<WatchedRead<'a>>,
    others: Vec<WatchedRead<'a>>,
}

struct WatchedRead<'a> {
    counters: &'a LeafCounters,
    length_bytes: u64,
    state: Cell<ReadState>,
}

#[derive(Debug, Clone, Copy)]
enum ReadState {
    Waiting,
    WithDisk { begun_ns: u64 },
    Back { begun_ns: u64, ended_ns: u64 },
}

impl<'a> WatchedReads<'a> {
    /// Starts a batch of reads, each given by its leaf's counters and its length in bytes.
    pub(crate) fn new(
        clock: &'a IoClock,
        class: IoClass,
        reads: impl Iterator<Item = (&'a LeafCounters, u64)>,
    ) -> Self {
        let mut reads = reads.map(|(counters, length_bytes)| WatchedRead {
            counters,
            length_bytes,
            state: Cell::new(ReadState::Waiting),
        });
        let asked_ns = clock.now_ns();
        let watched = Self {
            asked_ns,
            now_ns: Cell::new(asked_ns),
            clock,
            class,
            first: reads.next(),
            others: reads.collect(),
        };
        if watched.counts_waiting() {
            watched.each(0..usize::MAX, |read| {
                read.counters.waits().queued(class, 1);
            });
        }
        watched
    }

    fn counts_waiting(&self) -> bool {
        !self.others.is_empty()
    }

    fn each(&self, requests: Range<usize>, act: impl Fn(&WatchedRead<'a>)) {
        if requests.start == 0 && requests.end > 0 {
            self.first.iter().for_each(&act);
        }
        let others = requests.start.saturating_sub(1)..requests.end.saturating_sub(1);
        let end = others.end.min(self.others.len());
        let others = self.others.get(others.start..end);
        others.unwrap_or_default().iter().for_each(act);
    }
}

impl Watch for WatchedReads<'_> {
    fn begun(&self, requests: Range<usize>) {
        let begun_ns = self.now_ns.get();
        self.each(requests, |read| {
            let waits = read.counters.waits();
            // A request that the system returned undone and that starts again is no longer counted as
            // waiting.
            if matches!(read.state.get(), ReadState::Waiting) && self.counts_waiting() {
                waits.unqueued(self.class, 1);
            }
            waits.activated(self.class, 1, begun_ns);
            read.state.set(ReadState::WithDisk { begun_ns });
        });
    }

    fn ended(&self, requests: Range<usize>) {
        let ended_ns = self.clock.now_ns();
        self.now_ns.set(ended_ns);
        self.each(requests, |read| {
            if let ReadState::WithDisk { begun_ns } = read.state.get() {
                (read.counters.waits()).done(self.class, 1, Some(ended_ns));
                read.state.set(ReadState::Back { begun_ns, ended_ns });
            }
        });
    }
}

impl Drop for WatchedReads<'_> {
    /// Counts completed reads, and drops the others, no matter what became of them.
    fn drop(&mut self) {
        self.each(0..usize::MAX, |read| {
            let waits = read.counters.waits();
            match read.state.get() {
                ReadState::Waiting if !self.counts_waiting() => {}
                ReadState::Waiting => waits.unqueued(self.class, 1),
                ReadState::WithDisk { .. } => waits.done(self.class, 1, None),
                ReadState::Back { begun_ns, ended_ns } => {
                    waits.count_size(self.class, read.length_bytes);
                    let span = Span {
                        asked_ns: self.asked_ns,
                        begun_ns,
                        ended_ns,
                    };
                    waits.operation(self.class, span);
                }
            }
        });
    }
}

/// Calls back with each run of requests in a range that form one operation.
pub(crate) type EachRun<'a> = dyn Fn(Range<usize>, &mut dyn FnMut(Range<usize>)) + 'a;

/// Writes of one leaf that wait in the queue.
#[derive(Debug)]
pub(crate) struct QueuedWrites {
    counters: Arc<LeafCounters>,
    class: IoClass,
    asked_ns: u64,
    waiting: u64,
    with_disk: u64,
    begun_ns: u64,
}

impl QueuedWrites {
    pub(crate) fn new(
        clock: &IoClock,
        counters: &Arc<LeafCounters>,
        class: IoClass,
        requests: u64,
    ) -> Self {
        counters.waits().queued(class, requests);
        Self {
            counters: Arc::clone(counters),
            class,
            asked_ns: clock.now_ns(),
            waiting: requests,
            with_disk: 0,
            begun_ns: 0,
        }
    }

    /// Watches the writes on their way to the disk. `length_bytes` is the length of each write; `runs`
    /// yields the runs of writes that form one operation.
    pub(crate) fn watched<'a>(
        self,
        clock: &'a IoClock,
        runs: &'a EachRun<'a>,
        length_bytes: &'a dyn Fn(usize) -> u64,
    ) -> WatchedWrites<'a> {
        WatchedWrites {
            queued: RefCell::new(self),
            clock,
            runs,
            length_bytes,
        }
    }
}

impl Drop for QueuedWrites {
    /// The writes no longer wait, no matter what became of them.
    fn drop(&mut self) {
        self.counters.waits().unqueued(self.class, self.waiting);
        (self.counters.waits()).done(self.class, self.with_disk, None);
    }
}

/// A batch of writes of one leaf, in flight.
pub(crate) struct WatchedWrites<'a> {
    queued: RefCell<QueuedWrites>,
    clock: &'a IoClock,
    runs: &'a EachRun<'a>,
    length_bytes: &'a dyn Fn(usize) -> u64,
}

impl Watch for WatchedWrites<'_> {
    fn begun(&self, requests: Range<usize>) {
        let mut queued = self.queued.borrow_mut();
        let count = (requests.len() as u64).min(queued.waiting);
        queued.waiting -= count;
        queued.with_disk += count;
        queued.begun_ns = self.clock.now_ns();
        let waits = queued.counters.waits();
        waits.unqueued(queued.class, count);
        waits.activated(queued.class, count, queued.begun_ns);
    }

    fn ended(&self, requests: Range<usize>) {
        let mut queued = self.queued.borrow_mut();
        let span = Span {
            asked_ns: queued.asked_ns,
            begun_ns: queued.begun_ns,
            ended_ns: self.clock.now_ns(),
        };
        let (waits, class) = (queued.counters.waits(), queued.class);
        (self.runs)(requests, &mut |run| {
            let is_joined = run.len() > 1;
            let mut bytes = 0u64;
            for request in run {
                let length = (self.length_bytes)(request);
                waits.count_size(class, length);
                bytes = bytes.saturating_add(length);
            }
            if is_joined {
                waits.count_joined(class, bytes);
            }
            waits.operation(class, span);
        });
        waits.done(class, queued.with_disk, Some(span.ended_ns));
        queued.with_disk = 0;
    }
}

/// Runs and counts one write that does not queue.
pub(crate) fn time_write<T>(
    clock: &IoClock,
    counters: &LeafCounters,
    class: IoClass,
    length_bytes: u64,
    write: impl FnOnce() -> T,
) -> T {
    let waits = counters.waits();
    let begun_ns = clock.now_ns();
    waits.activated(class, 1, begun_ns);
    let guard = Active { waits, class };
    let outcome = write();
    let span = Span {
        asked_ns: begun_ns,
        begun_ns,
        ended_ns: clock.now_ns(),
    };
    drop(guard);
    waits.count_size(class, length_bytes);
    waits.operation(class, span);
    outcome
}

struct Active<'a> {
    waits: &'a LeafIoStats,
    class: IoClass,
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.waits.done(self.class, 1, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Run by hand: `cargo test --release -p millpond-block --lib costs -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures, and judges nothing"]
    fn cost_of_io_statistics() {
        const ROUNDS: u64 = 1_000_000;
        let (clock, counters) = (IoClock::default(), Arc::new(LeafCounters::default()));
        let measure = |what: &str, work: &dyn Fn()| {
            let begun_ns = clock.now_ns();
            (0..ROUNDS).for_each(|_| work());
            let each_ns = (clock.now_ns() - begun_ns) / ROUNDS;
            println!("{what}: {each_ns} ns");
        };
        measure("a look at the clock", &|| {
            std::hint::black_box(clock.now_ns());
        });
        measure("a read", &|| {
            let reads = [(&*counters, 4096)].into_iter();
            let watch = WatchedReads::new(&clock, IoClass::SyncRead, reads);
            watch.begun(0..1);
            watch.ended(0..1);
        });
        measure("a write of 16 parts, joined", &|| {
            let queued = QueuedWrites::new(&clock, &counters, IoClass::AsyncWrite, 16);
            let (runs, length) = (
                |range: Range<usize>, each: &mut dyn FnMut(Range<usize>)| each(range),
                |_: usize| 4096,
            );
            let watch = queued.watched(&clock, &runs, &length);
            watch.begun(0..16);
            watch.ended(0..16);
        });
        let stats = counters.io_stats();
        assert_eq!(stats.total[0].counts.iter().sum::<u64>(), ROUNDS);
    }
}
