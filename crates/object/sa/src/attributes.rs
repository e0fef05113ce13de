//! The attributes of one file.

use crate::form::{Form, Spill};
use crate::{Ace, FileFlags, Fuid, SaAttribute, SaError, SaRegistry, Timestamp};
use millpond_env::sync::Arc;
use millpond_ondisk::acl::decode_acl;
use millpond_ondisk::znode::ZnodePhys;
use millpond_ondisk::{DecodeError, Endian, ObjectId, Reader};
use std::borrow::Cow;

/// The longest symlink target that is read, in bytes. No system creates targets longer than 4096.
const TARGET_BYTES_MAX: u64 = 64 << 10;
/// The longest access control list in a separate object, in bytes.
const EXTERNAL_ACL_BYTES_MAX: u64 = 4 << 20;
/// The longest target in the tail of an old znode: 320 bytes of bonus less the znode's 264.
pub(crate) const TAIL_TARGET_BYTES_MAX: u64 = 320 - 264;
pub(crate) const MODE_TYPE: u64 = 0o170_000;
pub(crate) const MODE_SYMLINK: u64 = 0o120_000;

/// A file's attributes at the time they were read. Holds a copy of its bonus, and its spill block shared with
/// the cache.
///
/// A lost spill block costs only the attributes in it. Their getters fail; those in the bonus work.
#[derive(Debug, Clone)]
pub struct Attributes {
    registry: Arc<SaRegistry>,
    object: ObjectId,
    form: Form,
}

impl Attributes {
    pub(crate) fn new(registry: Arc<SaRegistry>, object: ObjectId, form: Form) -> Self {
        Self {
            registry,
            object,
            form,
        }
    }

