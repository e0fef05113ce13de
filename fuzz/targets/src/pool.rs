//! Opens pools from labels and cache files.

use millpond_checksum::seal_label;
use millpond_device::{Candidate, Device, DeviceError};
use millpond_ondisk::{
    Ashift, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, LABEL_COUNT, LEAF_BYTES_MIN, LeafLayout,
    Txg, UBERBLOCK_BYTES, Uberblock, UberblockRing, unsealed_label_region,
};
use millpond_pool::import::{
    ActivitySettings, Rewind, Trust, cached_pools, find_pools, leaf_paths, read_labels,
    scan_devices,
};
use millpond_pool::{OpenOptions, PoolView};
use std::sync::Arc;

pub fn cache_file(data: &[u8]) {
    for (_, config) in cached_pools(data).unwrap_or_default() {
        let _ = leaf_paths(&config);
    }
}

/// A configuration in labels with valid checksums, on two disks, up to opening the pool.
pub fn label_config(data: &[u8]) {
    let disks = [disk(data), disk(data)];
    let candidates = disks
        .into_iter()
        .zip(["/a", "/b"])
        .map(|(disk, path)| Candidate {
            path: path.into(),
            aliases: Vec::new(),
            partition: None,
            device: Arc::new(disk),
            is_live: false,
        });
    let found = scan_devices(candidates.collect());
    for pool in find_pools(&found, 7) {
        let _ = (
            pool.needs_force(),
            pool.newest().is_some(),
            pool.members().count(),
        );
        let _ = pool.activity_check(ActivitySettings::new(7));
        for trust in [
            Trust::Trusted { txg: Txg(5) },
            Trust::Untrusted { txg_max: None },
        ] {
            if let Ok(assembly) = pool.assemble(&pool.config, trust) {
                let _ = (assembly.state(), assembly.aux(), assembly.guid_sum());
                let _ = assembly.unusable_logs();
            }
        }
        let _ = pool.uberblock_choices(Rewind::Never);
        let _ = PoolView::open(&millpond_env::Env::real(), &pool, &OpenOptions::default());
    }
}

/// A disk of minimum size with the same configuration in all labels, and an uberblock in the first.
fn disk(config: &[u8]) -> Disk {
    let mut pieces = Vec::new();
    let offsets = LeafLayout::new(LEAF_BYTES_MIN)
        .map(LeafLayout::label_offsets_bytes)
        .unwrap_or([0; LABEL_COUNT]);
    for label in offsets {
        let start = label + LABEL_CONFIG_OFFSET_BYTES;
        if let Some(mut region) = unsealed_label_region(config, LABEL_CONFIG_BYTES)
            && seal_label(&mut region, start).is_ok()
        {
            pieces.push((start, region));
        }
    }
    let ring = UberblockRing::new(Ashift(9));
    let mut bytes = vec![0; UBERBLOCK_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip([Uberblock::MAGIC, 5000, 5]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    if let Ok(uberblock) = Uberblock::decode(&bytes)
        && let Some(mut slot) = uberblock.encode_slot(ring)
        && seal_label(&mut slot, millpond_ondisk::UBERBLOCK_RING_OFFSET_BYTES).is_ok()
    {
        pieces.push((millpond_ondisk::UBERBLOCK_RING_OFFSET_BYTES, slot));
    }
    let disk = Disk { pieces };
    debug_assert!(read_labels(&disk).len() == LABEL_COUNT);
    disk
}

/// A disk of zeros except for some pieces.
#[derive(Debug)]
struct Disk {
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Device for Disk {
    fn size_bytes(&self) -> u64 {
        LEAF_BYTES_MIN
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset_bytes.saturating_add(buffer.len() as u64);
        assert!(end <= LEAF_BYTES_MIN, "reads stay on the disk");
        buffer.fill(0);
        for (start, piece) in &self.pieces {
            let from = (*start).max(offset_bytes);
            let to = (start + piece.len() as u64).min(end);
            if from < to {
                buffer[(from - offset_bytes) as usize..(to - offset_bytes) as usize]
                    .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
}
