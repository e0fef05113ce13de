//! Which names may be created.

use crate::error::FileError;

/// The longest name without the property `longname`, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest name with the property `longname`, in bytes.
pub const LONG_NAME_BYTES_MAX: usize = 1023;

/// The rules for names in one file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameRules {
    pub is_utf8_only: bool,
    pub allows_long_names: bool,
}

impl NameRules {
    /// Checks that a name may be looked up: any name that could be stored.
    pub fn check_lookup(self, name: &[u8]) -> Result<(), FileError> {
        if name.len() > LONG_NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        if name.is_empty() {
            return Err(FileError::NotFound);
        }
        Ok(())
    }

    /// Checks that a name may be created. `is_root` says whether the directory is the root directory, where
    /// `.zfs` is reserved.
    pub fn check_new(self, name: &[u8], is_root: bool) -> Result<(), FileError> {
        let longest = if self.allows_long_names {
            LONG_NAME_BYTES_MAX
        } else {
            NAME_BYTES_MAX
        };
        if name.len() > longest {
            return Err(FileError::NameTooLong);
        }
        if name.is_empty() {
            return Err(FileError::NotFound);
        }
        if name == b"." || name == b".." || (is_root && name == b".zfs") {
            return Err(FileError::Exists);
        }
        if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(FileError::invalid("a name with a slash or a zero byte"));
        }
        if self.is_utf8_only && std::str::from_utf8(name).is_err() {
            return Err(FileError::NotUtf8);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: NameRules = NameRules {
        is_utf8_only: false,
        allows_long_names: false,
    };

    #[test]
    fn names_end_at_255_bytes_or_1023_where_long_ones_are_allowed() {
        let long = NameRules {
            allows_long_names: true,
            ..PLAIN
        };
        assert_eq!(PLAIN.check_new(&[b'a'; 255], false), Ok(()));
        let too_long = Err(FileError::NameTooLong);
        assert_eq!(PLAIN.check_new(&[b'a'; 256], false), too_long);
        assert_eq!(long.check_new(&[b'a'; 1023], false), Ok(()));
        assert_eq!(long.check_new(&[b'a'; 1024], false), too_long);
        assert_eq!(PLAIN.check_lookup(&[b'a'; 1023]), Ok(()));
    }

    #[test]
    fn only_the_root_directory_keeps_the_snapshot_directorys_name() {
        assert_eq!(PLAIN.check_new(b".zfs", true), Err(FileError::Exists));
        assert_eq!(PLAIN.check_new(b".zfs", false), Ok(()));
        assert_eq!(PLAIN.check_new(b"..", false), Err(FileError::Exists));
        assert!(PLAIN.check_new(b"a/b", false).is_err());
        assert!(PLAIN.check_new(b"a\0b", false).is_err());
    }

    #[test]
    fn bytes_that_are_no_utf8_are_refused_only_where_the_file_system_says_so() {
        let strict = NameRules {
            is_utf8_only: true,
            ..PLAIN
        };
        assert_eq!(PLAIN.check_new(b"\xff", false), Ok(()));
        assert_eq!(strict.check_new(b"\xff", false), Err(FileError::NotUtf8));
        assert_eq!(strict.check_new("ä".as_bytes(), false), Ok(()));
    }
}
