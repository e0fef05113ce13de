//! Healing: every set of leaves that redundancy covers loses its bytes, and gets them back.

use crate::pool::{DEVICE_BYTES, Pool, TXG, Vdev, address, job, noise};
use millpond_block::{BlockWrite, LogWrite, ViewExpiry, WrittenBlock};
use millpond_checksum::{Form, seal_zilog2};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::intent_log::{IntentLogBlockHeader, IntentLogVerifier};
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, Level, ObjectType, StoredBlock,
    VDEV_DATA_START_BYTES,
};
use millpond_vdev::{BlockRange, LeafId, WritePlan};

pub(crate) fn raw(seed: u64, length: usize, copies: u8) -> BlockWrite {
    BlockWrite {
        copies,
        compression: CompressionKind::Off,
        ..job(noise(seed, length))
    }
}

/// Overwrites everything behind the labels of a leaf.
fn spoil(pool: &Pool, leaf: usize) {
    // More than any of these tests writes.
    let length = 1 << 20;
    let bytes = noise(77 + leaf as u64, length);
    let device = &pool.devices[leaf].inner;
    device.write(VDEV_DATA_START_BYTES, &bytes).unwrap();
}

/// The sets of `lost` of `count` leaves, as bits.
pub(crate) fn sets(count: usize, lost: usize) -> impl Iterator<Item = usize> {
    (0..1usize << count).filter(move |set| set.count_ones() as usize == lost)
}

pub(crate) fn wanted(
    written: &[WrittenBlock],
) -> Vec<(BlockPointer, millpond_block::BlockAddress)> {
    written
        .iter()
        .map(|block| (block.pointer, address()))
        .collect()
}

#[test]
fn every_set_of_damaged_leaves_within_redundancy_is_healed() {
    for (vdev, leaves, may_lose) in [
        (Vdev::Mirror(2), 2, 1),
        (Vdev::Mirror(3), 3, 2),
        (Vdev::Raidz(3, 1), 3, 1),
        (Vdev::Raidz(5, 2), 5, 2),
        (Vdev::Raidz(6, 3), 6, 3),
    ] {
        for lost in 1..=may_lose {
            for set in sets(leaves, lost) {
                let pool = Pool::new(&[(vdev, 9)]);
                let lengths = [512, 1536, 13 << 9, 40 << 10];
                let jobs: Vec<BlockWrite> = (1..).zip(lengths).map(|(n, l)| raw(n, l, 1)).collect();
                let written = pool.write(jobs.clone());
                let is_lost = |leaf: usize| set >> leaf & 1 == 1;
                for leaf in (0..leaves).filter(|leaf| is_lost(*leaf)) {
                    spoil(&pool, leaf);
                }
                let store = pool.reopened();
                let view = store.view(Arc::default());
                let mut healed = 0;
                view.heal_batch(&wanted(&written), |_, audit| {
                    let audit = audit.unwrap();
                    assert!(audit.is_readable, "{vdev:?} without {set:b}: {audit:?}");
                    assert_eq!(audit.healed.failed, []);
                    let on_lost = |(leaf, _): &(LeafId, u64)| is_lost(leaf.0 as usize);
                    assert!(audit.healed.written.iter().all(on_lost), "{audit:?}");
                    healed += audit.healed_bytes();
                });
                assert!(healed > 0);
                for leaf in 0..leaves {
                    let stats = store.topology().leaf_stats(LeafId(leaf as u32));
                    assert_eq!(stats.checksum_errors > 0, is_lost(leaf), "{vdev:?} {set:b}");
                    assert_eq!(stats.repaired_bytes > 0, is_lost(leaf));
                }
                for (job, block) in jobs.iter().zip(&written) {
                    let audit = pool.reopened().audit(&block.pointer, address()).unwrap();
                    assert!(audit.is_clean(), "{vdev:?} without {set:b}: {audit:?}");
                    assert_eq!(pool.read(&block.pointer), *job.content);
                }
            }
        }
    }
}

