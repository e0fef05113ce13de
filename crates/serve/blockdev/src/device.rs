//! A disk as a block device: its file, and the loop device over it.

use crate::disk::Disk;
use crate::image::Image;
use crate::kernel;
use millpond_env::sync::Arc;
use millpond_env::thread::sleep;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, makedev};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const CONTROL: &str = "/dev/loop-control";
const LOOP_MAJOR: u32 = 7;
/// Sectors as those of OpenZFS's volumes.
const SECTOR_BYTES: u32 = 512;
/// How often another program may take the free device first.
const TRIES: usize = 64;
/// How long a device may be open until it counts as used. Programs that look at new devices close them soon.
const LOOKS: (u32, Duration) = (40, Duration::from_millis(25));
/// How long the file of a detached device may take to close.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Why a block device could not be made or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockDeviceError {
    /// A program has it open, or it is mounted.
    #[error("{0} is in use")]
    Busy(String),
    /// Its file could not be served.
    #[error("the volume cannot be served: {0}")]
    Serve(Errno),
    /// There is no loop device for it.
    #[error("no loop device: {0}")]
    NoLoop(Errno),
    /// The system refused a request about the device.
    #[error("{device}: {error}")]
    Device {
        /// The path of the device.
        device: String,
        /// The cause.
        error: Errno,
    },
}

/// What a device is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Whom it belongs to: see [`tag_of`].
    pub tag: String,
    /// What it shows, for people.
    pub name: String,
    /// Whether nothing can be written for now.
    pub is_read_only: bool,
    /// Whether the disk can be changed at all.
    pub may_change: bool,
    /// Whether the system looks for partitions.
    pub has_partitions: bool,
}

/// A block device of the system over a disk.
pub struct BlockDevice {
    image: Image,
    /// The name that the loop device carries.
    label: String,
    number: u32,
}

impl std::fmt::Debug for BlockDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockDevice")
            .field("label", &self.label)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// What the labels of all volumes' devices begin with.
const TAG_WORD: &str = "millpond ";

/// The mark of the loop devices of a daemon: that of its state directory, which only one daemon uses at a time.
#[must_use]
pub fn tag_of(state: &Path) -> Option<String> {
    let known = fs::metadata(state).ok()?;
    Some(format!("{TAG_WORD}{:x}:{:x}", known.dev(), known.ino()))
}

/// Why this process cannot make block devices; `None` if it can.
#[must_use]
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root makes block devices".to_owned());
    }
    for path in [CONTROL, "/dev/fuse"] {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        if let Err(error) = rustix::fs::open(path, flags, Mode::empty()) {
            return Some(format!("{path}: {error}"));
        }
    }
    None
}

fn path_of(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Opens a loop device. Its node is made if it is missing, as in a container whose `/dev` no one fills.
fn open_loop(number: u32, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = path_of(number);
    let device = makedev(LOOP_MAJOR, number);
    if let Err(error) = fs::symlink_metadata(&path)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        let mode = Mode::from_raw_mode(0o660);
        let made = rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::BlockDevice, mode, device);
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    let opened = rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty())?;
    let status = rustix::fs::fstat(&opened)?;
    let is_it = FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice
        && status.st_rdev == device;
    match is_it {
        true => Ok(opened),
        false => Err(Errno::NODEV),
    }
}

/// Opens a partition of a loop device. If `/dev` does not have it, a node is made for a moment.
fn open_partition(name: &str, device: u64) -> Result<OwnedFd, Errno> {
    let open =
        |path: &Path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(opened) = open(&Path::new("/dev").join(name))
        && rustix::fs::fstat(&opened).is_ok_and(|status| {
            let kind = FileType::from_raw_mode(status.st_mode);
            kind == FileType::BlockDevice && status.st_rdev == device
        })
    {
        return Ok(opened);
    }
    let path = PathBuf::from(format!("/dev/millpond-{}-{name}", std::process::id()));
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::BlockDevice, mode, device)?;
    let opened = open(&path);
    let _ = fs::remove_file(&path);
    opened
}

/// The partitions of a loop device, each with its name and device number.
fn partitions(number: u32) -> Vec<(String, u64)> {
    let Ok(listed) = fs::read_dir(format!("/sys/block/loop{number}")) else {
        return vec![];
    };
    let found = listed.flatten().filter_map(|entry| {
        let path = entry.path();
        let device = fs::read_to_string(path.join("dev")).ok();
        let device = device.filter(|_| path.join("partition").exists())?;
        let (major, minor) = device.trim_end().split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some((entry.file_name().into_string().ok()?, device))
    });
    found.collect()
}

