//! Blocks of ZAPs.

use crate::ordered;
use millpond_object::{Block, BlockAddress, ObjectError};
use millpond_ondisk::zap::{MicroZap, ZapHeader, ZapLeaf};
use millpond_ondisk::{BlockId, Endian, Level, ObjectId};
use millpond_zap::{NameMatch, Normalisation, Zap, ZapSource};
use std::sync::Arc;

pub fn header(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(header) = ZapHeader::decode(rest, endian) else {
        return;
    };
    let hashing = header.hashing();
    let _ = (hashing.name(b"name"), hashing.cd_limit());
    let _ = header.table_location(u64::MAX);
}

pub fn leaf(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(leaf) = ZapLeaf::decode(rest, endian) else {
        return;
    };
    let _ = (leaf.first_hash(), leaf.next_hash(), leaf.count_free());
    let mut count = 0_usize;
    for entry in leaf.entries() {
        count += 1;
        // Valid entries of other buckets, then a chain that loops up to its own limit.
        assert!(
            count <= usize::from(leaf.chunk_count()) * 2 + 1,
            "entries without end"
        );
        let Ok(entry) = entry else { break };
        let _ = (leaf.name(&entry), leaf.words(&entry), leaf.value(&entry));
    }
}

pub fn micro(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Ok(zap) = MicroZap::decode(rest, endian) else {
        return;
    };
    assert!(zap.entries().count() <= zap.slots());
    let _ = zap.entry(usize::MAX);
}

/// A whole ZAP: a byte for the byte order, one for the block size, then the blocks.
pub fn zap(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let Some((size, rest)) = rest.split_first() else {
        return;
    };
    let block_bytes = 512 << (size % 6);
    let blocks: Vec<Vec<u8>> = rest
        .chunks(block_bytes)
        .map(|chunk| {
            let mut block = chunk.to_vec();
            block.resize(block_bytes, 0);
            block
        })
        .collect();
    let source = MemoryBlocks {
        block_bytes,
        blocks,
        endian,
    };
    let Ok(zap) = Zap::from_source(Arc::new(source)) else {
        return;
    };
    let _ = (zap.form(), zap.entry_count(), zap.normalisation());
    let mut names = Vec::new();
    let mut cursor = zap.iter();
    let mut count = 0_usize;
    while let Some(entry) = cursor.next() {
        count += 1;
        // Every slot of every block, and the errors after which a listing ends.
        assert!(count <= rest.len() + 2048, "entries without end");
        if let Ok(entry) = entry
            && names.len() < 16
        {
            let _ = (entry.value.first(), entry.value.integers().count());
            names.push((entry.name, cursor.cookie()));
        }
    }
    for (name, cookie) in &names {
        for name_match in [
            NameMatch::Exact,
            NameMatch::Normalised,
            NameMatch::NormalisedKeepingCase,
        ] {
            let _ = zap.lookup_entry(name, name_match);
        }
        let _ = zap.lookup(name);
        let _ = zap.iter_from(*cookie).take(64).count();
    }
    let _ = (zap.lookup_number(7), zap.lookup_words(&[1, 2, 3]));
    let _ = zap.iter_from(u64::MAX - 1).take(64).count();
    let _ = zap.check();
}

/// A byte of flags, then a name.
pub fn normalisation(data: &[u8]) {
    let Some((flags, name)) = data.split_first() else {
        return;
    };
    let Some(normalisation) = Normalisation::from_normflags(u64::from(*flags)) else {
        return;
    };
    if let Some(once) = normalisation.apply(name) {
        // One character expands to at most 18 characters of at most 4 bytes each.
        assert!(once.len() <= name.len() * 72 + 4);
        let _ = normalisation.apply(&once);
    }
    let _ = normalisation.keeping_case().apply(name);
}

struct MemoryBlocks {
    block_bytes: usize,
    blocks: Vec<Vec<u8>>,
    endian: Endian,
}

impl ZapSource for MemoryBlocks {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let known = usize::try_from(id.0)
            .ok()
            .and_then(|index| self.blocks.get(index));
        Ok(Arc::new(Block {
            bytes: Arc::new(known.cloned().unwrap_or_else(|| vec![0; self.block_bytes])),
            endian: self.endian,
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
