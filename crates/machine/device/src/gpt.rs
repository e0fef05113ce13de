//! GPT partition tables of whole disks, read only.
//!
//! Page `docs/format/label.md`, "Whole disks".

use crate::{Device, DeviceError};

/// A partition, from its entry in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GptPartition {
    /// Partition number, from 1.
    pub number: u32,
    /// The type GUID: 16 bytes as stored.
    pub type_guid: [u8; 16],
    /// Byte offset on the disk.
    pub start_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// The partition's name.
    pub name: String,
}

impl GptPartition {
    /// Type GUID of a pool's partition (6a898cc3-1dd2-11b2-99a6-080020736631), as stored.
    pub const ZFS_TYPE: [u8; 16] = [
        0xc3, 0x8c, 0x89, 0x6a, 0xd2, 0x1d, 0xb2, 0x11, 0x99, 0xa6, 0x08, 0x00, 0x20, 0x73, 0x66,
        0x31,
    ];
}

/// Why a partition table could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GptError {
    /// The disk has no partition table.
    #[error("no partition table")]
    Absent,
    /// There is a partition table, but neither copy is intact.
    #[error("both copies of the partition table are damaged")]
    Damaged,
    /// The device could not be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Reads the partition table of a disk or disk image.
///
/// Tries the copy after the first block and the copy in the last block, with blocks of 512 and 4096 bytes,
/// and uses the first intact one. Reads at most 1 MiB per copy. Skips invalid entries.
///
/// # Errors
/// [`GptError`].
pub fn read_gpt(device: &dyn Device) -> Result<Vec<GptPartition>, GptError> {
    let mut is_damaged = false;
    for block_bytes in [512u64, 4096] {
        let blocks = device.size_bytes() / block_bytes;
        if blocks < 3 {
            continue;
        }
        for block in [1, blocks.saturating_sub(1)] {
            match read_copy(device, block_bytes, block, blocks) {
                Ok(partitions) => return Ok(partitions),
                Err(GptError::Absent) => {}
                Err(GptError::Damaged) => is_damaged = true,
                Err(error) => return Err(error),
            }
        }
    }
    Err(if is_damaged {
        GptError::Damaged
    } else {
        GptError::Absent
    })
}

/// The size limit of a table in bytes; 8192 entries of 128 bytes.
const TABLE_BYTES_MAX: u64 = 1 << 20;

fn read_copy(
    device: &dyn Device,
    block_bytes: u64,
    block: u64,
    blocks: u64,
) -> Result<Vec<GptPartition>, GptError> {
    let mut header = [0u8; 512];
    let at = block.checked_mul(block_bytes).ok_or(GptError::Absent)?;
    device.read(at, &mut header)?;
    if !header.starts_with(b"EFI PART") {
        return Err(GptError::Absent);
    }
    let u32_at = |at: usize| {
        field::<4>(&header, at)
            .map(u32::from_le_bytes)
            .ok_or(GptError::Damaged)
    };
    let u64_at = |at: usize| {
        field::<8>(&header, at)
            .map(u64::from_le_bytes)
            .ok_or(GptError::Damaged)
    };

    let header_bytes = usize::try_from(u32_at(12)?).map_err(|_| GptError::Damaged)?;
    let mut covered = header
        .get(..header_bytes)
        .filter(|covered| covered.len() >= 92)
        .ok_or(GptError::Damaged)?
        .to_vec();
    covered.get_mut(16..20).ok_or(GptError::Damaged)?.fill(0);
    if crc32(&covered) != u32_at(16)? || u64_at(24)? != block {
        return Err(GptError::Damaged);
    }
    let entry_bytes = u64::from(u32_at(84)?);
    let table_bytes = entry_bytes.saturating_mul(u64::from(u32_at(80)?));
    let table_at = u64_at(72)?
        .checked_mul(block_bytes)
        .ok_or(GptError::Damaged)?;
    if !entry_bytes.is_multiple_of(128) || entry_bytes == 0 || table_bytes > TABLE_BYTES_MAX {
        return Err(GptError::Damaged);
    }
    // Checked before memory is allocated for it.
    DeviceError::check_range(table_at, table_bytes, device.size_bytes())
        .map_err(|_| GptError::Damaged)?;
    let mut table = vec![0u8; usize::try_from(table_bytes).map_err(|_| GptError::Damaged)?];
    device.read(table_at, &mut table)?;
    if crc32(&table) != u32_at(88)? {
        return Err(GptError::Damaged);
    }
    let entry_bytes = usize::try_from(entry_bytes).map_err(|_| GptError::Damaged)?;
    Ok((1..)
        .zip(table.chunks_exact(entry_bytes))
        .filter_map(|(number, entry)| partition(number, entry, block_bytes, blocks))
        .collect())
}

