//! Gang blocks.

use crate::pool::{Pool, TXG, Vdev, address, job, noise};
use millpond_alloc::{
    AllocError, AllocRequest, LogRecord, MetaslabId, Placement, PoolAllocator, SpaceMapForms,
    SpaceMapStore, SpaceRecord, VdevGeometry, VdevSpace,
};
use millpond_block::{BlockError, BlockWrite, WrittenForm};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{ChecksumKind, CompressionKind, Dva, Txg, VdevId};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Checks that a gang block is complete, that its addresses add up, and that its space is what the
/// allocator allocated.
fn check(pool: &Pool, job: &BlockWrite, written: &millpond_block::WrittenBlock) {
    let pointer = written.pointer;
    assert!(matches!(written.form, WrittenForm::Gang { .. }));
    assert!(pointer.is_gang() && pointer.dvas().all(|dva| dva.is_gang));
    assert_eq!(pointer.validate(), Ok(()));
    assert_eq!(pool.read(&pointer), *job.content);
    let audit = pool.reopened().audit(&pointer, address()).unwrap();
    assert!(audit.is_clean(), "{audit:?}");
    let extents = pool.reopened().extents(&pointer, address()).unwrap();
    let places: BTreeSet<(VdevId, u64)> = extents
        .iter()
        .map(|dva| (dva.vdev, dva.offset_bytes))
        .collect();
    assert_eq!(places.len(), extents.len());
    let total: u64 = extents.iter().map(|dva| dva.asize_bytes).sum();
    assert_eq!(total, pointer.asize_bytes());
    assert_eq!(total, pool.arena.live_bytes());
}

fn raw(seed: u64, length: usize, copies: u8) -> BlockWrite {
    BlockWrite {
        copies,
        compression: CompressionKind::Off,
        ..job(noise(seed, length))
    }
}

#[test]
fn a_block_that_fits_nowhere_is_cut_and_its_sizes_add_up() {
    let _mark = mark::expect("gang-block");
    for copies in 1..=3 {
        for vdev in [
            Vdev::Disk,
            Vdev::Mirror(2),
            Vdev::Raidz(4, 1),
            Vdev::Raidz(5, 2),
        ] {
            let pool = Pool::new(&[(vdev, 9), (vdev, 9)]);
            pool.arena.shatter(64 << 10, u64::MAX);
            let job = raw(1, 48 << 10, copies);
            let whole = pool.write_one(job.clone());
            if whole.pointer.is_gang() {
                check(&pool, &job, &whole);
                continue;
            }
            let pool = Pool::new(&[(vdev, 9), (vdev, 9)]);
            pool.arena.shatter(32 << 10, u64::MAX);
            let written = pool.write_one(job.clone());
            check(&pool, &job, &written);
            assert_eq!(written.form, WrittenForm::Gang { is_nested: false });
            // There are at least two header copies, and a copy's total counts only what lies under it.
            let dvas: Vec<Dva> = written.pointer.dvas().collect();
            assert_eq!(dvas.len(), usize::from(copies.max(2)));
            if copies == 1 {
                let header = pool.tree.gang_header_asize(dvas[1].vdev).unwrap();
                assert_eq!(dvas[1].asize_bytes, header);
                assert!(dvas[0].asize_bytes > 48 << 10);
            }
        }
    }
}

#[test]
fn pieces_that_fit_nowhere_are_cut_again() {
    let _mark = mark::expect("gang-block-in-gang-block");
    for (vdev, ashift, run) in [
        (Vdev::Disk, 12, 8192),
        (Vdev::Disk, 9, 1024),
        (Vdev::Raidz(3, 1), 9, 4096),
    ] {
        let pool = Pool::new(&[(vdev, ashift)]);
        pool.arena.shatter(run, u64::MAX);
        let job = raw(2, 128 << 10, 1);
        let written = pool.write_one(job.clone());
        assert_eq!(written.form, WrittenForm::Gang { is_nested: true });
        check(&pool, &job, &written);
    }
}

#[test]
fn large_gang_headers_replace_nested_small_ones() {
    let pool = Pool::with(&[(Vdev::Mirror(2), 12)], true, 0);
    pool.arena.shatter(8192, u64::MAX);
    let job = raw(2, 128 << 10, 1);
    let written = pool.write_one(job.clone());
    assert_eq!(written.form, WrittenForm::Gang { is_nested: false });
    check(&pool, &job, &written);
    // A reader that supports only small headers does not find it.
    let mut old = Pool::new(&[(Vdev::Mirror(2), 12)]);
    old.devices.clone_from(&pool.devices);
    assert!(
        old.reopened()
            .read(&written.pointer, address(), None)
            .is_err()
    );
}

#[test]
fn without_space_for_gang_pieces_everything_is_released() {
    let _mark = mark::expect("gang-block-has-no-room");
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let refused = |job: BlockWrite| {
        let outcome = pool.store.write(TXG, &pool.arena, vec![job]).remove(0);
        assert_eq!(outcome, Err(BlockError::NoSpace { address: address() }));
        assert_eq!(pool.arena.live_bytes(), 0);
    };
    // Two headers and two pieces, no more.
    pool.arena.shatter(1024, 4);
    refused(raw(3, 8192, 1));
    pool.arena.shatter(256, u64::MAX);
    refused(raw(3, 8192, 1));
    pool.arena.shatter(4096, u64::MAX);
    refused(BlockWrite {
        may_gang: false,
        ..raw(3, 8192, 1)
    });
    let written = pool.write_one(raw(3, 8192, 1));
    assert!(written.pointer.is_gang());
}