/// Attaches the file of an image to a free loop device. Returns its number.
fn attach(image: &Image, options: &DeviceOptions, label: &str) -> Result<u32, BlockDeviceError> {
    let control = OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open(CONTROL, control, Mode::empty());
    let control = control.map_err(BlockDeviceError::NoLoop)?;
    let mut flags = 0;
    if options.has_partitions {
        flags |= kernel::FLAG_PARTITIONS;
    }
    if !options.may_change {
        flags |= kernel::FLAG_READ_ONLY;
    }
    let file = image.file().map_err(BlockDeviceError::Serve)?;
    for _ in 0..TRIES {
        let number = kernel::free_number(&control).map_err(BlockDeviceError::NoLoop)?;
        let device = open_loop(number, OFlags::RDWR).map_err(BlockDeviceError::NoLoop)?;
        match kernel::configure(&device, file, SECTOR_BYTES, flags, label) {
            Ok(()) => {
                // A device that another program left read-only would otherwise stay so.
                let is_read_only = options.is_read_only && options.may_change;
                let set = kernel::set_read_only(&device, is_read_only);
                set.map_err(|error| device_error(number, error))?;
                return Ok(number);
            }
            Err(Errno::BUSY) => {}
            Err(error) => return Err(device_error(number, error)),
        }
    }
    Err(BlockDeviceError::NoLoop(Errno::BUSY))
}

fn device_error(number: u32, error: Errno) -> BlockDeviceError {
    BlockDeviceError::Device {
        device: path_of(number).to_string_lossy().into_owned(),
        error,
    }
}

impl BlockDevice {
    /// Serves a disk as a block device.
    ///
    /// # Errors
    /// [`BlockDeviceError`]; nothing is left then.
    pub fn attach(disk: Arc<dyn Disk>, options: &DeviceOptions) -> Result<Self, BlockDeviceError> {
        let label = format!("{} {}", options.tag, options.name);
        let image = Image::serve(
            disk,
            &options.name,
            options.is_read_only,
            options.may_change,
        );
        let image = image.map_err(BlockDeviceError::Serve)?;
        let number = attach(&image, options, &label)?;
        Ok(Self {
            image,
            label: short(&label),
            number,
        })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(self.number)
    }
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it still shows this disk: another program may have detached it.
    fn is_own(&self, device: &OwnedFd) -> bool {
        kernel::status(device).is_ok_and(|status| status.name() == self.label)
    }

    fn open(&self) -> Result<OwnedFd, BlockDeviceError> {
        open_loop(self.number, OFlags::RDONLY).map_err(|error| self.error(error))
    }
    fn error(&self, error: Errno) -> BlockDeviceError {
        device_error(self.number, error)
    }

    /// Whether it is attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.open().is_ok_and(|device| self.is_own(&device))
    }

    /// Writes back what the system has cached of it and of its partitions, and puts the disk on stable storage.
    ///
    /// # Errors
    /// If that is not certain.
    pub fn flush(&self) -> Result<(), BlockDeviceError> {
        let device = self.open()?;
        if !self.is_own(&device) {
            return Ok(());
        }
        // Each partition has a cache of its own.
        let partitions = partitions(self.number).into_iter().map(|(name, number)| {
            let opened = open_partition(&name, number);
            match opened.and_then(|partition| rustix::fs::fsync(&partition)) {
                // It was removed meanwhile, for which it must not be in use.
                Ok(()) | Err(Errno::NXIO) => Ok(()),
                Err(error) => Err(BlockDeviceError::Device {
                    device: format!("/dev/{name}"),
                    error,
                }),
            }
        });
        let partitions: Vec<_> = partitions.collect();
        rustix::fs::fsync(&device).map_err(|error| self.error(error))?;
        partitions.into_iter().collect()
    }

    /// Lets programs change it, or not. What they have written before is written back first.
    ///
    /// # Errors
    /// If the system refuses that.
    pub fn set_read_only(&self, is_read_only: bool) -> Result<(), BlockDeviceError> {
        let device = self.open()?;
        if is_read_only {
            // What cannot be written back is the concern of the program that wrote it.
            let _ = self.flush();
        }
        let set = kernel::set_read_only(&device, is_read_only);
        set.map_err(|error| self.error(error))?;
        self.image.session().set_read_only(is_read_only);
        Ok(())
    }

    /// Follows a change of the disk's size.
    ///
    /// # Errors
    /// If the system refuses that.
    pub fn follow_size(&self) -> Result<(), BlockDeviceError> {
        let asked = self.image.ask_size();
        asked.map_err(|error| self.error(error))?;
        let device = self.open()?;
        kernel::resize(&device).map_err(|error| self.error(error))
    }

    /// Detaches it. When this returns, what was written to it has reached the disk, and nothing holds the disk any more.
    ///
    /// # Errors
    /// [`BlockDeviceError::Busy`] if it is in use; nothing has changed then.
    pub fn detach(&mut self) -> Result<(), BlockDeviceError> {
        let (looks, pause) = LOOKS;
        for look in 0..looks {
            let device = match open_loop(self.number, OFlags::RDONLY) {
                Ok(device) => device,
                Err(error) => return Err(self.error(error)),
            };
            if !self.is_own(&device) || self.try_clear(device)? {
                self.image.close(CLOSE_MAX);
                return Ok(());
            }
            if look + 1 < looks {
                sleep(pause);
            }
        }
        Err(BlockDeviceError::Busy(
            self.path().to_string_lossy().into_owned(),
        ))
    }

    /// Returns false if another program has it open.
    ///
    /// The kernel writes back what a program left in the cache when the last one closes the device, and this process has it
    /// open: a request to detach it now would lose that. So the device is detached by the last one who closes it.
    fn try_clear(&self, device: OwnedFd) -> Result<bool, BlockDeviceError> {
        let Ok(mut status) = kernel::status(&device) else {
            return Ok(true);
        };
        // The kernel keeps "read-only" for the next file of the device. One that keeps it can still be detached.
        let _ = kernel::set_read_only(&device, false);
        status.set_flags(status.flags() | kernel::FLAG_AUTOCLEAR);
        match kernel::set_status(&device, &status) {
            Err(Errno::NXIO) => return Ok(true),
            set => set.map_err(|error| self.error(error))?,
        }
        drop(device);
        let device = self.open()?;
        if !self.is_own(&device) {
            return Ok(true);
        }
        status.set_flags(status.flags() & !kernel::FLAG_AUTOCLEAR);
        match kernel::set_status(&device, &status) {
            Err(Errno::NXIO) => return Ok(true),
            set => set.map_err(|error| self.error(error))?,
        }
        let is_read_only = self.image.session().is_read_only();
        let set = kernel::set_read_only(&device, is_read_only);
        set.map_err(|error| self.error(error))?;
        Ok(false)
    }

    /// Takes the disk away from a device that is in use: its users get errors from now on, and it is detached when the
    /// last of them closes it. What the system has cached is written back first.
    pub fn cut_off(mut self) {
        if let Ok(device) = self.open()
            && self.is_own(&device)
        {
            let _ = self.flush();
            let _ = clear(&device);
        }
        self.image.session().end();
        self.image.close(Duration::from_millis(100));
    }
}

