//! Opens the pool for a command, changes it, and leaves it as it was found, exported or not.

use super::freeing::{free_in_background, frees_space};
use crate::change::apply::{self, finish_activity, scan_to_end, starts_scan};
use crate::change::change_error;
use crate::change::checks::{self, Around};
use crate::change::create::{features_of, plan, set_root_quotas};
use crate::change::discard::discard_to_end;
use crate::host::HostId;
use millpond_control::{
    ChangeError, ChangeFailure, Changed, NewDevices, NewPoolRequest, PoolChange,
};
use millpond_engine::{Error, OpenOptions, Pool, Search, View, WriteOptions};
use millpond_env::Env;
use millpond_ondisk::Guid;
use millpond_pool::HistoryCommand;
use millpond_pool::OpenError;
use millpond_pool::import::{PoolCandidate, PoolState};
use millpond_vdev::{AllocationClass, VdevConfig};

/// Changes the pools that a search finds. Each command opens its pool.
#[derive(Debug)]
pub struct LocalChanges {
    search: Search,
    hostname: Option<String>,
    system: Option<String>,
    user: u64,
}

impl LocalChanges {
    /// Changes the pools of a search. `hostname` is this system's name for labels and history, and `user` the
    /// uid of the caller.
    #[must_use]
    pub fn new(search: Search, hostname: Option<String>, user: u64) -> Self {
        Self {
            search,
            hostname,
            system: None,
            user,
        }
    }

    /// Sets the system identification for history records: node, release, version, machine. The history of a
    /// new pool starts with it. Opening a pool for a command adds no record of its own; the command's record
    /// suffices.
    #[must_use]
    pub fn with_system(mut self, system: String) -> Self {
        self.system = Some(system);
        self
    }

    fn writing(&self) -> WriteOptions {
        WriteOptions {
            hostid: self.search.hostid,
            is_hostid_set: self.search.hostid != 0,
            hostname: self.hostname.clone(),
            ..WriteOptions::default()
        }
    }

    /// Opens a pool for writing. The flag is true if its labels mark it as exported.
    pub(crate) fn open(&self, name: &str) -> Result<(Pool, bool), ChangeError> {
        let candidate = Pool::find(&self.search, name).map_err(change_error)?;
        // It was found by its guid: commands name a pool by its name.
        if candidate.name != name {
            return Err(ChangeError::NoSuchPool);
        }
        if let Some(other) = candidate.other_host(self.hostname.as_deref()) {
            let hostname = other.map(str::to_owned);
            return Err(ChangeError::InUseElsewhere { hostname });
        }
        if let Some(why) = candidate.why_older(None) {
            return Err(ChangeError::ReadOnlyPool(Some(why)));
        }
        let was_exported = candidate.state == PoolState::Exported;
        let options = OpenOptions::default();
        let opened = Pool::open_candidate(&Env::real(), &candidate, &options, &self.writing());
        let pool = opened.map_err(|error| match error {
            Error::Open { error, .. } => match *error {
                OpenError::ReadOnly(why) => ChangeError::ReadOnlyPool(Some(why.to_string())),
                other => ChangeError::Failed(other.to_string()),
            },
            other => change_error(other),
        })?;
        pool.datasets().enforce_limits(false);
        Ok((pool, was_exported))
    }

    pub(crate) fn history(&self, command: &str) -> HistoryCommand {
        HistoryCommand {
            command: command.to_owned(),
            user: self.user,
        }
    }

    /// Makes all checks that need no write. `pool` is the pool that the devices are added to.
    fn check(&self, devices: &NewDevices, pool: Option<&str>) -> Result<(), ChangeError> {
        let around = Candidates(self.search.pools());
        checks::check(&around, devices, pool)
    }

    /// Like [`Self::check`], for a dry run.
    fn check_all(&self, devices: &NewDevices, pool: Option<&str>) -> Result<(), ChangeError> {
        let around = Candidates(self.search.pools());
        checks::check_all(&around, devices, pool)
    }

