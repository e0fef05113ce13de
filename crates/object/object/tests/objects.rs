//! Object sets, objects and their block trees on one device in memory.
#![forbid(unsafe_code)]

use millpond_block::{BlockCache, BlockStore, Topology};
use millpond_checksum::checksum;
use millpond_device::{Device, MemoryDevice};
use millpond_env::sync::Arc;
use millpond_object::{ObjectError, ObjectSetView};
use millpond_ondisk::{
    BlockId, BlockPointer, ChecksumKind, CompressionKind, Dnode, DnodeFlags, Dva, Endian, Guid,
    Level, ObjectId, ObjectSetKind, ObjectSetPhys, ObjectType, VDEV_DATA_START_BYTES, VdevId,
};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};

/// A device to which blocks are written one after the other.
struct Image {
    device: Arc<MemoryDevice>,
    end: u64,
}

impl Image {
    fn new() -> Self {
        Self {
            device: Arc::new(MemoryDevice::new(vec![0; 16 << 20])),
            end: 0,
        }
    }

    fn write(&mut self, bytes: &[u8], kind: ObjectType, level: u8) -> BlockPointer {
        let size = bytes.len() as u64;
        self.device
            .write(VDEV_DATA_START_BYTES + self.end, bytes)
            .unwrap();
        let mut pointer = BlockPointer::default();
        let dva = Dva {
            vdev: VdevId(0),
            offset_bytes: self.end,
            asize_bytes: size,
            is_gang: false,
        };
        pointer.words[..2].copy_from_slice(&dva.to_words());
        pointer.words[6] = (size / 512 - 1)
            | (size / 512 - 1) << 16
            | u64::from(CompressionKind::Off.number()) << 32
            | u64::from(ChecksumKind::Fletcher4.number()) << 40
            | u64::from(kind.0) << 48
            | u64::from(level) << 56
            | 1 << 63;
        (pointer.words[10], pointer.words[11]) = (5, 1);
        let words = checksum(ChecksumKind::Fletcher4, bytes, Endian::Little, None).unwrap();
        pointer.words[12..].copy_from_slice(&words);
        self.end += size;
        pointer
    }

    fn store(&self) -> Arc<BlockStore> {
        let mut leaf = VdevConfig::new(VdevType::File, Guid(2));
        (leaf.id, leaf.ashift) = (Some(0), 9);
        (leaf.asize_bytes, leaf.metaslab_shift) = (11 << 20, 20);
        let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![leaf]), Reflow::default()).unwrap();
        let devices = vec![Some(Arc::clone(&self.device) as Arc<dyn Device>)];
        let (health, indirect) = (LeafTable::all_good(1), IndirectTables::default());
        Arc::new(BlockStore::new(
            Topology::new(tree, devices, health, indirect),
            BlockCache::new(1 << 20),
        ))
    }
}

fn dnode(object_type: ObjectType, sectors: u16, pointers: Vec<BlockPointer>) -> Dnode {
    Dnode {
        object_type,
        indirect_block_shift: 10,
        levels: 1,
        bonus_type: ObjectType::NONE,
        checksum: 0,
        compression: 0,
        flags: DnodeFlags::USED_BYTES,
        data_block_sectors: sectors,
        extra_slots: 0,
        block_id_max: BlockId(0),
        used: 0,
        block_pointers: pointers,
        bonus: vec![],
        bonus_tail: vec![],
        spill: None,
        endian: Endian::Little,
    }
}

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(17) ^ seed)
        .collect()
}

/// An indirect block of eight pointers.
fn indirect(pointers: &[(usize, BlockPointer)]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for (slot, pointer) in pointers {
        bytes[slot * 128..(slot + 1) * 128].copy_from_slice(&pointer.encode());
    }
    bytes
}

/// Dnodes at these slots of one block of 32.
fn dnode_block(dnodes: &[(usize, Dnode)]) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 10];
    for (slot, dnode) in dnodes {
        let encoded = dnode.encode().unwrap();
        bytes[slot * 512..slot * 512 + encoded.len()].copy_from_slice(&encoded);
    }
    bytes
}

