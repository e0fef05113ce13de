//! Tests on simulated disks.

use crate::{BlockKey, Buffer, CacheDevice, CacheDeviceId};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_ondisk::l2arc::{EntryProperties, HEADER_OFFSET_BYTES};
use millpond_ondisk::{Ashift, Guid, Txg};
use millpond_sim::{SimDisk, World};
use proptest::prelude::*;

const PAGE_BYTES: u64 = 512;

fn disk(mib: u64) -> Arc<SimDisk> {
    World::without_journal(1).disk(mib << 20, 512)
}

fn id() -> CacheDeviceId {
    CacheDeviceId {
        pool_guid: Guid(1),
        vdev_guid: Guid(2),
        ashift: Ashift(9),
    }
}

fn opened(device: &Arc<SimDisk>, id: CacheDeviceId, is_writable: bool) -> CacheDevice {
    let opened = CacheDevice::new(Arc::clone(device) as _, id, is_writable).unwrap();
    opened.rebuild();
    opened
}

fn key(number: u64) -> BlockKey {
    BlockKey {
        dva_words: [8, number],
        birth: Txg(number + 1),
    }
}

fn content(number: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    content[..8].copy_from_slice(&(number + 1).to_le_bytes());
    content
}

fn buffer(number: u64, bytes: u64) -> Buffer {
    Buffer {
        key: key(number),
        properties: EntryProperties {
            logical_bytes: bytes * 2,
            stored_bytes: bytes,
            compression: 15,
            is_prefetched: false,
            is_metadata: number.is_multiple_of(2),
            is_protected: false,
            is_frequent: false,
        },
        bytes: Arc::new(content(number, bytes)),
    }
}

fn buffers(numbers: std::ops::Range<u64>, bytes: u64) -> Vec<Buffer> {
    numbers.map(|number| buffer(number, bytes)).collect()
}

/// Reads a block as the pool would. Whether it was found.
fn read(device: &CacheDevice, number: u64, bytes: u64) -> bool {
    let expected = content(number, bytes);
    let found = device.read(&key(number), bytes, &mut |bytes| bytes == expected);
    assert!(found.is_none() || found == Some(expected));
    found.is_some()
}

fn count(device: &CacheDevice, numbers: std::ops::Range<u64>, bytes: u64) -> u64 {
    numbers
        .map(|number| u64::from(read(device, number, bytes)))
        .sum()
}

#[test]
fn what_was_fed_is_found_with_the_right_bytes() {
    let disk = disk(64);
    let device = opened(&disk, id(), true);
    assert_eq!(device.feed(&buffers(0..10, 1536)), 10 * 1536);
    assert_eq!(device.feed(&buffers(5..20, 1536)), 10 * 1536, "it has some");
    assert_eq!(count(&device, 0..30, 1536), 20);
    assert!(!device.contains(&key(20)));
    let twice = [buffer(30, 1536), buffer(30, 1536)];
    assert_eq!(device.feed(&twice), 1536);
    device.forget(&key(30));
    assert!(!device.contains(&key(30)));
    assert_eq!(
        device.read(&key(3), 1024, &mut |_| true),
        None,
        "another size"
    );
    let stats = device.stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.checksum_errors),
        (20, 11, 0)
    );
    assert_eq!((stats.buffers, stats.stored_bytes), (20, 20 * 1536));
    assert_eq!(stats.used_bytes, 21 * 1536);
}

#[test]
fn wrong_bytes_are_counted_once_and_never_returned() {
    let disk = disk(64);
    let device = opened(&disk, id(), true);
    device.feed(&buffers(0..4, 4096));
    disk.write(HEADER_OFFSET_BYTES + 512 + 4096, &[7; 4096])
        .unwrap();
    assert_eq!(count(&device, 0..4, 4096), 3);
    assert_eq!(count(&device, 0..4, 4096), 3);
    let stats = device.stats();
    assert_eq!((stats.checksum_errors, stats.misses), (1, 1));
    assert_eq!(
        device.feed(&buffers(1..2, 4096)),
        4096,
        "it can be fed again"
    );
    assert_eq!(count(&device, 0..4, 4096), 4);
}

