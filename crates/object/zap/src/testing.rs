//! A ZAP's blocks in memory, and a writer that produces them. Separate from the crate's own writer, so that a
//! mistake shared by reader and writer is found (`tests.rs` also has bytes of real pools).

use crate::{Normalisation, Zap, ZapError, ZapSource};
use millpond_env::sync::Arc;
use millpond_object::{Block, BlockAddress, BlockError, ObjectError};
use millpond_ondisk::zap::{
    LeafInsertError, MicroZapEntry, ZapFlags, ZapHashing, ZapHeader, ZapKey, ZapLeafBuilder,
    ZapValue, encode_micro_zap,
};
use millpond_ondisk::{BlockId, Endian, Level, ObjectId};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks in memory. Absent blocks read as zeros; blocks in `unreadable` return an error.
#[derive(Default, Clone)]
pub(crate) struct MemoryBlocks {
    pub(crate) block_bytes: usize,
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
    pub(crate) unreadable: Vec<u64>,
    /// The byte order of the blocks in `foreign`. All others are little-endian.
    pub(crate) endian: Endian,
    pub(crate) foreign: BTreeSet<u64>,
}

impl ZapSource for MemoryBlocks {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        if self.unreadable.contains(&id.0) {
            let address = self.address(id);
            let copies = Vec::new();
            return Err(BlockError::Corrupt { address, copies }.into());
        }
        let zeros = || vec![0; self.block_bytes];
        Ok(Arc::new(Block {
            bytes: Arc::new(self.blocks.get(&id.0).cloned().unwrap_or_else(zeros)),
            endian: if self.foreign.contains(&id.0) {
                self.endian
            } else {
                Endian::Little
            },
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

impl MemoryBlocks {
    pub(crate) fn open(&self) -> Result<Zap, ZapError> {
        Zap::from_source(Arc::new(self.clone()))
    }
    pub(crate) fn put_u64(&mut self, block: u64, offset: usize, value: u64) {
        self.blocks.get_mut(&block).unwrap()[offset..offset + 8]
            .copy_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn header(&self) -> ZapHeader {
        ZapHeader::decode(
            &self.blocks[&0],
            self.read_block(BlockId(0)).unwrap().endian,
        )
        .unwrap()
    }
    /// The same blocks as a big-endian writer would store them.
    pub(crate) fn swapped(mut self) -> Self {
        let leaf = 0x8000_0000_0000_0000u64.to_le_bytes();
        for bytes in self.blocks.values_mut() {
            if bytes[..8] == leaf {
                swap_leaf(bytes);
            } else {
                bytes.chunks_exact_mut(8).for_each(<[u8]>::reverse);
            }
        }
        self.endian = Endian::Big;
        self.foreign = self.blocks.keys().copied().collect();
        self
    }
}

fn swap_leaf(bytes: &mut [u8]) {
    let size = bytes.len();
    let mut fields = vec![(0, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)];
    fields.extend((0..size / 32).map(|bucket| (48 + 2 * bucket, 2)));
    for at in (48 + size / 16..size).step_by(24) {
        if bytes[at] == 252 {
            fields.extend([2, 4, 6, 8, 10].map(|offset| (at + offset, 2)));
            fields.extend([(at + 12, 4), (at + 16, 8)]);
        } else {
            fields.push((at + 22, 2));
        }
    }
    for (at, length) in fields {
        bytes[at..at + length].reverse();
    }
}

pub(crate) fn micro(salt: u64, normflags: u64, names: &[(&[u8], u64)]) -> MemoryBlocks {
    let hashing = ZapHashing::plain(salt);
    let normalisation = Normalisation::from_normflags(normflags).unwrap();
    let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
    let entries: Vec<MicroZapEntry<'_>> = names
        .iter()
        .map(|&(name, value)| {
            let cd = seen
                .entry(hashing.name(&normalisation.apply(name).unwrap()))
                .or_default();
            let entry = MicroZapEntry {
                value,
                cd: *cd,
                name,
            };
            *cd += 1;
            entry
        })
        .collect();
    let size = (entries.len() * 64 + 64).next_multiple_of(512);
    let block = encode_micro_zap(size, salt, normflags, &entries).unwrap();
    MemoryBlocks {
        block_bytes: size,
        blocks: BTreeMap::from([(0, block)]),
        ..MemoryBlocks::default()
    }
}

/// A key of either kind, owned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Name(Vec<u8>),
    Words(Vec<u64>),
}

/// Writes a fat ZAP with as few leaves as the entries allow.
pub(crate) struct FatWriter {
    pub(crate) block_shift: u32,
    pub(crate) salt: u64,
    pub(crate) normflags: u64,
    pub(crate) flags: ZapFlags,
}

type Placed<'a> = (u64, u32, &'a Key, &'a ZapValue);

impl FatWriter {
    pub(crate) fn plain(block_shift: u32) -> Self {
        Self {
            block_shift,
            salt: 0x1234_5679,
            normflags: 0,
            flags: ZapFlags::empty(),
        }
    }

    pub(crate) fn write(&self, entries: &[(Key, ZapValue)]) -> MemoryBlocks {
        let mut header =
            ZapHeader::new(self.block_shift, self.salt, self.normflags, self.flags).unwrap();
        let hashing = header.hashing();
        let normalisation = Normalisation::from_normflags(self.normflags).unwrap();
        let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
        let placed: Vec<Placed<'_>> = entries
            .iter()
            .map(|(key, value)| {
                let hash = match key {
                    Key::Name(name) => hashing.name(&normalisation.apply(name).unwrap()),
                    Key::Words(words) => hashing.words(words),
                };
                let cd = seen.entry(hash).or_default();
                *cd += 1;
                (hash, *cd - 1, key, value)
            })
            .collect();

        let mut leaves = Vec::new();
        self.split(0, 0, &placed, &mut leaves);
        let longest = leaves.iter().map(|(_, bits, _)| *bits).max().unwrap();
        header.table_shift = header.table_shift.max(longest);
        let is_external = longest > self.block_shift - 4;
        let mut table = vec![0u64; 1 << header.table_shift];
        let mut blocks = BTreeMap::new();
        let mut next_block = 1;
        for (prefix, bits, leaf) in leaves {
            let span = 1usize << (header.table_shift - bits);
            table[prefix as usize * span..][..span].fill(next_block);
            blocks.insert(next_block, leaf);
            next_block += 1;
        }
        header.leaf_count = next_block - 1;
        header.entry_count = entries.len() as u64;
        let mut embedded = table.clone();
        if is_external {
            let words = 1usize << (self.block_shift - 3);
            header.table_block = next_block;
            header.table_blocks = (table.len() / words) as u64;
            for part in table.chunks(words) {
                let bytes = part.iter().flat_map(|word| word.to_le_bytes()).collect();
                blocks.insert(next_block, bytes);
                next_block += 1;
            }
            embedded = vec![0xdead_beef; words / 2];
        }
        header.free_block = next_block;
        blocks.insert(0, header.encode(&embedded).unwrap());
        MemoryBlocks {
            block_bytes: 1 << self.block_shift,
            blocks,
            ..MemoryBlocks::default()
        }
    }

    fn split(
        &self,
        prefix: u64,
        bits: u32,
        entries: &[Placed<'_>],
        leaves: &mut Vec<(u64, u32, Vec<u8>)>,
    ) {
        let mut leaf =
            ZapLeafBuilder::new(self.block_shift, prefix, bits, self.normflags != 0).unwrap();
        let outcome = entries.iter().try_for_each(|(hash, cd, key, value)| {
            let key = match key {
                Key::Name(name) => ZapKey::Name(name),
                Key::Words(words) => ZapKey::Words(words),
            };
            leaf.insert(*hash, *cd, key, value)
        });
        match outcome {
            Ok(()) => leaves.push((prefix, bits, leaf.finish())),
            Err(LeafInsertError::Full) => {
                for side in 0..2 {
                    let part: Vec<Placed<'_>> = entries
                        .iter()
                        .filter(|(hash, ..)| (hash >> (63 - bits)) & 1 == side)
                        .copied()
                        .collect();
                    self.split(prefix * 2 + side, bits + 1, &part, leaves);
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}
