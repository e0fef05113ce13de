//! Which system used a pool last.

use super::ImportedPools;
use millpond_control::ImportError;
use millpond_engine::{PoolCandidate, PoolState};

/// Who used a pool last, as its labels tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastUser {
    ThisSystem,
    /// They name no system.
    Unknown,
    OtherSystem,
}

impl ImportedPools {
    /// Which system used the pool last. Systems without a host id are distinguished by name.
    pub(super) fn last_user(&self, candidate: &PoolCandidate) -> LastUser {
        let is_ours = match candidate.hostid {
            0 => candidate.hostname == self.hostname,
            hostid => hostid == self.host().number,
        };
        match is_ours {
            true => LastUser::ThisSystem,
            false if candidate.hostid == 0 && candidate.hostname.is_none() => LastUser::Unknown,
            false => LastUser::OtherSystem,
        }
    }

    /// Whether the labels name another system as the last one.
    pub(super) fn is_foreign(&self, candidate: &PoolCandidate) -> bool {
        self.last_user(candidate) == LastUser::OtherSystem
    }

    /// Refuses to import a pool unasked that another system imported and exported since.
    ///
    /// A pool that still has the host id of when it was noted is ours although this system has another one by now.
    pub(super) fn refuse_unasked(&self, candidate: &PoolCandidate) -> Result<(), ImportError> {
        let is_unchanged = candidate.known_hostid == Some(candidate.hostid);
        if candidate.state == PoolState::Active || is_unchanged || !self.is_foreign(candidate) {
            return Ok(());
        }
        Err(in_use_elsewhere(candidate))
    }
}

/// Another system used the pool last.
pub(super) fn in_use_elsewhere(candidate: &PoolCandidate) -> ImportError {
    ImportError::InUseElsewhere {
        hostname: candidate.hostname.clone(),
        hostid: candidate.hostid,
        time_s: candidate
            .newest()
            .map_or(0, |newest| newest.uberblock.timestamp_s),
    }
}
