//! A mounted file system without I/O on its connection: takes the bytes of a request, returns those of the
//! reply.

mod attributes;
mod content;
mod gate;
mod handler;
mod inodes;
mod ioctl;
mod known_names;
mod listing;
mod names;
mod seek;
mod stale_pages;
mod suspended;
mod troubles;
mod xattrs;

pub(crate) use known_names::ChangedNames;
pub use seek::WriteBack;
pub(crate) use suspended::{Replaced, Suspended};
pub use troubles::Trouble;

use crate::abi::{
    DATA_BYTES_MAX, InitRequest, MAJOR, MINOR, MINOR_MIN, Operation, ROOT_NODE, Reply, Request,
    feature,
};
use gate::Gate;
use handler::{Handler, place};
use inodes::Inodes;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use millpond_posix::FileError;
use millpond_posix::vfs::{InodeNumber, Vfs};
use stale_pages::StalePages;
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
    gate: Gate,
    inodes: Inodes,
    /// The number of the root directory, which the kernel knows as node 1. It changes only while no request is under way.
    root: AtomicU64,
    stale_pages: StalePages,
    write_back: Option<Arc<dyn WriteBack>>,
    /// The kernel's minor version of the protocol.
    minor: AtomicU32,
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
            root: AtomicU64::new(root.number().0),
            gate: Gate::new(vfs),
            inodes,
            stale_pages: StalePages::default(),
            write_back: None,
            minor: AtomicU32::new(0),
            features: AtomicU64::new(0),
            offered: AtomicU64::new(0),
            has_rings: AtomicBool::new(false),
            is_destroyed: AtomicBool::new(false),
            troubles: Troubles::default(),
        })
    }

    /// Answers a request.
    ///
    /// The reply is built in `buffer`, which should have [`crate::abi::REPLY_BYTES_MAX`] bytes. Returns
    /// `None` if the request needs no reply, or is so malformed that no reply is possible. Allocates at most
    /// a few times the length that the request asks for, which is limited to [`DATA_BYTES_MAX`]. Waits while the files
    /// are replaced.
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
        if matches!(request.operation, Operation::Destroy) {
            self.is_destroyed.store(true, Ordering::Release);
            return Ok(());
        }
        if let Operation::Seek { offset, whence } = request.operation {
            return self.seek(request.node, offset, whence, reply);
        }
        let pass = self.gate.enter();
        let Some(vfs) = pass.as_ref().and_then(gate::Pass::served) else {
            return Err(Refusal::Number(EIO));
        };
        if let Operation::Init(init) = &request.operation {
            return self.init(vfs, init, reply);
        }
        let session = self;
        Handler { session, vfs }.perform(request, reply)
    }

    /// Negotiates features with the kernel.
    fn init(&self, vfs: &dyn Vfs, init: &InitRequest, reply: &mut Reply<'_>) -> Answered {
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
        if vfs.has_posix_acls() {
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
        self.minor.store(init.minor, Ordering::Release);
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
    /// The kernel's node numbers of the files whose space usage was not known when it asked last, each once.
    #[must_use]
    pub fn take_unsettled_nodes(&self) -> Vec<u64> {
        let numbers = self.inodes.take_unsettled().into_iter();
        numbers.map(|number| self.node_number(number)).collect()
    }
    /// Syncs and releases all files after the connection has ended.
    pub fn close(&self) {
        self.gate.end();
        let vfs = self.gate.take();
        if let Some(vfs) = &vfs {
            let _ = vfs.sync();
        }
        self.inodes.clear();
        // Free unlinked files now. Any that remain are freed when the file system is opened again.
        if let Some(vfs) = &vfs {
            let _ = vfs.reap();
        }
    }

    pub(crate) fn root(&self) -> InodeNumber {
        InodeNumber(self.root.load(Ordering::Acquire))
    }
    /// The kernel's node number of a file.
    pub(crate) fn node_number(&self, number: InodeNumber) -> u64 {
        match number == self.root() {
            true => ROOT_NODE,
            false => number.0,
        }
    }
    fn inode_number(&self, node: u64) -> InodeNumber {
        match node {
            ROOT_NODE => self.root(),
            node => InodeNumber(node),
        }
    }
}
