//! Rewrites blocks of pools that OpenZFS made: the pointers are the same.
//!
//! `MILLPOND_GOLDEN` names the folder of the large set; without it, the tests say so and pass.
#![forbid(unsafe_code)]
#![allow(dead_code, reason = "the reader of images serves other tests too")]

#[path = "../../../vdev/tests/golden/images.rs"]
mod images;
#[path = "../../../vdev/tests/golden/pool.rs"]
mod pool;

use images::{case, disks};
use millpond_block::{
    Allocate, BlockAddress, BlockCache, BlockStore, BlockWrite, NoSpace, SpaceRequest, Topology,
    WrittenForm,
};
use millpond_device::{Device, DeviceError};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, CompressionKind, Dva, Endian, Txg};
use millpond_vdev::IndirectTables;
use std::collections::HashSet;

/// A device that accepts everything and stores nothing.
#[derive(Debug)]
struct Sink;

impl Device for Sink {
    fn size_bytes(&self) -> u64 {
        1 << 40
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Allocates the space that the block had.
struct Same(Vec<Dva>);

impl Allocate for Same {
    fn allocate(&self, _: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        assert_eq!(usize::from(request.copies), self.0.len());
        Ok(self.0.clone())
    }
    fn release(&self, _: Txg, _: &Dva) -> Result<(), String> {
        panic!("nothing fails")
    }
}

/// Counts of blocks, of blocks whose physical size is the same as in OpenZFS, and of compressed blocks.
#[derive(Debug, Default)]
struct Tally {
    blocks: u64,
    same_size: u64,
    compressed: u64,
}

fn write_again(name: &str) -> Option<Tally> {
    let pool = pool::Pool::open(disks(&case(name)?));
    let devices = (0..pool.tree.leaf_count())
        .map(|_| Some(Arc::new(Sink) as Arc<dyn Device>))
        .collect();
    let indirect = IndirectTables::default();
    let health = millpond_vdev::LeafTable::all_good(pool.tree.leaf_count());
    let store = BlockStore::new(
        Topology::new(pool.tree.clone(), devices, health, indirect),
        BlockCache::new(1 << 20),
    );
    let mut tally = Tally::default();
    let mut seen: HashSet<BlockPointer> = HashSet::new();
    for (_, old) in &pool.blocks {
        let is_simple = !old.has_crypt_bit()
            && !old.is_dedup()
            && !old.is_gang()
            && !old.is_rewritten()
            && old.endian() == Endian::Little
            && old.birth() == old.physical_birth();
        let kind = old.checksum_kind().unwrap();
        if !is_simple || kind.is_salted() || kind.is_embedded() || !seen.insert(*old) {
            continue;
        }
        let content = pool.content(old).unwrap();
        // If the block is uncompressed, the function that OpenZFS tried is unknown.
        let compression = old.compression().unwrap();
        let job = BlockWrite {
            level: old.level(),
            checksum: kind,
            compression,
            copies: old.dvas().count() as u8,
            fill: old.fill(),
            may_embed: false,
            ..BlockWrite::new(
                BlockAddress::default(),
                old.object_type(),
                Arc::new(content),
            )
        };
        let space = Same(old.dvas().collect());
        let written = store.write(old.birth(), &space, vec![job.clone()]);
        let written = written.into_iter().next().unwrap().unwrap();
        let new = written.pointer;
        assert_eq!(written.form, WrittenForm::Contiguous, "{old:?}");
        tally.blocks += 1;
        if compression == CompressionKind::Off {
            assert_eq!(new, *old, "{old:?}");
            tally.same_size += 1;
            continue;
        }
        tally.compressed += 1;
        // Another encoder produces other bytes; everything else is the same.
        tally.same_size += u64::from(new.psize_bytes() == old.psize_bytes());
        if new.compression() != old.compression() {
            continue;
        }
        let but_size = |pointer: &BlockPointer| {
            let mut words = pointer.words;
            words[6] &= !(0xffff << 16);
            words[12..].fill(0);
            words
        };
        assert_eq!(but_size(&new), but_size(old), "{old:?}");
    }
    assert!(tally.blocks > 50, "{name}: {tally:?}");
    println!("{name}: {tally:?}");
    Some(tally)
}

fn check(name: &str) {
    if let Some(tally) = write_again(name) {
        assert!(
            tally.same_size * 10 >= tally.blocks * 9,
            "{name}: {tally:?}"
        );
    }
}

#[test]
fn blocks_of_one_disk_have_the_recorded_pointers() {
    check("single");
}

#[test]
fn blocks_of_raidz_have_the_recorded_pointers() {
    check("raidz2-5");
}

#[test]
fn every_compression_function_yields_the_recorded_pointers() {
    check("compress");
}

#[test]
fn every_checksum_function_yields_the_recorded_pointers() {
    check("checksum");
}
