use super::*;
use crate::{Disk, DiskError};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use std::io::Write;

const SIZE: usize = 4 << 20;

struct MemoryDisk(Mutex<Vec<u8>, rank::Leaf>);

impl Disk for MemoryDisk {
    fn size_bytes(&self) -> u64 {
        SIZE as u64
    }
    fn block_bytes(&self) -> u64 {
        4096
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        buffer.copy_from_slice(&self.0.lock()[offset as usize..][..buffer.len()]);
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.0.lock()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.0.lock()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

/// A program closes the device after it was opened to be detached, so that it is not the last one.
#[test]
fn what_is_written_right_before_a_device_is_detached_is_kept() {
    if let Some(why) = missing() {
        eprintln!("SKIPPED, nothing is tested: {why}");
        return;
    }
    let disk = Arc::new(MemoryDisk(Mutex::new(vec![0; SIZE])));
    let options = DeviceOptions {
        tag: format!("millpond-test detached {}", std::process::id()),
        name: "tank/disk".into(),
        is_read_only: false,
        may_change: true,
        has_partitions: false,
    };
    let mut device = BlockDevice::attach(Arc::clone(&disk) as _, &options).unwrap();
    let opened = device.open().unwrap();
    let mut file = fs::OpenOptions::new();
    let mut file = file.write(true).open(device.path()).unwrap();
    file.write_all(&[7; 8192]).unwrap();
    drop(file);
    assert!(device.try_clear(opened).unwrap());
    assert!(!device.is_attached());
    assert_eq!(disk.0.lock()[..8192], [7; 8192]);
    device.detach().unwrap();
}
