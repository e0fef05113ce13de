//! Files that others name: a property of a pool, or an argument.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions, metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. `None`: it is a directory, a pipe or a device.
///
/// A pipe does not block it, and no device is opened, which can have side effects.
///
/// # Errors
/// If there is no such file, or it cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    if !metadata(path)?.is_file() {
        return Ok(None);
    }
    // It may have been replaced since.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), b"x").unwrap();
        mknodat(
            CWD,
            path("pipe"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        let is_opened = |path: &Path| open_regular(path).unwrap().is_some();
        assert!(is_opened(&path("file")) && is_opened(&path("link")));
        assert!(!is_opened(&path("pipe")) && !is_opened(folder.path()));
        assert!(!is_opened(Path::new("/dev/null")));
        let error = open_regular(&path("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
