//! Extended attributes, in both storage places. Page `docs/format/file-system.md`.
//!
//! Small ones are in a packed list among the system attributes, others are files in a hidden directory. Names
//! are those of Linux. Names that FreeBSD stored without a prefix are shown with the prefix `user.`.

mod hidden;
mod read;
mod write;

pub use write::VALUE_BYTES_MAX;

use crate::error::FileError;
use crate::posix_acl::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT};
use crate::settings::{AclKind, XattrPlace};
use crate::{FileKind, FileSystem};

/// The longest name that can be set, in bytes.
const NAME_BYTES_MAX: usize = 255;
const PREFIXES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// Whether setting an extended attribute may create or replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

impl FileSystem {
    /// Checks that a file of this type may have an attribute of this name.
    fn check_xattr_name(&self, kind: FileKind, name: &[u8]) -> Result<(), FileError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        let settings = self.settings();
        if is_posix_acl(name) {
            let may_have = settings.acl_kind == AclKind::Posix && kind != FileKind::Symlink;
            return may_have.then_some(()).ok_or(FileError::NotSupported);
        }
        let prefix = PREFIXES.iter().find(|prefix| name.starts_with(prefix));
        let Some(prefix) = prefix.filter(|prefix| **prefix != b"system.") else {
            return Err(FileError::NotSupported);
        };
        let rest = &name[prefix.len()..];
        if rest.is_empty() || name.contains(&0) {
            return Err(FileError::invalid("no attribute can have this name"));
        }
        if *prefix == b"user." {
            if settings.xattr == XattrPlace::Off {
                return Err(FileError::NotSupported);
            }
            if !matches!(kind, FileKind::Regular | FileKind::Directory) {
                return Err(FileError::NotPermitted);
            }
            let is_reserved = rest.starts_with(b"freebsd:")
                || PREFIXES.iter().any(|prefix| rest.starts_with(prefix));
            if is_reserved {
                return Err(FileError::invalid(
                    "a name that other systems would misread",
                ));
            }
        }
        Ok(())
    }
}

fn is_posix_acl(name: &[u8]) -> bool {
    name == POSIX_ACL_ACCESS || name == POSIX_ACL_DEFAULT
}

/// The name under which Linux lists a stored attribute; `None` for attributes that it hides.
fn shown_name(stored: &[u8]) -> Option<Vec<u8>> {
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
    fn names_without_a_prefix_get_the_prefix_user() {
        assert_eq!(shown_name(b"user.a").as_deref(), Some(&b"user.a"[..]));
        assert_eq!(shown_name(b"plain").as_deref(), Some(&b"user.plain"[..]));
        assert_eq!(
            shown_name(b"security.selinux").as_deref(),
            Some(&b"security.selinux"[..])
        );
        assert_eq!(shown_name(b"freebsd:system:x"), None);
    }
}
