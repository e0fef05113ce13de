//! What a check can find: kinds, words, and what to do next.

use crate::check::Findings;
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $konst:ident $code:literal $severity:ident $advice:literal,)*) => {
        /// What is wrong. `docs/check.md` tells of each what it means; a test holds the page complete.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FindingKind { $($(#[$doc])* $konst,)* }

        impl FindingKind {
            /// Every kind.
            pub const ALL: &'static [FindingKind] = &[$(FindingKind::$konst,)*];
            /// Its name in output and in `docs/check.md`: words joined by hyphens.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$konst => $code,)* }
            }
            /// How bad it is.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$konst => Severity::$severity,)* }
            }
            /// What to do next.
            #[must_use]
            pub fn advice(self) -> &'static str {
                match self { $(Self::$konst => $advice,)* }
            }
        }
    };
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// A hint or a statistic is off. Nothing is lost and nothing will be.
    Harmless,
    /// A count, a name or a link is wrong: what is shown, or the outcome of later changes, is wrong.
    Wrong,
    /// Data is lost, or will be when the pool is written to.
    Danger,
}

impl Severity {
    /// A word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Wrong => "wrong",
            Self::Danger => "danger",
        }
    }
}

kinds! {
    /// A block cannot be read, or what it holds cannot be decoded.
    Unreadable "unreadable" Danger
        "run `millpond verify` to see which devices hold it; restore the file from a snapshot or a backup",
    /// A pointer contradicts its place: level, size, type, or birth.
    BadPointer "bad-pointer" Danger
        "copy out what is below it; do not write to the pool",
    /// A pointer leads outside of the devices.
    OutsideVdev "outside-vdev" Danger
        "copy out what can be read; do not write to the pool",
    /// Two pointers own the same space.
    DoubleAllocation "double-allocation" Danger
        "copy out the files named and do not write to the pool: freeing one owner would free the other's data",
    /// A block lies in space that the space maps call free.
    AllocatedButFree "allocated-but-free" Danger
        "do not write to the pool: the next write may overwrite this block; copy out its owner first",
    /// Space that is allocated and belongs to nobody.
    LeakedSpace "leaked-space" Harmless
        "nothing is lost; the space comes back only when the pool is made anew",
    /// A space map contradicts itself or its log.
    SpaceMap "space-map" Danger
        "do not write to the pool; copy out what it holds",
    /// A space map's header says another number of allocated bytes than its entries.
    SpaceMapFigure "space-map-figure" Wrong
        "figures of free space are off; copy the data to a new pool when convenient",
    /// A space map's histogram is not what its entries say.
    SpaceHistogram "space-histogram" Harmless
        "the histogram is a hint and is made anew when the metaslab is next written",
    /// A log space map is missing for a metaslab that needs it, or names a metaslab that does not exist.
    LogSpaceMap "log-space-map" Danger
        "do not write to the pool; copy out what it holds",
    /// An address claims more or less space than its block takes on the vdev.
    AllocatedSize "allocated-size" Wrong
        "figures of space are off; copy the data to a new pool when convenient",
    /// A dnode's count of used space is wrong.
    DnodeUsed "dnode-used" Wrong
        "`du` and quotas are off for this object; copying the file corrects it",
    /// A pointer counts another number of blocks below it than there are.
    FillCount "fill-count" Danger
        "objects or data may not be found; copy out what can be read",
    /// A snapshot's or head's referenced, compressed, uncompressed or unique bytes are wrong.
    DatasetFigure "dataset-figure" Wrong
        "space shown for it is wrong; send it to another pool to get right figures",
    /// A directory's used bytes, their parts or its counts are wrong.
    DirectoryFigure "directory-figure" Wrong
        "space shown for it is wrong, quotas and reservations too; send the datasets to another pool",
    /// A deadlist lacks a block that died.
    DeadlistMissing "deadlist-missing" Danger
        "destroying the snapshot before would leak this space; keep it, or send the dataset to another pool",
    /// A deadlist has a block that did not die.
    DeadlistExtra "deadlist-extra" Danger
        "do not destroy the snapshot before: it would free blocks that are in use",
    /// A deadlist has an entry under the wrong key, or lacks a key.
    DeadlistKey "deadlist-key" Danger
        "do not destroy snapshots of this dataset; send it to another pool",
    /// A list of blocks counts other sums than its entries have.
    BlockListFigure "block-list-figure" Wrong
        "figures of space are off; send the dataset to another pool",
    /// A clone's livelist is not what the clone has.
    Livelist "livelist" Danger
        "do not destroy this clone before its data is copied and its origin sent to another pool",
    /// Snapshots are not chained: a wrong neighbour, txg, origin or number of clones.
    SnapshotChain "snapshot-chain" Danger
        "do not destroy or promote datasets of this chain; send what can be read to another pool",
    /// The table of snapshots' names and the snapshots disagree.
    SnapshotName "snapshot-name" Wrong
        "the snapshot cannot be reached by name; send the dataset to another pool",
    /// The tree of directories contradicts itself.
    DirectoryTree "directory-tree" Danger
        "do not rename or destroy datasets here; send what can be read to another pool",
    /// Holds and their count or table disagree.
    Holds "holds" Wrong
        "list the holds with `zfs holds` before relying on them",
    /// A bookmark's figures are wrong.
    BookmarkFigure "bookmark-figure" Harmless
        "`written` since this bookmark is wrong; destroy the bookmark and make a new one",
    /// A feature's count is not the number of things that use it.
    FeatureCount "feature-count" Wrong
        "the pool may be refused, or wrongly accepted, by other software; copy the data to a new pool",
    /// A dataset uses a feature and does not say so.
    FeatureMissing "feature-missing" Wrong
        "send of this dataset may be refused or wrong; copy its files to a new dataset",
    /// A table of names contradicts itself.
    Table "table" Danger
        "names may not be found; copy out what is listed, then remove the directory",
    /// An entry that is listed is not found when it is looked up.
    TableLookup "table-lookup" Danger
        "the name is listed and cannot be opened; reach the file by its number, or copy the snapshot's",
    /// An object of the pool that nothing refers to.
    UnreferencedObject "unreferenced-object" Harmless
        "nothing is lost; the object's space stays in use",
    /// Something refers to an object of the pool that does not exist or is of another kind.
    MissingObject "missing-object" Danger
        "do not write to the pool; copy out what can be read",
    /// The layout of a file's attributes does not exist or contradicts its bytes.
    Attributes "attributes" Danger
        "the file cannot be opened; restore it from a snapshot or a backup",
    /// A directory's entry leads to an object that is none, or is no file.
    DanglingEntry "dangling-entry" Danger
        "remove the name; restore the file from a snapshot or a backup",
    /// A directory's entry says another kind than its file is.
    EntryKind "entry-kind" Wrong
        "rename the file to correct it",
    /// A file has another number of names than its count of links.
    LinkCount "link-count" Wrong
        "copy the file, remove all its names",
    /// A directory's size or count of links is not what its entries say.
    DirectorySize "directory-size" Wrong
        "move the entries into a new directory",
    /// A directory's parent does not have it, or is another.
    ParentLink "parent-link" Wrong
        "move the directory to another and back",
    /// A file without a name that is not waiting to be deleted.
    Orphan "orphan" Wrong
        "its space stays in use; reach it by number to save it",
    /// An entry of the set of files to be deleted is wrong.
    UnlinkedSet "unlinked-set" Danger
        "do not mount the file system for writing: the file named would be deleted",
    /// A file's size and its blocks disagree.
    FileSize "file-size" Wrong
        "read the file and compare it with a backup",
    /// A volume has blocks behind its end: it was being made smaller when the power failed.
    VolumeTail "volume-tail" Harmless
        "nobody reads these blocks; they are freed when the volume is next opened for changes, or resized",
    /// A file's directory of extended attributes is wrong.
    XattrDirectory "xattr-directory" Wrong
        "copy the file with its attributes, remove the old one",
    /// A foreign owner's domain is not in the table of domains.
    ForeignOwner "foreign-owner" Wrong
        "set the owner anew with chown",
    /// What a user, group or project is charged is not what its files take.
    OwnerSpace "owner-space" Wrong
        "quotas are enforced wrongly; `zfs userspace` shows wrong numbers until the files are rewritten",
    /// A table of quotas is wrong.
    Quota "quota" Wrong
        "set the quota anew",
    /// The pool's history is damaged.
    History "history" Harmless
        "what was done to the pool is not fully known; its data is not concerned",
    /// A label contradicts the configuration.
    Label "label" Wrong
        "any change of the configuration writes the labels anew; `zpool labelclear` only on devices that do not belong here",
    /// A log of missed writes is damaged.
    DirtyTimeLog "dirty-time-log" Danger
        "scrub the pool: what the device missed is not known",
    /// The intent log of a dataset is wrong.
    IntentLog "intent-log" Wrong
        "what was synced last may be lost; import and compare the newest files",
    /// The clone tables contradict the blocks.
    CloneTable "clone-table" Danger
        "do not remove files that share blocks; copy them to another pool",
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What.
    pub kind: FindingKind,
    /// Full name of the dataset; `None` for the pool's own structures.
    pub dataset: Option<String>,
    /// Object in the dataset, or in the MOS where no dataset is named.
    pub object: Option<u64>,
    /// The file's path below the dataset's root, where it is a file that can be found.
    pub path: Option<Vec<u8>>,
    /// What was expected and what was found.
    pub detail: String,
}

