//! Records of objects created in a directory.

use crate::{DecodeError, ObjectId, Reader, Writer};

use super::acl::{AclHeader, LogAcl, put_strings, string, strings};
use super::attributes::{LogAttributes, implied_domains};
use super::{fail, kind};

/// The kind of a created object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreateKind {
    /// A file of any other type.
    File,
    /// A directory.
    Directory,
    /// The extended attribute directory of a file; it has no name.
    XattrDirectory,
    /// A symbolic link.
    SymbolicLink,
}

/// An object id, and the number of 512-byte slots of its dnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SizedObject {
    /// The object.
    pub object: ObjectId,
    /// The number of slots of its dnode, 1 to 256.
    pub slots: u16,
}

impl SizedObject {
    pub(super) fn from_word(word: u64) -> Self {
        Self {
            object: ObjectId(word & ((1 << 48) - 1)),
            slots: u16::try_from(word >> 56)
                .unwrap_or(u16::MAX)
                .saturating_add(1),
        }
    }
    pub(super) fn to_word(self) -> u64 {
        let extra = u64::from(self.slots.saturating_sub(1) & 0xff);
        (self.object.0 & ((1 << 48) - 1)) | extra << 56
    }
}

/// The object that a record creates: a file, or the whiteout of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreatedObject {
    /// Its number and size.
    pub id: SizedObject,
    /// Type and permissions.
    pub mode: u64,
    /// Owner; above 32 bits, the upper half is an index into the domains.
    pub uid: u64,
    /// Group, as for the owner.
    pub gid: u64,
    /// Its generation.
    pub generation: u64,
    /// Creation time in seconds and nanoseconds; used for all four timestamps of the new object.
    pub creation_time: [u64; 2],
    /// Device number.
    pub device: u64,
}

impl CreatedObject {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: SizedObject::from_word(reader.u64()?),
            mode: reader.u64()?,
            uid: reader.u64()?,
            gid: reader.u64()?,
            generation: reader.u64()?,
            creation_time: [reader.u64()?, reader.u64()?],
            device: reader.u64()?,
        })
    }
    pub(super) fn write(&self, writer: &mut Writer) {
        let id = self.id.to_word();
        writer.put_words(&[id, self.mode, self.uid, self.gid, self.generation]);
        writer.put_words(&self.creation_time);
        writer.put_u64(self.device);
    }
}

/// Creates an object in a directory. Page `docs/format/intent-log-records.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRecord<'a> {
    /// The kind.
    pub kind: CreateKind,
    /// The directory; for [`CreateKind::XattrDirectory`] the file.
    pub directory: ObjectId,
    /// The new object.
    pub object: CreatedObject,
    /// Further attributes.
    pub attributes: Option<LogAttributes>,
    /// The access control list, which has its own domains.
    pub acl: Option<LogAcl<'a>>,
    /// Names of foreign domains, if there is no list.
    pub domains: Vec<&'a [u8]>,
    /// The name.
    pub name: &'a [u8],
    /// The target of a symbolic link; empty otherwise.
    pub target: &'a [u8],
}

/// The parts of a record with this type number: kind, whether it has a list, whether it has attributes.
fn parts(number: u64) -> Option<(CreateKind, bool, bool)> {
    Some(match number {
        kind::CREATE => (CreateKind::File, false, false),
        kind::MKDIR => (CreateKind::Directory, false, false),
        kind::MKXATTR => (CreateKind::XattrDirectory, false, false),
        kind::SYMLINK => (CreateKind::SymbolicLink, false, false),
        kind::CREATE_ACL => (CreateKind::File, true, false),
        kind::CREATE_ATTR => (CreateKind::File, false, true),
        kind::CREATE_ACL_ATTR => (CreateKind::File, true, true),
        kind::MKDIR_ACL => (CreateKind::Directory, true, false),
        kind::MKDIR_ATTR => (CreateKind::Directory, false, true),
        kind::MKDIR_ACL_ATTR => (CreateKind::Directory, true, true),
        _ => return None,
    })
}

impl<'a> CreateRecord<'a> {
    /// Whether a type number is that of a create record.
    pub(super) fn has_number(number: u64) -> bool {
        parts(number).is_some()
    }
    /// The type number, or an error if no record can express it.
    pub(super) fn number(&self) -> Result<u64, DecodeError> {
        (0..=kind::CLONE_RANGE)
            .find(|number| {
                parts(*number) == Some((self.kind, self.acl.is_some(), self.attributes.is_some()))
            })
            .ok_or_else(|| fail("no record has such parts", 0))
    }
    pub(super) fn read(number: u64, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (kind, has_acl, has_attributes) =
            parts(number).ok_or_else(|| fail("type does not exist", 0))?;
        let directory = ObjectId(reader.u64()?);
        let object = CreatedObject::read(reader)?;
        let header = has_acl.then(|| AclHeader::read(reader)).transpose()?;
        let attributes = has_attributes
            .then(|| LogAttributes::read(reader))
            .transpose()?;
        let acl = header.map(|header| header.read_rest(reader)).transpose()?;
        let domains = match (&acl, kind) {
            (None, CreateKind::File | CreateKind::Directory | CreateKind::XattrDirectory) => {
                strings(reader, implied_domains(object.uid, object.gid))?
            }
            _ => Vec::new(),
        };
        let name = string(reader)?;
        let target = match kind {
            CreateKind::SymbolicLink => string(reader)?,
            _ => &[],
        };
        Ok(Self {
            kind,
            directory,
            object,
            attributes,
            acl,
            domains,
            name,
            target,
        })
    }
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put_u64(self.directory.0);
        self.object.write(writer);
        if let Some(acl) = &self.acl {
            acl.write_header(writer);
        }
        if let Some(attributes) = &self.attributes {
            attributes.write(writer);
        }
        if let Some(acl) = &self.acl {
            acl.write_rest(writer);
        }
        put_strings(writer, &self.domains);
        put_strings(writer, &[self.name]);
        if self.kind == CreateKind::SymbolicLink {
            put_strings(writer, &[self.target]);
        }
    }
}
