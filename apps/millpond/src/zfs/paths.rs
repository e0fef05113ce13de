//! Datasets that are named by a path of a mounted file system.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Whether an operand is a path instead of a name.
pub fn is_path(operand: &str) -> bool {
    operand.starts_with('/') || operand.starts_with("./") || operand.starts_with("../")
}

/// The name of the file system that is mounted where a path leads. The error is the reason.
pub fn dataset_at(path: &str) -> Result<String, String> {
    let real = Path::new(path).canonicalize();
    let real = real.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        _ => "the path cannot be followed".to_owned(),
    })?;
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounted_at(&table, &real).ok_or_else(|| "not a ZFS filesystem".to_owned())
}

/// The source of the mount that a path lies on, if it is of type `zfs`. `table` has the form of `/proc/self/mountinfo`.
fn mounted_at(table: &[u8], path: &Path) -> Option<String> {
    let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let point = unescape(words.get(4)?);
        let end = words.iter().position(|word| *word == b"-")?;
        let is_zfs = matches!(*words.get(end + 1)?, b"zfs" | b"fuse.zfs");
        let source = unescape(words.get(end + 2)?);
        path.starts_with(&point).then_some((point, is_zfs, source))
    });
    // Of several mounts at one place the last one is seen.
    let depth = |point: &PathBuf| point.components().count();
    let (_, is_zfs, source) = mounts.max_by_key(|(point, ..)| depth(point))?;
    is_zfs.then(|| source.to_string_lossy().into_owned())
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
        let at = |path: &str| mounted_at(TABLE, Path::new(path));
        assert_eq!(at("/tank/file").as_deref(), Some("tank"));
        assert_eq!(at("/tank").as_deref(), Some("tank"));
        assert_eq!(at("/tank/with blank/x").as_deref(), Some("tank/with blank"));
        assert_eq!(at("/tank/other/x").as_deref(), Some("pool/over"));
        assert_eq!(at("/tanks"), None);
        assert_eq!(at("/"), None);
        assert_eq!(mounted_at(b"", Path::new("/tank")), None);
    }

    #[test]
    fn paths_are_told_from_names() {
        assert!(is_path("/tank") && is_path("./tank") && is_path("../tank"));
        assert!(!is_path("tank/fs") && !is_path("tank@s") && !is_path(""));
    }
}
