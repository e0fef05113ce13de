//! A file system that is open for change, with its snapshots below `.zfs/snapshot`.

use super::{InodeNumber, Vfs, VfsEntry, VfsNode, VfsPlace};
use crate::{
    BackgroundDrain, Caller, FileError, FileKind, FileSystem, FileSystemStat, NewMode, RenameMode,
    SNAPSHOT_DIRECTORY_ID, SnapshotDirectory, Stat,
};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{mark, rank};
use millpond_ondisk::Txg;
use millpond_sa::{FileFlags, Fuid, Timestamp};
use std::collections::BTreeMap;

/// `.zfs`.
const CONTROL: InodeNumber = InodeNumber(SNAPSHOT_DIRECTORY_ID.0);
/// `.zfs/snapshot`.
const SNAPSHOTS: InodeNumber = InodeNumber(SNAPSHOT_DIRECTORY_ID.0 - 1);
/// The cookie after `..`. The cookie after the snapshot with id n is n + 1 higher.
const AFTER_PARENT: u64 = 2;
/// The most snapshots that are open at once. The one opened first is closed first.
const OPEN_MAX: usize = 64;

/// A snapshot of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The snapshot's name, without the dataset's.
    pub name: Vec<u8>,
    /// The snapshot's object id in the MOS. Another snapshot with the same name has another id.
    pub id: u64,
}

/// What a program asks for with a directory in `.zfs/snapshot`. The names are those of snapshots, without the dataset's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotChange<'n> {
    /// `mkdir`: a snapshot is created.
    Create {
        /// Its name.
        name: &'n [u8],
    },
    /// `rename`: a snapshot is renamed.
    Rename {
        /// The old name.
        from: &'n [u8],
        /// The new one.
        to: &'n [u8],
    },
    /// `rmdir`: a snapshot is destroyed.
    Destroy {
        /// Its name.
        name: &'n [u8],
    },
}

/// The interface to the snapshots of a file system. The layer above implements it.
pub trait SnapshotPort: Send + Sync {
    /// Lists all current snapshots.
    ///
    /// # Errors
    /// If they cannot be listed.
    fn snapshots(&self) -> Result<Vec<SnapshotEntry>, FileError>;
    /// Finds the snapshot with this name. Returns `None` if there is none.
    ///
    /// # Errors
    /// If the lookup fails.
    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, FileError>;
    /// When a snapshot was last created, renamed or destroyed: the start of 1970 if never, or if the pool does not keep it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn changed(&self) -> Result<Timestamp, FileError>;
    /// Opens a snapshot's files.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it is gone; if it cannot be read.
    fn open(&self, snapshot: &SnapshotEntry) -> Result<Arc<FileSystem>, FileError>;
    /// The last txg in which a snapshot of the pool was destroyed since the pool was opened. Known before it is committed.
    fn last_destroyed(&self) -> Txg;
    /// Whether a snapshot is still there, with these files: the committed txg in which it is, `None` if it is gone.
    ///
    /// # Errors
    /// If it cannot be found out.
    fn still_has(
        &self,
        snapshot: &SnapshotEntry,
        files: &FileSystem,
    ) -> Result<Option<Txg>, FileError>;
    /// Makes a change for a caller, after checking that the caller may do so. `Caller::is_privileged` must be true only
    /// of a caller who may do everything. When it returns, the change is committed.
    ///
    /// # Errors
    /// [`FileError::AccessDenied`] if snapshots are not changed in this way, [`FileError::NotPermitted`] if the caller may
    /// not; what prevents the change.
    fn change(&self, caller: &Caller, change: SnapshotChange<'_>) -> Result<(), FileError>;
}

/// A file system that is open for change, with `.zfs/snapshot`.
///
/// A setting of the file system decides whether `.zfs` is listed. It can be looked up in either case.
pub struct ZfsCtlDir {
    files: Arc<FileSystem>,
    port: Box<dyn SnapshotPort>,
    open: Mutex<OpenSnapshots, rank::Leaf>,
    /// Frees large removed files in the background, until this file system is no longer served.
    _drain: Option<BackgroundDrain>,
}

/// The snapshots that programs use below `.zfs/snapshot`.
#[derive(Default)]
pub struct OpenSnapshots {
    /// The assigned tags. They are never reassigned, so that a program's open file cannot become that of
    /// another snapshot.
    by_tag: BTreeMap<u16, SnapshotEntry>,
    files: Vec<OpenSnapshot>,
}

/// The files of a snapshot that was used.
#[derive(Clone)]
struct OpenSnapshot {
    tag: u16,
    files: Arc<FileSystem>,
    /// No snapshot that was destroyed up to this txg is this one.
    checked: Txg,
}

/// The id of a snapshot that is gone. Another snapshot may get its id.
const GONE: u64 = u64::MAX;

impl std::fmt::Debug for OpenSnapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenSnapshots")
            .field("by_tag", &self.by_tag)
            .finish_non_exhaustive()
    }
}

