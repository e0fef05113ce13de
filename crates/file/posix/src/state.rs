//! A file's attributes in memory.

use crate::FileKind;
use crate::version::FUIDS;
use millpond_ondisk::ObjectId;
use millpond_sa::value::{time, word};
use millpond_sa::{Ace, Attributes, FileFlags, Fuid, SaAttribute, SaError, Timestamp};

/// The flags that exist since version 3.
const FLAGS_OF_FUIDS: FileFlags = FileFlags::from_bits_retain(!0xffff_ffff);

/// The current values of a file's fixed-size attributes.
///
/// Attributes of variable size (link targets, lists) are read from the object on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub mode: u64,
    pub size: u64,
    pub generation: u64,
    pub uid: Fuid,
    pub gid: Fuid,
    pub parent: ObjectId,
    pub flags: FileFlags,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub crtime: Timestamp,
    pub links: u64,
    pub project: Option<u64>,
    pub rdev: Option<u64>,
    pub xattr_directory: Option<ObjectId>,
}

/// Attributes of variable size that an operation sets.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub acl: Option<Vec<Ace>>,
    pub target: Option<Vec<u8>>,
    pub packed_xattrs: Option<Vec<u8>>,
}

/// A stored attribute and its new value.
pub(crate) type AttributeChange = (SaAttribute, Vec<u8>);

impl NodeState {
    /// Reads what a file that may change needs.
    pub(crate) fn read(attributes: &Attributes) -> Result<Self, SaError> {
        attributes.check_changeable()?;
        Ok(Self {
            parent: attributes.parent()?,
            xattr_directory: match attributes.xattr_directory() {
                // The file can still be read, changed and deleted. A directory that the lost block names
                // is never replaced: see `FileSystem::xattr_directory`.
                Err(_) if attributes.has_lost_spill() => None,
                found => found?,
            },
            ..Self::read_shown(attributes)?
        })
    }

