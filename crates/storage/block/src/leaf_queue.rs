//! The queue of a leaf: how many requests of each class may be with its device.
//!
//! Reads and writes that a caller waits for are in the *foreground* and start at once. Each background class
//! has two limits: one while a foreground request is with the device, and one without. A foreground request
//! therefore finds little ahead of it, and every class always makes progress.
//!
//! A program that calls `fsync` again and again has nothing with the device in between. Prefetch apart, the
//! limits for foreground requests therefore hold until 32 more background operations have begun.
//!
//! The limit of background writes beside foreground requests follows the dirty data: few writes while there
//! is little, so that reads stay fast, and more before writers have to be throttled.
//!
//! The unit is an operation: a run of adjacent writes, or the reads that one thread submits together, at most
//! 1 MiB each unless a single request is larger. Beside foreground requests a run of writes has 512 KiB at most, and a
//! scrub reads 128 KiB at a time: a device works on a request for as long as it takes, whatever comes meanwhile.

use crate::io_stats::IoClass;
use crate::write_lease::WriteLease;
use millpond_device::{
    BatchBytes, Device, DeviceError, DeviceRead, Watch, WriteRequest, next_run, read_batch_watched,
};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU32, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex};
use std::ops::Range;

/// The most bytes of background writes with a device, unless a single run is larger.
const WRITE_BYTES_MAX: u64 = 16 << 20;
/// The same beside foreground requests. What a device has taken delays `fsync` by as long as it needs for it.
const WRITE_BYTES_BESIDE_MAX: u64 = 2 << 20;
/// The most bytes of one run of writes beside foreground requests, unless a single request is larger.
const RUN_BYTES_BESIDE_MAX: u64 = 512 << 10;
/// Background writes beside foreground requests get the larger of their limits once this share of the dirty
/// limit, in percent, is used.
const DIRTY_PERCENT_HIGH: u32 = 60;
/// Up to this share they get the smaller one.
const DIRTY_PERCENT_LOW: u32 = 30;

/// How much of a scrub is read at once beside foreground requests, in bytes, unless a single read is larger.
const SCRUB_BYTES_BESIDE_MAX: usize = 128 << 10;

/// How many background operations begin after a foreground request as if it were still with the device.
const LINGER: u32 = 32;

/// Operations of a background class that may be with a device.
struct Limits {
    /// Beside foreground requests.
    beside: usize,
    /// Beside foreground requests, with much dirty data.
    pressed: usize,
    alone: usize,
}

/// `None` for the foreground, which is not limited.
fn limits(class: IoClass) -> Option<Limits> {
    let (beside, pressed, alone) = match class {
        IoClass::SyncRead | IoClass::SyncWrite => return None,
        // A caller may come to wait for what is prefetched.
        IoClass::AsyncRead => (8, 8, 32),
        IoClass::AsyncWrite => (1, 10, 16),
        IoClass::Scrub | IoClass::Rebuild => (1, 1, 8),
        IoClass::Trim => (1, 1, 2),
    };
    Some(Limits {
        beside,
        pressed,
        alone,
    })
}

/// The requests of one leaf, shared by everything that uses it.
#[derive(Debug, Default)]
pub(crate) struct LeafQueue {
    state: Mutex<State, rank::Leaf>,
    changed: Condvar,
    /// Dirty data in percent of its limit.
    dirty_percent: AtomicU32,
    lease: Arc<WriteLease>,
}

#[derive(Debug, Default)]
struct State {
    /// Operations with the device, by class.
    active: [usize; IoClass::COUNT],
    /// Bytes of background writes with the device.
    write_bytes: u64,
    /// Threads that wait.
    waiting: usize,
    /// How many background operations still begin as beside foreground requests.
    linger: u32,
}

impl State {
    /// Whether an operation of this class counts as beside foreground requests.
    fn is_beside(&self, class: IoClass) -> bool {
        let now = [IoClass::SyncRead, IoClass::SyncWrite];
        let is_now = now.iter().any(|class| self.active[*class as usize] > 0);
        is_now || self.linger > 0 && class != IoClass::AsyncRead
    }
    /// Records that an operation has begun.
    fn begun(&mut self, class: IoClass) {
        self.active[class as usize] += 1;
        self.linger = match class {
            IoClass::SyncRead | IoClass::SyncWrite => LINGER,
            _ => self.linger.saturating_sub(1),
        };
    }