#[test]
fn pieces_carry_the_checksum_of_the_whole() {
    for checksum in [
        ChecksumKind::Fletcher2,
        ChecksumKind::Sha512,
        ChecksumKind::Skein,
        ChecksumKind::Off,
    ] {
        let pool = Pool::new(&[(Vdev::Disk, 9)]);
        pool.arena.shatter(2048, u64::MAX);
        let job = BlockWrite {
            checksum,
            ..raw(4, 4096, 1)
        };
        let written = pool.write_one(job.clone());
        check(&pool, &job, &written);
    }
}

#[test]
fn a_gang_block_is_rewritten_in_place() {
    let _mark = mark::expect("gang-block-rewritten-in-place");
    for (vdev, run, length) in [
        (Vdev::Disk, 2048, 4096),
        (Vdev::Disk, 1024, 64 << 10),
        (Vdev::Mirror(2), 2048, 8192),
        (Vdev::Raidz(4, 1), 16 << 10, 24 << 10),
    ] {
        for copies in 1..=2 {
            let pool = Pool::new(&[(vdev, 9)]);
            pool.arena.shatter(run, u64::MAX);
            let first = pool.write_one(raw(5, length, copies));
            assert!(first.pointer.is_gang());
            let places = pool.store.extents(&first.pointer, address()).unwrap();
            let live = pool.arena.live_bytes();
            let again = BlockWrite {
                previous: first.pointer,
                may_rewrite: true,
                ..raw(6, length, copies)
            };
            let written = pool.write_one(again.clone());
            assert!(written.keeps_space());
            assert_eq!(
                pool.store.extents(&written.pointer, address()).unwrap(),
                places
            );
            assert_eq!(pool.arena.live_bytes(), live);
            assert_eq!(pool.read(&written.pointer), *again.content);
            let audit = pool.reopened().audit(&written.pointer, address()).unwrap();
            assert!(audit.is_clean(), "{audit:?}");
        }
    }
}

#[test]
fn a_gang_block_of_another_size_or_txg_is_not_rewritten() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    pool.arena.shatter(2048, u64::MAX);
    let first = pool.write_one(raw(5, 4096, 1));
    let again = |length, copies| BlockWrite {
        previous: first.pointer,
        may_rewrite: true,
        ..raw(6, length, copies)
    };
    assert!(!pool.write_one(again(8192, 1)).keeps_space());
    // With two copies the pieces would need addresses that they do not have.
    assert!(!pool.write_one(again(4096, 2)).keeps_space());
    // An earlier state refers to it.
    let mut older = again(4096, 1);
    older.previous.words[10] -= 1;
    assert!(!pool.write_one(older).keeps_space());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_gang_block_round_trips(
        sectors in 3usize..200,
        run in 1u64..20,
        copies in 1u8..=3,
        raidz in any::<bool>(),
        is_dynamic in any::<bool>(),
        ashift in prop_oneof![Just(9u64), Just(12)],
    ) {
        let vdev = if raidz { Vdev::Raidz(4, 1) } else { Vdev::Disk };
        let pool = Pool::with(&[(vdev, ashift), (vdev, ashift)], is_dynamic, 0);
        // At least twice the size of a header.
        pool.arena.shatter((2 * run) << (ashift + 1), u64::MAX);
        let job = raw(9, sectors * 512, copies);
        let written = pool.write_one(job.clone());
        if written.pointer.is_gang() {
            check(&pool, &job, &written);
        } else {
            prop_assert_eq!(&pool.read(&written.pointer), &*job.content);
        }
    }
}

/// The space maps of a pool that was never used.
struct Unused;

impl SpaceMapStore for Unused {
    fn replay(
        &self,
        _: MetaslabId,
        _: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        Ok(())
    }
    fn unflushed_txg(&self, _: MetaslabId) -> Result<Txg, AllocError> {
        Ok(Txg(0))
    }
    fn replay_logs(
        &self,
        _: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        Ok(())
    }
}

#[test]
fn a_fragmented_pool_is_used_up_by_gang_blocks() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let tree = Arc::new(pool.tree.clone());
    let top = tree.top(VdevId(0)).unwrap();
    let geometry =
        VdevGeometry::new(VdevId(0), top.config.asize_bytes, top.ashift, 20, None).unwrap();
    let spaces = vec![VdevSpace::from_tree(&tree, geometry)];
    let allocator = PoolAllocator::new(spaces, Arc::new(Unused), SpaceMapForms::default()).unwrap();
    // Allocate everything in runs of 2 KiB; then free every second one.
    let request = AllocRequest::new(Placement::Normal, 2048, 1);
    let mut crumbs = vec![];
    while let Ok(dvas) = allocator.allocate(TXG, &request) {
        crumbs.extend(dvas);
    }
    assert_eq!(crumbs.len(), (8 << 20) / 2048);
    crumbs.sort_unstable();
    for crumb in crumbs.iter().step_by(2) {
        allocator.free(TXG, crumb, TXG, true).unwrap();
    }
    let mut all = BTreeSet::new();
    for seed in 0..20 {
        let job = raw(seed, 24 << 10, 1);
        let outcome = pool.store.write(TXG, &allocator, vec![job.clone()]);
        let written = outcome.into_iter().next().unwrap().unwrap();
        assert!(written.pointer.is_gang());
        assert_eq!(pool.read(&written.pointer), *job.content);
        for dva in pool.store.extents(&written.pointer, address()).unwrap() {
            assert!(all.insert(dva));
        }
    }
    // Its space can be freed, each range once.
    for dva in &all {
        allocator.free(TXG, dva, TXG, true).unwrap();
        assert!(allocator.free(TXG, dva, TXG, true).is_err());
    }
}
