//! Image files and block devices of the operating system.

mod aligned;
mod direct;
mod discard;
mod durable;

use crate::backend::{Backends, DirectIo, IoBackend};
use crate::batch::Located;
use crate::ring::{Outcome, Transfer};
use crate::write_back::WriteBackGate;
use crate::{Device, DeviceError, DiscardSupport, ReadRequest, WriteRequest};
pub use aligned::AlignedBuf;
use direct::DirectOpening;
use durable::DurableOpening;
use millpond_env::sync::OnceLock;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How to open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Open for writing too. The opening is then exclusive: block devices are opened with `O_EXCL`, so the
    /// kernel refuses mounted ones and members of other storage. Both kinds are locked.
    pub write: bool,
    /// Fail a read-only open if another opening holds the device for writing. Otherwise such an open
    /// succeeds, and [`FileDevice::lock_state`] shows that the content may change.
    pub refuse_if_live: bool,
}

/// Whether another opening holds the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// No other opening can write. This one holds the lock (exclusive for writing, else shared).
    Held,
    /// Another opening holds it for writing. Only for read-only openings.
    HeldElsewhere {
        /// The process id, if the system reports it.
        process: Option<u32>,
    },
    /// The file system does not support locks.
    Unknown,
}

/// A regular file or block device.
///
/// Reads and writes touch only the requested range. Concurrent calls do not block each other. The lock is
/// advisory and is held until this value is dropped, even if other processes were started in between.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size_bytes: AtomicU64,
    sector_bytes: u32,
    is_block_device: bool,
    is_writable: bool,
    lock_state: LockState,
    identity: FileIdentity,
    backends: Backends,
    flushes: WriteBackGate,
    durable: OnceLock<Option<DurableOpening>>,
    discards: OnceLock<DiscardSupport>,
    /// `None` if all requests go through the page cache.
    direct: Option<DirectOpening>,
    /// Shorter reads go through the page cache.
    direct_read_bytes_min: u64,
    /// The image file of a loop device, held for its lock.
    backing: Option<File>,
}

/// The identity of a device, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileIdentity {
    /// Device number of a block device.
    Block(u64),
    /// File system and inode of a regular file.
    Regular(u64, u64),
}

