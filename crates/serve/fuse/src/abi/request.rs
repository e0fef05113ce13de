//! Decodes requests.
//!
//! Any bytes decode to a value or an error. Names and data are borrowed, so decoding allocates nothing.

use super::{MAJOR, REQUEST_HEADER_BYTES, feature, opcode};

/// A malformed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request {opcode}: {reason}")]
pub struct ProtocolError {
    /// The request's type; 0 if the header could not be read.
    pub opcode: u32,
    /// What is wrong.
    pub reason: &'static str,
}

/// A request with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'r> {
    /// The request's number, which the reply repeats.
    pub unique: u64,
    /// The file of the request.
    pub node: u64,
    /// The caller's uid.
    pub uid: u32,
    /// The caller's gid.
    pub gid: u32,
    /// The caller's process id; 0 if it is in another pid namespace.
    pub pid: u32,
    /// The request type as a number.
    pub opcode: u32,
    /// The request type with its arguments.
    pub operation: Operation<'r>,
}

/// The arguments of `INIT`, the first request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Must be 7.
    pub major: u32,
    /// The kernel's minor version.
    pub minor: u32,
    /// The kernel's maximum readahead, in bytes.
    pub max_readahead: u32,
    /// The kernel's features; see [`feature`].
    pub features: u64,
}

/// The arguments of `SETATTR`. `valid` marks the fields that are set; see [`super::set_attr`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SetAttr {
    pub valid: u32,
    pub size: u64,
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The name and permissions of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewFile<'r> {
    /// The name in the request's directory.
    pub name: &'r [u8],
    /// The mode, with the file type.
    pub mode: u32,
    /// The process's umask.
    pub umask: u32,
}

/// A request with its arguments as the kernel sent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation<'r> {
    Init(InitRequest),
    Lookup {
        name: &'r [u8],
    },
    Forget {
        lookups: u64,
    },
    /// Pairs of node and lookup count, 16 bytes each.
    BatchForget {
        pairs: &'r [u8],
    },
    GetAttr,
    Statx {
        mask: u32,
    },
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'r [u8],
        target: &'r [u8],
    },
    MakeNode {
        new: NewFile<'r>,
        device: u32,
    },
    MakeDirectory(NewFile<'r>),
    Create {
        new: NewFile<'r>,
        flags: u32,
    },
    TemporaryFile {
        new: NewFile<'r>,
        flags: u32,
    },
    Unlink {
        name: &'r [u8],
    },
    RemoveDirectory {
        name: &'r [u8],
    },
    Rename {
        name: &'r [u8],
        new_directory: u64,
        new_name: &'r [u8],
        flags: u32,
    },
    Link {
        old: u64,
        name: &'r [u8],
    },
    Open {
        flags: u32,
    },
    OpenDirectory,
    Read {
        offset: u64,
        length: u32,
        flags: u32,
    },
    Write {
        offset: u64,
        write_flags: u32,
        flags: u32,
        data: &'r [u8],
    },
    Release,
    ReleaseDirectory,
    Flush,
    Fsync {
        is_data_only: bool,
    },
    FsyncDirectory,
    ReadDirectory {
        cookie: u64,
        length: u32,
        with_attributes: bool,
    },
    StatFs,
    SetXattr {
        name: &'r [u8],
        value: &'r [u8],
        flags: u32,
        ext_flags: u32,
    },
    GetXattr {
        name: &'r [u8],
        length: u32,
    },
    ListXattr {
        length: u32,
    },
    RemoveXattr {
        name: &'r [u8],
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    CopyRange {
        offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
        is_wide: bool,
    },
    Ioctl {
        command: u32,
        input: &'r [u8],
        output_length: u32,
    },
    SyncFs,
    Destroy,
    /// A request that is not supported. The kernel gets `ENOSYS` once and does without it.
    Other,
}

/// Decodes a device number from a request.
#[must_use]
pub fn decode_device(device: u32) -> (u32, u32) {
    let major = (device & 0xf_ff00) >> 8;
    let minor = (device & 0xff) | ((device >> 12) & 0xf_ff00);
    (major, minor)
}

/// The bytes of a request that are not decoded yet.
struct Arguments<'r> {
    bytes: &'r [u8],
    opcode: u32,
}

impl<'r> Arguments<'r> {
    fn error(&self, reason: &'static str) -> ProtocolError {
        ProtocolError {
            opcode: self.opcode,
            reason,
        }
    }
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (first, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or_else(|| self.error("too short"))?;
        self.bytes = rest;
        Ok(*first)
    }
    fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.take().map(u16::from_ne_bytes)
    }
    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.take().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.take().map(u64::from_ne_bytes)
    }
    fn skip<const N: usize>(&mut self) -> Result<(), ProtocolError> {
        self.take::<N>().map(|_| ())
    }
    fn bytes(&mut self, length: u32) -> Result<&'r [u8], ProtocolError> {
        let (first, rest) = self
            .bytes
            .split_at_checked(length as usize)
            .ok_or_else(|| self.error("data is cut off"))?;
        self.bytes = rest;
        Ok(first)
    }
    /// Takes a name that ends with a zero byte.
    fn name(&mut self) -> Result<&'r [u8], ProtocolError> {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let (name, rest) = end
            .and_then(|end| self.bytes.split_at_checked(end))
            .ok_or_else(|| self.error("a name has no end"))?;
        self.bytes = rest.get(1..).unwrap_or_default();
        Ok(name)
    }
}

