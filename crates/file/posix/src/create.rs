//! Creates files of every type.

use crate::FileSystem;
use crate::attributes::{AttributeForm, zap};
use crate::error::FileError;
use crate::nfs4_acl;
use crate::open_node::{NodeInner, OpenNode};
use crate::posix_acl::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, PosixAcl};
use crate::settings::{AclKind, Caller};
use crate::state::{Lists, NodeState};
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use crate::{FileKind, Node};
use millpond_env::sync::Arc;
use millpond_object::{NewObject, Object};
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_sa::{Ace, FileFlags, Fuid, Timestamp};
use millpond_txg::Transaction;
use millpond_zap::{NewZap, new_salt};

/// The maximum number of links of a file.
pub(crate) const LINKS_MAX: u64 = (1 << 31) - 1;
/// The longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
const SET_USER: u64 = 0o4000;
const SET_GROUP: u64 = 0o2000;

/// The permissions of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMode {
    /// The twelve requested permission bits.
    pub mode: u32,
    /// The caller's umask. It is ignored if the directory has a default ACL.
    pub umask: u32,
}

impl NewMode {
    /// Exactly these bits, without a umask.
    #[must_use]
    pub fn exactly(mode: u32) -> Self {
        Self { mode, umask: 0 }
    }
}

/// Files other than directories, regular files and symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialFile {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device of this major (12 bits) and minor number (20 bits).
    CharacterDevice(u32, u32),
    /// A block device of this major (12 bits) and minor number (20 bits).
    BlockDevice(u32, u32),
}

/// The requested properties of a new file.
pub(crate) struct Plan<'p> {
    pub kind: FileKind,
    pub mode: NewMode,
    pub rdev: Option<u64>,
    pub target: Option<&'p [u8]>,
    pub links: u64,
}

impl Plan<'_> {
    pub(crate) fn of(kind: FileKind, mode: NewMode) -> Self {
        Self {
            kind,
            mode,
            rdev: None,
            target: None,
            links: if kind == FileKind::Directory { 2 } else { 1 },
        }
    }
}

/// A new file with all its attributes, computed before its transaction begins.
pub(crate) struct Draft {
    pub kind: FileKind,
    pub state: NodeState,
    pub acl: Vec<Ace>,
    target: Option<Vec<u8>>,
    /// The extended attributes that the file starts with.
    pub xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl FileSystem {
    /// Creates a regular file, or opens an existing one if `is_exclusive` is not set.
    ///
    /// Returns whether it was created.
    ///
    /// # Errors
    /// [`FileError::Exists`], and what [`FileError`] lists for names, flags, quotas and space.
    pub fn create(
        &self,
        caller: &Caller,
        directory: &Node,
        name: &[u8],
        mode: NewMode,
        is_exclusive: bool,
    ) -> Result<(Node, bool), FileError> {
        let made = self.create_or_find(caller, directory, name, mode, is_exclusive)?;
        self.settle()?;
        Ok(made)
    }

    fn create_or_find(
        &self,
        caller: &Caller,
        directory: &Node,
        name: &[u8],
        mode: NewMode,
        is_exclusive: bool,
    ) -> Result<(Node, bool), FileError> {
        loop {
            let plan = Plan::of(FileKind::Regular, mode);
            match self.make(caller, directory.for_change()?, name, plan) {
                Err(FileError::Exists) if !is_exclusive => {}
                Err(error) => return Err(error),
                Ok(node) => return Ok((beside(directory, node), true)),
            }
            match directory.lookup(name) {
                // The file was removed in between: retry.
                Err(FileError::NotFound) if name != b".zfs" => {}
                Err(FileError::NotFound) => return Err(FileError::Exists),
                found => return found.map(|node| (node, false)),
            }
        }
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; [`FileError::TooManyLinks`].
    pub fn make_directory(
        &self,
        caller: &Caller,
        directory: &Node,
        name: &[u8],
        mode: NewMode,
    ) -> Result<Node, FileError> {
        let plan = Plan::of(FileKind::Directory, mode);
        self.make_and_settle(caller, directory, name, plan)
    }

    /// Creates a pipe, socket or device node.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn make_special(
        &self,
        caller: &Caller,
        directory: &Node,
        name: &[u8],
        what: SpecialFile,
        mode: NewMode,
    ) -> Result<Node, FileError> {
        let device = |major: u32, minor: u32| {
            if major > 0xfff || minor > 0xf_ffff {
                return Err(FileError::invalid("device numbers have 12 and 20 bits"));
            }
            Ok(Some(u64::from(major) << 20 | u64::from(minor)))
        };
        let (kind, rdev) = match what {
            SpecialFile::Fifo => (FileKind::Fifo, None),
            SpecialFile::Socket => (FileKind::Socket, None),
            SpecialFile::CharacterDevice(major, minor) => {
                (FileKind::CharacterDevice, device(major, minor)?)
            }
            SpecialFile::BlockDevice(major, minor) => {
                (FileKind::BlockDevice, device(major, minor)?)
            }
        };
        let plan = Plan {
            rdev,
            ..Plan::of(kind, mode)
        };
        self.make_and_settle(caller, directory, name, plan)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; [`FileError::NameTooLong`] also for a target of more than
    /// [`TARGET_BYTES_MAX`] bytes.
    pub fn make_symlink(
        &self,
        caller: &Caller,
        directory: &Node,
        name: &[u8],
        target: &[u8],
    ) -> Result<Node, FileError> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(FileError::invalid(
                "a link's target is not empty and has no zero byte",
            ));
        }
        let plan = Plan {
            target: Some(target),
            ..Plan::of(FileKind::Symlink, NewMode::exactly(0o777))
        };
        self.make_and_settle(caller, directory, name, plan)
    }

