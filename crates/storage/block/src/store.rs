//! The way of a block from pointer to content.

use crate::ahead::{Ahead, Waited};
use crate::copies::Begun;
use crate::damage::{Damage, DamagedBlock};
use crate::patience::Patient;
use crate::rooms::{Room, Rooms};
use crate::topology::Topology;
use crate::waits::{TimeFigures, Times};
use crate::write::Writing;
use crate::{Block, BlockAddress, BlockError};
use millpond_cache::{Cache, CacheStatistics};
use millpond_checksum::{Checksummer, Salt};
use millpond_crypt::{CryptError, DatasetKey, verify_indirect_block};
use millpond_env::sync::{Arc, Condvar, Mutex, RwLock};
use millpond_env::thread::is_alone;
use millpond_ondisk::{
    BlockPointer, CompressionKind, DecodeError, EmbeddedKind, Level, ObjectType,
};
use std::collections::HashMap;

/// Reads and writes the blocks of one open pool. Shared by all threads.
///
/// Locks: the in-flight table is held only to look up or register a read, never across I/O; the
/// topology and the checksum state are behind locks held for the time of a clone.
pub struct BlockStore {
    topology: RwLock<Arc<Topology>>,
    checksummer: RwLock<Arc<Checksummer>>,
    pub(crate) cache: Arc<Cache<Identity, Arc<Block>>>,
    /// What guesses may weigh in the cache, in bytes.
    pub(crate) guess_bytes_max: u64,
    pub(crate) rooms: Arc<Rooms>,
    in_flight: Mutex<HashMap<Identity, Arc<Flight>>>,
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) is_view: bool,
    pub(crate) writing: Writing,
    pub(crate) patient: Patient,
    log_commits: Times,
    damage: Arc<Damage>,
}

impl std::fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockStore").finish_non_exhaustive()
    }
}

/// What makes two pointers name the same verified content: the first address, the properties, the
/// physical birth and the checksum. The checksum is part of it so that a forged pointer to the same
/// place never gets bytes that were verified for another; whether a key was at hand is part of it
/// because blocks of dnodes differ by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    words: [u64; 8],
    key_guid: Option<u64>,
}

impl Identity {
    pub(crate) fn of(pointer: &BlockPointer, key: Option<&Arc<DatasetKey>>) -> Self {
        let words = &pointer.words;
        let [c0, c1, c2, c3] = pointer.checksum_words();
        Self {
            words: [
                words[0],
                words[1],
                words[6],
                pointer.physical_birth().0,
                c0,
                c1,
                c2,
                c3,
            ],
            key_guid: if pointer.has_crypt_bit() {
                key.map(|key| key.guid().0)
            } else {
                None
            },
        }
    }
}

/// A read that several callers may wait for.
pub(crate) struct Flight {
    /// What came of it; of a guess `None` within if that was nothing.
    pub(crate) outcome: Mutex<Option<Landed>>,
    pub(crate) done: Condvar,
    /// Nobody asked for it: what goes wrong says nothing to those who do.
    is_guess: bool,
}

/// What came of a read; `None` if it was a guess that came to nothing.
type Landed = Option<Result<Arc<Block>, BlockError>>;

impl BlockStore {
    /// A store over these leaves that keeps at most `cache_bytes` of content in memory. One that is made in
    /// [`thread::alone`] starts no thread, ever.
    ///
    /// [`thread::alone`]: millpond_env::thread::alone
    #[must_use]
    pub fn new(topology: Topology, cache_bytes: u64) -> Self {
        let cache = Cache::new(cache_bytes);
        let writing = Writing::default();
        let mut topology = topology;
        if is_alone() {
            writing.set_threads(1);
            topology.deadline = None;
        }
        Self {
            topology: RwLock::new(Arc::new(topology)),
            checksummer: RwLock::new(Arc::new(Checksummer::new(None))),
            guess_bytes_max: cache.guess_bytes_max(),
            rooms: Arc::new(Rooms::new(rooms_bytes_max(cache_bytes))),
            cache: Arc::new(cache),
            in_flight: Mutex::new(HashMap::new()),
            ahead: Arc::default(),
            is_view: false,
            writing,
            patient: Patient::default(),
            log_commits: Times::default(),
            damage: Arc::default(),
        }
    }

