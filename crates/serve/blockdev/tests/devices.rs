//! Disks in memory as block devices of this system, with real loop devices. Skipped, and it says so, without root or
//! without loop devices.

use millpond_blockdev::{
    BlockDevice, BlockDeviceError, DeviceOptions, Disk, DiskError, clear_left, missing,
};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const SIZE: usize = 32 << 20;

/// Tests with read-only devices take turns: the next device gets the number of one that was detached.
static READ_ONLY: Mutex<()> = Mutex::new(());

struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
    size: AtomicU64,
    flushes: AtomicUsize,
    zeroed: AtomicU64,
}

impl MemoryDisk {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(vec![0; 2 * SIZE]),
            size: AtomicU64::new(SIZE as u64),
            flushes: AtomicUsize::new(0),
            zeroed: AtomicU64::new(0),
        })
    }
}

impl Disk for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }
    fn block_bytes(&self) -> u64 {
        16384
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        let bytes = self.bytes.lock().unwrap();
        buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut all = self.bytes.lock().unwrap();
        all[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let mut all = self.bytes.lock().unwrap();
        all[offset as usize..][..length as usize].fill(0);
        self.zeroed.fetch_add(length, Ordering::SeqCst);
        Ok(())
    }
    fn flush(&self) -> Result<(), DiskError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn options(test: &str) -> DeviceOptions {
    DeviceOptions {
        tag: format!("millpond-test {test} {}", std::process::id()),
        name: "tank/disk".into(),
        is_read_only: false,
        may_change: true,
        has_partitions: false,
    }
}

/// Whether this system has no loop devices for the test, which it then says.
fn is_skipped() -> bool {
    match missing() {
        Some(why) => {
            eprintln!("SKIPPED, nothing is tested: {why}");
            true
        }
        None => false,
    }
}

#[test]
fn what_is_written_to_the_device_reaches_the_disk() {
    if is_skipped() {
        return;
    }
    let disk = MemoryDisk::new();
    let mut device = BlockDevice::attach(disk.clone(), &options("write")).unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device.path())
        .unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), SIZE as u64);
    let text: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    file.seek(SeekFrom::Start(512)).unwrap();
    file.write_all(&text).unwrap();
    let before = disk.flushes.load(Ordering::SeqCst);
    file.sync_all().unwrap();
    assert!(disk.flushes.load(Ordering::SeqCst) > before);
    assert!(disk.bytes.lock().unwrap()[512..][..text.len()] == text[..]);
    assert!(matches!(device.detach(), Err(BlockDeviceError::Busy(_))));
    let mut back = vec![0; text.len()];
    file.seek(SeekFrom::Start(512)).unwrap();
    file.read_exact(&mut back).unwrap();
    assert!(back == text);
    drop(file);
    device.detach().unwrap();
    // Nothing of it holds the disk any more.
    assert_eq!(Arc::strong_count(&disk), 1);
    assert!(!device.is_attached());
}

/// Makes the first partition of a device, of 8 MiB after the first MiB. Returns its path, or `None` if this system makes
/// none.
fn first_partition(device: &Path) -> Option<PathBuf> {
    let path = PathBuf::from(format!("{}p1", device.display()));
    if !path.exists() {
        // A kernel that does not read such tables is told.
        let told = Command::new("partx").arg("--add").arg(device).output();
        told.ok()?;
    }
    path.exists().then_some(path)
}

/// A program has a partition open, and what it wrote is in the cache of the partition.
#[test]
fn a_flush_reaches_the_partitions() {
    if is_skipped() {
        return;
    }
    let disk = MemoryDisk::new();
    {
        let mut bytes = disk.bytes.lock().unwrap();
        let (entry, end) = (446, 510);
        bytes[entry + 4] = 0x83;
        bytes[entry + 8..entry + 12].copy_from_slice(&2048u32.to_le_bytes());
        bytes[entry + 12..entry + 16].copy_from_slice(&16384u32.to_le_bytes());
        bytes[end..end + 2].copy_from_slice(&[0x55, 0xaa]);
    }
    let options = DeviceOptions {
        has_partitions: true,
        ..options("partitions")
    };
    let mut device = BlockDevice::attach(disk.clone(), &options).unwrap();
    let Some(partition) = first_partition(&device.path()) else {
        eprintln!("SKIPPED, nothing is tested: no partitions of loop devices");
        return;
    };
    let mut file = OpenOptions::new().write(true).open(&partition).unwrap();
    file.write_all(&[8; 4096]).unwrap();
    let at = 1 << 20;
    device.flush().unwrap();
    assert_eq!(disk.bytes.lock().unwrap()[at..][..4096], [8; 4096]);
    file.write_all(&[9; 4096]).unwrap();
    device.set_read_only(true).unwrap();
    assert_eq!(disk.bytes.lock().unwrap()[at + 4096..][..4096], [9; 4096]);
    device.set_read_only(false).unwrap();
    assert!(matches!(device.detach(), Err(BlockDeviceError::Busy(_))));
    drop(file);
    device.detach().unwrap();
}

