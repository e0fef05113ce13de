//! Which file systems are mounted, and what changes of datasets do to that.

use millpond::control::{
    ChangeError, Changed, Control, DatasetChange, DatasetInfo, DatasetQuery, HeldPool, HeldPools,
    MountInfo, MountProblem, MountRequest, Note, PoolChange, Source, Step, Value, Wanted,
};
use millpond_dataset::properties::{DatasetKind, Kinds, by_name};
use millpond_env::sync::{Arc, Mutex};
use std::path::{Path, PathBuf};

/// A file system that is to be shown to the operating system.
pub struct Mountable<'a> {
    /// Its pool.
    pub pool: &'a HeldPool,
    /// Its name.
    pub dataset: &'a str,
    /// Where: an existing folder.
    pub mountpoint: &'a Path,
    /// Nothing may be changed through it.
    pub read_only: bool,
    /// Programs may be run from it.
    pub exec: bool,
    /// Programs there may run as somebody else.
    pub suid: bool,
    /// Device files there work.
    pub devices: bool,
    /// The folder need not be empty.
    pub overlay: bool,
}

/// A file system that is mounted.
pub trait Mounted: Send + Sync {
    /// Takes it away.
    ///
    /// # Errors
    /// [`MountProblem::Busy`] if somebody uses it.
    fn unmount(&self, force: bool) -> Result<(), MountProblem>;
    /// Whether it is still there: somebody else may have unmounted it.
    fn is_alive(&self) -> bool;
}

/// Whoever shows file systems to the operating system.
pub trait Mounter: Send + Sync {
    /// Makes the folder that is mounted over, where it is missing; without `overlay` it must be empty.
    ///
    /// # Errors
    /// [`MountProblem::NotEmpty`], [`MountProblem::Failed`].
    fn prepare(&self, mountpoint: &Path, overlay: bool) -> Result<(), MountProblem> {
        std::fs::create_dir_all(mountpoint).map_err(|error| {
            MountProblem::Failed(format!("cannot create {}: {error}", mountpoint.display()))
        })?;
        let is_empty = || std::fs::read_dir(mountpoint).is_ok_and(|mut all| all.next().is_none());
        match overlay || is_empty() {
            true => Ok(()),
            false => Err(MountProblem::NotEmpty),
        }
    }
    /// Mounts one.
    ///
    /// # Errors
    /// [`MountProblem`].
    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem>;
    /// Takes away what a killed process left mounted, if there is such a thing.
    ///
    /// # Errors
    /// A text for people.
    fn clear_dead(&self, mountpoint: &Path) -> Result<(), String>;
}

/// Mounts nothing, and says why.
#[derive(Debug, Clone)]
pub struct NoMounter(pub String);

