//! Importing pools.

use crate::{ChangeError, Note};

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
    #[cfg_attr(feature = "serde", serde(rename = "places"))]
    pub search: SearchPaths,
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

impl ImportRequest {
    /// The event of `zpool events` that follows, without `sysevent.fs.zfs.`.
    pub const EVENT: &str = "pool_import";
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
    #[cfg_attr(feature = "serde", serde(rename = "HeldElsewhere"))]
    InUseElsewhere {
        /// Its host name.
        hostname: Option<String>,
        /// Its host id.
        hostid: u64,
        /// Seconds since 1970 of the last txg.
        time_s: u64,
    },
    /// The pool has multihost on, and another system is using it.
    ImportedElsewhere {
        /// The host id of that system.
        hostid: u64,
        /// Its name.
        hostname: Option<String>,
    },
    /// The pool has multihost on, and no administrator has set this system's host id.
    NeedsHostid,
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
    /// The labels of all devices have wrong checksums. The pool can only be imported read-only.
    DamagedLabels,
    /// Devices have the same label and different contents. The text is the complete reason.
    Copies(String),
    /// Vdevs are older than the pool: it can only be imported read-only or with force. The text is the complete reason.
    OlderVdevs(String),
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
