//! A mounted file system without I/O on its connection: takes the bytes of a request, returns those of the
//! reply.

mod attributes;
mod content;
mod inodes;
mod ioctl;
mod listing;
mod names;
mod troubles;
mod xattrs;

pub use troubles::Trouble;

use crate::abi::{
    Attributes, DATA_BYTES_MAX, EntryValidity, InitRequest, MAJOR, MINOR, MINOR_MIN, Operation,
    ROOT_NODE, Reply, Request, feature,
};
use inodes::Inodes;
use millpond_env::process::{Credentials, shares_users};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_posix::vfs::{InodeNumber, Vfs, VfsNode, VfsPlace};
use millpond_posix::{Caller, FileError};
use troubles::Troubles;

/// How long the kernel may cache data that only changes through it, in seconds.
const LONG_S: u64 = 24 * 60 * 60;
/// How long the kernel may cache the attributes of a file whose last change is not committed, in seconds: its
/// space usage becomes known when its txg is written.
const SHORT_S: u64 = 1;
/// The most background requests the kernel may have in flight (readahead, writes of dirty pages).
const BACKGROUND_MAX: u16 = 64;
const READAHEAD_BYTES: u32 = 1 << 20;

const ENOSYS: i32 = 38;
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const EPROTO: i32 = 71;

/// Why a request fails.
#[derive(Debug, Clone, PartialEq)]
enum Refusal {
    File(FileError),
    Number(i32),
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl Refusal {
    fn number(&self) -> i32 {
        match self {
            Self::File(error) => error.errno().linux(),
            Self::Number(number) => *number,
        }
    }
}

/// The outcome of a request.
type Answered = Result<(), Refusal>;

/// One mounted file system. All threads share it.
pub struct Session {
    vfs: Arc<dyn Vfs>,
    inodes: Inodes,
    /// The number of the root directory, which the kernel knows as node 1.
    root: InodeNumber,
    /// The negotiated features; 0 before that.
    features: AtomicU64,
    /// The features that the kernel offered.
    offered: AtomicU64,
    /// Whether threads are ready to serve the session through io_uring.
    has_rings: AtomicBool,
    is_destroyed: AtomicBool,
    troubles: Troubles,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Creates a session that waits for the kernel's `INIT`.
    ///
    /// # Errors
    /// If the root directory cannot be opened.
    pub fn new(vfs: Arc<dyn Vfs>) -> Result<Self, FileError> {
        let root = vfs.root()?;
        let inodes = Inodes::default();
        // The kernel never looks up its root, and never forgets it.
        inodes.add(&root);
        Ok(Self {
            root: root.number(),
            inodes,
            features: AtomicU64::new(0),
            offered: AtomicU64::new(0),
            has_rings: AtomicBool::new(false),
            is_destroyed: AtomicBool::new(false),
            troubles: Troubles::default(),
            vfs,
        })
    }

    /// Answers a request.
    ///
    /// The reply is built in `buffer`, which should have [`crate::abi::REPLY_BYTES_MAX`] bytes. Returns
    /// `None` if the request needs no reply, or is so malformed that no reply is possible. Allocates at most
    /// a few times the length that the request asks for, which is limited to [`DATA_BYTES_MAX`].
    pub fn answer<'b>(&self, message: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let mut reply = Reply::new(buffer);
        let features = self.features.load(Ordering::Acquire);
        let request = match Request::decode(message, features) {
            Ok(request) => request,
            Err(_) => {
                let unique = Request::unique_of(message)?;
                return Some(reply.finish(unique, EINVAL));
            }
        };
        let unique = request.unique;
        let has_begun = features != 0 || matches!(request.operation, Operation::Init(_));
        let outcome = match has_begun {
            true => self.perform(&request, &mut reply),
            false => Err(Refusal::Number(EPROTO)),
        };
        match request.operation {
            Operation::Forget { .. } | Operation::BatchForget { .. } => None,
            _ => Some(match outcome {
                Ok(()) => reply.finish(unique, 0),
                Err(refusal) => {
                    if let Refusal::File(error) = &refusal
                        && refusal.number() == EIO
                    {
                        let file = self.inode_number(request.node);
                        self.troubles.note(file, error);
                    }
                    reply.finish(unique, refusal.number())
                }
            }),
        }
    }