impl Finding {
    /// A finding about the pool itself.
    pub(super) fn new(kind: FindingKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            dataset: None,
            object: None,
            path: None,
            detail: detail.into(),
        }
    }
    pub(super) fn of(mut self, dataset: &str) -> Self {
        self.dataset = (!dataset.is_empty()).then(|| dataset.to_owned());
        self
    }
    pub(super) fn object(mut self, object: u64) -> Self {
        self.object = Some(object);
        self
    }
    pub(super) fn into(self, findings: &Findings<'_>) {
        findings.add(self);
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind.code())?;
        match (&self.dataset, self.object, &self.path) {
            (Some(dataset), _, Some(path)) => {
                write!(f, "{dataset}:/{}: ", path.escape_ascii())?;
            }
            (Some(dataset), Some(object), None) => write!(f, "{dataset}: object {object}: ")?,
            (Some(dataset), None, None) => write!(f, "{dataset}: ")?,
            (None, Some(object), _) => write!(f, "the pool's object {object}: ")?,
            (None, None, _) => {}
        }
        f.write_str(&self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_stands_in_the_manual_page_once() {
        let page = include_str!("../../../../docs/check.md");
        for kind in FindingKind::ALL {
            let row = format!("| `{}` |", kind.code());
            assert_eq!(page.matches(&row).count(), 1, "{row}");
        }
    }
}
