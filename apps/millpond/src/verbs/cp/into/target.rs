//! Creates the copies: files of every kind in a dataset, with the attributes to preserve.

use super::source::{Entry, Facts, Xattrs};
use crate::verbs::cp::report::Report;
use millpond_engine::{
    Caller, FileError, FileKind, FileSystem, NewMode, Node, SetAttributes, SetTime, SpecialFile,
    XattrMode,
};
use millpond_env::sync::Arc;

/// Selects the attributes that copies get.
#[derive(Debug, Clone, Copy)]
pub struct Preserved {
    /// The owner of all copies, instead of the source's owners.
    pub owner: Option<(u32, u32)>,
    /// Whether extended attributes are copied.
    pub has_xattrs: bool,
    /// Whether access times are set to the modification times.
    ///
    /// Reading a source changes its access time.
    pub is_atime_mtime: bool,
    /// Whether existing files of the destination stay.
    pub is_kept: bool,
}

/// The file system that copies go into.
#[derive(Clone)]
pub struct Target {
    pub files: Arc<FileSystem>,
    pub preserved: Preserved,
    /// The identity of the destination directory among the sources, if a source tree can contain it.
    pub own: Option<(u64, u64)>,
}

/// A directory that copies go into.
#[derive(Debug, Clone)]
pub struct TargetDir {
    pub node: Node,
    /// Whether new files in it inherit a POSIX ACL, which copies must not have.
    pub hands_down: bool,
}

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

impl Target {
    /// Prepares a directory for copies.
    pub fn place(&self, node: Node) -> TargetDir {
        let hands_down = matches!(node.xattr(ACL_DEFAULT), Ok(Some(_)));
        TargetDir { node, hands_down }
    }

    fn owner(&self, facts: &Facts) -> (u32, u32) {
        self.preserved.owner.unwrap_or((facts.uid, facts.gid))
    }

    fn caller(&self, facts: &Facts) -> Caller {
        let (uid, gid) = self.owner(facts);
        Caller {
            uid,
            gid,
            groups: vec![],
            is_privileged: true,
        }
    }

    /// Creates a file of any kind, or uses the existing directory.
    ///
    /// An existing file is removed, never written through. If it is to stay, the result is `None`.
    pub fn make(
        &self,
        place: &TargetDir,
        name: &[u8],
        facts: &Facts,
        link_target: Option<&[u8]>,
    ) -> Result<Option<Node>, FileError> {
        let files = &self.files;
        let is_directory = facts.kind == FileKind::Directory;
        for _ in 0..TRIES_MAX {
            match self.make_new(&place.node, name, facts, link_target) {
                Err(FileError::Exists) => {}
                made => return made.map(Some),
            }
            let there = match place.node.lookup(name) {
                Err(FileError::NotFound) => continue,
                there => there?,
            };
            match (is_directory, there.kind() == FileKind::Directory) {
                (true, true) => return Ok(Some(there)),
                (true, false) => return Err(FileError::NotADirectory),
                (false, true) => return Err(FileError::IsADirectory),
                (false, false) if self.preserved.is_kept => return Ok(None),
                (false, false) => match files.unlink(&place.node, name) {
                    Ok(()) | Err(FileError::NotFound) => {}
                    Err(error) => return Err(error),
                },
            }
        }
        Err(FileError::Exists)
    }

    fn make_new(
        &self,
        directory: &Node,
        name: &[u8],
        facts: &Facts,
        link_target: Option<&[u8]>,
    ) -> Result<Node, FileError> {
        let (files, caller) = (&self.files, self.caller(facts));
        let mode = NewMode::exactly(facts.permissions);
        let (major, minor) = facts.device.unwrap_or((0, 0));
        let special = match facts.kind {
            FileKind::Regular => {
                let made = files.create(&caller, directory, name, mode, true)?;
                return Ok(made.0);
            }
            FileKind::Directory => return files.make_directory(&caller, directory, name, mode),
            FileKind::Symlink => {
                let target = link_target.unwrap_or_default();
                return files.make_symlink(&caller, directory, name, target);
            }
            FileKind::Fifo => SpecialFile::Fifo,
            FileKind::Socket => SpecialFile::Socket,
            FileKind::CharacterDevice => SpecialFile::CharacterDevice(major, minor),
            FileKind::BlockDevice => SpecialFile::BlockDevice(major, minor),
        };
        files.make_special(&caller, directory, name, special, mode)
    }

    /// Gives a copy another name. An existing file with that name is removed unless it is to stay.
    pub fn link(&self, node: &Node, place: &TargetDir, name: &[u8]) -> Result<(), FileError> {
        for _ in 0..TRIES_MAX {
            match self.files.link(node, &place.node, name) {
                Err(FileError::Exists) => {}
                linked => return linked,
            }
            if self.preserved.is_kept {
                return Ok(());
            }
            match place.node.lookup(name) {
                Ok(there) if there.id() == node.id() => return Ok(()),
                Ok(_) | Err(FileError::NotFound) => {}
                Err(error) => return Err(error),
            }
            match self.files.unlink(&place.node, name) {
                Ok(()) | Err(FileError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(FileError::Exists)
    }

    /// Whether a source directory is the destination of the copy. Copying it would not end.
    pub fn is_self(&self, parent: &Facts, entry: &Entry) -> bool {
        self.own == Some((parent.id.0, entry.number))
    }

    /// Sets the preserved attributes of a copy, the times last.
    ///
    /// Attributes that the file system rejects are recorded.
    pub fn finish(
        &self,
        node: &Node,
        facts: &Facts,
        xattrs: &Xattrs,
        hands_down: bool,
        path: &[u8],
        report: &Report,
    ) -> Result<(), FileError> {
        let files = &self.files;
        let root = Caller::root();
        if hands_down && facts.kind != FileKind::Symlink {
            for name in [ACL_ACCESS, ACL_DEFAULT] {
                if !xattrs.iter().any(|(given, _)| given == name) {
                    match files.remove_xattr(node, name) {
                        Ok(()) | Err(FileError::NoAttribute | FileError::NotSupported) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        for (name, value) in xattrs {
            if let Err(error) = files.set_xattr(&root, node, name, value, XattrMode::Set) {
                if is_end(&error) {
                    return Err(error);
                }
                let class = name.split(|byte| *byte == b'.').next().unwrap_or_default();
                let class = crate::verbs::name_text::escaped(class);
                report.note(
                    format!("cannot set extended attributes {class}.*: {error}"),
                    path,
                );
            }
        }
        let stat = node.stat()?;
        let (uid, gid) = self.owner(facts);
        let atime = match self.preserved.is_atime_mtime {
            true => facts.mtime,
            false => facts.atime,
        };
        let has_mode = facts.kind != FileKind::Symlink;
        let set = SetAttributes {
            permissions: (has_mode && stat.permissions != facts.permissions)
                .then_some(facts.permissions),
            uid: (stat.uid != uid).then_some(uid),
            gid: (stat.gid != gid).then_some(gid),
            atime: Some(SetTime::To(atime)),
            mtime: Some(SetTime::To(facts.mtime)),
            ..SetAttributes::default()
        };
        files.set_attributes(&root, node, &set)
    }
}

/// Whether an error means that no more writes are possible.
pub fn is_end(error: &FileError) -> bool {
    matches!(error, FileError::Transaction(_))
}

/// Retry limit, because another program may take the name each time.
const TRIES_MAX: u32 = 8;