impl<'r> Request<'r> {
    /// Decodes a message. `features` are the negotiated features, 0 before `INIT`.
    ///
    /// # Errors
    /// If it is truncated or inconsistent. The server replies with an error if the request's number is known;
    /// see [`Request::unique_of`].
    pub fn decode(message: &'r [u8], features: u64) -> Result<Self, ProtocolError> {
        let mut header = Arguments {
            bytes: message,
            opcode: 0,
        };
        let length = header.u32()?;
        let opcode = header.u32()?;
        header.opcode = opcode;
        let unique = header.u64()?;
        let node = header.u64()?;
        let (uid, gid, pid) = (header.u32()?, header.u32()?, header.u32()?);
        let extension_bytes = usize::from(header.u16()?) * 8;
        header.u16()?;
        if length as usize != message.len() {
            return Err(header.error("its length is not its length"));
        }
        let body_bytes = header
            .bytes
            .len()
            .checked_sub(extension_bytes)
            .ok_or_else(|| header.error("extensions are longer than it"))?;
        let arguments = Arguments {
            bytes: header.bytes.get(..body_bytes).unwrap_or_default(),
            opcode,
        };
        Ok(Self {
            unique,
            node,
            uid,
            gid,
            pid,
            opcode,
            operation: operation(arguments, features)?,
        })
    }

    /// The number of a request whose arguments could not be decoded; `None` if not even the header is
    /// complete.
    #[must_use]
    pub fn unique_of(message: &[u8]) -> Option<u64> {
        if message.len() < REQUEST_HEADER_BYTES {
            return None;
        }
        let bytes = message.get(8..16)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*bytes))
    }
}

