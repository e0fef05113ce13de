//! Changes the attributes that `stat` shows.

use crate::FileSystem;
use crate::create::NewMode;
use crate::error::FileError;
use crate::nfs4_acl;
use crate::open_node::OpenNode;
use crate::posix_acl::{POSIX_ACL_ACCESS, PosixAcl};
use crate::quota::QuotaOwner;
use crate::settings::Caller;
use crate::state::{Lists, NodeState};
use crate::version::FUIDS;
use crate::writing::{ENTRY_BYTES, NODE_BYTES};
use crate::{FileKind, Node};
use millpond_sa::{FileFlags, Fuid, Timestamp};

const SET_GROUP: u64 = 0o2000;
/// The project id that is reserved as invalid.
const NO_PROJECT: u32 = u32::MAX;

/// The flags that a caller may set and clear. All others are derived.
pub const SETTABLE_FLAGS: FileFlags = FileFlags::IMMUTABLE
    .union(FileFlags::APPENDONLY)
    .union(FileFlags::NODUMP)
    .union(FileFlags::PROJECT_INHERIT)
    .union(FileFlags::NOUNLINK)
    .union(FileFlags::READONLY)
    .union(FileFlags::HIDDEN)
    .union(FileFlags::SYSTEM)
    .union(FileFlags::ARCHIVE)
    .union(FileFlags::REPARSE)
    .union(FileFlags::OFFLINE)
    .union(FileFlags::SPARSE);

/// A new value for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attribute changes. Fields that are `None` do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The twelve permission bits.
    pub permissions: Option<u32>,
    /// The uid.
    pub uid: Option<u32>,
    /// The gid.
    pub gid: Option<u32>,
    /// The project; only for regular files and directories.
    pub project: Option<u32>,
    /// The length in bytes; only for regular files.
    pub size_bytes: Option<u64>,
    /// The access time.
    pub atime: Option<SetTime>,
    /// The modification time.
    pub mtime: Option<SetTime>,
    /// The flags to set, from [`SETTABLE_FLAGS`].
    pub set_flags: FileFlags,
    /// The flags to clear, from [`SETTABLE_FLAGS`].
    pub clear_flags: FileFlags,
}

impl SetAttributes {
    fn changes_flags(&self) -> bool {
        !(self.set_flags | self.clear_flags).is_empty()
    }
    fn is_empty_but_for_size(&self) -> bool {
        let without = Self {
            size_bytes: None,
            ..*self
        };
        without == Self::default()
    }
}

impl FileSystem {
    /// Changes attributes.
    ///
    /// The front end checks permissions, with two exceptions that are checked here: the file's flags, and
    /// set-user and set-group bits, which unprivileged callers lose. A change of length uses its own
    /// transactions, before the other changes.
    ///
    /// # Errors
    /// [`FileError::NotPermitted`] by the file's flags or the property `aclmode`; [`FileError::Invalid`] and
    /// [`FileError::NotSupported`] for attributes that the file cannot have; quotas and space.
    pub fn set_attributes(
        &self,
        caller: &Caller,
        node: &Node,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        let node = node.for_change()?;
        self.check_writable()?;
        self.try_set_attributes(caller, node, set)?;
        self.settle()
    }

    fn try_set_attributes(
        &self,
        caller: &Caller,
        node: &OpenNode,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        if let Some(size) = set.size_bytes {
            self.set_size(caller, node, size)?;
        }
        if set.is_empty_but_for_size() {
            return Ok(());
        }
        let _change = node.lock_changes();
        let old = node.state();
        self.check_set(caller, &old, set)?;
        let now = writing.now();
        let mut new = old;
        let lists = self.apply(caller, node, &mut new, set, now)?;
        let posix_acl = match set.permissions {
            Some(_) => self.stored_xattr(node, POSIX_ACL_ACCESS)?,
            None => None,
        };
        let mut hidden = vec![];
        if (new.uid, new.gid, new.project) != (old.uid, old.gid, old.project) {
            hidden = self.handed_over_xattrs(&new)?;
        }
        let tx = self.begin(8 * NODE_BYTES + 2 * ENTRY_BYTES)?;
        self.store(&tx, node, new, &lists)?;
        let unfinished = tx.unfinished();
        for (object, old, new) in hidden {
            self.store_hidden(&tx, &object, &old, &new)?;
        }
        self.record_set(&tx, node, (&old, &new), set);
        if let Some(value) = posix_acl
            && let Ok(Some(acl)) = PosixAcl::decode(&value)
        {
            let changed = acl.with_mode(new.mode).encode();
            self.store_xattr(&tx, node, POSIX_ACL_ACCESS, Some(&changed))?;
            let is_packed = self.has_packed(node, POSIX_ACL_ACCESS)?;
            self.record_xattr(&tx, node, POSIX_ACL_ACCESS, Some(&changed), is_packed);
        }
        unfinished.done();
        Ok(())
    }

