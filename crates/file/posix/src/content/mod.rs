//! The content of regular files.

mod allocate;
pub(crate) mod clone;
mod copy;
mod free;
mod read;
mod rewrite;
mod truncate;
mod write;

pub use allocate::Allocate;
pub use free::{FREE_BLOCKS_MAX, FREE_DIRTY_BYTES};
pub use read::{Extent, Seek};
pub use write::{CHUNK_BYTES, FILE_BYTES_MAX, WriteAt};

pub(crate) use write::grown_block_bytes;

use crate::FileKind;
use crate::error::FileError;

fn check_regular(kind: FileKind) -> Result<(), FileError> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FileError::IsADirectory),
        _ => Err(FileError::invalid("not an ordinary file")),
    }
}
