//! Datasets in the form that lists show.

use super::value::Property;
use millpond_dataset::properties::{DatasetKind, Kinds, PropertyName};

/// Which properties of a dataset to report. Some are expensive to compute, so request few.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Wanted {
    /// All listed native properties that the dataset has, and all user properties in effect.
    All,
    /// Only these.
    Named(Vec<PropertyName>),
}

/// Which datasets to report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DatasetQuery {
    /// Full name of the starting point: a file system, volume, snapshot (`@`) or bookmark (`#`).
    pub root: String,
    /// How many levels below `root` to descend. With 0, only `root` itself; its children, snapshots and
    /// bookmarks are at level 1. [`DatasetQuery::WHOLE_TREE`] for all.
    pub depth: u32,
    /// Which kinds to report. The traversal descends from `root` even if its own kind is not among them.
    pub kinds: Kinds,
    /// Which properties to report.
    pub wanted: Wanted,
    /// Whether datasets below `root` of which nothing can be read are named: the answer then ends with
    /// [`ControlError::Damaged`](crate::ControlError::Damaged). Otherwise they are left out. If `root` itself is
    /// such a dataset, the answer always ends so.
    pub names_damaged: bool,
}

impl DatasetQuery {
    /// A depth greater than that of any tree.
    pub const WHOLE_TREE: u32 = u32::MAX;
}

/// A dataset and its requested properties.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DatasetInfo {
    /// Full name, with `@` or `#` for snapshots and bookmarks.
    pub name: String,
    /// Its kind.
    pub kind: DatasetKind,
    /// The txg in which it was created. For a bookmark, the txg of its snapshot.
    pub created_txg: u64,
    /// Properties. One that does not apply or has no value may be omitted. User properties are in display
    /// order: local ones first, then the parent's, each group in the order of its ZAP.
    pub properties: Vec<Property>,
}

impl DatasetInfo {
    /// The property with this full name, if the dataset has it.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .iter()
            .find(|property| property.name == name)
    }
}
