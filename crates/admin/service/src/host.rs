//! This system's host id, and whether other systems use a pool.

use millpond_control::{ChangeError, MultihostState};
use millpond_engine::{PoolCandidate, SettingError};
use millpond_env::Env;
use millpond_pool::OpenError;
use millpond_pool::import::ActivitySettings;

/// This system's host id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostId {
    /// 0 for none.
    pub number: u64,
    /// Whether an administrator has set it, which `multihost` demands.
    pub is_set: bool,
}

impl HostId {
    /// The host id in `/etc/hostid`, 0 if there is none.
    pub(crate) fn of_system(number: u64) -> Self {
        Self {
            number,
            is_set: number != 0,
        }
    }

    /// Refuses `multihost=on` if no administrator has set the host id.
    pub(crate) fn refuse_multihost(self, name: &str, value: &str) -> Result<(), ChangeError> {
        match (name, value) {
            ("multihost", "on") if !self.is_set => Err(SettingError::NeedsHostid.into()),
            _ => Ok(()),
        }
    }
}

/// Whether another system uses each pool. Takes as long as the longest watch: seconds, if there is any.
pub(crate) fn watch_all(
    env: &Env,
    candidates: &[PoolCandidate],
    host: HostId,
) -> Vec<Option<MultihostState>> {
    let settings = ActivitySettings::of(env, host.number, host.is_set);
    let state_of = |candidate: &PoolCandidate| match candidate.watch_activity(env, settings) {
        Err(OpenError::NeedsHostid) => Some(MultihostState::NoHostid),
        Err(_) => Some(MultihostState::Active),
        Ok(_) => None,
    };
    millpond_env::thread::scope(|scope| {
        let watches = candidates.iter();
        let watches: Vec<_> = watches
            .map(|candidate| scope.spawn(move || state_of(candidate)))
            .collect();
        let states = watches.into_iter().map(|watch| watch.join().ok().flatten());
        states.collect()
    })
}
