//! Image files and block devices of the operating system.

mod durable;

use crate::across::Located;
use crate::ring::{Outcome, Transfer};
use crate::way::{IoWay, Ways};
use crate::write_back::WriteBackGate;
use crate::{Device, DeviceError, ReadRequest, WriteRequest};
use durable::DurableOpening;
use millpond_env::sync::OnceLock;
use rustix::fs::{FallocateFlags, FileType, FlockOperation};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How to open a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Open for writing too. Then nobody else may hold the device: block devices are opened
    /// exclusively (the kernel refuses mounted ones and members of other storage), and both kinds
    /// are locked.
    pub write: bool,
    /// Fail a read-only open if somebody holds the device for writing. Otherwise such an open
    /// succeeds and [`FileDevice::lock_state`] tells of it: what is read may change meanwhile.
    pub refuse_if_live: bool,
}

/// Who else has the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// Nobody can write: this opening holds the lock (exclusive for writing, else shared).
    Held,
    /// Somebody else holds it for writing (read-only openings only).
    HeldElsewhere {
        /// The process, where the system tells.
        process: Option<u32>,
    },
    /// The file system knows no locks, so nothing is known.
    Unknown,
}

/// A regular file or block device. Reads and writes go to the range asked for and nothing else;
/// concurrent calls do not hinder each other.
///
/// The lock is advisory and lives as long as this value, also where other processes were started meanwhile.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    sector_bytes: u32,
    is_block_device: bool,
    is_writable: bool,
    lock_state: LockState,
    identity: FileIdentity,
    ways: Ways,
    flushes: WriteBackGate,
    durable: OnceLock<Option<DurableOpening>>,
    /// The image below a loop device, for its lock.
    backing: Option<File>,
}

