//! Blocks read before anybody asks for them.
//!
//! A layer above that knows what will be asked for next gives *errands* to a few threads of the store, and these
//! read with [`BlockStore::read_ahead`]. Whoever needs such a block meanwhile waits for the same read, or makes it first.
//!
//! An errand may come too late: the pointers that it follows may be freed and their space another block's. So it
//! reads without any trace: only what every leaf that was asked told right is kept, nothing is counted, nothing is
//! repaired. Damage is left to those who want the block.

use crate::copies::{Way, look};
use crate::requests::{Overdue, unhurried};
use crate::rooms::Room;
use crate::store::{Flight, Identity};
use crate::topology::Topology;
use crate::waits::IoClass;
use crate::{Block, BlockAddress, BlockStore};
use millpond_crypt::DatasetKey;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, OnceLock, Sender, bounded};
use millpond_env::thread::{self, JoinHandle, ThreadId, current_id};
use millpond_ondisk::{BlockPointer, ChecksumKind, CompressionKind, Dva};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Errands that may wait; more are refused, and more than the cache takes of guesses.
const ERRANDS_MAX: usize = 1024;
/// The most that is read ahead of one reader, in bytes.
const AHEAD_BYTES_MAX: u64 = 16 << 20;
/// Threads at most.
const THREADS_MAX: usize = 8;

type Work = Box<dyn FnOnce() + Send>;

struct Errand {
    work: Work,
    /// What it reads, in bytes.
    bytes: u64,
    /// How often errands had been called back when it was sent.
    recalls: u64,
}

/// The threads that read ahead for a store and its views.
#[derive(Default)]
pub(crate) struct Ahead {
    threads: OnceLock<Threads>,
    is_off: AtomicBool,
    figures: Figures,
}

#[derive(Default)]
struct Figures {
    errands: AtomicU64,
    read: AtomicU64,
    given_up: AtomicU64,
}

/// What reading ahead did since the store was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AheadFigures {
    /// Errands that were taken in; some find that there is nothing left to do.
    pub errands: u64,
    /// Blocks read before they were asked for.
    pub read: u64,
    /// Blocks that were not to be had without trouble, or found no room.
    pub given_up: u64,
}

struct Threads {
    sender: Sender<Errand>,
    counts: Arc<Counts>,
    handles: Vec<JoinHandle<()>>,
}

/// Errands that were taken in and have not ended.
#[derive(Default)]
struct Counts {
    under_way: Mutex<UnderWay>,
    ended: Condvar,
    /// Those sent before the last recall that have not begun are dropped.
    recalls: AtomicU64,
    /// Nobody waits for the threads: a device does not answer one of them.
    is_given_up: AtomicBool,
}

#[derive(Default)]
struct UnderWay {
    errands: usize,
    bytes: u64,
}

/// Counts an errand off.
struct Ending<'a>(&'a Counts, u64);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        under_way.errands = under_way.errands.saturating_sub(1);
        under_way.bytes = under_way.bytes.saturating_sub(self.1);
        if under_way.errands == 0 {
            self.0.ended.notify_all();
        }
    }
}

