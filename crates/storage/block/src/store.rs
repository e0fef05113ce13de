//! Reads blocks: from pointer to content.

mod damaged;
mod expand;
mod in_flight;
mod topologies;

pub(crate) use in_flight::ReadKind;

use crate::block_cache::{BlockCache, CacheKey, Cached, Fetched, class_of};
use crate::buffer_pool::PooledBuf;
use crate::cache_devices::CacheDevices;
use crate::copies::Begun;
use crate::damage::{Damage, PointerValidity};
use crate::io_stats::{TimeStats, Times};
use crate::prefetch::{Prefetcher, Waited};
use crate::reflow::Standstill;
use crate::retry::Retries;
use crate::topology::Topology;
use crate::write::{BlockWrite, Writing};
use crate::{Block, BlockAddress, BlockError, ViewExpiry};
use millpond_cache::{CacheStatistics, Retention};
use millpond_checksum::{Checksummer, Salt};
use millpond_crypt::{CryptError, DatasetKey, verify_indirect_block};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, RwLock, Weak};
use millpond_env::thread::is_alone;
use millpond_ondisk::{
    BlockPointer, CompressionKind, DecodeError, EmbeddedKind, Level, ObjectType,
};
use std::collections::HashMap;
use topologies::{Followers, TopologyCell};

/// Reads and writes the blocks of one open pool. Shared by all threads.
///
/// Locks: the in-flight table is held only to look up or register a read, never across I/O. The topology
/// and the checksum state are behind locks that are held for the time of a clone.
pub struct BlockStore {
    topology: Arc<TopologyCell>,
    /// The topologies of views, which follow the progress of an expansion.
    views: Arc<Mutex<Vec<Weak<TopologyCell>>, rank::Leaf>>,
    /// The topologies of views that have the store's leaves.
    followers: Arc<Mutex<Followers, rank::ViewFollowers>>,
    pub(crate) standstill: Standstill,
    /// Topologies that were replaced and may still be in use.
    former: Mutex<Vec<Weak<Topology>>, rank::Leaf>,
    checksummer: RwLock<Arc<Checksummer>, rank::Leaf>,
    pub(crate) cache: Arc<BlockCache>,
    /// The number of this store, or of the one behind this view, in the cache.
    number: u64,
    in_flight: Mutex<HashMap<CacheKey, Arc<InFlightRead>>, rank::Leaf>,
    pub(crate) prefetcher: Arc<Prefetcher>,
    pub(crate) is_view: bool,
    /// Whether it reads an older state than the newest one.
    is_past: AtomicBool,
    /// Whether blocks of the state that this view reads may be in use again. Never for another store.
    pub(crate) expiry: Arc<ViewExpiry>,
    pub(crate) writing: Writing,
    pub(crate) retries: Retries,
    log_commits: Times,
    damage: Arc<Damage>,
    pub(crate) cache_devices: Arc<CacheDevices>,
}

impl std::fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockStore").finish_non_exhaustive()
    }
}

/// An in-flight read that several callers may join.
pub(crate) struct InFlightRead {
    /// The outcome; the inner value is `None` if a speculative read failed.
    pub(crate) outcome: Mutex<Option<Finished>, rank::Leaf>,
    pub(crate) done: Condvar,
    /// Whether the read is speculative. Its errors are not reported to callers that joined.
    is_speculative: bool,
    /// Whether the block goes into the cache. Otherwise a caller that joined and wants it kept puts it there.
    is_kept: bool,
}

/// The outcome of a read; `None` if it was speculative and failed.
type Finished = Option<Result<Fetched, BlockError>>;

impl Drop for BlockStore {
    fn drop(&mut self) {
        if !self.is_view {
            // No device is written to after its pool is closed.
            self.finish_batches();
            self.remove_cache_devices();
            self.cache.remove_store(self.number);
        }
    }
}

impl BlockStore {
    /// A store over these leaves that keeps blocks in this cache. If it is made inside [`thread::alone`] it
    /// never starts a thread.
    ///
    /// [`thread::alone`]: millpond_env::thread::alone
    #[must_use]
    pub fn new(topology: Topology, cache: Arc<BlockCache>) -> Self {
        let writing = Writing::default();
        let mut topology = topology;
        if is_alone() {
            writing.set_threads(1);
            topology.deadline = None;
        }
        Self {
            topology: Arc::new(RwLock::new(Arc::new(topology))),
            views: Arc::default(),
            followers: Arc::default(),
            standstill: Standstill::default(),
            former: Mutex::default(),
            checksummer: RwLock::new(Arc::new(Checksummer::new(None))),
            number: cache.add_store(),
            cache,
            in_flight: Mutex::new(HashMap::new()),
            prefetcher: Arc::default(),
            is_view: false,
            is_past: AtomicBool::new(false),
            expiry: Arc::default(),
            writing,
            retries: Retries::default(),
            log_commits: Times::default(),
            damage: Arc::default(),
            cache_devices: Arc::default(),
        }
    }

