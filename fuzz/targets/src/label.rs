//! The content of labels, and of partition tables.

use millpond_device::{Device, MemoryDevice, PartitionDevice, read_gpt};
use millpond_ondisk::{BootEnvironment, ChecksumTrailer, Uberblock};

pub fn uberblock(data: &[u8]) {
    let Ok(uberblock) = Uberblock::decode(data) else {
        return;
    };
    let _ = (
        uberblock.mmp(),
        uberblock.rank(),
        uberblock.has_known_version(),
    );
    assert_eq!(
        Uberblock::decode(&uberblock.encode()).map(|again| again.rank()),
        Ok(uberblock.rank())
    );
}

pub fn checksum_trailer(data: &[u8]) {
    let Some(trailer) = ChecksumTrailer::decode(data) else {
        return;
    };
    let _ = ChecksumTrailer::decode(&trailer.encode());
}

pub fn boot_environment(data: &[u8]) {
    let _ = BootEnvironment::decode(data);
}

/// A whole disk of a few blocks.
pub fn gpt(data: &[u8]) {
    let disk: std::sync::Arc<dyn Device> =
        std::sync::Arc::new(MemoryDevice::new(data.to_vec()).read_only());
    for part in read_gpt(disk.as_ref()).unwrap_or_default() {
        let device = PartitionDevice::new(disk.clone(), part.start_bytes, part.length_bytes)
            .expect("partitions lie within their disk");
        assert!(device.size_bytes() > 0);
    }
}
