//! The table of mounted file systems: mounts and unmounts single file systems, or all below a dataset.

mod follow;
mod former;
mod mounter;
mod names;
mod options;
mod receiving;
mod remount;
mod settings;
mod suspended;
mod unmount;

pub use follow::Follow;
pub use mounter::{
    FileTrouble, Mountable, Mounted, Mounter, NoMounter, PretendMounter, SuspendedFiles,
};
pub use receiving::Receiving;

use millpond_control::properties::{DatasetKind, Kinds, PropertyName, by_name};
use millpond_control::{
    DatasetQuery, MountInfo, MountProblem, MountRequest, Note, PoolInfo, Source, Value, Wanted,
};
use millpond_engine::{InUseSnapshot, SnapshotControl};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_service::ImportedPools;
pub(crate) use names::is_of;
use names::{is_within, renamed};
use remount::is_remount;
use settings::{Settings, WANTED};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[derive(Clone)]
struct Entry {
    info: MountInfo,
    /// The mount point with links resolved, for the record. After a kill only this path may be unmounted.
    place: PathBuf,
    handle: Arc<dyn Mounted>,
    /// The settings with which it was mounted, including the options of the request.
    settings: Settings,
    /// The mount options of the request.
    options: Vec<String>,
    /// The mount point that the request gave.
    at: Option<String>,
    /// Whether the mount point came from the dataset above, or was the default.
    is_from_above: bool,
    /// Whether its pool was imported read-only.
    is_in_read_only_pool: bool,
    /// Keeps a snapshot from being destroyed under its mount.
    in_use: Option<Arc<InUseSnapshot>>,
}

/// A mount that was removed and will be restored.
pub(super) struct RemovedMount {
    pub(super) dataset: String,
    options: Vec<String>,
    /// The mount point that the request gave.
    at: Option<String>,
    /// The mount point that it had, and the directory with links resolved.
    mountpoint: String,
    place: PathBuf,
    /// Whether the mount point came from the dataset above, or was the default.
    is_from_above: bool,
}

type Notes = dyn Fn(&[MountInfo]) + Send + Sync;

/// The mounts of a daemon.
pub struct Mounts {
    mounter: Box<dyn Mounter>,
    table: Mutex<Vec<Entry>, rank::MountTable>,
    /// Directories that were created for mounts.
    made: Mutex<BTreeSet<PathBuf>, rank::Leaf>,
    /// Serializes mounting and unmounting.
    changing: Mutex<(), rank::MountChange>,
    /// Called with the new mounts before every change is made.
    note: Box<Notes>,
    /// Changes snapshots for programs in `.zfs/snapshot`.
    snapshots: Arc<dyn SnapshotControl>,
}

impl Mounts {
    /// Creates an empty table.
    pub fn new(
        mounter: Box<dyn Mounter>,
        note: Box<Notes>,
        snapshots: Arc<dyn SnapshotControl>,
    ) -> Self {
        Self {
            mounter,
            table: Mutex::new(vec![]),
            made: Mutex::default(),
            changing: Mutex::new(()),
            note,
            snapshots,
        }
    }

    /// Removes the mounts that a killed daemon left. Returns messages for those that failed.
    pub fn clear_dead(&self, left: &[MountInfo]) -> Vec<String> {
        // Paths inside a dead mount are unreachable. So clear outer mounts first, then retry the ones that
        // were unreachable.
        let clear = |mount: &MountInfo| self.mounter.clear_dead(Path::new(&mount.mountpoint));
        for mount in left {
            let _ = clear(mount);
        }
        let notes = left.iter().filter_map(|mount| {
            let error = clear(mount).err()?;
            Some(format!(
                "cannot clear the dead mount {}: {error}",
                mount.mountpoint
            ))
        });
        notes.collect()
    }

    /// The mounts, in the order in which they were made.
    pub fn list(&self) -> Vec<MountInfo> {
        let mut table = self.table.lock();
        let dead: Vec<Entry> = table
            .extract_if(.., |entry| !entry.handle.is_alive())
            .collect();
        let alive = table.iter().map(|entry| entry.info.clone()).collect();
        drop(table);
        // This may end the mount's threads and close its file system, so it happens without the lock.
        drop(dead);
        alive
    }

    /// The mounts with links in their mount points resolved, for the record.
    fn record(&self) -> Vec<MountInfo> {
        let table = self.table.lock();
        let alive = table.iter().filter(|entry| entry.handle.is_alive());
        let placed = alive.map(|entry| MountInfo {
            dataset: entry.info.dataset.clone(),
            mountpoint: entry.place.to_string_lossy().into_owned(),
        });
        placed.collect()
    }

