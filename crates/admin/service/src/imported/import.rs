//! Imports pools.

use super::last_use::LastUser;
use super::progress::OneImport;
use super::search::search_of;
use super::stopped::StoppedPrograms;
use super::{ImportedPool, ImportedPools, Open, cache_file, last_use, names};
use crate::change::apply;
use millpond_control::{
    ChangeError, Changed, ImportError, ImportRequest, Imported, PoolChange, RewindRequest,
};
use millpond_engine::{
    Error, FoundLogs, OpenOptions, Pool, SCAN_FOR_WRITING, Search, View, WriteOptions,
};
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{Guid, Txg};
use millpond_pool::OpenError;
use millpond_pool::import::{
    ActivityCheck, ActivitySettings, ImportCondition, PoolCandidate, PoolState, Rewind,
    ScanOptions, leaf_paths,
};
use millpond_pool::{HistoryCommand, Opening, WatchedPool};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Searches a pool again, and locks its devices unless it is to be read only. Returns the reason if they can
/// only be read.
fn find_again(
    search: &Search,
    guid: Guid,
    wants_read_only: bool,
) -> Result<(PoolCandidate, Option<String>), ImportError> {
    let find = |scan| {
        let mut found = search.pools_with(scan);
        found.retain(|candidate| candidate.guid == guid);
        found.into_iter().next()
    };
    if wants_read_only {
        return match find(ScanOptions::default()) {
            Some(candidate) => Ok((candidate, None)),
            None => Err(busy()),
        };
    }
    if let Some(candidate) = find(SCAN_FOR_WRITING) {
        return Ok((candidate, None));
    }
    // If the devices can only be read, import the pool read-only.
    let candidate = find(ScanOptions::default()).ok_or_else(busy)?;
    if !candidate.has_verified_label() {
        return Err(ImportError::DamagedLabels);
    }
    let cannot_be_written = search.read_only_device().ok_or_else(busy)?;
    Ok((candidate, Some(cannot_be_written)))
}

fn busy() -> ImportError {
    ImportError::Busy("its devices are held by another program".into())
}

/// What an import came to.
enum ImportStep {
    Done(Box<Imported>),
    /// Another system may be using the pool. Its devices are locked.
    Watch(Box<PoolCandidate>),
}