impl OpenSnapshots {
    /// Assigns a snapshot's tag, usually the lower bits of its id, so that it stays the same from mount to
    /// mount.
    fn tag_of(&mut self, snapshot: &SnapshotEntry) -> Result<u16, FileError> {
        let wanted = (snapshot.id % u64::from(u16::MAX)) as u16;
        for step in 0..u16::MAX {
            let tag = (u32::from(wanted) + u32::from(step)) % u32::from(u16::MAX) + 1;
            let tag = tag as u16;
            match self.by_tag.get(&tag) {
                Some(known) if known.id == snapshot.id => return Ok(tag),
                Some(_) => {}
                None => {
                    self.by_tag.insert(tag, snapshot.clone());
                    return Ok(tag);
                }
            }
        }
        // All 65,535 tags of this mount are in use.
        Err(FileError::TooManyLinks)
    }
}

impl ZfsCtlDir {
    /// Serves `files` with the snapshots of `port`.
    ///
    /// `drain` frees large removed files. Without it, the operation that removes them also frees them.
    #[must_use]
    pub fn new(
        files: Arc<FileSystem>,
        port: Box<dyn SnapshotPort>,
        drain: Option<BackgroundDrain>,
    ) -> Self {
        Self {
            files,
            port,
            open: Mutex::default(),
            _drain: drain,
        }
    }
    /// The file system itself.
    #[must_use]
    pub fn files(&self) -> &Arc<FileSystem> {
        &self.files
    }

    /// Closes a snapshot that has been destroyed. Nothing finds it by its tag any more.
    fn forget_snapshot(&self, tag: u16) {
        let mut open = self.open.lock();
        if let Some(known) = open.by_tag.get_mut(&tag) {
            known.id = GONE;
        }
        let closed: Vec<_> = open.files.extract_if(.., |of| of.tag == tag).collect();
        drop(open);
        drop(closed);
    }

    /// The files of the snapshot with this tag. [`FileError::Stale`] if it was destroyed: its blocks may belong to others.
    fn tagged(&self, tag: u16) -> Result<Arc<FileSystem>, FileError> {
        let open = self.open.lock();
        let known = open.by_tag.get(&tag).filter(|known| known.id != GONE);
        let known = known.ok_or(FileError::Stale)?.clone();
        let found = open.files.iter().find(|of| of.tag == tag).cloned();
        drop(open);
        match found {
            Some(open) => self.check_there(&known, open),
            None => self.open_files(tag, &known),
        }
    }

