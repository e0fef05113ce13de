//! Benchmarks of data structures on disk and in memory.

use super::{Step, Work};
use anyhow::{Context, Result, ensure};
use millpond_alloc::{
    AllocError, AllocRequest, AllocationClass, BlockSizes, LogRecord, MetaslabId, Placement,
    PoolAllocator, RangeSet, SpaceMapForms, SpaceMapStore, SpaceRecord, VdevGeometry, VdevSpace,
};
use millpond_cache::{Cache, Class};
use millpond_nvlist::NvList;
use millpond_object::{Block, BlockAddress, ObjectError};
use millpond_ondisk::zap::{MicroZap, ZapLeaf};
use millpond_ondisk::{
    Ashift, BlockId, BlockPointer, Dnode, Endian, Level, ObjectId, Txg, Uberblock, VdevId,
};
use millpond_zap::{Zap, ZapSource};
use std::hint::black_box;
use std::sync::Arc;

// Seeds of the fuzzer, taken from pools created by OpenZFS. The first byte is the byte order.
const POINTER: &[u8] = include_bytes!("../../../fuzz/corpus/block_pointer/single-314000-0");
const DNODE: &[u8] = include_bytes!("../../../fuzz/corpus/dnode/single-330000-512");
const UBERBLOCK: &[u8] = include_bytes!("../../../fuzz/corpus/uberblock/single-0");
const LABEL: &[u8] = include_bytes!("../../../fuzz/corpus/nvlist/label-single");
const LEAF: &[u8] = include_bytes!("../../../fuzz/corpus/zap_leaf/single-187000");
const MICRO: &[u8] = include_bytes!("../../../fuzz/corpus/zap_micro/single-12000");
/// A byte for the byte order, one for the block size.
const ZAP: &[u8] = include_bytes!("../../../fuzz/corpus/zap/micro-single-12000");

/// The byte order and the structure of a seed.
fn seed(bytes: &'static [u8]) -> Result<(Endian, &'static [u8])> {
    let (first, rest) = bytes.split_first().context("an empty seed")?;
    let endian = if first & 1 == 0 {
        Endian::Little
    } else {
        Endian::Big
    };
    Ok((endian, rest))
}

pub fn works() -> Vec<Work> {
    let mut works = vec![
        Work::new("decode/block_pointer", 4096, || {
            let (endian, bytes) = seed(POINTER)?;
            Ok(Box::new(move |_| {
                let pointer = BlockPointer::decode(black_box(bytes), endian)?;
                black_box(pointer.validate()?);
                Ok(())
            }))
        }),
        Work::new("encode/block_pointer", 4096, || {
            let (endian, bytes) = seed(POINTER)?;
            let pointer = BlockPointer::decode(bytes, endian)?;
            Ok(Box::new(move |_| {
                black_box(black_box(&pointer).encode());
                Ok(())
            }))
        }),
        Work::new("decode/dnode", 4096, || {
            let (endian, bytes) = seed(DNODE)?;
            Ok(Box::new(move |_| {
                black_box(Dnode::decode(black_box(bytes), endian)?.context("no dnode")?);
                Ok(())
            }))
        }),
        Work::new("encode/dnode", 4096, || {
            let (endian, bytes) = seed(DNODE)?;
            let dnode = Dnode::decode(bytes, endian)?.context("no dnode")?;
            Ok(Box::new(move |_| {
                black_box(black_box(&dnode).encode()?);
                Ok(())
            }))
        }),
        Work::new("decode/uberblock", 1024, || {
            Ok(Box::new(move |_| {
                black_box(Uberblock::decode(black_box(UBERBLOCK))?);
                Ok(())
            }))
        }),
        Work::new("decode/nvlist", 512, || {
            Ok(Box::new(move |_| {
                black_box(NvList::decode_prefix(black_box(LABEL))?);
                Ok(())
            }))
        }),
        Work::new("encode/nvlist", 512, || {
            let (list, _) = NvList::decode_prefix(LABEL)?;
            Ok(Box::new(move |_| {
                black_box(black_box(&list).encode_xdr()?);
                Ok(())
            }))
        }),
        Work::new("decode/zap_leaf", 256, || {
            let (endian, bytes) = seed(LEAF)?;
            Ok(Box::new(move |_| {
                let leaf = ZapLeaf::decode(black_box(bytes), endian)?;
                for entry in leaf.entries() {
                    let entry = entry?;
                    black_box((leaf.name(&entry)?, leaf.value(&entry)?));
                }
                Ok(())
            }))
        }),
        Work::new("decode/zap_micro", 256, || {
            let (endian, bytes) = seed(MICRO)?;
            Ok(Box::new(move |_| {
                let zap = MicroZap::decode(black_box(bytes), endian)?;
                for entry in zap.entries() {
                    black_box(entry?);
                }
                Ok(())
            }))
        }),
        Work::new("zap/lookup-micro", 256, zap_lookup),
    ];
    works.extend(space());
    works.extend(cache());
    works
}