impl ImportedPools {
    /// Answers [`millpond_control::Request::Import`], but mounts nothing and loads no keys. A pool that another system may
    /// be using is watched first, which takes seconds; other pools can be imported and exported meanwhile.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn import(
        &self,
        request: &ImportRequest,
        command: Option<&HistoryCommand>,
    ) -> Result<Imported, ImportError> {
        let max_txg = match request.rewind {
            RewindRequest::ToTxg(txg) => txg,
            _ => 0,
        };
        let progress = self.importing.begin(&request.pool, max_txg);
        let mut watched = None;
        loop {
            progress.note("Waiting for other imports and exports");
            // The devices stay locked while the pool is watched.
            let candidate = match self.import_now(request, command, watched.take(), &progress)? {
                ImportStep::Done(imported) => return Ok(*imported),
                ImportStep::Watch(candidate) => candidate,
            };
            if let ActivityCheck::Watch { duration_ns } =
                candidate.activity_check(self.activity_settings())
            {
                progress.watch(&self.env, duration_ns);
            }
            let seen = candidate.watch_activity(&self.env, self.activity_settings());
            watched = Some(seen.map_err(|error| unopened(&candidate, error))?);
        }
    }

    /// What the imports that have not ended are doing.
    #[must_use]
    pub fn import_progress(&self) -> Vec<millpond_control::ImportProgress> {
        self.importing.list(&self.env)
    }

    /// Shows what is done for a pool right after its import, until the result is dropped.
    #[must_use]
    pub fn after_import(&self, name: &str) -> OneImport {
        let progress = self.importing.begin(name, 0);
        if let Some(imported_pool) = self.get(name) {
            let guid = match imported_pool.opened() {
                Open::Live(live) => live.inner().guid(),
                Open::ReadOnly(read, _) => read.inner().guid(),
            };
            progress.found(guid.0, name);
        }
        progress
    }

    fn activity_settings(&self) -> ActivitySettings {
        let host = self.host();
        ActivitySettings::of(&self.env, host.number, host.is_set)
    }

    /// Imports a pool, unless it must be watched first.
    fn import_now(
        &self,
        request: &ImportRequest,
        command: Option<&HistoryCommand>,
        watched: Option<WatchedPool>,
        progress: &OneImport,
    ) -> Result<ImportStep, ImportError> {
        let _changing = self.changing.lock();
        progress.note("Searching for devices");
        if self.is_over.load(Ordering::Acquire) {
            return Err(ImportError::Busy("the daemon ends".into()));
        }
        let word = request.pool.as_str();
        if request.new_name.is_none() && self.get(word).is_some() {
            return Err(ImportError::NameTaken);
        }
        let mut search = search_of(&request.search, self.host().number)?;
        let found = self.candidates(&mut search, command.is_some());
        let candidate = choose(&found, word, request.destroyed)?;
        let name = request.new_name.clone();
        let name = name.unwrap_or_else(|| candidate.name.clone());
        if self.get(&name).is_some() {
            return Err(ImportError::NameTaken);
        }
        refuse_pool_name(request, &name)?;
        let allowed = Allowed {
            force: request.force || request.destroyed,
            may_be_older: may_be_older(request),
            until: match request.rewind {
                RewindRequest::ToTxg(txg) => Some(Txg(txg)),
                _ => None,
            },
            without_logs: request.without_logs,
            is_automatic: command.is_none(),
        };
        self.refuse(candidate, &allowed)?;
        let options = self.options(request);
        refuse_by_content(candidate, request, &options)?;
        let given = |wanted: &str| {
            let mut pairs = request.properties.iter().rev();
            pairs
                .find(|(name, _)| name == wanted)
                .map(|(_, v)| v.as_str())
        };
        let wants_read_only = given("readonly") == Some("on");
        let altroot = given("altroot").map(str::to_owned);
        let is_visitor = altroot.is_some() || request.is_name_temporary;
        let cache_file = cache_file(given("cachefile"), is_visitor);
        let writing = WriteOptions {
            stored_name: (request.is_name_temporary && name != candidate.name)
                .then(|| candidate.name.clone()),
            found_logs: match request.without_logs {
                true => FoundLogs::DiscardLost,
                false => FoundLogs::Replay,
            },
            watched,
            notes: progress.notes(),
            ..self.writing()
        };

        let (guid, paths) = (candidate.guid, device_paths(candidate));
        let is_complete = !paths.is_empty();
        // The search opened every device that it found. This closes the devices of other pools.
        drop(found);
        let mut narrow = search.clone();
        if is_complete {
            narrow.paths = paths;
        }
        let (mut candidate, cannot_be_written) = find_again(&narrow, guid, wants_read_only)?;
        candidate.name.clone_from(&name);
        progress.found(guid.0, &name);
        let foreign_because = self.foreign_because(&candidate);
        let (open, read_only_because) = if wants_read_only || cannot_be_written.is_some() {
            let why = cannot_be_written;
            let open = self.open_to_read(&candidate, &options, why.clone())?;
            (open, why)
        } else {
            let check = candidate.activity_check(self.activity_settings());
            if writing.watched.is_none() && matches!(check, ActivityCheck::Watch { .. }) {
                return Ok(ImportStep::Watch(Box::new(candidate)));
            }
            self.open_to_write(&candidate, &options, &writing)?
        };
        progress.note("Starting scans and setting properties");
        if let Open::Live(live) = &open {
            let begun = self.begin_use(live, request, command);
            begun.map_err(ImportError::Change)?;
        }
        let imported_pool = ImportedPool {
            open,
            located: Some(self.locate(&candidate, &search)),
            altroot,
            cache_file: Mutex::new(cache_file),
            imported_since_s: self.now_s(),
            last: Mutex::new(None),
            stopped_programs: StoppedPrograms::default(),
        };
        self.add_imported(&name, imported_pool);
        Ok(ImportStep::Done(Box::new(Imported {
            name,
            read_only_because,
            foreign_because,
            ..Imported::default()
        })))
    }

    /// Records that a pool was imported, starts its scans, and sets the properties of the request.
    fn begin_use(
        &self,
        live: &Pool,
        request: &ImportRequest,
        command: Option<&HistoryCommand>,
    ) -> Result<(), ChangeError> {
        live.datasets().enforce_limits(false);
        if let (Some(_), Some(system)) = (command, &self.system) {
            live.inner().record_opening(Opening::Import, system)?;
        }
        super::start_scanner(live)?;
        set_properties(live, request)?;
        if let Some(command) = command {
            live.inner().record_command(command)?;
        }
        Ok(())
    }

    /// Why the pool's content may come from another administrator, if it may.
    fn foreign_because(&self, candidate: &PoolCandidate) -> Option<String> {
        // Mounts by ordinary users are always `nosuid,nodev`; `fusermount3` enforces this.
        if self.owner.0 != 0 {
            return None;
        }
        for path in device_paths(candidate) {
            let Ok(metadata) = std::fs::metadata(&path) else {
                continue;
            };
            let user = metadata.uid();
            if metadata.is_file() && user != 0 {
                return Some(format!("{} belongs to user {user}", path.display()));
            }
        }
        self.is_foreign(candidate).then(|| {
            let name = candidate.hostname.as_deref().unwrap_or("unknown");
            format!("another system used it last: {name}")
        })
    }

    /// Options for inspecting a pool, with the configured deadline for devices that the pool can do without.
    pub(super) fn reading(&self) -> OpenOptions {
        OpenOptions {
            deadline: self.deadline,
            ..OpenOptions::default()
        }
    }

    fn options(&self, request: &ImportRequest) -> OpenOptions {
        OpenOptions {
            rewind: match request.rewind {
                RewindRequest::Never | RewindRequest::Checkpoint => Rewind::Never,
                RewindRequest::Recent => Rewind::Recent,
                RewindRequest::Extreme => Rewind::Extreme,
                RewindRequest::ToTxg(txg) => Rewind::ToTxg(Txg(txg)),
            },
            at_checkpoint: request.rewind == RewindRequest::Checkpoint,
            allow_missing_tops: request.without_logs,
            ..self.reading()
        }
    }

    /// Opens a pool for writing, or for reading with the reason why it cannot be written.
    fn open_to_write(
        &self,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        writing: &WriteOptions,
    ) -> Result<(Open, Option<String>), ImportError> {
        match Pool::open_candidate(&self.env, candidate, options, writing) {
            Ok(live) => Ok((Open::Live(live), None)),
            Err(Error::Open { error, .. }) => match *error {
                OpenError::ReadOnly(why) => {
                    let why = why.to_string();
                    let open = self.open_to_read(candidate, options, Some(why.clone()))?;
                    Ok((open, Some(why)))
                }
                other => Err(unopened(candidate, other)),
            },
            Err(other) => Err(ImportError::Unreadable(other.to_string())),
        }
    }

    fn open_to_read(
        &self,
        candidate: &PoolCandidate,
        options: &OpenOptions,
        why: Option<String>,
    ) -> Result<Open, ImportError> {
        match View::open_candidate(candidate, options) {
            Ok(pool) => Ok(Open::ReadOnly(pool, why)),
            Err(Error::Open { error, .. }) => Err(unopened(candidate, *error)),
            Err(other) => Err(ImportError::Unreadable(other.to_string())),
        }
    }

    /// Paths and sizes of the pool's devices by guid. Searches all devices, because labels of spares and
    /// caches do not name their pool.
    fn locate(&self, candidate: &PoolCandidate, search: &Search) -> BTreeMap<u64, (String, u64)> {
        let wide = search.scan();
        let leaves = wide.leaves().iter().chain(candidate.found().leaves());
        leaves
            .map(|leaf| (leaf.guid().0, (leaf.path(), leaf.device().size_bytes())))
            .collect()
    }

    /// Checks the import conditions before anything is opened for writing.
    fn refuse(&self, candidate: &PoolCandidate, allowed: &Allowed) -> Result<(), ImportError> {
        if allowed.is_automatic {
            self.refuse_unasked(candidate)?;
        }
        for condition in &candidate.conditions {
            match condition {
                ImportCondition::HostidMismatch { hostid, .. } => {
                    // The host id of this system may have changed since it noted the pool.
                    let is_ours = self.last_user(candidate) == LastUser::ThisSystem
                        || allowed.is_automatic && candidate.known_hostid == Some(*hostid);
                    if !is_ours && !allowed.force {
                        return Err(last_use::in_use_elsewhere(candidate));
                    }
                }
                ImportCondition::MissingLog { .. } if !allowed.without_logs => {
                    return Err(ImportError::MissingLogs(missing_logs(candidate)));
                }
                ImportCondition::VersionNewer { .. } => return Err(ImportError::Version),
                ImportCondition::UnsupportedReadFeatures { features } => {
                    // Descriptions of features are in the pool, not in the labels.
                    let described = match View::open_candidate(candidate, &self.reading()) {
                        Err(Error::Open { error, .. }) => match *error {
                            OpenError::Features { features } => features
                                .into_iter()
                                .map(|feature| (feature.guid, feature.description))
                                .collect(),
                            _ => vec![],
                        },
                        _ => vec![],
                    };
                    if !described.is_empty() {
                        return Err(ImportError::Features(described));
                    }
                    let names = features.iter().map(|guid| (guid.clone(), None));
                    return Err(ImportError::Features(names.collect()));
                }
                _ => {}
            }
        }
        match candidate.why_older(allowed.until) {
            Some(why) if !allowed.may_be_older => Err(ImportError::OlderVdevs(why)),
            _ => Ok(()),
        }
    }
}

