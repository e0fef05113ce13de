//! Why a stream cannot be read.

/// What is wrong with a stream. Offsets are in bytes from its start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The input cannot be read.
    #[error("the stream cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// It does not begin as a stream does.
    #[error("invalid stream (bad magic number)")]
    Magic,
    /// The input ends within the stream.
    #[error("incomplete stream: it ends at byte {at}")]
    Truncated {
        /// Where it ends.
        at: u64,
    },
    /// A checksum does not match. What was read since the last record is damaged.
    #[error("checksum mismatch before byte {at}")]
    Checksum {
        /// The end of the header that holds the checksum.
        at: u64,
    },
    /// A record that no writer produces.
    #[error("invalid record at byte {at}: {reason}")]
    Invalid {
        /// Where the record begins.
        at: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}
