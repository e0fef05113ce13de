//! The file of a disk without I/O on its connection: takes the bytes of a request, returns those of the reply.

use crate::disk::{Disk, DiskError, EINVAL, EIO, EROFS};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_fuse::abi::{
    Attributes, EntryValidity, InitRequest, MAJOR, MINOR, MINOR_MIN, Operation, ROOT_NODE, Reply,
    Request, StatxTime, feature,
};

/// The most bytes of data in one request.
pub(crate) const DATA_BYTES_MAX: usize = 256 << 10;
/// The size of a buffer: data, header and arguments.
pub(crate) const BUFFER_BYTES: usize = DATA_BYTES_MAX + 4096;
/// The most requests that the kernel may have in flight.
const BACKGROUND_MAX: u16 = 64;

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
const EPROTO: i32 = 71;
const EOPNOTSUPP: i32 = 95;

/// Neither page cache, nor a request at each close, nor one write at a time.
const OPEN_FLAGS: u32 = 1 | 1 << 5 | 1 << 6;
/// A regular file that only root reads and writes.
const MODE: u32 = 0o100_600;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Nothing is cached: the size changes without the kernel.
const NEVER: EntryValidity = EntryValidity {
    entry_s: 0,
    attributes_s: 0,
};

/// The one file of a mount. All threads share it.
pub(crate) struct Session {
    /// `None` after it was taken away: all requests fail then.
    disk: Mutex<Option<Arc<dyn Disk>>, rank::Leaf>,
    is_read_only: AtomicBool,
    has_begun: AtomicBool,
}

type Answered = Result<(), DiskError>;

impl Session {
    pub(crate) fn new(disk: Arc<dyn Disk>, is_read_only: bool) -> Self {
        Self {
            disk: Mutex::new(Some(disk)),
            is_read_only: AtomicBool::new(is_read_only),
            has_begun: AtomicBool::new(false),
        }
    }
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Release);
    }
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }
    /// Takes the disk away.
    pub(crate) fn end(&self) {
        let disk = self.disk.lock().take();
        drop(disk);
    }
    pub(crate) fn disk(&self) -> Option<Arc<dyn Disk>> {
        self.disk.lock().clone()
    }

    /// Answers a request. `None` if it needs no reply, or is so malformed that none is possible.
    pub(crate) fn answer<'b>(&self, message: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let mut reply = Reply::new(buffer);
        let Ok(request) = Request::decode(message, 0) else {
            let unique = Request::unique_of(message)?;
            return Some(reply.finish(unique, EINVAL));
        };
        let outcome = self.perform(&request, &mut reply);
        match request.operation {
            Operation::Forget { .. } | Operation::BatchForget { .. } => None,
            _ => {
                let error = outcome.err().map_or(0, |error| error.0);
                Some(reply.finish(request.unique, error))
            }
        }
    }

    fn perform(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answered {
        match &request.operation {
            Operation::Init(init) => return self.init(init, reply),
            Operation::Destroy | Operation::Release => return Ok(()),
            _ => {}
        }
        if !self.has_begun.load(Ordering::Acquire) {
            return Err(DiskError(EPROTO));
        }
        let disk = self.disk().ok_or(DiskError(EIO))?;
        if request.node != ROOT_NODE {
            return Err(DiskError(EINVAL));
        }
        match request.operation {
            Operation::GetAttr => {
                reply.put_attributes_reply(NEVER, &attributes(&*disk));
                Ok(())
            }
            Operation::Open { .. } => {
                reply.put_u64(0);
                reply.put_u32(OPEN_FLAGS);
                reply.put_u32(0);
                Ok(())
            }
            Operation::Read { offset, length, .. } => read(&*disk, offset, length, reply),
            Operation::Write { offset, data, .. } => {
                self.check_writable()?;
                disk.write(offset, data)?;
                reply.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
                reply.put_u32(0);
                Ok(())
            }
            Operation::Fsync { .. } | Operation::SyncFs => disk.flush(),
            Operation::Allocate {
                offset,
                length,
                mode,
            } => {
                self.check_writable()?;
                allocate(&*disk, offset, length, mode)
            }
            Operation::StatFs => {
                stat_file_system(&*disk, reply);
                Ok(())
            }
            Operation::SetAttr(_) => Err(DiskError(EPERM)),
            _ => Err(DiskError(ENOSYS)),
        }
    }

    fn check_writable(&self) -> Answered {
        match self.is_read_only() {
            true => Err(DiskError(EROFS)),
            false => Ok(()),
        }
    }

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
            return Err(DiskError(EPROTO));
        }
        let wanted = feature::ASYNC_READ
            | feature::BIG_WRITES
            | feature::ASYNC_DIO
            | feature::MAX_PAGES
            | feature::INIT_EXT;
        let agreed = wanted & init.features;
        reply.put_u32(0);
        reply.put_u32((agreed & 0xffff_ffff) as u32);
        reply.put_u16(BACKGROUND_MAX);
        reply.put_u16(BACKGROUND_MAX / 4 * 3);
        reply.put_u32(DATA_BYTES_MAX as u32);
        reply.put_u32(1);
        reply.put_u16((DATA_BYTES_MAX / 4096) as u16);
        reply.put_u16(0);
        reply.put_u32((agreed >> 32) as u32);
        reply.put(&[0; 28]);
        self.has_begun.store(true, Ordering::Release);
        Ok(())
    }
}

