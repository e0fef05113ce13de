//! Datasets as lists show them.

use super::value::Property;
use millpond_dataset::properties::{DatasetKind, Kinds, PropertyName};

/// Which properties of a dataset are wanted. Some are dear to compute: ask for few.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Wanted {
    /// Every listed native property that the dataset has, and every user property in force.
    All,
    /// Exactly these.
    Named(Vec<PropertyName>),
}

/// Which datasets are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DatasetQuery {
    /// Full name of where to begin: a file system, volume, snapshot (`@`) or bookmark (`#`).
    pub root: String,
    /// How far below `root` to go. 0: only `root` itself; its children, snapshots and bookmarks
    /// are 1 below. [`DatasetQuery::WHOLE_TREE`] for everything.
    pub depth: u32,
    /// Which kinds to report. `root` is walked through even if its own kind is not among them.
    pub kinds: Kinds,
    /// Which properties to report.
    pub wanted: Wanted,
}

impl DatasetQuery {
    /// A depth that no tree has.
    pub const WHOLE_TREE: u32 = u32::MAX;
}

/// A dataset and those of its properties that were wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DatasetInfo {
    /// Full name, with `@` or `#` for snapshots and bookmarks.
    pub name: String,
    /// What it is.
    pub kind: DatasetKind,
    /// The txg it was made in (of a bookmark: its snapshot was).
    pub created_txg: u64,
    /// Properties. One that does not apply or has no value may be left out. User properties
    /// stand in the order in which they are to be shown: those set here first, then the
    /// parent's, each group in the order of its ZAP.
    pub properties: Vec<Property>,
}

impl DatasetInfo {
    /// The property of that full name, if the dataset has it.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .iter()
            .find(|property| property.name == name)
    }
}
