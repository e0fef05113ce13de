//! Which system used a pool last.

use super::ImportedPools;
use millpond_control::ImportError;
use millpond_engine::{PoolCandidate, PoolState};

impl ImportedPools {
    /// Whether this system used the pool last. Systems without a host id are distinguished by name.
    pub(super) fn is_ours(&self, candidate: &PoolCandidate) -> bool {
        match candidate.hostid {
            0 => candidate.hostname.is_none() || candidate.hostname == self.hostname,
            hostid => hostid == self.host().number,
        }
    }

    /// Refuses to import a pool unasked that another system imported and exported since.
    ///
    /// A pool that still has the host id of when it was noted is ours although this system has another one by now.
    pub(super) fn refuse_unasked(&self, candidate: &PoolCandidate) -> Result<(), ImportError> {
        let is_unchanged = candidate.known_hostid == Some(candidate.hostid);
        if candidate.state == PoolState::Active || is_unchanged || self.is_ours(candidate) {
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