    /// A store over the current leaves and the same cache that never repairs.
    ///
    /// It serves to read a state of the pool that may be outdated: a pointer of such a state may lead to
    /// space that another block has taken, and a half-written block could be mistaken for damage.
    /// Expire it before such space is reused: from then on no checksum error is counted. Only
    /// [`BlockStore::heal_batch`] repairs.
    #[must_use]
    pub fn view(&self, expiry: Arc<ViewExpiry>) -> Self {
        Self {
            topology: self.topology_of_view(),
            views: Arc::clone(&self.views),
            followers: Arc::clone(&self.followers),
            standstill: Standstill::default(),
            former: Mutex::default(),
            checksummer: RwLock::new(self.checksummer()),
            cache: Arc::clone(&self.cache),
            number: self.number,
            in_flight: Mutex::new(HashMap::new()),
            prefetcher: Arc::clone(&self.prefetcher),
            is_view: true,
            is_past: AtomicBool::new(self.is_past.load(Ordering::Acquire)),
            expiry,
            writing: self.writing.of_view(),
            retries: Retries::default(),
            log_commits: Times::default(),
            damage: Arc::clone(&self.damage),
            cache_devices: Arc::clone(&self.cache_devices),
        }
    }

    /// Says that the store reads an older state of the pool. Its blocks may have been overwritten since they were freed,
    /// so those without a checksum are refused.
    pub fn set_past(&self) {
        self.is_past.store(true, Ordering::Release);
    }
    pub(crate) fn is_past(&self) -> bool {
        self.is_past.load(Ordering::Acquire)
    }
    /// Sets the pool's salt. Without it, blocks with salted checksums cannot be verified.
    pub fn set_salt(&self, salt: Salt) {
        *self.checksummer.write() = Arc::new(Checksummer::new(Some(salt)));
    }
    /// The checksum functions with the pool's salt.
    #[must_use]
    pub fn checksummer(&self) -> Arc<Checksummer> {
        Arc::clone(&self.checksummer.read())
    }
    /// Hits, misses and sizes of the cache, with those of other stores that share it.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.cache.statistics()
    }

    /// Starts the timing of an intent log commit (an fsync), for [`BlockStore::end_log_commit`].
    #[must_use]
    pub fn begin_log_commit(&self) -> u64 {
        self.topology.read().clock.now_ns()
    }
    /// Counts a commit whose changes are now on stable storage, through the log or their txg.
    pub fn end_log_commit(&self, begun_ns: u64) {
        let now_ns = self.topology.read().clock.now_ns();
        self.log_commits.add(now_ns.saturating_sub(begun_ns));
    }
    /// How long commits of intent logs took.
    #[must_use]
    pub fn log_commit_stats(&self) -> TimeStats {
        self.log_commits.stats()
    }

    /// Caches a block that was just written.
    pub(crate) fn keep(&self, pointer: &BlockPointer, job: &BlockWrite, stored: &Arc<Vec<u8>>) {
        let block = Block {
            bytes: Arc::clone(&job.content),
            endian: pointer.endian(),
            has_ciphertext: false,
        };
        let is_plain = pointer.compression() == Some(CompressionKind::Off) && job.key.is_none();
        let fetched = Fetched {
            block: Arc::new(block),
            stored: (!is_plain).then(|| Arc::clone(stored)),
        };
        let key = job.key.as_ref().map(|key| key.key());
        let cache_key = self.cache_key(pointer, key);
        let class = class_of(pointer);
        (self.cache).put(cache_key, &fetched, class, job.retention);
    }

    /// Reads the content of a pointer. A hole yields `lsize` zeros.
    ///
    /// Bytes are returned only if their checksum was verified in memory. At most `lsize` and a few times
    /// `psize` bytes (both at most 16 MiB) are allocated.
    ///
    /// # Errors
    /// [`BlockError`], with `address` and what went wrong with each copy.
    pub fn read(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Result<Arc<Block>, BlockError> {
        self.read_with(pointer, address, key, Retention::Keep)
    }

    /// Reads as [`BlockStore::read`] does; `retention` says whether the block stays in the cache.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn read_with(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        retention: Retention,
    ) -> Result<Arc<Block>, BlockError> {
        let validity = PointerValidity::Current;
        self.read_if_valid(pointer, address, key, retention, validity)
    }

    /// Reads as [`BlockStore::read_with`] does, by a pointer that may be outdated. If it is, and no copy is good, this says
    /// nothing about devices or the pool: nothing is counted or remembered.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn read_if_valid(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        retention: Retention,
        validity: PointerValidity<'_>,
    ) -> Result<Arc<Block>, BlockError> {
        self.admit(pointer, address, key)?;
        if pointer.is_hole() {
            let bytes = vec![0u8; length(pointer.lsize_bytes())];
            return Ok(Arc::new(Block {
                bytes: Arc::new(bytes),
                endian: pointer.endian(),
                has_ciphertext: false,
            }));
        }
        if pointer.is_embedded() {
            return self.unfold_embedded(pointer, address);
        }
        let cache_key = self.cache_key(pointer, key);
        let class = class_of(pointer);
        match self.cache.entries.get_with(&cache_key, class, retention) {
            Some(Cached::Content(block)) => return Ok(block),
            Some(Cached::Stored(stored)) => {
                let block = self.expand(&cache_key, pointer, address, key, stored, retention);
                if let Some(block) = block {
                    return Ok(block);
                }
            }
            None => {}
        }
        if let Some(block) = self.outstanding_content(pointer, key) {
            return Ok(block);
        }
        rank::check_io();
        let read = || self.read_shared(&cache_key, pointer, address, key, retention, validity);
        let outcome = self.with_retries(read);
        if outcome.is_ok() || validity.is_current() {
            self.note_damage(pointer, address, &outcome);
        }
        outcome
    }

    /// Whether it is a view, and space of it may be reused by now.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expiry.has_expired()
    }

    /// The number of this store, or of the one behind this view, in the cache.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Reads a block that is not cached. Callers that miss the same block share one read.
    fn read_shared(
        &self,
        cache_key: &CacheKey,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        retention: Retention,
        validity: PointerValidity<'_>,
    ) -> Result<Arc<Block>, BlockError> {
        let (class, mut has_joined) = (class_of(pointer), false);
        let flight = loop {
            let (flight, is_mine) = self.join_read(cache_key, ReadKind::Demand(retention));
            if is_mine {
                break flight;
            }
            if !has_joined {
                self.cache.entries.count_joined(cache_key, class);
                has_joined = true;
            }
            let outcome = match flight.wait(&self.topology()) {
                Waited::Finished(outcome) => outcome,
                // The speculative read failed; make a normal one.
                Waited::Nothing => continue,
                Waited::Overdue => {
                    let fetched = self.fetch(pointer, address, key, None, validity);
                    return fetched.map(|fetched| fetched.block);
                }
            };
            if flight.is_speculative {
                self.cache.entries.note_used(cache_key, class, retention);
            } else if let Ok(fetched) = &outcome
                && retention.is_kept()
                && !flight.is_kept
                && !self.cache.entries.contains(cache_key)
            {
                self.cache.put(cache_key.clone(), fetched, class, retention);
            }
            return outcome.map(|fetched| fetched.block);
        };
        let completion_guard = self.completion_guard(cache_key, &flight);
        // Another reader may have completed between our cache look-up and our registration.
        let cached = match has_joined {
            false => self.cache.entries.get_again(cache_key, class, retention),
            true => self.cache.entries.peek(cache_key),
        };
        let cached = cached.and_then(|cached| self.content(cached, pointer, address, key));
        let outcome = match cached {
            Some(fetched) => Ok(fetched),
            None => {
                let copy = self.fetch_copy(pointer, address, key);
                let outcome = match copy {
                    Some(fetched) => Ok(fetched),
                    None => self.fetch(pointer, address, key, None, validity),
                };
                if let Ok(fetched) = &outcome {
                    self.cache.put(cache_key.clone(), fetched, class, retention);
                }
                outcome
            }
        };
        completion_guard.settle(outcome.clone());
        outcome.map(|fetched| fetched.block)
    }

    pub(crate) fn cache_key(
        &self,
        pointer: &BlockPointer,
        key: Option<&Arc<DatasetKey>>,
    ) -> CacheKey {
        CacheKey::of(self.number, pointer, key)
    }

    /// A buffer of the given length for content that will be shared.
    #[must_use]
    pub fn buffer(&self, length_bytes: usize) -> PooledBuf {
        self.cache.buffers.buffer(length_bytes)
    }

    /// Evicts a block that was requested once, because its only reader is done with it. A block that was
    /// requested more often stays in the cache.
    pub fn evict(&self, pointer: &BlockPointer, key: Option<&Arc<DatasetKey>>) {
        if !pointer.is_hole() && !pointer.is_embedded() {
            let block = (self.cache.entries).take_if_used_once(&self.cache_key(pointer, key));
            self.cache.buffers.recycle(block);
        }
    }

    /// Reads the content of a pointer from the devices, without looking into the cache or adding to it:
    /// for traversals that see each block once.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn read_uncached(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Result<Block, BlockError> {
        self.admit(pointer, address, key)?;
        if pointer.is_hole() || pointer.is_embedded() {
            return self.read(pointer, address, key).map(Arc::unwrap_or_clone);
        }
        self.with_retries(|| self.fetch(pointer, address, key, None, PointerValidity::Current))
            .map(|fetched| Arc::unwrap_or_clone(fetched.block))
    }

    /// The stored bytes of a block (compressed, perhaps encrypted), checksum verified: `psize` bytes.
    ///
    /// # Errors
    /// As [`BlockStore::read`]; no key is needed.
    pub fn read_stored(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Result<Vec<u8>, BlockError> {
        pointer
            .validate()
            .map_err(|error| BlockError::Invalid { address, error })?;
        self.read_copies(pointer, address, None, PointerValidity::Current)
    }

    /// Decompresses stored bytes that the caller has verified, for example those of an audit. Nothing is
    /// authenticated; encrypted content cannot be decompressed here.
    ///
    /// # Errors
    /// [`BlockError::Locked`] if the content is encrypted (dnode blocks are returned with their bonus areas
    /// still encrypted), or an error if it does not decompress.
    pub fn decrypt_and_decompress(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        stored: &[u8],
    ) -> Result<Block, BlockError> {
        let has_ciphertext = pointer.is_encrypted();
        if has_ciphertext && pointer.object_type() != ObjectType::DNODE {
            return Err(BlockError::Locked { address });
        }
        let bytes = decompress(pointer, stored, address)?;
        Ok(Block {
            bytes: Arc::new(bytes),
            endian: pointer.endian(),
            has_ciphertext,
        })
    }

    /// Refuses pointers that cannot be followed at all.
    pub(crate) fn admit(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Result<(), BlockError> {
        let invalid = |error| BlockError::Invalid { address, error };
        pointer.validate().map_err(invalid)?;
        if pointer.embedded_kind() == Some(EmbeddedKind::Redacted) {
            return Err(BlockError::Redacted { address });
        }
        // In a dnode block only the bonus areas are encrypted; it is returned without a key.
        let needs_key = pointer.is_encrypted() && pointer.object_type() != ObjectType::DNODE;
        if needs_key && key.is_none() {
            return Err(BlockError::Locked { address });
        }
        self.topology
            .read()
            .accepts(pointer)
            .map_err(|reason| invalid(DecodeError::new("block pointer", reason, 0)))
    }

    fn unfold_embedded(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Result<Arc<Block>, BlockError> {
        let payload = pointer.embedded_payload().ok_or(BlockError::Invalid {
            address,
            error: DecodeError::new("block pointer", "embedded payload above 112 bytes", 51),
        })?;
        let bytes = decompress(pointer, payload.as_bytes(), address)?;
        Ok(Arc::new(Block {
            bytes: Arc::new(bytes),
            endian: pointer.endian(),
            has_ciphertext: false,
        }))
    }
}

fn length(bytes: u64) -> usize {
    // `validate` limits every size to 16 MiB.
    usize::try_from(bytes.min(millpond_ondisk::BLOCK_BYTES_MAX)).unwrap_or(0)
}

fn decompress(
    pointer: &BlockPointer,
    stored: &[u8],
    address: BlockAddress,
) -> Result<Vec<u8>, BlockError> {
    decompress_into(pointer, stored, address, Vec::new())
}

/// Like `decompress`, into the given buffer if it is large enough.
fn decompress_into(
    pointer: &BlockPointer,
    stored: &[u8],
    address: BlockAddress,
    buffer: Vec<u8>,
) -> Result<Vec<u8>, BlockError> {
    let kind = pointer.compression().unwrap_or(CompressionKind::Off);
    let length = length(pointer.lsize_bytes());
    let mut bytes = if buffer.capacity() < length {
        vec![0; length]
    } else {
        let mut buffer = buffer;
        buffer.clear();
        buffer.resize(length, 0);
        buffer
    };
    millpond_compress::decompress(kind, stored, &mut bytes).map_err(|error| {
        BlockError::Decompression {
            address,
            reason: error.to_string(),
        }
    })?;
    Ok(bytes)
}