#[test]
fn the_hand_goes_around_and_forgets_what_it_overwrites() {
    let disk = disk(64);
    let device = opened(&disk, id(), true);
    let record = 128 << 10;
    for round in 0..40 {
        let first = round * 50;
        assert_eq!(
            device.feed(&buffers(first..first + 50, record)),
            50 * record
        );
        assert_eq!(count(&device, first..first + 50, record), 50);
        let stats = device.stats();
        assert!(stats.used_bytes <= stats.area_bytes);
        assert!(stats.stored_bytes <= stats.used_bytes);
    }
    let found = count(&device, 0..2000, record);
    assert_eq!(found, device.stats().buffers);
    assert!((350..=476).contains(&found), "{found}");
    assert_eq!(device.stats().checksum_errors, 0);
    assert_eq!(device.stats().evicted, 2000 - found);
    // A batch takes at most a quarter of the area.
    let written = device.feed(&buffers(3000..4000, record));
    assert!(written <= device.feed_bytes_max());
    // A device of this size has no log blocks.
    assert_eq!(opened(&disk, id(), true).stats().buffers, 0);
}

#[test]
fn a_rebuild_finds_what_log_blocks_describe() {
    let disk = disk(1100);
    let device = opened(&disk, id(), true);
    let entries = device.layout.log_entries();
    assert_eq!(entries, 68);
    for first in (0..1000).step_by(100) {
        device.feed(&buffers(first..first + 100, 4096));
    }
    let logs = device.stats().log_blocks;
    assert_eq!(logs, 1000 / entries);
    let again = opened(&disk, id(), true);
    let stats = again.stats();
    assert_eq!(
        (stats.rebuilt_buffers, stats.rebuilt_log_blocks),
        (logs * entries, logs)
    );
    assert_eq!((stats.rebuilds, stats.log_blocks), (1, logs));
    assert_eq!(count(&again, 0..1000, 4096), logs * entries);
    assert!(read(&again, 0, 4096) && !read(&again, 999, 4096));
    // It continues where the last one ended, and forgets nothing of it.
    again.feed(&buffers(2000..2100, 4096));
    assert_eq!(count(&again, 0..1000, 4096), logs * entries);
    let third = opened(&disk, id(), true);
    assert_eq!(third.stats().rebuilt_log_blocks, logs + 1);
    third.set_index_bytes_max(0);
    assert_eq!(
        third.feed(&buffers(3000..3100, 4096)),
        0,
        "its index is full"
    );
}

#[test]
fn a_rebuild_after_any_batch_finds_no_overwritten_buffer() {
    let disk = disk(1100);
    let record = 1 << 20;
    let mut device = opened(&disk, id(), true);
    let mut fed = 0;
    for round in 0..40u64 {
        let number = 60 + round % 37;
        let first = fed;
        fed += number;
        assert_eq!(device.feed(&buffers(first..fed, record)), number * record);
        if round % 3 == 0 {
            device = opened(&disk, id(), true);
        } else {
            let other = opened(&disk, id(), false);
            assert_eq!(count(&other, 0..fed, record), other.stats().buffers);
            assert_eq!(other.stats().checksum_errors, 0);
            assert!(round < 4 || other.stats().buffers > 0);
        }
    }
    assert_eq!(device.stats().checksum_errors, 0);
    let found = count(&device, 0..fed, record);
    assert!(found > 400, "{found}");
}

