//! Watching a pool that another system may be using, before it is opened for writing.

use crate::OpenError;
use crate::import::{ActivityCheck, ActivitySettings, PoolCandidate};
use millpond_env::sync::{Condvar, Mutex};
use millpond_env::{Env, Tunable, mark, rank};
use std::time::Duration;

/// How often the uberblocks are read again.
const LOOK: Duration = Duration::from_secs(1);

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
    pub fn watch_activity(&self, env: &Env, settings: ActivitySettings) -> Result<(), OpenError> {
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
    ) -> Result<(), OpenError> {
        let duration_ns = match self.activity_check(settings) {
            ActivityCheck::NotNeeded => return Ok(()),
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
        let first = self.newest().map(|newest| newest.uberblock.rank());
        loop {
            if self.reread_rank() != first {
                return Err(OpenError::InUseElsewhere {
                    hostid: self.hostid,
                    hostname: self.hostname.clone(),
                });
            }
            let left_ns = end_ns.saturating_sub(env.clock.monotonic_ns());
            if left_ns == 0 {
                return Ok(());
            }
            wait(LOOK.min(Duration::from_nanos(left_ns)));
        }
    }
}
