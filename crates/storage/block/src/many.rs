//! Reads of many blocks with one call.

use crate::block_cache::{CacheKey, Cached, class_of};
use crate::copies::Begun;
use crate::damage::PointerValidity;
use crate::store::{InFlightRead, ReadKind};
use crate::{Block, BlockAddress, BlockError, BlockStore};
use millpond_cache::Retention;
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Endian};
use std::collections::VecDeque;

/// The most blocks that one worker reads as one batch to modify them.
const OWN_MAX: usize = 8;

/// A block of a batch that the caller has to read.
struct OwnedRead {
    /// Its index in the batch.
    number: usize,
    cache_key: CacheKey,
    flight: Arc<InFlightRead>,
}

impl BlockStore {
    /// Reads several blocks and returns the outcomes in the order of `wanted`, each as [`BlockStore::read`]
    /// returns it.
    ///
    /// Everything happens on the calling thread, but the devices get the reads of several blocks at once.
    /// For neighbouring blocks and blocks on different devices this is faster than one `read` after the
    /// other. The blocks are in the cache afterwards, and no candidates for cache
    /// devices.
    ///
    /// All contents are in memory at once: the sum of their `lsize`, each at most 16 MiB.
    ///
    /// # Errors
    /// For each block: as [`BlockStore::read`].
    pub fn read_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
        key: Option<&Arc<DatasetKey>>,
    ) -> Vec<Result<Arc<Block>, BlockError>> {
        let mut outcomes: Vec<Option<Result<Arc<Block>, BlockError>>> = vec![];
        let mut owned: Vec<OwnedRead> = vec![];
        for (number, (pointer, address)) in wanted.iter().enumerate() {
            let outcome = self.find(number, pointer, *address, key, &mut owned);
            outcomes.push(outcome.transpose());
        }
        let mut guards: VecDeque<_> = owned
            .iter()
            .map(|owned| self.completion_guard(&owned.cache_key, &owned.flight))
            .collect();
        let mut rest = owned.as_slice();
        while !rest.is_empty() {
            let pointers = rest.iter().filter_map(|owned| wanted.get(owned.number));
            let group = self.begin(pointers.map(|(pointer, _)| pointer));
            let (now, later) = rest.split_at(group.len().clamp(1, rest.len()));
            rest = later;
            for (owned, mut begun) in now.iter().zip(group) {
                let (Some((pointer, address)), Some(completion_guard)) =
                    (wanted.get(owned.number), guards.pop_front())
                else {
                    continue;
                };
                let outcome = self.with_retries(|| {
                    self.fetch(
                        pointer,
                        *address,
                        key,
                        begun.take(),
                        PointerValidity::Current,
                    )
                });
                if let Ok(fetched) = &outcome {
                    let (key, class) = (owned.cache_key.clone(), class_of(pointer));
                    self.cache.put(key, fetched, class, Retention::KeepInMemory);
                }
                completion_guard.settle(outcome.clone());
                let outcome = outcome.map(|fetched| fetched.block);
                self.note_damage(pointer, *address, &outcome);
                if let Some(place) = outcomes.get_mut(owned.number) {
                    *place = Some(outcome);
                }
            }
        }
        // In-flight reads of other threads come last: this thread waits only once no other waits for it.
        let each = outcomes.into_iter().zip(wanted);
        each.map(|(outcome, (pointer, address))| {
            outcome.unwrap_or_else(|| self.read(pointer, *address, key))
        })
        .collect()
    }

    /// Reads several blocks as they are stored and returns the outcomes in the order of `wanted`, each as
    /// [`BlockStore::read_stored`] returns it.
    ///
    /// As for [`BlockStore::read_batch`], the devices get the reads of several blocks at once. The cache is not used.
    ///
    /// # Errors
    /// For each block: as [`BlockStore::read_stored`].
    pub fn read_stored_batch(
        &self,
        wanted: &[(BlockPointer, BlockAddress)],
    ) -> Vec<Result<Vec<u8>, BlockError>> {
        let is_valid = |pointer: &BlockPointer| pointer.validate().is_ok();
        let mut valid = (wanted.iter())
            .map(|(pointer, _)| pointer)
            .filter(|pointer| is_valid(pointer));
        let mut begun: VecDeque<Option<Begun>> = VecDeque::new();
        let outcomes = wanted.iter().map(|(pointer, address)| {
            if !is_valid(pointer) {
                return self.read_stored(pointer, *address);
            }
            if begun.is_empty() {
                begun.extend(self.begin(valid.by_ref()));
            }
            let begun = begun.pop_front().flatten();
            self.read_copies(pointer, *address, begun, PointerValidity::Current)
        });
        outcomes.collect()
    }

    /// Looks a block up without reading a device. Returns `None` if the block has to be read: by the caller
    /// if it was added to `owned`, else another thread has the read in flight.
    fn find(
        &self,
        number: usize,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        owned: &mut Vec<OwnedRead>,
    ) -> Result<Option<Arc<Block>>, BlockError> {
        self.admit(pointer, address, key)?;
        if pointer.is_hole() || pointer.is_embedded() {
            return self.read(pointer, address, key).map(Some);
        }
        let cache_key = self.cache_key(pointer, key);
        let class = class_of(pointer);
        let kind = ReadKind::Demand(Retention::KeepInMemory);
        let retention = Retention::KeepInMemory;
        match (self.cache.entries).get_with(&cache_key, class, retention) {
            Some(Cached::Content(block)) => return Ok(Some(block)),
            Some(Cached::Stored(stored)) => {
                let block = self.expand(&cache_key, pointer, address, key, stored, retention);
                if block.is_some() {
                    return Ok(block);
                }
            }
            None => {}
        }
        let (flight, is_mine) = self.join_read(&cache_key, kind);
        if is_mine {
            owned.push(OwnedRead {
                number,
                cache_key,
                flight,
            });
        } else {
            // The caller's `read` counts it.
            self.cache.entries.uncount_miss(&cache_key, class);
        }
        Ok(None)
    }

    /// Reads blocks to modify them: returns private copies of the contents, in order.
    ///
    /// `treat` changes each and gets its byte order. The writer threads do the reads. Blocks that are not
    /// cached are not added to the cache, and cached ones are removed: they are about to be overwritten.
    ///
    /// All contents are in memory at once: the sum of their `lsize`, each at most 16 MiB.
    ///
    /// # Errors
    /// For each block: as [`BlockStore::read`], or the error of `treat`.
    pub fn read_many<T, E>(
        self: &Arc<Self>,
        wanted: Vec<(BlockPointer, BlockAddress, T)>,
        key: Option<&Arc<DatasetKey>>,
        treat: impl Fn(&mut Vec<u8>, Endian, T) -> Result<(), E> + Send + Sync + 'static,
    ) -> Vec<Result<Result<Vec<u8>, E>, BlockError>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let treat = Arc::new(treat);
        let topology = self.topology();
        let pools = self.writing.pools(&topology);
        // Each worker takes several blocks where devices have queue depth, as long as every worker gets
        // some.
        let share = wanted.len() / (topology.devices.len() + 2);
        let own = if topology.group_bytes() == 0 {
            1
        } else {
            share.clamp(1, OWN_MAX)
        };
        let mut wanted = wanted.into_iter();
        let parts: Vec<Vec<(BlockPointer, BlockAddress, T)>> =
            std::iter::from_fn(|| Some(wanted.by_ref().take(own).collect::<Vec<_>>()))
                .take_while(|part| !part.is_empty())
                .collect();
        let tries = {
            let (store, treat) = (Arc::clone(self), Arc::clone(&treat));
            let key = key.cloned();
            pools.queues.map(parts, move |part: Vec<(_, _, T)>| {
                let own = part.iter().map(|(pointer, address, _)| (pointer, *address));
                let contents = store.read_own(own, key.as_ref());
                let each = part.into_iter().zip(contents);
                each.map(|((pointer, address, what), content)| match content {
                    Ok((mut content, endian)) => {
                        Ok(treat(&mut content, endian, what).map(|()| content))
                    }
                    Err(_) => Err(Box::new((pointer, address, what))),
                })
                .collect::<Vec<_>>()
            })
        };
        let results = tries.into_iter().flatten().map(|outcome| match outcome {
            Ok(treated) => Ok(treated),
            // Retry on this thread, which may be in retry mode and reports the reason.
            Err(failed) => {
                let (pointer, address, what) = *failed;
                let block = self.read(&pointer, address, key)?;
                let mut content = block.bytes.to_vec();
                Ok(treat(&mut content, block.endian, what).map(|()| content))
            }
        });
        results.collect()
    }

    /// Contents that the caller may modify, from the cache or from the devices.
    fn read_own<'a>(
        &self,
        wanted: impl Iterator<Item = (&'a BlockPointer, BlockAddress)> + Clone,
        key: Option<&Arc<DatasetKey>>,
    ) -> Vec<Result<(Vec<u8>, Endian), BlockError>> {
        // Evict the old content. If it has no other reference, the new content reuses its memory.
        let taken: Vec<Option<Arc<Block>>> = wanted
            .clone()
            .map(|(pointer, address)| {
                if pointer.is_hole() || pointer.is_embedded() {
                    return None;
                }
                let cached = (self.cache.entries).take(&self.cache_key(pointer, key))?;
                let fetched = self.content(cached, pointer, address, key)?;
                Some(fetched.block)
            })
            .collect();
        let is_taken: Vec<bool> = taken.iter().map(Option::is_some).collect();
        let is_stored = |pointer: &BlockPointer, address| {
            !pointer.is_hole()
                && !pointer.is_embedded()
                && self.admit(pointer, address, key).is_ok()
        };
        let mut missed = (wanted.clone().zip(is_taken))
            .filter(|((pointer, address), is_taken)| !is_taken && is_stored(pointer, *address))
            .map(|((pointer, _), _)| pointer);
        let mut begun: VecDeque<Option<Begun>> = VecDeque::new();
        let contents = wanted.zip(taken).map(|((pointer, address), taken)| {
            let block = match taken {
                Some(block) => block,
                None if is_stored(pointer, address) => {
                    if begun.is_empty() {
                        begun.extend(self.begin(missed.by_ref()));
                    }
                    let mut begun = begun.pop_front().flatten();
                    let fetched = self.with_retries(|| {
                        self.fetch(
                            pointer,
                            address,
                            key,
                            begun.take(),
                            PointerValidity::Current,
                        )
                    })?;
                    fetched.block
                }
                None => Arc::new(self.read_uncached(pointer, address, key)?),
            };
            let endian = block.endian;
            let bytes = match Arc::try_unwrap(block) {
                Ok(block) => Arc::try_unwrap(block.bytes).unwrap_or_else(|bytes| bytes.to_vec()),
                Err(block) => block.bytes.to_vec(),
            };
            Ok((bytes, endian))
        });
        contents.collect()
    }
}
