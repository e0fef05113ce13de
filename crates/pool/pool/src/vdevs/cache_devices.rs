//! Cache devices of an open pool: which device is used, and the thread that feeds them.
//!
//! A pool works without its cache devices, so opening it does not open them. The program gives each device that it
//! finds to [`Pool::use_cache_device`], at any time. Nothing that happens to such a device is an error of the pool.
//! The first device starts a thread, which first reads what the device has and then copies blocks that the cache
//! is about to evict. Pools in caller-driven sync mode call [`Pool::feed_cache_devices`] themselves.
//!
//! Page `docs/format/l2arc.md`.

use crate::import::{LeafState, read_labels};
use crate::pool::{Pool, SyncMode};
use crate::{PoolError, PoolView};
use millpond_block::{CacheDeviceId, CacheDeviceStats, Fed, FeedLimits, UsedOnce};
use millpond_device::Device;
use millpond_env::Tunable;
use millpond_env::rank;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_nvlist::NvList;
use millpond_ondisk::{Ashift, Guid};
use millpond_vdev::VdevConfig;
use std::time::Duration;

/// The time between two rounds of feeding.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time after a round that wrote more than half of what it may.
const INTERVAL_BUSY: Duration = Duration::from_millis(200);

/// Why a device cannot be used as cache device of a pool.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheDeviceError {
    /// Its labels are not those of a cache device.
    #[error("the device has no label of a cache device")]
    NoLabel,
    /// The pool does not list a cache device with the guid of the label.
    #[error("the pool has no cache device with the guid {}", .0.0)]
    NotListed(Guid),
    /// It is too small.
    #[error("the device is too small")]
    TooSmall,
    /// The pool's list cannot be read, or the thread cannot be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The state of the thread that feeds cache devices.
#[derive(Default)]
pub(crate) struct CacheFeed {
    state: Mutex<FeedState, rank::Leaf>,
    changed: Condvar,
}

#[derive(Default)]
struct FeedState {
    has_thread: bool,
    has_ended: bool,
}

impl CacheFeed {
    /// Ends the thread after its present round.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
    /// Waits for the next round. Returns false if there is none.
    fn wait(&self, interval: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has_ended && !interval.is_zero() {
            self.changed.wait_for(&mut state, interval);
        }
        !state.has_ended
    }
}

impl Pool {
    /// Uses a device as cache device, if its label says that it is one that the pool lists. Returns its guid. The
    /// device must be open for writing and locked. What it holds is read in the background.
    ///
    /// # Errors
    /// [`CacheDeviceError`]; nothing is written then.
    pub fn use_cache_device(
        self: &Arc<Self>,
        device: Arc<dyn Device>,
    ) -> Result<Guid, CacheDeviceError> {
        let guid = labelled_guid(device.as_ref())?;
        let view = self.committed()?;
        let id = id_in(view.caches(), self.guid(), guid)?;
        (self.store.add_cache_device(device, id, true)).map_err(|_| CacheDeviceError::TooSmall)?;
        self.start_cache_feed()?;
        tracing::debug!(pool = %self.name(), device = guid.0, "cache device in use");
        Ok(guid)
    }

    /// Stops using a cache device. Returns whether it was in use.
    pub fn stop_cache_device(&self, guid: Guid) -> bool {
        self.store.remove_cache_device(guid)
    }

    /// Statistics of the cache devices in use, by guid.
    #[must_use]
    pub fn cache_device_stats(&self) -> Vec<(Guid, CacheDeviceStats)> {
        self.store.cache_device_stats()
    }

    /// One round of feeding: reads what new cache devices have, and copies blocks that the cache is about to evict
    /// to one device. For pools in caller-driven sync mode; others have a thread for it.
    pub fn feed_cache_devices(&self) -> Fed {
        let tunables = &self.env.tunables;
        let limits = FeedLimits {
            write_bytes_max: tunables.get(Tunable::L2ArcWriteMax),
            write_bytes_boost: tunables.get(Tunable::L2ArcWriteBoost),
            left_out: UsedOnce::from_number(tunables.get(Tunable::L2ArcMfuOnly)),
        };
        self.store.feed_cache_devices(&limits)
    }

    fn start_cache_feed(self: &Arc<Self>) -> Result<(), PoolError> {
        {
            let mut state = self.cache_feed.state.lock();
            if self.sync_mode == SyncMode::Caller || state.has_thread || state.has_ended {
                return Ok(());
            }
            state.has_thread = true;
        }
        let (weak, feed) = (Arc::downgrade(self), Arc::clone(&self.cache_feed));
        let started = self.threads.spawn("millpond-feed", move || {
            let mut interval = Duration::ZERO;
            while feed.wait(interval) {
                let Some(pool) = weak.upgrade() else { return };
                interval = match pool.feed_cache_devices().is_busy {
                    true => INTERVAL_BUSY,
                    false => INTERVAL,
                };
            }
        });
        started.map_err(|error| PoolError::Suspended {
            reason: format!("the thread that feeds cache devices could not be started: {error}"),
        })
    }
}

impl PoolView {
    /// Uses a device as cache device of a pool that is open for reading only, as [`Pool::use_cache_device`] does.
    /// Reads what the device has before it returns. Nothing is written to it.
    ///
    /// # Errors
    /// [`CacheDeviceError`].
    pub fn use_cache_device(&self, device: Arc<dyn Device>) -> Result<Guid, CacheDeviceError> {
        let guid = labelled_guid(device.as_ref())?;
        let id = id_in(self.caches(), self.guid(), guid)?;
        let store = self.store();
        (store.add_cache_device(device, id, false)).map_err(|_| CacheDeviceError::TooSmall)?;
        store.feed_cache_devices(&FeedLimits::default());
        Ok(guid)
    }
}

fn labelled_guid(device: &dyn Device) -> Result<Guid, CacheDeviceError> {
    let labels = read_labels(device);
    let mut labels = labels.iter().flatten();
    let label = labels.find(|label| label.state == LeafState::Cache);
    label
        .map(|label| label.guid)
        .ok_or(CacheDeviceError::NoLabel)
}

fn id_in(
    listed: &[NvList],
    pool_guid: Guid,
    vdev_guid: Guid,
) -> Result<CacheDeviceId, CacheDeviceError> {
    let mut configs = listed.iter().flat_map(VdevConfig::from_nvlist);
    let config = configs.find(|config| config.guid == vdev_guid);
    let config = config.ok_or(CacheDeviceError::NotListed(vdev_guid))?;
    Ok(CacheDeviceId {
        pool_guid,
        vdev_guid,
        ashift: Ashift(config.ashift.clamp(9, 16) as u8),
    })
}
