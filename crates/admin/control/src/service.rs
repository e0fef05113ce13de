//! Requests that need a process which keeps pools open from one command to the next: import and export,
//! mounts, keys, events.

use super::{Change, ChangeError, Control, ControlError, ImportablePool, Note};

/// Where to look for pools to import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SearchPaths {
    /// Absolute paths of directories, devices and images. If empty, the system's device directories.
    pub paths: Vec<String>,
    /// A cache file that lists the pools and their devices.
    pub cache_file: Option<String>,
}

/// How far an import may rewind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RewindRequest {
    /// No rewind: only the newest state.
    #[default]
    Never,
    /// To one of the last txgs (`-F`).
    Recent,
    /// To any older txg (`-FX`).
    Extreme,
    /// To exactly this txg (`-T`).
    ToTxg(u64),
    /// To the checkpoint (`--rewind-to-checkpoint`).
    Checkpoint,
}

/// A request to import a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImportRequest {
    /// Its name or guid.
    pub pool: String,
    /// The new name of the pool.
    pub new_name: Option<String>,
    /// Whether the new name lasts only until export (`-t`).
    pub is_name_temporary: bool,
    /// Where to look.
    pub places: SearchPaths,
    /// Import a destroyed pool (`-D`). Other pools are not considered.
    pub destroyed: bool,
    /// Import even if another system may be using the pool (`-f`).
    pub force: bool,
    /// Import even if log devices are missing (`-m`). Data only on those devices is lost.
    pub without_logs: bool,
    /// How far to rewind.
    pub rewind: RewindRequest,
    /// Properties as given, including `readonly`, `altroot` and `cachefile`.
    pub properties: Vec<(String, String)>,
    /// Whether to mount its file systems.
    pub mount: bool,
    /// Mount options that override properties of its file systems while it is imported: `nosuid`, `nodev`, …
    pub mount_options: Vec<String>,
    /// Whether to load keys from `keylocation` if that is a file.
    pub load_keys: bool,
}

/// The result of a successful import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Imported {
    /// The pool's name.
    pub name: String,
    /// Why the pool was imported read-only although the request did not ask for it.
    pub read_only_because: Option<String>,
    /// Why its set-user-id bits and device files may be untrusted: the system that had it last, or the owner
    /// of its images.
    pub foreign_because: Option<String>,
    /// The count of keys loaded, and the count tried.
    pub keys: (u64, u64),
    /// Steps that failed.
    pub notes: Vec<Note>,
}

/// Why a pool was not imported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ImportError {
    /// No pool was found.
    NoSuchPool,
    /// Several pools of this name were found.
    Ambiguous,
    /// A pool of this name is open.
    NameTaken,
    /// Another system used the pool last and did not export it.
    HeldElsewhere {
        /// Its host name.
        hostname: Option<String>,
        /// Its host id.
        hostid: u64,
        /// Seconds since 1970 of the last txg.
        time_s: u64,
    },
    /// The pool uses features that are required for reading and are not supported: their names and
    /// descriptions.
    Features(Vec<(String, Option<String>)>),
    /// The pool's version is not supported.
    Version,
    /// These log devices are missing.
    MissingLogs(Vec<String>),
    /// Top-level vdevs are missing.
    MissingDevices,
    /// Its devices are in use; the text names the user, if known.
    Busy(String),
    /// A cache file cannot be read. The text is the complete message.
    CacheFile(String),
    /// The devices are present, but no state of the pool can be read.
    Unreadable(String),
    /// A pool, dataset or snapshot in it has an invalid name.
    BadName {
        /// The full name.
        name: String,
        /// Why it is invalid.
        why: String,
    },
    /// A property cannot be set.
    Change(ChangeError),
    /// The caller has no permission to change anything.
    Denied,
}

/// How to mount a file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MountRequest {
    /// Options that override properties for this mount: `ro`, `noexec`, …
    pub options: Vec<String>,
    /// Mount over a directory that is not empty (`-O`).
    pub overlay: bool,
    /// Accepted for `-f`. It does not override `mountpoint=none` or `canmount=off`.
    pub force: bool,
    /// Load keys from files first (`-l`).
    pub load_keys: bool,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MountInfo {
    /// The dataset.
    pub dataset: String,
    /// Its mount point.
    pub mountpoint: String,
}

/// Why a mount or unmount failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum MountProblem {
    /// There is no such dataset.
    NoSuchDataset,
    /// It is not a file system.
    NotAFileSystem,
    /// It is already mounted.
    Already,
    /// It is not mounted.
    NotMounted,
    /// `canmount=off`.
    Off,
    /// `mountpoint=legacy`.
    Legacy,
    /// `mountpoint=none`.
    NoMountpoint,
    /// The mount point directory is not empty.
    NotEmpty,
    /// It is in use.
    Busy,
    /// Its key is not loaded.
    Locked,
    /// The caller has no permission.
    Denied,
    /// Mounting is not available here. The text gives the reason and a remedy.
    Unavailable(String),
    /// Anything else, with its text.
    Failed(String),
}

/// Why a key was not loaded or unloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum KeyProblem {
    /// There is no such dataset.
    NoSuchDataset,
    /// The caller has no permission.
    Denied,
    /// The complete message.
    Text(String),
}

/// A value of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventValue {
    /// A number.
    Number(u64),
    /// Numbers.
    Numbers(Vec<u64>),
    /// A string.
    Text(String),
}

/// An event of a pool since the daemon started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// Its sequence number. Numbers are consecutive.
    pub id: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Its class, `sysevent.fs.zfs.pool_create`.
    pub class: String,
    /// The pool.
    pub pool: String,
    /// Its values, in order.
    pub values: Vec<(String, EventValue)>,
}

/// Requests to a process that keeps pools open.
pub trait Service: Control + Change {
    /// Pools that can be imported from `places`, ordered by name.
    ///
    /// # Errors
    /// [`ImportError::CacheFile`].
    fn importable_from(&self, places: &SearchPaths) -> Result<Vec<ImportablePool>, ImportError>;

    /// Opens a pool and keeps it open.
    ///
    /// # Errors
    /// [`ImportError`].
    fn import(&self, request: &ImportRequest, command: &str) -> Result<Imported, ImportError>;

    /// The mounts, in the order in which they were made.
    ///
    /// # Errors
    /// [`ControlError`].
    fn mounts(&self) -> Result<Vec<MountInfo>, ControlError>;

    /// Mounts a file system at the mount point given by its properties.
    ///
    /// # Errors
    /// [`MountProblem`].
    fn mount(&self, dataset: &str, request: &MountRequest) -> Result<(), MountProblem>;

    /// Unmounts a file system and all mounts below it.
    ///
    /// # Errors
    /// [`MountProblem`], with the mount point concerned.
    fn unmount(&self, dataset: &str, force: bool) -> Result<(), (String, MountProblem)>;

    /// Loads the key of an encryption root, or only checks whether it is right.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn load_key(&self, dataset: &str, key: &[u8], only_check: bool) -> Result<(), KeyProblem>;

    /// Unloads the key of an encryption root.
    ///
    /// # Errors
    /// [`KeyProblem`].
    fn unload_key(&self, dataset: &str) -> Result<(), KeyProblem>;

    /// The events after number `after`, oldest first; 0 for all events kept.
    ///
    /// # Errors
    /// [`ControlError`].
    fn events(&self, after: u64) -> Result<Vec<Event>, ControlError>;

    /// Deletes all events and returns their count.
    ///
    /// # Errors
    /// [`ControlError`].
    fn clear_events(&self) -> Result<u64, ControlError>;
}
