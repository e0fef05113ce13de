//! Why stored streams cannot be opened.

use millpond_engine::ReceiveProblem;
use std::io;
use std::path::PathBuf;

/// Why stored streams cannot be opened. Inputs are called by their paths, standard input `-`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// A file cannot be opened or read.
    #[error("{}: {error}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The input is no stream, or its first record is damaged.
    #[error("{}: {reason}", path.display())]
    NoStream {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The older snapshot of an increment is in none of the inputs.
    #[error(
        "{}: this is the change of '{name}' since the snapshot with guid {guid}, which is missing: name the stream that \
         has that snapshot too",
        path.display()
    )]
    MissingBase {
        /// The path of the increment.
        path: PathBuf,
        /// The full name of its snapshot at the sender.
        name: String,
        /// The guid of the older snapshot.
        guid: u64,
    },
    /// The input is the rest of an interrupted stream.
    #[error(
        "{}: this is the rest of an interrupted stream: it can only be received where its beginning was received",
        path.display()
    )]
    Rest {
        /// Its path.
        path: PathBuf,
    },
    /// A stream cannot be applied.
    #[error("{}: {problem}", path.display())]
    Receive {
        /// Its path.
        path: PathBuf,
        /// Why not.
        problem: Box<ReceiveProblem>,
    },
    /// The file that was named as the index is none, so it is not replaced.
    #[error("{}: this is no index, and is not replaced", path.display())]
    NoIndex {
        /// Its path.
        path: PathBuf,
    },
    /// An index belongs to regular files.
    #[error("{}: only streams in files have an index", path.display())]
    NotIndexed {
        /// Its path.
        path: PathBuf,
    },
    /// The scratch pool cannot be made or read.
    #[error("cannot build the file system of the stream: {0}")]
    Pool(#[from] millpond_engine::Error),
    /// The scratch pool is not found on its device.
    #[error("the file system of the stream is damaged")]
    NoPool,
}