/// What is the same for every name of one device.
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
    /// [`DeviceError::Open`] with the operating system's words, [`DeviceError::WrongKind`] for
    /// anything else than a regular file or block device, [`DeviceError::InUse`] if it is wanted
    /// for writing (or `refuse_if_live`) and somebody else holds it.
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
        // Without NONBLOCK a pipe put in place of the file meanwhile would hang us.
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
        let (size_bytes, sector_bytes) = if is_block_device {
            // A block device's length is where its end is; its metadata say 0.
            let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
                .map_err(|errno| named(&errno.into()))?;
            (end, rustix::fs::ioctl_blksszget(&file).unwrap_or(512))
        } else {
            (metadata.len(), 512)
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
        // Operations of a ring would come back instead of waiting.
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| named(&errno.into()))?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)
            .map_err(|errno| named(&errno.into()))?;
        let ways = Ways::of(&file, is_block_device, IoWay::from_environment());
        Ok(Self {
            ways,
            file,
            path: path.to_owned(),
            size_bytes,
            sector_bytes,
            is_block_device,
            is_writable: options.write,
            lock_state,
            identity: identity_of(&metadata),
            flushes: WriteBackGate::default(),
            durable: OnceLock::new(),
            backing,
        })
    }
    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Whether it is a block device (else a regular file).
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }
    /// Whether somebody else may write to it meanwhile.
    #[must_use]
    pub fn lock_state(&self) -> LockState {
        self.lock_state
    }
    /// The same device with another way for its batches than the measured or `MILLPOND_IO`'s.
    #[must_use]
    pub fn with_way(mut self, way: IoWay) -> Self {
        self.ways = Ways::of(&self.file, self.is_block_device, way);
        self
    }
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }
    fn check(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        DeviceError::check_range(offset_bytes, length_bytes, self.size_bytes)
    }
    fn check_writable(&self) -> Result<(), DeviceError> {
        if self.is_writable {
            Ok(())
        } else {
            Err(DeviceError::ReadOnly)
        }
    }
    /// Reads adjacent requests with one call; false if that did not fill all of them.
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
    /// Writes adjacent requests with one call; false if that did not take all of them.
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
    /// Serves a batch one run of neighbours after the other.
    fn read_by_calls(&self, mut requests: &mut [ReadRequest<'_>]) {
        while !requests.is_empty() {
            let count = adjacent(requests.iter().map(|r| (r.offset_bytes, r.buffer.len())));
            let (run, rest) = requests.split_at_mut(count);
            // A run that did not come whole is asked for one by one, to know which part fails.
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
            // A run that was not taken whole is written one by one, to know which part fails.
            if run.len() == 1 || !self.write_run(run) {
                for request in run {
                    request.outcome = self.write(request.offset_bytes, request.bytes);
                }
            }
            requests = rest;
        }
    }
    /// Serves a batch with all its runs at once; false, with nothing done, if that is no use or there is no ring.
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

/// Memory for a read may be longer than what is read by as much.
const ROOM_LEFT_BYTES_MAX: usize = 4096;

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let length_bytes = buffer.len() as u64;
        self.check(offset_bytes, length_bytes)?;
        self.file
            .read_exact_at(buffer, offset_bytes)
            .map_err(|error| DeviceError::io("read", offset_bytes, length_bytes, &error))
    }
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        room: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        let failed = |error| DeviceError::io("read", offset_bytes, length_bytes as u64, &error);
        self.check(offset_bytes, length_bytes as u64)?;
        // The system fills all that there is: much more than is wanted would cost its time.
        let fits = (length_bytes..=length_bytes.saturating_add(ROOM_LEFT_BYTES_MAX))
            .contains(&room.capacity());
        let mut bytes = match fits {
            true => room,
            false => Vec::with_capacity(length_bytes),
        };
        bytes.clear();
        while bytes.len() < length_bytes {
            let at = offset_bytes.saturating_add(bytes.len() as u64);
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        // The allocator may have given more than was asked for.
        bytes.truncate(length_bytes);
        Ok(bytes)
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        if !self.ways.reads_by_ring || !self.read_by_ring(requests) {
            self.read_by_calls(requests);
        }
    }
    fn locate(&self, offset_bytes: u64, length_bytes: u64) -> Option<Located<'_>> {
        let is_fit = self.ways.reads_by_ring && self.check(offset_bytes, length_bytes).is_ok();
        is_fit.then(|| Located {
            file: self,
            offset_bytes,
            tickets: vec![],
        })
    }
    fn reads_at_once(&self) -> bool {
        self.ways.reads_by_ring
    }
    fn writes_at_once(&self) -> usize {
        if self.ways.writes_by_ring {
            crate::ring::DEPTH as usize
        } else {
            1
        }
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_writable()?;
        let length_bytes = bytes.len() as u64;
        self.check(offset_bytes, length_bytes)?;
        self.file
            .write_all_at(bytes, offset_bytes)
            .map_err(|error| DeviceError::io("write", offset_bytes, length_bytes, &error))
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        if !self.ways.writes_by_ring || !self.write_by_ring(requests) {
            self.write_by_calls(requests);
        }
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.check_writable()?;
        self.flushes
            .pass(|| self.file.sync_data())
            .map_err(|error| DeviceError::io("flush", 0, self.size_bytes, &error))
    }
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        self.write_now_durable(requests);
    }
    fn write_back_errors(&self) -> u64 {
        self.lost_writes()
    }
    fn is_deleted(&self) -> bool {
        let metadata = (!self.is_block_device).then(|| self.file.metadata());
        metadata.is_some_and(|metadata| metadata.is_ok_and(|metadata| metadata.nlink() == 0))
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.check_writable()?;
        self.check(offset_bytes, length_bytes)?;
        if length_bytes == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset_bytes, length_bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(DeviceError::io(
                "discard",
                offset_bytes,
                length_bytes,
                &errno.into(),
            )),
        }
    }
}

/// How many requests (offset and length each) from the first on follow one another on the device
/// without a gap; at least 1.
fn adjacent(requests: impl Iterator<Item = (u64, usize)>) -> usize {
    let mut end: Option<u64> = None;
    let mut count = 0;
    for (offset, length) in requests.take(RUN_MAX) {
        if count > 0 && end != Some(offset) {
            break;
        }
        // What leaves 64 bits is refused by itself; nothing follows it.
        end = offset.checked_add(length as u64);
        count += 1;
    }
    count.max(1)
}

/// The system takes no more buffers in one call.
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

/// A process that is started while a device is open holds the same opening until it becomes another program:
/// without this the lock would outlive the value by that long, and whoever opens the device next would be refused.
impl Drop for FileDevice {
    fn drop(&mut self) {
        // A lock that cannot be given back goes with the file.
        for file in [Some(&self.file), self.backing.as_ref()]
            .into_iter()
            .flatten()
        {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Tries to lock the open file: exclusively to write, shared to read.
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

/// The process that holds a lock on this inode, by the system's table of locks.
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
