//! `lsattr`, `chattr`, project ids, generations and `zfs rewrite`, which arrive as ioctl requests.

use super::{Answered, Handler, Refusal};
use crate::abi::{Reply, Request, feature};
use millpond_posix::vfs::VfsNode;
use millpond_posix::{FileError, FileFlags, SetAttributes, Stat};

/// `FS_IOC_GETVERSION`. Its number says eight bytes, but programs have room for four.
const GET_VERSION: u32 = 0x8008_7601;
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;
/// `ZFS_IOC_REWRITE` of OpenZFS 2.4: offset, length, flags, 0.
const REWRITE: u32 = 0x4020_8303;
/// The blocks keep their logical births.
const KEEPS_BIRTHS: u64 = 1;
/// "Not a typewriter": the file does not support the request.
const ENOTTY: i32 = 25;
const EPERM: i32 = 1;
const EBADF: i32 = 9;

/// File flags: here, in `FS_IOC_GETFLAGS`, in `FS_IOC_FSGETXATTR`.
const FLAGS: [(FileFlags, u32, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x10, 0x8),
    (FileFlags::APPENDONLY, 0x20, 0x10),
    (FileFlags::NODUMP, 0x40, 0x80),
    (FileFlags::PROJECT_INHERIT, 0x2000_0000, 0x200),
];

/// Which flags a change sets and clears; `None` if it sets an unknown flag.
fn changes(
    old: &Stat,
    bits: u32,
    known: impl Fn(&(FileFlags, u32, u32)) -> u32,
) -> Option<SetAttributes> {
    let all: u32 = FLAGS.iter().map(&known).fold(0, |all, bit| all | bit);
    let mut set = SetAttributes::default();
    for entry in &FLAGS {
        match (bits & known(entry) != 0, old.flags.contains(entry.0)) {
            (true, false) => set.set_flags |= entry.0,
            (false, true) => set.clear_flags |= entry.0,
            _ => {}
        }
    }
    (bits & !all == 0).then_some(set)
}

fn shown(stat: &Stat, known: impl Fn(&(FileFlags, u32, u32)) -> u32) -> u32 {
    let set = FLAGS.iter().filter(|entry| stat.flags.contains(entry.0));
    set.map(known).fold(0, |all, bit| all | bit)
}

fn word(input: &[u8], at: usize) -> Result<u32, Refusal> {
    let bytes = input.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(Refusal::Number(super::EINVAL))
}

impl Handler<'_> {
    /// Checks whether the caller may change flags.
    ///
    /// Kernels since Linux 5.13 check that themselves, by capabilities that are not part of the request.
    /// Older kernels pass on every change that a program requests.
    fn judge_flags(&self, user: u32, stat: &Stat, set: &SetAttributes) -> Result<(), Refusal> {
        // This feature came with the same release.
        if user == 0 || self.session.is_offered(feature::SETXATTR_EXT) {
            return Ok(());
        }
        let changed = set.set_flags | set.clear_flags;
        let is_for_root = changed.contains(FileFlags::IMMUTABLE)
            || changed.contains(FileFlags::APPENDONLY)
            || set.project.is_some();
        match is_for_root || user != stat.uid {
            true => Err(Refusal::Number(EPERM)),
            false => Ok(()),
        }
    }

    pub(super) fn ioctl(
        &self,
        request: &Request<'_>,
        command: u32,
        input: &[u8],
        output_length: u32,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let node = self.node(request.node)?;
        let caller = Self::caller(request);
        // The result, flags, and two counts that only unrestricted requests use.
        reply.put(&[0; 16]);
        let stat = self.vfs.stat(&node)?;
        match command {
            // Kernels know the low half, also that of OpenZFS.
            GET_VERSION => {
                let generation = node.generation() & u64::from(u32::MAX);
                reply.put_u32(u32::try_from(generation).unwrap_or_default());
            }
            GET_FLAGS => {
                let flags = u64::from(shown(&stat, |flag| flag.1)).to_ne_bytes();
                let length = (output_length as usize).min(flags.len());
                reply.put(flags.get(..length).unwrap_or_default());
            }
            SET_FLAGS => {
                let set = changes(&stat, word(input, 0)?, |flag| flag.1);
                let set = set.ok_or(FileError::NotSupported)?;
                self.judge_flags(request.uid, &stat, &set)?;
                self.vfs.set_attributes(&caller, &node, &set)?;
            }
            GET_XFLAGS => {
                let project = stat.project.and_then(|id| u32::try_from(id).ok());
                for word in [shown(&stat, |flag| flag.2), 0, 0, project.unwrap_or(0), 0] {
                    reply.put_u32(word);
                }
                reply.put(&[0; 8]);
            }
            SET_XFLAGS => {
                let set = changes(&stat, word(input, 0)?, |flag| flag.2);
                let mut set = set.ok_or(FileError::NotSupported)?;
                let project = word(input, 12)?;
                let is_other = stat.project.unwrap_or(0) != u64::from(project);
                set.project = is_other.then_some(project);
                self.judge_flags(request.uid, &stat, &set)?;
                self.vfs.set_attributes(&caller, &node, &set)?;
            }
            REWRITE => self.rewrite(request, &node, &stat, input)?,
            _ => return Err(Refusal::Number(ENOTTY)),
        }
        Ok(())
    }

    /// Stores a range of a file again.
    ///
    /// The kernel does not say how the file was opened. So a caller who is not the superuser must be one who may write the
    /// file by its mode; groups beside the caller's first one and lists of permissions are not known here.
    fn rewrite(
        &self,
        request: &Request<'_>,
        node: &VfsNode,
        stat: &Stat,
        input: &[u8],
    ) -> Answered {
        let words: Vec<u64> = (input.chunks_exact(8))
            .filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes))
            .collect();
        let [offset, length, flags, 0] = words[..] else {
            return Err(Refusal::Number(super::EINVAL));
        };
        if flags & !KEEPS_BIRTHS != 0 {
            return Err(Refusal::Number(super::EINVAL));
        }
        let shift = match request {
            _ if request.uid == stat.uid => 6,
            _ if request.gid == stat.gid => 3,
            _ => 0,
        };
        if request.uid != 0 && stat.permissions >> shift & 0o2 == 0 {
            return Err(Refusal::Number(EBADF));
        }
        let keeps_births = flags & KEEPS_BIRTHS != 0;
        Ok(self.vfs.rewrite(node, offset, length, keeps_births)?)
    }
}