/// Without a checksum nothing tells which copy is right, nor whether data or parity is.
#[test]
fn contradictions_without_a_checksum_are_left_alone() {
    let unchecked = BlockWrite {
        checksum: ChecksumKind::Off,
        ..raw(1, 40 << 10, 1)
    };
    let vdevs = [
        (Vdev::Mirror(2), 2),
        (Vdev::Raidz(3, 1), 3),
        (Vdev::Raidz(4, 2), 4),
    ];
    for (vdev, leaves) in vdevs {
        for spoilt in 0..leaves {
            let pool = Pool::new(&[(vdev, 9)]);
            let written = pool.write(vec![unchecked.clone(), raw(2, 40 << 10, 1)]);
            spoil(&pool, spoilt);
            let before = contents(&pool);
            let (store, wanted) = (pool.reopened(), wanted(&written));
            let view = store.view(Arc::default());
            view.heal_batch(&wanted[..1], |_, audit| {
                let audit = audit.unwrap();
                assert!(audit.is_readable);
                assert_eq!(audit.healed_bytes(), 0, "{vdev:?} {spoilt}: {audit:?}");
            });
            assert_eq!(contents(&pool), before, "{vdev:?} {spoilt}");
            for leaf in 0..leaves {
                let stats = store.topology().leaf_stats(LeafId(leaf as u32));
                assert_eq!((stats.checksum_errors, stats.repaired_bytes), (0, 0));
            }
            // Others are healed as always.
            let mut healed = 0;
            view.heal_batch(&wanted[1..], |_, audit| {
                healed += audit.unwrap().healed_bytes()
            });
            assert!(healed > 0);
        }
    }
}

/// What a leaf is known to lack is restored without a checksum too.
#[test]
fn columns_of_a_stale_leaf_are_restored_without_a_checksum() {
    for stale in 0..3 {
        let mut pool = Pool::new(&[(Vdev::Raidz(3, 1), 9)]);
        let written = pool.write(vec![BlockWrite {
            checksum: ChecksumKind::Off,
            ..raw(1, 40 << 10, 1)
        }]);
        let before = contents(&pool);
        spoil(&pool, stale);
        let missed = TXG.0..TXG.0 + 1;
        let leaf = LeafId(stale as u32);
        pool.health.entry(leaf).unwrap().missed.push(missed);
        let view = pool.reopened().view(Arc::default());
        let mut healed = vec![];
        view.heal_batch(&wanted(&written), |_, audit| {
            healed = audit.unwrap().healed.written;
        });
        assert_eq!(healed.len(), 1);
        let (at, length) = (VDEV_DATA_START_BYTES as usize, healed[0].1 as usize);
        assert_eq!(healed[0].0, leaf);
        let part = at..at + length;
        assert_eq!(contents(&pool)[stale][part.clone()], before[stale][part]);
    }
}

#[test]
fn a_block_without_a_right_copy_is_left_alone() {
    let pool = Pool::new(&[(Vdev::Raidz(4, 1), 9)]);
    let written = pool.write(vec![raw(1, 40 << 10, 1)]);
    spoil(&pool, 0);
    spoil(&pool, 2);
    let before: Vec<Vec<u8>> = contents(&pool);
    let view = pool.reopened().view(Arc::default());
    view.heal_batch(&wanted(&written), |_, audit| {
        let audit = audit.unwrap();
        assert!(!audit.is_readable);
        assert_eq!(audit.healed_bytes(), 0);
    });
    assert_eq!(contents(&pool), before);
}

pub(crate) fn contents(pool: &Pool) -> Vec<Vec<u8>> {
    let read = |device: &Arc<crate::pool::Moody>| {
        let mut bytes = vec![0; DEVICE_BYTES];
        device.inner.read(0, &mut bytes).unwrap();
        bytes
    };
    pool.devices.iter().map(read).collect()
}

#[test]
fn a_lost_copy_is_written_again_from_another_address() {
    let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Raidz(3, 1), 9)]);
    let written = pool.write(vec![raw(1, 24 << 10, 2)]);
    // Both the plain disk and the RAID-Z vdev in turn lose all they have.
    for leaves in [vec![0], vec![1, 2, 3]] {
        for leaf in leaves {
            spoil(&pool, leaf);
        }
        let view = pool.reopened().view(Arc::default());
        view.heal_batch(&wanted(&written), |_, audit| {
            let audit = audit.unwrap();
            assert!(audit.healed_bytes() >= 24 << 10, "{audit:?}");
        });
        let audit = pool.reopened().audit(&written[0].pointer, address());
        assert!(audit.unwrap().is_clean());
    }
}