/// Reads as much of a range as the disk has. A kernel thread may look behind the end of a disk that has shrunk.
fn read(disk: &dyn Disk, offset: u64, length: u32, reply: &mut Reply<'_>) -> Answered {
    let left = disk.size_bytes().saturating_sub(offset);
    let length = usize::try_from(left)
        .unwrap_or(usize::MAX)
        .min(length as usize)
        .min(DATA_BYTES_MAX);
    let room = reply.room(length);
    let count = room.len();
    disk.read(offset, room)?;
    reply.filled(count);
    Ok(())
}

/// What a loop device asks for to discard a range, and to fill one with zeros. Either reads as zeros afterwards.
fn allocate(disk: &dyn Disk, offset: u64, length: u64, mode: u32) -> Answered {
    let is_hole = mode == PUNCH_HOLE | KEEP_SIZE;
    if !is_hole && mode & !KEEP_SIZE != ZERO_RANGE {
        return Err(DiskError(EOPNOTSUPP));
    }
    disk.zero(offset, length)
}

fn attributes(disk: &dyn Disk) -> Attributes {
    let never = StatxTime::default();
    Attributes {
        inode: ROOT_NODE,
        size_bytes: disk.size_bytes(),
        sectors: disk.size_bytes() / 512,
        atime: never,
        mtime: never,
        ctime: never,
        birth: never,
        mode: MODE,
        links: 1,
        uid: 0,
        gid: 0,
        device: (0, 0),
        block_bytes: 4096,
        flags: 0,
    }
}

