//! Files of the pools that are measured.

use crate::SeededRng;
use anyhow::Result;
use millpond_engine::{Caller, FileSystem, NewMode, Node, WriteAt};
use std::sync::Arc;

/// Bytes of one write.
const CHUNK_BYTES: u64 = 1 << 20;

/// Creates a file in the root directory.
///
/// # Errors
/// Those of the file system.
pub fn new_file(files: &Arc<FileSystem>, name: &str) -> Result<Node> {
    let mode = NewMode::exactly(0o644);
    let root = files.root()?;
    let (node, _) = files.create(&Caller::root(), &root, name.as_bytes(), mode, false)?;
    Ok(node)
}

/// Writes a file whose content follows from `seed`, and in which no block is like another.
///
/// # Errors
/// Those of the file system.
pub fn write_file(files: &Arc<FileSystem>, name: &str, length: u64, seed: u64) -> Result<()> {
    let node = new_file(files, name)?;
    let mut rng = SeededRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut at = 0;
    while at < length {
        let count = (length - at).min(CHUNK_BYTES);
        let bytes = rng.bytes(usize::try_from(count)?, false);
        files.write(&Caller::root(), &node, WriteAt::Offset(at), &bytes)?;
        at += count;
    }
    Ok(())
}

/// Reads a file from its beginning to its end. Returns its length in bytes.
///
/// # Errors
/// Those of the file system.
pub fn read_file(node: &Node) -> Result<u64> {
    let mut buffer = vec![0; usize::try_from(CHUNK_BYTES)?];
    let mut at = 0;
    loop {
        match node.read(at, &mut buffer)? {
            0 => return Ok(at),
            count => at += count as u64,
        }
    }
}