impl Threads {
    fn start(count: usize) -> Self {
        let (sender, receiver) = bounded::<Errand>(ERRANDS_MAX);
        let counts = Arc::new(Counts::default());
        let handles = (0..count).filter_map(|number| {
            let (receiver, counts) = (receiver.clone(), Arc::clone(&counts));
            let body = move || {
                while let Ok(errand) = receiver.recv() {
                    // What the errand holds goes before it is counted off.
                    let ending = Ending(&counts, errand.bytes);
                    if counts.recalls.load(Ordering::Acquire) == errand.recalls {
                        // A panic is reported by its hook, and nobody else hangs on this errand.
                        let _ = catch_unwind(AssertUnwindSafe(|| unhurried(errand.work)));
                    } else {
                        drop(errand);
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

    /// Has those that wait dropped.
    fn recall(&self) {
        self.counts.recalls.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until no errand is left, unless it is one that asks. Not for one whose device does not answer: it only reads.
    fn wait(&self, topology: &Topology) {
        if self.is_own(current_id()) {
            return;
        }
        let overdue = Overdue::of(topology);
        let mut under_way = self.counts.under_way.lock();
        while under_way.errands > 0 {
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
        // Ends the threads once they have taken out what waits.
        self.sender = bounded(1).0;
        if self.counts.is_given_up.load(Ordering::Acquire) {
            return;
        }
        for handle in self.handles.drain(..) {
            // The last to let go of the store may be an errand.
            if handle.thread().id() != current_id() {
                let _ = handle.join();
            }
        }
    }
}

impl Ahead {
    fn threads(&self, topology: &Topology) -> Option<&Threads> {
        if self.is_off.load(Ordering::Acquire) {
            return None;
        }
        let threads = self.threads.get_or_init(|| {
            // Processors for checksums and the like; where devices are slow, one each keeps them busy.
            let wanted = thread::parallelism().max(topology.devices.len());
            Threads::start(wanted.clamp(1, THREADS_MAX))
        });
        (!threads.handles.is_empty()).then_some(threads)
    }
}

impl BlockStore {
    /// Turns reading ahead off, or on again. It is on where blocks are written by more than one thread
    /// ([`BlockStore::set_write_threads`]).
    pub fn set_read_ahead(&self, is_on: bool) {
        self.ahead.is_off.store(!is_on, Ordering::Release);
    }

    /// How many bytes a reader may have read ahead of it: a share of the cache, at most 16 MiB; 0 if nothing is
    /// to be read ahead.
    #[must_use]
    pub fn ahead_bytes_max(&self) -> u64 {
        if self.ahead.is_off.load(Ordering::Acquire) || self.is_single_threaded() {
            return 0;
        }
        AHEAD_BYTES_MAX.min(self.guess_bytes_max / 2)
    }

    /// Has a thread run an errand some time soon, which is to read ahead so many bytes; tells whether it will. Errands
    /// begin in the order in which they came. A panic of one ends it and nothing else. What all errands that have
    /// not ended read is at most what the cache keeps of guesses.
    pub fn send_ahead(&self, bytes: u64, errand: impl FnOnce() + Send + 'static) -> bool {
        if self.ahead_bytes_max() == 0 {
            return false;
        }
        let Some(threads) = self.ahead.threads(&self.topology()) else {
            return false;
        };
        {
            let mut under_way = threads.counts.under_way.lock();
            if under_way.bytes.saturating_add(bytes) > self.guess_bytes_max {
                return false;
            }
            under_way.errands += 1;
            under_way.bytes += bytes;
        }
        let errand = Errand {
            work: Box::new(errand),
            bytes,
            recalls: threads.counts.recalls.load(Ordering::Acquire),
        };
        let is_taken = threads.sender.try_send(errand).is_ok();
        if is_taken {
            self.ahead.figures.errands.fetch_add(1, Ordering::Relaxed);
        } else {
            drop(Ending(&threads.counts, bytes));
        }
        is_taken
    }

    /// Waits until every errand has ended: tests look at the cache then.
    pub fn settle_ahead(&self) {
        if let Some(threads) = self.ahead.threads.get() {
            threads.wait(&self.topology());
        }
    }

    /// Calls back what was sent so far, and waits for what has begun, so that nothing of it holds a device any more. Of
    /// a view nothing is called back: the store that it looks through does that.
    pub fn recall_ahead(&self) {
        if let Some(threads) = self.ahead.threads.get()
            && !self.is_view
        {
            threads.recall();
            threads.wait(&self.topology());
        }
    }

    /// Ends reading ahead for good, as [`BlockStore::recall_ahead`] does for now.
    pub fn end_ahead(&self) {
        if !self.is_view {
            self.set_read_ahead(false);
            self.recall_ahead();
        }
    }

    /// What reading ahead did.
    #[must_use]
    pub fn ahead_figures(&self) -> AheadFigures {
        AheadFigures {
            errands: self.ahead.figures.errands.load(Ordering::Relaxed),
            read: self.ahead.figures.read.load(Ordering::Relaxed),
            given_up: self.ahead.figures.given_up.load(Ordering::Relaxed),
        }
    }

    /// The content behind a pointer from the cache, or read as a guess into the cache. `None` if there is any
    /// trouble, if it is a gang block or has no checksum, or if the cache has no room for guesses. Holes and what is embedded come
    /// too, and take no room.
    ///
    /// Memory: as [`BlockStore::read`].
    #[must_use]
    pub fn read_ahead(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Arc<Block>> {
        self.admit(pointer, address, key).ok()?;
        if pointer.is_hole() || pointer.is_embedded() {
            return self.read(pointer, address, key).ok();
        }
        let identity = Identity::of(pointer, key);
        if let Some(block) = self.cache.peek(&identity) {
            return Some(block);
        }
        loop {
            let (flight, is_mine) = self.board(&identity, true);
            if is_mine {
                return self.guess(&identity, &flight, pointer, address, key, Room::default());
            }
            match flight.wait(&self.topology()) {
                Waited::Landed(outcome) => return outcome.ok(),
                Waited::Nothing => {}
                Waited::Overdue => return None,
            }
        }
    }

    /// As [`BlockStore::read_ahead`] for a block that is only to be in the cache: if somebody reads it just now,
    /// that will do. False if there was trouble or no room.
    ///
    /// `room` is memory for the content, if it is as large. Each thread's memory comes from a place of its own, and
    /// fresh pages are dear: what the reader gives was often used before, and goes back to it.
    #[must_use]
    pub fn fetch_ahead(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        room: Room,
    ) -> bool {
        if self.admit(pointer, address, key).is_err() {
            return false;
        }
        if pointer.is_hole() || pointer.is_embedded() {
            return true;
        }
        let identity = Identity::of(pointer, key);
        if self.cache.contains(&identity) {
            return true;
        }
        let (flight, is_mine) = self.board(&identity, true);
        !is_mine || (self.guess(&identity, &flight, pointer, address, key, room)).is_some()
    }

    fn guess(
        &self,
        identity: &Identity,
        flight: &Flight,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        room: Room,
    ) -> Option<Arc<Block>> {
        let block = self.try_guess(identity, flight, pointer, address, key, room);
        let figures = &self.ahead.figures;
        let figure = match block {
            Some(_) => &figures.read,
            None => &figures.given_up,
        };
        figure.fetch_add(1, Ordering::Relaxed);
        block
    }

    fn try_guess(
        &self,
        identity: &Identity,
        flight: &Flight,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        room: Room,
    ) -> Option<Arc<Block>> {
        let landing = self.landing(identity, flight);
        let weight = pointer.lsize_bytes() + 128;
        if !self.cache.has_room_for_guess(identity, weight) {
            return None;
        }
        // Another reader may have landed between our look into the cache and our take-off.
        let block = self.cache.peek(identity).or_else(|| {
            // What is stored as it is can be read where it will stay.
            let is_plain = pointer.compression() == Some(CompressionKind::Off);
            let (for_stored, for_content) = match is_plain && room.is_used {
                true => (room.memory, None),
                false => (Vec::new(), Some(room.memory)),
            };
            let stored = self.read_without_trace(pointer, for_stored)?;
            (self.unfold_stored(pointer, address, key, stored, for_content)).ok()
        })?;
        let (is_kept, gone) =
            (self.cache).insert_guess(identity.clone(), Arc::clone(&block), weight);
        self.rooms.give_blocks(gone);
        if !is_kept {
            return None;
        }
        landing.settle(Ok(Arc::clone(&block)));
        Some(block)
    }

    /// The stored bytes at the first address, if every leaf that was asked told right.
    fn read_without_trace(&self, pointer: &BlockPointer, room: Vec<u8>) -> Option<Vec<u8>> {
        if pointer.checksum_kind() == Some(ChecksumKind::Off) {
            // Whatever lies there would pass.
            return None;
        }
        let checksummer = self.checksummer();
        let dva: Dva = pointer.dvas().next().filter(|dva| !dva.is_gang)?;
        let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
        let (size, birth) = (pointer.psize_bytes(), pointer.physical_birth());
        let class = IoClass::AsyncRead;
        let way = Way { class, room };
        let resolved = look(&self.topology(), dva, size, birth, way, &mut verify).ok()?;
        (resolved.liars.is_empty() && resolved.repairs.is_empty()).then_some(resolved.data)
    }
}

/// What came of somebody else's read.
pub(crate) enum Waited {
    /// This.
    Landed(Result<Arc<Block>, crate::BlockError>),
    /// Nothing: it was a guess.
    Nothing,
    /// It takes longer than a device may: whoever waits reads by itself.
    Overdue,
}

impl Flight {
    /// Waits for the end of somebody else's read.
    pub(crate) fn wait(&self, topology: &Topology) -> Waited {
        let overdue = Overdue::of(topology);
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Some(Some(outcome)) => return Waited::Landed(outcome.clone()),
                Some(None) => return Waited::Nothing,
                None => {}
            }
            if !overdue.wait(&self.done, &mut outcome) && outcome.is_none() {
                return Waited::Overdue;
            }
        }
    }
}
