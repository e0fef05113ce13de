//! Looks up, creates, renames and removes names.

use super::{Answered, EINVAL, ENOSYS, Handler, LONG_S, Refusal, place};
use crate::abi::{NewFile, OPEN_KEEP_CACHE, Operation, Reply, Request, decode_device, feature};
use millpond_posix::vfs::{VfsNode, VfsPlace};
use millpond_posix::{Caller, FileError, FileKind, NewMode, RenameMode, SpecialFile};

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const O_EXCL: u32 = 0o200;

fn mode(new: &NewFile<'_>) -> NewMode {
    NewMode {
        mode: new.mode & 0o7777,
        umask: new.umask & 0o777,
    }
}

impl Handler<'_> {
    pub(super) fn lookup(&self, node: u64, name: &[u8], reply: &mut Reply<'_>) -> Answered {
        let directory = self.node(node)?;
        match self.vfs.lookup(place(&directory, name)) {
            Ok(node) => Ok(self.tell_found(&node, directory.is_virtual(), reply)?),
            Err(FileError::NotFound) if name.len() > self.vfs.name_bytes_max() => {
                Err(FileError::NameTooLong.into())
            }
            // The kernel also caches missing names, if no other name can match the same file.
            // `.zfs` comes and goes with the property `snapdir`.
            Err(FileError::NotFound) if name != b".zfs" && self.keeps_absence(&directory) => {
                reply.put_absence(LONG_S);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn keeps_absence(&self, directory: &VfsNode) -> bool {
        !directory.is_virtual() && self.vfs.has_exact_names()
    }

    pub(super) fn forget(&self, node: u64, lookups: u64) -> Answered {
        // The root stays, regardless of the kernel's count.
        if self.session.inode_number(node) == self.session.root() {
            return Ok(());
        }
        let number = self.session.inode_number(node);
        let gone = self.session.inodes.forget(number, lookups);
        self.session.stale_pages.forget(number);
        if gone.is_some_and(|node| node.is_unlinked()) {
            self.vfs.reap()?;
        }
        Ok(())
    }

    pub(super) fn batch_forget(&self, pairs: &[u8]) -> Answered {
        let (pairs, _) = pairs.as_chunks::<8>();
        let mut words = pairs.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        while let (Some(node), Some(lookups)) = (words.next(), words.next()) {
            self.forget(node, lookups)?;
        }
        Ok(())
    }

    pub(super) fn read_link(&self, node: u64, reply: &mut Reply<'_>) -> Answered {
        let node = self.node(node)?;
        let target = self.vfs.link_target(&node)?;
        self.vfs.touch_atime(&node);
        reply.put(&target);
        Ok(())
    }

    /// Creates a file with `make` in the request's directory, and adds it to the reply.
    fn made(
        &self,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
        make: impl FnOnce(&Caller, &VfsNode) -> Result<VfsNode, FileError>,
    ) -> Answered {
        let directory = self.node(request.node)?;
        let node = make(&Self::caller_in(request, &directory), &directory)?;
        Ok(self.tell_found(&node, directory.is_virtual(), reply)?)
    }

    pub(super) fn symlink(
        &self,
        request: &Request<'_>,
        name: &[u8],
        target: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answered {
        self.made(request, reply, |caller, directory| {
            let at = place(directory, name);
            self.vfs.make_symlink(caller, at, target)
        })
    }

    pub(super) fn make_node(
        &self,
        request: &Request<'_>,
        new: NewFile<'_>,
        device: u32,
        reply: &mut Reply<'_>,
    ) -> Answered {
        let (major, minor) = decode_device(device);
        let what = match FileKind::from_mode(u64::from(new.mode)) {
            Some(FileKind::Regular) | None => None,
            Some(FileKind::Fifo) => Some(SpecialFile::Fifo),
            Some(FileKind::Socket) => Some(SpecialFile::Socket),
            Some(FileKind::CharacterDevice) => Some(SpecialFile::CharacterDevice(major, minor)),
            Some(FileKind::BlockDevice) => Some(SpecialFile::BlockDevice(major, minor)),
            Some(FileKind::Directory | FileKind::Symlink) => return Err(Refusal::Number(EINVAL)),
        };
        let mut made = None;
        self.made(request, reply, |caller, directory| {
            let at = place(directory, new.name);
            match what {
                Some(what) => self.vfs.make_special(caller, at, what, mode(&new)),
                None => {
                    let (node, _) = self.vfs.create(caller, at, mode(&new), true)?;
                    made = Some(node.number());
                    Ok(node)
                }
            }
        })?;
        if let Some(number) = made {
            // The new file has no capabilities, so the first write need not look them up.
            self.session.inodes.note_capabilities(number, Some(false));
        }
        Ok(())
    }

    pub(super) fn make_directory(
        &self,
        request: &Request<'_>,
        new: NewFile<'_>,
        reply: &mut Reply<'_>,
    ) -> Answered {
        self.made(request, reply, |caller, directory| {
            let at = place(directory, new.name);
            self.vfs.make_directory(caller, at, mode(&new))
        })
    }

    pub(super) fn create(
        &self,
        request: &Request<'_>,
        new: NewFile<'_>,
        flags: u32,
        reply: &mut Reply<'_>,
    ) -> Answered {
        if self.session.is_offered(feature::NO_OPEN_SUPPORT) {
            // After `ENOSYS` the kernel creates files like pipes, with `MKNOD`, and closes nothing
            // afterwards. That saves one request per new file.
            return Err(Refusal::Number(ENOSYS));
        }
        let is_exclusive = flags & O_EXCL != 0;
        let mut made = None;
        self.made(request, reply, |caller, directory| {
            let at = place(directory, new.name);
            let (node, is_new) = self.vfs.create(caller, at, mode(&new), is_exclusive)?;
            made = is_new.then(|| node.number());
            Ok(node)
        })?;
        if let Some(number) = made {
            // The new file has no capabilities, so the first write need not look them up.
            self.session.inodes.note_capabilities(number, Some(false));
        }
        reply.put_open(OPEN_KEEP_CACHE);
        Ok(())
    }

    pub(super) fn create_tmpfile(
        &self,
        request: &Request<'_>,
        new: NewFile<'_>,
        reply: &mut Reply<'_>,
    ) -> Answered {
        self.made(request, reply, |caller, directory| {
            self.vfs.create_tmpfile(caller, directory, mode(&new))
        })?;
        reply.put_open(OPEN_KEEP_CACHE);
        Ok(())
    }

    /// The file that a name refers to. It is held while the name is removed, because the kernel may still use
    /// it. A snapshot is not: it could not be destroyed.
    fn victim(&self, at: VfsPlace<'_>) -> Option<VfsNode> {
        match at.directory.is_virtual() {
            true => None,
            false => self.vfs.lookup(at).ok(),
        }
    }

    fn removed(
        &self,
        request: &Request<'_>,
        name: &[u8],
        remove: impl FnOnce(&Caller, VfsPlace<'_>) -> Result<(), FileError>,
    ) -> Answered {
        let directory = self.node(request.node)?;
        let at = place(&directory, name);
        let victim = self.victim(at);
        remove(&Self::caller_in(request, &directory), at)?;
        self.close_victim(victim)
    }

    pub(super) fn unlink(&self, request: &Request<'_>, name: &[u8]) -> Answered {
        self.removed(request, name, |_, at| self.vfs.unlink(at))
    }

    pub(super) fn remove_directory(&self, request: &Request<'_>, name: &[u8]) -> Answered {
        self.removed(request, name, |caller, at| {
            self.vfs.remove_directory(caller, at)
        })
    }

    fn close_victim(&self, victim: Option<VfsNode>) -> Answered {
        let Some(victim) = victim else {
            return Ok(());
        };
        self.session.inodes.keep_unlinked(&victim);
        let is_unlinked = victim.is_unlinked();
        drop(victim);
        if is_unlinked {
            self.vfs.reap()?;
        }
        Ok(())
    }

    pub(super) fn rename(&self, request: &Request<'_>) -> Answered {
        let Operation::Rename {
            name,
            new_directory,
            new_name,
            flags,
        } = request.operation
        else {
            return Err(Refusal::Number(EINVAL));
        };
        const BOTH: u32 = RENAME_NOREPLACE | RENAME_WHITEOUT;
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            RENAME_WHITEOUT => RenameMode::Whiteout,
            BOTH => RenameMode::WhiteoutNoReplace,
            _ => return Err(Refusal::Number(EINVAL)),
        };
        let (from, to) = (self.node(request.node)?, self.node(new_directory)?);
        let caller = Self::caller_in(request, &from);
        let (from, to) = (place(&from, name), place(&to, new_name));
        let victim = match mode {
            RenameMode::Replace | RenameMode::Whiteout => self.victim(to),
            _ => None,
        };
        self.vfs.rename(&caller, from, to, mode)?;
        self.close_victim(victim)
    }

    pub(super) fn link(
        &self,
        old: u64,
        directory: u64,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answered {
        let (node, directory) = (self.node(old)?, self.node(directory)?);
        self.vfs.link(&node, place(&directory, name))?;
        Ok(self.tell(&node, reply)?)
    }
}