/// Validates the pool's name: strictly if it is new, leniently if it comes from a label.
fn refuse_pool_name(request: &ImportRequest, name: &str) -> Result<(), ImportError> {
    let why = match request.new_name {
        Some(_) => millpond_pool::check_pool_name(name).err(),
        None => names::refuse_component(name),
    };
    match why {
        None => Ok(()),
        Some(why) => Err(ImportError::BadName {
            name: name.to_owned(),
            why: why.to_owned(),
        }),
    }
}

/// Makes the checks that need the pool's content, before anything is written.
fn refuse_by_content(
    candidate: &PoolCandidate,
    request: &ImportRequest,
    options: &OpenOptions,
) -> Result<(), ImportError> {
    let Ok(pool) = View::open_candidate(candidate, options) else {
        // The actual import reports the reason.
        return Ok(());
    };
    refuse_missing_logs(&pool, request)?;
    let properties = &mut request.properties.iter().rev();
    let read_only = properties.find(|(name, _)| name == "readonly");
    if read_only.is_some_and(|(_, value)| value == "on") && !request.mount {
        // A read-only import without mounts allows recovery of the content despite invalid names.
        return Ok(());
    }
    match names::refuse_datasets(&pool) {
        None => Ok(()),
        Some((name, why)) => Err(ImportError::BadName {
            name,
            why: why.to_owned(),
        }),
    }
}

