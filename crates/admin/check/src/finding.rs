//! The kinds of findings, with their names and advice.

use crate::Findings;
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $konst:ident $code:literal $severity:ident $advice:literal,)*) => {
        /// The kind of a problem. `docs/check.md` explains each kind; a test checks that the page is
        /// complete.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FindingKind { $($(#[$doc])* $konst,)* }

        impl FindingKind {
            /// All kinds.
            pub const ALL: &'static [FindingKind] = &[$(FindingKind::$konst,)*];
            /// Its name in output and in `docs/check.md`: words joined by hyphens.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$konst => $code,)* }
            }
            /// Its severity.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$konst => Severity::$severity,)* }
            }
            /// Recommended action.
            #[must_use]
            pub fn advice(self) -> &'static str {
                match self { $(Self::$konst => $advice,)* }
            }
        }
    };
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// A hint or a statistic is wrong. No data is or will be lost.
    Harmless,
    /// A count, a name or a link is wrong. Output, or the result of later changes, is therefore wrong.
    Wrong,
    /// Data is lost, or will be lost when the pool is written to.
    Danger,
}

impl Severity {
    /// Its name in output.
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
    /// A block cannot be read, or its content cannot be decoded.
    Unreadable "unreadable" Danger
        "run `millpond verify` to see which devices hold it; restore the file from a snapshot or a backup",
    /// A pointer does not match its position: level, size, type, or birth.
    BadPointer "bad-pointer" Danger
        "copy out what is below it; do not write to the pool",
    /// A pointer refers to space outside the devices.
    OutsideVdev "outside-vdev" Danger
        "copy out what can be read; do not write to the pool",
    /// Two pointers refer to the same space.
    DoubleAllocation "double-allocation" Danger
        "copy out the files named and do not write to the pool: freeing one owner would free the other's data",
    /// The space of a block is free according to the space maps.
    AllocatedButFree "allocated-but-free" Danger
        "do not write to the pool: the next write may overwrite this block; copy out its owner first",
    /// Space is allocated, but no pointer refers to it.
    LeakedSpace "leaked-space" Harmless
        "nothing is lost; the space is available again only in a new pool",
    /// A space map contradicts itself or its log.
    SpaceMap "space-map" Danger
        "do not write to the pool; copy out what it holds",
    /// The allocated bytes in a space map's header differ from its entries.
    SpaceMapSum "space-map-total" Wrong
        "the counters of free space are wrong; copy the data to a new pool when convenient",
    /// A space map's histogram does not match its entries.
    SpaceHistogram "space-histogram" Harmless
        "the histogram is a hint and is rebuilt when the metaslab is next written",
    /// A log space map that a metaslab needs is missing, or refers to a metaslab that does not exist.
    LogSpaceMap "log-space-map" Danger
        "do not write to the pool; copy out what it holds",
    /// The allocated size in a pointer differs from the space that the block needs on the vdev.
    AllocatedSize "allocated-size" Wrong
        "counters of space are wrong; copy the data to a new pool when convenient",
    /// A dnode's used space is wrong.
    DnodeUsed "dnode-used" Wrong
        "`du` and quotas are off for this object; copying the file corrects it",
    /// The fill count of a pointer differs from the count of blocks below it.
    FillCount "fill-count" Danger
        "objects or data may not be found; copy out what can be read",
    /// A snapshot's or head's referenced, compressed, uncompressed or unique bytes are wrong.
    DatasetSpace "dataset-total" Wrong
        "space shown for it is wrong; send it to another pool to get right values",
    /// A directory's used bytes, their breakdown or its counts are wrong.
    DirectorySpace "directory-total" Wrong
        "space shown for it is wrong, quotas and reservations too; send the datasets to another pool",
    /// A deadlist lacks a dead block.
    DeadlistMissing "deadlist-missing" Danger
        "destroying the snapshot before would leak this space; keep it, or send the dataset to another pool",
    /// A deadlist contains a block that is not dead.
    DeadlistExtra "deadlist-extra" Danger
        "do not destroy the snapshot before: it would free blocks that are in use",
    /// A deadlist has an entry under the wrong key, or lacks a key.
    DeadlistKey "deadlist-key" Danger
        "do not destroy snapshots of this dataset; send it to another pool",
    /// The totals in a block pointer list's header differ from its entries.
    BlockListSum "block-list-total" Wrong
        "counters of space are wrong; send the dataset to another pool",
    /// A clone's livelist does not match the clone's blocks.
    Livelist "livelist" Danger
        "do not destroy this clone before its data is copied and its origin sent to another pool",
    /// The chain of snapshots is inconsistent: a wrong neighbour, txg, origin or count of clones.
    SnapshotChain "snapshot-chain" Danger
        "do not destroy or promote datasets of this chain; send what can be read to another pool",
    /// The table of snapshot names does not match the snapshots.
    SnapshotName "snapshot-name" Wrong
        "the snapshot cannot be reached by name; send the dataset to another pool",
    /// The tree of directories is inconsistent.
    DirectoryTree "directory-tree" Danger
        "do not rename or destroy datasets here; send what can be read to another pool",
    /// Holds do not match their count or table.
    Holds "holds" Wrong
        "list the holds with `zfs holds` before relying on them",
    /// A bookmark's space statistics are wrong.
    BookmarkSpace "bookmark-total" Harmless
        "`written` since this bookmark is wrong; destroy the bookmark and make a new one",
    /// A feature's reference count is wrong.
    FeatureCount "feature-count" Wrong
        "the pool may be refused, or wrongly accepted, by other software; copy the data to a new pool",
    /// A dataset uses a feature without recording it.
    FeatureMissing "feature-missing" Wrong
        "send of this dataset may be refused or wrong; copy its files to a new dataset",
    /// A ZAP is inconsistent.
    Table "table" Danger
        "names may not be found; copy out what is listed, then remove the directory",
    /// An entry that is listed is not found by look-up.
    TableLookup "table-lookup" Danger
        "the name is listed and cannot be opened; reach the file by its number, or copy the snapshot's",
    /// An object of the MOS to which nothing refers.
    UnreferencedObject "unreferenced-object" Harmless
        "nothing is lost; the object's space stays in use",
    /// A reference to an object of the MOS that does not exist or has another type.
    MissingObject "missing-object" Danger
        "do not write to the pool; copy out what can be read",
    /// The layout of a file's attributes does not exist or does not match its data.
    Attributes "attributes" Danger
        "the file cannot be opened; restore it from a snapshot or a backup",
    /// A directory entry refers to an object that does not exist, or is not a file.
    DanglingEntry "dangling-entry" Danger
        "remove the name; restore the file from a snapshot or a backup",
    /// The file type in a directory entry differs from the file's type.
    EntryKind "entry-kind" Wrong
        "rename the file to correct it",
    /// A file's link count differs from the count of its names.
    LinkCount "link-count" Wrong
        "copy the file, remove all its names",
    /// A directory's size or link count does not match its entries.
    DirectorySize "directory-size" Wrong
        "move the entries into a new directory",
    /// A directory's parent has no entry for it, or is another directory.
    ParentLink "parent-link" Wrong
        "move the directory to another and back",
    /// A file has no name and is not in the unlinked set.
    Orphan "orphan" Wrong
        "its space stays in use; reach it by number to save it",
    /// An entry of the unlinked set is wrong.
    UnlinkedSet "unlinked-set" Danger
        "do not mount the file system for writing: the file named would be deleted",
    /// A file's size does not match its blocks.
    FileSize "file-size" Wrong
        "read the file and compare it with a backup",
    /// A volume has blocks beyond its end, because a shrink was interrupted by a crash.
    VolumeTail "volume-tail" Harmless
        "no reader uses these blocks; they are freed when the volume is next opened for writing, or resized",
    /// A file's extended attribute directory is wrong.
    XattrDirectory "xattr-directory" Wrong
        "copy the file with its attributes, remove the old one",
    /// The domain of a foreign owner is not in the table of domains.
    ForeignOwner "foreign-owner" Wrong
        "set the owner anew with chown",
    /// The accounted space of a user, group or project differs from the space of its files.
    OwnerSpace "owner-space" Wrong
        "quotas are enforced wrongly; `zfs userspace` shows wrong numbers until the files are rewritten",
    /// A quota table is wrong.
    Quota "quota" Wrong
        "set the quota anew",
    /// The pool's history is damaged.
    History "history" Harmless
        "what was done to the pool is not fully known; its data is not concerned",
    /// A label contradicts the configuration.
    Label "label" Wrong
        "any change of the configuration writes the labels anew; `zpool labelclear` only on devices that do not belong here",
    /// A dirty time log is damaged.
    DirtyTimeLog "dirty-time-log" Danger
        "scrub the pool: what the device missed is not known",
    /// The intent log of a dataset is damaged.
    IntentLog "intent-log" Wrong
        "what was synced last may be lost; import and compare the newest files",
    /// The clone tables contradict the blocks.
    CloneTable "clone-table" Danger
        "do not remove files that share blocks; copy them to another pool",
    /// The dedup tables contradict the blocks.
    DedupTable "dedup-table" Danger
        "do not remove or overwrite deduplicated files; copy them to another pool",
}

/// A problem found by a check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// Full name of the dataset; `None` for structures of the pool.
    pub dataset: Option<String>,
    /// Object id in the dataset, or in the MOS if `dataset` is `None`.
    pub object: Option<u64>,
    /// The file's path below the dataset's root, if the object is a file and its path is known.
    pub path: Option<Vec<u8>>,
    /// The expected and the actual value.
    pub detail: String,
}

impl Finding {
    /// A finding without a dataset or object.
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
    fn every_finding_kind_is_in_the_manual_page_once() {
        let page = include_str!("../../../../docs/check.md");
        for kind in FindingKind::ALL {
            let row = format!("| `{}` |", kind.code());
            assert_eq!(page.matches(&row).count(), 1, "{row}");
        }
    }
}
