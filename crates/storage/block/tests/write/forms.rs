//! The forms of a block: a hole, embedded, compressed or raw; and its addresses.

use crate::pool::{Pool, TXG, Vdev, address, job, noise, text};
use millpond_block::{BlockError, BlockWrite, WrittenForm};
use millpond_compress::ZstdLevel;
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Endian, Level, ObjectType, Txg,
};
use proptest::prelude::*;

const CHECKSUMS: [ChecksumKind; 9] = [
    ChecksumKind::Off,
    ChecksumKind::Fletcher2,
    ChecksumKind::Fletcher4,
    ChecksumKind::Sha256,
    ChecksumKind::NoParity,
    ChecksumKind::Sha512,
    ChecksumKind::Skein,
    ChecksumKind::Edonr,
    ChecksumKind::Blake3,
];

const COMPRESSIONS: [CompressionKind; 8] = [
    CompressionKind::Off,
    CompressionKind::Empty,
    CompressionKind::Lzjb,
    CompressionKind::Gzip(1),
    CompressionKind::Gzip(9),
    CompressionKind::Zle,
    CompressionKind::Lz4,
    CompressionKind::Zstd,
];

#[test]
fn every_checksum_and_compression_round_trips() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let mut jobs = vec![];
    for checksum in CHECKSUMS {
        for compression in COMPRESSIONS {
            jobs.push(BlockWrite {
                checksum,
                compression,
                ..job(text(3, 16 << 10))
            });
        }
    }
    // The fastest level looks at one position in a thousand, so it needs a match that it cannot miss.
    let mut ruled = text(3, 2 << 10);
    ruled.resize(16 << 10, b'-');
    for (zstd_level, content) in [
        (ZstdLevel::standard(19), text(3, 16 << 10)),
        (ZstdLevel::fast(1000), ruled),
    ] {
        jobs.push(BlockWrite {
            compression: CompressionKind::Zstd,
            zstd_level: zstd_level.unwrap(),
            ..job(content)
        });
    }
    let written = pool.write(jobs.clone());
    let store = pool.reopened();
    for (job, written) in jobs.iter().zip(written) {
        let pointer = written.pointer;
        assert_eq!(pointer.validate(), Ok(()));
        assert_eq!(written.form, WrittenForm::Contiguous);
        assert_eq!(pointer.checksum_kind(), Some(job.checksum));
        let is_raw = matches!(
            job.compression,
            CompressionKind::Off | CompressionKind::Empty | CompressionKind::Zle
        );
        if is_raw {
            // zle saves nothing without zeros.
            assert_eq!(pointer.compression(), Some(CompressionKind::Off));
            assert_eq!(pointer.psize_bytes(), 16 << 10);
        } else {
            assert_eq!(pointer.compression(), Some(job.compression));
            assert!(pointer.psize_bytes() < 14 << 10);
        }
        assert_eq!(pointer.birth(), TXG);
        assert_eq!(pointer.physical_birth(), TXG);
        assert_eq!(pointer.endian(), Endian::Little);
        assert_eq!((pointer.fill(), pointer.dvas().count()), (1, 1));
        let block = store.read(&pointer, address(), None).unwrap();
        assert_eq!(block.bytes, job.content);
        assert!(store.audit(&pointer, address()).unwrap().is_clean());
    }
}

#[test]
fn zeros_become_holes_unless_compression_is_off() {
    let pool = Pool::new(&[(Vdev::Disk, 12)]);
    let zeros = job(vec![0; 8192]);
    for compression in COMPRESSIONS {
        let written = pool.write_one(BlockWrite {
            compression,
            level: Level(2),
            ..zeros.clone()
        });
        if compression == CompressionKind::Off {
            assert_eq!(written.form, WrittenForm::Contiguous);
            assert_eq!(pool.read(&written.pointer), *zeros.content);
        } else {
            assert_eq!(written.form, WrittenForm::Hole);
            let expected = BlockPointer::hole(8192, ObjectType::PLAIN_FILE, Level(2), TXG);
            assert_eq!(written.pointer, expected);
        }
    }
    let old = pool.write_one(BlockWrite {
        has_hole_birth: false,
        ..zeros
    });
    assert_eq!(old.pointer, BlockPointer::default());
}

