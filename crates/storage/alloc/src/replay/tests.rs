use super::*;
use crate::{StoreError, decode_log_records, decode_records};
use millpond_ondisk::space_map::SpaceMapWriter;
use millpond_ondisk::{Ashift, Endian};
use proptest::prelude::*;
use std::cell::RefCell;

const SHIFT: u8 = 17;

/// Maps and logs as bytes, read through the shared decoding.
#[derive(Default)]
struct Maps {
    own: BTreeMap<u64, Vec<u8>>,
    logs: BTreeMap<u64, Vec<u8>>,
    unflushed: BTreeMap<u64, u64>,
    asked: RefCell<u64>,
}

fn geometry() -> VdevGeometry {
    VdevGeometry::new(VdevId(0), 4 << SHIFT, Ashift(9), SHIFT, None).unwrap()
}

fn vdevs() -> BTreeMap<VdevId, VdevGeometry> {
    BTreeMap::from([(VdevId(0), geometry())])
}

impl SpaceMapStore for Maps {
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let Some(bytes) = self.own.get(&metaslab.index) else {
            return Ok(());
        };
        let units = geometry().metaslab(metaslab.index).unwrap().units();
        let wrap = |source| AllocError::Store { metaslab, source };
        decode_records(bytes, Endian::Little, &units, wrap, each)
    }
    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError> {
        *self.asked.borrow_mut() += 1;
        Ok(Txg(self
            .unflushed
            .get(&metaslab.index)
            .copied()
            .unwrap_or(0)))
    }
    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        for (txg, bytes) in &self.logs {
            decode_log_records(bytes, Endian::Little, Txg(*txg), AllocError::Logs, each)?;
        }
        Ok(())
    }
}

fn own(records: &[(SpaceAction, u64, u64)]) -> Vec<u8> {
    let mut writer = SpaceMapWriter::new(0, 4096, true);
    for (action, offset, run) in records {
        writer.put_range(*action, *offset, *run).unwrap();
    }
    writer.finish()
}

fn log(txg: u64, vdev: u32, records: &[(SpaceAction, u64, u64)]) -> Vec<u8> {
    let mut writer = SpaceMapWriter::new(0, 131072, true);
    for (action, offset, run) in records {
        writer.put_debug(Txg(txg), 1, *action);
        writer
            .put_vdev_range(*action, VdevId(vdev), *offset, *run)
            .unwrap();
    }
    writer.finish()
}

fn load(maps: &Maps, index: u64) -> Result<MetaslabSpace, AllocError> {
    let logs = UnflushedLogs::load(maps, &vdevs(), &|vdev| vdev == VdevId(7))?;
    load_metaslab(maps, geometry().metaslab(index).unwrap(), &logs)
}

use SpaceAction::{Allocate, Free};

#[test]
fn a_metaslab_without_a_map_is_free() {
    let space = load(&Maps::default(), 1).unwrap();
    assert_eq!(space.free, RangeSet::from_range(1 << SHIFT..2 << SHIFT));
    assert_eq!(space.allocated_bytes(), 0);
}

#[test]
fn a_map_is_replayed_onto_free_space() {
    let mut maps = Maps::default();
    maps.own
        .insert(1, own(&[(Allocate, 0, 8), (Free, 2, 2), (Allocate, 3, 1)]));
    let space = load(&maps, 1).unwrap();
    let base = 1u64 << SHIFT;
    assert_eq!(
        space.free.iter().collect::<Vec<_>>(),
        [base + 1024..base + 1536, base + 4096..2 << SHIFT]
    );
    assert_eq!(space.allocated_bytes(), 7 * 512);
}

#[test]
fn a_map_of_another_history_is_a_contradiction() {
    for records in [
        &[(Allocate, 0, 8), (Allocate, 7, 1)][..],
        &[(Free, 0, 1)],
        &[(Allocate, 0, 2), (Free, 0, 1), (Free, 0, 2)],
    ] {
        let mut maps = Maps::default();
        maps.own.insert(0, own(records));
        assert!(
            matches!(load(&maps, 0), Err(AllocError::Contradiction { .. })),
            "{records:?}"
        );
    }
}

#[test]
fn entries_outside_the_metaslab_are_corruption() {
    let mut maps = Maps::default();
    maps.own.insert(0, own(&[(Allocate, 255, 2)]));
    assert!(matches!(
        load(&maps, 0),
        Err(AllocError::Store {
            source: StoreError::Corrupt(_),
            ..
        })
    ));
}

