use super::*;
use crate::import::{Found, PoolState, find_pools, read_boot_environment, scan_devices};
use millpond_device::{Candidate, MemoryDevice};
use millpond_ondisk::{ObjectId, UberblockRing};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevTree, VdevType};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: usize = 1 << 20;

/// A device that fails after a given number of writes and flushes.
#[derive(Debug)]
struct Failing {
    inner: MemoryDevice,
    writes_left: AtomicU64,
}

impl Failing {
    fn after(writes: u64) -> Arc<dyn Device> {
        Arc::new(Self {
            inner: MemoryDevice::new(vec![0; 64 * MIB]),
            writes_left: AtomicU64::new(writes),
        })
    }
    fn count(&self) -> Result<(), DeviceError> {
        let left = self.writes_left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(DeviceError::ReadOnly);
        }
        self.writes_left.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
}

impl Device for Failing {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.count()?;
        self.inner.write(offset_bytes, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn memory() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(vec![0; 64 * MIB]))
}

/// A pool of a mirror of two devices and a single device.
struct TestPool {
    config: PoolConfig,
    topology: Topology,
    devices: Vec<Arc<dyn Device>>,
}

impl TestPool {
    fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        let leaf = |id, guid| VdevConfig {
            id: Some(id),
            path: Some(format!("/d{guid}")),
            create_txg: Some(Txg(4)),
            ..VdevConfig::new(VdevType::File, Guid(guid))
        };
        let top = |vdev: VdevConfig, id| VdevConfig {
            id: Some(id),
            metaslab_array: ObjectId(70 + id),
            metaslab_shift: 24,
            ashift: 12,
            asize_bytes: 62_390_272,
            ..vdev
        };
        let mirror = VdevConfig {
            children: vec![leaf(0, 11), leaf(1, 12)],
            ..VdevConfig::new(VdevType::Mirror, Guid(10))
        };
        let root = VdevConfig {
            id: Some(0),
            ..VdevConfig::root(Guid(1), vec![top(mirror, 0), top(leaf(1, 20), 1)])
        };
        let tree = VdevTree::new(root.clone(), Reflow::default()).unwrap();
        let health = LeafTable::all_good(tree.leaf_count());
        let held = devices.iter().cloned().map(Some).collect();
        Self {
            config: PoolConfig {
                txg: Txg(4),
                comment: Some("kept".into()),
                hostid: 0x1234,
                hostname: Some("here".into()),
                features_for_read: Some(vec!["com.delphix:hole_birth".into()]),
                ..PoolConfig::new("tank", root)
            },
            topology: Topology::new(tree, held, health, IndirectTables::default()),
            devices,
        }
    }
    fn uberblock(&self, txg: u64) -> Uberblock {
        let guid_sum = self.config.guid_sum();
        next_uberblock(None, 5000, Txg(txg), BlockPointer::default(), guid_sum, 99)
    }
    fn commit(&mut self, txg: u64, is_dirty: bool) -> Result<CommitReport, CommitError> {
        self.config.txg = Txg(txg);
        let uberblock = self.uberblock(txg);
        commit(
            &self.topology,
            &Commit {
                uberblock: &uberblock,
                config: is_dirty.then_some(&self.config),
                dirty_tops: &[VdevId(0), VdevId(1)],
                written_tops: &[VdevId(0), VdevId(1)],
                multihost: false,
                random: 1,
                write_order: WriteOrder::Together,
            },
        )
    }
    fn found(&self) -> Found {
        let candidates = self.devices.iter().zip([11, 12, 20]);
        scan_devices(
            candidates
                .map(|(device, guid)| Candidate {
                    path: PathBuf::from(format!("/d{guid}")),
                    aliases: vec![],
                    partition: None,
                    device: Arc::clone(device),
                    is_live: false,
                })
                .collect(),
        )
    }
}

#[test]
fn a_committed_pool_is_found_again() {
    let mut pool = TestPool::new(vec![memory(), memory(), memory()]);
    assert!(pool.commit(4, true).unwrap().failures.is_empty());
    assert!(pool.commit(5, false).unwrap().failures.is_empty());
    let found = find_pools(&pool.found(), 0x1234);
    assert_eq!(found.len(), 1);
    let candidate = &found[0];
    assert_eq!(
        (candidate.name.as_str(), candidate.state, candidate.version),
        ("tank", PoolState::Active, 5000)
    );
    assert_eq!(candidate.comment.as_deref(), Some("kept"));
    let newest = candidate.newest().unwrap();
    assert_eq!(newest.uberblock, pool.uberblock(5));
    // Three leaves with four labels each. All hold the uberblock of txg 5 too, since there are only two
    // vdevs.
    assert_eq!(newest.places.len(), 12);
    assert!(newest.places.iter().all(|place| place.slot == 5));
    assert_eq!(candidate.config_txg, Txg(4));
    for leaf in pool.found().leaves() {
        assert_eq!(leaf.label_count(), 4);
        assert!(leaf.best.is_verified);
    }
}