fn object_set(mut image: Image, blocks: &[&[(usize, Dnode)]]) -> Arc<ObjectSetView> {
    let mut pointers = vec![];
    for dnodes in blocks {
        let bytes = dnode_block(dnodes);
        pointers.push(match dnodes {
            [] => BlockPointer::default(),
            _ => image.write(&bytes, ObjectType::DNODE, 0),
        });
    }
    let block_id_max = BlockId(pointers.len() as u64 - 1);
    pointers.resize(3, BlockPointer::default());
    let meta_dnode = Dnode {
        block_id_max,
        ..dnode(ObjectType::DNODE, 32, pointers)
    };
    let phys = ObjectSetPhys {
        meta_dnode,
        intent_log_header: [0; 24],
        kind: ObjectSetKind::FileSystem,
        flags: 0,
        portable_mac: [0; 32],
        local_mac: [0; 32],
        user_used: None,
        group_used: None,
        project_used: None,
    };
    let root = image.write(&phys.encode(1024).unwrap(), ObjectType::OBJECT_SET, 0);
    ObjectSetView::open(image.store(), 7, root, None).unwrap()
}

/// A file of 512-byte blocks: block 0 and block 9 hold data, all others to 20 are holes.
fn sparse_file(image: &mut Image) -> Dnode {
    let kind = ObjectType::PLAIN_FILE;
    let (first, tenth) = (content(1, 512), content(2, 512));
    let (first, tenth) = (image.write(&first, kind, 0), image.write(&tenth, kind, 0));
    let low = image.write(&indirect(&[(0, first)]), kind, 1);
    let high = image.write(&indirect(&[(1, tenth)]), kind, 1);
    let top = image.write(&indirect(&[(0, low), (1, high)]), kind, 2);
    let pointers = vec![top, BlockPointer::default(), BlockPointer::default()];
    Dnode {
        levels: 3,
        block_id_max: BlockId(20),
        ..dnode(kind, 1, pointers)
    }
}

#[test]
fn a_sparse_file_reads_as_data_and_zeros() {
    let mut image = Image::new();
    let file = sparse_file(&mut image);
    let set = object_set(image, &[&[(3, file)]]);
    let object = set.object(ObjectId(3)).unwrap();
    assert_eq!(
        (object.block_bytes(), object.length_bytes()),
        (512, 21 * 512)
    );
    let mut whole = vec![0xee; 22 * 512];
    object.read(0, &mut whole).unwrap();
    let mut expected = vec![0; 22 * 512];
    expected[..512].copy_from_slice(&content(1, 512));
    expected[9 * 512..10 * 512].copy_from_slice(&content(2, 512));
    assert_eq!(whole, expected);
    let mut across = vec![0xee; 700];
    object.read(9 * 512 - 100, &mut across).unwrap();
    assert_eq!(across, expected[9 * 512 - 100..9 * 512 + 600]);
    let mut beyond = [0xee; 16];
    object.read(u64::MAX - 8, &mut beyond).unwrap();
    assert_eq!(beyond, [0; 16]);
}

#[test]
fn data_and_holes_are_found_without_reading_data() {
    let mut image = Image::new();
    let file = sparse_file(&mut image);
    let set = object_set(image, &[&[(3, file)]]);
    let object = set.object(ObjectId(3)).unwrap();
    let data = |from| {
        object
            .next_data_block(BlockId(from))
            .unwrap()
            .map(|id| id.0)
    };
    let hole = |from| object.next_hole_block(BlockId(from)).unwrap().0;
    assert_eq!(
        (data(0), data(1), data(9), data(10), data(21)),
        (Some(0), Some(9), Some(9), None, None)
    );
    assert_eq!((hole(0), hole(1), hole(9), hole(20)), (1, 1, 10, 20));
    let leaf = object.pointer(Level(0), BlockId(9)).unwrap();
    assert_eq!(leaf.level(), Level(0));
    assert_eq!(
        object.pointer(Level(1), BlockId(1)).unwrap().level(),
        Level(1)
    );
    assert!(
        object
            .pointer(Level(0), BlockId(8 * 8 * 3))
            .unwrap()
            .is_hole()
    );
    assert!(object.pointer(Level(3), BlockId(0)).is_err());
}