#[test]
fn logs_count_from_the_unflushed_txg_of_each_metaslab_on() {
    let mut maps = Maps::default();
    maps.own.insert(0, own(&[(Allocate, 0, 4)]));
    // The log of txg 5 is already in the map of metaslab 0; the log of txg 6 is not.
    maps.logs.insert(5, log(5, 0, &[(Allocate, 0, 4)]));
    maps.logs
        .insert(6, log(6, 0, &[(Free, 0, 1), (Allocate, 10, 2)]));
    maps.logs
        .insert(7, log(7, 0, &[(Allocate, 0, 1), (Free, 11, 1)]));
    maps.unflushed.insert(0, 6);
    let space = load(&maps, 0).unwrap();
    assert_eq!(
        space.free.iter().collect::<Vec<_>>(),
        [4 * 512..10 * 512, 11 * 512..1 << SHIFT]
    );
    let logs = UnflushedLogs::load(&maps, &vdevs(), &|_| false).unwrap();
    let changes = logs
        .of(MetaslabId {
            vdev: VdevId(0),
            index: 0,
        })
        .unwrap();
    assert!(changes.freed.is_empty());
    assert_eq!(
        (changes.allocated_bytes(), logs.allocated_bytes(VdevId(0))),
        (512, 512)
    );
    assert_eq!(logs.allocated_bytes(VdevId(1)), 0);
}

#[test]
fn a_metaslab_that_never_joined_the_logs_ignores_them() {
    let mut maps = Maps::default();
    maps.logs.insert(5, log(5, 0, &[(Allocate, 0, 4)]));
    assert_eq!(load(&maps, 0).unwrap().allocated_bytes(), 0);
    assert_eq!(*maps.asked.borrow(), 1);
}

#[test]
fn log_entries_of_removed_vdevs_are_skipped() {
    let mut maps = Maps::default();
    maps.logs.insert(5, log(5, 7, &[(Allocate, 0, 4)]));
    assert!(load(&maps, 0).is_ok());
    for (vdev, offset, run) in [(8, 0, 4), (0, 255, 2), (0, 4 * 256, 1)] {
        maps.logs
            .insert(5, log(5, vdev, &[(Allocate, offset, run)]));
        assert!(matches!(load(&maps, 0), Err(AllocError::Misplaced { .. })));
    }
}

#[test]
fn a_log_that_names_another_txg_or_no_vdev_is_corrupt() {
    let mut maps = Maps::default();
    maps.logs.insert(6, log(5, 0, &[(Allocate, 0, 4)]));
    assert!(matches!(load(&maps, 0), Err(AllocError::Logs(_))));
    maps.logs.insert(6, own(&[(Allocate, 0, 4)]));
    assert!(matches!(load(&maps, 0), Err(AllocError::Logs(_))));
}

#[test]
fn logs_that_contradict_each_other_are_found() {
    let mut maps = Maps::default();
    maps.unflushed.insert(0, 5);
    maps.logs
        .insert(5, log(5, 0, &[(Allocate, 0, 4), (Allocate, 3, 4)]));
    assert!(matches!(
        load(&maps, 0),
        Err(AllocError::Contradiction { .. })
    ));
}

proptest! {
    /// A random history split between the map and logs has the same result as the whole history.
    #[test]
    fn where_a_history_is_cut_into_map_and_logs_makes_no_difference(
        steps in proptest::collection::vec((any::<bool>(), 0u64..256, 1u64..40), 0..80),
        cut in 0usize..80,
    ) {
        let mut truth = RangeSet::from_range(0..256);
        let mut records = Vec::new();
        for (free, start, run) in steps {
            let range = start..(start + run).min(256);
            let done = if free { truth.add(range.clone()) } else { truth.remove(range.clone()) };
            if done.is_ok() {
                records.push((if free { Free } else { Allocate }, range.start, range.end - range.start));
            }
        }
        let cut = cut.min(records.len());
        let mut maps = Maps::default();
        maps.own.insert(0, own(&records[..cut]));
        maps.unflushed.insert(0, 10);
        maps.logs.insert(9, log(9, 0, &records[..cut]));
        for (group, chunk) in records[cut..].chunks(3).enumerate() {
            maps.logs.insert(10 + group as u64, log(10 + group as u64, 0, chunk));
        }
        let space = load(&maps, 0).unwrap();
        let expected: Vec<_> = truth.iter().map(|range| range.start * 512..range.end * 512).collect();
        prop_assert_eq!(space.free.iter().collect::<Vec<_>>(), expected);
    }
}
