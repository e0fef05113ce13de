//! A device in memory, for tests.

use crate::{Device, DeviceError};
use millpond_env::rank;
use millpond_env::sync::RwLock;
use std::fmt;

/// A device in memory; writes are durable at once.
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>, rank::Leaf>,
    size_bytes: u64,
    sector_bytes: u32,
    is_writable: bool,
}

impl MemoryDevice {
    /// A writable device of 512-byte sectors with this content.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            size_bytes: bytes.len() as u64,
            bytes: RwLock::new(bytes),
            sector_bytes: 512,
            is_writable: true,
        }
    }
    /// Sets the sector size in bytes.
    #[must_use]
    pub fn with_sector_bytes(mut self, sector_bytes: u32) -> Self {
        self.sector_bytes = sector_bytes;
        self
    }
    /// Makes the device read-only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_writable = false;
        self
    }
    /// A copy of the content.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
    fn range(
        &self,
        offset_bytes: u64,
        length: usize,
    ) -> Result<std::ops::Range<usize>, DeviceError> {
        DeviceError::check_range(offset_bytes, length as u64, self.size_bytes)?;
        // `check_range` ensured that this lies within the Vec, whose length is a usize.
        let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        Ok(start..start.saturating_add(length))
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDevice({} bytes)", self.size_bytes)
    }
}

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let range = self.range(offset_bytes, buffer.len())?;
        buffer.copy_from_slice(&self.bytes.read()[range]);
        Ok(())
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.is_writable {
            return Err(DeviceError::ReadOnly);
        }
        let range = self.range(offset_bytes, bytes.len())?;
        self.bytes.write()[range].copy_from_slice(bytes);
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Discarded bytes read as zeros.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        if !self.is_writable {
            return Err(DeviceError::ReadOnly);
        }
        DeviceError::check_range(offset_bytes, length_bytes, self.size_bytes)?;
        let range = self.range(
            offset_bytes,
            usize::try_from(length_bytes).unwrap_or(usize::MAX),
        )?;
        self.bytes.write()[range].fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_devices_round_trip_within_their_size() {
        let device = MemoryDevice::new(vec![0; 4096]).with_sector_bytes(4096);
        device.write(100, b"abc").unwrap();
        let mut buffer = [0; 3];
        device.read(100, &mut buffer).unwrap();
        assert_eq!(&buffer, b"abc");
        device.discard(101, 1).unwrap();
        assert_eq!(&device.to_vec()[100..103], b"a\0c");
        for offset in [4094, 4096, u64::MAX] {
            assert!(matches!(
                device.read(offset, &mut buffer),
                Err(DeviceError::OutOfRange { .. })
            ));
            assert!(matches!(
                device.write(offset, b"abc"),
                Err(DeviceError::OutOfRange { .. })
            ));
            assert!(matches!(
                device.discard(offset, 3),
                Err(DeviceError::OutOfRange { .. })
            ));
        }
        assert_eq!(device.sector_bytes(), 4096);
    }

    #[test]
    fn a_read_only_device_takes_no_writes() {
        let device = MemoryDevice::new(vec![0; 512]).read_only();
        assert_eq!(device.write(0, b"a"), Err(DeviceError::ReadOnly));
        assert_eq!(device.discard(0, 1), Err(DeviceError::ReadOnly));
    }
}