    /// Reads only what `stat` shows, so that damage to the other attributes does not hide a file.
    pub(crate) fn read_shown(attributes: &Attributes) -> Result<Self, SaError> {
        let kind = FileKind::from_mode(attributes.mode()?);
        let is_device = matches!(
            kind,
            Some(FileKind::CharacterDevice | FileKind::BlockDevice)
        );
        let flags = attributes.flags()?;
        Ok(Self {
            mode: attributes.mode()?,
            size: attributes.size()?,
            generation: attributes.generation()?,
            uid: attributes.uid()?,
            gid: attributes.gid()?,
            parent: ObjectId(0),
            flags,
            atime: attributes.atime()?,
            mtime: attributes.mtime()?,
            ctime: attributes.ctime()?,
            crtime: attributes.crtime()?,
            links: attributes.links()?,
            // What a file does not have must not be looked for in a lost spill block.
            project: match flags.contains(FileFlags::PROJECT_ID) || !attributes.has_lost_spill() {
                true => attributes.project_id()?,
                false => None,
            },
            // Old znodes of all file types have this field.
            rdev: match is_device {
                true => attributes.rdev()?,
                false => None,
            },
            xattr_directory: None,
        })
    }

    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }
    /// The project for quotas and moves. Files without one belong to project 0.
    pub(crate) fn project_or_zero(&self) -> u64 {
        self.project.unwrap_or(0)
    }
    /// Prepares an old znode for being stored as system attributes.
    pub(crate) fn leave_old_form(&mut self, has_projects: bool) {
        self.flags -= FileFlags::BONUS_SCANSTAMP;
        let may_have_one = matches!(self.kind(), Some(FileKind::Regular | FileKind::Directory));
        if has_projects && may_have_one && self.project.is_none() {
            self.project = Some(0);
            self.flags |= FileFlags::PROJECT_ID;
        }
    }
    /// Takes back new flags that a file system of this version does not have. `old` are those that the file had.
    pub(crate) fn keep_to_version(&mut self, version: u64, old: FileFlags) {
        if version < FUIDS {
            self.flags = self.flags.difference(FLAGS_OF_FUIDS) | old.intersection(FLAGS_OF_FUIDS);
        }
    }
    /// Records a change of content or of a directory's entries.
    pub(crate) fn content_changed(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
        self.flags |= FileFlags::ARCHIVE | FileFlags::AV_MODIFIED;
    }
    /// Records a change of attributes only.
    pub(crate) fn attributes_changed(&mut self, now: Timestamp) {
        self.ctime = now;
        self.flags |= FileFlags::ARCHIVE;
    }

    /// Every attribute of a new file, in the required order.
    pub(crate) fn all(&self, lists: &Lists) -> Vec<AttributeChange> {
        let mut changes = vec![
            (SaAttribute::Mode, word(self.mode)),
            (SaAttribute::Size, word(self.size)),
            (SaAttribute::Generation, word(self.generation)),
            (SaAttribute::Uid, word(self.uid.0)),
            (SaAttribute::Gid, word(self.gid.0)),
            (SaAttribute::Parent, word(self.parent.0)),
            (SaAttribute::Flags, word(self.flags.bits())),
            (SaAttribute::Atime, time(self.atime)),
            (SaAttribute::Mtime, time(self.mtime)),
            (SaAttribute::Ctime, time(self.ctime)),
            (SaAttribute::Crtime, time(self.crtime)),
            (SaAttribute::Links, word(self.links)),
        ];
        changes.extend(self.project.map(|id| (SaAttribute::ProjectId, word(id))));
        changes.extend(self.rdev.map(|id| (SaAttribute::Rdev, word(id))));
        lists.append_to(&mut changes);
        changes
    }

    /// The attributes that differ from `old`, and the lists that are set.
    pub(crate) fn changes_from(&self, old: &NodeState, lists: &Lists) -> Vec<AttributeChange> {
        let mut changes = vec![];
        let mut words = |attribute, new: u64, old: u64| {
            if new != old {
                changes.push((attribute, word(new)));
            }
        };
        words(SaAttribute::Mode, self.mode, old.mode);
        words(SaAttribute::Size, self.size, old.size);
        words(SaAttribute::Uid, self.uid.0, old.uid.0);
        words(SaAttribute::Gid, self.gid.0, old.gid.0);
        words(SaAttribute::Parent, self.parent.0, old.parent.0);
        words(SaAttribute::Flags, self.flags.bits(), old.flags.bits());
        words(SaAttribute::Links, self.links, old.links);
        let times = [
            (SaAttribute::Atime, self.atime, old.atime),
            (SaAttribute::Mtime, self.mtime, old.mtime),
            (SaAttribute::Ctime, self.ctime, old.ctime),
            (SaAttribute::Crtime, self.crtime, old.crtime),
        ];
        let times = times.into_iter().filter(|(_, new, old)| new != old);
        changes.extend(times.map(|(attribute, new, _)| (attribute, time(new))));
        if self.project != old.project {
            changes.extend(self.project.map(|id| (SaAttribute::ProjectId, word(id))));
        }
        if self.xattr_directory != old.xattr_directory {
            let id = self.xattr_directory.unwrap_or(ObjectId(0));
            changes.push((SaAttribute::Xattr, word(id.0)));
        }
        lists.append_to(&mut changes);
        changes
    }
}

impl Lists {
    pub(crate) fn of_acl(acl: Vec<Ace>) -> Self {
        Self {
            acl: Some(acl),
            ..Self::default()
        }
    }
    fn append_to(&self, changes: &mut Vec<AttributeChange>) {
        if let Some(acl) = &self.acl {
            // ACLs come from the disk or from this crate, and both are consistent.
            let bytes = millpond_ondisk::acl::encode_acl(acl).unwrap_or_default();
            changes.push((SaAttribute::DaclCount, word(acl.len() as u64)));
            changes.push((SaAttribute::DaclAces, bytes));
        }
        if let Some(target) = &self.target {
            changes.push((SaAttribute::Symlink, target.clone()));
        }
        if let Some(list) = &self.packed_xattrs {
            changes.push((SaAttribute::Dxattr, list.clone()));
        }
    }
}