    fn perform(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answered {
        let node = request.node;
        match request.operation {
            Operation::Init(init) => self.init(&init, reply),
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
            Operation::Seek { offset, whence } => self.seek(node, offset, whence, reply),
            Operation::CopyRange { .. } => self.copy_range(request, reply),
            Operation::Ioctl {
                command,
                input,
                output_length,
            } => self.ioctl(request, command, input, output_length, reply),
            Operation::Destroy => {
                self.is_destroyed.store(true, Ordering::Release);
                Ok(())
            }
            // Closing a descriptor needs no work. After `ENOSYS` the kernel stops sending this request.
            Operation::Flush | Operation::SyncFs | Operation::Other => Err(Refusal::Number(ENOSYS)),
        }
    }

    /// Negotiates features with the kernel.
    fn init(&self, init: &InitRequest, reply: &mut Reply<'_>) -> Answered {
        reply.put_u32(MAJOR);
        reply.put_u32(MINOR);
        if init.major > MAJOR {
            // The kernel sends `INIT` again with the version of this reply.
            reply.put(&[0; 56]);
            return Ok(());
        }
        if init.major < MAJOR || init.minor < MINOR_MIN {
            reply.clear();
            return Err(Refusal::Number(EPROTO));
        }
        let mut wanted = feature::ASYNC_READ
            | feature::EXPORT_SUPPORT
            | feature::BIG_WRITES
            | feature::DONT_MASK
            | feature::HAS_IOCTL_DIR
            | feature::DO_READDIRPLUS
            | feature::READDIRPLUS_AUTO
            | feature::ASYNC_DIO
            | feature::NO_OPEN_SUPPORT
            | feature::PARALLEL_DIROPS
            | feature::MAX_PAGES
            | feature::CACHE_SYMLINKS
            | feature::EXPLICIT_INVAL_DATA
            | feature::HANDLE_KILLPRIV_V2
            | feature::SETXATTR_EXT
            | feature::INIT_EXT;
        if self.vfs.has_posix_acls() {
            wanted |= feature::POSIX_ACL;
        }
        if self.has_rings.load(Ordering::Acquire) {
            wanted |= feature::OVER_IO_URING;
        }
        let agreed = wanted & init.features;
        reply.put_u32(init.max_readahead.min(READAHEAD_BYTES));
        reply.put_u32((agreed & 0xffff_ffff) as u32);
        reply.put_u16(BACKGROUND_MAX);
        reply.put_u16(BACKGROUND_MAX / 4 * 3);
        reply.put_u32(DATA_BYTES_MAX as u32);
        // The time granularity is one nanosecond.
        reply.put_u32(1);
        reply.put_u16((DATA_BYTES_MAX / 4096) as u16);
        reply.put_u16(0);
        reply.put_u32((agreed >> 32) as u32);
        reply.put(&[0; 28]);
        self.offered.store(init.features, Ordering::Release);
        self.features.store(agreed, Ordering::Release);
        Ok(())
    }

    /// Offers io_uring, if the kernel supports it. Threads must be ready to serve it. Call this before the
    /// kernel's `INIT`.
    pub(crate) fn allow_rings(&self) {
        self.has_rings.store(true, Ordering::Release);
    }
    /// After `INIT`, whether requests will come through io_uring; `None` before.
    pub(crate) fn uses_rings(&self) -> Option<bool> {
        let features = self.features.load(Ordering::Acquire);
        (features != 0).then_some(features & feature::OVER_IO_URING != 0)
    }

    /// Whether the kernel offered a feature.
    fn is_offered(&self, feature: u64) -> bool {
        self.offered.load(Ordering::Acquire) & feature != 0
    }

    /// Whether the kernel has ended the session.
    #[must_use]
    pub fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::Acquire)
    }
    /// Files for which programs got `EIO` since the last call. Each file is reported once, and the number of
    /// reports is limited to what a log can hold.
    #[must_use]
    pub fn take_troubles(&self) -> Vec<Trouble> {
        self.troubles.take()
    }
    /// The number of files that the kernel knows.
    #[must_use]
    pub fn known_files(&self) -> usize {
        self.inodes.len()
    }
    /// The kernel's node numbers of all files that it knows.
    #[must_use]
    pub fn known_nodes(&self) -> Vec<u64> {
        let numbers = self.inodes.numbers().into_iter();
        numbers.map(|number| self.node_number(number)).collect()
    }
    /// Syncs and releases all files after the connection has ended.
    pub fn close(&self) {
        let _ = self.vfs.sync();
        self.inodes.clear();
        // Free unlinked files now. Any that remain are freed when the file system is opened again.
        let _ = self.vfs.reap();
    }

    /// The kernel's node number of a file.
    pub(crate) fn node_number(&self, number: InodeNumber) -> u64 {
        match number == self.root {
            true => ROOT_NODE,
            false => number.0,
        }
    }
    fn inode_number(&self, node: u64) -> InodeNumber {
        match node {
            ROOT_NODE => self.root,
            node => InodeNumber(node),
        }
    }
    fn node(&self, node: u64) -> Result<VfsNode, FileError> {
        self.inodes.get(&*self.vfs, self.inode_number(node))
    }

    /// The request's caller, with full privileges.
    ///
    /// The kernel has already checked permissions. It clears mode bits itself, or says in the request that
    /// they are to be cleared.
    fn caller(request: &Request<'_>) -> Caller {
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
    fn caller_in(request: &Request<'_>, directory: &VfsNode) -> Caller {
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
    fn tell(&self, node: &VfsNode, reply: &mut Reply<'_>) -> Result<(), FileError> {
        self.tell_found(node, false, reply)
    }

    /// Like [`Session::tell`]. `is_passing` marks entries that come and go by themselves; their names are not
    /// cached.
    fn tell_found(
        &self,
        node: &VfsNode,
        is_passing: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), FileError> {
        let (mut validity, attributes) = self.attributes_of(node)?;
        if is_passing {
            validity.entry_s = 0;
        }
        let number = self.node_number(node.number());
        reply.put_entry(number, node.generation(), validity, &attributes);
        self.inodes.add(node);
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

    fn attributes_of(&self, node: &VfsNode) -> Result<(EntryValidity, Attributes), FileError> {
        let validity = self.validity(node);
        let stat = self.vfs.stat(node)?;
        Ok((validity, attributes::shown(node.number().0, &stat)))
    }
}

fn place<'p>(directory: &'p VfsNode, name: &'p [u8]) -> VfsPlace<'p> {
    VfsPlace { directory, name }
}