    /// The files that programs failed to read or write since the last call, with their mounts.
    pub fn take_troubles(&self) -> Vec<(MountInfo, FileTrouble)> {
        let table = self.table.lock();
        let all = table.iter().flat_map(|entry| {
            let troubles = entry.handle.take_troubles().into_iter();
            troubles.map(|trouble| (entry.info.clone(), trouble))
        });
        all.collect()
    }

    /// Names damaged files of mounted datasets by their path.
    pub fn name_damaged_files(&self, info: &mut PoolInfo) {
        if info.errors.is_empty() {
            return;
        }
        let mounts = self.list().into_iter();
        let mounts: BTreeMap<String, String> = mounts
            .map(|mount| (mount.dataset, mount.mountpoint))
            .collect();
        for error in &mut info.errors {
            let Some(dataset) = &error.dataset else {
                continue;
            };
            let path = (error.name.strip_prefix(dataset)).and_then(|rest| rest.strip_prefix(':'));
            if let (Some(mountpoint), Some(path)) = (mounts.get(dataset), path) {
                error.name = format!("{}{path}", mountpoint.trim_end_matches('/'));
            }
        }
    }

    /// Whether a dataset is mounted.
    pub fn is_mounted(&self, dataset: &str) -> bool {
        let table = self.table.lock();
        let mut own = table.iter().filter(|entry| entry.info.dataset == dataset);
        own.any(|entry| entry.handle.is_alive())
    }

    fn read(
        &self,
        pools: &ImportedPools,
        root: &str,
        depth: u32,
    ) -> Result<Vec<Settings>, MountProblem> {
        let names = WANTED.iter().filter_map(|name| by_name(name));
        let kind = match root.contains('@') {
            true => DatasetKind::Snapshot,
            false => DatasetKind::Filesystem,
        };
        let query = DatasetQuery {
            root: root.to_owned(),
            depth,
            kinds: Kinds::only(&[kind]),
            wanted: Wanted::Named(names.collect()),
            names_damaged: false,
        };
        let mut all = vec![];
        let result = pools.datasets(&query, &mut |info| {
            all.push(Settings::read(&info));
            Ok(())
        });
        result.map_err(|error| match error {
            millpond_control::ControlError::NoSuchDataset
            | millpond_control::ControlError::NoSuchPool => MountProblem::NoSuchDataset,
            other => MountProblem::Failed(other.to_string()),
        })?;
        Ok(all)
    }

    /// Mounts one file system.
    ///
    /// # Errors
    /// [`MountProblem`].
    pub fn mount(
        &self,
        pools: &ImportedPools,
        dataset: &str,
        request: &MountRequest,
    ) -> Result<(), MountProblem> {
        let _changing = self.changing.lock();
        let mut own = self.read(pools, dataset, 0)?;
        let Some(mut settings) = own.pop() else {
            return Err(MountProblem::NotAFileSystem);
        };
        let is_again = is_remount(&request.options) && self.is_mounted(dataset);
        if settings.is_redacted && !request.force && !is_again {
            return Err(MountProblem::Redacted);
        }
        settings.override_with(&request.options);
        settings.overlay |= request.overlay || is_again;
        let placed = match is_again && request.at.is_none() {
            true => self.given_place(dataset),
            false => request.at.clone(),
        };
        settings.place(placed.as_deref());
        match is_again {
            true => self.remount(pools, &settings, &request.options),
            false => self.mount_as(pools, &settings, &request.options),
        }
    }

    /// Restores removed mounts with their former options. The caller holds `changing`.
    fn mount_removed(&self, pools: &ImportedPools, removed: &[RemovedMount]) -> Vec<Note> {
        let mut all: Vec<(Settings, &RemovedMount)> = vec![];
        for one in removed {
            if let Ok(own) = self.read(pools, &one.dataset, 0) {
                all.extend(own.into_iter().map(|mut settings| {
                    settings.override_with(&one.options);
                    settings.overlay = true;
                    settings.place(one.at.as_deref());
                    (settings, one)
                }));
            }
        }
        all.sort_by(|(a, _), (b, _)| a.order().cmp(&b.order()));
        let mut notes = vec![];
        for (settings, one) in &all {
            if settings.is_mountable() {
                self.mount_noting(pools, settings, &one.options, &mut notes);
            }
        }
        notes
    }

    fn mount_noting(
        &self,
        pools: &ImportedPools,
        settings: &Settings,
        options: &[String],
        notes: &mut Vec<Note>,
    ) {
        match self.mount_as(pools, settings, options) {
            Ok(()) | Err(MountProblem::Already) => {}
            Err(why) => notes.push(Note::NotMounted {
                dataset: settings.dataset.clone(),
                mountpoint: settings.mountpoint.clone(),
                why,
            }),
        }
    }

