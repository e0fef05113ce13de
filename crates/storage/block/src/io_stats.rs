//! How long the leaves take for requests, and how many wait.
//!
//! A request *waits* from the submission of its plan until it is issued to the device. Then it is *with the
//! disk* until it completes. Requests issued to a device at once complete together: each is counted with
//! the time until the last of them is done, as the caller experiences it.

use crate::progress::Progress;
use crate::topology::LeafCounters;
use millpond_device::Watch;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::{Clock, Env};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Buckets of times: bucket *n* counts times from 2^n up to 2^(n+1) nanoseconds, the first one also 0, the
/// last one all longer times.
pub const WAIT_BUCKETS: usize = 37;
/// Buckets of sizes: bucket *n* counts sizes from 2^n up to 2^(n+1) bytes, the last one all larger sizes.
pub const SIZE_BUCKETS: usize = 25;
/// An operation that takes at least this long, in nanoseconds, is slow.
pub const SLOW_NS: u64 = 30_000_000_000;

/// The purpose of a request, in the classes of `zpool iostat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// A caller waits for the content.
    SyncRead,
    /// Intent logs, labels, uberblocks.
    SyncWrite,
    /// Prefetch.
    AsyncRead,
    /// The blocks of a txg, and repairs of wrong bytes.
    AsyncWrite,
    /// Pool traversals that verify every copy.
    Scrub,
    /// Discards of free space.
    Trim,
    /// Writes of what a device lacks (resilver).
    Rebuild,
}

impl IoClass {
    /// The number of classes.
    pub const COUNT: usize = 7;

    const ALL: [Self; Self::COUNT] = [
        Self::SyncRead,
        Self::SyncWrite,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Scrub,
        Self::Trim,
        Self::Rebuild,
    ];

    fn direction(self) -> usize {
        match self {
            IoClass::SyncRead | IoClass::AsyncRead | IoClass::Scrub => 0,
            IoClass::SyncWrite | IoClass::AsyncWrite | IoClass::Trim | IoClass::Rebuild => 1,
        }
    }
}

