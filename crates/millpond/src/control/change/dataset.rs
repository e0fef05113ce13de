//! Changes of datasets.

use crate::OwnerKind;
use crate::control::Value;

/// Properties with their values: stored text, words of indexed properties, or numbers.
pub type Values = Vec<(String, Value)>;

/// One change of a dataset, by full names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DatasetChange {
    /// A new file system.
    CreateFileSystem {
        /// Its name.
        name: String,
        /// Its properties.
        properties: Values,
        /// Whether it is mounted where its properties say.
        mount: bool,
    },
    /// A new volume; `volsize` is among the properties.
    CreateVolume {
        /// Its name.
        name: String,
        /// Its properties.
        properties: Values,
    },
    /// A new clone.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// The clone's name.
        name: String,
        /// Its properties.
        properties: Values,
        /// Whether it is mounted where its properties say.
        mount: bool,
    },
    /// Snapshots, all in one txg or none.
    Snapshot {
        /// Full names.
        names: Vec<String>,
        /// User properties of each.
        properties: Values,
    },
    /// A file system or volume without children and snapshots, or a bookmark, goes.
    Destroy {
        /// Its name.
        name: String,
    },
    /// File systems, volumes and snapshots go in this order, many in one txg, until one is refused: what
    /// depends on another comes before it.
    DestroyInOrder {
        /// Full names.
        names: Vec<String>,
    },
    /// Snapshots go, all or none.
    DestroySnapshots {
        /// Full names.
        names: Vec<String>,
        /// Those that are held or cloned go later.
        defer: bool,
    },
    /// A file system, volume or snapshot gets another name.
    Rename {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
        /// The snapshots of that name in all datasets below too.
        recursively: bool,
        /// Whether mounts follow the new name.
        mount: bool,
    },
    /// A clone and its origin change places.
    Promote {
        /// The clone.
        name: String,
    },
    /// Back to the latest snapshot.
    Rollback {
        /// The snapshot.
        snapshot: String,
    },
    /// A new bookmark.
    Bookmark {
        /// A snapshot or bookmark.
        source: String,
        /// Its name.
        name: String,
    },
    /// Snapshots are held, all or none.
    Hold {
        /// Full names.
        names: Vec<String>,
        /// Under this tag.
        tag: String,
    },
    /// Snapshots are released, all or none.
    Release {
        /// Full names.
        names: Vec<String>,
        /// From this tag.
        tag: String,
    },
    /// Properties are set, all or none; `volsize` by itself.
    Set {
        /// The dataset.
        name: String,
        /// The properties.
        properties: Values,
        /// Whether mounts follow.
        mount: bool,
    },
    /// The limit of one owner is set; 0 takes it away.
    SetOwnerQuota {
        /// The file system.
        name: String,
        /// User, group or project.
        owners: OwnerKind,
        /// Whether objects are limited rather than bytes.
        of_objects: bool,
        /// The owner's number.
        id: u64,
        /// The limit.
        limit: u64,
    },
    /// A local value goes.
    Inherit {
        /// The dataset.
        name: String,
        /// The property.
        property: String,
        /// Whether the received value is in force afterwards.
        to_received: bool,
    },
}