    /// Renames the mounts of `from` and of its descendants to `to`. The mount points stay. The caller holds `changing`.
    fn call_otherwise(&self, from: &str, to: &str, recursively: bool) {
        for entry in self.table.lock().iter_mut() {
            if let Some(name) = renamed(&entry.info.dataset, (from, to), recursively) {
                entry.settings.dataset.clone_from(&name);
                entry.info.dataset = name;
            }
        }
        (self.note)(&self.record());
    }

    fn mount_as(
        &self,
        pools: &ImportedPools,
        settings: &Settings,
        options: &[String],
    ) -> Result<(), MountProblem> {
        let dataset = settings.dataset.as_str();
        if settings.can_mount == 0 {
            return Err(MountProblem::Off);
        }
        match settings.mountpoint.as_str() {
            "legacy" => return Err(MountProblem::Legacy),
            path if !path.starts_with('/') => return Err(MountProblem::NoMountpoint),
            _ => {}
        }
        if settings.is_locked {
            return Err(MountProblem::Locked);
        }
        if settings.is_partial {
            return Err(MountProblem::PartlyReceived);
        }
        if self.is_mounted(dataset) {
            return Err(MountProblem::Already);
        }
        let pool = dataset.split('/').next().unwrap_or(dataset);
        let pool = pools.get(pool).ok_or(MountProblem::NoSuchDataset)?;
        let mountpoint = Path::new(&settings.mountpoint);
        let root = match settings.is_placed {
            true => None,
            false => pool.altroot().map(Path::new),
        };
        let in_use = match pool.live().filter(|_| dataset.contains('@')) {
            Some(live) => {
                let failed =
                    |error: millpond_engine::Error| MountProblem::Failed(error.to_string());
                Some(Arc::new(live.use_snapshot(dataset).map_err(failed)?))
            }
            None => None,
        };
        let (place, is_made) = self.mounter.prepare(root, mountpoint, settings.overlay)?;
        if is_made {
            self.made.lock().insert(place.clone());
        }
        let info = MountInfo {
            dataset: dataset.to_owned(),
            mountpoint: settings.mountpoint.clone(),
        };
        let mut coming = self.record();
        coming.push(MountInfo {
            mountpoint: place.to_string_lossy().into_owned(),
            ..info.clone()
        });
        (self.note)(&coming);
        let mounted = self.mounter.mount(&Mountable {
            pool: &pool,
            dataset,
            mountpoint,
            root,
            read_only: settings.read_only || pool.live().is_none(),
            exec: settings.exec,
            suid: settings.suid,
            devices: settings.devices,
            access_times: settings.access_times,
            overlay: true,
            snapshots: &self.snapshots,
        });
        match mounted {
            Ok(handle) => {
                let handle: Arc<dyn Mounted> = Arc::from(handle);
                self.table.lock().push(Entry {
                    info,
                    place,
                    handle,
                    settings: settings.clone(),
                    options: options.to_vec(),
                    at: settings.is_placed.then(|| settings.mountpoint.clone()),
                    is_from_above: settings.mountpoint_from != settings.dataset,
                    is_in_read_only_pool: pool.live().is_none(),
                    in_use,
                });
                Ok(())
            }
            Err(problem) => {
                (self.note)(&self.record());
                Err(problem)
            }
        }
    }

    /// Mounts the dataset and all below it that are mounted automatically. Returns those that failed.
    /// `options` override properties for these mounts. `shown` is told how many of how many are done.
    pub fn mount_all(
        &self,
        pools: &ImportedPools,
        root: &str,
        options: &[String],
        wanted: &dyn Fn(&Settings) -> bool,
        shown: &dyn Fn(u64, u64),
    ) -> Vec<Note> {
        let _changing = self.changing.lock();
        let mut all = match self.read(pools, root, DatasetQuery::WHOLE_TREE) {
            Ok(all) => all,
            Err(why) => {
                return vec![Note::NotMounted {
                    dataset: root.to_owned(),
                    mountpoint: String::new(),
                    why,
                }];
            }
        };
        all.retain(|one| one.is_automatic() && !one.is_locked && wanted(one));
        // Parents before children.
        all.sort_by(|a, b| a.order().cmp(&b.order()));
        let mut notes = vec![];
        let total = all.len() as u64;
        for (number, one) in (0..).zip(&mut all) {
            shown(number, total);
            one.override_with(options);
            self.mount_noting(pools, one, options, &mut notes);
        }
        notes
    }