    /// Creates a regular file without a name.
    ///
    /// The file inherits from `directory`. [`FileSystem::link`] can give it a name; otherwise it is freed
    /// with its last handle.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn create_tmpfile(
        &self,
        caller: &Caller,
        directory: &Node,
        mode: NewMode,
    ) -> Result<Node, FileError> {
        let writing = self.writing()?;
        let parent_node = directory;
        let directory = parent_node.for_change()?;
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        self.check_writable()?;
        let _change = directory.lock_changes();
        let parent = directory.state();
        if parent.links == 0 {
            return Err(FileError::NotFound);
        }
        let plan = Plan {
            links: 0,
            ..Plan::of(FileKind::Regular, mode)
        };
        let now = writing.now();
        let draft = self.draft(caller, directory, &parent, plan, now)?;
        let _unlinked = writing.unlinked().lock_table();
        let tx = self.begin(NODE_BYTES + 2 * ENTRY_BYTES)?;
        let node = self.realise(&tx, draft)?;
        if let Err(error) = writing.unlinked().add(&tx, node.id()) {
            self.discard(&tx, node);
            return Err(error);
        }
        node.set_linkable(true);
        // Only the caller's handle keeps it in memory.
        writing.cache().release(node.id());
        Ok(beside(parent_node, node))
    }

    fn make_and_settle(
        &self,
        caller: &Caller,
        directory: &Node,
        name: &[u8],
        plan: Plan<'_>,
    ) -> Result<Node, FileError> {
        let made = self.make(caller, directory.for_change()?, name, plan)?;
        self.settle()?;
        Ok(beside(directory, made))
    }

    pub(crate) fn make(
        &self,
        caller: &Caller,
        directory: &OpenNode,
        name: &[u8],
        plan: Plan<'_>,
    ) -> Result<OpenNode, FileError> {
        let writing = self.writing()?;
        if !directory.is_directory() {
            return Err(FileError::NotADirectory);
        }
        self.check_new_name(directory.id(), name)?;
        self.check_writable()?;
        let _change = directory.lock_changes();
        let mut parent = directory.state();
        if parent.links == 0 {
            return Err(FileError::NotFound);
        }
        if self.find(directory, name)?.is_some() {
            return Err(FileError::Exists);
        }
        self.check_directory(&parent, true)?;
        if plan.kind == FileKind::Directory && parent.links >= LINKS_MAX {
            return Err(FileError::TooManyLinks);
        }
        self.check_attributes(&[directory])?;
        let now = writing.now();
        let target = plan.target.unwrap_or_default();
        let draft = self.draft(caller, directory, &parent, plan, now)?;
        let kind = draft.kind;
        let xattrs = draft.xattrs.clone();
        let tx = self.begin(3 * NODE_BYTES + 2 * ENTRY_BYTES)?;
        let (old, directories) = (parent, i64::from(kind == FileKind::Directory));
        parent.entries_changed(1, directories, now);
        self.store(&tx, directory, parent, &Lists::default())?;
        let undo = |error| self.undo_store(&tx, directory, old, error);
        let node = self.realise(&tx, draft).map_err(undo)?;
        if let Err(error) = self.add_entry(&tx, directory, name, node.id(), kind) {
            self.discard(&tx, node);
            return Err(undo(error));
        }
        let unfinished = tx.unfinished();
        self.record_create(&tx, directory.id(), &node, name, target);
        for (name, value) in xattrs {
            let is_packed = self.has_packed(&node, name)?;
            self.record_xattr(&tx, &node, name, Some(&value), is_packed);
        }
        // The file's own records follow the record that creates it.
        unfinished.done();
        Ok(node)
    }

    /// Computes a new file's attributes. The caller holds the directory's change lock.
    pub(crate) fn draft(
        &self,
        caller: &Caller,
        directory: &OpenNode,
        parent: &NodeState,
        plan: Plan<'_>,
        now: Timestamp,
    ) -> Result<Draft, FileError> {
        let writing = self.writing()?;
        let settings = self.settings();
        let kind = plan.kind;
        let is_directory = kind == FileKind::Directory;
        let inherits_group = parent.mode & SET_GROUP != 0;
        let gid = if inherits_group {
            parent.gid
        } else {
            Fuid(u64::from(caller.gid))
        };
        let mut permissions = u64::from(plan.mode.mode) & 0o7777;
        let mut xattrs: Vec<(&'static [u8], Vec<u8>)> = vec![];
        let default = match (settings.acl_kind, kind) {
            (_, FileKind::Symlink) | (AclKind::Off | AclKind::Nfs4, _) => None,
            // During replay, the lists of a new file come from their own records.
            (AclKind::Posix, _) if self.is_replaying() => None,
            (AclKind::Posix, _) => self.default_acl(directory)?,
        };
        if let Some(default) = default {
            let access = default.for_new_file(permissions & 0o777);
            permissions = (permissions & !0o777) | access.mode();
            if is_directory {
                xattrs.push((POSIX_ACL_DEFAULT, default.encode()));
            }
            if !access.is_the_mode() {
                xattrs.push((POSIX_ACL_ACCESS, access.encode()));
            }
        } else if kind != FileKind::Symlink {
            permissions &= !u64::from(plan.mode.umask);
        }
        if is_directory && inherits_group {
            permissions |= SET_GROUP;
        } else if !is_directory
            && permissions & SET_GROUP != 0
            && !caller.is_privileged
            && !caller.is_in_group(gid.0)
        {
            permissions &= !SET_GROUP;
        }
        let mode = kind.entry_type() << 12 | permissions;
        let inherits_acl = parent.flags.contains(FileFlags::INHERIT_ACE)
            && !parent.flags.contains(FileFlags::XATTR);
        let (acl, mode) = if inherits_acl {
            let entries = writing.tables().acl(&directory.object)?;
            nfs4_acl::inherited(&entries, mode, is_directory, settings.acl_inherit)
        } else {
            (nfs4_acl::trivial_acl(mode, is_directory), mode)
        };
        let mut flags = FileFlags::ARCHIVE | FileFlags::AV_MODIFIED | nfs4_acl::hints(&acl);
        if is_directory {
            flags |= FileFlags::ACL_AUTO_INHERIT;
        }
        // Only during replay: a parent that is an extended attribute directory passes this flag on.
        flags |= parent.flags & FileFlags::XATTR;
        let project = self.project_of_new(parent, kind, &mut flags);
        let uid = Fuid(u64::from(caller.uid));
        self.check_owner_quotas(uid, gid, project.unwrap_or(0), true)?;
        let size = match (kind, plan.target) {
            (FileKind::Directory, _) => 2,
            (_, Some(target)) => target.len() as u64,
            _ => 0,
        };
        Ok(Draft {
            kind,
            state: NodeState {
                mode,
                size,
                // Set when the transaction is known.
                generation: 0,
                uid,
                gid,
                parent: directory.id(),
                flags,
                atime: now,
                mtime: now,
                ctime: now,
                crtime: now,
                links: plan.links,
                project,
                rdev: plan.rdev,
                xattr_directory: None,
            },
            acl,
            target: plan.target.map(<[u8]>::to_vec),
            xattrs,
        })
    }

    fn project_of_new(
        &self,
        parent: &NodeState,
        kind: FileKind,
        flags: &mut FileFlags,
    ) -> Option<u64> {
        if !self.has_projects() || !matches!(kind, FileKind::Regular | FileKind::Directory) {
            return None;
        }
        *flags |= FileFlags::PROJECT_ID;
        if parent.flags.contains(FileFlags::PROJECT_INHERIT) {
            *flags |= FileFlags::PROJECT_INHERIT;
            return Some(parent.project_or_zero());
        }
        Some(0)
    }

    fn default_acl(&self, directory: &OpenNode) -> Result<Option<PosixAcl>, FileError> {
        let Some(value) = self.stored_xattr(directory, POSIX_ACL_DEFAULT)? else {
            return Ok(None);
        };
        PosixAcl::decode(&value)
            .map_err(|_| self.corrupt(directory.id(), "its default list is not valid"))
    }

    /// Creates the object of a draft. On failure, nothing remains.
    pub(crate) fn realise(
        &self,
        tx: &Transaction,
        mut draft: Draft,
    ) -> Result<OpenNode, FileError> {
        let writing = self.writing()?;
        draft.state.generation = tx.txg().0;
        let wanted = self.force(&mut draft);
        let version = self.version_in(tx);
        let form = AttributeForm::of_version(version);
        draft.state.keep_to_version(version, FileFlags::empty());
        let state = draft.state;
        let object = self.new_object(tx, draft.kind, wanted)?;
        let id = object.id();
        let made = writing.cache().reserve(id).and_then(|reservation| {
            let lists = Lists {
                acl: Some(draft.acl),
                target: draft.target,
                packed_xattrs: None,
            };
            writing
                .tables()
                .write_new(tx, &object, &state.all(&lists), form)?;
            let files = self.weak();
            let inner = Arc::new(NodeInner::new(
                files,
                Arc::clone(&object),
                draft.kind,
                state,
            ));
            for (name, value) in draft.xattrs {
                self.store_xattr(tx, &inner, name, Some(&value))?;
            }
            reservation.fill(&inner);
            Ok(OpenNode { inner })
        });
        if made.is_err() {
            // The transaction commits anyway, so an object without a name must be freed.
            self.free_again(tx, id);
        }
        made
    }

    /// Frees a node that was created but got no name.
    fn discard(&self, tx: &Transaction, node: OpenNode) {
        let id = node.id();
        if let Ok(writing) = self.writing() {
            writing.cache().release(id);
        }
        self.free_again(tx, id);
    }

    fn free_again(&self, tx: &Transaction, id: ObjectId) {
        let unfinished = tx.unfinished();
        let freed = self
            .writing()
            .is_ok_and(|writing| writing.tables().free(tx, id).is_ok());
        if freed {
            unfinished.done();
        }
    }

    /// Allocates an object for a file; for a directory, it also creates the empty table.
    pub(crate) fn new_object(
        &self,
        tx: &Transaction,
        kind: FileKind,
        wanted: Option<(ObjectId, u8)>,
    ) -> Result<Arc<Object>, FileError> {
        let writing = self.writing()?;
        let slots = self.settings().dnode_slots.clamp(1, 32);
        let object_type = match kind {
            FileKind::Directory => ObjectType::DIRECTORY,
            _ => ObjectType::PLAIN_FILE,
        };
        let form = AttributeForm::of_version(self.version_in(tx));
        let set = writing.set();
        let object = match wanted {
            Some((id, slots)) => set.allocate_at(tx, id, file_object(object_type, slots, form))?,
            None => set.allocate(tx, file_object(object_type, slots, form))?,
        };
        if kind == FileKind::Directory {
            let new = NewZap {
                normalisation: self.names().folding(),
                ..NewZap::plain(new_salt(writing.env()))
            };
            zap(&object, tx).create(&new)?;
        }
        Ok(object)
    }
}

/// The handle of a new file in the file system of `directory`.
fn beside(directory: &Node, node: OpenNode) -> Node {
    Node::open(Arc::clone(directory.file_system()), node)
}

/// An object for a file.
///
/// The bonus takes all space of the dnode except one block pointer. The number of block pointers thus stays
/// one, no matter how long the attributes become.
pub(crate) fn file_object(object_type: ObjectType, slots: u8, form: AttributeForm) -> NewObject {
    let bonus_bytes = usize::from(slots) * 512 - 192;
    NewObject::new(object_type)
        .with_slots(slots)
        .with_bonus(form.bonus_type(), vec![0; bonus_bytes])
}

impl NewMode {
    /// The mode after a change of content or owner by someone who may not keep the set-user and set-group bits. As in Linux,
    /// the set-group bit of a file that its group cannot execute has another meaning, and stays.
    pub(crate) fn after_change(mode: u64) -> u64 {
        match mode & 0o010 != 0 {
            true => mode & !(SET_USER | SET_GROUP),
            false => mode & !SET_USER,
        }
    }
}
