//! A live file system with its snapshots below `.zfs/snapshot`.

use super::{Body, InodeNumber, StoredFiles, Vfs, VfsEntry, VfsNode, VfsPlace, read_only};
use crate::live::{
    Allocate, BackgroundDrain, Caller, FileError, FileSystemStat, LiveFileSystem, NewMode,
    RenameMode, SNAPSHOT_DIRECTORY_ID, Seek, SetAttributes, SpecialFile, WriteAt, XattrMode,
};
use crate::{FileKind, FileSystem, Keeping, Stat};
use millpond_env::sync::{Arc, Mutex};
use millpond_sa::{FileFlags, Fuid};
use std::collections::BTreeMap;

/// `.zfs`.
const CONTROL: InodeNumber = InodeNumber(SNAPSHOT_DIRECTORY_ID.0);
/// `.zfs/snapshot`.
const SNAPSHOTS: InodeNumber = InodeNumber(SNAPSHOT_DIRECTORY_ID.0 - 1);
/// The cookie behind `..`; behind the n-th snapshot it is n + 1 higher.
const BEHIND_PARENT: u64 = 2;
/// As many snapshots are held open at once; those opened first give way.
const OPEN_MAX: usize = 64;

/// A snapshot of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Its name, without the dataset's.
    pub name: Vec<u8>,
    /// Its object number in the MOS: another snapshot of the same name has another one.
    pub id: u64,
}

/// Who knows the snapshots of a file system. The layer above implements it.
pub trait SnapshotPort: Send + Sync {
    /// All snapshots there are now.
    ///
    /// # Errors
    /// If they cannot be told.
    fn snapshots(&self) -> Result<Vec<SnapshotEntry>, FileError>;
    /// The snapshot of this name.
    ///
    /// # Errors
    /// If that cannot be told; one that is not there is `None`.
    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, FileError>;
    /// Its files.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it is gone; if it cannot be read.
    fn open(&self, snapshot: &SnapshotEntry) -> Result<Arc<FileSystem>, FileError>;
}

/// A live file system with `.zfs/snapshot`. Whether `.zfs` is listed is a setting of the live one; it can
/// be looked up in either case.
pub struct WithSnapshots {
    live: Arc<LiveFileSystem>,
    port: Box<dyn SnapshotPort>,
    open: Mutex<OpenSnapshots>,
    /// Frees large files that were removed. Stops when this file system is no longer served.
    _drain: Option<BackgroundDrain>,
}

#[derive(Default)]
struct OpenSnapshots {
    /// Tags that were handed out. Those stay: what a program holds must not become another
    /// snapshot's.
    by_tag: BTreeMap<u16, SnapshotEntry>,
    files: Vec<(u16, Arc<StoredFiles>)>,
}

impl OpenSnapshots {
    /// The tag of a snapshot: as a rule the lower bits of its number, so that it stays the same from mount
    /// to mount.
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
        // 65,534 snapshots were looked into through this mount.
        Err(FileError::TooManyLinks)
    }
}

impl WithSnapshots {
    /// Serves `live`; `port` knows its snapshots. `drain` frees large files that were removed; without it
    /// those who remove them do.
    #[must_use]
    pub fn new(
        live: Arc<LiveFileSystem>,
        port: Box<dyn SnapshotPort>,
        drain: Option<BackgroundDrain>,
    ) -> Self {
        Self {
            live,
            port,
            open: Mutex::default(),
            _drain: drain,
        }
    }
    /// The live file system.
    #[must_use]
    pub fn live(&self) -> &Arc<LiveFileSystem> {
        &self.live
    }

    /// Lets go of everything of a snapshot, which is about to be destroyed or has been.
    pub fn forget_snapshot(&self, id: u64) {
        let mut open = self.open.lock();
        let tag = open.by_tag.iter().find(|(_, known)| known.id == id);
        let Some(tag) = tag.map(|(tag, _)| *tag) else {
            return;
        };
        let closed: Vec<_> = open.files.extract_if(.., |(of, _)| *of == tag).collect();
        drop(open);
        drop(closed);
    }

