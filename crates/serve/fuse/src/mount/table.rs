//! The table of this process's mounts, `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount in the table.
struct Entry {
    id: u64,
    /// The id of the mount that it lies on.
    parent: Option<u64>,
    point: PathBuf,
    /// Whether it is a mount of ours or of the kernel module.
    is_zfs: bool,
    source: PathBuf,
}

fn read() -> Option<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo").ok()
}

fn entries(table: &[u8]) -> impl Iterator<Item = Entry> + '_ {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let id = std::str::from_utf8(words.first()?).ok()?;
        let end = words.iter().position(|word| *word == b"-")?;
        Some(Entry {
            id: id.parse().ok()?,
            parent: std::str::from_utf8(words.get(1)?)
                .ok()
                .and_then(|parent| parent.parse().ok()),
            point: unescape(words.get(4)?),
            is_zfs: matches!(*words.get(end + 1)?, b"zfs" | b"fuse.zfs"),
            source: unescape(words.get(end + 2)?),
        })
    })
}

/// The current path of a mount, by its id. Directories above it may have been moved.
pub(super) fn find_mount(id: u64) -> Option<PathBuf> {
    let table = read()?;
    let found = entries(&table).find(|entry| entry.id == id);
    found.map(|entry| entry.point)
}

/// Where another file system is mounted on a mount, by the id of the latter.
pub(super) fn mounted_on(id: u64) -> Option<PathBuf> {
    let table = read()?;
    let found = entries(&table).find(|entry| entry.parent == Some(id));
    found.map(|entry| entry.point)
}

/// The name of the dataset that a path without symbolic links lies on; `None` if it is on another file system.
#[must_use]
pub fn mounted_dataset(path: &Path) -> Option<String> {
    source_at(&read()?, path)
}

fn source_at(table: &[u8], path: &Path) -> Option<String> {
    let above = entries(table).filter(|entry| path.starts_with(&entry.point));
    // Of several mounts at one place the last one is seen.
    let seen = above.max_by_key(|entry| entry.point.components().count())?;
    seen.is_zfs
        .then(|| seen.source.to_string_lossy().into_owned())
}

/// Decodes blanks and similar characters, which are written as three octal digits.
fn unescape(word: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (vec![], word);
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /tank rw,relatime shared:5 - fuse.zfs tank rw,user_id=0
31 30 0:41 / /tank/with\\040blank rw - fuse.zfs tank/with\\040blank rw
32 30 0:42 / /tank/other rw - tmpfs tmpfs rw
33 32 0:43 / /tank/other rw - zfs pool/over rw
garbage
";

    #[test]
    fn the_innermost_and_last_mount_counts() {
        let at = |path: &str| source_at(TABLE, Path::new(path));
        assert_eq!(at("/tank/file").as_deref(), Some("tank"));
        assert_eq!(at("/tank").as_deref(), Some("tank"));
        assert_eq!(at("/tank/with blank/x").as_deref(), Some("tank/with blank"));
        assert_eq!(at("/tank/other/x").as_deref(), Some("pool/over"));
        assert_eq!(at("/tanks"), None);
        assert_eq!(at("/"), None);
        assert_eq!(source_at(b"", Path::new("/tank")), None);
    }

    #[test]
    fn mounts_are_found_by_their_id() {
        let at = |id| entries(TABLE).find(|entry| entry.id == id);
        assert_eq!(
            at(31).map(|entry| entry.point),
            Some("/tank/with blank".into())
        );
        assert_eq!(at(34).map(|entry| entry.point), None);
        assert_eq!(find_mount(u64::MAX), None);
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(unescape(b"/a\\040b\\134\\"), Path::new("/a b\\\\"));
    }
}