#[test]
fn a_crash_between_label_halves_leaves_matching_labels() {
    let mut pool = TestPool::new(vec![memory(), memory(), memory()]);
    pool.commit(4, true).unwrap();
    // The even labels of txg 5 were written, its uberblock was not.
    pool.config.txg = Txg(5);
    pool.config.name = "renamed".into();
    let tops = [VdevId(0), VdevId(1)];
    let _ = write_labels(
        &pool.topology,
        &pool.config,
        &tops,
        LabelHalf::Even,
        WriteOrder::Together,
    )
    .unwrap();
    let candidate = find_pools(&pool.found(), 0).remove(0);
    assert_eq!(candidate.name, "tank");
    assert_eq!(candidate.newest().unwrap().uberblock.txg, Txg(4));
}

#[test]
fn a_device_that_fails_is_reported_and_its_mirror_commits() {
    let mut pool = TestPool::new(vec![memory(), Failing::after(0), memory()]);
    let report = pool.commit(4, true).unwrap();
    assert!(report.failures.iter().all(|(leaf, _)| *leaf == LeafId(1)));
    assert_eq!(report.failures.len(), 3);
}

#[test]
fn a_failed_label_write_stops_the_commit() {
    let mut pool = TestPool::new(vec![memory(), memory(), Failing::after(0)]);
    assert_eq!(
        pool.commit(4, true).unwrap_err(),
        CommitError::NoLabel(VdevId(1))
    );
    let ring = find_pools(&pool.found(), 0);
    assert!(ring.iter().all(|pool| pool.newest().is_none()));
}

#[test]
fn without_any_uberblock_written_there_is_no_commit() {
    let mut pool = TestPool::new(vec![
        Failing::after(0),
        Failing::after(0),
        Failing::after(0),
    ]);
    assert_eq!(pool.commit(4, false).unwrap_err(), CommitError::NoUberblock);
}

#[test]
fn a_new_device_has_no_pool_and_no_old_uberblock() {
    let mut pool = TestPool::new(vec![memory(), memory(), memory()]);
    pool.commit(4, true).unwrap();
    let device = pool.devices[2].as_ref();
    device.write(0, b"boot sector").unwrap();
    let list = pool.config.initial_label_list(Guid(20), Txg(9)).unwrap();
    assert_eq!((list.u64("txg"), list.u64("create_txg")), (Ok(0), Ok(9)));
    write_initial_labels(device, &list, Some(&pool.uberblock(4))).unwrap();
    assert_eq!(read_boot_environment(device), Some(BootEnvironment::Empty));
    let labels = crate::import::read_labels(device);
    assert!(
        labels
            .iter()
            .all(|label| matches!(label, Err(crate::import::LabelFault::NeverUsed { .. })))
    );
    let mut start = [0; 11];
    device.read(0, &mut start).unwrap();
    assert_eq!(&start, b"boot sector");
    let mut ring = vec![0; UBERBLOCK_RING_BYTES];
    device.read(UBERBLOCK_RING_OFFSET_BYTES, &mut ring).unwrap();
    // The ring is one checksummed region: its trailer is at the end of the ring, and no slot is valid by
    // itself.
    assert!(millpond_checksum::verify_label(&ring, UBERBLOCK_RING_OFFSET_BYTES).is_ok());
    for cut in UberblockRing::all() {
        for (offset, slot) in cut.slots(&ring) {
            assert!(millpond_checksum::verify_label(slot, offset).is_err());
        }
    }
    assert_eq!(Uberblock::decode(&ring).unwrap().txg, Txg(0));
}

#[test]
fn clearing_erases_every_label_and_nothing_else() {
    let mut pool = TestPool::new(vec![memory(), memory(), memory()]);
    pool.commit(4, true).unwrap();
    let device = pool.devices[0].as_ref();
    device.write(100, b"pad").unwrap();
    device.write(5 << 20, b"data").unwrap();
    assert_eq!(
        clear_labels(device),
        Ok(Cleared {
            labels: 4,
            cache_header: false
        })
    );
    assert_eq!(clear_labels(device), Ok(Cleared::default()));
    let mut bytes = [0; 4];
    device.read(100, &mut bytes[..3]).unwrap();
    assert_eq!(&bytes[..3], b"pad");
    device.read(5 << 20, &mut bytes).unwrap();
    assert_eq!(&bytes, b"data");
}

#[test]
fn a_cache_device_loses_its_header_with_its_labels() {
    let device = memory();
    let vdev = VdevConfig {
        ashift: 9,
        path: Some("/c".into()),
        ..VdevConfig::new(VdevType::File, Guid(5))
    };
    write_auxiliary_labels(device.as_ref(), &vdev, LeafState::Cache, 5000, None).unwrap();
    device.write(VDEV_DATA_START_BYTES, &[7; 512]).unwrap();
    let [Ok(label), ..] = crate::import::read_labels(device.as_ref()) else {
        panic!("no label")
    };
    assert_eq!((label.state, label.guid), (LeafState::Cache, Guid(5)));
    assert_eq!(clear_labels(device.as_ref()).unwrap().labels, 4);
    let mut bytes = [1; 512];
    device.read(VDEV_DATA_START_BYTES, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 512]);
}

#[test]
fn a_too_large_configuration_is_refused_before_any_write() {
    let mut pool = TestPool::new(vec![memory(), memory(), memory()]);
    pool.commit(4, true).unwrap();
    pool.config.comment = Some("x".repeat(120_000));
    assert_eq!(
        pool.commit(5, true).unwrap_err(),
        CommitError::Label(LabelError::TooLarge)
    );
    let candidate = find_pools(&pool.found(), 0).remove(0);
    assert_eq!(candidate.newest().unwrap().uberblock.txg, Txg(4));
}