impl FileDevice {
    /// Opens a regular file or block device.
    ///
    /// # Errors
    /// - [`DeviceError::Open`] with the operating system's message.
    /// - [`DeviceError::WrongKind`] if it is neither a regular file nor a block device.
    /// - [`DeviceError::InUse`] if another opening holds it, and it is opened for writing or with
    ///   `refuse_if_live`.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, DeviceError> {
        let named = |error: &io::Error| DeviceError::open(path, error);
        let before = std::fs::metadata(path).map_err(|error| named(&error))?;
        let is_block_device = match kind_of(&before) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => {
                return Err(DeviceError::WrongKind {
                    path: path.display().to_string(),
                });
            }
        };
        // The file may have been replaced by a pipe since. Without NONBLOCK the open would then block.
        let mut flags = rustix::fs::OFlags::NONBLOCK;
        if is_block_device && options.write {
            flags |= rustix::fs::OFlags::EXCL;
        }
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(options.write)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(
                |error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::BUSY) => DeviceError::InUse {
                        path: path.display().to_string(),
                        process: None,
                    },
                    _ => named(&error),
                },
            )?;
        let metadata = file.metadata().map_err(|error| named(&error))?;
        if kind_of(&metadata) != kind_of(&before) {
            return Err(DeviceError::WrongKind {
                path: path.display().to_string(),
            });
        }
        let size_bytes = size_of(&file, is_block_device).map_err(|error| named(&error))?;
        let sector_bytes = match is_block_device {
            true => rustix::fs::ioctl_blksszget(&file).unwrap_or(512),
            false => 512,
        };
        let mut lock_state = lock(&file, &metadata, options.write);
        let backing = match is_block_device {
            true => crate::loops::backing_file(&metadata),
            false => None,
        };
        if let Some(backing) = &backing
            && let Ok(metadata) = backing.metadata()
            && let held @ LockState::HeldElsewhere { .. } = lock(backing, &metadata, options.write)
        {
            lock_state = held;
        }
        if !is_block_device && options.write && crate::loops::is_used_through_loop(&metadata) {
            lock_state = LockState::HeldElsewhere { process: None };
        }
        if let LockState::HeldElsewhere { process } = lock_state
            && (options.write || options.refuse_if_live)
        {
            return Err(DeviceError::InUse {
                path: path.display().to_string(),
                process,
            });
        }
        // With NONBLOCK, io_uring operations would fail with EAGAIN instead of waiting.
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| named(&errno.into()))?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)
            .map_err(|errno| named(&errno.into()))?;
        let backends = Backends::of(&file, is_block_device, IoBackend::from_environment());
        let device = Self {
            backends,
            file,
            path: path.to_owned(),
            size_bytes: AtomicU64::new(size_bytes),
            sector_bytes,
            is_block_device,
            is_writable: options.write,
            lock_state,
            identity: identity_of(&metadata),
            flushes: WriteBackGate::default(),
            durable: OnceLock::new(),
            discards: OnceLock::new(),
            direct: None,
            direct_read_bytes_min: 0,
            backing,
        };
        Ok(device.with_direct_io(DirectIo::from_environment()))
    }
    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Whether it is a block device (else a regular file).
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }
    /// Whether another opening may write to it.
    #[must_use]
    pub fn lock_state(&self) -> LockState {
        self.lock_state
    }
    /// Replaces the measured I/O backend, or the one set by `MILLPOND_IO`.
    #[must_use]
    pub fn with_backend(mut self, backend: IoBackend) -> Self {
        self.backends = Backends::of(&self.file, self.is_block_device, backend);
        self
    }
    /// Replaces the default, or what `MILLPOND_IO` asks for.
    #[must_use]
    pub fn with_direct_io(mut self, direct: DirectIo) -> Self {
        let is_wanted = direct.is_wanted(&self.file, self.is_writable);
        let open = || DirectOpening::of(&self.file, self.identity, self.is_writable);
        self.direct = is_wanted.then(open).flatten();
        self.direct_read_bytes_min = direct.read_bytes_min();
        self
    }
    /// Whether requests bypass the page cache where their alignment permits it.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }
    fn check(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        DeviceError::check_range(offset_bytes, length_bytes, self.size_bytes())
    }
    fn check_writable(&self) -> Result<(), DeviceError> {
        if self.is_writable {
            Ok(())
        } else {
            Err(DeviceError::ReadOnly)
        }
    }
    /// Reads adjacent requests with one system call. Returns `false` if the read was not complete.
    fn read_run(&self, run: &mut [ReadRequest<'_>]) -> bool {
        let Some(offset_bytes) = run.first().map(|first| first.offset_bytes) else {
            return true;
        };
        let wanted: u64 = run.iter().map(|request| request.buffer.len() as u64).sum();
        if self.check(offset_bytes, wanted).is_err() {
            return false;
        }
        let mut slices: Vec<_> = run
            .iter_mut()
            .map(|request| IoSliceMut::new(request.buffer))
            .collect();
        match rustix::io::preadv(&self.file, &mut slices, offset_bytes) {
            Ok(count) if count as u64 == wanted => {
                for request in run {
                    request.outcome = Ok(());
                }
                true
            }
            _ => false,
        }
    }
    /// Writes adjacent requests with one system call. Returns `false` if the write was not complete.
    fn write_run(&self, run: &mut [WriteRequest<'_>]) -> bool {
        let Some(offset_bytes) = run.first().map(|first| first.offset_bytes) else {
            return true;
        };
        let wanted: u64 = run.iter().map(|request| request.bytes.len() as u64).sum();
        if self.check_writable().is_err() || self.check(offset_bytes, wanted).is_err() {
            return false;
        }
        let slices: Vec<_> = run
            .iter()
            .map(|request| IoSlice::new(request.bytes))
            .collect();
        match rustix::io::pwritev(&self.file, &slices, offset_bytes) {
            Ok(count) if count as u64 == wanted => {
                for request in run {
                    request.outcome = Ok(());
                }
                true
            }
            _ => false,
        }
    }
    /// Serves a batch by system calls, one run of adjacent requests at a time.
    fn read_by_calls(&self, mut requests: &mut [ReadRequest<'_>]) {
        while !requests.is_empty() {
            let count = adjacent(requests.iter().map(|r| (r.offset_bytes, r.buffer.len())));
            let (run, rest) = requests.split_at_mut(count);
            // Retry an incomplete run request by request, to find out which request fails.
            if run.len() == 1 || !self.read_run(run) {
                for request in run {
                    request.outcome = self.read(request.offset_bytes, request.buffer);
                }
            }
            requests = rest;
        }
    }
    /// As [`FileDevice::read_by_calls`], for writes.
    fn write_by_calls(&self, mut requests: &mut [WriteRequest<'_>]) {
        while !requests.is_empty() {
            let count = adjacent(requests.iter().map(|r| (r.offset_bytes, r.bytes.len())));
            let (run, rest) = requests.split_at_mut(count);
            // Retry an incomplete run request by request, to find out which request fails.
            if run.len() == 1 || !self.write_run(run) {
                for request in run {
                    request.outcome = self.write(request.offset_bytes, request.bytes);
                }
            }
            requests = rest;
        }
    }
    /// Serves all runs of a batch in parallel through io_uring. Returns `false`, with nothing done, if
    /// there is no ring or no benefit.
    fn read_by_ring(&self, requests: &mut [ReadRequest<'_>]) -> bool {
        let mut transfer = Transfer::default();
        let mut joined: Vec<bool> = Vec::with_capacity(requests.len());
        for request in requests.iter_mut() {
            let is_fit = self
                .check(request.offset_bytes, request.buffer.len() as u64)
                .is_ok();
            joined.push(is_fit);
            if is_fit {
                transfer.read_over(self.file.as_fd(), request.offset_bytes, request.buffer);
            }
        }
        if transfer.operations() < 2 || !transfer.perform() {
            return false;
        }
        let mut outcomes = transfer.outcomes().into_iter();
        for (request, joined) in requests.iter_mut().zip(joined) {
            let (offset, length) = (request.offset_bytes, request.buffer.len() as u64);
            let outcome = if joined { outcomes.next() } else { None };
            request.outcome = match outcome {
                Some(Outcome::Done) => Ok(()),
                Some(Outcome::Failed(errno)) => {
                    Err(DeviceError::io("read", offset, length, &errno.into()))
                }
                Some(Outcome::Again) | None => self.read(offset, request.buffer),
            };
        }
        true
    }
    /// As [`FileDevice::read_by_ring`], for writes.
    fn write_by_ring(&self, requests: &mut [WriteRequest<'_>]) -> bool {
        if self.check_writable().is_err() {
            return false;
        }
        let mut transfer = Transfer::default();
        let mut joined: Vec<bool> = Vec::with_capacity(requests.len());
        for request in requests.iter() {
            let is_fit = self
                .check(request.offset_bytes, request.bytes.len() as u64)
                .is_ok();
            joined.push(is_fit);
            if is_fit {
                transfer.write(self.file.as_fd(), request.offset_bytes, request.bytes);
            }
        }
        if transfer.operations() < 2 || !transfer.perform() {
            return false;
        }
        let mut outcomes = transfer.outcomes().into_iter();
        for (request, joined) in requests.iter_mut().zip(joined) {
            let (offset, length) = (request.offset_bytes, request.bytes.len() as u64);
            let outcome = if joined { outcomes.next() } else { None };
            request.outcome = match outcome {
                Some(Outcome::Done) => Ok(()),
                Some(Outcome::Failed(errno)) => {
                    Err(DeviceError::io("write", offset, length, &errno.into()))
                }
                Some(Outcome::Again) | None => self.write(offset, request.bytes),
            };
        }
        true
    }
}

fn size_of(file: &File, is_block_device: bool) -> io::Result<u64> {
    match is_block_device {
        // The metadata of a block device give a length of 0, so seek to its end.
        true => Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?),
        false => Ok(file.metadata()?.len()),
    }
}

/// The largest excess capacity of a buffer that a read may reuse, in bytes.
const EXCESS_BYTES_MAX: usize = 4096;

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::SeqCst)
    }
    fn measure(&self) -> Result<u64, DeviceError> {
        let failed = |error| DeviceError::io("measure", 0, 0, &error);
        let now = size_of(&self.file, self.is_block_device).map_err(failed)?;
        self.size_bytes.fetch_max(now, Ordering::SeqCst);
        Ok(now)
    }
    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length_bytes = buffer.len() as u64;
        self.check(offset_bytes, length_bytes)?;
        if let Some(read) = self.read_direct(offset_bytes, buffer.len()) {
            buffer.copy_from_slice(read?.bytes());
            return Ok(());
        }
        self.file
            .read_exact_at(buffer, offset_bytes)
            .map_err(|error| DeviceError::io("read", offset_bytes, length_bytes, &error))
    }
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        memory: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        let failed = |error| DeviceError::io("read", offset_bytes, length_bytes as u64, &error);
        self.check(offset_bytes, length_bytes as u64)?;
        // The system fills the whole capacity, so a much larger buffer would waste time.
        let fits = (length_bytes..=length_bytes.saturating_add(EXCESS_BYTES_MAX))
            .contains(&memory.capacity());
        let mut bytes = match fits {
            true => memory,
            false => Vec::with_capacity(length_bytes),
        };
        bytes.clear();
        if let Some(read) = self.read_direct(offset_bytes, length_bytes) {
            bytes.extend_from_slice(read?.bytes());
            return Ok(bytes);
        }
        while bytes.len() < length_bytes {
            let at = offset_bytes.saturating_add(bytes.len() as u64);
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // The allocator may provide more than the requested capacity.
        bytes.truncate(length_bytes);
        Ok(bytes)
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        if let Some(direct) = &self.direct {
            self.read_by_direct(direct, requests);
        } else if !self.backends.reads_by_ring || !self.read_by_ring(requests) {
            self.read_by_calls(requests);
        }
    }
    fn locate(&self, offset_bytes: u64, length_bytes: u64) -> Option<Located<'_>> {
        let is_fit = self.reads_at_once() && self.check(offset_bytes, length_bytes).is_ok();
        is_fit.then_some(Located {
            file: self,
            offset_bytes,
        })
    }
    fn reads_at_once(&self) -> bool {
        self.backends.reads_by_ring || (self.is_direct() && self.backends.is_ring_permitted)
    }
    fn writes_at_once(&self) -> usize {
        if self.backends.writes_by_ring || self.is_direct() {
            crate::ring::DEPTH as usize
        } else {
            1
        }
    }
    fn writes_wait_for_device(&self) -> bool {
        self.is_direct()
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_writable()?;
        let length_bytes = bytes.len() as u64;
        self.check(offset_bytes, length_bytes)?;
        if let Some(written) = self.write_direct(offset_bytes, bytes) {
            return written;
        }
        self.file
            .write_all_at(bytes, offset_bytes)
            .map_err(|error| DeviceError::io("write", offset_bytes, length_bytes, &error))
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        if let Some(direct) = self.direct.as_ref().filter(|_| self.is_writable) {
            self.write_by_direct(direct, requests);
        } else if !self.backends.writes_by_ring || !self.write_by_ring(requests) {
            self.write_by_calls(requests);
        }
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.check_writable()?;
        self.flushes
            .pass(|| self.file.sync_data())
            .map_err(|error| DeviceError::io("flush", 0, self.size_bytes(), &error))
    }
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        self.write_now_durable(requests);
    }
    fn writes_through(&self) -> bool {
        self.is_direct()
    }
    fn forget_cached(&self) {
        // Where the system cannot, reads show what it has.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
    fn write_back_errors(&self) -> u64 {
        self.lost_writes()
    }
    fn is_deleted(&self) -> bool {
        let metadata = (!self.is_block_device).then(|| self.file.metadata());
        metadata.is_some_and(|metadata| metadata.is_ok_and(|metadata| metadata.nlink() == 0))
    }
    fn discard_support(&self) -> Option<DiscardSupport> {
        self.discards()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.discard_if_it_can(offset_bytes, length_bytes)
    }
    fn discard_securely(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.erase(offset_bytes, length_bytes)
    }
}

