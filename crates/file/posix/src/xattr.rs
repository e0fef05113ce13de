//! Extended attributes, in both storage places.
//!
//! Small ones are in a packed list among the system attributes, others are files in a hidden directory. Names
//! are those of Linux. Names that FreeBSD stored without a prefix are shown with the prefix `user.`.

use crate::error::FileError;
use crate::node::Node;
use crate::stat::FileKind;
use millpond_nvlist::{NvList, NvValue};
use millpond_sa::FileFlags;

/// The longest value that is returned, in bytes. Linux can return up to 64 KiB; FreeBSD may store more.
pub const XATTR_BYTES_MAX: u64 = 16 << 20;

pub(crate) const PREFIXES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

impl Node {
    /// The names of the file's extended attributes, sorted and without duplicates.
    ///
    /// # Errors
    /// If their list or directory cannot be read.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>, FileError> {
        let mut names = vec![];
        if let Some(list) = self.packed_xattrs()? {
            names.extend(
                list.iter()
                    .filter_map(|pair| shown_name(pair.name.as_bytes())),
            );
        }
        if let Some(directory) = self.xattr_directory()? {
            for entry in directory.entries()? {
                names.extend(shown_name(&entry?.name));
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The value of an extended attribute; `None` if the file does not have it.
    ///
    /// # Errors
    /// If it cannot be read, or is longer than `XATTR_BYTES_MAX`.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        if let Some(value) = self.stored_xattr(name)? {
            return Ok(Some(value));
        }
        // FreeBSD stores the names of user attributes without their prefix.
        match name.strip_prefix(b"user.") {
            Some(bare) => self.stored_xattr(bare),
            None => Ok(None),
        }
    }

    fn stored_xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        if let Some(list) = self.packed_xattrs()?
            && let Some(value) = list.get(name)
        {
            return match value {
                NvValue::ByteArray(bytes) => Ok(Some(bytes.clone())),
                _ => Err(self.invalid("extended attributes", "a value is no byte array")),
            };
        }
        let Some(directory) = self.xattr_directory()? else {
            return Ok(None);
        };
        let file = match directory.find(name)? {
            Some(entry) => self.file_system().node(entry.id)?,
            None => return Ok(None),
        };
        if file.size_bytes() > XATTR_BYTES_MAX {
            return Err(file.invalid("extended attribute", "value above 16 MiB"));
        }
        let mut value = vec![0u8; file.size_bytes() as usize];
        let count = file.read(0, &mut value)?;
        value.truncate(count);
        Ok(Some(value))
    }

    fn packed_xattrs(&self) -> Result<Option<NvList>, FileError> {
        let Some(bytes) = self
            .attributes()
            .xattr_list()
            .filter(|bytes| !bytes.is_empty())
        else {
            return Ok(None);
        };
        let list = NvList::decode(bytes).map_err(|error| FileError::Corrupt {
            dataset: self.object().object_set().dataset(),
            object: self.id(),
            error,
        })?;
        Ok(Some(list))
    }

    fn xattr_directory(&self) -> Result<Option<Node>, FileError> {
        let Some(id) = self.attributes().xattr_directory()? else {
            return Ok(None);
        };
        let directory = self.file_system().node(id)?;
        if directory.kind() != FileKind::Directory {
            return Err(directory.invalid("extended attributes", "not in a directory"));
        }
        Ok(Some(directory))
    }

    /// Whether this is the hidden directory of another file's extended attributes, or a file in one.
    ///
    /// # Errors
    /// If the flags cannot be read.
    pub fn is_xattr_directory(&self) -> Result<bool, FileError> {
        Ok(self.attributes().flags()?.contains(FileFlags::XATTR))
    }
}

/// The name under which Linux lists a stored attribute; `None` for attributes that it hides.
pub(crate) fn shown_name(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.starts_with(b"freebsd:") {
        return None;
    }
    if PREFIXES.iter().any(|prefix| stored.starts_with(prefix)) {
        return Some(stored.to_vec());
    }
    Some([b"user.", stored].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_prefix_are_shown_as_user_attributes() {
        assert_eq!(shown_name(b"user.a").as_deref(), Some(&b"user.a"[..]));
        assert_eq!(shown_name(b"plain").as_deref(), Some(&b"user.plain"[..]));
        assert_eq!(
            shown_name(b"security.selinux").as_deref(),
            Some(&b"security.selinux"[..])
        );
        assert_eq!(shown_name(b"freebsd:system:x"), None);
    }
}