    fn tagged(&self, tag: u16) -> Result<Arc<StoredFiles>, FileError> {
        let open = self.open.lock();
        if let Some((_, files)) = open.files.iter().find(|(of, _)| *of == tag) {
            return Ok(Arc::clone(files));
        }
        let known = open.by_tag.get(&tag).ok_or(FileError::Stale)?.clone();
        drop(open);
        self.open_files(tag, &known)
    }

    fn open_files(
        &self,
        tag: u16,
        snapshot: &SnapshotEntry,
    ) -> Result<Arc<StoredFiles>, FileError> {
        // Opened without the lock, since that reads; whoever comes second takes the first's.
        let files = Arc::new(StoredFiles::new(self.port.open(snapshot)?, tag));
        let mut open = self.open.lock();
        if let Some((_, first)) = open.files.iter().find(|(of, _)| *of == tag) {
            return Ok(Arc::clone(first));
        }
        let evicted = (open.files.len() >= OPEN_MAX).then(|| open.files.remove(0));
        open.files.push((tag, Arc::clone(&files)));
        drop(open);
        drop(evicted);
        Ok(files)
    }

    fn snapshot_root(&self, name: &[u8]) -> Result<VfsNode, FileError> {
        let snapshot = self.port.find(name)?.ok_or(FileError::NotFound)?;
        let tag = self.open.lock().tag_of(&snapshot)?;
        let open = self.open.lock();
        let known = open.files.iter().find(|(of, _)| *of == tag);
        let known = known.map(|(_, files)| Arc::clone(files));
        drop(open);
        match known {
            Some(files) => files.root(),
            None => self.open_files(tag, &snapshot)?.root(),
        }
    }

    fn virtual_node(number: InodeNumber) -> VfsNode {
        VfsNode {
            number,
            generation: 1,
            kind: FileKind::Directory,
            body: Body::Virtual,
        }
    }

    /// Who serves a node that is not virtual.
    fn serving(&self, node: &VfsNode) -> Result<Served<'_>, FileError> {
        match &node.body {
            Body::Live(_) => Ok(Served::Live(&self.live)),
            Body::Stored(_) => Ok(Served::Stored(self.tagged(node.number.tag())?)),
            Body::Virtual => Err(FileError::NotSupported),
        }
    }

    /// The live file system, for what changes: nothing else does.
    fn changing(&self, node: &VfsNode) -> Result<&LiveFileSystem, FileError> {
        match &node.body {
            Body::Live(_) => Ok(&self.live),
            Body::Stored(_) => read_only(),
            Body::Virtual => Err(FileError::NotPermitted),
        }
    }

    fn is_control(&self, at: &VfsPlace<'_>) -> bool {
        at.name == b".zfs"
            && matches!(at.directory.body, Body::Live(_))
            && at.directory.number.object() == self.live.root_id()
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
        let root = InodeNumber(self.live.root_id().0);
        let parent = if node.number == CONTROL {
            root
        } else {
            CONTROL
        };
        let mut all = vec![
            line(b".", node.number, 1),
            line(b"..", parent, BEHIND_PARENT),
        ];
        if node.number == CONTROL {
            all.push(line(b"snapshot", SNAPSHOTS, BEHIND_PARENT + 1));
        } else if count > 0 {
            let mut snapshots = self.port.snapshots()?;
            // Numbers only grow: a listing under way misses nothing when others come or go.
            snapshots.sort_by_key(|snapshot| snapshot.id);
            for snapshot in snapshots {
                // The tag alone tells snapshots apart here; opening each to learn its root's number would
                // be dear, and all of them have that of the live one but for the rarest cases.
                let tag = self.open.lock().tag_of(&snapshot)?;
                let number = InodeNumber::new(tag, self.live.root_id());
                let cookie = BEHIND_PARENT.saturating_add(1).saturating_add(snapshot.id);
                all.push(line(&snapshot.name, number, cookie));
            }
        }
        all.retain(|entry| entry.cookie > cookie);
        all.truncate(count);
        Ok(all)
    }

    fn stat_virtual(&self, number: InodeNumber) -> Result<Stat, FileError> {
        let root = self.live.stat(&self.live.root()?);
        Ok(Stat {
            id: number.object(),
            kind: FileKind::Directory,
            permissions: 0o555,
            links: 2,
            uid: 0,
            gid: 0,
            owner: Fuid(0),
            group: Fuid(0),
            size_bytes: 2,
            sectors: 0,
            block_bytes: 512,
            mtime: root.crtime,
            atime: root.crtime,
            ctime: root.crtime,
            crtime: root.crtime,
            device: None,
            generation: 1,
            flags: FileFlags::empty(),
            project: None,
        })
    }
}

