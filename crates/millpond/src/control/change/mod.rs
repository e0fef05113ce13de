//! What a person or a program can change, as plain data.
//!
//! [`Change`] is to changes what [`super::Control`] is to questions: [`LocalChanges`] opens the pool for
//! the command and closes it again, a daemon may do the same for pools that it keeps open. Requests name
//! datasets and devices by their names; values are raw (bytes, stored text, words of indexed properties).
//! Errors are values too: their words are the printer's business. The page is `docs/cli.md`.

pub(super) mod apply;
pub(super) mod checks;
mod dataset;
mod devices;
mod error;
pub(super) mod local;

pub use dataset::{DatasetChange, Values};
pub use devices::{DeviceFacts, DeviceInUse, DeviceProblem, NewDevices, TopRequest};
pub use error::{ChangeError, ChangeFailure};
pub use local::LocalChanges;

use super::keep::MountProblem;
use crate::live::FeatureChoice;

/// A pool to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewPoolRequest {
    /// Its name.
    pub name: String,
    /// What it is called until it is exported, in place of its name.
    pub temporary_name: Option<String>,
    /// Its devices.
    pub devices: NewDevices,
    /// Which features it gets.
    pub features: FeatureChoice,
    /// Its properties as given, `feature@NAME` among them.
    pub properties: Vec<(String, String)>,
    /// Properties of its root file system: stored text, words, or numbers in digits.
    pub root_properties: Vec<(String, String)>,
    /// Whether to look only if it could be made.
    pub only_check: bool,
}

/// One change of a pool or of something in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PoolChange {
    /// New top-level vdevs, hot spares and cache devices.
    Add(NewDevices),
    /// The pool ends; its labels say so.
    Destroy,
    /// The labels say that nobody has the pool.
    Export,
    /// A property of the pool.
    Set {
        /// Its name.
        name: String,
        /// The value as given; for `bootfs` a dataset's name, or nothing.
        value: String,
    },
    /// A property of a vdev.
    SetVdev {
        /// The vdev's guid; the pool's for the root.
        guid: u64,
        /// The property's name.
        name: String,
        /// The value as given.
        value: String,
    },
    /// Every feature, or those of a list, is enabled.
    Upgrade {
        /// The names that may be enabled; all if `None`.
        compatible: Option<Vec<String>>,
    },
    /// The pool gets a new guid.
    Reguid {
        /// This one; one of chance if `None`.
        guid: Option<u64>,
    },
    /// Nothing but another txg.
    Sync,
    /// The errors counted of devices are forgotten, those that were faulted or degraded are used again, and a suspended pool
    /// goes on.
    Clear {
        /// The guids of the leaves whose errors are meant; all if `None`.
        leaves: Option<Vec<u64>>,
    },
    /// A device is taken out of use.
    Offline {
        /// The guid of its leaf.
        leaf: u64,
        /// Whether it is to be faulted: only [`PoolChange::Clear`] takes it back.
        is_fault: bool,
        /// Until the pool is opened again.
        is_temporary: bool,
    },
    /// Devices that were taken out of use, and lost ones that are there again, are used again.
    Online {
        /// The guids of the leaves that are meant.
        leaves: Vec<u64>,
    },
    /// If the pool is suspended: what it could not write is given up, so that it can be exported. Nothing
    /// otherwise.
    Abandon,
    /// A change of a dataset.
    Dataset(DatasetChange),
}

/// What changes told besides being done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Changed {
    /// Features that [`PoolChange::Upgrade`] enabled.
    pub enabled_features: Vec<String>,
    /// What was done, but not all that people may expect with it.
    pub notes: Vec<Note>,
}

/// Something to know about a change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Note {
    /// A file system is not mounted although it should be.
    NotMounted {
        /// Its name.
        dataset: String,
        /// Where.
        mountpoint: String,
        /// Why.
        why: MountProblem,
    },
    /// A mount could not be taken away.
    StillMounted {
        /// Its name.
        dataset: String,
        /// Where.
        mountpoint: String,
        /// Why.
        why: MountProblem,
    },
}

/// The verbs that change. `command` is the command line, as `zpool history` is to show it.
pub trait Change {
    /// What a path is, as a device for a new vdev.
    ///
    /// # Errors
    /// [`DeviceProblem`].
    fn device(&self, path: &str) -> Result<DeviceFacts, DeviceProblem>;

    /// Makes a pool; when this returns it is on stable storage.
    ///
    /// # Errors
    /// [`ChangeError`]; up to writing the first label nothing was touched.
    fn create_pool(&self, request: &NewPoolRequest, command: &str) -> Result<Changed, ChangeError>;

    /// Looks whether these devices could be added to a pool.
    ///
    /// # Errors
    /// [`ChangeError`], as [`PoolChange::Add`] would give it.
    fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError>;

    /// Makes changes of one pool in this order; each is on stable storage before the next begins. The
    /// first that fails ends the rest, and what was done before it stays. The command is noted in the
    /// pool's history if all of them succeed.
    ///
    /// # Errors
    /// [`ChangeFailure`]: which one failed, and why.
    fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &str,
    ) -> Result<Changed, ChangeFailure>;

    /// Wipes the labels of a device. Without `force` one that a pool may need is refused.
    ///
    /// # Errors
    /// [`ChangeError::InUse`], [`ChangeError::NoLabel`], [`ChangeError::Device`].
    fn clear_labels(&self, path: &str, force: bool) -> Result<(), ChangeError>;
}