    fn check_set(
        &self,
        caller: &Caller,
        old: &NodeState,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        let changes_more_than_atime = set.permissions.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.project.is_some()
            || set.mtime.is_some();
        let stays_immutable = !set.clear_flags.contains(FileFlags::IMMUTABLE);
        if self.forbids(old, FileFlags::IMMUTABLE) && stays_immutable && changes_more_than_atime {
            return Err(FileError::NotPermitted);
        }
        if !SETTABLE_FLAGS.contains(set.set_flags | set.clear_flags) {
            return Err(FileError::NotSupported);
        }
        if set.changes_flags() && self.version() < FUIDS {
            let reason = "file systems before version 3 have no such flags: zfs upgrade raises it";
            return Err(FileError::invalid(reason));
        }
        let privileged = FileFlags::IMMUTABLE | FileFlags::APPENDONLY | FileFlags::NOUNLINK;
        let switched = (set.set_flags - old.flags) | (set.clear_flags & old.flags);
        if switched.intersects(privileged) && !caller.is_privileged {
            return Err(FileError::NotPermitted);
        }
        let sets_project = set.project.is_some() || switched.contains(FileFlags::PROJECT_INHERIT);
        if sets_project {
            let has_one = matches!(old.kind(), Some(FileKind::Regular | FileKind::Directory));
            if !has_one || !self.has_projects() {
                return Err(FileError::NotSupported);
            }
            if set.project == Some(NO_PROJECT) {
                return Err(FileError::invalid("no project has this number"));
            }
            if !self.is_replaying() {
                self.complete_accounting_in_background();
            }
        }
        if let Some(uid) = set.uid.filter(|uid| old.uid != Fuid(u64::from(*uid))) {
            self.check_new_owner(QuotaOwner::User, u64::from(uid))?;
        }
        if let Some(gid) = set.gid.filter(|gid| old.gid != Fuid(u64::from(*gid))) {
            self.check_new_owner(QuotaOwner::Group, u64::from(gid))?;
        }
        let project = set.project.map(u64::from);
        if let Some(project) = project.filter(|id| old.project_or_zero() != *id) {
            self.check_new_owner(QuotaOwner::Project, project)?;
        }
        Ok(())
    }

    /// Computes the new attributes. The caller holds the node's change lock.
    fn apply(
        &self,
        caller: &Caller,
        node: &OpenNode,
        new: &mut NodeState,
        set: &SetAttributes,
        now: Timestamp,
    ) -> Result<Lists, FileError> {
        let mut lists = Lists::default();
        let is_directory = node.is_directory();
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        new.uid = set.uid.map_or(new.uid, |uid| Fuid(u64::from(uid)));
        new.gid = set.gid.map_or(new.gid, |gid| Fuid(u64::from(gid)));
        if changes_owner && !caller.is_privileged && !is_directory {
            new.mode = NewMode::after_change(new.mode);
        }
        if let Some(permissions) = set.permissions {
            let mut permissions = u64::from(permissions) & 0o7777;
            if !caller.is_privileged && !caller.is_in_group(new.gid.0) {
                permissions &= !SET_GROUP;
            }
            let old = new.mode;
            new.mode = (new.mode & !0o7777) | permissions;
            // A write or a change of owner may have cleared bits without `chmod`, which leaves the list alone. Their
            // records look the same.
            let may_be_cleared = self.is_replaying() && (old ^ new.mode) & 0o777 == 0;
            if !may_be_cleared {
                self.change_list(node, new, &mut lists)?;
            }
        }
        if set.changes_flags() {
            new.flags = (new.flags - set.clear_flags) | set.set_flags;
        }
        if let Some(project) = set.project {
            new.project = Some(u64::from(project));
            new.flags |= FileFlags::PROJECT_ID;
        } else if set.set_flags.contains(FileFlags::PROJECT_INHERIT) && new.project.is_none() {
            new.project = Some(0);
            new.flags |= FileFlags::PROJECT_ID;
        }
        let moment = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        new.atime = set.atime.map_or(new.atime, moment);
        new.mtime = set.mtime.map_or(new.mtime, moment);
        let keeps_archive = set.clear_flags.contains(FileFlags::ARCHIVE);
        new.attributes_changed(now);
        if keeps_archive {
            new.flags -= FileFlags::ARCHIVE;
        }
        Ok(lists)
    }

    /// Updates the NFSv4 ACL after a change of mode.
    pub(crate) fn change_list(
        &self,
        node: &OpenNode,
        new: &mut NodeState,
        lists: &mut Lists,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let property = self.settings().acl_mode;
        let is_directory = node.is_directory();
        let acl = if new.flags.contains(FileFlags::ACL_TRIVIAL) {
            nfs4_acl::trivial_acl(new.mode, is_directory)
        } else {
            let old = writing.tables().acl(&node.object)?;
            match nfs4_acl::after_chmod(&old, new.mode, is_directory, property) {
                Some(acl) => acl,
                // What is replayed was allowed when it was done.
                None if self.is_replaying() => return Ok(()),
                None => return Err(FileError::NotPermitted),
            }
        };
        new.flags = (new.flags - nfs4_acl::ACL_FLAGS) | nfs4_acl::hints(&acl);
        lists.acl = Some(acl);
        Ok(())
    }
}
