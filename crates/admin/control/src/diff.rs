//! Differences between two states of a file system.

/// Which states to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DiffQuery {
    /// The full name of the older snapshot.
    pub from: String,
    /// The full name of the newer snapshot, or of a file system for its current content.
    pub to: String,
}

/// How a path changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PathChange {
    /// It exists only in the older state.
    Removed,
    /// It exists only in the newer state.
    Created,
    /// Content or attributes changed.
    Modified {
        /// How many links more it has; 0 for directories.
        links: i64,
    },
    /// It has another path.
    Renamed {
        /// The new path, escaped as [`PathDifference::path`].
        to: String,
    },
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PathDifference {
    /// The path below the root of the file system, empty for the root; that in the older state if there is one.
    /// Escaped with [`escape_path`], because names can have any bytes.
    pub path: String,
    /// How it changed.
    pub change: PathChange,
    /// The file type: `F` file, `/` directory, `@` symbolic link, `|` named pipe, `=` socket, `B` and `C` devices.
    pub kind: char,
    /// The change time of the file, in seconds since 1970 and nanoseconds.
    pub ctime: (i64, u64),
}

/// A path as `zfs diff` prints it: bytes up to the space, the backslash, and bytes above 126 become a backslash
/// and four octal digits.
#[must_use]
pub fn escape_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'!'..=b'~' if *byte != b'\\' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\{byte:04o}")),
        }
    }
    text
}

/// The bytes of an escaped path. What is no escape stays.
#[must_use]
pub fn unescape_path(text: &str) -> Vec<u8> {
    let mut path = vec![];
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..4).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match byte {
            Some(byte) => {
                path.push(byte);
                rest = after.get(4..).unwrap_or_default();
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_escaped_and_comes_back() {
        let path: Vec<u8> = (1..=255).collect();
        let text = escape_path(&path);
        assert!(text.is_ascii() && !text.contains(' '));
        assert_eq!(unescape_path(&text), path);
        assert_eq!(
            escape_path("caf\u{e9} \\~".as_bytes()),
            "caf\\0303\\0251\\0040\\0134~"
        );
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in ["\\", "a\\12", "\\09zz", "\\0777"] {
            assert_eq!(unescape_path(text), text.as_bytes());
        }
    }
}