/// Detaches a loop device, or lets it go when its last user closes it. The kernel keeps "read-only" for the next file of
/// the device, so that it is taken off first.
fn clear(device: &OwnedFd) -> Result<(), Errno> {
    // A device that keeps it can still be detached.
    let _ = kernel::set_read_only(device, false);
    kernel::clear(device)
}

/// What the loop device keeps of a name.
fn short(label: &str) -> String {
    let bytes = label.as_bytes();
    let kept = bytes.get(..63).unwrap_or(bytes);
    String::from_utf8_lossy(kept).into_owned()
}

/// The numbers of all loop devices with a file.
fn attached_numbers() -> Vec<u32> {
    let Ok(listed) = fs::read_dir("/sys/block") else {
        return vec![];
    };
    let numbers = listed.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let number = name.strip_prefix("loop")?.parse().ok()?;
        entry.path().join("loop").exists().then_some(number)
    });
    numbers.collect()
}

/// The name that an attached loop device carries; `None` if none is attached.
pub(crate) fn label_of(number: u32) -> Option<String> {
    let device = open_loop(number, OFlags::RDONLY).ok()?;
    Some(kernel::status(&device).ok()?.name())
}

/// Whether a label is that of a volume, of any daemon.
pub(crate) fn is_of_volume(label: &str) -> bool {
    label.starts_with(TAG_WORD)
}

/// Whether a label has a tag.
pub(crate) fn has_tag(label: &str, tag: &str) -> bool {
    let rest = label.strip_prefix(tag);
    rest.is_some_and(|rest| rest.starts_with(' '))
}

/// Whether a loop device is what a killed process left: the kernel cannot ask for its file any more, and the file is the
/// root of a mount at no path. Nothing brings such a device back.
fn is_dead(number: u32, status: &Result<kernel::LoopStatus, Errno>) -> bool {
    let is_over = matches!(status, Err(Errno::NOTCONN | Errno::CONNABORTED));
    let file = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file"));
    is_over && file.is_ok_and(|path| path.trim_end() == "/")
}

/// Detaches the loop devices that a killed process left. Those still in use are detached when they are closed; they only
/// give errors. Returns the numbers.
#[must_use]
pub fn clear_left(tag: &str) -> Vec<u32> {
    let left = attached_numbers().into_iter().filter(|number| {
        let Ok(device) = open_loop(*number, OFlags::RDONLY) else {
            return false;
        };
        let status = kernel::status(&device);
        let is_own = matches!(&status, Ok(status) if has_tag(&status.name(), tag));
        (is_own || is_dead(*number, &status)) && clear(&device).is_ok()
    });
    left.collect()
}

/// Whether a path is a block device.
#[must_use]
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|known| known.file_type().is_block_device())
}

#[cfg(test)]
mod tests;
