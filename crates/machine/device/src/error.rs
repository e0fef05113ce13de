use std::io;
use std::path::Path;

/// The error of a device request or of an open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system's error for a request at this byte range.
    #[error("{action} of {length_bytes} bytes at byte {offset_bytes} failed: {message}")]
    Io {
        /// "read", "write", "flush" or "discard".
        action: &'static str,
        /// Start of the request in bytes.
        offset_bytes: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// The operating system's errno (0 if unknown).
        errno: i32,
        /// The operating system's message.
        message: String,
    },
    /// The request lies beyond the end of the device.
    #[error(
        "{length_bytes} bytes at byte {offset_bytes} lie beyond the device's end at {size_bytes}"
    )]
    OutOfRange {
        /// Start of the request in bytes.
        offset_bytes: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// Size of the device in bytes.
        size_bytes: u64,
    },
    /// The device cannot be opened.
    #[error("cannot open {path}: {message}")]
    Open {
        /// The path that was tried.
        path: String,
        /// The operating system's errno (0 if unknown).
        errno: i32,
        /// The operating system's message.
        message: String,
    },
    /// The device was opened for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
    /// Another program has the device open.
    #[error("{path} is in use{}", holder_words(*.process))]
    InUse {
        /// The path that was tried.
        path: String,
        /// The process that holds the lock, if the system reports it.
        process: Option<u32>,
    },
    /// The path is neither a regular file nor a block device.
    #[error("{path} is neither a regular file nor a block device")]
    WrongKind {
        /// The path that was tried.
        path: String,
    },
    /// The device is smaller than the required minimum.
    #[error("{path} has {size_bytes} bytes, fewer than {minimum_bytes}")]
    TooSmall {
        /// The path that was tried.
        path: String,
        /// Size of the device in bytes.
        size_bytes: u64,
        /// The minimum size in bytes.
        minimum_bytes: u64,
    },
}

fn holder_words(process: Option<u32>) -> String {
    process.map_or_else(String::new, |id| format!(" by process {id}"))
}

impl DeviceError {
    /// The error of a system call for a byte range.
    pub(crate) fn io(
        action: &'static str,
        offset_bytes: u64,
        length_bytes: u64,
        error: &io::Error,
    ) -> Self {
        Self::Io {
            action,
            offset_bytes,
            length_bytes,
            errno: error.raw_os_error().unwrap_or(0),
            message: error.to_string(),
        }
    }
    /// The error of an attempt to open `path`.
    pub(crate) fn open(path: &Path, error: &io::Error) -> Self {
        Self::Open {
            path: path.display().to_string(),
            errno: error.raw_os_error().unwrap_or(0),
            message: error.to_string(),
        }
    }
    /// Checks that a request is within a device of `size_bytes`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`].
    pub fn check_range(offset_bytes: u64, length_bytes: u64, size_bytes: u64) -> Result<(), Self> {
        match offset_bytes.checked_add(length_bytes) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(Self::OutOfRange {
                offset_bytes,
                length_bytes,
                size_bytes,
            }),
        }
    }
}