    /// Returns the files of an open snapshot, unless it was destroyed meanwhile.
    fn check_there(
        &self,
        snapshot: &SnapshotEntry,
        open: OpenSnapshot,
    ) -> Result<Arc<FileSystem>, FileError> {
        let OpenSnapshot {
            tag,
            files,
            checked,
        } = open;
        let destroyed = self.port.last_destroyed();
        if destroyed <= checked {
            return Ok(files);
        }
        let Some(committed) = self.port.still_has(snapshot, &files)? else {
            mark::hit("destroyed-snapshot-closed");
            self.forget_snapshot(tag);
            return Err(FileError::Stale);
        };
        // Destruction that is not committed yet does not show: ask again next time.
        if destroyed <= committed {
            let mut open = self.open.lock();
            if let Some(open) = open.files.iter_mut().find(|of| of.tag == tag) {
                open.checked = destroyed.max(open.checked);
            }
        }
        Ok(files)
    }

    fn open_files(&self, tag: u16, snapshot: &SnapshotEntry) -> Result<Arc<FileSystem>, FileError> {
        // Opening reads from disk, so it runs without the lock. If two threads open the same snapshot, both
        // use the first one's.
        let files = self.port.open(snapshot)?;
        let mut open = self.open.lock();
        if let Some(first) = open.files.iter().find(|of| of.tag == tag) {
            return Ok(Arc::clone(&first.files));
        }
        let evicted = (open.files.len() >= OPEN_MAX).then(|| open.files.remove(0));
        open.files.push(OpenSnapshot {
            tag,
            files: Arc::clone(&files),
            checked: Txg::default(),
        });
        drop(open);
        drop(evicted);
        Ok(files)
    }

    fn snapshot_root(&self, name: &[u8]) -> Result<VfsNode, FileError> {
        let snapshot = self.port.find(name)?.ok_or(FileError::NotFound)?;
        let tag = self.open.lock().tag_of(&snapshot)?;
        let files = match self.tagged(tag) {
            // A new snapshot has the id of one that was destroyed: it gets a tag of its own.
            Err(FileError::Stale) => {
                let tag = self.open.lock().tag_of(&snapshot)?;
                let files = self.open_files(tag, &snapshot)?;
                return Ok(VfsNode::of_file(tag, files.root()?));
            }
            files => files?,
        };
        Ok(VfsNode::of_file(tag, files.root()?))
    }

    /// Whether a place is `.zfs`. There is none with `snapdir=disabled`.
    fn is_control(&self, at: &VfsPlace<'_>) -> bool {
        at.name == b".zfs"
            && at.directory.number == InodeNumber(self.files.root_id().0)
            && self.files.settings().snapshot_directory != SnapshotDirectory::Disabled
    }

    fn destroy_snapshot(&self, caller: &Caller, name: &[u8]) -> Result<(), FileError> {
        let snapshot = self.port.find(name)?.ok_or(FileError::NotFound)?;
        self.port.change(caller, SnapshotChange::Destroy { name })?;
        let open = self.open.lock();
        let tag = open
            .by_tag
            .iter()
            .find(|(_, known)| known.id == snapshot.id);
        let tag = tag.map(|(tag, _)| *tag);
        drop(open);
        if let Some(tag) = tag {
            self.forget_snapshot(tag);
        }
        Ok(())
    }

    fn rename_snapshot(
        &self,
        caller: &Caller,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
    ) -> Result<(), FileError> {
        if !matches!(mode, RenameMode::Replace | RenameMode::NoReplace) {
            return Err(FileError::invalid(
                "snapshots are renamed, and not exchanged",
            ));
        }
        if self.port.find(from)?.is_none() {
            return Err(FileError::NotFound);
        }
        if from == to {
            return Ok(());
        }
        // A snapshot never takes the place of another one.
        if self.port.find(to)?.is_some() {
            return Err(FileError::Exists);
        }
        self.port
            .change(caller, SnapshotChange::Rename { from, to })
    }

