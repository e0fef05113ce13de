//! Reads extended attributes.

use super::{is_posix_acl, shown_name};
use crate::FileSystem;
use crate::error::FileError;
use crate::node::Node;
use crate::open_node::NodeInner;
use crate::settings::AclKind;
use crate::stat::FileKind;
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::ObjectId;
use millpond_sa::Attributes;
use millpond_zap::Zap;
use std::borrow::Cow;

/// The longest value that is returned, in bytes. Linux can return up to 64 KiB; FreeBSD may store more.
const XATTR_BYTES_MAX: u64 = 16 << 20;
/// The mask of the object id in a directory entry.
pub(super) const ENTRY_OBJECT: u64 = 0xffff_ffff_ffff;

/// The extended attributes of one file, as stored. The caller keeps them from changing.
pub(crate) struct StoredXattrs<'f> {
    files: &'f FileSystem,
    owner: ObjectId,
    attributes: Cow<'f, Attributes>,
}

impl StoredXattrs<'_> {
    /// The packed list, if it is not empty.
    pub(crate) fn packed(&self) -> Result<Option<NvList>, FileError> {
        let packed = self.attributes.xattr_list()?;
        let Some(bytes) = packed.filter(|bytes| !bytes.is_empty()) else {
            return Ok(None);
        };
        let list = NvList::decode(bytes);
        list.map(Some)
            .map_err(|error| self.files.undecodable(self.owner, error))
    }

    /// The hidden directory, if there is one.
    fn directory(&self) -> Result<Option<Zap>, FileError> {
        let Some(id) = self.attributes.xattr_directory()? else {
            return Ok(None);
        };
        let object = self.files.object(id)?;
        let kind = FileKind::from_mode(self.files.attributes(&object)?.mode()?);
        self.files.check_hidden(id, kind, FileKind::Directory)?;
        Ok(Some(Zap::of_readable(&object)?))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>, FileError> {
        let mut names = vec![];
        if let Some(list) = self.packed()? {
            let packed = list.iter();
            names.extend(packed.filter_map(|pair| shown_name(pair.name.as_bytes())));
        }
        if let Some(directory) = self.directory()? {
            for entry in directory.iter() {
                names.extend(shown_name(&entry?.name));
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The value that is stored under exactly this name.
    pub(crate) fn value(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        if let Some(list) = self.packed()?
            && let Some(value) = list.get(name)
        {
            return match value {
                NvValue::ByteArray(bytes) => Ok(Some(bytes.clone())),
                _ => {
                    let reason = "an extended attribute is no byte array";
                    Err(self.files.corrupt(self.owner, reason))
                }
            };
        }
        let Some(directory) = self.directory()? else {
            return Ok(None);
        };
        let Some(id) = self.files.hidden_entry(&directory, name)? else {
            return Ok(None);
        };
        let object = self.files.object(id)?;
        let attributes = self.files.attributes(&object)?;
        let kind = FileKind::from_mode(attributes.mode()?);
        self.files.check_hidden(id, kind, FileKind::Regular)?;
        let size = attributes.size()?;
        if size > XATTR_BYTES_MAX {
            let reason = "an extended attribute above 16 MiB";
            return Err(self.files.corrupt(id, reason));
        }
        let mut value = vec![0u8; size as usize];
        object.read(0, &mut value)?;
        Ok(Some(value))
    }

    /// The value of an attribute. FreeBSD stores the names of user attributes without their prefix.
    pub(crate) fn value_of_shown(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        match (self.value(name)?, name.strip_prefix(b"user.")) {
            (None, Some(bare)) => self.value(bare),
            (value, _) => Ok(value),
        }
    }
}

impl FileSystem {
    /// The extended attributes of a file that is open for change.
    pub(crate) fn xattrs_of(&self, node: &NodeInner) -> Result<StoredXattrs<'_>, FileError> {
        Ok(StoredXattrs {
            files: self,
            owner: node.id,
            attributes: Cow::Owned(self.attributes(&node.content)?),
        })
    }
    /// Checks the kind of a hidden object.
    pub(super) fn check_hidden(
        &self,
        id: ObjectId,
        kind: Option<FileKind>,
        wanted: FileKind,
    ) -> Result<(), FileError> {
        let reason = match wanted {
            _ if kind == Some(wanted) => return Ok(()),
            FileKind::Directory => "extended attributes are not in a directory",
            _ => "an extended attribute is no ordinary file",
        };
        Err(self.corrupt(id, reason))
    }
    /// The file of an attribute in a hidden directory.
    pub(super) fn hidden_entry(
        &self,
        directory: &Zap,
        name: &[u8],
    ) -> Result<Option<ObjectId>, FileError> {
        let entry = directory.lookup_entry(name, self.names().name_match())?;
        let value = entry.and_then(|entry| entry.value.first());
        Ok(value.map(|value| ObjectId(value & ENTRY_OBJECT)))
    }
    /// The value of an attribute of a file that is open for change, without checking the name.
    pub(crate) fn stored_xattr(
        &self,
        node: &NodeInner,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, FileError> {
        let _shared = node.xattrs.read();
        self.xattrs_of(node)?.value_of_shown(name)
    }
}

impl Node {
    fn xattrs(&self) -> Result<StoredXattrs<'_>, FileError> {
        Ok(StoredXattrs {
            files: self.file_system(),
            owner: self.id(),
            attributes: self.attributes()?,
        })
    }

    /// The names of the file's extended attributes, sorted and without duplicates.
    ///
    /// # Errors
    /// If their list or directory cannot be read.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>, FileError> {
        let _shared = self.lock_xattrs();
        let mut names = self.xattrs()?.names()?;
        if self.file_system().settings().acl_kind != AclKind::Posix {
            names.retain(|name| !is_posix_acl(name));
        }
        Ok(names)
    }

    /// The value of an extended attribute; `None` if the file does not have it.
    ///
    /// # Errors
    /// If it cannot be read, or is longer than 16 MiB. In a file system that is open for change,
    /// [`FileError::NotSupported`] and other errors for names that the file cannot have.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        if self.open_node().is_some() {
            self.file_system().check_xattr_name(self.kind(), name)?;
        }
        let _shared = self.lock_xattrs();
        self.xattrs()?.value_of_shown(name)
    }
}
