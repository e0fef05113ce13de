//! Image files and block devices of the operating system.

use crate::{Device, DeviceError, ReadRequest, WriteRequest};
use rustix::fs::{FallocateFlags, FileType, FlockOperation};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
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
        let lock_state = lock(&file, &metadata, options.write);
        if let LockState::HeldElsewhere { process } = lock_state
            && (options.write || options.refuse_if_live)
        {
            return Err(DeviceError::InUse {
                path: path.display().to_string(),
                process,
            });
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            size_bytes,
            sector_bytes,
            is_block_device,
            is_writable: options.write,
            lock_state,
            identity: identity_of(&metadata),
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
}

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
    fn read_vec(&self, offset_bytes: u64, length_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let failed = |error| DeviceError::io("read", offset_bytes, length_bytes as u64, &error);
        self.check(offset_bytes, length_bytes as u64)?;
        let mut bytes = Vec::with_capacity(length_bytes);
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
    fn read_many(&self, mut requests: &mut [ReadRequest<'_>]) {
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
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_writable()?;
        let length_bytes = bytes.len() as u64;
        self.check(offset_bytes, length_bytes)?;
        self.file
            .write_all_at(bytes, offset_bytes)
            .map_err(|error| DeviceError::io("write", offset_bytes, length_bytes, &error))
    }
    fn write_many(&self, mut requests: &mut [WriteRequest<'_>]) {
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
    fn flush(&self) -> Result<(), DeviceError> {
        self.check_writable()?;
        self.file
            .sync_data()
            .map_err(|error| DeviceError::io("flush", 0, self.size_bytes, &error))
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
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
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
mod tests {
    use super::*;
    use std::io::Write;

    const WRITE: OpenOptions = OpenOptions {
        write: true,
        refuse_if_live: false,
    };

    fn image(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_read_into_new_memory_gives_what_a_read_into_old_memory_gives() {
        let bytes: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let file = image(&bytes);
        let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        for (offset, length) in [(0, 0), (0, 100_000), (1, 99_999), (4097, 333), (99_999, 1)] {
            let read = device.read_vec(offset, length).unwrap();
            assert_eq!(read, bytes[offset as usize..][..length]);
        }
        assert!(matches!(
            device.read_vec(99_999, 2),
            Err(DeviceError::OutOfRange { .. })
        ));
        // The file became shorter behind the device's back.
        file.as_file().set_len(50_000).unwrap();
        assert!(matches!(
            device.read_vec(40_000, 20_000),
            Err(DeviceError::Io { .. })
        ));
    }

    #[test]
    fn a_lock_ends_with_its_device_although_a_started_process_shares_the_opening() {
        let file = image(&[7; 8192]);
        let device = FileDevice::open(file.path(), WRITE).unwrap();
        // What a process has between its start and the program that it is to run.
        let shared = device.file.try_clone().unwrap();
        drop(device);
        let again = FileDevice::open(file.path(), WRITE).unwrap();
        assert_eq!(again.lock_state(), LockState::Held);
        drop(shared);
    }

    #[test]
    fn a_file_reads_writes_and_punches_holes_within_its_size() {
        let file = image(&[7; 8192]);
        let device = FileDevice::open(file.path(), WRITE).unwrap();
        assert_eq!((device.size_bytes(), device.sector_bytes()), (8192, 512));
        device.write(4096, &[1, 2, 3]).unwrap();
        device.flush().unwrap();
        let mut buffer = [0; 4];
        device.read(4095, &mut buffer).unwrap();
        assert_eq!(buffer, [7, 1, 2, 3]);
        device.discard(4096, 4096).unwrap();
        device.read(4095, &mut buffer).unwrap();
        // Where the file system cannot punch holes the bytes stay.
        assert!(buffer == [7, 0, 0, 0] || buffer == [7, 1, 2, 3]);
        for offset in [8189, 8192, u64::MAX] {
            assert!(matches!(
                device.read(offset, &mut buffer),
                Err(DeviceError::OutOfRange { .. })
            ));
            assert!(matches!(
                device.write(offset, &buffer),
                Err(DeviceError::OutOfRange { .. })
            ));
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), 8192);
    }

    #[test]
    fn a_read_only_device_takes_no_writes() {
        let file = image(&[7; 512]);
        let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        assert_eq!(device.write(0, b"a"), Err(DeviceError::ReadOnly));
        assert_eq!(device.discard(0, 1), Err(DeviceError::ReadOnly));
        assert_eq!(device.flush(), Err(DeviceError::ReadOnly));
    }

    #[test]
    fn one_writer_keeps_others_out_and_readers_are_told() {
        let file = image(&[0; 512]);
        let writer = FileDevice::open(file.path(), WRITE).unwrap();
        assert_eq!(writer.lock_state(), LockState::Held);
        let own = std::process::id();
        let in_use = |error| match error {
            DeviceError::InUse { process, .. } => process.is_none_or(|id| id == own),
            _ => false,
        };
        assert!(in_use(FileDevice::open(file.path(), WRITE).unwrap_err()));
        let strict = OpenOptions {
            write: false,
            refuse_if_live: true,
        };
        assert!(in_use(FileDevice::open(file.path(), strict).unwrap_err()));
        let reader = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        assert!(matches!(
            reader.lock_state(),
            LockState::HeldElsewhere { .. }
        ));
        drop((writer, reader));
        let readers = [0, 1].map(|_| FileDevice::open(file.path(), strict).unwrap());
        assert!(
            readers
                .iter()
                .all(|reader| reader.lock_state() == LockState::Held)
        );
        assert!(in_use(FileDevice::open(file.path(), WRITE).unwrap_err()));
    }

    #[test]
    fn a_batch_fills_every_buffer_and_fails_only_what_lies_beyond_the_end() {
        let content: Vec<u8> = (0..=255).collect();
        let file = image(&content);
        let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        let mut buffers = vec![vec![0u8; 16]; 6];
        let offsets = [0u64, 16, 32, 100, 240, 256];
        let mut requests: Vec<_> = buffers
            .iter_mut()
            .zip(offsets)
            .map(|(buffer, offset_bytes)| ReadRequest {
                offset_bytes,
                buffer,
                outcome: Err(DeviceError::ReadOnly),
            })
            .collect();
        device.read_many(&mut requests);
        let outcomes: Vec<_> = requests
            .iter()
            .map(|request| request.outcome.is_ok())
            .collect();
        assert_eq!(outcomes, [true, true, true, true, true, false]);
        for (buffer, offset) in buffers.iter().zip(offsets).take(5) {
            assert_eq!(buffer[..], content[offset as usize..offset as usize + 16]);
        }
    }

    #[test]
    fn a_batch_of_writes_lands_whole_and_fails_only_what_lies_beyond_the_end() {
        let file = image(&[0; 4096]);
        let device = FileDevice::open(file.path(), WRITE).unwrap();
        let bytes: Vec<u8> = (1..=160).collect();
        // Two neighbours, one alone, then one that fits before one that does not.
        let offsets = [512u64, 544, 1000, 4064, 4096];
        let mut requests: Vec<_> = offsets
            .iter()
            .zip(bytes.chunks(32))
            .map(|(offset, bytes)| WriteRequest::new(*offset, bytes))
            .collect();
        device.write_many(&mut requests);
        let outcomes: Vec<_> = requests.iter().map(|r| r.outcome.is_ok()).collect();
        assert_eq!(outcomes, [true, true, true, true, false]);
        let mut expected = vec![0; 4096];
        for (offset, bytes) in offsets.iter().zip(bytes.chunks(32)).take(4) {
            expected[*offset as usize..*offset as usize + 32].copy_from_slice(bytes);
        }
        assert_eq!(std::fs::read(file.path()).unwrap(), expected);
        // More neighbours than the system takes buffers in one call.
        let many = vec![7u8; 3000];
        let mut requests: Vec<_> = (0..3000)
            .map(|at| WriteRequest::new(at as u64, &many[at..=at]))
            .collect();
        device.write_many(&mut requests);
        assert!(requests.iter().all(|r| r.outcome.is_ok()));
        assert_eq!(std::fs::read(file.path()).unwrap()[..3000], many);
        let reader = image(&[0; 512]);
        let reader = FileDevice::open(reader.path(), OpenOptions::default()).unwrap();
        let mut requests = [WriteRequest::new(0, b"a"), WriteRequest::new(1, b"b")];
        reader.write_many(&mut requests);
        assert!(
            requests
                .iter()
                .all(|r| r.outcome == Err(DeviceError::ReadOnly))
        );
    }

    #[test]
    fn neighbours_are_found_and_nothing_follows_the_end_of_numbers() {
        let of = |requests: &[(u64, usize)]| adjacent(requests.iter().copied());
        assert_eq!(of(&[(0, 4), (4, 4), (8, 1), (10, 1)]), 3);
        assert_eq!(of(&[(5, 4), (4, 4)]), 1);
        assert_eq!(of(&[(u64::MAX, 4), (3, 4)]), 1);
        assert_eq!(of(&[(0, 0), (0, 4), (u64::MAX, 1)]), 2);
        assert_eq!(of(&vec![(0, 0); RUN_MAX + 5]), RUN_MAX);
    }

    #[test]
    fn what_is_no_file_or_block_device_is_refused() {
        for path in ["/dev/null", "/"] {
            assert!(matches!(
                FileDevice::open(Path::new(path), OpenOptions::default()),
                Err(DeviceError::WrongKind { .. })
            ));
        }
        let DeviceError::Open { errno, .. } =
            FileDevice::open(Path::new("/no/such"), OpenOptions::default()).unwrap_err()
        else {
            panic!("not an open error")
        };
        assert_eq!(errno, Errno::NOENT.raw_os_error());
    }

    #[test]
    fn a_file_that_was_cut_short_gives_an_error_and_no_stale_bytes() {
        let file = image(&[7; 8192]);
        let device = FileDevice::open(file.path(), OpenOptions::default()).unwrap();
        file.as_file().set_len(4096).unwrap();
        assert!(matches!(
            device.read(4000, &mut [0; 200]),
            Err(DeviceError::Io { action: "read", .. })
        ));
    }
}