/// Counts by powers of two.
#[derive(Debug)]
struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&self, value: u64) {
        let index = value.checked_ilog2().map_or(0, |log| log as usize);
        if let Some(bucket) = self.0.get(index.min(N - 1)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The buckets up to the last non-empty one.
    fn counts(&self) -> Vec<u64> {
        let counts = self.0.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let mut counts: Vec<u64> = counts.collect();
        let used = counts.iter().rposition(|count| *count > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        counts
    }
}

/// A histogram of times and their sum.
#[derive(Debug, Default)]
pub(crate) struct Times {
    histogram: Histogram<WAIT_BUCKETS>,
    sum_ns: AtomicU64,
}

impl Times {
    pub(crate) fn add(&self, ns: u64) {
        self.histogram.add(ns);
        if ns > 0 {
            self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> TimeStats {
        TimeStats {
            counts: self.histogram.counts(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// A copy of counted times.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimeStats {
    /// Counts by [`WAIT_BUCKETS`], up to the last non-empty bucket.
    pub counts: Vec<u64>,
    /// The sum of the times in nanoseconds.
    pub sum_ns: u64,
}

impl TimeStats {
    fn add(&mut self, other: &Self) {
        let length = self.counts.len().max(other.counts.len());
        self.counts.resize(length, 0);
        for (mine, others) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*others);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    fn add_zeros(&mut self, count: u64) {
        if count > 0 {
            let sum_ns = 0;
            let counts = vec![count];
            self.add(&Self { counts, sum_ns });
        }
    }
}

/// Times, sizes and queue lengths of a leaf's requests.
#[derive(Debug, Default)]
pub(crate) struct LeafIoStats {
    /// Operations that went to the disk without waiting, as most reads do. They count once here instead of
    /// three times below.
    at_once: [Times; IoClass::COUNT],
    total: [Times; 2],
    disk: [Times; 2],
    queue: [Times; IoClass::COUNT],
    asked: [Histogram<SIZE_BUCKETS>; IoClass::COUNT],
    joined: [Histogram<SIZE_BUCKETS>; IoClass::COUNT],
    pending: [AtomicU64; IoClass::COUNT],
    active: [AtomicU64; IoClass::COUNT],
    slow: AtomicU64,
    progress: Progress,
}

/// A copy of the times and sizes in [`LeafCounters`]. Reads are first, writes second; classes are in the
/// order of [`IoClass`].
///
/// Times are those of operations: adjacent requests written together are one operation. Sizes are those of
/// requests as submitted, and of operations that join several requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoStats {
    /// From submission to completion.
    pub total: [TimeStats; 2],
    /// With the disk.
    pub disk: [TimeStats; 2],
    /// From submission until the disk gets the request, by class.
    pub queue: [TimeStats; IoClass::COUNT],
    /// Sizes of requests by class, in [`SIZE_BUCKETS`].
    pub asked: [Vec<u64>; IoClass::COUNT],
    /// Sizes of operations that join several requests, by class.
    pub joined: [Vec<u64>; IoClass::COUNT],
    /// Requests waiting now, by class.
    pub pending: [u64; IoClass::COUNT],
    /// Requests with the disk now, by class.
    pub active: [u64; IoClass::COUNT],
    /// Operations that took 30 seconds or longer.
    pub slow: u64,
}

/// When an operation was submitted, issued and completed, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Span {
    asked_ns: u64,
    begun_ns: u64,
    ended_ns: u64,
}

impl LeafIoStats {
    pub(crate) fn stats(&self) -> IoStats {
        let sizes = |of: &[Histogram<SIZE_BUCKETS>; IoClass::COUNT]| {
            std::array::from_fn(|class| of[class].counts())
        };
        let now = |of: &[AtomicU64; IoClass::COUNT]| {
            std::array::from_fn(|class| of[class].load(Ordering::Relaxed))
        };
        let mut total = std::array::from_fn(|way| self.total[way].stats());
        let mut disk = std::array::from_fn(|way| self.disk[way].stats());
        let mut queue = std::array::from_fn(|class| self.queue[class].stats());
        for class in IoClass::ALL {
            let at_once = self.at_once[class as usize].stats();
            let way = class.direction();
            total[way].add(&at_once);
            disk[way].add(&at_once);
            let count = at_once.counts.iter().sum();
            queue[class as usize].add_zeros(count);
        }
        IoStats {
            total,
            disk,
            queue,
            asked: sizes(&self.asked),
            joined: sizes(&self.joined),
            pending: now(&self.pending),
            active: now(&self.active),
            slow: self.slow.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn clear_slow(&self) {
        self.slow.store(0, Ordering::Relaxed);
    }

    fn operation(&self, class: IoClass, span: Span) {
        let way = class.direction();
        let total_ns = span.ended_ns.saturating_sub(span.asked_ns);
        let queue_ns = span.begun_ns.saturating_sub(span.asked_ns);
        if queue_ns == 0 {
            self.at_once[class as usize].add(total_ns);
        } else {
            self.total[way].add(total_ns);
            self.disk[way].add(span.ended_ns.saturating_sub(span.begun_ns));
            self.queue[class as usize].add(queue_ns);
        }
        if total_ns >= SLOW_NS {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn queued(&self, class: IoClass, requests: u64) {
        self.pending[class as usize].fetch_add(requests, Ordering::Relaxed);
    }

    fn unqueued(&self, class: IoClass, requests: u64) {
        self.pending[class as usize].fetch_sub(requests, Ordering::Relaxed);
    }

    fn activated(&self, class: IoClass, requests: u64, now_ns: u64) {
        self.active[class as usize].fetch_add(requests, Ordering::Relaxed);
        self.progress.went(requests, now_ns);
    }

    fn done(&self, class: IoClass, requests: u64, now_ns: Option<u64>) {
        self.active[class as usize].fetch_sub(requests, Ordering::Relaxed);
        self.progress.came_back(requests, now_ns);
    }

    /// Requests queued or in flight.
    pub(crate) fn load(&self) -> u64 {
        let all = self.pending.iter().chain(&self.active);
        all.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Whether the device answers.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
}

/// The clock that measures requests.
#[derive(Clone)]
pub struct IoClock(Arc<dyn Clock>);

impl Default for IoClock {
    /// The real clock.
    fn default() -> Self {
        Self::of(&Env::real())
    }
}

impl std::fmt::Debug for IoClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoClock").finish_non_exhaustive()
    }
}

impl IoClock {
    /// The clock of an environment.
    #[must_use]
    pub fn of(env: &Env) -> Self {
        Self(Arc::clone(&env.clock))
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
}

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
                    waits.asked[self.class as usize].add(read.length_bytes);
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
                waits.asked[class as usize].add(length);
                bytes = bytes.saturating_add(length);
            }
            if is_joined {
                waits.joined[class as usize].add(bytes);
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
    waits.asked[class as usize].add(length_bytes);
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
