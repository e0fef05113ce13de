//! How many threads the requests of one pool may use.
//!
//! A request may wait for its pool: for the disks, for a txg, or, if the pool is suspended, indefinitely. The
//! server therefore adds threads while all are busy, up to a limit, and each pool has a share of the limit.
//! When requests of one pool wait, other pools continue.

use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, Weak};
use std::collections::HashMap;

/// The most threads in total.
pub(crate) const THREADS_MAX: usize = 256;
/// The minimum share of a pool.
const SHARE_MIN: usize = 4;

/// The shares of all pools with mounted file systems.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_pool: Mutex<HashMap<String, Weak<Share>>, rank::Leaf>,
    pools: Arc<AtomicUsize>,
}

/// The share of one pool.
#[derive(Debug)]
pub(crate) struct Share {
    pools: Arc<AtomicUsize>,
    active: AtomicUsize,
    /// Requests that wait for other requests of the kernel.
    waiting: AtomicUsize,
    /// Connections that are not armed because the share is used up.
    parked: Mutex<Vec<u64>, rank::Leaf>,
}

impl Shares {
    /// The share of the dataset's pool.
    pub(crate) fn of(&self, dataset: &str) -> Arc<Share> {
        let pool = dataset.split(['/', '@']).next().unwrap_or_default();
        let mut by_pool = self.by_pool.lock();
        if let Some(share) = by_pool.get(pool).and_then(Weak::upgrade) {
            return share;
        }
        by_pool.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Share {
            pools: Arc::clone(&self.pools),
            active: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            parked: Mutex::default(),
        });
        self.pools.fetch_add(1, Ordering::SeqCst);
        by_pool.insert(pool.to_owned(), Arc::downgrade(&share));
        share
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pools.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Share {
    /// The limit of one pool's share. It leaves one further share for a pool that is added later.
    fn limit(&self) -> usize {
        let pools = self.pools.load(Ordering::SeqCst);
        (THREADS_MAX / (pools + 1)).max(SHARE_MIN)
    }

    /// Counts a request that begins.
    pub(crate) fn begin(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a request that ends. Returns a connection that can be armed again.
    pub(crate) fn end(&self) -> Option<u64> {
        self.active.fetch_sub(1, Ordering::SeqCst);
        self.unpark()
    }

    /// Counts a request that is about to wait for other requests of the kernel. Returns false, without counting it, if half
    /// of the share waits already: the others must be served.
    pub(crate) fn begin_wait(&self) -> bool {
        let most = self.limit() / 2;
        let counted = self
            .waiting
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |waiting| {
                (waiting < most).then_some(waiting + 1)
            });
        counted.is_ok()
    }

    /// Counts a request that has ended to wait.
    pub(crate) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the connection may be armed for more requests. If not, it is parked until [`Share::end`]
    /// returns it.
    pub(crate) fn admits(&self, token: u64) -> bool {
        if self.has_room() {
            return true;
        }
        self.parked.lock().push(token);
        // The last request may have ended before the connection was parked.
        if self.has_room() {
            let mut parked = self.parked.lock();
            if let Some(at) = parked.iter().position(|one| *one == token) {
                parked.swap_remove(at);
                return true;
            }
        }
        false
    }

    fn has_room(&self) -> bool {
        self.active.load(Ordering::SeqCst) < self.limit()
    }

    fn unpark(&self) -> Option<u64> {
        if self.has_room() {
            self.parked.lock().pop()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_pool_leaves_threads_for_other_pools() {
        let shares = Shares::default();
        let (one, same) = (shares.of("tank"), shares.of("tank/home@monday"));
        assert!(Arc::ptr_eq(&one, &same));
        for _ in 0..THREADS_MAX / 2 {
            assert!(one.admits(1));
            one.begin();
        }
        assert!(!one.admits(1) && !same.admits(2));
        let other = shares.of("other");
        assert!(other.admits(3));
        // With a second pool, the first pool's share drops to a third.
        let mut back = vec![];
        for _ in 0..THREADS_MAX / 2 - THREADS_MAX / 3 {
            back.extend(one.end());
        }
        assert_eq!(back, []);
        back.extend(one.end());
        back.extend(one.end());
        assert_eq!(back.len(), 2, "{back:?}");
        drop((one, same));
        let again = shares.of("tank");
        assert!(again.admits(1));
        assert_eq!(shares.pools.load(Ordering::SeqCst), 2);
    }
}