#[test]
fn pieces_and_headers_of_gang_blocks_are_healed() {
    for vdev in [Vdev::Mirror(2), Vdev::Raidz(4, 1)] {
        let pool = Pool::new(&[(vdev, 9)]);
        pool.arena.shatter(16 << 10, u64::MAX);
        let written = pool.write(vec![raw(1, 48 << 10, 1)]);
        assert!(written[0].pointer.is_gang());
        spoil(&pool, 1);
        let view = pool.reopened().view(Arc::default());
        view.heal_batch(&wanted(&written), |_, audit| {
            assert!(audit.unwrap().is_readable);
        });
        let audit = pool.reopened().audit(&written[0].pointer, address());
        assert!(audit.unwrap().is_clean(), "{vdev:?}");
    }
}

/// All leaves of one address lose the header, and another address has it.
#[test]
fn a_lost_gang_header_is_written_again_from_another_address() {
    for (vdev, ashift, is_dynamic) in [
        (Vdev::Disk, 9, false),
        (Vdev::Mirror(2), 9, false),
        (Vdev::Mirror(2), 12, true),
        (Vdev::Raidz(3, 1), 9, false),
        (Vdev::Raidz(3, 1), 12, true),
    ] {
        for resilvers in [false, true] {
            let pool = Pool::with(&[(vdev, ashift), (vdev, ashift)], is_dynamic, 0);
            pool.arena.shatter(16 << 10, u64::MAX);
            let written = pool.write(vec![raw(1, 48 << 10, 1)]);
            let pointer = written[0].pointer;
            assert!(pointer.is_gang() && pointer.dvas().count() == 2);
            for dva in pointer.dvas() {
                let sound = contents(&pool);
                lose_header(&pool, dva);
                assert_ne!(contents(&pool), sound);
                let audit = pool.reopened().audit(&pointer, address()).unwrap();
                assert!(audit.is_readable && !audit.is_clean());
                let view = pool.reopened().view(Arc::default());
                let found = |_, audit: Result<millpond_block::BlockAudit, _>| {
                    let audit = audit.unwrap();
                    assert!(audit.is_readable && audit.healed.failed.is_empty());
                };
                match resilvers {
                    false => view.heal_batch(&wanted(&written), found),
                    true => view.resilver_batch(&wanted(&written), found),
                }
                assert!(contents(&pool) == sound, "{vdev:?}, ashift {ashift}");
                let audit = pool.reopened().audit(&pointer, address()).unwrap();
                assert!(audit.is_clean(), "{audit:?}");
            }
        }
    }
}

/// Overwrites the header at one address on all leaves that hold a part of it.
fn lose_header(pool: &Pool, dva: Dva) {
    let size_bytes = pool.tree.gang_header_size(dva.vdev, pool.is_dynamic);
    let range = BlockRange {
        vdev: dva.vdev,
        offset_bytes: dva.offset_bytes,
        size_bytes: size_bytes.unwrap(),
        birth: TXG,
    };
    let spoiled = noise(78, range.size_bytes as usize);
    let plan = WritePlan::new(&pool.tree, &pool.health, range, &spoiled).unwrap();
    for write in plan.writes() {
        let device = &pool.devices[write.leaf.0 as usize].inner;
        device
            .write(write.offset_bytes, write.bytes(&spoiled))
            .unwrap();
    }
}

/// A log block with its used part, in the space of another block.
fn log_block(pool: &Pool, size_bytes: u64, used_bytes: usize) -> LogWrite {
    let space = pool.write_one(raw(1, size_bytes as usize, 1)).pointer;
    let dvas: Vec<_> = space.dvas().collect();
    let verifier = IntentLogVerifier::of(&BlockPointer::default());
    let pointer = StoredBlock {
        dvas: &dvas,
        lsize_bytes: size_bytes,
        psize_bytes: size_bytes,
        compression: CompressionKind::Off,
        checksum: ChecksumKind::Zilog2,
        checksum_words: verifier.words(),
        object_type: ObjectType::INTENT_LOG,
        level: Level(0),
        birth: TXG,
        fill: 0,
    }
    .pointer();
    let header = IntentLogBlockHeader {
        next: BlockPointer::default(),
        used_bytes: used_bytes as u64,
        checksum: [0; 4],
        endian: Endian::Little,
    };
    let mut bytes = header.encode();
    bytes.extend(noise(9, used_bytes - bytes.len()));
    bytes.resize(used_bytes.next_multiple_of(4096), 0);
    seal_zilog2(&mut bytes, verifier.words(), Form::of(&pointer)).unwrap();
    LogWrite {
        address: address(),
        pointer,
        bytes: Arc::new(bytes),
    }
}