    /// A store over the present leaves and the same cache that never repairs: for looking at a state
    /// that may be overtaken. A pointer of such a state may lead to space that another block has by
    /// now, half of whose copies could be mistaken for damage.
    #[must_use]
    pub fn view(&self) -> Self {
        Self {
            topology: RwLock::new(self.topology()),
            checksummer: RwLock::new(self.checksummer()),
            cache: Arc::clone(&self.cache),
            guess_bytes_max: self.guess_bytes_max,
            rooms: Arc::clone(&self.rooms),
            in_flight: Mutex::new(HashMap::new()),
            ahead: Arc::clone(&self.ahead),
            is_view: true,
            writing: self.writing.of_view(),
            patient: Patient::default(),
            log_commits: Times::default(),
            damage: Arc::clone(&self.damage),
        }
    }

    /// The present leaves.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read())
    }
    /// Takes another set of leaves from now on (the trusted configuration in place of the labels').
    pub fn set_topology(&self, topology: Topology) {
        let mut topology = topology;
        if self.is_single_threaded() {
            // Nobody else could make the requests.
            topology.deadline = None;
        }
        *self.topology.write() = Arc::new(topology);
    }
    /// Changes the present leaves: what each has missed, for instance. Counters stay.
    pub fn change_topology(&self, change: impl FnOnce(&mut Topology)) {
        let mut present = self.topology.write();
        let mut topology = Topology::clone(&present);
        change(&mut topology);
        *present = Arc::new(topology);
    }
    /// Makes the pool's salt known; before, blocks with salted checksums cannot be verified.
    pub fn set_salt(&self, salt: Salt) {
        *self.checksummer.write() = Arc::new(Checksummer::new(Some(salt)));
    }
    /// The checksum functions with the pool's salt.
    #[must_use]
    pub fn checksummer(&self) -> Arc<Checksummer> {
        Arc::clone(&self.checksummer.read())
    }
    /// How well the cache does.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.cache.statistics()
    }

    /// When a commit of an intent log (an fsync) is asked for: for [`BlockStore::end_log_commit`].
    #[must_use]
    pub fn begin_log_commit(&self) -> u64 {
        self.topology.read().clock.now_ns()
    }
    /// Counts one whose changes are on stable storage now, by the log or by their txg.
    pub fn end_log_commit(&self, begun_ns: u64) {
        let now_ns = self.topology.read().clock.now_ns();
        self.log_commits.add(now_ns.saturating_sub(begun_ns));
    }
    /// How long commits of intent logs took.
    #[must_use]
    pub fn log_commit_figures(&self) -> TimeFigures {
        self.log_commits.figures()
    }

    /// Keeps the content of a block that was just written.
    pub(crate) fn keep(&self, pointer: &BlockPointer, content: &Arc<Vec<u8>>) {
        let block = Block {
            bytes: Arc::clone(content),
            endian: pointer.endian(),
            has_ciphertext: false,
        };
        self.put(Identity::of(pointer, None), &Arc::new(block));
    }

    /// The content behind a pointer. A hole gives `lsize` zeros.
    ///
    /// Bytes are returned only if their checksum held in this memory. At most `lsize` and a few times
    /// `psize` bytes (both at most 16 MiB) are allocated.
    ///
    /// # Errors
    /// [`BlockError`], naming `address` and what each copy had to say.
    pub fn read(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
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
        let identity = Identity::of(pointer, key);
        if let Some(block) = self.cache.get(&identity) {
            return Ok(block);
        }
        let outcome = self.with_patience(|| self.read_shared(&identity, pointer, address, key));
        match &outcome {
            // What a view's pointers lead to may be another block's by now.
            Err(BlockError::Corrupt { .. }) if !self.is_view => self.damage.note(address, pointer),
            Ok(_) if !self.is_view => self.damage.mended(&address),
            _ => {}
        }
        outcome
    }

    /// Blocks of which no good copy was found since the store (or that of which this is a view) was made, unless they
    /// could be read later: at most 10,000.
    #[must_use]
    pub fn damaged_blocks(&self) -> Vec<DamagedBlock> {
        self.damage.all()
    }

    /// Reads what the cache does not have, together with others who miss the same.
    fn read_shared(
        &self,
        identity: &Identity,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Result<Arc<Block>, BlockError> {
        let flight = loop {
            let (flight, is_mine) = self.board(identity, false);
            if is_mine {
                break flight;
            }
            let outcome = match flight.wait(&self.topology()) {
                Waited::Landed(outcome) => outcome,
                // Now it is read in earnest.
                Waited::Nothing => continue,
                Waited::Overdue => return self.fetch(pointer, address, key, None),
            };
            if flight.is_guess {
                // It was asked for after all.
                let _ = self.cache.get(identity);
            }
            return outcome;
        };
        let landing = self.landing(identity, &flight);
        // Another reader may have landed between our look into the cache and our take-off.
        let outcome = match self.cache.get(identity) {
            Some(block) => Ok(block),
            None => self.fetch(pointer, address, key, None),
        };
        if let Ok(block) = &outcome {
            self.put(identity.clone(), block);
        }
        landing.settle(outcome.clone());
        outcome
    }

    /// Keeps a block in the cache.
    pub(crate) fn put(&self, identity: Identity, block: &Arc<Block>) {
        let weight = block.bytes.len() as u64 + 128;
        let gone = self.cache.insert(identity, Arc::clone(block), weight);
        self.rooms.give_blocks(gone);
    }

    /// Memory for a content that others will read: as large as is wanted.
    #[must_use]
    pub fn room(&self, length_bytes: usize) -> Room {
        self.rooms.room(length_bytes)
    }

    /// The content behind a pointer if it is in the cache, which takes no note of that.
    #[must_use]
    pub fn cached(
        &self,
        pointer: &BlockPointer,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Arc<Block>> {
        self.cache.peek(&Identity::of(pointer, key))
    }

    /// Lets go of a block that was asked for once: whoever did is done with it, and will not ask again. What was
    /// asked for more often stays in the cache.
    pub fn let_go(&self, pointer: &BlockPointer, key: Option<&Arc<DatasetKey>>) {
        if !pointer.is_hole() && !pointer.is_embedded() {
            let block = self.cache.take_if_used_once(&Identity::of(pointer, key));
            self.rooms.give_blocks(block);
        }
    }

    /// The read under way of this block; its second part is true for whoever has to make it.
    pub(crate) fn board(&self, identity: &Identity, is_guess: bool) -> (Arc<Flight>, bool) {
        let mut table = self.in_flight.lock();
        if let Some(flight) = table.get(identity) {
            return (Arc::clone(flight), false);
        }
        let flight = Arc::new(Flight {
            outcome: Mutex::new(None),
            done: Condvar::new(),
            is_guess,
        });
        table.insert(identity.clone(), Arc::clone(&flight));
        (flight, true)
    }

    /// The end of a read, for whoever makes it.
    pub(crate) fn landing<'a>(&'a self, identity: &'a Identity, flight: &'a Flight) -> Landing<'a> {
        Landing {
            store: self,
            identity,
            flight,
        }
    }

    /// The content behind a pointer, read from the devices whatever the cache holds, and not kept:
    /// for walks that see each block once.
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
        self.with_patience(|| self.fetch(pointer, address, key, None))
            .map(Arc::unwrap_or_clone)
    }

    /// The stored bytes of a block (compressed, perhaps encrypted), checksum verified: `psize` bytes.
    ///
    /// # Errors
    /// As [`BlockStore::read`]; a key is never needed.
    pub fn read_stored(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Result<Vec<u8>, BlockError> {
        pointer
            .validate()
            .map_err(|error| BlockError::Invalid { address, error })?;
        self.read_copies(pointer, address, None)
    }

    /// The content of a block whose stored bytes are at hand and verified, as an audit gives them.
    /// Nothing is authenticated: without a key only what is plain can be unfolded.
    ///
    /// # Errors
    /// [`BlockError::Locked`] if the content is encrypted (blocks of dnodes come back with their
    /// bonus areas still encrypted); if it does not decompress.
    pub fn unfold(
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
        // Of a block of dnodes only the bonus areas are ciphertext; it is shown without a key.
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

    /// Reads, verifies, decrypts and decompresses. `begun` is what was asked for already.
    pub(crate) fn fetch(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        begun: Option<Begun>,
    ) -> Result<Arc<Block>, BlockError> {
        let stored = self.read_copies(pointer, address, begun)?;
        self.unfold_stored(pointer, address, key, stored, None)
    }

    /// Decrypts and decompresses stored bytes whose checksum held, into `room` if there is any that is large enough.
    pub(crate) fn unfold_stored(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        mut stored: Vec<u8>,
        room: Option<Vec<u8>>,
    ) -> Result<Arc<Block>, BlockError> {
        let endian = pointer.endian();
        let unauthentic = |error: CryptError| BlockError::Authentication {
            address,
            reason: error.to_string(),
        };
        let is_indirect = pointer.level() > Level(0);
        let mut has_ciphertext = false;
        if pointer.has_crypt_bit() && !is_indirect {
            match key {
                Some(key) => key
                    .decrypt_block(pointer, &mut stored)
                    .map_err(unauthentic)?,
                None => has_ciphertext = pointer.is_encrypted(),
            }
        }
        let bytes = match pointer.compression() {
            Some(CompressionKind::Off) if stored.len() as u64 == pointer.lsize_bytes() => {
                match room.filter(|room| room.capacity() >= stored.len()) {
                    Some(mut room) => {
                        room.clear();
                        room.extend_from_slice(&stored);
                        room
                    }
                    None => stored,
                }
            }
            _ => {
                let length = length(pointer.lsize_bytes());
                let room = (room.or_else(|| self.rooms.take(length))).unwrap_or_default();
                decompress_into(pointer, &stored, address, room)?
            }
        };
        if is_indirect && (key.is_some() || pointer.has_crypt_bit()) {
            verify_indirect_block(pointer, &bytes).map_err(unauthentic)?;
        }
        Ok(Arc::new(Block {
            bytes: Arc::new(bytes),
            endian,
            has_ciphertext,
        }))
    }
}

/// Wakes the waiters of a read even if the reader panics, so that nobody waits for ever.
pub(crate) struct Landing<'a> {
    store: &'a BlockStore,
    identity: &'a Identity,
    flight: &'a Flight,
}