fn partition(number: u32, entry: &[u8], block_bytes: u64, blocks: u64) -> Option<GptPartition> {
    let type_guid = field::<16>(entry, 0)?;
    let first = u64::from_le_bytes(field(entry, 32)?);
    let last = u64::from_le_bytes(field(entry, 40)?);
    if type_guid == [0; 16] || first == 0 || first > last || last >= blocks {
        return None;
    }
    let units = entry
        .get(56..128)?
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let name: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    Some(GptPartition {
        number,
        type_guid,
        start_bytes: first.checked_mul(block_bytes)?,
        length_bytes: (last - first).checked_add(1)?.checked_mul(block_bytes)?,
        name: String::from_utf16_lossy(&name),
    })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// The CRC of partition tables: IEEE 802.3, least significant bit first.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use proptest::prelude::*;

    /// A disk of `blocks` blocks with one pool partition in blocks 100 to 199, and both tables.
    fn disk(block_bytes: usize, blocks: usize) -> Vec<u8> {
        let mut disk = vec![0u8; block_bytes * blocks];
        let mut table = vec![0u8; 128 * 128];
        table[..16].copy_from_slice(&GptPartition::ZFS_TYPE);
        table[32..40].copy_from_slice(&100u64.to_le_bytes());
        table[40..48].copy_from_slice(&199u64.to_le_bytes());
        for (at, unit) in "zfs-01".encode_utf16().enumerate() {
            table[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
        }
        let table_blocks = table.len() / block_bytes;
        for (header_at, table_at) in [(1, 2), (blocks - 1, blocks - 1 - table_blocks)] {
            disk[table_at * block_bytes..][..table.len()].copy_from_slice(&table);
            let mut header = vec![0u8; 92];
            header[..8].copy_from_slice(b"EFI PART");
            header[8..12].copy_from_slice(&0x10000u32.to_le_bytes());
            header[12..16].copy_from_slice(&92u32.to_le_bytes());
            header[24..32].copy_from_slice(&(header_at as u64).to_le_bytes());
            header[72..80].copy_from_slice(&(table_at as u64).to_le_bytes());
            header[80..84].copy_from_slice(&128u32.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc32(&table).to_le_bytes());
            let crc = crc32(&header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
            disk[header_at * block_bytes..][..92].copy_from_slice(&header);
        }
        disk
    }

    fn read(disk: Vec<u8>) -> Result<Vec<GptPartition>, GptError> {
        read_gpt(&MemoryDevice::new(disk))
    }

    #[test]
    fn the_crc_is_that_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_partition_is_found_with_either_block_size() {
        for block_bytes in [512, 4096] {
            let found = read(disk(block_bytes, 400)).unwrap();
            assert_eq!(
                found,
                [GptPartition {
                    number: 1,
                    type_guid: GptPartition::ZFS_TYPE,
                    start_bytes: 100 * block_bytes as u64,
                    length_bytes: 100 * block_bytes as u64,
                    name: "zfs-01".into(),
                }]
            );
        }
    }

    #[test]
    fn the_backup_gpt_is_used_if_the_primary_is_damaged() {
        for damage in [512 + 30, 1024 + 5] {
            let mut bytes = disk(512, 400);
            bytes[damage] ^= 1;
            assert_eq!(read(bytes).unwrap().len(), 1);
        }
        let mut bytes = disk(512, 400);
        bytes[..2048].fill(0);
        assert_eq!(read(bytes).unwrap().len(), 1);
    }

    #[test]
    fn without_a_whole_copy_there_are_no_partitions() {
        let mut bytes = disk(512, 400);
        bytes[512 + 30] ^= 1;
        let last = bytes.len() - 512 + 30;
        bytes[last] ^= 1;
        assert_eq!(read(bytes), Err(GptError::Damaged));
        assert_eq!(read(vec![0; 1 << 20]), Err(GptError::Absent));
        assert_eq!(read(vec![0; 100]), Err(GptError::Absent));
        assert_eq!(read(Vec::new()), Err(GptError::Absent));
    }

    #[test]
    fn sizes_from_the_header_are_bounded_before_memory_is_taken() {
        for (field, value) in [
            (80, u32::MAX),
            (84, 0),
            (84, 100),
            (84, 1 << 31),
            (12, 4096),
            (12, 0),
        ] {
            let mut bytes = disk(512, 400);
            bytes.truncate(399 * 512);
            bytes[512 + field..512 + field + 4].copy_from_slice(&u32::to_le_bytes(value));
            bytes[512 + 16..512 + 20].fill(0);
            let crc = crc32(&bytes[512..512 + 92]);
            bytes[512 + 16..512 + 20].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(read(bytes), Err(GptError::Damaged), "{field} {value}");
        }
    }

    proptest! {
        #[test]
        fn damaged_gpts_give_partitions_inside_the_disk_or_errors(
            header in proptest::collection::vec((24usize..92, any::<u8>()), 0..4),
            entries in proptest::collection::vec((0usize..256, any::<u8>()), 0..8),
            block_bytes in prop_oneof![Just(512usize), Just(4096)],
        ) {
            let mut bytes = disk(block_bytes, 400);
            for (at, byte) in entries {
                bytes[2 * block_bytes + at] = byte;
            }
            let table = crc32(&bytes[2 * block_bytes..][..128 * 128]);
            let start = block_bytes;
            bytes[start + 88..start + 92].copy_from_slice(&table.to_le_bytes());
            for (at, byte) in header {
                bytes[start + at] = byte;
            }
            bytes[start + 16..start + 20].fill(0);
            let crc = crc32(&bytes[start..start + 92]);
            bytes[start + 16..start + 20].copy_from_slice(&crc.to_le_bytes());
            let size_bytes = bytes.len() as u64;
            for part in read(bytes).unwrap_or_default() {
                prop_assert!(part.start_bytes > 0 && part.length_bytes > 0);
                prop_assert!(part.start_bytes + part.length_bytes <= size_bytes);
            }
        }
    }
}