/// Refuses a pool with missing log devices that only its own configuration lists.
fn refuse_missing_logs(pool: &View, request: &ImportRequest) -> Result<(), ImportError> {
    if request.without_logs {
        return Ok(());
    }
    let paths: BTreeMap<u64, PathBuf> = leaf_paths(pool.inner().config())
        .into_iter()
        .map(|(guid, path)| (guid.0, path))
        .collect();
    let missing: Vec<String> = pool
        .inner()
        .assembly()
        .unusable_logs()
        .iter()
        .map(|guid| match paths.get(&guid.0) {
            Some(path) => path.to_string_lossy().into_owned(),
            None => guid.0.to_string(),
        })
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(ImportError::MissingLogs(missing)),
    }
}

/// Whether vdevs may be older than the pool.
fn may_be_older(request: &ImportRequest) -> bool {
    let mut properties = request.properties.iter().rev();
    let read_only = properties.find(|(name, _)| name == "readonly");
    request.force || read_only.is_some_and(|(_, value)| value == "on")
}

struct Allowed {
    force: bool,
    may_be_older: bool,
    /// The newest state to open.
    until: Option<Txg>,
    without_logs: bool,
    /// The daemon starts, and imports the pools that it had when it ended.
    is_automatic: bool,
}

fn choose<'c>(
    found: &'c [PoolCandidate],
    word: &str,
    destroyed: bool,
) -> Result<&'c PoolCandidate, ImportError> {
    let is_wanted = |pool: &&PoolCandidate| (pool.state == PoolState::Destroyed) == destroyed;
    let guid = word.parse::<u64>().ok();
    let by_guid = found
        .iter()
        .filter(is_wanted)
        .find(|pool| Some(pool.guid.0) == guid);
    if let Some(pool) = by_guid {
        return Ok(pool);
    }
    let mut by_name = found
        .iter()
        .filter(is_wanted)
        .filter(|pool| pool.name == word);
    match (by_name.next(), by_name.next()) {
        (None, _) => Err(ImportError::NoSuchPool),
        (Some(pool), None) => Ok(pool),
        (Some(_), Some(_)) => Err(ImportError::Ambiguous),
    }
}