    /// Writes what programs changed in mapped memory, before they are cut off from a dataset and all below it, or from
    /// everything. A pool that waits for devices is left alone after its first mount.
    fn write_back(&self, root: Option<&str>) {
        let handles: Vec<(String, Arc<dyn Mounted>)> = {
            let table = self.table.lock();
            let own = table.iter().filter(|entry| {
                root.is_none_or(|root| is_of(&entry.info.dataset, root)) && entry.handle.is_alive()
            });
            own.map(|entry| (entry.info.dataset.clone(), Arc::clone(&entry.handle)))
                .collect()
        };
        let mut waiting = BTreeSet::new();
        for (dataset, handle) in &handles {
            let pool = dataset.split(['/', '@']).next().unwrap_or(dataset);
            if !waiting.contains(pool) && !handle.write_back() {
                waiting.insert(pool);
            }
        }
    }

    /// Unmounts a dataset and all below it.
    fn take_away(
        &self,
        root: &str,
        force: bool,
        removed: &mut Vec<RemovedMount>,
    ) -> Result<(), (String, MountProblem)> {
        let _changing = self.changing.lock();
        self.remove_these(&|info| is_of(&info.dataset, root), force, removed)
    }

    /// Unmounts the file systems at and below a dataset that take a property's value from it, with all mounts
    /// inside them. Those that already have the given value stay.
    fn take_inheriting(
        &self,
        pools: &ImportedPools,
        (root, name, value): (&str, &str, Option<&Value>),
        removed: &mut Vec<RemovedMount>,
    ) -> Result<(), (String, MountProblem)> {
        let _changing = self.changing.lock();
        let Some(property) = by_name(name) else {
            return Ok(());
        };
        let word = |value: &Value| match (value, &property) {
            (Value::Number(number), PropertyName::Native(native)) => {
                let word = native.shape.word_of(*number);
                word.map_or_else(|| number.to_string(), str::to_owned)
            }
            (Value::Number(number), _) => number.to_string(),
            (Value::Text(text), _) => text.clone(),
        };
        let query = DatasetQuery {
            root: root.to_owned(),
            depth: DatasetQuery::WHOLE_TREE,
            kinds: Kinds::only(&[DatasetKind::Filesystem]),
            wanted: Wanted::Named(vec![property.clone()]),
            names_damaged: false,
        };
        let mut changing = BTreeSet::new();
        let result = pools.datasets(&query, &mut |info| {
            let known = info.property(name);
            let is_from_there = info.name == root
                || match known.map(|property| &property.source) {
                    Some(Source::Inherited(from)) => from == root || !is_within(from, root),
                    Some(Source::Default) | None => true,
                    Some(_) => false,
                };
            let now = known.and_then(|property| property.value.as_ref());
            let is_same = value.is_some() && now.map(word) == value.map(word);
            if is_from_there && !is_same {
                changing.insert(info.name);
            }
            Ok(())
        });
        result.map_err(|error| (root.to_owned(), MountProblem::Failed(error.to_string())))?;
        let mounted = self.list().into_iter();
        let at: Vec<MountInfo> = mounted
            .filter(|info| changing.contains(&info.dataset))
            .collect();
        let is_meant = |info: &MountInfo| {
            let mut at = at.iter();
            at.any(|outer| is_within(&info.mountpoint, &outer.mountpoint))
        };
        self.remove_these(&is_meant, false, removed)
    }

    /// Unmounts the selected file systems, the last mounted first. Adds them to `removed` in the order of
    /// unmounting. After an error, those already unmounted stay so. The caller holds `changing`.
    fn remove_these(
        &self,
        is_meant: &dyn Fn(&MountInfo) -> bool,
        force: bool,
        removed: &mut Vec<RemovedMount>,
    ) -> Result<(), (String, MountProblem)> {
        let own: Vec<(MountInfo, Arc<dyn Mounted>, RemovedMount)> = {
            let table = self.table.lock();
            let own = table.iter().rev().filter(|entry| is_meant(&entry.info));
            own.map(|entry| {
                let handle = Arc::clone(&entry.handle);
                let removed = RemovedMount {
                    dataset: entry.info.dataset.clone(),
                    options: entry.options.clone(),
                    at: entry.at.clone(),
                    mountpoint: entry.info.mountpoint.clone(),
                    place: entry.place.clone(),
                    is_from_above: entry.is_from_above,
                };
                (entry.info.clone(), handle, removed)
            })
            .collect()
        };
        if own.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for (info, handle, one) in own {
            if handle.is_alive()
                && let Err(problem) = handle.unmount(force)
            {
                outcome = Err((info.mountpoint, problem));
                break;
            }
            self.table.lock().retain(|entry| entry.info != info);
            removed.push(one);
        }
        (self.note)(&self.record());
        outcome
    }
}
