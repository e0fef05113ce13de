//! Reads and writes file content.

use super::attributes::CAPABILITIES;
use super::{Answered, EINVAL, EIO, ENOSYS, Handler, Refusal};
use crate::abi::{
    DATA_BYTES_MAX, OPEN_KEEP_CACHE, Operation, Reply, Request, WRITE_KILL_SUIDGID, feature,
};
use millpond_posix::vfs::VfsNode;
use millpond_posix::{Allocate, CacheHint, Caller, FileError, WriteAt};
use rustix::fs::OFlags;

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const PUNCH_AND_KEEP: u32 = PUNCH_HOLE | KEEP_SIZE;
const ZERO_RANGE: u32 = 0x10;
const ZERO_AND_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
/// `FUSE_WRITE_CACHE`: the data comes from dirty pages of a mapping.
const WRITE_CACHE: u32 = 1;
/// What OpenZFS aligns direct I/O to.
const PAGE_BYTES: u64 = 4096;
/// The file was opened with `O_DSYNC`, which `O_SYNC` includes. The value holds on all of Linux's
/// architectures but Alpha, MIPS, PA-RISC and SPARC.
const O_DSYNC: u32 = 0o10_000;
/// The most bytes copied for one request. The caller sends another request for the rest.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// The most bytes copied or shared for one request, which fit into its reply.
const SHARE_BYTES_MAX: u64 = 2 << 30;

fn put_written(data: &[u8], reply: &mut Reply<'_>) {
    reply.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
    reply.put_u32(0);
}

impl Handler<'_> {
    /// Opening a file needs no request: nodes serve as handles, and the kernel has checked permissions. The
    /// reply is `ENOSYS` once; the kernel then sends neither open nor close requests, and its cache stays
    /// valid.
    pub(super) fn open(&self, node: u64, reply: &mut Reply<'_>) -> Answered {
        if self.session.is_offered(feature::NO_OPEN_SUPPORT) {
            return Err(Refusal::Number(ENOSYS));
        }
        self.node(node)?;
        reply.put_open(OPEN_KEEP_CACHE);
        Ok(())
    }

    pub(super) fn read(
        &self,
        node: u64,
        (offset, length): (u64, u32),
        flags: u32,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let node = self.node(node)?;
        self.check_aligned(&node, flags, offset, u64::from(length))?;
        let room = reply.room((length as usize).min(DATA_BYTES_MAX));
        // Content in the kernel's page cache need not be cached here too.
        let hint = match flags & OFlags::DIRECT.bits() {
            0 => CacheHint::DropBehind,
            _ => CacheHint::Retain,
        };
        let count = (self.vfs).read_with_hint(&node, offset, room, hint)?;
        reply.filled(count);
        self.vfs.touch_atime(&node);
        Ok(())
    }

    /// Refuses direct I/O that is not aligned to pages, where the property `direct` says so.
    fn check_aligned(&self, node: &VfsNode, flags: u32, offset: u64, length: u64) -> Answered {
        let is_aligned = offset.is_multiple_of(PAGE_BYTES) && length.is_multiple_of(PAGE_BYTES);
        if flags & OFlags::DIRECT.bits() != 0 && !is_aligned && self.vfs.aligns_direct_io(node) {
            return Err(Refusal::Number(EINVAL));
        }
        Ok(())
    }

    pub(super) fn write(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answered {
        let Operation::Write {
            offset,
            write_flags,
            flags,
            data,
        } = request.operation
        else {
            return Err(Refusal::Number(EINVAL));
        };
        let is_of_mapping = write_flags & WRITE_CACHE != 0;
        let number = self.session.inode_number(request.node);
        if is_of_mapping && self.session.stale_pages.drops(number) {
            put_written(data, reply);
            return Ok(());
        }
        let node = self.node(request.node)?;
        if !is_of_mapping {
            self.check_aligned(&node, flags, offset, data.len() as u64)?;
            self.take_capabilities(&node)?;
        }
        let caller = Caller {
            is_privileged: write_flags & WRITE_KILL_SUIDGID == 0,
            ..Self::caller(request)
        };
        let at = WriteAt::Offset(offset);
        self.vfs.write(&caller, &node, at, data)?;
        if flags & O_DSYNC != 0 {
            // For cached writes the kernel sends its own fsync, which then has nothing left to do. For direct
            // writes it sends none.
            self.vfs.fsync(&node)?;
        }
        put_written(data, reply);
        Ok(())
    }

    /// Removes a program's capabilities before the program changes. Whether a file has any is looked up once.
    pub(super) fn take_capabilities(&self, node: &VfsNode) -> Answered {
        let number = node.number();
        match self.session.inodes.capabilities(number) {
            Some(false) => return Ok(()),
            Some(true) => {}
            None => match self.vfs.xattr(node, CAPABILITIES) {
                Ok(_) => {}
                Err(FileError::NoAttribute | FileError::NotSupported) => {
                    self.session.inodes.note_capabilities(number, Some(false));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            },
        }
        match self.vfs.remove_xattr(node, CAPABILITIES) {
            Ok(()) | Err(FileError::NoAttribute) => {}
            Err(error) => return Err(error.into()),
        }
        self.session.inodes.note_capabilities(number, Some(false));
        Ok(())
    }

    pub(super) fn fsync(&self, node: u64) -> Answered {
        if self
            .session
            .stale_pages
            .take_loss(self.session.inode_number(node))
        {
            return Err(Refusal::Number(EIO));
        }
        let node = self.node(node)?;
        Ok(self.vfs.fsync(&node)?)
    }

    pub(super) fn allocate(&self, node: u64, offset: u64, length: u64, mode: u32) -> Answered {
        let node = self.node(node)?;
        let what = match mode {
            0 => Allocate::Reserve { keeps_size: false },
            KEEP_SIZE => Allocate::Reserve { keeps_size: true },
            PUNCH_AND_KEEP => Allocate::PunchHole,
            ZERO_RANGE => Allocate::ZeroRange { keeps_size: false },
            ZERO_AND_KEEP => Allocate::ZeroRange { keeps_size: true },
            _ => return Err(FileError::NotSupported.into()),
        };
        Ok(self.vfs.allocate(&node, what, offset, length)?)
    }

    pub(super) fn copy_range(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answered {
        let Operation::CopyRange {
            offset,
            to,
            to_offset,
            length,
            is_wide,
        } = request.operation
        else {
            return Err(Refusal::Number(EINVAL));
        };
        let (from, to) = (self.node(request.node)?, self.node(to)?);
        let caller = Self::caller(request);
        self.take_capabilities(&to)?;
        let length = length.min(SHARE_BYTES_MAX);
        let (from, to) = ((&from, offset), (&to, to_offset));
        let copied = (self.vfs).copy_range(&caller, from, to, length, COPY_BYTES_MAX)?;
        match is_wide {
            true => reply.put_u64(copied),
            false => {
                reply.put_u32(u32::try_from(copied).unwrap_or(u32::MAX));
                reply.put_u32(0);
            }
        }
        Ok(())
    }
}