#[test]
fn a_header_of_another_pool_or_device_is_not_accepted() {
    let disk = disk(1100);
    opened(&disk, id(), true).feed(&buffers(0..200, 4096));
    for (pool, vdev, ashift) in [(9, 2, 9), (1, 9, 9), (1, 2, 12)] {
        let other = CacheDeviceId {
            pool_guid: Guid(pool),
            vdev_guid: Guid(vdev),
            ashift: Ashift(ashift),
        };
        let before = disk.content();
        let stats = opened(&disk, other, false).stats();
        assert_eq!((stats.buffers, stats.rebuild_header_errors), (0, 1));
        assert!(disk.content() == before, "it is read only");
    }
    let read_only = opened(&disk, id(), false);
    assert_eq!(count(&read_only, 0..200, 4096), 136);
    assert_eq!(read_only.feed(&buffers(300..400, 4096)), 0);
    // A writable one replaces it by an empty header.
    let other = CacheDeviceId {
        pool_guid: Guid(9),
        ..id()
    };
    opened(&disk, other, true);
    assert_eq!(opened(&disk, other, true).stats().rebuild_header_errors, 0);
    assert_eq!(opened(&disk, id(), false).stats().buffers, 0);
    assert!(CacheDevice::new(self::disk(63), id(), true).is_err());
}

#[test]
fn a_failing_device_is_given_up() {
    let disk = disk(64);
    let device = opened(&disk, id(), true);
    device.feed(&buffers(0..20, 4096));
    disk.set_absent(true);
    assert_eq!(device.feed(&buffers(20..40, 4096)), 0);
    assert_eq!(device.stats().write_errors, 1);
    assert!(device.is_usable());
    assert_eq!(count(&device, 0..40, 4096), 0);
    let stats = device.stats();
    assert!(!stats.is_usable && stats.read_errors < 20, "{stats:?}");
    assert_eq!(stats.buffers, 0);
    disk.set_absent(false);
    assert_eq!(device.feed(&buffers(20..40, 4096)), 0);
}

#[test]
fn a_header_that_cannot_be_read_is_tried_again() {
    let disk = disk(1100);
    opened(&disk, id(), true).feed(&buffers(0..200, 4096));
    disk.set_absent(true);
    let device = opened(&disk, id(), true);
    let failed = device.stats();
    assert_eq!((failed.read_errors, failed.rebuild_header_errors), (1, 0));
    assert_eq!(device.feed(&buffers(300..310, 4096)), 0, "it is not ready");
    disk.set_absent(false);
    device.rebuild();
    assert_eq!(device.stats().rebuilt_buffers, 136);
    assert_eq!(count(&device, 0..200, 4096), 136);
}

#[test]
fn a_batch_that_failed_leaves_a_usable_device() {
    let disk = disk(1100);
    let device = opened(&disk, id(), true);
    device.feed(&buffers(0..100, 4096));
    disk.set_absent(true);
    device.feed(&buffers(100..200, 4096));
    disk.set_absent(false);
    device.feed(&buffers(200..400, 4096));
    assert_eq!(count(&device, 0..400, 4096), 300);
    let again = opened(&disk, id(), true);
    assert_eq!(count(&again, 0..400, 4096), again.stats().buffers);
    assert_eq!(again.stats().buffers, 136);
    assert_eq!(again.stats().checksum_errors, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever happens to the bytes, no wrong ones are returned, and every request stays on the device.
    #[test]
    fn damaged_devices_return_right_bytes_or_none(
        damage in proptest::collection::vec((0..900u64, any::<[u8; 16]>()), 1..6),
        is_sealed in any::<bool>(),
    ) {
        let disk = disk(1100);
        opened(&disk, id(), true).feed(&buffers(0..300, 512));
        for (page, bytes) in damage {
            let offset = HEADER_OFFSET_BYTES + page % 330 * PAGE_BYTES;
            let mut old = vec![0; PAGE_BYTES as usize];
            disk.read(offset, &mut old).unwrap();
            let at = (page as usize * 7) % 400;
            old[at..at + 16].copy_from_slice(&bytes);
            if is_sealed && offset == HEADER_OFFSET_BYTES {
                let _ = millpond_checksum::seal_label(&mut old, offset);
            }
            disk.write(offset, &old).unwrap();
        }
        let device = opened(&disk, id(), true);
        count(&device, 0..300, 512);
        device.feed(&buffers(1000..1100, 512));
        prop_assert_eq!(count(&device, 1000..1100, 512), 100);
        let stats = device.stats();
        prop_assert_eq!((stats.read_errors, stats.rebuild_read_errors, stats.write_errors), (0, 0, 0));
        opened(&disk, id(), true);
    }
}