fn operation(mut a: Arguments<'_>, features: u64) -> Result<Operation<'_>, ProtocolError> {
    Ok(match a.opcode {
        opcode::INIT => init(a)?,
        opcode::LOOKUP => Operation::Lookup { name: a.name()? },
        opcode::FORGET => Operation::Forget { lookups: a.u64()? },
        opcode::BATCH_FORGET => {
            let count = a.u32()?;
            a.u32()?;
            let pairs = count.checked_mul(16).ok_or_else(|| a.error("too many"))?;
            Operation::BatchForget {
                pairs: a.bytes(pairs)?,
            }
        }
        opcode::GETATTR => Operation::GetAttr,
        opcode::STATX => {
            a.skip::<20>()?;
            Operation::Statx { mask: a.u32()? }
        }
        opcode::SETATTR => set_attr(a)?,
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink {
            name: a.name()?,
            target: a.name()?,
        },
        opcode::MKNOD => {
            let (mode, device, umask) = (a.u32()?, a.u32()?, a.u32()?);
            a.u32()?;
            let name = a.name()?;
            let new = NewFile { name, mode, umask };
            Operation::MakeNode { new, device }
        }
        opcode::MKDIR => {
            let (mode, umask) = (a.u32()?, a.u32()?);
            let name = a.name()?;
            Operation::MakeDirectory(NewFile { name, mode, umask })
        }
        opcode::CREATE | opcode::TMPFILE => {
            let (flags, mode, umask) = (a.u32()?, a.u32()?, a.u32()?);
            a.u32()?;
            let name = a.name()?;
            let new = NewFile { name, mode, umask };
            match a.opcode {
                opcode::CREATE => Operation::Create { new, flags },
                _ => Operation::TemporaryFile { new, flags },
            }
        }
        opcode::UNLINK => Operation::Unlink { name: a.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: a.name()? },
        opcode::RENAME | opcode::RENAME2 => {
            let new_directory = a.u64()?;
            let flags = match a.opcode {
                opcode::RENAME => 0,
                _ => {
                    let flags = a.u32()?;
                    a.u32()?;
                    flags
                }
            };
            Operation::Rename {
                name: a.name()?,
                new_directory,
                new_name: a.name()?,
                flags,
            }
        }
        opcode::LINK => Operation::Link {
            old: a.u64()?,
            name: a.name()?,
        },
        _ => return content_operation(a, features),
    })
}

/// Operations on open files and directories, on extended attributes, and on the whole file system.
fn content_operation(mut a: Arguments<'_>, features: u64) -> Result<Operation<'_>, ProtocolError> {
    Ok(match a.opcode {
        opcode::OPEN => Operation::Open { flags: a.u32()? },
        opcode::OPENDIR => Operation::OpenDirectory,
        opcode::READ => {
            a.u64()?;
            let (offset, length) = (a.u64()?, a.u32()?);
            a.skip::<12>()?;
            let flags = a.u32()?;
            Operation::Read {
                offset,
                length,
                flags,
            }
        }
        opcode::WRITE => {
            a.u64()?;
            let (offset, length, write_flags) = (a.u64()?, a.u32()?, a.u32()?);
            a.u64()?;
            let flags = a.u32()?;
            a.u32()?;
            Operation::Write {
                offset,
                write_flags,
                flags,
                data: a.bytes(length)?,
            }
        }
        opcode::RELEASE => Operation::Release,
        opcode::RELEASEDIR => Operation::ReleaseDirectory,
        opcode::FLUSH => Operation::Flush,
        opcode::FSYNC => {
            a.u64()?;
            Operation::Fsync {
                is_data_only: a.u32()? & 1 != 0,
            }
        }
        opcode::FSYNCDIR => Operation::FsyncDirectory,
        opcode::READDIR | opcode::READDIRPLUS => {
            a.u64()?;
            Operation::ReadDirectory {
                cookie: a.u64()?,
                length: a.u32()?,
                with_attributes: a.opcode == opcode::READDIRPLUS,
            }
        }
        opcode::STATFS => Operation::StatFs,
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            return xattr_operation(a, features);
        }
        opcode::FALLOCATE => {
            a.u64()?;
            Operation::Allocate {
                offset: a.u64()?,
                length: a.u64()?,
                mode: a.u32()?,
            }
        }
        opcode::LSEEK => {
            a.u64()?;
            Operation::Seek {
                offset: a.u64()?,
                whence: a.u32()?,
            }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            a.u64()?;
            let (offset, to) = (a.u64()?, a.u64()?);
            a.u64()?;
            Operation::CopyRange {
                offset,
                to,
                to_offset: a.u64()?,
                length: a.u64()?,
                is_wide: a.opcode == opcode::COPY_FILE_RANGE_64,
            }
        }
        opcode::IOCTL => {
            a.skip::<12>()?;
            let command = a.u32()?;
            a.u64()?;
            let (input_length, output_length) = (a.u32()?, a.u32()?);
            Operation::Ioctl {
                command,
                input: a.bytes(input_length)?,
                output_length,
            }
        }
        opcode::SYNCFS => Operation::SyncFs,
        opcode::DESTROY => Operation::Destroy,
        _ => Operation::Other,
    })
}

fn xattr_operation(mut a: Arguments<'_>, features: u64) -> Result<Operation<'_>, ProtocolError> {
    Ok(match a.opcode {
        opcode::SETXATTR => {
            let (length, flags) = (a.u32()?, a.u32()?);
            let ext_flags = match features & feature::SETXATTR_EXT {
                0 => 0,
                _ => {
                    let ext_flags = a.u32()?;
                    a.u32()?;
                    ext_flags
                }
            };
            Operation::SetXattr {
                name: a.name()?,
                value: a.bytes(length)?,
                flags,
                ext_flags,
            }
        }
        opcode::GETXATTR => {
            let length = a.u32()?;
            a.u32()?;
            let name = a.name()?;
            Operation::GetXattr { name, length }
        }
        opcode::LISTXATTR => Operation::ListXattr { length: a.u32()? },
        _ => Operation::RemoveXattr { name: a.name()? },
    })
}

fn init(mut a: Arguments<'_>) -> Result<Operation<'_>, ProtocolError> {
    let (major, minor) = (a.u32()?, a.u32()?);
    // With another major version, the rest of the message has an unknown format.
    if major != MAJOR {
        return Ok(Operation::Init(InitRequest {
            major,
            minor,
            max_readahead: 0,
            features: 0,
        }));
    }
    let (max_readahead, flags) = (a.u32()?, u64::from(a.u32()?));
    let more = match flags & feature::INIT_EXT {
        0 => 0,
        _ => u64::from(a.u32()?),
    };
    Ok(Operation::Init(InitRequest {
        major,
        minor,
        max_readahead,
        features: flags | more << 32,
    }))
}

fn set_attr(mut a: Arguments<'_>) -> Result<Operation<'_>, ProtocolError> {
    let valid = a.u32()?;
    a.skip::<12>()?;
    let size = a.u64()?;
    a.u64()?;
    // Seconds are signed, although the header file declares them unsigned.
    let (atime_s, mtime_s) = (a.u64()?.cast_signed(), a.u64()?.cast_signed());
    a.u64()?;
    let (atime_ns, mtime_ns) = (a.u32()?, a.u32()?);
    a.u32()?;
    let mode = a.u32()?;
    a.u32()?;
    let (uid, gid) = (a.u32()?, a.u32()?);
    Ok(Operation::SetAttr(SetAttr {
        valid,
        size,
        atime: (atime_s, atime_ns),
        mtime: (mtime_s, mtime_ns),
        mode,
        uid,
        gid,
    }))
}
#[cfg(test)]
mod tests;
