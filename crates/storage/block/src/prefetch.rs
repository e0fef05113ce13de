//! Prefetch: reads blocks before they are requested.
//!
//! A higher layer that knows what will be requested next gives *prefetch requests* to a few threads of the
//! store. They read with [`BlockStore::prefetch`]. A reader that needs such a block meanwhile joins the
//! in-flight read, or makes it first.
//!
//! A prefetch may come too late: the pointers that it follows may be freed and their space reused for
//! another block. So it reads without side effects. It keeps content only if every leaf that it read was
//! right, counts no errors and repairs nothing. Damage is left to the callers that request the block.

mod batch;

use crate::block_cache::{CacheKey, Fetched, class_of, forms_bytes};
use crate::buffer_pool::PooledBuf;
use crate::copies::{ReadParams, look};
use crate::io_stats::IoClass;
use crate::requests::{Overdue, unhurried};
use crate::store::{InFlightRead, ReadKind};
use crate::topology::Topology;
use crate::{Block, BlockAddress, BlockStore};
use millpond_cache::Outcome;
use millpond_crypt::DatasetKey;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, OnceLock, Sender, bounded};
use millpond_env::thread::{self, JoinHandle, ThreadId, current_id};
use millpond_ondisk::{BlockPointer, ChecksumKind, CompressionKind, Dva};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The most queued prefetch requests; more are refused. This exceeds what the cache takes of speculative
/// entries.
const REQUESTS_MAX: usize = 1024;
/// The most bytes to prefetch for one reader.
const PREFETCH_BYTES_MAX: u64 = 16 << 20;
/// The least that one prefetch request reads, in bytes. Small blocks are read several at a time.
const REQUEST_BYTES_MIN: u64 = 128 << 10;
/// The most prefetch threads.
const THREADS_MAX: usize = 8;

type Work = Box<dyn FnOnce() + Send>;

struct PrefetchRequest {
    work: Work,
    /// How many bytes it reads.
    bytes: u64,
    /// How often prefetch had been cancelled when the request was queued.
    cancellations: u64,
}

/// The prefetch threads of a store and its views.
#[derive(Default)]
pub(crate) struct Prefetcher {
    threads: OnceLock<Threads>,
    is_off: AtomicBool,
    counters: PrefetchCounters,
}

#[derive(Default)]
struct PrefetchCounters {
    requests: AtomicU64,
    read: AtomicU64,
    given_up: AtomicU64,
}

/// Prefetch statistics since the store was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefetchStats {
    /// Accepted prefetch requests; some find nothing left to do.
    pub requests: u64,
    /// Blocks read before they were requested.
    pub read: u64,
    /// Blocks that could not be read cleanly, or for which the cache had no space.
    pub given_up: u64,
}

struct Threads {
    sender: Sender<PrefetchRequest>,
    counts: Arc<Counts>,
    handles: Vec<JoinHandle<()>>,
}

/// Prefetch requests that were accepted and have not ended.
#[derive(Default)]
struct Counts {
    under_way: Mutex<UnderWay, rank::Leaf>,
    ended: Condvar,
    /// The number of cancellations. A request queued before the last one that has not started is dropped.
    cancellations: AtomicU64,
    /// Whether dropping the pool of threads must not wait for them: a device does not answer one of them.
    is_given_up: AtomicBool,
}

#[derive(Default)]
struct UnderWay {
    requests: usize,
    bytes: u64,
}

/// Uncounts a prefetch request when it ends.
struct Ending<'a>(&'a Counts, u64);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        under_way.requests = under_way.requests.saturating_sub(1);
        under_way.bytes = under_way.bytes.saturating_sub(self.1);
        if under_way.requests == 0 {
            self.0.ended.notify_all();
        }
    }
}