/// What follows the used part of a log block is whatever the leaf held before.
#[test]
fn the_unused_end_of_a_log_block_may_differ() {
    for vdev in [Vdev::Mirror(2), Vdev::Mirror(3), Vdev::Raidz(4, 1)] {
        for damaged in [None, Some(0), Some(1)] {
            let pool = Pool::new(&[(vdev, 9)]);
            let log = log_block(&pool, 128 << 10, 3000);
            for leaf in 0..pool.devices.len() {
                spoil(&pool, leaf);
            }
            let store = pool.reopened();
            store.write_log_blocks(std::slice::from_ref(&log)).unwrap();
            store.flush().unwrap();
            let wanted = [(log.pointer, address())];
            if let Some(damaged) = damaged {
                spoil(&pool, damaged);
            }
            for round in 0..2 {
                let is_damaged = round == 0 && damaged.is_some();
                let before = contents(&pool);
                let store = pool.reopened();
                let view = store.view(Arc::default());
                view.heal_batch(&wanted, |_, audit| {
                    let audit = audit.unwrap();
                    assert!(audit.is_readable);
                    assert_eq!(audit.is_clean(), !is_damaged, "{vdev:?}: {audit:?}");
                    assert_eq!(audit.healed_bytes() > 0, is_damaged);
                });
                assert_eq!(contents(&pool) == before, !is_damaged);
                for leaf in 0..pool.devices.len() {
                    let errors = store
                        .topology()
                        .leaf_stats(LeafId(leaf as u32))
                        .checksum_errors;
                    let is_wrong = is_damaged && damaged == Some(leaf);
                    assert_eq!(errors > 0, is_wrong, "{vdev:?}: leaf {leaf}");
                }
            }
        }
    }
}

#[test]
fn an_expired_view_heals_nothing() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let written = pool.write(vec![raw(1, 4096, 1)]);
    spoil(&pool, 1);
    let store = pool.reopened();
    let expiry = Arc::new(ViewExpiry::default());
    let view = store.view(Arc::clone(&expiry));
    expiry.expire();
    let writes = || pool.devices[1].writes.load(Ordering::SeqCst);
    let before = writes();
    view.heal_batch(&wanted(&written), |_, audit| {
        let healed = audit.unwrap().healed;
        assert_eq!((healed.written, healed.failed), (vec![], vec![LeafId(1)]));
    });
    assert_eq!(writes(), before);
}

#[test]
fn a_leaf_that_refuses_the_repair_is_named() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let written = pool.write(vec![raw(1, 4096, 1)]);
    spoil(&pool, 1);
    pool.devices[1].fail_writes(true);
    let view = pool.reopened().view(Arc::default());
    view.heal_batch(&wanted(&written), |_, audit| {
        let audit = audit.unwrap();
        assert!(audit.is_readable);
        assert_eq!(audit.healed.failed, [LeafId(1)]);
    });
}

#[test]
fn a_leaf_that_missed_the_txg_is_written_though_it_shows_right_bytes() {
    let mut pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let written = pool.write(vec![raw(1, 4096, 1)]);
    let missed = TXG.0..TXG.0 + 1;
    pool.health.entry(LeafId(1)).unwrap().missed.push(missed);
    let view = pool.reopened().view(Arc::default());
    view.heal_batch(&wanted(&written), |_, audit| {
        assert_eq!(audit.unwrap().healed.written, [(LeafId(1), 4096)]);
    });
}