#[test]
fn small_compressed_blocks_are_embedded_where_allowed() {
    let pool = Pool::new(&[(Vdev::Disk, 12)]);
    let mut content = vec![0; 4096];
    content[7] = 1;
    let small = job(content.clone());
    let written = pool.write_one(small.clone());
    assert_eq!(written.form, WrittenForm::Embedded);
    assert_eq!(written.pointer.lsize_bytes(), 4096);
    assert_eq!(written.pointer.birth(), TXG);
    assert_eq!(written.pointer.compression(), Some(CompressionKind::Lz4));
    assert_eq!(pool.read(&written.pointer), content);
    assert_eq!(pool.arena.live_bytes(), 0);
    let stored = [
        BlockWrite {
            may_embed: false,
            ..small.clone()
        },
        BlockWrite {
            level: Level(1),
            ..small.clone()
        },
        BlockWrite {
            object_type: ObjectType::DNODE,
            ..small.clone()
        },
        BlockWrite {
            object_type: ObjectType::OBJECT_SET,
            ..small.clone()
        },
        BlockWrite {
            compression: CompressionKind::Off,
            ..small
        },
    ];
    for job in stored {
        let written = pool.write_one(job);
        assert_eq!(written.form, WrittenForm::Contiguous);
        // A sector is the smallest allocation, so compressing it saves nothing.
        let pointer = written.pointer;
        assert_eq!(pointer.compression(), Some(CompressionKind::Off));
        assert_eq!(pool.read(&pointer), content);
    }
}

#[test]
fn stored_sizes_are_whole_sectors_and_little_gain_is_no_gain() {
    for (ashift, expected) in [(9, 1024), (12, 4096), (13, 8192)] {
        let pool = Pool::new(&[(Vdev::Disk, ashift)]);
        let mut content = vec![0; 128 << 10];
        content[..200].copy_from_slice(&noise(1, 200));
        let written = pool.write_one(job(content.clone()));
        assert_eq!(written.pointer.psize_bytes(), expected);
        assert_eq!(pool.read(&written.pointer), content);
        // Compression must save an eighth.
        let mut content = noise(2, 128 << 10);
        content[..15 << 10].fill(0);
        let raw = pool.write_one(job(content.clone())).pointer;
        assert_eq!(raw.compression(), Some(CompressionKind::Off));
        content[..24 << 10].fill(0);
        let packed = pool.write_one(job(content)).pointer;
        assert_eq!(packed.compression(), Some(CompressionKind::Lz4));
        assert!(packed.psize_bytes().is_multiple_of(1 << ashift));
        assert!(packed.psize_bytes() <= 112 << 10);
    }
}

#[test]
fn copies_are_on_different_vdevs_and_each_suffices() {
    let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Disk, 12), (Vdev::Raidz(3, 1), 9)]);
    let content = noise(5, 3 << 10);
    for copies in 1..=3u8 {
        let written = pool.write_one(BlockWrite {
            copies,
            compression: CompressionKind::Off,
            ..job(content.clone())
        });
        let pointer = written.pointer;
        assert_eq!(pointer.dvas().count(), usize::from(copies));
        assert!(
            pool.reopened()
                .audit(&pointer, address())
                .unwrap()
                .is_clean()
        );
        for dva in pointer.dvas() {
            let mut alone = pointer;
            alone.words[..6].fill(0);
            alone.words[..2].copy_from_slice(&dva.to_words());
            assert_eq!(pool.read(&alone), content);
        }
    }
}

#[test]
fn a_block_of_this_txg_is_rewritten_in_place_if_it_fits() {
    let _mark = mark::expect("block-rewritten-in-place");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let of = |seed, previous: BlockPointer, may_rewrite| {
        let job = BlockWrite {
            previous,
            may_rewrite,
            compression: CompressionKind::Off,
            ..job(noise(seed, 4096))
        };
        pool.write_one(job)
    };
    let first = of(1, BlockPointer::default(), true);
    assert_eq!(first.form, WrittenForm::Contiguous);
    let live = pool.arena.live_bytes();
    let second = of(2, first.pointer, true);
    assert!(second.keeps_space());
    assert_eq!(pool.arena.live_bytes(), live);
    assert_eq!(second.pointer.words[..6], first.pointer.words[..6]);
    assert_ne!(
        second.pointer.checksum_words(),
        first.pointer.checksum_words()
    );
    assert_eq!(pool.read(&second.pointer), noise(2, 4096));
    assert!(!of(3, second.pointer, false).keeps_space());
    let mut older = second.pointer;
    older.words[10] -= 1;
    assert!(!of(3, older, true).keeps_space());
    let mut remapped = second.pointer;
    remapped.words[9] = Txg(90).0;
    assert!(!of(3, remapped, true).keeps_space());
    let other_size = BlockWrite {
        previous: second.pointer,
        may_rewrite: true,
        ..job(noise(4, 8192))
    };
    assert!(!pool.write_one(other_size).keeps_space());
    let more_copies = BlockWrite {
        previous: second.pointer,
        may_rewrite: true,
        copies: 2,
        ..job(noise(4, 4096))
    };
    assert!(!pool.write_one(more_copies).keeps_space());
    assert_eq!(pool.read(&second.pointer), noise(2, 4096));
}