impl Landing<'_> {
    pub(crate) fn settle(self, outcome: Result<Arc<Block>, BlockError>) {
        *self.flight.outcome.lock() = Some(Some(outcome));
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.store.in_flight.lock().remove(self.identity);
        let mut outcome = self.flight.outcome.lock();
        if outcome.is_none() {
            *outcome = Some((!self.flight.is_guess).then(|| {
                Err(BlockError::Invalid {
                    address: BlockAddress::default(),
                    error: DecodeError::new("block", "its reader failed", 0),
                })
            }));
        }
        self.flight.done.notify_all();
    }
}

/// How much memory waits for the next contents: a share of the cache, 16 MiB at most.
fn rooms_bytes_max(cache_bytes: u64) -> usize {
    (cache_bytes / 16).min(16 << 20) as usize
}

fn length(bytes: u64) -> usize {
    // `validate` bounds every size by 16 MiB.
    usize::try_from(bytes.min(millpond_ondisk::BLOCK_BYTES_MAX)).unwrap_or(0)
}

fn decompress(
    pointer: &BlockPointer,
    stored: &[u8],
    address: BlockAddress,
) -> Result<Vec<u8>, BlockError> {
    decompress_into(pointer, stored, address, Vec::new())
}

/// The same into memory that is at hand, if it is large enough.
fn decompress_into(
    pointer: &BlockPointer,
    stored: &[u8],
    address: BlockAddress,
    room: Vec<u8>,
) -> Result<Vec<u8>, BlockError> {
    let kind = pointer.compression().unwrap_or(CompressionKind::Off);
    let length = length(pointer.lsize_bytes());
    let mut bytes = if room.capacity() < length {
        vec![0; length]
    } else {
        let mut room = room;
        room.clear();
        room.resize(length, 0);
        room
    };
    millpond_compress::decompress(kind, stored, &mut bytes).map_err(|error| {
        BlockError::Decompression {
            address,
            reason: error.to_string(),
        }
    })?;
    Ok(bytes)
}