    fn list_virtual(
        &self,
        node: &VfsNode,
        cookie: u64,
        count: usize,
    ) -> Result<Vec<VfsEntry>, FileError> {
        let line = |name: &[u8], number, cookie| VfsEntry {
            name: name.to_vec(),
            number,
            kind: Some(FileKind::Directory),
            cookie,
        };
        let root = InodeNumber(self.files.root_id().0);
        let parent = if node.number == CONTROL {
            root
        } else {
            CONTROL
        };
        let mut all = vec![
            line(b".", node.number, 1),
            line(b"..", parent, AFTER_PARENT),
        ];
        if node.number == CONTROL {
            all.push(line(b"snapshot", SNAPSHOTS, AFTER_PARENT + 1));
        } else if count > 0 {
            let mut snapshots = self.port.snapshots()?;
            // Snapshot ids only grow: a listing in progress misses nothing when snapshots are created or
            // destroyed.
            snapshots.sort_by_key(|snapshot| snapshot.id);
            for snapshot in snapshots {
                // Here the tag alone distinguishes snapshots. Opening each snapshot to find its root's object
                // id would be expensive, and nearly always the id equals that of the file system itself.
                let tag = self.open.lock().tag_of(&snapshot)?;
                let number = InodeNumber::new(tag, self.files.root_id());
                let cookie = AFTER_PARENT.saturating_add(1).saturating_add(snapshot.id);
                all.push(line(&snapshot.name, number, cookie));
            }
        }
        all.retain(|entry| entry.cookie > cookie);
        all.truncate(count);
        Ok(all)
    }

    fn stat_virtual(&self, number: InodeNumber) -> Result<Stat, FileError> {
        let crtime = self.files.root()?.stat()?.crtime;
        let changed = match number {
            SNAPSHOTS => self.port.changed()?,
            _ => crtime,
        };
        Ok(Stat {
            id: number.object(),
            kind: FileKind::Directory,
            // What a user may do with a snapshot is asked when the directory is made or removed.
            permissions: 0o777,
            links: 2,
            uid: 0,
            gid: 0,
            owner: Fuid(0),
            group: Fuid(0),
            size_bytes: 2,
            sectors: 0,
            block_bytes: 512,
            mtime: changed,
            atime: crtime,
            ctime: changed,
            crtime,
            device: None,
            generation: 1,
            flags: FileFlags::empty(),
            project: None,
        })
    }
}

