//! Addresses: `POOL/DATASET[@SNAPSHOT]:/PATH`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A parsed address. Parsing opens nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The dataset, with `@` and the snapshot's name if there is one.
    pub dataset: String,
    /// The path as given, below the dataset's root; `None` if only a dataset was named.
    pub path: Option<Vec<u8>>,
}

impl Address {
    /// Parses an address. The dataset ends at the first `:/`, or at a final `:`.
    ///
    /// A dataset name may contain colons. A name that ends in a colon cannot be followed by a child's name,
    /// so the split is unambiguous.
    ///
    /// # Errors
    /// What is wrong with the address, as a message for the user.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let split = bytes.windows(2).position(|pair| pair == b":/");
        let (dataset, path) = match split {
            Some(at) => (&bytes[..at], Some(bytes[at + 1..].to_vec())),
            None => match bytes.strip_suffix(b":") {
                Some(dataset) => (dataset, Some(b"/".to_vec())),
                None => (bytes, None),
            },
        };
        let shown = text.to_string_lossy();
        if dataset.is_empty() || dataset.starts_with(b"/") || dataset.starts_with(b".") {
            return Err(format!("'{shown}' is no address: {FORM}"));
        }
        let dataset = std::str::from_utf8(dataset)
            .map_err(|_| format!("'{shown}': names of datasets are plain text"))?;
        let (name, path) = match &path {
            Some(path) => through_snapshot_folder(dataset, path),
            None => (dataset.to_owned(), None),
        };
        Ok(Self {
            dataset: name,
            path,
        })
    }

    /// The pool's name or guid.
    pub fn pool(&self) -> &str {
        let end = self.dataset.find(['/', '@']).unwrap_or(self.dataset.len());
        &self.dataset[..end]
    }

    /// The name that a copy gets: the last name of the path.
    ///
    /// `None` for the root of a file system and for `.` and `..`.
    pub fn last_name(&self) -> Option<&[u8]> {
        let path = self.path.as_deref()?;
        let name = path
            .rsplit(|byte| *byte == b'/')
            .find(|name| !name.is_empty())?;
        (name != b"." && name != b"..").then_some(name)
    }
}

/// Turns `DATASET` and `/.zfs/snapshot/NAME/rest` into `DATASET@NAME` and `/rest`.
fn through_snapshot_folder(dataset: &str, path: &[u8]) -> (String, Option<Vec<u8>>) {
    let unchanged = || (dataset.to_owned(), Some(path.to_vec()));
    let mut names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty());
    let is_inside = names.next() == Some(b".zfs") && names.next() == Some(b"snapshot");
    if dataset.contains('@') || !is_inside {
        return unchanged();
    }
    let Some(Ok(snapshot)) = names.next().map(std::str::from_utf8) else {
        return unchanged();
    };
    let rest = names.fold(Vec::new(), |mut rest, name| {
        rest.push(b'/');
        rest.extend_from_slice(name);
        rest
    });
    let rest = if rest.is_empty() { b"/".to_vec() } else { rest };
    (format!("{dataset}@{snapshot}"), Some(rest))
}

const FORM: &str = "POOL/DATASET[@SNAPSHOT]:/PATH is wanted";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &[u8]) -> (String, Option<Vec<u8>>) {
        let address = Address::parse(OsStr::from_bytes(text)).unwrap();
        (address.dataset, address.path)
    }

    #[test]
    fn an_address_is_a_dataset_and_a_path() {
        let path = |path: &[u8]| Some(path.to_vec());
        assert_eq!(parsed(b"tank"), ("tank".into(), None));
        assert_eq!(parsed(b"tank:"), ("tank".into(), path(b"/")));
        assert_eq!(parsed(b"tank/a@s:/x/y"), ("tank/a@s".into(), path(b"/x/y")));
        assert_eq!(parsed(b"tank/a:b:/x"), ("tank/a:b".into(), path(b"/x")));
        assert_eq!(parsed(b"tank:/a:/b"), ("tank".into(), path(b"/a:/b")));
        assert_eq!(parsed(b"12:/\xff"), ("12".into(), path(b"/\xff")));
    }

    #[test]
    fn the_folder_of_snapshots_leads_into_them() {
        let path = |path: &[u8]| Some(path.to_vec());
        assert_eq!(
            parsed(b"tank/a:/.zfs/snapshot/s/x/y"),
            ("tank/a@s".into(), path(b"/x/y"))
        );
        assert_eq!(
            parsed(b"tank:/.zfs/snapshot/s"),
            ("tank@s".into(), path(b"/"))
        );
        assert_eq!(
            parsed(b"tank@t:/.zfs/snapshot/s"),
            ("tank@t".into(), path(b"/.zfs/snapshot/s"))
        );
        assert_eq!(parsed(b"tank:/.zfsx/a"), ("tank".into(), path(b"/.zfsx/a")));
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for text in [&b""[..], b":/x", b"/etc/passwd", b"./x", b"\xff:/x"] {
            assert!(Address::parse(OsStr::from_bytes(text)).is_err());
        }
    }

    #[test]
    fn a_copy_is_called_by_the_last_name() {
        let named = |text: &str| {
            let address = Address::parse(OsStr::new(text)).unwrap();
            address.last_name().map(<[u8]>::to_vec)
        };
        assert_eq!(named("t:/a/b//"), Some(b"b".to_vec()));
        assert_eq!(named("t:/"), None);
        assert_eq!(named("t:/a/.."), None);
        assert_eq!(named("t:/a/."), None);
    }
}
