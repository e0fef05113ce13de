//! From stored bytes to content: after a read, and from the cache.

use super::*;
use millpond_env::mark;

impl BlockStore {
    /// Reads, verifies, decrypts and decompresses. `begun` holds reads that were already made.
    pub(crate) fn fetch(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        begun: Option<Begun>,
        validity: PointerValidity<'_>,
    ) -> Result<Fetched, BlockError> {
        let mut stored = self.read_copies(pointer, address, begun, validity)?;
        // The cache charges the length.
        if stored.capacity() / 8 > stored.len() / 7 {
            stored.shrink_to_fit();
        }
        match self.unfold_stored(pointer, address, key, Arc::new(stored), None) {
            Err(error @ BlockError::Authentication { .. }) => {
                let other = self.fetch_authentic(pointer, address, key);
                other.ok_or(error)
            }
            fetched => fetched,
        }
    }

    /// Reads the copy that authenticates, if there is one, and repairs the others.
    ///
    /// The checksums of encrypted datasets miss some damage: Fletcher's four words are folded into two, and a bit that flips
    /// in the last four bytes may change both halves alike. The code does not miss it, and another copy may be right.
    fn fetch_authentic(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Fetched> {
        let unfold = |stored| self.unfold_stored(pointer, address, key, stored, None);
        let accepts = |bytes: &[u8]| unfold(Arc::new(bytes.to_vec())).is_ok();
        let stored = self.read_accepted_copy(pointer, address, &accepts).ok()?;
        mark::hit("authentic-copy-read");
        unfold(Arc::new(stored)).ok()
    }

    /// Reads a block from a cache device, if there is a good copy.
    pub(crate) fn fetch_copy(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Fetched> {
        let stored = self.read_cache_device(pointer, address)?;
        (self.unfold_stored(pointer, address, key, Arc::new(stored), None)).ok()
    }

    /// Decrypts and decompresses stored bytes whose checksum was verified, into `buffer` if it is large
    /// enough.
    pub(crate) fn unfold_stored(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        stored: Arc<Vec<u8>>,
        buffer: Option<Vec<u8>>,
    ) -> Result<Fetched, BlockError> {
        let unauthentic = |error: CryptError| BlockError::Authentication {
            address,
            reason: error.to_string(),
        };
        let is_indirect = pointer.level() > Level(0);
        let mut has_ciphertext = false;
        let mut decrypted: Option<Vec<u8>> = None;
        if pointer.has_crypt_bit() && !is_indirect {
            match key {
                Some(key) => {
                    // A copy, as the cache keeps the ciphertext.
                    let mut bytes = self.cache.buffers.copy(&stored);
                    key.decrypt_block(pointer, &mut bytes)
                        .map_err(unauthentic)?;
                    decrypted = Some(bytes);
                }
                None => has_ciphertext = pointer.is_encrypted(),
            }
        }
        let is_plain = pointer.compression() == Some(CompressionKind::Off)
            && stored.len() as u64 == pointer.lsize_bytes();
        let (bytes, stored) = match (is_plain, decrypted) {
            (true, Some(decrypted)) => (Arc::new(decrypted), Some(stored)),
            (true, None) => match buffer.filter(|buffer| buffer.capacity() >= stored.len()) {
                Some(mut buffer) => {
                    buffer.clear();
                    buffer.extend_from_slice(&stored);
                    (Arc::new(buffer), None)
                }
                None => (stored, None),
            },
            (false, decrypted) => {
                let length = length(pointer.lsize_bytes());
                let buffer = buffer.or_else(|| self.cache.buffers.take(length));
                let source = decrypted.as_ref().unwrap_or(&stored);
                let bytes = decompress_into(pointer, source, address, buffer.unwrap_or_default())?;
                if let Some(decrypted) = decrypted {
                    self.cache.buffers.give(decrypted);
                }
                (Arc::new(bytes), Some(stored))
            }
        };
        if is_indirect && (key.is_some() || pointer.has_crypt_bit()) {
            verify_indirect_block(pointer, &bytes).map_err(unauthentic)?;
        }
        let block = Block {
            bytes,
            endian: pointer.endian(),
            has_ciphertext,
        };
        Ok(Fetched {
            block: Arc::new(block),
            stored,
        })
    }

    /// The content of a block that is cached as stored. Callers that want it at the same time share the work.
    /// It goes into the cache, too, unless `retention` says that the block is removed.
    ///
    /// Returns `None` if the bytes are not what they were: the memory is faulty. The block is removed then, and
    /// has to be read again.
    pub(crate) fn expand(
        &self,
        cache_key: &CacheKey,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
        stored: Arc<Vec<u8>>,
        retention: Retention,
    ) -> Option<Arc<Block>> {
        let unfold = |stored| self.content(Cached::Stored(stored), pointer, address, key);
        if retention == Retention::Drop {
            return Some(unfold(stored)?.block);
        }
        // Speculative: if it fails, callers that joined it try by themselves.
        let (flight, is_mine) = self.join_read(cache_key, ReadKind::Speculative);
        if !is_mine {
            return match flight.wait(&self.topology()) {
                Waited::Finished(Ok(fetched)) => Some(fetched.block),
                _ => Some(unfold(stored)?.block),
            };
        }
        let completion_guard = self.completion_guard(cache_key, &flight);
        // Another caller may have completed between our cache look-up and our registration.
        if let Some(Cached::Content(block)) = self.cache.entries.peek(cache_key) {
            let fetched = Fetched {
                block: Arc::clone(&block),
                stored: Some(stored),
            };
            completion_guard.settle(Ok(fetched));
            return Some(block);
        }
        let Some(fetched) = unfold(stored) else {
            drop(self.cache.entries.take(cache_key));
            return None;
        };
        self.cache.put_content(cache_key, &fetched.block);
        completion_guard.settle(Ok(fetched.clone()));
        Some(fetched.block)
    }

    /// The content of a block that was found in the cache.
    pub(crate) fn content(
        &self,
        cached: Cached,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Fetched> {
        match cached {
            Cached::Content(block) => Some(Fetched {
                block,
                stored: None,
            }),
            Cached::Stored(stored) => self.unfold_stored(pointer, address, key, stored, None).ok(),
        }
    }

    /// The content of a pointer if it is cached. The look-up is not counted and does not promote the
    /// entry.
    #[must_use]
    pub fn cached(
        &self,
        pointer: &BlockPointer,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Arc<Block>> {
        let cache_key = self.cache_key(pointer, key);
        self.peek(&cache_key, pointer, BlockAddress::default(), key)
            .map(|fetched| fetched.block)
    }

    /// As [`BlockStore::cached`], by the key.
    pub(crate) fn peek(
        &self,
        cache_key: &CacheKey,
        pointer: &BlockPointer,
        address: BlockAddress,
        key: Option<&Arc<DatasetKey>>,
    ) -> Option<Fetched> {
        let cached = self.cache.entries.peek(cache_key)?;
        let is_stored = matches!(cached, Cached::Stored(_));
        let fetched = self.content(cached, pointer, address, key)?;
        if is_stored {
            self.cache.put_content(cache_key, &fetched.block);
        }
        Some(fetched)
    }

    /// Whether the content of a pointer is cached. The look-up is not counted.
    #[must_use]
    pub fn is_cached(&self, pointer: &BlockPointer, key: Option<&Arc<DatasetKey>>) -> bool {
        (self.cache.entries).contains(&self.cache_key(pointer, key))
    }
}