#[test]
fn only_the_first_slot_of_a_large_dnode_is_an_object() {
    let mut large = dnode(ObjectType::PLAIN_FILE, 1, vec![BlockPointer::default()]);
    large.extra_slots = 2;
    // Interior bytes can be anything, even valid dnodes.
    large.bonus_type = ObjectType::SA;
    large.bonus = vec![0x13; 1200];
    let small = dnode(ObjectType::DIRECTORY, 1, vec![BlockPointer::default()]);
    let set = object_set(
        Image::new(),
        &[&[(1, small.clone()), (4, large), (7, small)]],
    );
    for absent in [0, 2, 5, 6, 8, 31, 32, 1 << 50] {
        let outcome = set.object(ObjectId(absent));
        assert!(
            matches!(outcome, Err(ObjectError::NotFound { .. })),
            "{absent}: {outcome:?}"
        );
    }
    let ids: Vec<u64> = set.objects().map(|object| object.unwrap().id().0).collect();
    assert_eq!(ids, [1, 4, 7]);
    assert_eq!(
        set.object(ObjectId(4)).unwrap().bonus().unwrap().len(),
        1200
    );
}

#[test]
fn a_listing_continues_past_holes_and_bad_blocks() {
    let some = |slot| {
        [(
            slot,
            dnode(ObjectType::DIRECTORY, 1, vec![BlockPointer::default()]),
        )]
    };
    let (first, third) = (some(5), some(6));
    let set = object_set(Image::new(), &[&first, &[], &third]);
    let ids: Vec<u64> = set.objects().map(|object| object.unwrap().id().0).collect();
    assert_eq!(ids, [5, 64 + 6]);

    let image = Image::new();
    let device = Arc::clone(&image.device);
    let set = object_set(image, &[&first, &some(9), &third]);
    device
        .write(VDEV_DATA_START_BYTES + (16 << 10), &[1; 512])
        .unwrap();
    let listed: Vec<Result<u64, ObjectError>> = set
        .objects()
        .map(|object| object.map(|object| object.id().0))
        .collect();
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert_eq!((&listed[0], &listed[2]), (&Ok(5), &Ok(70)));
    assert!(listed[1].is_err());
}

#[test]
fn pointers_that_do_not_match_their_position_are_errors() {
    let mut image = Image::new();
    let kind = ObjectType::PLAIN_FILE;
    let data = image.write(&content(1, 512), kind, 0);
    // A data block where an indirect one should be, an indirect block of another size, and a data
    // block of another size.
    let other_size = image.write(&vec![0; 512], kind, 1);
    let long = image.write(&content(2, 1024), kind, 0);
    let two_levels = |pointer| Dnode {
        levels: 2,
        block_id_max: BlockId(7),
        ..dnode(kind, 1, vec![pointer])
    };
    let files = [
        (1, two_levels(data)),
        (2, two_levels(other_size)),
        (3, dnode(kind, 1, vec![long])),
    ];
    let set = object_set(image, &[&files]);
    for id in 1..=3 {
        let outcome = set.object(ObjectId(id)).unwrap().read_block(BlockId(0));
        assert!(
            matches!(outcome, Err(ObjectError::Invalid { .. })),
            "{id}: {outcome:?}"
        );
    }
}

#[test]
fn an_invalid_object_set_is_refused() {
    let mut image = Image::new();
    let wrong_kind = image.write(&[0; 1024], ObjectType::PLAIN_FILE, 0);
    let empty = image.write(&[0; 1024], ObjectType::OBJECT_SET, 0);
    for root in [BlockPointer::default(), wrong_kind, empty] {
        assert!(ObjectSetView::open(image.store(), 7, root, None).is_err());
    }
}