enum Served<'s> {
    Live(&'s LiveFileSystem),
    Stored(Arc<StoredFiles>),
}

impl Served<'_> {
    fn vfs(&self) -> &dyn Vfs {
        match self {
            Self::Live(files) => *files,
            Self::Stored(files) => &**files,
        }
    }
}

impl Vfs for WithSnapshots {
    fn root(&self) -> Result<VfsNode, FileError> {
        Vfs::root(&*self.live)
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        match number {
            CONTROL | SNAPSHOTS => Ok(Self::virtual_node(number)),
            _ if number.tag() == 0 => Vfs::node(&*self.live, number, generation),
            _ => self.tagged(number.tag())?.node(number, generation),
        }
    }
    fn lookup(&self, at: VfsPlace<'_>) -> Result<VfsNode, FileError> {
        if self.is_control(&at) {
            return Ok(Self::virtual_node(CONTROL));
        }
        if matches!(at.directory.body, Body::Virtual) {
            let is_control = at.directory.number == CONTROL;
            return match at.name {
                b"." => Ok(at.directory.clone()),
                b".." if is_control => self.root(),
                b".." => Ok(Self::virtual_node(CONTROL)),
                b"snapshot" if is_control => Ok(Self::virtual_node(SNAPSHOTS)),
                _ if is_control => Err(FileError::NotFound),
                name => self.snapshot_root(name),
            };
        }
        if at.name == b".." && matches!(at.directory.body, Body::Stored(_)) {
            let files = self.tagged(at.directory.number.tag())?;
            if files.root()?.number == at.directory.number {
                return Ok(Self::virtual_node(SNAPSHOTS));
            }
        }
        self.serving(at.directory)?.vfs().lookup(at)
    }
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError> {
        match node.body {
            Body::Virtual => self.stat_virtual(node.number),
            _ => self.serving(node)?.vfs().stat(node),
        }
    }
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError> {
        self.serving(node)?.vfs().link_target(node)
    }
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError> {
        match node.body {
            Body::Virtual => self.list_virtual(node, cookie, count),
            _ => self.serving(node)?.vfs().list(node, cookie, count),
        }
    }
    fn read_keeping(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        keeping: Keeping,
    ) -> Result<usize, FileError> {
        match &node.body {
            Body::Live(live) => self.live.read_keeping(live, offset, buffer, keeping),
            _ => (self.serving(node)?.vfs()).read_keeping(node, offset, buffer, keeping),
        }
    }
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError> {
        self.serving(node)?.vfs().seek(node, what, offset)
    }
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError> {
        match node.body {
            Body::Virtual => Ok(vec![]),
            _ => self.serving(node)?.vfs().xattr_names(node),
        }
    }
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        match node.body {
            Body::Virtual => Err(FileError::NoAttribute),
            _ => self.serving(node)?.vfs().xattr(node, name),
        }
    }
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError> {
        match &node.body {
            Body::Live(live) => self.live.stat_file_system(live),
            // One session has one `statfs`: that of the live file system.
            _ => self.live.stat_file_system(&self.live.root()?),
        }
    }
    fn has_posix_acls(&self) -> bool {
        self.live.has_posix_acls()
    }
    fn has_exact_names(&self) -> bool {
        self.live.has_exact_names()
    }
    fn name_bytes_max(&self) -> usize {
        self.live.name_bytes_max()
    }
    fn is_read_only(&self) -> bool {
        Vfs::is_read_only(&*self.live)
    }
    fn is_settled(&self, node: &VfsNode) -> bool {
        Vfs::is_settled(&*self.live, node)
    }
    fn touch_atime(&self, node: &VfsNode) {
        Vfs::touch_atime(&*self.live, node);
    }
    fn reap(&self) -> Result<(), FileError> {
        self.live.reap()
    }
    fn set_attributes(
        &self,
        caller: &Caller,
        node: &VfsNode,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        Vfs::set_attributes(self.changing(node)?, caller, node, set)
    }
    fn create(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
        is_exclusive: bool,
    ) -> Result<(VfsNode, bool), FileError> {
        Vfs::create(self.changing(at.directory)?, caller, at, mode, is_exclusive)
    }
    fn make_unnamed(
        &self,
        caller: &Caller,
        directory: &VfsNode,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        Vfs::make_unnamed(self.changing(directory)?, caller, directory, mode)
    }
    fn make_directory(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        Vfs::make_directory(self.changing(at.directory)?, caller, at, mode)
    }
    fn make_special(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        what: SpecialFile,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        Vfs::make_special(self.changing(at.directory)?, caller, at, what, mode)
    }
    fn make_symlink(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        target: &[u8],
    ) -> Result<VfsNode, FileError> {
        Vfs::make_symlink(self.changing(at.directory)?, caller, at, target)
    }
    fn link(&self, node: &VfsNode, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.changing(node)?;
        Vfs::link(self.changing(at.directory)?, node, at)
    }
    fn unlink(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        Vfs::unlink(self.changing(at.directory)?, at)
    }
    fn remove_directory(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        Vfs::remove_directory(self.changing(at.directory)?, at)
    }
    fn rename(
        &self,
        caller: &Caller,
        from: VfsPlace<'_>,
        to: VfsPlace<'_>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        self.changing(from.directory)?;
        Vfs::rename(self.changing(to.directory)?, caller, from, to, mode)
    }
    fn write(
        &self,
        caller: &Caller,
        node: &VfsNode,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FileError> {
        Vfs::write(self.changing(node)?, caller, node, at, bytes)
    }
    fn allocate(
        &self,
        node: &VfsNode,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<(), FileError> {
        Vfs::allocate(self.changing(node)?, node, what, offset, length)
    }
    fn copy_range(
        &self,
        caller: &Caller,
        from: (&VfsNode, u64),
        to: (&VfsNode, u64),
        length: u64,
    ) -> Result<u64, FileError> {
        // From a snapshot into the live file system: the caller reads and writes.
        if !matches!(from.0.body, Body::Live(_)) {
            return Err(FileError::CrossProject);
        }
        Vfs::copy_range(self.changing(to.0)?, caller, from, to, length)
    }
    fn set_xattr(
        &self,
        caller: &Caller,
        node: &VfsNode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        Vfs::set_xattr(self.changing(node)?, caller, node, name, value, mode)
    }
    fn remove_xattr(&self, node: &VfsNode, name: &[u8]) -> Result<(), FileError> {
        Vfs::remove_xattr(self.changing(node)?, node, name)
    }
    fn sync(&self) -> Result<(), FileError> {
        Vfs::sync(&*self.live)
    }
    fn fsync(&self, node: &VfsNode) -> Result<(), FileError> {
        match node.body {
            Body::Live(_) => Vfs::fsync(&*self.live, node),
            _ => Ok(()),
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
    fn tags_follow_the_snapshots_number_and_are_never_zero_nor_shared() {
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
    fn inode_numbers_keep_tag_and_object_apart() {
        let number = InodeNumber::new(0xfffe, ObjectId(0x1234_5678_9abc));
        assert_eq!(
            (number.tag(), number.object().0),
            (0xfffe, 0x1234_5678_9abc)
        );
        assert_eq!(InodeNumber::new(0, ObjectId(34)), InodeNumber(34));
        assert_ne!(CONTROL, SNAPSHOTS);
    }
}