    /// Leaves the pool exported or not, as it was found.
    pub(crate) fn close(&self, pool: Pool, was_exported: bool) -> Result<(), ChangeError> {
        if was_exported {
            return pool.export().map_err(change_error);
        }
        // All changes are committed. Dropping the last handle releases the devices.
        Ok(())
    }
}

impl LocalChanges {
    /// Answers [`millpond_control::Request::CreatePool`].
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn create_pool(
        &self,
        request: &NewPoolRequest,
        command: &str,
    ) -> Result<Changed, ChangeError> {
        let name = request.name.as_str();
        if request.temporary_name.is_some() {
            let what = "a temporary name for a pool that does not stay open";
            return Err(ChangeError::NotBuilt(what.into()));
        }
        millpond_pool::check_pool_name(name)
            .map_err(|reason| ChangeError::PoolName(reason.into()))?;
        let host = HostId::of_system(self.search.hostid);
        let features = features_of(request, host)?;
        if request.only_check {
            self.check_all(&request.devices, None)?;
            return Ok(Changed::default());
        }
        self.check(&request.devices, None)?;
        let found = self.search.pools();
        let is_there = |pool: &PoolCandidate| pool.name == name && pool.state == PoolState::Active;
        if found.iter().any(is_there) {
            return Err(ChangeError::PoolExists);
        }
        drop(found);
        let writing = WriteOptions {
            system: self.system.clone(),
            ..self.writing()
        };
        let mut request = request.clone();
        let shared = checks::take_shared_spares(&mut request.devices);
        let pool = plan(&request, features, writing)?
            .create()
            .map_err(change_error)?;
        for spare in &shared {
            pool.inner().share_spare(spare)?;
        }
        set_root_quotas(&pool, &request)?;
        pool.inner().record_command(&self.history(command))?;
        Ok(Changed::default())
    }

    /// Answers [`millpond_control::Request::CheckAdd`].
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError> {
        self.check_all(devices, Some(pool))
    }

