//! Parses names of datasets: `pool/a/b`, `pool/a@snapshot`, `pool/a#bookmark`.

use crate::DatasetError;

/// The longest full name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The part of a full name after the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameTail<'a> {
    /// Nothing: a file system or volume.
    Head,
    /// `@name`.
    Snapshot(&'a str),
    /// `#name`.
    Bookmark(&'a str),
}

/// A parsed full name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetName<'a> {
    /// The path, such as `pool/a/b`.
    pub path: &'a str,
    /// The part after the path.
    pub tail: NameTail<'a>,
}

impl<'a> DatasetName<'a> {
    /// Parses and validates a full name.
    ///
    /// # Errors
    /// [`DatasetError::InvalidName`] for empty components, invalid characters, more than one delimiter or
    /// too many bytes.
    pub fn parse(name: &'a str) -> Result<Self, DatasetError> {
        let fail = |reason| {
            Err(DatasetError::InvalidName {
                name: name.to_owned(),
                reason,
            })
        };
        if name.len() > NAME_BYTES_MAX {
            return fail("name is too long");
        }
        let (path, tail) = match name.find(['@', '#']) {
            None => (name, NameTail::Head),
            Some(at) => {
                let (path, rest) = (&name[..at], &name[at + 1..]);
                if rest.contains(['@', '#']) {
                    return fail("multiple '@' and/or '#' delimiters in name");
                }
                if !is_component(rest) {
                    return fail("invalid snapshot or bookmark name");
                }
                let is_snapshot = name.as_bytes()[at] == b'@';
                (
                    path,
                    if is_snapshot {
                        NameTail::Snapshot(rest)
                    } else {
                        NameTail::Bookmark(rest)
                    },
                )
            }
        };
        if path.starts_with('/') {
            return fail("leading slash in name");
        }
        if path.ends_with('/') {
            return fail("trailing slash in name");
        }
        if !path.split('/').all(is_component) {
            return fail("empty component or invalid character in name");
        }
        Ok(Self { path, tail })
    }

    /// The components of the path; the first one is the pool.
    pub fn components(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.path.split('/')
    }
    /// The pool's name.
    #[must_use]
    pub fn pool(&self) -> &'a str {
        self.path.split('/').next().unwrap_or(self.path)
    }
}

fn is_component(text: &str) -> bool {
    // Users never enter '%' or '$', but temporary and internal datasets contain them, and rescue must be
    // able to name those.
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ' | '%' | '$');
    !text.is_empty() && text != "." && text != ".." && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_name_falls_into_path_and_tail() {
        let name = DatasetName::parse("tank/a b/c@s-1").unwrap();
        assert_eq!(name.path, "tank/a b/c");
        assert_eq!(name.tail, NameTail::Snapshot("s-1"));
        assert_eq!(name.pool(), "tank");
        assert_eq!(
            DatasetName::parse("p#m").unwrap().tail,
            NameTail::Bookmark("m")
        );
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in [
            "", "/a", "a/", "a//b", "a@", "a@b@c", "a@b#c", "a/b@c/d", "a\u{e4}", "a/..",
        ] {
            assert!(DatasetName::parse(bad).is_err(), "{bad}");
        }
    }
}