/// The blocks of a ZAP, in memory.
struct Blocks(Vec<Arc<Vec<u8>>>, Endian);

impl ZapSource for Blocks {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let known = usize::try_from(id.0)
            .ok()
            .and_then(|index| self.0.get(index));
        Ok(Arc::new(Block {
            bytes: known.map_or_else(Arc::default, Arc::clone),
            endian: self.1,
            has_ciphertext: false,
        }))
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: 5,
            object: ObjectId(9),
            level: Level(0),
            block: id,
        }
    }
}

fn zap_lookup() -> Result<Step> {
    let (endian, rest) = seed(ZAP)?;
    let (size, rest) = rest.split_first().context("no size")?;
    let blocks = rest
        .chunks(512 << (size % 6))
        .map(|chunk| Arc::new(chunk.to_vec()));
    let zap = Zap::from_source(Arc::new(Blocks(blocks.collect(), endian)))?;
    let names: Vec<Vec<u8>> = zap
        .iter()
        .map(|entry| Ok(entry?.name))
        .collect::<Result<_>>()?;
    ensure!(!names.is_empty(), "no names");
    Ok(Box::new(move |number| {
        let name = &names[number as usize % names.len()];
        black_box(zap.lookup(black_box(name))?.context("not found")?);
        Ok(())
    }))
}

/// 4,096 free segments of 8 KiB, with allocated segments of 8 KiB between them.
fn pieces() -> Result<RangeSet> {
    let mut free = RangeSet::new();
    for piece in 0..4096_u64 {
        free.add(piece << 14..(piece << 14) + 8192)?;
    }
    Ok(free)
}

/// Returns each number below 4,096 once, in pseudo-random order.
fn shuffled(number: u64) -> u64 {
    number.wrapping_mul(2_654_435_761) % 4096
}

struct Empty;

impl SpaceMapStore for Empty {
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

/// Blocks allocate their physical size, rounded up to sectors of 4 KiB.
struct Sectors;

impl BlockSizes for Sectors {
    fn asize(&self, _: VdevId, psize_bytes: u64, _: Txg) -> Option<u64> {
        psize_bytes.checked_next_multiple_of(4096)
    }
}

fn space() -> Vec<Work> {
    vec![
        Work::new("space/take", 1024, || {
            let mut free = pieces()?;
            Ok(Box::new(move |number| {
                let start = shuffled(number) << 14;
                Ok(free.remove(start..start + 4096)?)
            }))
        }),
        Work::new("space/give", 1024, || {
            let mut free = pieces()?;
            Ok(Box::new(move |number| {
                let start = (shuffled(number) << 14) + 8192;
                Ok(free.add(start..start + 4096)?)
            }))
        }),
        Work::new("space/best-fit", 1024, || {
            let free = pieces()?;
            Ok(Box::new(move |_| {
                black_box(free.best_fit(black_box(4096)).context("nothing fits")?);
                Ok(())
            }))
        }),
        Work::new("space/allocate", 1024, || {
            let geometry = VdevGeometry::new(VdevId(0), 4 << 30, Ashift(12), 29, None)?;
            let space = VdevSpace {
                geometry,
                class: AllocationClass::Normal,
                deflate_ratio: 512,
                data_disks: 1,
                is_allocating: true,
                usable_from: Txg(0),
                sizes: Arc::new(Sectors),
            };
            let forms = SpaceMapForms {
                has_two_words: true,
                has_logs: true,
            };
            let allocator = PoolAllocator::new(vec![space], Arc::new(Empty), forms)?;
            Ok(Box::new(move |_| {
                let request = AllocRequest::new(Placement::Normal, 4096, 1);
                black_box(allocator.allocate(Txg(4), &request)?);
                Ok(())
            }))
        }),
    ]
}

fn cache() -> Vec<Work> {
    let full = || {
        let cache = Cache::<u64, u64>::new(1024 * 4096);
        (0..1024).for_each(|key| drop(cache.insert(key, key, Class::Data, 4096)));
        cache
    };
    vec![
        Work::new("cache/hit", 16384, move || {
            let cache = full();
            let kept: Vec<u64> = (0..1024).filter(|key| cache.contains(key)).collect();
            ensure!(!kept.is_empty(), "nothing was kept");
            Ok(Box::new(move |number| {
                let key = kept[shuffled(number) as usize % kept.len()];
                black_box(cache.get(&key, Class::Data).context("not there")?);
                Ok(())
            }))
        }),
        Work::new("cache/put-out", 16384, move || {
            let cache = full();
            Ok(Box::new(move |number| {
                cache.insert(1024 + number, number, Class::Data, 4096);
                Ok(())
            }))
        }),
    ]
}
