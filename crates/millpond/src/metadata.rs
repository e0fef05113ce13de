//! Attributes of files.

use millpond_engine::{FileKind, Stat, Timestamp};
use std::time::{Duration, SystemTime};

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Special,
}

impl FileType {
    pub(crate) fn of(kind: FileKind) -> Self {
        match kind {
            FileKind::Regular => Self::File,
            FileKind::Directory => Self::Directory,
            FileKind::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }
}

/// The attributes of a file.
#[derive(Debug, Clone)]
pub struct Metadata(pub(crate) Stat);

impl Metadata {
    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::of(self.0.kind)
    }
    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::File
    }
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }
    /// The length in bytes; for a directory, the number of entries plus 2.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.size_bytes
    }
    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The space that it takes on the devices, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.sectors.saturating_mul(512)
    }
    /// The permissions, with set-user, set-group and sticky bits: 12 bits.
    #[must_use]
    pub fn permissions(&self) -> u32 {
        self.0.permissions
    }
    /// The uid.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }
    /// The gid.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }
    /// The number of names.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.0.links
    }
    /// The inode number.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.0.id.0
    }
    /// The modification time.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }
    /// The access time.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }
    /// The time at which it was created.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        system_time(self.0.crtime)
    }
}

/// A stored time. Times that the system cannot represent become 1970.
fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.min(999_999_999));
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(seconds),
        false => SystemTime::UNIX_EPOCH.checked_add(seconds),
    };
    whole
        .and_then(|whole| whole.checked_add(nanoseconds))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A time as it is stored.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let (seconds, nanoseconds) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()), after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            // Nanoseconds count forward from the second before.
            let is_whole = before.subsec_nanos() == 0;
            let seconds = i64::try_from(before.as_secs()).map(|s| -s - i64::from(!is_whole));
            let nanoseconds = if is_whole {
                0
            } else {
                1_000_000_000 - before.subsec_nanos()
            };
            (seconds, nanoseconds)
        }
    };
    Timestamp {
        seconds: seconds.unwrap_or(i64::MAX),
        nanoseconds: nanoseconds.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_convert_both_ways() {
        for (seconds, nanoseconds) in [(0, 0), (1, 5), (-1, 0), (-1, 999_999_999), (-7, 1)] {
            let stored = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(timestamp(system_time(stored)), stored);
        }
        let hostile = Timestamp {
            seconds: i64::MIN,
            nanoseconds: u64::MAX,
        };
        let _ = timestamp(system_time(hostile));
    }
}
