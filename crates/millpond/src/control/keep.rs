//! What only somebody can do who keeps pools open from one command to the next: import and export,
//! mounts, keys, events.

use super::{Change, ChangeError, Control, ControlError, ImportablePool, Note};

/// Where pools to be imported are looked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Places {
    /// Absolute paths of folders, devices and images; none: the system's folders of devices.
    pub paths: Vec<String>,
    /// A cache file that names the pools and their devices.
    pub cache_file: Option<String>,
}

/// How far an import may go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RewindRequest {
    /// Only the newest state.
    #[default]
    Never,
    /// The last txgs (`-F`).
    Recent,
    /// Any older one (`-FX`).
    Extreme,
    /// That of this txg (`-T`).
    ToTxg(u64),
    /// That of the checkpoint (`--rewind-to-checkpoint`).
    Checkpoint,
}

/// A pool to be imported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImportRequest {
    /// Its name or guid.
    pub pool: String,
    /// The name it gets.
    pub new_name: Option<String>,
    /// Whether the new name is only for as long as it is imported (`-t`).
    pub is_name_temporary: bool,
    /// Where to look.
    pub places: Places,
    /// Destroyed pools instead of the others (`-D`).
    pub destroyed: bool,
    /// Although another system may have it (`-f`).
    pub force: bool,
    /// Although log devices are missing: what only they held is lost (`-m`).
    pub without_logs: bool,
    /// How far back.
    pub rewind: RewindRequest,
    /// Properties as given; `readonly`, `altroot` and `cachefile` among them.
    pub properties: Vec<(String, String)>,
    /// Whether its file systems are mounted.
    pub mount: bool,
    /// Mount options that stand in for properties of its file systems while it is imported: `nosuid`, `nodev`, …
    pub mount_options: Vec<String>,
    /// Whether keys are read from where `keylocation` says, if that is a file.
    pub load_keys: bool,
}

/// What an import told besides being done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Imported {
    /// The pool's name.
    pub name: String,
    /// Why it was imported read-only although that was not asked for.
    pub read_only_because: Option<String>,
    /// Why its set-user bits and device files may be somebody else's: who had it last, or whose its images are.
    pub foreign_because: Option<String>,
    /// Keys that were loaded, and those that were tried.
    pub keys: (u64, u64),
    /// What was left undone.
    pub notes: Vec<Note>,
}

/// Why a pool was not imported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ImportError {
    /// None was found.
    NoSuchPool,
    /// Several of this name were found.
    Ambiguous,
    /// A pool of this name is open.
    NameTaken,
    /// Another system had the pool last and did not export it.
    HeldElsewhere {
        /// Its name.
        hostname: Option<String>,
        /// Its number.
        hostid: u64,
        /// Seconds since 1970 of the last txg.
        time_s: u64,
    },
    /// The pool uses features that must be known to read it: their names and descriptions.
    Features(Vec<(String, Option<String>)>),
    /// The pool's version is not known.
    Version,
    /// These log devices are missing.
    MissingLogs(Vec<String>),
    /// Top-level vdevs are missing.
    MissingDevices,
    /// Its devices are held by somebody else; the text says by whom, where known.
    Busy(String),
    /// A cache file cannot be read; the text is the whole message.
    CacheFile(String),
    /// Devices are there, but no state of the pool can be read.
    Unreadable(String),
    /// A pool, dataset or snapshot in it has a name that none can have.
    BadName {
        /// The whole name.
        name: String,
        /// Why not.
        why: String,
    },
    /// A property cannot be had.
    Change(ChangeError),
    /// Whoever gave the command may only look.
    Denied,
}

/// How a file system is to be mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MountRequest {
    /// Options that stand in for properties this once: `ro`, `noexec`, …
    pub options: Vec<String>,
    /// Over a folder that is not empty (`-O`).
    pub overlay: bool,
    /// Although the mount point is `none` or `canmount` is off: never; kept for `-f`.
    pub force: bool,
    /// Load keys from files first (`-l`).
    pub load_keys: bool,
}

/// A file system that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MountInfo {
    /// The dataset.
    pub dataset: String,
    /// Where.
    pub mountpoint: String,
}

/// Why something is not mounted or unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum MountProblem {
    /// There is no such dataset.
    NoSuchDataset,
    /// It is no file system.
    NotAFileSystem,
    /// It is mounted.
    Already,
    /// It is not mounted.
    NotMounted,
    /// `canmount=off`.
    Off,
    /// `mountpoint=legacy`.
    Legacy,
    /// `mountpoint=none`.
    NoMountpoint,
    /// There are files in the folder.
    NotEmpty,
    /// Somebody uses it.
    Busy,
    /// Its key is not loaded.
    Locked,
    /// Whoever asks may not.
    Denied,
    /// Nothing mounts here; the text says why, and what to do.
    Unavailable(String),
    /// Anything else, with its text.
    Failed(String),
}

/// Why a key was not loaded or forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum KeyProblem {
    /// There is no such dataset.
    NoSuchDataset,
    /// Whoever asks may not.
    Denied,
    /// The whole sentence.
    Text(String),
}

/// A value that comes with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventValue {
    /// A number.
    Number(u64),
    /// Numbers.
    Numbers(Vec<u64>),
    /// Text.
    Text(String),
}

/// Something that happened to a pool since the daemon began.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// Its number; every event has the next.
    pub id: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Its class, `sysevent.fs.zfs.pool_create`.
    pub class: String,
    /// The pool.
    pub pool: String,
    /// What comes with it, in order.
    pub values: Vec<(String, EventValue)>,
}

/// The verbs of somebody who keeps pools open.
pub trait Keep: Control + Change {
    /// Pools that could be imported from somewhere, in the order of their names.
    ///
    /// # Errors
    /// [`ImportError::CacheFile`].
    fn importable_from(&self, places: &Places) -> Result<Vec<ImportablePool>, ImportError>;

    /// Opens a pool and keeps it open.
    ///
    /// # Errors
    /// [`ImportError`].
    fn import(&self, request: &ImportRequest, command: &str) -> Result<Imported, ImportError>;

    /// What is mounted, in the order in which it was.
    ///
    /// # Errors
    /// [`ControlError`].
    fn mounts(&self) -> Result<Vec<MountInfo>, ControlError>;

    /// Mounts a file system where its properties say.
    ///
    /// # Errors
    /// [`MountProblem`].
    fn mount(&self, dataset: &str, request: &MountRequest) -> Result<(), MountProblem>;

    /// Unmounts a file system and what is mounted below it.
    ///
    /// # Errors
    /// [`MountProblem`], with the mount point that it is about.
    fn unmount(&self, dataset: &str, force: bool) -> Result<(), (String, MountProblem)>;

    /// Takes the key of an encryption root, or only looks whether it is the right one.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn load_key(&self, dataset: &str, key: &[u8], only_check: bool) -> Result<(), KeyProblem>;

    /// Forgets the key of an encryption root.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn unload_key(&self, dataset: &str) -> Result<(), KeyProblem>;

    /// Events after the one with number `after` (0 for all that are kept), oldest first.
    ///
    /// # Errors
    /// [`ControlError`].
    fn events(&self, after: u64) -> Result<Vec<Event>, ControlError>;

    /// Forgets all events; how many there were.
    ///
    /// # Errors
    /// [`ControlError`].
    fn clear_events(&self) -> Result<u64, ControlError>;
}