impl Vfs for ZfsCtlDir {
    fn file_system(&self) -> &FileSystem {
        &self.files
    }
    /// Files of a snapshot that was destroyed are not read.
    fn reading<'n>(&'n self, node: &'n VfsNode) -> Result<&'n FileSystem, FileError> {
        let file = node.file()?;
        if node.number.tag() != 0 {
            self.tagged(node.number.tag())?;
        }
        Ok(file.file_system())
    }
    fn changing(&self, node: &VfsNode) -> Result<&FileSystem, FileError> {
        match node.is_virtual() {
            true => Err(FileError::NotPermitted),
            false => Ok(&self.files),
        }
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        match number {
            CONTROL | SNAPSHOTS => Ok(VfsNode::of_virtual(number)),
            _ if number.tag() == 0 => Vfs::node(&*self.files, number, generation),
            _ => {
                let files = self.tagged(number.tag())?;
                let node = Vfs::node(&*files, InodeNumber(number.object().0), generation)?;
                Ok(VfsNode { number, ..node })
            }
        }
    }
    fn lookup(&self, at: VfsPlace<'_>) -> Result<VfsNode, FileError> {
        if self.is_control(&at) {
            return Ok(VfsNode::of_virtual(CONTROL));
        }
        if at.directory.is_virtual() {
            let is_control = at.directory.number == CONTROL;
            return match at.name {
                b"." => Ok(at.directory.clone()),
                b".." if is_control => self.root(),
                b".." => Ok(VfsNode::of_virtual(CONTROL)),
                b"snapshot" if is_control => Ok(VfsNode::of_virtual(SNAPSHOTS)),
                _ if is_control => Err(FileError::NotFound),
                name => self.snapshot_root(name),
            };
        }
        let tag = at.directory.number.tag();
        if at.name == b".." && tag != 0 {
            let files = self.tagged(tag)?;
            if files.root_id() == at.directory.number.object() {
                return Ok(VfsNode::of_virtual(SNAPSHOTS));
            }
        }
        Vfs::lookup(self.reading(at.directory)?, at)
    }
    fn make_directory(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        if at.directory.number == SNAPSHOTS {
            let name = at.name;
            self.port.change(caller, SnapshotChange::Create { name })?;
            return self.snapshot_root(name);
        }
        let (files, directory) = (self.changing(at.directory)?, at.directory.file()?);
        let node = files.make_directory(caller, directory, at.name, mode)?;
        Ok(VfsNode::of_file(0, node))
    }
    fn remove_directory(&self, caller: &Caller, at: VfsPlace<'_>) -> Result<(), FileError> {
        if at.directory.number == SNAPSHOTS {
            return self.destroy_snapshot(caller, at.name);
        }
        let files = self.changing(at.directory)?;
        files.remove_directory(at.directory.file()?, at.name)
    }
    fn rename(
        &self,
        caller: &Caller,
        from: VfsPlace<'_>,
        to: VfsPlace<'_>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        match (from.directory.number, to.directory.number) {
            (SNAPSHOTS, SNAPSHOTS) => self.rename_snapshot(caller, from.name, to.name, mode),
            (SNAPSHOTS, _) | (_, SNAPSHOTS) => {
                Err(FileError::invalid("a snapshot stays in its file system"))
            }
            _ => {
                self.changing(from.directory)?;
                let files = self.changing(to.directory)?;
                files.rename(caller, from.entry()?, to.entry()?, mode)
            }
        }
    }
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError> {
        match node.is_virtual() {
            true => self.stat_virtual(node.number),
            false => Vfs::stat(self.reading(node)?, node),
        }
    }
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError> {
        match node.is_virtual() {
            true => self.list_virtual(node, cookie, count),
            false => Vfs::list(self.reading(node)?, node, cookie, count),
        }
    }
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError> {
        match node.is_virtual() {
            true => Ok(vec![]),
            false => Vfs::xattr_names(self.reading(node)?, node),
        }
    }
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        match node.is_virtual() {
            true => Err(FileError::NoAttribute),
            false => Vfs::xattr(self.reading(node)?, node, name),
        }
    }
    fn take_snapshots(&self) -> OpenSnapshots {
        std::mem::take(&mut *self.open.lock())
    }
    fn keep_snapshots(&self, snapshots: OpenSnapshots) {
        *self.open.lock() = snapshots;
    }
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError> {
        match node.file() {
            Ok(file) if node.number.tag() == 0 => self.files.stat_file_system(file),
            // A session has only one `statfs`: that of the file system itself.
            _ => self.files.stat_file_system(&self.files.root()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::ObjectId;

    fn snapshot(id: u64) -> SnapshotEntry {
        SnapshotEntry {
            name: format!("s{id}").into_bytes(),
            id,
        }
    }

    #[test]
    fn tags_are_unique_and_never_zero() {
        let mut open = OpenSnapshots::default();
        let first = open.tag_of(&snapshot(77)).unwrap();
        assert_eq!(first, 78);
        assert_eq!(open.tag_of(&snapshot(77)).unwrap(), first);
        let alias = open.tag_of(&snapshot(77 + 65_535)).unwrap();
        assert_eq!(alias, 79);
        let last = open.tag_of(&snapshot(65_534)).unwrap();
        assert_eq!(last, 65_535);
        assert_eq!(open.tag_of(&snapshot(2 * 65_535 - 1)).unwrap(), 1);
    }

    #[test]
    fn inode_numbers_hold_tag_and_object() {
        let number = InodeNumber::new(0xfffe, ObjectId(0x1234_5678_9abc));
        assert_eq!(
            (number.tag(), number.object().0),
            (0xfffe, 0x1234_5678_9abc)
        );
        assert_eq!(InodeNumber::new(0, ObjectId(34)), InodeNumber(34));
        assert_ne!(CONTROL, SNAPSHOTS);
    }
}
