//! How names are compared, and which names may be created.

use crate::error::FileError;
use millpond_zap::{NameMatch, Normalisation};

/// The longest name without the property `longname`, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest name with the property `longname`, in bytes.
pub const LONG_NAME_BYTES_MAX: usize = 1023;

/// Whether a name leads to an entry of its directory, in a path of this or another file system. Names in a forged
/// directory may not.
#[must_use]
pub fn is_safe_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// How names compare upper and lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// Case matters.
    Sensitive,
    /// Case is ignored.
    Insensitive,
    /// Case matters, unless a request asks otherwise.
    Mixed,
}

/// The rules for names in one file system. They never change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameRules {
    case: Case,
    normalisation: u64,
    is_utf8_only: bool,
}

impl NameRules {
    pub fn new(case: Case, normalisation: u64, is_utf8_only: bool) -> Self {
        Self {
            case,
            normalisation,
            is_utf8_only,
        }
    }
    pub fn case(self) -> Case {
        self.case
    }
    pub fn normalisation(self) -> u64 {
        self.normalisation
    }
    pub fn is_utf8_only(self) -> bool {
        self.is_utf8_only
    }
    /// Whether a file matches only one spelling of its name.
    pub fn is_exact(self) -> bool {
        self.case == Case::Sensitive && self.normalisation == 0
    }

    /// How requested names are compared with stored names.
    pub fn name_match(self) -> NameMatch {
        match (self.case, self.normalisation) {
            (Case::Insensitive, _) => NameMatch::Normalised,
            (Case::Mixed, _) => NameMatch::NormalisedKeepingCase,
            (Case::Sensitive, 0) => NameMatch::Exact,
            (Case::Sensitive, _) => NameMatch::Normalised,
        }
    }
    /// How directory tables fold names.
    pub fn folding(self) -> Normalisation {
        let folds_case = self.case != Case::Sensitive;
        Normalisation::from_normflags(self.normalisation)
            .map(|form| Normalisation { folds_case, ..form })
            .unwrap_or_default()
    }

    /// Checks that a name may be looked up: any name that could be stored.
    pub fn check_lookup(self, name: &[u8]) -> Result<(), FileError> {
        if name.len() > LONG_NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        Ok(())
    }

    /// Checks that a name may be created. `bytes_max` is the longest that may be. `is_root` says whether the
    /// directory is the root directory, where `.zfs` is reserved.
    pub fn check_new(self, name: &[u8], bytes_max: usize, is_root: bool) -> Result<(), FileError> {
        if name.len() > bytes_max {
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
        case: Case::Sensitive,
        normalisation: 0,
        is_utf8_only: false,
    };

    #[test]
    fn names_that_lead_elsewhere_are_not_safe() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b", b"../x"] {
            assert!(!is_safe_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b".a", b"\xff", b"-rf", b"a\n"] {
            assert!(is_safe_name(name), "{name:?}");
        }
    }

    #[test]
    fn names_longer_than_the_limit_are_refused() {
        let check = |bytes: usize, max| PLAIN.check_new(&vec![b'a'; bytes], max, false);
        let too_long = Err(FileError::NameTooLong);
        assert_eq!(check(255, NAME_BYTES_MAX), Ok(()));
        assert_eq!(check(256, NAME_BYTES_MAX), too_long);
        assert_eq!(check(1023, LONG_NAME_BYTES_MAX), Ok(()));
        assert_eq!(check(1024, LONG_NAME_BYTES_MAX), too_long);
        assert_eq!(PLAIN.check_lookup(&[b'a'; 1023]), Ok(()));
    }

    #[test]
    fn reserved_names_and_invalid_bytes_are_refused() {
        let check = |name: &[u8], is_root| PLAIN.check_new(name, NAME_BYTES_MAX, is_root);
        assert_eq!(check(b".zfs", true), Err(FileError::Exists));
        assert_eq!(check(b".zfs", false), Ok(()));
        assert_eq!(check(b"..", false), Err(FileError::Exists));
        assert!(check(b"a/b", false).is_err());
        assert!(check(b"a\0b", false).is_err());
    }

    #[test]
    fn only_utf8only_file_systems_refuse_other_bytes() {
        let strict = NameRules {
            is_utf8_only: true,
            ..PLAIN
        };
        let check = |rules: NameRules, name: &[u8]| rules.check_new(name, NAME_BYTES_MAX, false);
        assert_eq!(check(PLAIN, b"\xff"), Ok(()));
        assert_eq!(check(strict, b"\xff"), Err(FileError::NotUtf8));
        assert_eq!(check(strict, "ä".as_bytes()), Ok(()));
    }
}