#[test]
fn discards_size_and_read_only_are_followed() {
    if is_skipped() {
        return;
    }
    let _alone = READ_ONLY.lock();
    let disk = MemoryDisk::new();
    disk.bytes.lock().unwrap().fill(7);
    let mut device = BlockDevice::attach(disk.clone(), &options("follow")).unwrap();
    let path = device.path();
    let discarded = Command::new("blkdiscard")
        .args(["-o", "1048576", "-l", "4194304"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(discarded.success());
    assert_eq!(disk.zeroed.load(Ordering::SeqCst), 4 << 20);

    disk.size.store(2 * SIZE as u64, Ordering::SeqCst);
    device.follow_size().unwrap();
    let mut file = File::open(&path).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 2 * SIZE as u64);
    drop(file);

    device.set_read_only(true).unwrap();
    let write = || {
        let mut file = OpenOptions::new().write(true).open(&path)?;
        file.write_all(&[9; 4096])?;
        file.sync_all()
    };
    assert!(write().is_err());
    assert_eq!(disk.bytes.lock().unwrap()[0], 7);
    device.set_read_only(false).unwrap();
    write().unwrap();
    assert_eq!(disk.bytes.lock().unwrap()[0], 9);
    device.detach().unwrap();
}

/// Whether the system keeps a loop device read-only for the program that gets it next.
fn stays_read_only(device: &Path) -> bool {
    let output = Command::new("blockdev").arg("--getro").arg(device).output();
    String::from_utf8(output.unwrap().stdout).unwrap().trim() != "0"
}

/// Another program may get the device next, and the system keeps the mark for it.
#[test]
fn a_read_only_device_that_is_detached_is_not_left_read_only() {
    if is_skipped() {
        return;
    }
    let _alone = READ_ONLY.lock();
    let read_only = DeviceOptions {
        is_read_only: true,
        ..options("marked")
    };
    let mut device = BlockDevice::attach(MemoryDisk::new(), &read_only).unwrap();
    let path = device.path();
    assert!(stays_read_only(&path));
    let user = File::open(&path).unwrap();
    // One that is in use stays as it is.
    assert!(matches!(device.detach(), Err(BlockDeviceError::Busy(_))));
    assert!(stays_read_only(&path));
    drop(user);
    device.detach().unwrap();
    assert!(!stays_read_only(&path));
}

#[test]
fn a_device_that_is_cut_off_gives_errors_and_goes_with_its_last_user() {
    if is_skipped() {
        return;
    }
    let disk = MemoryDisk::new();
    let device = BlockDevice::attach(disk.clone(), &options("cut")).unwrap();
    let path = device.path();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&[5; 4096]).unwrap();
    device.cut_off();
    assert_eq!(disk.bytes.lock().unwrap()[0], 5);
    file.write_all(&[6; 4096]).unwrap();
    assert!(file.sync_all().is_err());
    assert_eq!(disk.bytes.lock().unwrap()[4096], 0);
    drop(file);
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(!Path::new(&format!("/sys/block/{name}/loop")).exists());
}

#[test]
fn a_read_only_disk_is_a_read_only_device_and_left_ones_are_found_by_their_tag() {
    if is_skipped() {
        return;
    }
    let _alone = READ_ONLY.lock();
    let disk = MemoryDisk::new();
    let options = DeviceOptions {
        may_change: false,
        is_read_only: true,
        ..options("left")
    };
    let mut device = BlockDevice::attach(disk.clone(), &options).unwrap();
    let opened = OpenOptions::new().write(true).open(device.path());
    assert!(
        opened
            .and_then(|mut file| file.write_all(&[1; 512]))
            .is_err()
    );
    assert_eq!(clear_left("millpond-test lef"), Vec::<u32>::new());
    assert_eq!(clear_left(&options.tag), [device.number()]);
    assert!(!device.is_attached());
    // As after another program has detached it.
    device.detach().unwrap();
    assert_eq!(Arc::strong_count(&disk), 1);
}
