//! Reads in flight, which callers of the same block share.

use super::*;

/// Why a block is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadKind {
    /// A caller wants it, and this becomes of it in the cache.
    Demand(Retention),
    /// It is prefetched.
    Speculative,
}

impl BlockStore {
    /// Joins the in-flight read of a block, or registers one. The second value is true if the caller has to
    /// make the read.
    pub(crate) fn join_read(
        &self,
        cache_key: &CacheKey,
        kind: ReadKind,
    ) -> (Arc<InFlightRead>, bool) {
        let mut table = self.in_flight.lock();
        if let Some(flight) = table.get(cache_key) {
            return (Arc::clone(flight), false);
        }
        let flight = Arc::new(InFlightRead {
            outcome: Mutex::new(None),
            done: Condvar::new(),
            is_speculative: kind == ReadKind::Speculative,
            is_kept: matches!(kind, ReadKind::Demand(retention) if retention.is_kept()),
        });
        table.insert(cache_key.clone(), Arc::clone(&flight));
        (flight, true)
    }

    /// The guard with which the caller that makes a read completes it.
    pub(crate) fn completion_guard<'a>(
        &'a self,
        cache_key: &'a CacheKey,
        flight: &'a InFlightRead,
    ) -> CompletionGuard<'a> {
        CompletionGuard {
            store: self,
            cache_key,
            flight,
        }
    }
}

/// Wakes the waiters of a read even if the reader panics, so that none waits for ever.
pub(crate) struct CompletionGuard<'a> {
    store: &'a BlockStore,
    cache_key: &'a CacheKey,
    flight: &'a InFlightRead,
}

impl CompletionGuard<'_> {
    pub(crate) fn settle(self, outcome: Result<Fetched, BlockError>) {
        *self.flight.outcome.lock() = Some(Some(outcome));
    }
}

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        self.store.in_flight.lock().remove(self.cache_key);
        let mut outcome = self.flight.outcome.lock();
        if outcome.is_none() {
            *outcome = Some((!self.flight.is_speculative).then(|| {
                Err(BlockError::Invalid {
                    address: BlockAddress::default(),
                    error: DecodeError::new("block", "its reader failed", 0),
                })
            }));
        }
        self.flight.done.notify_all();
    }
}