impl Mounter for NoMounter {
    fn mount(&self, _: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        Err(MountProblem::Unavailable(self.0.clone()))
    }
    fn clear_dead(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// Only pretends, for tests: what is mounted is noted, and nothing else happens.
#[derive(Debug, Clone, Default)]
pub struct PretendMounter {
    /// Mount points that are busy.
    pub busy: Arc<Mutex<Vec<PathBuf>>>,
}

struct Pretended {
    mountpoint: PathBuf,
    busy: Arc<Mutex<Vec<PathBuf>>>,
}

impl Mounted for Pretended {
    fn unmount(&self, _: bool) -> Result<(), MountProblem> {
        match self.busy.lock().contains(&self.mountpoint) {
            true => Err(MountProblem::Busy),
            false => Ok(()),
        }
    }
    fn is_alive(&self) -> bool {
        true
    }
}

impl Mounter for PretendMounter {
    fn prepare(&self, _: &Path, _: bool) -> Result<(), MountProblem> {
        Ok(())
    }
    fn mount(&self, what: &Mountable<'_>) -> Result<Box<dyn Mounted>, MountProblem> {
        Ok(Box::new(Pretended {
            mountpoint: what.mountpoint.to_owned(),
            busy: Arc::clone(&self.busy),
        }))
    }
    fn clear_dead(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// What decides whether and where a file system is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    dataset: String,
    mountpoint: String,
    /// The dataset that the mount point comes from.
    mountpoint_from: String,
    /// 0 off, 1 on, 2 by hand only.
    can_mount: u64,
    read_only: bool,
    exec: bool,
    suid: bool,
    devices: bool,
    overlay: bool,
    is_locked: bool,
}

const WANTED: [&str; 8] = [
    "mountpoint",
    "canmount",
    "readonly",
    "exec",
    "setuid",
    "devices",
    "overlay",
    "keystatus",
];

impl Settings {
    fn read(info: &DatasetInfo) -> Self {
        let number = |name: &str, preset: u64| match info.property(name).map(|p| &p.value) {
            Some(Some(Value::Number(number))) => *number,
            Some(Some(Value::Text(word))) => match word.as_str() {
                "on" => 1,
                "noauto" => 2,
                _ => 0,
            },
            _ => preset,
        };
        let mountpoint = info.property("mountpoint");
        let path = mountpoint.and_then(|p| p.value.as_ref()?.text());
        let from = match mountpoint.map(|p| &p.source) {
            Some(Source::Inherited(from)) => from.clone(),
            Some(Source::Default) => String::new(),
            _ => info.name.clone(),
        };
        Self {
            dataset: info.name.clone(),
            mountpoint: path.unwrap_or("none").to_owned(),
            mountpoint_from: from,
            can_mount: number("canmount", 1),
            read_only: number("readonly", 0) == 1,
            exec: number("exec", 1) == 1,
            suid: number("setuid", 1) == 1,
            devices: number("devices", 1) == 1,
            overlay: number("overlay", 1) == 1,
            is_locked: info
                .property("keystatus")
                .and_then(|p| p.value.as_ref())
                .is_some_and(|value| {
                    matches!(value, Value::Number(1)) || value.text() == Some("unavailable")
                }),
        }
    }

    fn is_automatic(&self) -> bool {
        self.can_mount == 1 && self.mountpoint.starts_with('/')
    }

    /// Mount options that stand in for properties this once.
    fn override_with(&mut self, options: &[String]) {
        for option in options.iter().flat_map(|words| words.split(',')) {
            match option {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "exec" => self.exec = true,
                "noexec" => self.exec = false,
                "suid" | "setuid" => self.suid = true,
                "nosuid" | "nosetuid" => self.suid = false,
                "dev" | "devices" => self.devices = true,
                "nodev" | "nodevices" => self.devices = false,
                _ => {}
            }
        }
    }
}

struct Entry {
    info: MountInfo,
    handle: Arc<dyn Mounted>,
}

type Notes = dyn Fn(&[MountInfo]) + Send + Sync;

/// The mounts of a daemon.
pub struct Mounts {
    mounter: Box<dyn Mounter>,
    table: Mutex<Vec<Entry>>,
    /// One mounts or unmounts at a time.
    turn: Mutex<()>,
    /// Told of every change before it is made.
    note: Box<Notes>,
}

fn is_within(name: &str, root: &str) -> bool {
    name.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Mounts {
    /// None yet.
    pub fn new(mounter: Box<dyn Mounter>, note: Box<Notes>) -> Self {
        Self {
            mounter,
            table: Mutex::new(vec![]),
            turn: Mutex::new(()),
            note,
        }
    }

    /// Takes away what a killed daemon left; what could not be.
    pub fn clear_dead(&self, left: &[MountInfo]) -> Vec<String> {
        // What lies in a dead mount cannot be reached, and goes with it: the outer ones come first, and
        // what was unreachable is looked at again.
        let clear = |mount: &MountInfo| self.mounter.clear_dead(Path::new(&mount.mountpoint));
        for mount in left {
            let _ = clear(mount);
        }
        let told = left.iter().filter_map(|mount| {
            let error = clear(mount).err()?;
            Some(format!(
                "cannot clear the dead mount {}: {error}",
                mount.mountpoint
            ))
        });
        told.collect()
    }

    /// What is mounted, in the order in which it was.
    pub fn list(&self) -> Vec<MountInfo> {
        let mut table = self.table.lock();
        table.retain(|entry| entry.handle.is_alive());
        table.iter().map(|entry| entry.info.clone()).collect()
    }

    /// Whether a dataset is mounted.
    pub fn is_mounted(&self, dataset: &str) -> bool {
        let table = self.table.lock();
        let mut own = table.iter().filter(|entry| entry.info.dataset == dataset);
        own.any(|entry| entry.handle.is_alive())
    }

    fn read(
        &self,
        pools: &HeldPools,
        root: &str,
        depth: u32,
    ) -> Result<Vec<Settings>, MountProblem> {
        let names = WANTED.iter().filter_map(|name| by_name(name));
        let query = DatasetQuery {
            root: root.to_owned(),
            depth,
            kinds: Kinds::only(&[DatasetKind::Filesystem]),
            wanted: Wanted::Named(names.collect()),
        };
        let mut all = vec![];
        let told = pools.datasets(&query, &mut |info| {
            all.push(Settings::read(&info));
            Ok(())
        });
        told.map_err(|error| match error {
            millpond::control::ControlError::NoSuchDataset
            | millpond::control::ControlError::NoSuchPool => MountProblem::NoSuchDataset,
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
        pools: &HeldPools,
        dataset: &str,
        request: &MountRequest,
    ) -> Result<(), MountProblem> {
        let _turn = self.turn.lock();
        let mut own = self.read(pools, dataset, 0)?;
        let Some(mut settings) = own.pop() else {
            return Err(MountProblem::NotAFileSystem);
        };
        settings.override_with(&request.options);
        settings.overlay |= request.overlay;
        self.mount_as(pools, &settings)
    }

    fn mount_as(&self, pools: &HeldPools, settings: &Settings) -> Result<(), MountProblem> {
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
        if self.is_mounted(dataset) {
            return Err(MountProblem::Already);
        }
        let pool = dataset.split('/').next().unwrap_or(dataset);
        let pool = pools.get(pool).ok_or(MountProblem::NoSuchDataset)?;
        let mountpoint = Path::new(&settings.mountpoint);
        self.mounter.prepare(mountpoint, settings.overlay)?;
        let info = MountInfo {
            dataset: dataset.to_owned(),
            mountpoint: settings.mountpoint.clone(),
        };
        let mut coming = self.list();
        coming.push(info.clone());
        (self.note)(&coming);
        let mounted = self.mounter.mount(&Mountable {
            pool: &pool,
            dataset,
            mountpoint,
            read_only: settings.read_only || pool.live().is_none(),
            exec: settings.exec,
            suid: settings.suid,
            devices: settings.devices,
            overlay: true,
        });
        match mounted {
            Ok(handle) => {
                let handle: Arc<dyn Mounted> = Arc::from(handle);
                self.table.lock().push(Entry { info, handle });
                Ok(())
            }
            Err(problem) => {
                (self.note)(&self.list());
                Err(problem)
            }
        }
    }

    /// Mounts everything at and below a dataset that is to be mounted by itself; what could not be.
    pub fn mount_all(&self, pools: &HeldPools, root: &str) -> Vec<Note> {
        self.mount_some(pools, root, &|_| true)
    }

    fn mount_some(
        &self,
        pools: &HeldPools,
        root: &str,
        wanted: &dyn Fn(&Settings) -> bool,
    ) -> Vec<Note> {
        let _turn = self.turn.lock();
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
        // What lies below comes later.
        all.sort_by(|a, b| {
            let parts = |one: &Settings| {
                one.mountpoint
                    .split('/')
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            parts(a)
                .cmp(&parts(b))
                .then_with(|| a.dataset.cmp(&b.dataset))
        });
        let mut notes = vec![];
        for one in &all {
            match self.mount_as(pools, one) {
                Ok(()) | Err(MountProblem::Already) => {}
                Err(why) => notes.push(Note::NotMounted {
                    dataset: one.dataset.clone(),
                    mountpoint: one.mountpoint.clone(),
                    why,
                }),
            }
        }
        notes
    }

    /// Unmounts a dataset and what is below it, the last mounted first; the names, in the order of
    /// unmounting. What was unmounted before an error stays so.
    fn take_away(
        &self,
        root: &str,
        force: bool,
        taken: &mut Vec<String>,
    ) -> Result<(), (String, MountProblem)> {
        let _turn = self.turn.lock();
        let own: Vec<(MountInfo, Arc<dyn Mounted>)> = {
            let table = self.table.lock();
            let own = table.iter().rev();
            own.filter(|entry| is_within(&entry.info.dataset, root))
                .map(|entry| (entry.info.clone(), Arc::clone(&entry.handle)))
                .collect()
        };
        let mut outcome = Ok(());
        for (info, handle) in own {
            if handle.is_alive()
                && let Err(problem) = handle.unmount(force)
            {
                outcome = Err((info.mountpoint, problem));
                break;
            }
            self.table.lock().retain(|entry| entry.info != info);
            taken.push(info.dataset);
        }
        (self.note)(&self.list());
        outcome
    }

    /// Unmounts a file system and what is mounted below it.
    ///
    /// # Errors
    /// [`MountProblem`] with the mount point, or with the dataset if that is not mounted.
    pub fn unmount(
        &self,
        pools: &HeldPools,
        dataset: &str,
        force: bool,
    ) -> Result<(), (String, MountProblem)> {
        let of = |problem| (dataset.to_owned(), problem);
        let own = self.read(pools, dataset, 0).map_err(of)?;
        let settings = own
            .first()
            .ok_or_else(|| of(MountProblem::NotAFileSystem))?;
        if !self.is_mounted(dataset) {
            return Err(of(match settings.mountpoint.as_str() {
                "legacy" => MountProblem::Legacy,
                _ => MountProblem::NotMounted,
            }));
        }
        self.take_away(dataset, force, &mut vec![])
    }

    /// Unmounts everything; what could not be.
    pub fn unmount_all(&self, force: bool) -> Vec<Note> {
        let mut notes = vec![];
        for mount in self.list().into_iter().rev() {
            let MountInfo { dataset, .. } = &mount;
            if !self.is_mounted(dataset) {
                continue;
            }
            if let Err((mountpoint, why)) = self.take_away(dataset, force, &mut vec![]) {
                notes.push(Note::StillMounted {
                    dataset: dataset.clone(),
                    mountpoint,
                    why,
                });
            }
        }
        notes
    }
}

/// What one command's changes do to mounts.
pub struct Follow<'a> {
    mounts: &'a Mounts,
    pools: &'a HeldPools,
    pool: &'a str,
    /// What was taken away for the change that is being made.
    taken: Vec<String>,
}

/// What a change asks of mounts.
enum Effect<'c> {
    Nothing,
    /// Everything at and below is in the way.
    InTheWay(&'c str),
    /// The same, and it comes back under another name.
    Renamed(&'c str, &'c str),
    /// The same, and it comes back if it still is to be mounted, with everything that has its mount
    /// point from there.
    Moved(&'c str),
    /// It may be mounted now.
    New(&'c str),
    /// Open file systems at and below should look at their properties again.
    Settings(&'c str),
}

fn effect<'c>(change: &'c PoolChange, pool: &'c str) -> Effect<'c> {
    let moves = |property: &str| matches!(property, "mountpoint" | "canmount");
    match change {
        PoolChange::Destroy | PoolChange::Export => Effect::InTheWay(pool),
        PoolChange::Dataset(change) => match change {
            DatasetChange::CreateFileSystem { name, mount, .. }
            | DatasetChange::Clone { name, mount, .. }
                if *mount =>
            {
                Effect::New(name)
            }
            DatasetChange::Destroy { name } if !name.contains(['#', '@']) => Effect::InTheWay(name),
            DatasetChange::Rename { from, to, .. } if !from.contains('@') => {
                Effect::Renamed(from, to)
            }
            DatasetChange::Rollback { snapshot } => {
                Effect::Moved(snapshot.split('@').next().unwrap_or(snapshot))
            }
            DatasetChange::Set {
                name,
                properties,
                mount,
            } => match *mount && properties.iter().any(|(name, _)| moves(name)) {
                true => Effect::Moved(name),
                false => Effect::Settings(name),
            },
            DatasetChange::Inherit { name, property, .. } => match moves(property) {
                true => Effect::Moved(name),
                false => Effect::Settings(name),
            },
            _ => Effect::Nothing,
        },
        _ => Effect::Nothing,
    }
}

impl<'a> Follow<'a> {
    /// For the changes of one pool.
    pub fn new(mounts: &'a Mounts, pools: &'a HeldPools, pool: &'a str) -> Self {
        Self {
            mounts,
            pools,
            pool,
            taken: vec![],
        }
    }

    /// Before, after, or instead of a change.
    ///
    /// # Errors
    /// [`ChangeError::Mounted`] if something that is in the way is in use; everything is mounted as it
    /// was then.
    pub fn step(&mut self, step: Step<'_>, changed: &mut Changed) -> Result<(), ChangeError> {
        match step {
            Step::Before(change) => {
                self.taken.clear();
                let root = match effect(change, self.pool) {
                    Effect::InTheWay(root) | Effect::Renamed(root, _) | Effect::Moved(root) => root,
                    _ => return Ok(()),
                };
                let taken = self.mounts.take_away(root, false, &mut self.taken);
                taken.map_err(|(mountpoint, why)| {
                    self.bring_back();
                    ChangeError::Mounted { mountpoint, why }
                })
            }
            Step::Failed(_) => {
                self.bring_back();
                Ok(())
            }
            Step::After(change) => {
                let notes = match effect(change, self.pool) {
                    Effect::Nothing | Effect::InTheWay(_) => vec![],
                    Effect::Renamed(from, to) => {
                        let taken = std::mem::take(&mut self.taken);
                        let is_back = |one: &Settings| {
                            let old = one
                                .dataset
                                .strip_prefix(to)
                                .map(|rest| format!("{from}{rest}"));
                            old.is_some_and(|old| taken.contains(&old))
                        };
                        self.mounts.mount_some(self.pools, to, &is_back)
                    }
                    Effect::Moved(root) => {
                        let taken = std::mem::take(&mut self.taken);
                        self.mounts.mount_some(self.pools, root, &|one| {
                            taken.contains(&one.dataset)
                                || one.dataset == root
                                || one.mountpoint_from == root
                        })
                    }
                    Effect::New(name) => self.mounts.mount_some(self.pools, name, &|_| true),
                    Effect::Settings(root) => {
                        self.refresh(root);
                        vec![]
                    }
                };
                changed.notes.extend(notes);
                Ok(())
            }
        }
    }

    fn bring_back(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        // Errors here are those of the change that is being given up.
        let _ = self
            .mounts
            .mount_some(self.pools, self.pool, &|one| taken.contains(&one.dataset));
    }

    fn refresh(&self, root: &str) {
        let Some(live) = self
            .pools
            .get(self.pool)
            .and_then(|pool| pool.live().cloned())
        else {
            return;
        };
        for mount in self.mounts.list() {
            if is_within(&mount.dataset, root) {
                // Opening what is open makes it look at its properties.
                let _ = live.file_system(&mount.dataset);
            }
        }
    }
}
