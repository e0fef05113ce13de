//! Changes of datasets.

use crate::{Secret, Value};
use millpond_dataset::PermissionGrant;
use millpond_dataset::properties::OwnerKind;

/// Properties with their values: stored text, names of indexed values, or numbers.
pub type Values = Vec<(String, Value)>;

/// A change of a dataset. Names are full names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DatasetChange {
    /// Creates a file system.
    CreateFileSystem {
        /// Its name.
        name: String,
        /// Its properties.
        properties: Values,
        /// Whether to mount it at the mount point given by its properties.
        mount: bool,
        /// The user's key, if it becomes an encryption root: the properties include `keyformat`.
        key: Option<Secret>,
    },
    /// Creates a volume. The properties include `volsize`.
    CreateVolume {
        /// Its name.
        name: String,
        /// Its properties.
        properties: Values,
        /// As for a file system.
        key: Option<Secret>,
    },
    /// Changes the key of an encryption root, or makes a dataset one.
    ChangeKey {
        /// Its name.
        name: String,
        /// `keyformat`, and `keylocation` and `pbkdf2iters` if they are given.
        properties: Values,
        /// The user's new key.
        key: Secret,
    },
    /// Makes an encryption root inherit the key of its parent.
    InheritKey {
        /// Its name.
        name: String,
    },
    /// Gives up an interrupted receive that could be resumed.
    AbortReceive {
        /// The file system or volume that was received into.
        name: String,
    },
    /// Creates a clone.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// The clone's name.
        name: String,
        /// Its properties.
        properties: Values,
        /// Whether to mount it at the mount point given by its properties.
        mount: bool,
    },
    /// Creates snapshots, all in one txg or none.
    Snapshot {
        /// Full names.
        names: Vec<String>,
        /// User properties for each of them.
        properties: Values,
    },
    /// Destroys a file system or volume without children and snapshots, or a bookmark.
    Destroy {
        /// Its name.
        name: String,
    },
    /// Destroys file systems, volumes and snapshots in this order. A dataset must come after those that depend on it. All
    /// are checked before the first is destroyed.
    DestroyInOrder {
        /// Full names.
        names: Vec<String>,
        /// The snapshot that is rolled back to afterwards: if that will not be possible, nothing is destroyed.
        before_rollback: Option<String>,
    },
    /// Destroys snapshots, all or none.
    DestroySnapshots {
        /// Full names.
        names: Vec<String>,
        /// Whether to defer the destruction of snapshots that have holds or clones.
        defer: bool,
    },
    /// Renames a file system, volume or snapshot.
    Rename {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
        /// Whether to also rename the snapshots of that name in all descendant datasets.
        recursively: bool,
        /// Whether mounts follow the new name.
        mount: bool,
    },
    /// Promotes a clone: exchanges the roles of the clone and its origin.
    Promote {
        /// The clone.
        name: String,
    },
    /// Rolls back to the latest snapshot.
    Rollback {
        /// The snapshot.
        snapshot: String,
    },
    /// Creates a bookmark.
    Bookmark {
        /// The snapshot or bookmark to copy.
        source: String,
        /// The name of the new bookmark.
        name: String,
    },
    /// Creates a redaction bookmark of a snapshot.
    Redact {
        /// The full name of the snapshot.
        snapshot: String,
        /// The full name of the new bookmark.
        name: String,
        /// Full names of the snapshots of clones whose common changes are left out of redacted streams.
        redacted_for: Vec<String>,
    },
    /// Adds a hold to snapshots, all or none.
    Hold {
        /// Full names.
        names: Vec<String>,
        /// The tag of the hold.
        tag: String,
    },
    /// Releases a hold of snapshots, all or none.
    Release {
        /// Full names.
        names: Vec<String>,
        /// The tag of the hold.
        tag: String,
    },
    /// Sets properties, all or none. `volsize` must be set alone.
    Set {
        /// The dataset.
        name: String,
        /// The properties.
        properties: Values,
        /// Whether mounts follow.
        mount: bool,
    },
    /// Sets the quota of one owner.
    SetOwnerQuota {
        /// The file system.
        name: String,
        /// The quota.
        quota: OwnerQuota,
    },
    /// Grants permissions at a file system or volume, all of them in one txg.
    Allow {
        /// The dataset.
        name: String,
        /// The permissions, by holder and reach.
        grants: Vec<PermissionGrant>,
    },
    /// Removes permissions at a file system or volume, all of them in one txg.
    Unallow {
        /// The dataset.
        name: String,
        /// Whether they are also removed at all descendants.
        recursively: bool,
        /// The permissions, by holder and reach. A grant without permissions stands for all of its holder.
        removals: Vec<PermissionGrant>,
    },
    /// Removes a local property value.
    Inherit {
        /// The dataset.
        name: String,
        /// The property.
        property: String,
        /// Whether the received value takes effect afterwards.
        to_received: bool,
    },
}

/// The quota of one owner of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OwnerQuota {
    /// User, group or project.
    pub owners: OwnerKind,
    /// Whether the quota limits objects instead of bytes.
    pub of_objects: bool,
    /// The uid, gid or project id.
    pub id: u64,
    /// The most bytes or objects; 0 removes the quota.
    pub limit: u64,
}