#[test]
fn retained_writes_are_cache_hits() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let keep = BlockWrite {
        retention: millpond_block::Retention::Keep,
        ..job(text(1, 8192))
    };
    let kept = pool.write_one(keep).pointer;
    let other = pool.write_one(job(text(2, 8192))).pointer;
    for device in &pool.devices {
        let length = device.inner.to_vec().len();
        device.inner.write(0, &vec![0; length]).unwrap();
    }
    let read = pool.store.read(&kept, address(), None).unwrap();
    assert_eq!(read.bytes, Arc::new(text(1, 8192)));
    assert!(pool.store.read(&other, address(), None).is_err());
}

#[test]
fn requests_that_no_pool_could_hold_are_errors_of_their_own() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let good = job(noise(1, 512));
    let bad = [
        BlockWrite {
            content: Arc::new(vec![]),
            ..good.clone()
        },
        BlockWrite {
            content: Arc::new(vec![1; 513]),
            ..good.clone()
        },
        BlockWrite {
            content: Arc::new(vec![1; (16 << 20) + 512]),
            ..good.clone()
        },
        BlockWrite {
            copies: 0,
            ..good.clone()
        },
        BlockWrite {
            copies: 4,
            ..good.clone()
        },
        BlockWrite {
            checksum: ChecksumKind::On,
            ..good.clone()
        },
        BlockWrite {
            checksum: ChecksumKind::Zilog2,
            ..good.clone()
        },
        BlockWrite {
            compression: CompressionKind::Inherit,
            ..good.clone()
        },
        good,
    ];
    let count = bad.len();
    let outcomes = pool.store.write(TXG, &pool.arena, bad.into());
    for (at, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Err(BlockError::Write { .. }) => assert!(at + 1 < count),
            Ok(_) => assert_eq!(at + 1, count),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(pool.arena.live_bytes(), 512);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads| {
        let vdevs = [(Vdev::Raidz(4, 1), 9), (Vdev::Mirror(2), 12)];
        let pool = Pool::with(&vdevs, false, threads);
        let jobs: Vec<BlockWrite> = (0..150u64)
            .map(|n| BlockWrite {
                copies: 1 + (n % 3) as u8,
                ..job(text(n, 512 << (n % 5)))
            })
            .collect();
        let written = pool.write(jobs);
        let devices: Vec<_> = pool.devices.iter().map(|d| d.inner.to_vec()).collect();
        (written, devices)
    };
    let one = run(1);
    let many = run(4);
    assert_eq!(one.0, many.0);
    assert!(one.1 == many.1);
}

#[test]
fn neighbours_go_to_a_leaf_together() {
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let jobs = (0..64).map(|n| job(noise(n, 4096))).collect();
    pool.write(jobs);
    let topology = pool.store.topology();
    for (leaf, _) in topology.tree.leaves() {
        let stats = topology.leaf_stats(leaf);
        assert_eq!(stats.write_bytes, 64 * 4096);
        assert_eq!((stats.writes, stats.write_errors), (1, 0));
    }
    pool.store.flush().unwrap();
    pool.store.flush().unwrap();
    for device in &pool.devices {
        // Nothing was written between the two flushes.
        assert_eq!(device.flushes.load(Ordering::SeqCst), 1);
    }
}

fn any_vdev() -> impl Strategy<Value = Vdev> {
    prop_oneof![
        Just(Vdev::Disk),
        (2u64..4).prop_map(Vdev::Mirror),
        (1u64..4, 1u64..5).prop_map(|(parity, data)| Vdev::Raidz(parity + data, parity)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_blocks_on_any_vdevs_survive_permitted_losses(
        vdev in any_vdev(),
        ashift in 9u64..=13,
        sizes in proptest::collection::vec((1usize..80, 0u8..3, any::<u64>()), 1..12),
        lost in any::<u64>(),
    ) {
        let mut pool = Pool::new(&[(vdev, ashift)]);
        let jobs: Vec<BlockWrite> = sizes
            .iter()
            .map(|(sectors, kind, seed)| {
                let length = sectors * 512;
                job(match kind {
                    0 => noise(*seed, length),
                    1 => text(*seed, length),
                    _ => vec![(*seed % 3) as u8; length],
                })
            })
            .collect();
        let written = pool.write(jobs.clone());
        pool.store.flush().unwrap();
        prop_assert!(pool.store.take_missed().is_empty());
        let store = pool.reopened();
        for written in &written {
            prop_assert!(store.audit(&written.pointer, address()).unwrap().is_clean());
        }
        let (leaves, spare) = match vdev {
            Vdev::Disk => (1, 0),
            Vdev::Mirror(sides) => (sides, sides - 1),
            Vdev::Raidz(children, parity) | Vdev::Draid(children, parity) => (children, parity),
        };
        for number in 0..spare {
            pool.remove(((lost + number) % leaves) as u32);
        }
        for (job, written) in jobs.iter().zip(&written) {
            if !written.pointer.is_hole() {
                prop_assert_eq!(&pool.read(&written.pointer), &*job.content);
            } else {
                prop_assert!(job.content.iter().all(|byte| *byte == 0));
            }
        }
    }
}
