//! Reads of blocks on a mirror of two in-memory devices.
#![forbid(unsafe_code)]

mod cache_devices;
mod compressed;
mod prefetch;
mod retention;

use millpond_block::{
    BlockAddress, BlockCache, BlockError, BlockStore, PooledBuf, Retention, Topology, ViewExpiry,
};
use millpond_checksum::{Form, GangVerifier, checksum, seal_gang_header};
use millpond_device::{Device, DeviceError, MemoryDevice};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::thread;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, GangHeader, Guid, ObjectId,
    ObjectType, VDEV_DATA_START_BYTES, VdevId,
};
use millpond_vdev::{IndirectTables, LeafId, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};

const DEVICE_BYTES: usize = 8 << 20;
const PLAIN_FILE: ObjectType = ObjectType::PLAIN_FILE;

/// A device that counts reads, and delays them so that callers overlap.
#[derive(Debug)]
struct Counting {
    inner: MemoryDevice,
    reads: AtomicU64,
    /// Reads wait as long as it is set.
    is_held: AtomicBool,
}

impl Device for Counting {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        while self.is_held.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        self.inner.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(offset_bytes, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _offset_bytes: u64, _length_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

struct Mirror {
    sides: [Arc<Counting>; 2],
    store: BlockStore,
}

impl Mirror {
    fn new(present: [bool; 2]) -> Self {
        let side = || {
            let inner = MemoryDevice::new(vec![0; DEVICE_BYTES]);
            Arc::new(Counting {
                inner,
                reads: AtomicU64::new(0),
                is_held: AtomicBool::new(false),
            })
        };
        let sides = [side(), side()];
        let mut top = VdevConfig::new(VdevType::Mirror, Guid(2));
        (top.id, top.ashift) = (Some(0), 9);
        (top.asize_bytes, top.metaslab_shift) = (4 << 20, 20);
        for number in 0..2 {
            let mut leaf = VdevConfig::new(VdevType::File, Guid(3 + number));
            leaf.id = Some(number);
            leaf.path = Some(format!("side{number}"));
            top.children.push(leaf);
        }
        let root = VdevConfig::root(Guid(1), vec![top]);
        let tree = VdevTree::new(root, Reflow::default()).unwrap();
        let mut health = LeafTable::all_good(2);
        let mut devices: Vec<Option<Arc<dyn Device>>> = vec![];
        for (number, side) in sides.iter().enumerate() {
            health.entry(LeafId(number as u32)).unwrap().is_readable = present[number];
            devices.push(present[number].then(|| Arc::clone(side) as Arc<dyn Device>));
        }
        let topology = Topology::new(tree, devices, health, IndirectTables::default());
        Self {
            sides,
            store: BlockStore::new(topology, BlockCache::new(1 << 20)),
        }
    }

    /// Writes bytes at an offset of the mirror, to both sides.
    fn write(&self, offset: u64, bytes: &[u8]) {
        for side in &self.sides {
            side.inner
                .write(VDEV_DATA_START_BYTES + offset, bytes)
                .unwrap();
        }
    }
    /// Makes reads of the devices wait, or lets them go on.
    fn hold(&self, is_held: bool) {
        for side in &self.sides {
            side.is_held.store(is_held, Ordering::SeqCst);
        }
    }
    fn spoil(&self, side: usize, offset: u64) {
        self.sides[side]
            .inner
            .write(VDEV_DATA_START_BYTES + offset, &[0xa5; 512])
            .unwrap();
    }
    fn reads(&self) -> u64 {
        self.sides
            .iter()
            .map(|side| side.reads.load(Ordering::SeqCst))
            .sum()
    }
    fn checksum_errors(&self, leaf: u32) -> u64 {
        self.store
            .topology()
            .leaf_stats(LeafId(leaf))
            .checksum_errors
    }
}

fn address() -> BlockAddress {
    BlockAddress {
        dataset: 5,
        object: ObjectId(7),
        ..BlockAddress::default()
    }
}

fn pointer(offset: u64, asize: u64, is_gang: bool, lsize: u64, psize: u64) -> BlockPointer {
    let mut pointer = BlockPointer::default();
    let dva = Dva {
        vdev: VdevId(0),
        offset_bytes: offset,
        asize_bytes: asize,
        is_gang,
    };
    pointer.words[..2].copy_from_slice(&dva.to_words());
    pointer.words[6] = (lsize / 512 - 1)
        | (psize / 512 - 1) << 16
        | u64::from(CompressionKind::Off.number()) << 32
        | u64::from(ChecksumKind::Fletcher4.number()) << 40
        | u64::from(PLAIN_FILE.0) << 48
        | 1 << 63;
    pointer.words[10] = 9;
    pointer.words[11] = 1;
    pointer
}

fn sealed(mut pointer: BlockPointer, data: &[u8]) -> BlockPointer {
    let words = checksum(ChecksumKind::Fletcher4, data, Endian::Little, None).unwrap();
    pointer.words[12..].copy_from_slice(&words);
    pointer
}

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

#[test]
fn second_read_of_a_block_is_a_cache_hit() {
    let mirror = Mirror::new([true, true]);
    let data = content(1, 4096);
    mirror.write(0x2000, &data);
    let pointer = sealed(pointer(0x2000, 4096, false, 4096, 4096), &data);
    let block = mirror.store.read(&pointer, address(), None).unwrap();
    assert_eq!(block.bytes, Arc::new(data.clone()));
    let reads = mirror.reads();
    assert_eq!(
        mirror.store.read(&pointer, address(), None).unwrap().bytes,
        Arc::new(data.clone())
    );
    assert_eq!(mirror.reads(), reads);
    assert_eq!(mirror.store.cache_statistics().demand.hits, 1);
}

#[test]
fn a_corrupt_mirror_side_is_blamed_and_the_good_one_read() {
    for bad in 0..2 {
        let mirror = Mirror::new([true, true]);
        // Reads alternate between the sides by offset, so several blocks start with the bad one.
        for number in 0..8u64 {
            let (offset, data) = (number << 18, content(number as u8, 2048));
            mirror.write(offset, &data);
            mirror.spoil(bad, offset + 512);
            let pointer = sealed(pointer(offset, 2048, false, 2048, 2048), &data);
            assert_eq!(
                mirror.store.read(&pointer, address(), None).unwrap().bytes,
                Arc::new(data.clone())
            );
            let audit = mirror.store.audit(&pointer, address()).unwrap();
            assert!(audit.is_readable && !audit.is_clean());
            assert_eq!(audit.findings.len(), 1);
            assert_eq!(audit.findings[0].1.leaf, LeafId(bad as u32));
        }
        assert!(mirror.checksum_errors(bad as u32) >= 8);
        assert_eq!(mirror.checksum_errors(1 - bad as u32), 0);
    }
}

#[test]
fn bytes_whose_checksum_does_not_hold_are_never_returned() {
    let mirror = Mirror::new([true, true]);
    let data = content(3, 1024);
    mirror.write(0, &data);
    mirror.spoil(0, 0);
    mirror.spoil(1, 0);
    let pointer = sealed(pointer(0, 1024, false, 1024, 1024), &data);
    match mirror.store.read(&pointer, address(), None) {
        Err(BlockError::Corrupt { copies, .. }) => {
            assert!(copies[0].reason.contains("side0") && copies[0].reason.contains("side1"));
        }
        other => panic!("{other:?}"),
    }
    // Damage is remembered, by views too, until the block can be read.
    let damaged = mirror.store.view(Arc::default()).damaged_blocks();
    assert_eq!(damaged.len(), 1);
    assert_eq!(damaged[0].address, address());
    mirror.write(0, &data);
    mirror.store.read(&pointer, address(), None).unwrap();
    assert_eq!(mirror.store.damaged_blocks(), []);
}

#[test]
fn absent_devices_differ_from_bad_ones() {
    let data = content(4, 512);
    let pointer = sealed(pointer(0x400, 512, false, 512, 512), &data);
    let one = Mirror::new([false, true]);
    one.write(0x400, &data);
    assert_eq!(
        one.store.read(&pointer, address(), None).unwrap().bytes,
        Arc::new(data.clone())
    );
    let none = Mirror::new([false, false]);
    let outcome = none.store.read(&pointer, address(), None);
    assert!(
        matches!(outcome, Err(BlockError::Missing { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_forged_pointer_to_a_cached_block_does_not_get_its_bytes() {
    let mirror = Mirror::new([true, true]);
    let data = content(5, 1024);
    mirror.write(0, &data);
    let good = sealed(pointer(0, 1024, false, 1024, 1024), &data);
    mirror.store.read(&good, address(), None).unwrap();
    let mut forged = good;
    forged.words[13] ^= 1;
    assert!(mirror.store.read(&forged, address(), None).is_err());
}

#[test]
fn pointers_that_cannot_be_followed_are_errors() {
    let mirror = Mirror::new([true, true]);
    let sound = sealed(pointer(0, 512, false, 512, 512), &[0; 512]);
    let mut no_such_vdev = sound;
    no_such_vdev.words[0] |= 7 << 32;
    let mut beyond_the_end = sound;
    beyond_the_end.words[1] = (1 << 40) / 512;
    let mut inherited_checksum = sound;
    inherited_checksum.words[6] &= !(0xff << 40);
    let mut no_such_type = sound;
    no_such_type.words[6] |= 0x7f << 48;
    for bad in [
        no_such_vdev,
        beyond_the_end,
        inherited_checksum,
        no_such_type,
    ] {
        assert!(mirror.store.read(&bad, address(), None).is_err(), "{bad:?}");
    }
    let mut salted = sound;
    salted.words[6] =
        salted.words[6] & !(0xff << 40) | u64::from(ChecksumKind::Skein.number()) << 40;
    let outcome = mirror.store.read(&salted, address(), None);
    assert!(
        matches!(outcome, Err(BlockError::Invalid { .. })),
        "no salt is known: {outcome:?}"
    );
}

#[test]
fn encrypted_blocks_are_locked_without_a_key() {
    let mirror = Mirror::new([true, true]);
    let mut encrypted = sealed(pointer(0, 512, false, 512, 512), &[0; 512]);
    encrypted.words[6] |= 1 << 61;
    let outcome = mirror.store.read(&encrypted, address(), None);
    assert!(
        matches!(outcome, Err(BlockError::Locked { .. })),
        "{outcome:?}"
    );
}

#[test]
fn callers_that_miss_the_same_block_share_one_read() {
    let mirror = Mirror::new([true, true]);
    let data = content(6, 64 << 10);
    mirror.write(0, &data);
    let pointer = sealed(pointer(0, 64 << 10, false, 64 << 10, 64 << 10), &data);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                assert_eq!(
                    mirror.store.read(&pointer, address(), None).unwrap().bytes,
                    Arc::new(data.clone())
                );
            });
        }
    });
    assert_eq!(mirror.reads(), 1);
}

/// A gang block of two pieces behind a header at `header`.
fn gang(mirror: &Mirror, header_at: u64, data: &[u8]) -> BlockPointer {
    let size = data.len() as u64;
    let leader = sealed(pointer(header_at, size + 512, true, size, size), data);
    let (first, second) = data.split_at(data.len() / 2);
    let mut header = GangHeader {
        pointers: vec![],
        checksum: [0; 4],
    };
    for (number, piece) in [first, second].into_iter().enumerate() {
        let (at, length) = (
            header_at + 0x10000 * (number as u64 + 1),
            piece.len() as u64,
        );
        mirror.write(at, piece);
        let mut child = sealed(pointer(at, length, false, length, length), piece);
        child.words[6] &= !(0xff << 48);
        header.pointers.push(child);
    }
    header.pointers.push(BlockPointer::default());
    let mut bytes = header.encode(512).unwrap();
    seal_gang_header(&mut bytes, GangVerifier::of(&leader).unwrap(), Form::Full).unwrap();
    mirror.write(header_at, &bytes);
    leader
}

#[test]
fn a_gang_block_is_put_together_from_its_pieces() {
    let mirror = Mirror::new([true, true]);
    let data = content(7, 8192);
    let leader = gang(&mirror, 0x40000, &data);
    assert_eq!(
        mirror.store.read(&leader, address(), None).unwrap().bytes,
        Arc::new(data.clone())
    );
    let audit = mirror.store.audit(&leader, address()).unwrap();
    assert!(audit.is_clean());
    assert_eq!(
        audit.stored.as_ref().map(|stored| stored.to_vec()),
        Some(data)
    );
    // Header and two pieces, each on two sides.
    assert_eq!(audit.read_bytes, 2 * (512 + 8192));
}

#[test]
fn a_gang_block_with_a_lost_piece_or_header_is_an_error() {
    for spoiled in [0x40000, 0x50000, 0x60000] {
        let mirror = Mirror::new([true, true]);
        let leader = gang(&mirror, 0x40000, &content(8, 4096));
        mirror.spoil(0, spoiled);
        mirror.spoil(1, spoiled);
        assert!(mirror.store.read(&leader, address(), None).is_err());
        let audit = mirror.store.audit(&leader, address()).unwrap();
        assert!(!audit.is_readable);
    }
}

#[test]
fn a_gang_header_that_points_to_itself_ends_in_an_error() {
    let mirror = Mirror::new([true, true]);
    let leader = sealed(pointer(0x40000, 1024, true, 1024, 1024), &content(9, 1024));
    let mut header = GangHeader {
        pointers: vec![],
        checksum: [0; 4],
    };
    let mut child = leader;
    child.words[6] &= !(0xff << 48);
    header.pointers = vec![child, BlockPointer::default(), BlockPointer::default()];
    let mut bytes = header.encode(512).unwrap();
    seal_gang_header(&mut bytes, GangVerifier::of(&leader).unwrap(), Form::Full).unwrap();
    mirror.write(0x40000, &bytes);
    assert!(mirror.store.read(&leader, address(), None).is_err());
    assert!(!mirror.store.audit(&leader, address()).unwrap().is_readable);
    assert!(mirror.store.extents(&leader, address()).is_err());
}

#[test]
fn owned_space_is_known_only_with_readable_gang_headers() {
    let mirror = Mirror::new([true, true]);
    let data = content(6, 2048);
    let leader = gang(&mirror, 0x8000, &data);
    let extents = mirror.store.extents(&leader, address()).unwrap();
    assert!(extents.len() > 1);
    // Of the leader only the header.
    assert_eq!((extents[0].asize_bytes, extents[0].is_gang), (512, true));
    assert!(extents[1..].iter().all(|dva| !dva.is_gang));
    let plain = pointer(0x2000, 4096, false, 4096, 4096);
    let own: Vec<Dva> = plain.dvas().collect();
    assert_eq!(mirror.store.extents(&plain, address()), Ok(own));
    let hole = BlockPointer::default();
    assert_eq!(mirror.store.extents(&hole, address()), Ok(vec![]));
    mirror.spoil(0, 0x8000);
    assert!(mirror.store.extents(&leader, address()).is_ok());
    mirror.spoil(1, 0x8000);
    assert!(matches!(
        mirror.store.extents(&leader, address()),
        Err(BlockError::Corrupt { .. })
    ));
}

#[test]
fn holes_and_embedded_pointers_need_no_device() {
    let mirror = Mirror::new([false, false]);
    let mut hole = BlockPointer::default();
    hole.words[6] = 0x0013_0000_0000_0007;
    hole.words[10] = 4;
    assert_eq!(
        mirror.store.read(&hole, address(), None).unwrap().bytes,
        Arc::new(vec![0; 4096])
    );
    // Twelve bytes, uncompressed.
    let mut embedded = BlockPointer::default();
    embedded.words[0] = u64::from_le_bytes(*b"pond wat");
    embedded.words[1] = u64::from(u32::from_le_bytes(*b"er.\n"));
    embedded.words[6] = 11 | 11 << 25 | 2 << 32 | 1 << 39 | 19 << 48 | 1 << 63;
    embedded.words[10] = 4;
    let block = mirror.store.read(&embedded, address(), None).unwrap();
    assert_eq!(block.bytes, Arc::new(b"pond water.\n".to_vec()));
    // 128 KiB that a redacted stream left out.
    let mut redacted = BlockPointer::default();
    redacted.words[6] = 0x1_ffff | 1 << 39 | 2 << 40 | 19 << 48;
    redacted.words[10] = 4;
    let error = mirror.store.read(&redacted, address(), None).unwrap_err();
    assert!(matches!(error, BlockError::Redacted { .. }), "{error}");
}

#[test]
fn an_expired_view_counts_no_checksum_errors() {
    let mirror = Mirror::new([true, true]);
    let data = content(3, 1024);
    let pointer = sealed(pointer(0, 1024, false, 1024, 1024), &data);
    let expiry = Arc::new(ViewExpiry::default());
    let view = mirror.store.view(Arc::clone(&expiry));
    let errors = || (mirror.checksum_errors(0), mirror.checksum_errors(1));
    view.read(&pointer, address(), None).unwrap_err();
    assert_eq!(errors(), (1, 1));
    expiry.expire();
    view.read(&pointer, address(), None).unwrap_err();
    // One side has the block: the space is half overwritten, and reading succeeds.
    mirror.write(0, &data);
    for side in 0..2 {
        mirror.write(0, &data);
        mirror.spoil(side, 0);
        view.read(&pointer, address(), None).unwrap();
    }
    assert_eq!(errors(), (1, 1));
    // Audits look at all copies.
    view.audit(&pointer, address()).unwrap();
    assert_eq!(errors(), (1, 1));
    mirror.store.audit(&pointer, address()).unwrap();
    assert_eq!(errors(), (1, 2));
}
