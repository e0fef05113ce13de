//! The four kinds of datasets that users see, and sets of kinds.

/// The kind of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume: a block device.
    Volume,
    /// A read-only state of a file system or volume.
    Snapshot,
    /// A bookmark: the creation time of a snapshot without its data.
    Bookmark,
}

impl DatasetKind {
    /// The word printed for property `type`.
    pub fn word(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }

    /// All four kinds, in the order of the words accepted by `-t`.
    pub const ALL: [DatasetKind; 4] = [
        DatasetKind::Filesystem,
        DatasetKind::Snapshot,
        DatasetKind::Volume,
        DatasetKind::Bookmark,
    ];

    const fn bit(self) -> u8 {
        match self {
            DatasetKind::Filesystem => 1,
            DatasetKind::Volume => 2,
            DatasetKind::Snapshot => 4,
            DatasetKind::Bookmark => 8,
        }
    }
}

/// A set of [`DatasetKind`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Kinds(u8);

impl Kinds {
    /// No kind.
    pub const NONE: Kinds = Kinds(0);
    /// Every kind.
    pub const ALL: Kinds = Kinds(15);

    /// The set of exactly these kinds.
    pub const fn only(kinds: &[DatasetKind]) -> Kinds {
        let mut bits = 0;
        let mut rest = kinds;
        while let [first, tail @ ..] = rest {
            bits |= first.bit();
            rest = tail;
        }
        Kinds(bits)
    }

    /// Whether `kind` is in the set.
    pub const fn contains(self, kind: DatasetKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// The set with `kind` added.
    #[must_use]
    pub const fn with(self, kind: DatasetKind) -> Kinds {
        Kinds(self.0 | kind.bit())
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