    /// Whether an operation of this size may start.
    fn admits(&self, class: IoClass, bytes: u64, dirty_percent: u32) -> bool {
        let active = self.active[class as usize];
        let Some(limits) = limits(class).filter(|_| active > 0) else {
            return true;
        };
        let is_beside = self.is_beside(class);
        let count = match is_beside {
            false => limits.alone,
            true => between(limits.beside, limits.pressed, dirty_percent),
        };
        let bytes_max = match is_beside {
            false => WRITE_BYTES_MAX,
            true => WRITE_BYTES_BESIDE_MAX,
        };
        let is_write = class == IoClass::AsyncWrite;
        active < count && (!is_write || self.write_bytes.saturating_add(bytes) <= bytes_max)
    }
}

/// A number between `low` and `high` that grows with the dirty data.
fn between(low: usize, high: usize, dirty_percent: u32) -> usize {
    let over = dirty_percent.clamp(DIRTY_PERCENT_LOW, DIRTY_PERCENT_HIGH) - DIRTY_PERCENT_LOW;
    let range = DIRTY_PERCENT_HIGH - DIRTY_PERCENT_LOW;
    low + high.saturating_sub(low) * over as usize / range as usize
}

/// Operations with the device. Its drop ends the accounting, even if the device panics.
pub(crate) struct Operations<'a> {
    queue: &'a LeafQueue,
    class: IoClass,
    count: usize,
    bytes: u64,
}

impl Drop for Operations<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.active[self.class as usize] -= self.count;
        state.write_bytes = state.write_bytes.saturating_sub(self.bytes);
        if state.waiting > 0 {
            self.queue.changed.notify_all();
        }
    }
}

impl LeafQueue {
    /// The queue of a leaf of the pool with this lease.
    pub(crate) fn new(lease: &Arc<WriteLease>) -> Self {
        Self {
            lease: Arc::clone(lease),
            ..Self::default()
        }
    }

    /// Asks right before a request whether the pool may still make it.
    pub(crate) fn check_lease(&self) -> Result<(), DeviceError> {
        self.lease.check()
    }

    /// Sets how much dirty data there is, in percent of its limit.
    pub(crate) fn set_dirty_percent(&self, percent: u32) {
        self.dirty_percent.store(percent, Ordering::Relaxed);
    }