#[test]
fn a_leaf_that_missed_the_txg_is_read_only_if_the_others_fail() {
    for vdev in [
        Vdev::Mirror(2),
        Vdev::Mirror(3),
        Vdev::Raidz(3, 1),
        Vdev::Raidz(5, 2),
    ] {
        for are_others_wrong in [false, true] {
            let mut pool = Pool::new(&[(vdev, 9)]);
            let written = pool.write(vec![raw(1, 24 << 10, 1)]);
            let missed = TXG.0..TXG.0 + 1;
            pool.health.entry(LeafId(1)).unwrap().missed.push(missed);
            let others: &[usize] = match vdev {
                _ if !are_others_wrong => &[],
                Vdev::Mirror(3) | Vdev::Raidz(5, _) => &[0, 2],
                _ => &[0],
            };
            others.iter().for_each(|leaf| spoil(&pool, *leaf));
            let view = pool.reopened().view(Arc::default());
            let reads = || pool.devices[1].reads.load(Ordering::SeqCst);
            let before = reads();
            view.heal_batch(&wanted(&written), |_, audit| {
                let audit = audit.unwrap();
                assert!(audit.is_readable, "{vdev:?}");
                let healed = |leaf: usize| {
                    let mut written = audit.healed.written.iter();
                    written.any(|(id, _)| id.0 as usize == leaf)
                };
                assert!(healed(1) && others.iter().all(|leaf| healed(*leaf)));
            });
            assert_eq!(reads() > before, are_others_wrong, "{vdev:?}");
            let audit = pool.reopened().audit(&written[0].pointer, address());
            let findings = audit.unwrap().findings;
            assert!(findings.is_empty(), "{vdev:?}: {findings:?}");
        }
    }
}

#[test]
fn a_resilver_reads_one_copy_of_each_part() {
    let mut pool = Pool::new(&[(Vdev::Mirror(3), 9)]);
    let written = pool.write((1..9).map(|seed| raw(seed, 24 << 10, 1)).collect());
    let missed = TXG.0..TXG.0 + 1;
    pool.health.entry(LeafId(1)).unwrap().missed.push(missed);
    let read_bytes = |batch: &dyn Fn(&millpond_block::BlockStore)| {
        let store = pool.reopened();
        batch(&store.view(Arc::default()));
        let topology = store.topology();
        [0, 1, 2].map(|leaf| topology.leaf_stats(LeafId(leaf)).read_bytes)
    };
    let sides = read_bytes(&|view| view.resilver_batch(&wanted(&written), |_, _| {}));
    assert_eq!((sides[0] + sides[2], sides[1]), (8 * (24 << 10), 0));
    let sides = read_bytes(&|view| view.heal_batch(&wanted(&written), |_, _| {}));
    assert_eq!(sides, [8 * (24 << 10), 0, 8 * (24 << 10)]);
}

#[test]
fn a_resilver_finds_the_right_bytes_among_wrong_ones() {
    for (vdev, leaves, may_lose) in [
        (Vdev::Mirror(3), 3, 2),
        (Vdev::Mirror(4), 4, 3),
        (Vdev::Raidz(5, 2), 5, 2),
        (Vdev::Raidz(6, 3), 6, 3),
    ] {
        for lost in 1..=may_lose {
            for set in sets(leaves, lost).filter(|set| set & 2 != 0) {
                let mut pool = Pool::new(&[(vdev, 9)]);
                let lengths = [512, 1536, 13 << 9, 40 << 10];
                let jobs = (1..)
                    .zip(lengths)
                    .map(|(seed, length)| raw(seed, length, 1));
                let written = pool.write(jobs.collect());
                let missed = TXG.0..TXG.0 + 1;
                pool.health.entry(LeafId(1)).unwrap().missed.push(missed);
                for leaf in (0..leaves).filter(|leaf| set >> leaf & 1 == 1) {
                    spoil(&pool, leaf);
                }
                let view = pool.reopened().view(Arc::default());
                view.resilver_batch(&wanted(&written), |_, audit| {
                    let audit = audit.unwrap();
                    assert!(audit.is_readable, "{vdev:?} without {set:b}: {audit:?}");
                    assert_eq!(audit.healed.failed, []);
                });
                pool.health.entry(LeafId(1)).unwrap().missed.clear();
                for block in &written {
                    let audit = pool.reopened().audit(&block.pointer, address()).unwrap();
                    let mut findings = audit.findings.iter();
                    let is_on_it =
                        |(_, finding): &(_, millpond_vdev::AuditFinding)| finding.leaf == LeafId(1);
                    assert!(
                        !findings.any(is_on_it),
                        "{vdev:?} without {set:b}: {audit:?}"
                    );
                }
            }
        }
    }
}
