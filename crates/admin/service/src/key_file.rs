//! Encryption keys in files.

use millpond_control::KEY_BYTES_MAX;
use millpond_device::open_regular;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use zeroize::Zeroizing;

/// Reads a key from the file that a pool's `keylocation` names. The pool may be untrusted, so this reads only
/// regular files and only as many bytes as a key can have. The memory is wiped on drop.
///
/// # Errors
/// If the file cannot be read, is not a regular file, or is longer than [`KEY_BYTES_MAX`].
pub fn read_key_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = open_regular(path)?;
    let no_file = || io::Error::other("a key is read from a regular file only");
    let mut file = file.ok_or_else(no_file)?;
    read_key(&mut file)
}

/// Reads a key to the end of a file or stream. No unwiped copy is left in memory.
///
/// # Errors
/// If it cannot be read or is longer than [`KEY_BYTES_MAX`].
pub fn read_key(file: &mut File) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; KEY_BYTES_MAX + 1]);
    let mut length = 0;
    loop {
        let space = bytes.get_mut(length..).unwrap_or_default();
        match file.read(space) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length > KEY_BYTES_MAX {
            return Err(io::Error::other("the file is too long for a key"));
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_only_from_small_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, b"secret\n").unwrap();
        assert_eq!(read_key_file(&path).unwrap().as_slice(), b"secret\n");
        std::fs::write(&path, vec![b'x'; KEY_BYTES_MAX]).unwrap();
        assert_eq!(read_key_file(&path).unwrap().len(), KEY_BYTES_MAX);
        std::fs::write(&path, vec![b'x'; KEY_BYTES_MAX + 1]).unwrap();
        let refusal = |path: &Path| read_key_file(path).unwrap_err().to_string();
        assert!(refusal(&path).contains("too long"));
        // A device without end, and a pipe that never delivers data.
        assert!(refusal(Path::new("/dev/zero")).contains("regular file"));
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        assert!(refusal(&pipe).contains("regular file"));
        assert!(refusal(folder.path()).contains("regular file"));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert!(refusal(&link).contains("regular file"));
    }
}