    /// Answers [`millpond_control::Request::Change`].
    ///
    /// # Errors
    /// [`ChangeFailure`].
    pub fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &str,
    ) -> Result<Changed, ChangeFailure> {
        let at = |done| move |error| ChangeFailure { done, error };
        for change in changes {
            if let PoolChange::Set { name, value } = change {
                let host = HostId::of_system(self.search.hostid);
                host.refuse_multihost(name, value).map_err(at(0))?;
            }
            if let PoolChange::Add(devices) = change {
                self.check(devices, Some(pool)).map_err(at(0))?;
            }
            if let PoolChange::Reguid { .. } = change {
                let mut around = Candidates(self.search.pools());
                // Without a daemon exported pools are found by their guids too.
                let is_gone = |one: &PoolCandidate| one.state == PoolState::Destroyed;
                around.0.retain(|one| !is_gone(one));
                around
                    .0
                    .iter_mut()
                    .for_each(|one| one.state = PoolState::Active);
                checks::check_new_guid(&around, change, pool).map_err(at(0))?;
            }
            if let PoolChange::Attach(side) = change {
                let around = Candidates(self.search.pools());
                checks::check_use(&around, &side.devices(), Some(pool)).map_err(at(0))?;
            }
        }
        let (live, was_exported) = self.open(pool).map_err(at(0))?;
        let mut changed = Changed::default();
        let mut failure = None;
        for (done, change) in changes.iter().enumerate() {
            // The history record must be written before the pool is destroyed or exported.
            if matches!(change, PoolChange::Destroy | PoolChange::Export) {
                let noted = live.inner().record_command(&self.history(command));
                noted.map_err(|error| at(done)(error.into()))?;
                let ended = match change {
                    PoolChange::Destroy => live.inner().destroy(),
                    _ => live.inner().export(),
                };
                return match ended {
                    Ok(()) => Ok(changed),
                    Err(error) => Err(at(done)(error.into())),
                };
            }
            let is_shared = |spare| {
                let all = self.search.pools();
                let others = all.iter().filter(|candidate| candidate.name != pool);
                owner_of(others, spare, true).is_some()
            };
            if let Err(error) = apply::apply(&live, change, &mut changed, &is_shared, None) {
                failure = Some(at(done)(error));
                break;
            }
        }
        let noted = match &failure {
            None if !matches!(changes, [PoolChange::Sync { .. }]) => {
                live.inner().record_command(&self.history(command))
            }
            _ => Ok(()),
        };
        if failure.is_none() && changes.iter().any(starts_scan) {
            let done = changes.len();
            scan_to_end(&live).map_err(at(done.saturating_sub(1)))?;
        }
        for change in changes {
            if let (None, PoolChange::FinishLeafActivity(activity)) = (&failure, change) {
                let done = changes.len();
                finish_activity(&live, *activity).map_err(at(done.saturating_sub(1)))?;
            }
        }
        if failure.is_none() && changes.contains(&PoolChange::FinishDiscard) {
            discard_to_end(&live).map_err(at(changes.len().saturating_sub(1)))?;
        }
        if changes.iter().any(frees_space) {
            // Freeing can be completed later, so errors are ignored: they recur at the next change.
            let _ = free_in_background(&live);
        }
        let closed = self.close(live, was_exported);
        if let Some(failure) = failure {
            return Err(failure);
        }
        noted.map_err(|error| at(changes.len())(error.into()))?;
        closed.map_err(at(changes.len()))?;
        Ok(changed)
    }

    /// Answers [`millpond_control::Request::ClearLabels`].
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn clear_labels(&self, path: &str, force: bool) -> Result<(), ChangeError> {
        let around = Candidates(self.search.pools());
        checks::check_clearing(&around, path, force)?;
        drop(around);
        checks::clear(path)
    }
}

/// The pools found by a search.
struct Candidates(Vec<PoolCandidate>);

impl Around for Candidates {
    fn is_open(&self, pool: Guid) -> bool {
        let mut all = self.0.iter();
        all.any(|candidate| candidate.guid == pool && candidate.state == PoolState::Active)
    }
    fn owner_of(&self, guid: Guid, is_spare: bool, first: Option<&str>) -> Option<String> {
        let is_first = |pool: &&PoolCandidate| Some(pool.name.as_str()) == first;
        let all = self.0.iter();
        let (first, others): (Vec<_>, Vec<_>) = all.partition(is_first);
        owner_of(first.into_iter().chain(others), guid, is_spare)
    }
    fn tops_of(&self, name: &str) -> Result<Vec<(VdevConfig, AllocationClass)>, ChangeError> {
        let is_it = |pool: &&PoolCandidate| pool.name == name && pool.state != PoolState::Destroyed;
        let candidate = self.0.iter().find(is_it).ok_or(ChangeError::NoSuchPool)?;
        let pool =
            View::open_candidate(candidate, &OpenOptions::default()).map_err(change_error)?;
        Ok(checks::tops_of(&pool))
    }
}

/// The name of the pool that a spare or cache device belongs to, if that pool can be opened.
fn owner_of<'c>(
    candidates: impl Iterator<Item = &'c PoolCandidate>,
    guid: Guid,
    is_spare: bool,
) -> Option<String> {
    candidates
        .filter(|candidate| candidate.state != PoolState::Destroyed)
        .find(|candidate| {
            let pool = View::open_candidate(candidate, &OpenOptions::default());
            pool.is_ok_and(|pool| {
                let inner = pool.inner();
                let listed = if is_spare {
                    inner.spares()
                } else {
                    inner.caches()
                };
                listed.iter().any(|vdev| vdev.u64("guid") == Ok(guid.0))
            })
        })
        .map(|candidate| candidate.name.clone())
}
