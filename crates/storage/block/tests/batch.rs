//! Reads several blocks with one call, on devices with queue depth and without.
#![forbid(unsafe_code)]

use millpond_block::{BlockAddress, BlockCache, BlockError, BlockStore, Topology};
use millpond_checksum::checksum;
use millpond_device::{Device, FileDevice, IoBackend, OpenOptions, ring_is_permitted};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::{
    BlockId, BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, Guid, ObjectType,
    VDEV_DATA_START_BYTES, VdevId,
};
use millpond_vdev::{IndirectTables, LeafId, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};
use tempfile::NamedTempFile;

const DEVICE_BYTES: u64 = 40 << 20;
const BLOCKS: u64 = 300;
/// The offset of block `number`: some blocks are neighbours, some are not.
fn offset(number: u64) -> u64 {
    number * 0x1_8000 + (number % 3) * 0x400
}
/// Most are small, some 64 KiB.
fn length(number: u64) -> usize {
    if number.is_multiple_of(10) {
        64 << 10
    } else {
        1024 + 512 * (number as usize % 5)
    }
}
fn content(number: u64) -> Vec<u8> {
    (0..length(number) as u64)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ number.wrapping_mul(77)) as u8)
        .collect()
}

struct Mirror {
    sides: [Arc<FileDevice>; 2],
    store: Arc<BlockStore>,
    _files: [NamedTempFile; 2],
}

/// A mirror of two files with `BLOCKS` blocks, and their pointers.
fn mirror(backend: IoBackend) -> (Mirror, Vec<(BlockPointer, BlockAddress)>) {
    let files = [0, 1].map(|_| {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(DEVICE_BYTES).unwrap();
        file
    });
    let sides = [0, 1].map(|side: usize| {
        let options = OpenOptions {
            write: true,
            refuse_if_live: false,
        };
        let device = FileDevice::open(files[side].path(), options).unwrap();
        Arc::new(device.with_backend(backend))
    });
    let mut top = VdevConfig::new(VdevType::Mirror, Guid(2));
    (top.id, top.ashift) = (Some(0), 9);
    (top.asize_bytes, top.metaslab_shift) = (32 << 20, 20);
    for number in 0..2 {
        let mut leaf = VdevConfig::new(VdevType::File, Guid(3 + number));
        leaf.id = Some(number);
        top.children.push(leaf);
    }
    let root = VdevConfig::root(Guid(1), vec![top]);
    let tree = VdevTree::new(root, Reflow::default()).unwrap();
    let devices = sides
        .iter()
        .map(|side| Some(Arc::clone(side) as Arc<dyn Device>));
    let topology = Topology::new(
        tree,
        devices.collect(),
        LeafTable::all_good(2),
        IndirectTables::default(),
    );
    let pointers = (0..BLOCKS).map(|number| {
        for side in &sides {
            side.write(VDEV_DATA_START_BYTES + offset(number), &content(number))
                .unwrap();
        }
        let address = BlockAddress {
            block: BlockId(number),
            ..BlockAddress::default()
        };
        (pointer(number), address)
    });
    let pointers = pointers.collect();
    let mirror = Mirror {
        sides,
        store: Arc::new(BlockStore::new(topology, BlockCache::new(64 << 20))),
        _files: files,
    };
    (mirror, pointers)
}

fn pointer(number: u64) -> BlockPointer {
    let mut pointer = BlockPointer::default();
    let size = length(number) as u64;
    let dva = Dva {
        vdev: VdevId(0),
        offset_bytes: offset(number),
        asize_bytes: size,
        is_gang: false,
    };
    pointer.words[..2].copy_from_slice(&dva.to_words());
    pointer.words[6] = (size / 512 - 1)
        | (size / 512 - 1) << 16
        | u64::from(CompressionKind::Off.number()) << 32
        | u64::from(ChecksumKind::Fletcher4.number()) << 40
        | u64::from(ObjectType::PLAIN_FILE.0) << 48
        | 1 << 63;
    pointer.words[10] = 9;
    pointer.words[11] = 1;
    let words = checksum(
        ChecksumKind::Fletcher4,
        &content(number),
        Endian::Little,
        None,
    );
    pointer.words[12..].copy_from_slice(&words.unwrap());
    pointer
}

impl Mirror {
    fn spoil(&self, side: usize, number: u64) {
        let at = VDEV_DATA_START_BYTES + offset(number) + 512;
        self.sides[side].write(at, &[0xa5; 512]).unwrap();
    }
    fn checksum_errors(&self, leaf: u32) -> u64 {
        self.store
            .topology()
            .leaf_stats(LeafId(leaf))
            .checksum_errors
    }
}

fn ways() -> Vec<IoBackend> {
    if ring_is_permitted() {
        return vec![IoBackend::Threads, IoBackend::Ring];
    }
    println!("io_uring is not permitted here: its way was not tried");
    vec![IoBackend::Threads]
}