    /// Waits until an operation of this class may start.
    pub(crate) fn enter(&self, class: IoClass) -> Operations<'_> {
        self.begin(class, std::iter::once((1, 0)), 1).0
    }

    /// Waits until the first of some runs may start. Takes as many as may start now, at most `at_once`. A run
    /// is a number of requests and their bytes. Returns also how many requests were taken.
    fn begin(
        &self,
        class: IoClass,
        mut runs: impl Iterator<Item = (usize, u64)>,
        at_once: usize,
    ) -> (Operations<'_>, usize) {
        let mut operations = Operations {
            queue: self,
            class,
            count: 0,
            bytes: 0,
        };
        let Some((mut requests, mut bytes)) = runs.next() else {
            return (operations, 0);
        };
        let mut taken = 0;
        let mut state = self.state.lock();
        let dirty_percent = || self.dirty_percent.load(Ordering::Relaxed);
        while !state.admits(class, bytes, dirty_percent()) {
            state.waiting += 1;
            self.changed.wait(&mut state);
            state.waiting -= 1;
        }
        loop {
            state.begun(class);
            operations.count += 1;
            taken += requests;
            if class == IoClass::AsyncWrite {
                state.write_bytes = state.write_bytes.saturating_add(bytes);
                operations.bytes = operations.bytes.saturating_add(bytes);
            }
            if operations.count >= at_once {
                break;
            }
            match runs.next() {
                Some(next) => (requests, bytes) = next,
                None => break,
            }
            if !state.admits(class, bytes, dirty_percent()) {
                break;
            }
        }
        (operations, taken)
    }

    /// Reads a batch of one device, all together or in parts. The outcomes are in the order of the reads.
    pub(crate) fn read(
        &self,
        class: IoClass,
        reads: &[DeviceRead<'_>],
        watch: &dyn Watch,
    ) -> Vec<Result<BatchBytes, DeviceError>> {
        let mut outcomes = Vec::with_capacity(reads.len());
        let mut rest = reads;
        while !rest.is_empty() {
            let operation = self.enter(class);
            let is_short = matches!(class, IoClass::Scrub | IoClass::Rebuild)
                && self.state.lock().is_beside(class);
            let count = match is_short {
                true => count_within(
                    rest.iter().map(|read| read.length_bytes),
                    SCRUB_BYTES_BESIDE_MAX,
                ),
                false => rest.len(),
            };
            let (now, later) = rest.split_at(count);
            let start = outcomes.len();
            outcomes.extend(read_batch_watched(now, &Part { watch, start }));
            drop(operation);
            rest = later;
        }
        outcomes
    }

    /// Writes a batch: runs of adjacent requests, as many together as may be with the device and as it
    /// takes. Ranges must not overlap; offset order is fastest.
    pub(crate) fn write(
        &self,
        device: &dyn Device,
        class: IoClass,
        requests: &mut [WriteRequest<'_>],
        watch: &dyn Watch,
    ) {
        let at_once = device.writes_at_once();
        let mut rest = requests;
        let mut start = 0;
        while !rest.is_empty() {
            let most = match self.state.lock().is_beside(class) {
                true => RUN_BYTES_BESIDE_MAX,
                false => u64::MAX,
            };
            let (operations, count) = self.begin(class, runs_of(rest, most), at_once);
            let (now, later) = rest.split_at_mut(count);
            match self.check_lease() {
                Ok(()) => device.write_many_watched(now, &Part { watch, start }),
                Err(error) => refuse(now, &error),
            }
            drop(operations);
            start += count;
            rest = later;
        }
    }
}

/// Makes all requests fail.
pub(crate) fn refuse(requests: &mut [WriteRequest<'_>], error: &DeviceError) {
    for request in requests {
        request.outcome = Err(error.clone());
    }
}

/// How many requests of these lengths, from the first, have at most `most` bytes together; at least 1.
fn count_within(lengths: impl Iterator<Item = usize>, most: usize) -> usize {
    let ends = lengths.scan(0usize, |end, length| {
        *end = end.saturating_add(length);
        Some(*end)
    });
    ends.take_while(|end| *end <= most).count().max(1)
}

/// The runs of adjacent requests of at most `most` bytes: the requests of each and their bytes.
fn runs_of<'a>(
    requests: &'a [WriteRequest<'_>],
    most: u64,
) -> impl Iterator<Item = (usize, u64)> + 'a {
    let mut rest = requests;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let run = shortened(rest, next_run(rest), most);
        rest = rest.get(run.0..).unwrap_or_default();
        Some(run)
    })
}

/// As much of a run as has at most `most` bytes, at least one request.
fn shortened(requests: &[WriteRequest<'_>], run: (usize, u64), most: u64) -> (usize, u64) {
    if run.1 <= most {
        return run;
    }
    let lengths = || {
        requests
            .iter()
            .take(run.0)
            .map(|request| request.bytes.len())
    };
    let count = count_within(lengths(), usize::try_from(most).unwrap_or(usize::MAX));
    (
        count,
        lengths().take(count).map(|length| length as u64).sum(),
    )
}

/// A part of a batch from `start` on, as a batch with its own indices.
struct Part<'a> {
    watch: &'a dyn Watch,
    start: usize,
}

impl Part<'_> {
    fn shifted(&self, requests: Range<usize>) -> Range<usize> {
        self.start + requests.start..self.start + requests.end
    }
}

impl Watch for Part<'_> {
    fn begun(&self, requests: Range<usize>) {
        self.watch.begun(self.shifted(requests));
    }
    fn ended(&self, requests: Range<usize>) {
        self.watch.ended(self.shifted(requests));
    }
}

#[cfg(test)]
mod tests;