/// The paths at which the pool's devices were found. Empty if one of them has no path of its own, such as a
/// partition of an image.
fn device_paths(candidate: &PoolCandidate) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = vec![];
    for leaf in candidate.members() {
        let path = PathBuf::from(leaf.path());
        if !path.exists() {
            return vec![];
        }
        paths.push(path);
    }
    paths
}

fn missing_logs(candidate: &PoolCandidate) -> Vec<String> {
    let paths: BTreeMap<u64, String> = leaf_paths(&candidate.config)
        .into_iter()
        .map(|(guid, path)| (guid.0, path.to_string_lossy().into_owned()))
        .collect();
    let Ok(assembly) = &candidate.assembly else {
        return vec![];
    };
    let unusable = assembly.unusable_logs();
    unusable
        .iter()
        .map(|guid| {
            let path = paths.get(&guid.0).cloned();
            path.unwrap_or_else(|| guid.0.to_string())
        })
        .collect()
}

fn unopened(candidate: &PoolCandidate, error: OpenError) -> ImportError {
    match error {
        OpenError::Features { features } => ImportError::Features(
            features
                .into_iter()
                .map(|feature| (feature.guid, feature.description))
                .collect(),
        ),
        OpenError::Version { .. } => ImportError::Version,
        OpenError::InUseElsewhere { hostid, hostname } => {
            ImportError::ImportedElsewhere { hostid, hostname }
        }
        OpenError::NeedsHostid => ImportError::NeedsHostid,
        OpenError::Copies { copies } => ImportError::Copies(millpond_pool::copies_text(&copies)),
        OpenError::Devices { .. } | OpenError::GuidSum => ImportError::MissingDevices,
        other => {
            let assembly = candidate.assembly.as_ref();
            match assembly.is_ok_and(|assembly| !assembly.state().is_usable()) {
                true => ImportError::MissingDevices,
                false => ImportError::Unreadable(other.to_string()),
            }
        }
    }
}

/// Sets the properties that are stored in the pool.
fn set_properties(live: &Pool, request: &ImportRequest) -> Result<(), ChangeError> {
    for (name, value) in &request.properties {
        if matches!(
            name.as_str(),
            "readonly" | "altroot" | "cachefile" | "ashift"
        ) {
            continue;
        }
        let change = PoolChange::Set {
            name: name.clone(),
            value: value.clone(),
        };
        apply::apply(live, &change, &mut Changed::default(), &|_| false, None)?;
    }
    Ok(())
}
