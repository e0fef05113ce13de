//! Watching a pool that another system may be using, before it is opened for writing.

use crate::OpenError;
use crate::import::{ActivityCheck, ActivitySettings, PoolCandidate};
use millpond_env::sync::{Condvar, Mutex};
use millpond_env::{Env, Tunable, mark, rank};
use millpond_ondisk::{Guid, UberblockRank};
use std::time::Duration;

/// How often the uberblocks are read again.
const LOOK: Duration = Duration::from_secs(1);

/// A pool that no other system was using while it was watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedPool {
    guid: Guid,
    /// The newest uberblock. Another one shows that the pool was written meanwhile.
    newest: Option<UberblockRank>,
}

impl ActivitySettings {
    /// The settings of a system with this host id. `is_hostid_set`: an administrator has set it.
    #[must_use]
    pub fn of(env: &Env, hostid: u64, is_hostid_set: bool) -> Self {
        let interval_ms = env.tunables.get(Tunable::MultihostInterval);
        Self {
            hostid,
            is_hostid_set,
            interval_ms: interval_ms.max(super::INTERVAL_MIN_MS),
            import_intervals: env.tunables.get(Tunable::MultihostImportIntervals).max(1),
        }
    }
}

impl PoolCandidate {
    /// Makes sure that no other system is using the pool, as far as heartbeats tell. Takes seconds if another system
    /// with multihost on used it last and did not export it.
    ///
    /// # Errors
    /// [`OpenError::InUseElsewhere`], [`OpenError::NeedsHostid`].
    pub fn watch_activity(
        &self,
        env: &Env,
        settings: ActivitySettings,
    ) -> Result<WatchedPool, OpenError> {
        let (lock, wake) = (Mutex::<(), rank::Leaf>::new(()), Condvar::new());
        self.watch_with(env, settings, &mut |pause| {
            wake.wait_for(&mut lock.lock(), pause);
        })
    }

    /// Like [`PoolCandidate::watch_activity`], with a function that waits for the given time.
    pub(super) fn watch_with(
        &self,
        env: &Env,
        settings: ActivitySettings,
        wait: &mut dyn FnMut(Duration),
    ) -> Result<WatchedPool, OpenError> {
        let watched = WatchedPool {
            guid: self.guid,
            newest: self.newest().map(|newest| newest.uberblock.rank()),
        };
        let duration_ns = match self.activity_check(settings) {
            ActivityCheck::NotNeeded => return Ok(watched),
            ActivityCheck::HostidRequired => return Err(OpenError::NeedsHostid),
            ActivityCheck::Watch { duration_ns } => duration_ns,
        };
        mark::hit("activity-watched");
        let mut random = [0; 1];
        env.entropy.fill(&mut random);
        // Up to a quarter more: two systems that begin together do not end together.
        let more_ns = (duration_ns / 1024).saturating_mul(u64::from(random[0]));
        let end_ns = (env.clock.monotonic_ns())
            .saturating_add(duration_ns)
            .saturating_add(more_ns);
        loop {
            if self.reread_rank() != watched.newest {
                return Err(self.in_use_elsewhere());
            }
            let left_ns = end_ns.saturating_sub(env.clock.monotonic_ns());
            if left_ns == 0 {
                return Ok(watched);
            }
            wait(LOOK.min(Duration::from_nanos(left_ns)));
        }
    }

    /// Makes sure that no other system is using the pool, which was watched before, or else is watched now.
    pub(crate) fn check_activity(
        &self,
        env: &Env,
        settings: ActivitySettings,
        watched: Option<&WatchedPool>,
    ) -> Result<(), OpenError> {
        let Some(watched) = watched else {
            return self.watch_activity(env, settings).map(drop);
        };
        let newest = self.newest().map(|newest| newest.uberblock.rank());
        match self.activity_check(settings) {
            ActivityCheck::NotNeeded => Ok(()),
            ActivityCheck::HostidRequired => Err(OpenError::NeedsHostid),
            ActivityCheck::Watch { .. } => {
                match watched.guid == self.guid && watched.newest == newest {
                    true => Ok(()),
                    false => Err(self.in_use_elsewhere()),
                }
            }
        }
    }

    pub(super) fn in_use_elsewhere(&self) -> OpenError {
        OpenError::InUseElsewhere {
            hostid: self.hostid,
            hostname: self.hostname.clone(),
        }
    }
}
