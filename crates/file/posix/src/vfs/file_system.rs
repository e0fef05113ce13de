//! [`Vfs`] for a file system, whether committed or open for change.

use super::{InodeNumber, Vfs, VfsEntry, VfsNode, VfsPlace};
use crate::{
    AclKind, Allocate, CacheHint, Caller, DirEntryRef, FileError, FileSystem, FileSystemStat,
    NewMode, Node, RenameMode, Seek, SetAttributes, SpecialFile, Stat, WriteAt, XattrMode,
};

fn file(node: Node) -> VfsNode {
    VfsNode::of_file(0, node)
}

fn place<'p>(place: &VfsPlace<'p>) -> Result<DirEntryRef<'p>, FileError> {
    Ok(DirEntryRef {
        directory: place.directory.file()?,
        name: place.name,
    })
}

impl Vfs for FileSystem {
    fn root(&self) -> Result<VfsNode, FileError> {
        self.root().map(file)
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        if number.tag() != 0 {
            return Err(FileError::Stale);
        }
        let node = match generation {
            0 => self.node(number.object())?,
            _ => self.node_of_generation(number.object(), generation)?,
        };
        // Hidden objects of extended attributes are not files.
        if node.is_xattr_directory()? {
            return Err(FileError::Stale);
        }
        Ok(file(node))
    }
    fn lookup(&self, at: VfsPlace<'_>) -> Result<VfsNode, FileError> {
        let found = at.directory.file()?.lookup(at.name)?;
        Ok(VfsNode::of_file(at.directory.number.tag(), found))
    }
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError> {
        node.file()?.stat()
    }
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError> {
        let target = node.file()?.link_target()?;
        target.ok_or_else(|| FileError::invalid("not a symbolic link"))
    }
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError> {
        let tag = node.number.tag();
        let listed = node.file()?.list(cookie, count)?.into_iter();
        Ok(listed
            .map(|line| VfsEntry {
                name: line.entry.name,
                number: InodeNumber::new(tag, line.entry.id),
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
        node.file()?.read_with_hint(offset, buffer, hint)
    }
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError> {
        node.file()?.seek(what, offset)
    }
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError> {
        node.file()?.xattr_names()
    }
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        node.file()?.xattr(name)?.ok_or(FileError::NoAttribute)
    }
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError> {
        self.stat_file_system(node.file()?)
    }
    fn has_posix_acls(&self) -> bool {
        self.settings().acl_kind == AclKind::Posix
    }
    fn has_exact_names(&self) -> bool {
        self.names().is_exact()
    }
    fn name_bytes_max(&self) -> usize {
        self.name_bytes_max()
    }
    fn is_read_only(&self) -> bool {
        self.settings().is_read_only
    }
    fn is_settled(&self, node: &VfsNode) -> bool {
        node.file.as_ref().is_none_or(Node::is_settled)
    }
    fn touch_atime(&self, node: &VfsNode) {
        if let Ok(node) = node.file() {
            self.touch_atime(node);
        }
    }
    fn reap(&self) -> Result<(), FileError> {
        match self.committed() {
            Some(_) => Ok(()),
            None => self.reap(),
        }
    }
    fn set_attributes(
        &self,
        caller: &Caller,
        node: &VfsNode,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        self.set_attributes(caller, node.file()?, set)
    }
    fn create(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
        is_exclusive: bool,
    ) -> Result<(VfsNode, bool), FileError> {
        let directory = at.directory.file()?;
        let (node, is_new) = self.create(caller, directory, at.name, mode, is_exclusive)?;
        Ok((file(node), is_new))
    }
    fn create_tmpfile(
        &self,
        caller: &Caller,
        directory: &VfsNode,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        self.create_tmpfile(caller, directory.file()?, mode)
            .map(file)
    }
    fn make_directory(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        self.make_directory(caller, at.directory.file()?, at.name, mode)
            .map(file)
    }
    fn make_special(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        what: SpecialFile,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        self.make_special(caller, at.directory.file()?, at.name, what, mode)
            .map(file)
    }
    fn make_symlink(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        target: &[u8],
    ) -> Result<VfsNode, FileError> {
        self.make_symlink(caller, at.directory.file()?, at.name, target)
            .map(file)
    }
    fn link(&self, node: &VfsNode, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.link(node.file()?, at.directory.file()?, at.name)
    }
    fn unlink(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.unlink(at.directory.file()?, at.name)
    }
    fn remove_directory(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.remove_directory(at.directory.file()?, at.name)
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
        self.write(caller, node.file()?, at, bytes)
    }
    fn allocate(
        &self,
        node: &VfsNode,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<(), FileError> {
        self.allocate(node.file()?, what, offset, length)
    }
    fn copy_range(
        &self,
        caller: &Caller,
        from: (&VfsNode, u64),
        to: (&VfsNode, u64),
        length: u64,
    ) -> Result<u64, FileError> {
        let (from, to) = ((from.0.file()?, from.1), (to.0.file()?, to.1));
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
        self.set_xattr(caller, node.file()?, name, value, mode)
    }
    fn remove_xattr(&self, node: &VfsNode, name: &[u8]) -> Result<(), FileError> {
        self.remove_xattr(node.file()?, name)
    }
    fn sync(&self) -> Result<(), FileError> {
        self.commit_log()
    }
    fn fsync(&self, node: &VfsNode) -> Result<(), FileError> {
        self.fsync(node.file()?)
    }
}