#[test]
fn batch_reads_equal_single_reads_and_are_cached() {
    for way in ways() {
        let (mirror, mut wanted) = mirror(way);
        // Damage one side of some blocks, and both sides of one. One block is requested twice, one is a
        // hole.
        for number in (0..BLOCKS).step_by(7) {
            mirror.spoil((number % 2) as usize, number);
        }
        mirror.spoil(0, 100);
        mirror.spoil(1, 100);
        wanted.push(wanted[5]);
        wanted.push((BlockPointer::default(), BlockAddress::default()));
        let mut crooked = wanted[6].0;
        crooked.words[1] |= 1 << 60;
        wanted.push((crooked, BlockAddress::default()));
        let outcomes = mirror.store.read_batch(&wanted, None);
        assert_eq!(outcomes.len(), wanted.len());
        for (number, outcome) in (0..BLOCKS).zip(&outcomes) {
            match outcome {
                Ok(block) => assert!(*block.bytes == content(number), "{way:?} {number}"),
                Err(error) => {
                    assert_eq!(number, 100);
                    let BlockError::Corrupt { address, .. } = error else {
                        panic!("{error}")
                    };
                    assert_eq!(address.block, BlockId(100));
                }
            }
        }
        assert!(*outcomes[BLOCKS as usize].as_ref().unwrap().bytes == content(5));
        assert!(outcomes[BLOCKS as usize + 1].is_ok());
        assert!(outcomes[BLOCKS as usize + 2].is_err());
        // Every error is counted once: of the copies that were read first, and of block 100.
        let found = mirror.checksum_errors(0) + mirror.checksum_errors(1);
        assert!((3..=BLOCKS / 7 + 4).contains(&found), "{found}");
        // Block 100, and the pointer to a wrong place.
        let damaged = mirror.store.damaged_blocks();
        let damaged: Vec<_> = damaged.iter().map(|block| block.address.block.0).collect();
        assert_eq!(damaged, [0, 100]);
        // Now from the cache: the devices are damaged everywhere.
        for number in 0..BLOCKS {
            mirror.spoil(0, number);
            mirror.spoil(1, number);
        }
        let again = mirror.store.read_batch(&wanted[..100], None);
        assert!(again.iter().all(Result::is_ok));
    }
}

#[test]
fn batch_reads_of_stored_bytes_equal_single_reads_and_are_not_cached() {
    for way in ways() {
        let (mirror, mut wanted) = mirror(way);
        for number in (0..BLOCKS).step_by(7) {
            mirror.spoil((number % 2) as usize, number);
        }
        mirror.spoil(0, 100);
        mirror.spoil(1, 100);
        wanted.insert(50, (BlockPointer::default(), BlockAddress::default()));
        let mut crooked = wanted[6].0;
        crooked.words[1] |= 1 << 60;
        wanted.insert(60, (crooked, BlockAddress::default()));
        let outcomes = mirror.store.read_stored_batch(&wanted);
        assert_eq!(outcomes.len(), wanted.len());
        for (outcome, (pointer, address)) in outcomes.iter().zip(&wanted) {
            let single = mirror.store.read_stored(pointer, *address);
            assert_eq!(outcome.is_ok(), single.is_ok(), "{way:?} {address:?}");
            if let (Ok(bytes), Ok(single)) = (outcome, single) {
                assert!(*bytes == single, "{way:?} {address:?}");
                assert!(!mirror.store.is_cached(pointer, None));
            }
        }
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        // The hole, the pointer to a wrong place, and block 100.
        assert_eq!(failed, 3);
    }
}

#[test]
fn blocks_are_read_to_be_changed_in_their_order() {
    for way in ways() {
        let (mirror, wanted) = mirror(way);
        mirror.spoil(0, 40);
        mirror.store.read(&wanted[3].0, wanted[3].1, None).unwrap();
        let mut numbered: Vec<_> = (0u64..)
            .zip(&wanted)
            .map(|(number, (pointer, address))| (*pointer, *address, number))
            .collect();
        numbered.insert(50, (BlockPointer::default(), BlockAddress::default(), 1000));
        let outcomes = mirror
            .store
            .read_many(numbered, None, |bytes, _, number: u64| {
                bytes.push(number as u8);
                if number == 9 { Err("no") } else { Ok(()) }
            });
        let mut numbers = 0..BLOCKS;
        for (place, outcome) in outcomes.into_iter().enumerate() {
            let outcome = outcome.unwrap();
            if place == 50 {
                continue;
            }
            let number = numbers.next().unwrap();
            if number == 9 {
                assert_eq!(outcome, Err("no"));
                continue;
            }
            let mut expected = content(number);
            expected.push(number as u8);
            assert!(outcome.unwrap() == expected, "{way:?} {number}");
        }
    }
}

#[test]
fn audits_of_a_batch_are_those_of_each_block() {
    for way in ways() {
        let (mirror, mut wanted) = mirror(way);
        for number in (0..BLOCKS).step_by(11) {
            mirror.spoil((number % 2) as usize, number);
        }
        mirror.spoil(0, 100);
        mirror.spoil(1, 100);
        wanted.insert(20, (BlockPointer::default(), BlockAddress::default()));
        let mut crooked = wanted[6].0;
        crooked.words[1] |= 1 << 60;
        wanted.insert(30, (crooked, BlockAddress::default()));
        let mut next = 0;
        mirror.store.audit_batch(&wanted, |number, audit| {
            assert_eq!(number, next);
            next += 1;
            let (pointer, address) = &wanted[number];
            assert_eq!(audit, mirror.store.audit(pointer, *address));
        });
        assert_eq!(next, wanted.len());
    }
}

#[test]
fn batches_that_share_blocks_do_not_deadlock() {
    for way in ways() {
        let (mirror, wanted) = mirror(way);
        for _ in 0..5 {
            // The cache of this store is empty.
            let topology = Topology::clone(&mirror.store.topology());
            let store = BlockStore::new(topology, BlockCache::new(64 << 20));
            thread::scope(|scope| {
                for turn in 0..4 {
                    let (store, mut wanted) = (&store, wanted.clone());
                    scope.spawn(move || {
                        if turn % 2 == 1 {
                            wanted.reverse();
                        }
                        wanted.rotate_left(turn * 60);
                        for ((_, address), outcome) in
                            wanted.iter().zip(store.read_batch(&wanted, None))
                        {
                            assert!(*outcome.unwrap().bytes == content(address.block.0));
                        }
                    });
                }
            });
        }
    }
}
