//! Answers one request with the files that the session serves.

use super::attributes;
use super::{Answered, EINVAL, ENOSYS, LONG_S, Refusal, SHORT_S, Session};
use crate::abi::{Attributes, EntryValidity, Operation, Reply, Request};
use millpond_env::process::{Credentials, shares_users};
use millpond_posix::vfs::{Vfs, VfsNode, VfsPlace};
use millpond_posix::{Caller, FileError};

/// A session with the files that it serves until this request is answered.
pub(super) struct Handler<'s> {
    pub(super) session: &'s Session,
    pub(super) vfs: &'s dyn Vfs,
}

impl Handler<'_> {
    pub(super) fn perform(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answered {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::Forget { lookups } => self.forget(node, lookups),
            Operation::BatchForget { pairs } => self.batch_forget(pairs),
            Operation::GetAttr => self.get_attributes(node, reply),
            Operation::Statx { mask } => self.statx(node, mask, reply),
            Operation::SetAttr(set) => self.set_attributes(request, &set, reply),
            Operation::ReadLink => self.read_link(node, reply),
            Operation::Symlink { name, target } => self.symlink(request, name, target, reply),
            Operation::MakeNode { new, device } => self.make_node(request, new, device, reply),
            Operation::MakeDirectory(new) => self.make_directory(request, new, reply),
            Operation::Create { new, flags } => self.create(request, new, flags, reply),
            Operation::TemporaryFile { new, .. } => self.create_tmpfile(request, new, reply),
            Operation::Unlink { name } => self.unlink(request, name),
            Operation::RemoveDirectory { name } => self.remove_directory(request, name),
            Operation::Rename { .. } => self.rename(request),
            Operation::Link { old, name } => self.link(old, node, name, reply),
            Operation::Open { .. } => self.open(node, reply),
            Operation::OpenDirectory => self.open_directory(node, reply),
            Operation::Read {
                offset,
                length,
                flags,
            } => self.read(node, (offset, length), flags, reply),
            Operation::Write { .. } => self.write(request, reply),
            Operation::Release | Operation::ReleaseDirectory => Ok(()),
            Operation::Fsync { .. } | Operation::FsyncDirectory => self.fsync(node),
            Operation::ReadDirectory {
                cookie,
                length,
                with_attributes,
            } => self.read_directory(node, cookie, length, with_attributes, reply),
            Operation::StatFs => self.stat_file_system(node, reply),
            Operation::SetXattr { .. } => self.set_xattr(request),
            Operation::GetXattr { name, length } => self.get_xattr(node, name, length, reply),
            Operation::ListXattr { length } => self.list_xattr(node, length, reply),
            Operation::RemoveXattr { name } => self.remove_xattr(node, name),
            Operation::Allocate {
                offset,
                length,
                mode,
            } => self.allocate(node, offset, length, mode),
            Operation::CopyRange { .. } => self.copy_range(request, reply),
            Operation::Ioctl {
                command,
                input,
                output_length,
            } => self.ioctl(request, command, input, output_length, reply),
            // Closing a descriptor needs no work. After `ENOSYS` the kernel stops sending this request.
            Operation::Flush | Operation::SyncFs | Operation::Other => Err(Refusal::Number(ENOSYS)),
            // The session answers these.
            Operation::Init(_) | Operation::Destroy | Operation::Seek { .. } => {
                Err(Refusal::Number(EINVAL))
            }
        }
    }

    pub(super) fn node(&self, node: u64) -> Result<VfsNode, FileError> {
        let number = self.session.inode_number(node);
        self.session.inodes.get(self.vfs, number)
    }

    /// The request's caller, with full privileges.
    ///
    /// The kernel has already checked permissions. It clears mode bits itself, or says in the request that
    /// they are to be cleared.
    pub(super) fn caller(request: &Request<'_>) -> Caller {
        Caller {
            uid: request.uid,
            gid: request.gid,
            groups: vec![],
            is_privileged: true,
        }
    }

    /// The request's caller for a change in a directory. In `.zfs/snapshot` it is the user that the program runs as, because
    /// the kernel cannot know who may change snapshots.
    ///
    /// The program waits for the reply in the kernel, so its process id stays its own.
    pub(super) fn caller_in(request: &Request<'_>, directory: &VfsNode) -> Caller {
        if !directory.is_virtual() {
            return Self::caller(request);
        }
        let credentials = Credentials::of(request.pid)
            .filter(|credentials| credentials.acts_as(request.uid, request.gid));
        let is_administrator = credentials
            .as_ref()
            .is_some_and(Credentials::is_administrator);
        Caller {
            uid: request.uid,
            gid: request.gid,
            groups: credentials.map_or_else(Vec::new, |credentials| credentials.groups),
            is_privileged: is_administrator && shares_users(request.pid),
        }
    }

    /// Adds a file to the reply, and counts the lookup.
    pub(super) fn tell(&self, node: &VfsNode, reply: &mut Reply<'_>) -> Result<(), FileError> {
        self.tell_found(node, false, reply)
    }

    /// Like [`Handler::tell`]. `is_passing` marks entries that come and go by themselves; their names are not
    /// cached.
    pub(super) fn tell_found(
        &self,
        node: &VfsNode,
        is_passing: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), FileError> {
        let (mut validity, attributes) = self.attributes_of(node)?;
        if is_passing {
            validity.entry_s = 0;
        }
        let number = self.session.node_number(node.number());
        reply.put_entry(number, node.generation(), validity, &attributes);
        self.session.inodes.add(node);
        Ok(())
    }

    /// How long the kernel may cache a file's entry and attributes.
    ///
    /// Call this before reading the attributes. Otherwise a change that is committed in between would let the
    /// kernel cache the old space usage for long.
    fn validity(&self, node: &VfsNode) -> EntryValidity {
        if node.is_virtual() {
            return EntryValidity {
                entry_s: 0,
                attributes_s: 0,
            };
        }
        if node.is_committed() {
            return EntryValidity {
                entry_s: LONG_S,
                attributes_s: LONG_S,
            };
        }
        EntryValidity {
            entry_s: if self.vfs.has_exact_names() {
                LONG_S
            } else {
                0
            },
            attributes_s: if node.is_settled() { LONG_S } else { SHORT_S },
        }
    }

    pub(super) fn attributes_of(
        &self,
        node: &VfsNode,
    ) -> Result<(EntryValidity, Attributes), FileError> {
        let validity = self.validity(node);
        if validity.attributes_s == SHORT_S {
            self.session.inodes.note_unsettled(node.number());
        }
        let stat = self.vfs.stat(node)?;
        Ok((validity, attributes::shown(node.number().0, &stat)))
    }
}

pub(super) fn place<'p>(directory: &'p VfsNode, name: &'p [u8]) -> VfsPlace<'p> {
    VfsPlace { directory, name }
}