/// The number of requests (offset and length each), from the first, that follow each other without a gap;
/// at least 1.
fn adjacent(requests: impl Iterator<Item = (u64, usize)>) -> usize {
    let mut end: Option<u64> = None;
    let mut count = 0;
    for (offset, length) in requests.take(RUN_MAX) {
        if count > 0 && end != Some(offset) {
            break;
        }
        // A request whose end overflows 64 bits fails by itself. No request follows it.
        end = offset.checked_add(length as u64);
        count += 1;
    }
    count.max(1)
}

/// The system's limit of buffers per call.
const RUN_MAX: usize = 1024;

fn kind_of(metadata: &std::fs::Metadata) -> FileType {
    FileType::from_raw_mode(metadata.mode())
}

pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> FileIdentity {
    match kind_of(metadata) {
        FileType::BlockDevice => FileIdentity::Block(metadata.rdev()),
        _ => FileIdentity::Regular(metadata.dev(), metadata.ino()),
    }
}

/// Unlocks explicitly. A process that was started while the device was open shares the opening until it
/// executes another program. Without this the lock would be held until then, and the next open would fail.
impl Drop for FileDevice {
    fn drop(&mut self) {
        // If unlocking fails, closing the file releases the lock.
        for file in [Some(&self.file), self.backing.as_ref()]
            .into_iter()
            .flatten()
        {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Tries to lock the open file: exclusive for writing, shared for reading.
fn lock(file: &File, metadata: &std::fs::Metadata, exclusive: bool) -> LockState {
    let operation = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => LockState::Held,
        Err(Errno::WOULDBLOCK) => LockState::HeldElsewhere {
            process: lock_holder(metadata),
        },
        Err(_) => LockState::Unknown,
    }
}

/// The process that holds a lock on this inode, according to `/proc/locks`.
fn lock_holder(metadata: &std::fs::Metadata) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (
        rustix::fs::major(metadata.dev()),
        rustix::fs::minor(metadata.dev()),
    );
    let inode = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    table.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        let process = words.nth(2)?;
        (kind == "FLOCK" && words.next()? == inode).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests;