/// The block size becomes the discard granularity of the loop device.
fn stat_file_system(disk: &dyn Disk, reply: &mut Reply<'_>) {
    let block = disk.block_bytes().max(512);
    let blocks = disk.size_bytes() / block;
    for word in [blocks, 0, 0, 1, 0] {
        reply.put_u64(word);
    }
    let block = u32::try_from(block).unwrap_or(4096);
    for word in [block, 255, block, 0, 0, 0, 0, 0, 0, 0] {
        reply.put_u32(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_fuse::abi::opcode;

    /// A disk of sevens that refuses to change.
    struct Sevens;

    impl Disk for Sevens {
        fn size_bytes(&self) -> u64 {
            1 << 20
        }
        fn block_bytes(&self) -> u64 {
            8192
        }
        fn read(&self, _: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
            buffer.fill(7);
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), DiskError> {
            Err(DiskError(28))
        }
        fn zero(&self, _: u64, _: u64) -> Result<(), DiskError> {
            Ok(())
        }
        fn flush(&self) -> Result<(), DiskError> {
            Ok(())
        }
    }

    fn request(opcode: u32, node: u64, words: &[u32]) -> Vec<u8> {
        let length = 40 + 4 * words.len() as u32;
        let mut message = vec![];
        for word in [length, opcode] {
            message.extend(word.to_ne_bytes());
        }
        for word in [99, node] {
            message.extend(word.to_ne_bytes());
        }
        for word in [0, 0, 0, 0].iter().chain(words) {
            message.extend(word.to_ne_bytes());
        }
        message
    }

    /// The error number and the body of the reply.
    fn ask(session: &Session, message: &[u8]) -> (i32, Vec<u8>) {
        let mut buffer = vec![0; BUFFER_BYTES];
        let reply = session.answer(message, &mut buffer).unwrap();
        let error = i32::from_ne_bytes(*reply[4..].first_chunk().unwrap());
        (-error, reply[16..].to_vec())
    }

    fn begun() -> Session {
        let session = Session::new(Arc::new(Sevens), false);
        let init = request(opcode::INIT, 0, &[MAJOR, MINOR, 0, u32::MAX, 0]);
        assert_eq!(ask(&session, &init).0, 0);
        session
    }

    fn read(offset: u32, length: u32) -> Vec<u8> {
        request(opcode::READ, 1, &[0, 0, offset, 0, length, 0, 0, 0, 0, 0])
    }
    fn allocate(mode: u32) -> Vec<u8> {
        request(opcode::FALLOCATE, 1, &[0, 0, 0, 0, 8192, 0, mode, 0])
    }
    fn write() -> Vec<u8> {
        request(opcode::WRITE, 1, &[0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 5])
    }

    #[test]
    fn nothing_is_answered_before_the_kernel_has_begun() {
        let session = Session::new(Arc::new(Sevens), false);
        assert_eq!(ask(&session, &read(0, 512)).0, EPROTO);
        assert_eq!(ask(&begun(), &read(0, 512)).0, 0);
    }

    #[test]
    fn reads_end_where_the_disk_ends() {
        let session = begun();
        assert_eq!(ask(&session, &read(0, 512)), (0, vec![7; 512]));
        assert_eq!(ask(&session, &read((1 << 20) - 512, 4096)).1.len(), 512);
        assert_eq!(ask(&session, &read(1 << 20, 4096)), (0, vec![]));
        assert_eq!(ask(&session, &read(0, u32::MAX)).1.len(), DATA_BYTES_MAX);
    }

    #[test]
    fn errors_of_the_disk_reach_the_kernel_and_nothing_changes_a_read_only_one() {
        let session = begun();
        assert_eq!(ask(&session, &write()).0, 28);
        assert_eq!(ask(&session, &allocate(PUNCH_HOLE | KEEP_SIZE)).0, 0);
        assert_eq!(ask(&session, &allocate(ZERO_RANGE | KEEP_SIZE)).0, 0);
        // Plain `fallocate` reserves space, and collapsing moves data.
        for mode in [0, KEEP_SIZE, PUNCH_HOLE, 8] {
            assert_eq!(ask(&session, &allocate(mode)).0, EOPNOTSUPP, "{mode}");
        }
        session.set_read_only(true);
        assert_eq!(ask(&session, &write()).0, EROFS);
        assert_eq!(ask(&session, &allocate(PUNCH_HOLE | KEEP_SIZE)).0, EROFS);
        session.end();
        assert_eq!(ask(&session, &read(0, 512)).0, EIO);
    }

    #[test]
    fn what_is_no_request_gets_an_error_or_nothing() {
        let session = begun();
        let mut buffer = vec![0; BUFFER_BYTES];
        assert_eq!(session.answer(&[0; 39], &mut buffer), None);
        let mut cut = write();
        cut.truncate(60);
        assert_eq!(ask(&session, &cut).0, EINVAL);
        assert_eq!(ask(&session, &request(opcode::GETATTR, 2, &[])).0, EINVAL);
        assert_eq!(ask(&session, &request(opcode::LOOKUP, 1, &[0])).0, ENOSYS);
    }
}