impl Threads {
    fn start(count: usize) -> Self {
        let (sender, receiver) = bounded::<PrefetchRequest>(REQUESTS_MAX);
        let counts = Arc::new(Counts::default());
        let handles = (0..count).filter_map(|number| {
            let (receiver, counts) = (receiver.clone(), Arc::clone(&counts));
            let body = move || {
                while let Ok(request) = receiver.recv() {
                    // The request's captures are dropped before it is uncounted.
                    let ending = Ending(&counts, request.bytes);
                    if counts.cancellations.load(Ordering::Acquire) == request.cancellations {
                        // The panic hook reports a panic, and no other work depends on this request.
                        let _ = catch_unwind(AssertUnwindSafe(|| unhurried(request.work)));
                    } else {
                        drop(request);
                    }
                    drop(ending);
                }
            };
            thread::spawn(&format!("block-ahead-{number}"), body).ok()
        });
        Self {
            handles: handles.collect(),
            sender,
            counts,
        }
    }

    fn is_own(&self, id: ThreadId) -> bool {
        self.handles.iter().any(|handle| handle.thread().id() == id)
    }

    /// Cancels the queued requests.
    fn recall(&self) {
        self.counts.cancellations.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until no prefetch request is left, except when called from a prefetch thread. Gives up on one
    /// whose device does not answer: it only reads.
    fn wait(&self, topology: &Topology) {
        if self.is_own(current_id()) {
            return;
        }
        let overdue = Overdue::of(topology);
        let mut under_way = self.counts.under_way.lock();
        while under_way.requests > 0 {
            if !overdue.wait(&self.counts.ended, &mut under_way) {
                self.counts.is_given_up.store(true, Ordering::Release);
                return;
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.recall();
        // The threads end once they have emptied the queue.
        self.sender = bounded(1).0;
        if self.counts.is_given_up.load(Ordering::Acquire) {
            return;
        }
        for handle in self.handles.drain(..) {
            // A prefetch request may drop the last reference to the store.
            if handle.thread().id() != current_id() {
                let _ = handle.join();
            }
        }
    }
}

impl Prefetcher {
    fn threads(&self, topology: &Topology) -> Option<&Threads> {
        if self.is_off.load(Ordering::Acquire) {
            return None;
        }
        let threads = self.threads.get_or_init(|| {
            // Enough threads to use the processors for checksums and the like; where devices are slow, one
            // for each keeps them busy.
            let wanted = thread::parallelism().max(topology.devices.len());
            Threads::start(wanted.clamp(1, THREADS_MAX))
        });
        (!threads.handles.is_empty()).then_some(threads)
    }
}

impl BlockStore {
    /// Turns prefetch off, or on again. It is on where more than one thread writes blocks
    /// ([`BlockStore::set_write_threads`]).
    pub fn set_prefetch(&self, is_on: bool) {
        self.prefetcher.is_off.store(!is_on, Ordering::Release);
    }

    /// The most bytes that may be prefetched for one reader: a share of the cache, at most 16 MiB; 0 if
    /// prefetch is off.
    #[must_use]
    pub fn ahead_bytes_max(&self) -> u64 {
        if self.prefetcher.is_off.load(Ordering::Acquire) || self.is_single_threaded() {
            return 0;
        }
        PREFETCH_BYTES_MAX.min(self.cache.entries.speculative_bytes_max() / 2)
    }

    /// Queues a prefetch request that reads `bytes` bytes; returns whether it was accepted.
    ///
    /// Requests start in the order in which they were queued. A panic ends the one request only. All
    /// unfinished requests together read at most what the cache takes of speculative entries.
    pub fn queue_prefetch(&self, bytes: u64, request: impl FnOnce() + Send + 'static) -> bool {
        if self.ahead_bytes_max() == 0 {
            return false;
        }
        let Some(threads) = self.prefetcher.threads(&self.topology()) else {
            return false;
        };
        {
            let bytes_max = self.cache.entries.speculative_bytes_max();
            let mut under_way = threads.counts.under_way.lock();
            if under_way.bytes.saturating_add(bytes) > bytes_max {
                return false;
            }
            under_way.requests += 1;
            under_way.bytes += bytes;
        }
        let request = PrefetchRequest {
            work: Box::new(request),
            bytes,
            cancellations: threads.counts.cancellations.load(Ordering::Acquire),
        };
        let is_taken = threads.sender.try_send(request).is_ok();
        if is_taken {
            self.prefetcher
                .counters
                .requests
                .fetch_add(1, Ordering::Relaxed);
        } else {
            drop(Ending(&threads.counts, bytes));
        }
        is_taken
    }

    /// Waits until every prefetch request has ended. For tests, which then inspect the cache.
    pub fn wait_for_prefetch(&self) {
        if let Some(threads) = self.prefetcher.threads.get() {
            threads.wait(&self.topology());
        }
    }

    /// Cancels the queued prefetch requests and waits for the running ones, so that none holds a device any
    /// more. Does nothing on a view: the store behind it cancels.
    pub fn cancel_prefetch(&self) {
        if let Some(threads) = self.prefetcher.threads.get()
            && !self.is_view
        {
            threads.recall();
            threads.wait(&self.topology());
        }
    }

    /// Turns prefetch off for good, and cancels as [`BlockStore::cancel_prefetch`] does.
    pub fn stop_prefetch(&self) {
        if !self.is_view {
            self.set_prefetch(false);
            self.cancel_prefetch();
        }
    }

    /// Prefetch statistics.
    #[must_use]
    pub fn prefetch_stats(&self) -> PrefetchStats {
        PrefetchStats {
            requests: self.prefetcher.counters.requests.load(Ordering::Relaxed),
            read: self.prefetcher.counters.read.load(Ordering::Relaxed),
            given_up: self.prefetcher.counters.given_up.load(Ordering::Relaxed),
        }
    }

    /// The content of a pointer, from the cache or by a speculative read into the cache. Holes and
    /// embedded content are returned too and take no space in the cache.
    ///
    /// Returns `None` on any trouble, for a gang block, for a block without a checksum, or if the cache has
    /// no space for speculative entries.
    ///
    /// Memory: as [`BlockStore::read`].
    #[must_use]
    pub fn prefetch(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Arc<Block>> {
        self.admit(pointer, address, key).ok()?;
        if pointer.is_hole() || pointer.is_embedded() {
            return self.read(pointer, address, key).ok();
        }
        let cache_key = self.cache_key(pointer, key);
        if let Some(fetched) = self.peek(&cache_key, pointer, address, key) {
            return Some(fetched.block);
        }
        loop {
            let (flight, is_mine) = self.join_read(&cache_key, ReadKind::Speculative);
            if is_mine {
                self.count_prefetch(&cache_key, pointer, Outcome::Miss);
                let buffer = PooledBuf::default();
                let fetched =
                    self.speculative_read(&cache_key, &flight, pointer, address, key, buffer);
                return fetched.map(|fetched| fetched.block);
            }
            match flight.wait(&self.topology()) {
                Waited::Finished(outcome) => return Some(outcome.ok()?.block),
                Waited::Nothing => {}
                Waited::Overdue => return None,
            }
        }
    }

    /// Like [`BlockStore::prefetch`], for a block that only has to get into the cache. If another thread
    /// has the read in flight, that is enough. Returns false if there was trouble or no space.
    ///
    /// `buffer` is a buffer for the content, used if it is large enough. Each thread allocates from an arena
    /// of its own, and fresh pages are expensive: a buffer from the reader has usually been used before,
    /// and returns to the reader.
    #[must_use]
    pub fn prefetch_block(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        buffer: PooledBuf,
    ) -> bool {
        match self.begin_prefetch(pointer, address, key) {
            None => false,
            Some(None) => true,
            Some(Some((cache_key, flight))) => {
                let fetched =
                    self.speculative_read(&cache_key, &flight, pointer, address, key, buffer);
                fetched.is_some()
            }
        }
    }

    /// Registers the in-flight read of a block that is not cached. The inner value is `None` if nothing has to
    /// be read, or another thread has the read in flight. `None` if the pointer is not valid.
    fn begin_prefetch(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Option<(CacheKey, Arc<InFlightRead>)>> {
        self.admit(pointer, address, key).ok()?;
        if pointer.is_hole() || pointer.is_embedded() {
            return Some(None);
        }
        let cache_key = self.cache_key(pointer, key);
        if self.cache.entries.contains(&cache_key) {
            self.count_prefetch(&cache_key, pointer, Outcome::Hit);
            return Some(None);
        }
        let (flight, is_mine) = self.join_read(&cache_key, ReadKind::Speculative);
        let outcome = match is_mine {
            true => Outcome::Miss,
            false => Outcome::IoHit,
        };
        self.count_prefetch(&cache_key, pointer, outcome);
        Some(is_mine.then_some((cache_key, flight)))
    }

    fn count_prefetch(&self, cache_key: &CacheKey, pointer: &BlockPointer, outcome: Outcome) {
        let class = class_of(pointer);
        self.cache.entries.count_prefetch(cache_key, class, outcome);
    }

    /// The bytes that one prefetch request should read: more than one block where devices serve several reads
    /// at once.
    #[must_use]
    pub fn prefetch_request_bytes(&self) -> u64 {
        self.topology().group_bytes().max(REQUEST_BYTES_MIN)
    }

    fn speculative_read(
        &self,
        cache_key: &CacheKey,
        flight: &InFlightRead,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        buffer: PooledBuf,
    ) -> Option<Fetched> {
        let fetched = self.try_speculative_read(cache_key, flight, pointer, address, key, buffer);
        let counters = &self.prefetcher.counters;
        let counter = match fetched {
            Some(_) => &counters.read,
            None => &counters.given_up,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        fetched
    }

    fn try_speculative_read(
        &self,
        cache_key: &CacheKey,
        flight: &InFlightRead,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        buffer: PooledBuf,
    ) -> Option<Fetched> {
        let completion_guard = self.completion_guard(cache_key, flight);
        let weight = forms_bytes(pointer);
        if !self
            .cache
            .entries
            .has_room_for_speculative(cache_key, weight)
        {
            return None;
        }
        // Another reader may have completed between our cache look-up and our registration.
        let fetched = self.peek(cache_key, pointer, address, key).or_else(|| {
            // Uncompressed content can be read directly into its final buffer.
            let is_plain = pointer.compression() == Some(CompressionKind::Off);
            let (for_stored, for_content) = match is_plain && buffer.is_used {
                true => (buffer.memory, None),
                false => (Vec::new(), Some(buffer.memory)),
            };
            let copy = self
                .is_on_cache_device(pointer)
                .then(|| self.read_cache_device(pointer, address));
            let stored = match copy.flatten() {
                Some(stored) => stored,
                None => self.read_without_trace(pointer, for_stored)?,
            };
            (self.unfold_stored(pointer, address, key, Arc::new(stored), for_content)).ok()
        })?;
        let class = class_of(pointer);
        if !self
            .cache
            .put_speculative(cache_key.clone(), &fetched, class)
        {
            return None;
        }
        completion_guard.settle(Ok(fetched.clone()));
        Some(fetched)
    }

    /// The stored bytes at the first address, if every leaf that was read was right.
    fn read_without_trace(&self, pointer: &BlockPointer, buffer: Vec<u8>) -> Option<Vec<u8>> {
        if pointer.checksum_kind() == Some(ChecksumKind::Off) || self.is_outstanding(pointer) {
            // Any bytes would pass, or the bytes are not there yet.
            return None;
        }
        let checksummer = self.checksummer();
        let dva: Dva = pointer.dvas().next().filter(|dva| !dva.is_gang)?;
        let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
        let (size, birth) = (pointer.psize_bytes(), pointer.physical_birth());
        let class = IoClass::AsyncRead;
        let params = ReadParams {
            buffer,
            ..ReadParams::new(class)
        };
        let resolved = look(&self.topology(), dva, size, birth, params, &mut verify).ok()?;
        (resolved.liars.is_empty() && resolved.repairs.is_empty()).then_some(resolved.data)
    }
}

/// The result of joining another thread's read.
pub(crate) enum Waited {
    /// The read completed with this outcome.
    Finished(Result<Fetched, crate::BlockError>),
    /// The read was speculative and failed.
    Nothing,
    /// The read exceeds the deadline of a device: the caller reads by itself.
    Overdue,
}

impl InFlightRead {
    /// Waits for another thread's read.
    pub(crate) fn wait(&self, topology: &Topology) -> Waited {
        let overdue = Overdue::of(topology);
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Some(Some(outcome)) => return Waited::Finished(outcome.clone()),
                Some(None) => return Waited::Nothing,
                None => {}
            }
            if !overdue.wait(&self.done, &mut outcome) && outcome.is_none() {
                return Waited::Overdue;
            }
        }
    }
}