    /// The id of the file's object.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        self.object
    }
    /// Whether the attributes have the fixed form of file systems before version 5.
    #[must_use]
    pub fn is_old_znode(&self) -> bool {
        matches!(self.form, Form::Znode(_))
    }

    /// The object that holds an old znode's access control list, if the list does not fit into the znode.
    #[must_use]
    pub fn external_acl(&self) -> Option<ObjectId> {
        let id = self.old_znode()?.acl.external;
        (id != ObjectId(0)).then_some(id)
    }
    pub(crate) fn old_znode(&self) -> Option<&ZnodePhys> {
        match &self.form {
            Form::Znode(znode) => Some(znode),
            Form::Buffers { .. } => None,
        }
    }

    /// `st_mode`: file type and permissions.
    ///
    /// # Errors
    /// [`SaError::Missing`] or [`SaError::Corrupt`], as with every getter of something that all
    /// files have.
    pub fn mode(&self) -> Result<u64, SaError> {
        self.word(SaAttribute::Mode, |znode| znode.mode)
    }
    /// Length in bytes. For a directory, the number of its entries plus 2.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn size(&self) -> Result<u64, SaError> {
        self.word(SaAttribute::Size, |znode| znode.size)
    }
    /// The txg in which the file was created. Distinguishes files that reuse an object id.
    ///
    /// # Errors
    /// As [`Attributes::mode`]. Also if it is 0, which no file has.
    pub fn generation(&self) -> Result<u64, SaError> {
        match self.word(SaAttribute::Generation, |znode| znode.generation)? {
            0 => Err(self.corrupt("generation is 0")),
            generation => Ok(generation),
        }
    }
    /// Owner.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn uid(&self) -> Result<Fuid, SaError> {
        self.word(SaAttribute::Uid, |znode| znode.uid.0).map(Fuid)
    }
    /// Group.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn gid(&self) -> Result<Fuid, SaError> {
        self.word(SaAttribute::Gid, |znode| znode.gid.0).map(Fuid)
    }
    /// A directory that holds or held a link to the file. For an xattr directory, the file that it belongs
    /// to.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn parent(&self) -> Result<ObjectId, SaError> {
        self.word(SaAttribute::Parent, |znode| znode.parent.0)
            .map(ObjectId)
    }
    /// Link count.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn links(&self) -> Result<u64, SaError> {
        self.word(SaAttribute::Links, |znode| znode.links)
    }
    /// Flags.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn flags(&self) -> Result<FileFlags, SaError> {
        self.word(SaAttribute::Flags, |znode| znode.flags.bits())
            .map(FileFlags::from_bits_retain)
    }
    /// Last access.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn atime(&self) -> Result<Timestamp, SaError> {
        self.time(SaAttribute::Atime, |znode| znode.atime)
    }
    /// Last change of the content.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn mtime(&self) -> Result<Timestamp, SaError> {
        self.time(SaAttribute::Mtime, |znode| znode.mtime)
    }
    /// Last change of content or attributes.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn ctime(&self) -> Result<Timestamp, SaError> {
        self.time(SaAttribute::Ctime, |znode| znode.ctime)
    }
    /// Creation time.
    ///
    /// # Errors
    /// As [`Attributes::mode`].
    pub fn crtime(&self) -> Result<Timestamp, SaError> {
        self.time(SaAttribute::Crtime, |znode| znode.crtime)
    }

    /// Device number as stored. Files other than devices have none or 0.
    ///
    /// # Errors
    /// [`SaError::Corrupt`] if it exists but is not 8 bytes long.
    pub fn rdev(&self) -> Result<Option<u64>, SaError> {
        self.optional_word(SaAttribute::Rdev, |znode| Some(znode.rdev))
    }
    /// The hidden directory of extended attributes.
    ///
    /// # Errors
    /// As [`Attributes::rdev`].
    pub fn xattr_directory(&self) -> Result<Option<ObjectId>, SaError> {
        let id = self.optional_word(SaAttribute::Xattr, |znode| Some(znode.xattr.0))?;
        Ok(id.filter(|id| *id != 0).map(ObjectId))
    }
    /// Project id. Only files and directories created or changed since projects exist have one.
    ///
    /// # Errors
    /// As [`Attributes::rdev`].
    pub fn project_id(&self) -> Result<Option<u64>, SaError> {
        self.optional_word(SaAttribute::ProjectId, |_| None)
    }
    /// The stamp of a virus scanner.
    ///
    /// # Errors
    /// As [`Attributes::rdev`], 32 bytes.
    pub fn scanstamp(&self) -> Result<Option<[u8; 32]>, SaError> {
        if let Form::Znode(znode) = &self.form {
            return Ok(znode.scanstamp());
        }
        self.raw(SaAttribute::Scanstamp)?
            .map(|(bytes, endian)| Reader::new("scanstamp", bytes, endian).array())
            .transpose()
            .map_err(|error| self.registry.corrupt(self.object, error))
    }
    /// Extended attributes stored among the system attributes: a packed name/value list, at most 65535 bytes.
    ///
    /// # Errors
    /// As [`Attributes::raw`].
    pub fn xattr_list(&self) -> Result<Option<&[u8]>, SaError> {
        Ok(self.raw(SaAttribute::Dxattr)?.map(|(bytes, _)| bytes))
    }
    /// The target of a symbolic link, at most 64 KiB. `None` for other files. For a long target of an old
    /// znode this reads a block.
    ///
    /// # Errors
    /// If it is too long, missing, or cannot be read.
    pub fn symlink_target(&self) -> Result<Option<Cow<'_, [u8]>>, SaError> {
        if self.mode()? & MODE_TYPE != MODE_SYMLINK {
            return Ok(None);
        }
        let Form::Znode(znode) = &self.form else {
            let (target, _) = self
                .raw(SaAttribute::Symlink)?
                .ok_or_else(|| self.missing(SaAttribute::Symlink))?;
            return Ok(Some(Cow::Borrowed(target)));
        };
        if znode.size > TARGET_BYTES_MAX {
            return Err(self.corrupt("symlink target above 64 KiB"));
        }
        // Bounded just above.
        let length = znode.size as usize;
        if znode.size <= TAIL_TARGET_BYTES_MAX {
            let target = znode.tail.get(..length);
            let target = target.ok_or_else(|| self.corrupt("symlink target is cut off"))?;
            return Ok(Some(Cow::Borrowed(target)));
        }
        let (target, _) = self.registry.bytes().read(self.object, length)?;
        Ok(Some(Cow::Owned(target)))
    }
    /// The NFSv4 access control list. For a long list of an old znode this reads an object. `None` if the
    /// file has no list, which no writer produces.
    ///
    /// # Errors
    /// If the entries contradict their count or cannot be read.
    pub fn acl(&self) -> Result<Option<Vec<Ace>>, SaError> {
        let corrupt = |error| self.registry.corrupt(self.object, error);
        if let Form::Znode(znode) = &self.form {
            if let Some(entries) = znode.acl.embedded_entries().map_err(corrupt)? {
                return Ok(Some(entries));
            }
            let length = znode.acl.length_bytes();
            if length > EXTERNAL_ACL_BYTES_MAX {
                return Err(self.corrupt("access control list above 4 MiB"));
            }
            let source = self.registry.bytes();
            let (bytes, endian) = source.read(znode.acl.external, length as usize)?;
            return znode.acl.entries(&bytes, endian).map(Some).map_err(corrupt);
        }
        let Some((entries, endian)) = self.raw(SaAttribute::DaclAces)? else {
            return Ok(None);
        };
        let count = self
            .optional_word(SaAttribute::DaclCount, |_| None)?
            .ok_or_else(|| self.missing(SaAttribute::DaclCount))?;
        decode_acl(entries, endian, count)
            .map(Some)
            .map_err(corrupt)
    }

    /// The stored bytes of an attribute and their byte order. `None` if the file lacks the attribute or is an
    /// old znode.
    ///
    /// # Errors
    /// If the attribute is not in the bonus and the spill block is lost.
    pub fn raw(&self, attribute: SaAttribute) -> Result<Option<(&[u8], Endian)>, SaError> {
        let number = self.registry.number(attribute);
        number.map_or(Ok(None), |number| self.raw_number(number))
    }
    /// The stored bytes and byte order of an attribute by name, including attributes that only other software
    /// defines.
    ///
    /// # Errors
    /// As [`Attributes::raw`].
    pub fn raw_named(&self, name: &[u8]) -> Result<Option<(&[u8], Endian)>, SaError> {
        let registration = self.registry.registration(name);
        registration.map_or(Ok(None), |found| self.raw_number(found.number))
    }
    /// Whether the spill block is lost. The attributes in the bonus can be read all the same.
    #[must_use]
    pub fn has_lost_spill(&self) -> bool {
        matches!(
            &self.form,
            Form::Buffers {
                spill: Spill::Lost(_),
                ..
            }
        )
    }
    /// Checks that attributes in the bonus can be changed without the spill block.
    ///
    /// # Errors
    /// If the spill block is lost and the bonus is big-endian. Such a bonus is only changed together with
    /// the spill block.
    pub fn check_changeable(&self) -> Result<(), SaError> {
        match &self.form {
            Form::Buffers {
                bonus,
                spill: Spill::Lost(error),
            } if bonus.endian() == Endian::Big => Err(error.clone().into()),
            _ => Ok(()),
        }
    }

    fn raw_number(&self, number: u16) -> Result<Option<(&[u8], Endian)>, SaError> {
        let Form::Buffers { bonus, spill } = &self.form else {
            return Ok(None);
        };
        match (bonus.get(number), spill) {
            (Some(found), _) => Ok(Some(found)),
            (None, Spill::None) => Ok(None),
            (None, Spill::Read(spill)) => Ok(spill.get(number)),
            (None, Spill::Lost(error)) => Err(error.clone().into()),
        }
    }
    fn optional_word(
        &self,
        attribute: SaAttribute,
        of_znode: impl FnOnce(&ZnodePhys) -> Option<u64>,
    ) -> Result<Option<u64>, SaError> {
        if let Form::Znode(znode) = &self.form {
            return Ok(of_znode(znode));
        }
        self.raw(attribute)?
            .map(|(bytes, endian)| Reader::new(attribute.name(), bytes, endian).u64())
            .transpose()
            .map_err(|error| self.registry.corrupt(self.object, error))
    }
    fn word(
        &self,
        attribute: SaAttribute,
        of_znode: impl FnOnce(&ZnodePhys) -> u64,
    ) -> Result<u64, SaError> {
        self.optional_word(attribute, |znode| Some(of_znode(znode)))?
            .ok_or_else(|| self.missing(attribute))
    }
    fn time(
        &self,
        attribute: SaAttribute,
        of_znode: impl FnOnce(&ZnodePhys) -> Timestamp,
    ) -> Result<Timestamp, SaError> {
        if let Form::Znode(znode) = &self.form {
            return Ok(of_znode(znode));
        }
        let stored = self.raw(attribute)?;
        let (bytes, endian) = stored.ok_or_else(|| self.missing(attribute))?;
        Timestamp::decode(&mut Reader::new(attribute.name(), bytes, endian))
            .map_err(|error| self.registry.corrupt(self.object, error))
    }
    fn missing(&self, attribute: SaAttribute) -> SaError {
        SaError::Missing {
            dataset: self.registry.dataset(),
            object: self.object,
            attribute: attribute.name(),
        }
    }
    fn corrupt(&self, reason: &'static str) -> SaError {
        let error = DecodeError::new("attributes", reason, 0);
        self.registry.corrupt(self.object, error)
    }
}
