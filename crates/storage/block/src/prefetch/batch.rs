//! Prefetch of several blocks, whose reads go to the devices together.

use crate::block_cache::{CacheKey, class_of, forms_bytes};
use crate::buffer_pool::PooledBuf;
use crate::copies::{Begun, lay_out};
use crate::io_stats::IoClass;
use crate::store::InFlightRead;
use crate::{BlockAddress, BlockStore};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{BlockPointer, ChecksumKind};
use millpond_vdev::LeafRead;
use std::collections::VecDeque;

/// A speculative read that this thread makes.
struct OwnRead {
    pointer: BlockPointer,
    address: BlockAddress,
    cache_key: CacheKey,
    flight: Arc<InFlightRead>,
}

impl BlockStore {
    /// As [`BlockStore::prefetch_block`] for several blocks, whose reads go to the devices together. All are
    /// in memory at once: the caller bounds their sizes. Returns false if one of them did not get into the
    /// cache.
    #[must_use]
    pub fn prefetch_blocks(
        &self,
        blocks: Vec<(BlockPointer, BlockAddress, PooledBuf)>,
        key: Option<&Arc<DatasetKey>>,
    ) -> bool {
        let (mut own, mut buffers) = (vec![], vec![]);
        let mut is_complete = true;
        for (pointer, address, buffer) in blocks {
            let Some(begun) = self.begin_prefetch(&pointer, address, key) else {
                is_complete = false;
                break;
            };
            if let Some((cache_key, flight)) = begun {
                buffers.push(buffer.memory);
                own.push(OwnRead {
                    pointer,
                    address,
                    cache_key,
                    flight,
                });
            }
        }
        self.read_speculatively(&own, buffers, key) && is_complete
    }

    /// Reads blocks whose in-flight reads the caller registered. Returns whether all got into the cache.
    fn read_speculatively(
        &self,
        own: &[OwnRead],
        buffers: Vec<Vec<u8>>,
        key: Option<&Arc<DatasetKey>>,
    ) -> bool {
        let mut guards: VecDeque<_> = own
            .iter()
            .map(|read| self.completion_guard(&read.cache_key, &read.flight))
            .collect();
        let group = self.read_group(own);
        let checksummer = self.checksummer();
        let mut is_complete = true;
        for ((read, begun), buffer) in own.iter().zip(group).zip(buffers) {
            let guard = guards.pop_front();
            let pointer = &read.pointer;
            let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
            // Another reader may have completed between our cache look-up and our registration.
            let cached = self.peek(&read.cache_key, pointer, read.address, key);
            let fetched = cached.or_else(|| {
                let stored = match begun {
                    Some(begun) => begun.finish_without_trace(&mut verify)?,
                    None => (self.is_on_cache_device(pointer))
                        .then(|| self.read_cache_device(pointer, read.address))??,
                };
                let stored = Arc::new(stored);
                let unfolded = self.unfold_stored(pointer, read.address, key, stored, Some(buffer));
                let fetched = unfolded.ok()?;
                let key = read.cache_key.clone();
                let is_kept = self.cache.put_speculative(key, &fetched, class_of(pointer));
                is_kept.then_some(fetched)
            });
            let counters = &self.prefetcher.counters;
            let counter = match fetched {
                Some(_) => &counters.read,
                None => &counters.given_up,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            match (fetched, guard) {
                (Some(fetched), Some(guard)) => guard.settle(Ok(fetched)),
                // The drop of the guard tells waiting readers to read by themselves.
                _ => is_complete = false,
            }
        }
        is_complete
    }

    /// Makes the first reads of all blocks with one call. `None` marks a block that is not read ahead.
    fn read_group(&self, own: &[OwnRead]) -> Vec<Option<Begun>> {
        let outstanding = self.outstanding_since();
        let (topology, checksummer) = (self.topology(), self.checksummer());
        let since = self.writing.reuses();
        let mut group: Vec<Option<Begun>> = own
            .iter()
            .map(
                |OwnRead {
                     pointer, cache_key, ..
                 }| {
                    let weight = forms_bytes(pointer);
                    let has_space = || {
                        self.cache
                            .entries
                            .has_room_for_speculative(cache_key, weight)
                    };
                    // Without a checksum any bytes would pass.
                    let is_wanted = pointer.checksum_kind() != Some(ChecksumKind::Off)
                        && has_space()
                        && pointer.physical_birth() < outstanding;
                    let mut verify = |bytes: &[u8]| checksummer.verify(pointer, bytes).is_ok();
                    let is_read = is_wanted && !self.is_on_cache_device(pointer);
                    is_read.then(|| lay_out(&topology, pointer, since, &mut verify))?
                },
            )
            .collect();
        let reads = group.iter().flatten().flat_map(Begun::reads);
        let reads: Vec<LeafRead> = reads.copied().collect();
        let mut outcomes = topology.read_leaves(&reads, IoClass::AsyncRead).into_iter();
        for begun in group.iter_mut().flatten() {
            let count = begun.reads().len();
            begun.set_outcomes(outcomes.by_ref().take(count).collect());
        }
        group
    }
}
