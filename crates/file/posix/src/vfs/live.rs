//! [`Vfs`] for a live file system.

use super::{Body, InodeNumber, Vfs, VfsEntry, VfsNode, VfsPlace};
use crate::{
    AclKind, Allocate, Caller, DirEntryRef, FileError, FileSystemStat, LONG_NAME_BYTES_MAX,
    LiveFileSystem, LiveNode, NAME_BYTES_MAX, NewMode, RenameMode, Seek, SetAttributes,
    SpecialFile, WriteAt, XattrMode,
};
use crate::{CacheHint, Case, Stat};

impl VfsNode {
    pub(super) fn of_live(node: LiveNode) -> Self {
        Self {
            number: InodeNumber(node.id().0),
            generation: node.generation(),
            kind: node.kind(),
            body: Body::Live(node),
        }
    }
    /// The live file. [`FileError::Stale`] for nodes of another `Vfs`.
    pub(super) fn live(&self) -> Result<&LiveNode, FileError> {
        match &self.body {
            Body::Live(node) => Ok(node),
            _ => Err(FileError::Stale),
        }
    }
}

fn place<'p>(place: &VfsPlace<'p>) -> Result<DirEntryRef<'p>, FileError> {
    Ok(DirEntryRef {
        directory: place.directory.live()?,
        name: place.name,
    })
}

impl Vfs for LiveFileSystem {
    fn root(&self) -> Result<VfsNode, FileError> {
        self.root().map(VfsNode::of_live)
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        if number.tag() != 0 {
            return Err(FileError::Stale);
        }
        let node = match generation {
            0 => self.node(number.object())?,
            _ => self.node_of_generation(number.object(), generation)?,
        };
        Ok(VfsNode::of_live(node))
    }
    fn lookup(&self, at: VfsPlace<'_>) -> Result<VfsNode, FileError> {
        self.lookup(at.directory.live()?, at.name)
            .map(VfsNode::of_live)
    }
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError> {
        Ok(self.stat(node.live()?))
    }
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError> {
        self.link_target(node.live()?)
    }
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError> {
        let listed = self.list(node.live()?, cookie, count)?.into_iter();
        Ok(listed
            .map(|line| VfsEntry {
                name: line.entry.name,
                number: InodeNumber(line.entry.id.0),
                kind: line.entry.kind,
                cookie: line.cookie,
            })
            .collect())
    }
    fn read_with_hint(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError> {
        self.read_with_hint(node.live()?, offset, buffer, hint)
    }
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError> {
        self.seek(node.live()?, what, offset)
    }
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError> {
        self.xattr_names(node.live()?)
    }
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        self.xattr(node.live()?, name)
    }
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError> {
        self.stat_file_system(node.live()?)
    }
    fn has_posix_acls(&self) -> bool {
        self.settings().acl_kind == AclKind::Posix
    }
    fn has_exact_names(&self) -> bool {
        self.case() == Case::Sensitive && self.normalisation() == 0
    }
    fn name_bytes_max(&self) -> usize {
        match self.settings().allows_long_names {
            true => LONG_NAME_BYTES_MAX,
            false => NAME_BYTES_MAX,
        }
    }
    fn is_read_only(&self) -> bool {
        self.settings().is_read_only
    }
    fn is_settled(&self, node: &VfsNode) -> bool {
        node.live().is_ok_and(LiveNode::is_settled)
    }
    fn touch_atime(&self, node: &VfsNode) {
        if let Ok(node) = node.live() {
            self.touch_atime(node);
        }
    }
    fn reap(&self) -> Result<(), FileError> {
        self.reap()
    }
    fn set_attributes(
        &self,
        caller: &Caller,
        node: &VfsNode,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        self.set_attributes(caller, node.live()?, set)
    }
    fn create(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
        is_exclusive: bool,
    ) -> Result<(VfsNode, bool), FileError> {
        let directory = at.directory.live()?;
        let (node, is_new) = self.create(caller, directory, at.name, mode, is_exclusive)?;
        Ok((VfsNode::of_live(node), is_new))
    }
    fn create_tmpfile(
        &self,
        caller: &Caller,
        directory: &VfsNode,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        self.create_tmpfile(caller, directory.live()?, mode)
            .map(VfsNode::of_live)
    }
    fn make_directory(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        self.make_directory(caller, at.directory.live()?, at.name, mode)
            .map(VfsNode::of_live)
    }
    fn make_special(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        what: SpecialFile,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        self.make_special(caller, at.directory.live()?, at.name, what, mode)
            .map(VfsNode::of_live)
    }
    fn make_symlink(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        target: &[u8],
    ) -> Result<VfsNode, FileError> {
        self.make_symlink(caller, at.directory.live()?, at.name, target)
            .map(VfsNode::of_live)
    }
    fn link(&self, node: &VfsNode, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.link(node.live()?, at.directory.live()?, at.name)
    }
    fn unlink(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.unlink(at.directory.live()?, at.name)
    }
    fn remove_directory(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.remove_directory(at.directory.live()?, at.name)
    }
    fn rename(
        &self,
        caller: &Caller,
        from: VfsPlace<'_>,
        to: VfsPlace<'_>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        self.rename(caller, place(&from)?, place(&to)?, mode)
    }
    fn write(
        &self,
        caller: &Caller,
        node: &VfsNode,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FileError> {
        self.write(caller, node.live()?, at, bytes)
    }
    fn allocate(
        &self,
        node: &VfsNode,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<(), FileError> {
        self.allocate(node.live()?, what, offset, length)
    }
    fn copy_range(
        &self,
        caller: &Caller,
        from: (&VfsNode, u64),
        to: (&VfsNode, u64),
        length: u64,
    ) -> Result<u64, FileError> {
        let (from, to) = ((from.0.live()?, from.1), (to.0.live()?, to.1));
        self.copy_range(caller, from, to, length)
    }
    fn set_xattr(
        &self,
        caller: &Caller,
        node: &VfsNode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        self.set_xattr(caller, node.live()?, name, value, mode)
    }
    fn remove_xattr(&self, node: &VfsNode, name: &[u8]) -> Result<(), FileError> {
        self.remove_xattr(node.live()?, name)
    }
    fn sync(&self) -> Result<(), FileError> {
        self.commit_log()
    }
    fn fsync(&self, node: &VfsNode) -> Result<(), FileError> {
        self.fsync(node.live()?)
    }
}
