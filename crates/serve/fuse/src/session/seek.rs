//! Finds the next data or hole of a file, with what programs wrote through mappings.
//!
//! The kernel asks for it without writing the changed pages of mappings back first. A hole is therefore only believed after
//! its range was written back. Copies skip holes, so they would lack that data otherwise.

use super::handler::Handler;
use super::{Answered, EINVAL, EIO, Refusal, Session};
use crate::abi::Reply;
use millpond_env::sync::Arc;
use millpond_posix::vfs::VfsNode;
use millpond_posix::{FileError, Seek};
use std::ops::Range;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Makes the kernel write changed pages.
pub trait WriteBack: Send + Sync {
    /// Makes the kernel write the changed pages of a range of bytes of a file, and waits until it did. The requests for that
    /// come to other threads.
    ///
    /// Returns false, without having done so, if too few threads are left for these requests.
    fn write_back(&self, node: u64, bytes: Range<u64>) -> bool;
}

/// What the file system says.
struct Found {
    outcome: Result<u64, FileError>,
    /// The bytes that the program would take for a hole.
    hole: Range<u64>,
    /// The answer if the whole file is taken for data: always right.
    if_all_is_data: u64,
}

impl Session {
    /// Sets how pages are written back. Without it, data in the kernel's changed pages can look like holes.
    pub fn set_write_back(&mut self, write_back: Arc<dyn WriteBack>) {
        self.write_back = Some(write_back);
    }

    /// Answers `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
    pub(super) fn seek(
        &self,
        node: u64,
        offset: u64,
        whence: u32,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Refusal::Number(EINVAL)),
        };
        let mut written = 0..0;
        loop {
            let found = self.find(node, what, offset)?;
            if let Some(kernel) = &self.write_back
                && !found.hole.is_empty()
                && !written.contains(&found.hole.start)
            {
                // Not while the request is inside the gate: it may close, and then the writes wait.
                if !kernel.write_back(node, found.hole.clone()) {
                    reply.put_u64(found.if_all_is_data);
                    return Ok(());
                }
                written = found.hole;
                continue;
            }
            reply.put_u64(found.outcome?);
            return Ok(());
        }
    }

    fn find(&self, node: u64, what: Seek, offset: u64) -> Result<Found, Refusal> {
        let pass = self.gate.enter();
        let Some(vfs) = pass.as_ref().and_then(super::gate::Pass::served) else {
            return Err(Refusal::Number(EIO));
        };
        let handler = Handler { session: self, vfs };
        Ok(handler.find(&handler.node(node)?, what, offset)?)
    }
}

impl Handler<'_> {
    fn find(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<Found, FileError> {
        let outcome = self.vfs.seek(node, what, offset);
        let none = |outcome| Found {
            outcome,
            hole: 0..0,
            if_all_is_data: offset,
        };
        // Pages of snapshots do not change.
        if node.number().tag() != 0 {
            return Ok(none(outcome));
        }
        let size = match &outcome {
            Ok(_) | Err(FileError::NoData) => self.vfs.stat(node)?.size_bytes,
            Err(_) => return Ok(none(outcome)),
        };
        let (hole, if_all_is_data) = match (what, &outcome) {
            (_, _) if offset >= size => (0..0, offset),
            (Seek::Data, Ok(data)) => (offset..*data, offset),
            (Seek::Data, Err(_)) => (offset..size, offset),
            (Seek::Hole, Ok(hole)) if *hole < size => {
                let end = match self.vfs.seek(node, Seek::Data, *hole) {
                    Ok(data) => data,
                    Err(FileError::NoData) => size,
                    Err(error) => return Err(error),
                };
                (*hole..end, size)
            }
            (Seek::Hole, _) => (0..0, size),
        };
        Ok(Found {
            outcome,
            hole,
            if_all_is_data,
        })
    }
}
