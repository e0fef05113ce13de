//! Reads the blocks of a single-disk pool, changes them and writes them with new checksums.

use super::overlay::Overlay;
use anyhow::{Context, Result, ensure};
use millpond_checksum::{Form, GangVerifier, checksum, seal_gang_header, seal_label};
use millpond_device::Candidate;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Endian, LABEL_BYTES, LABEL_COUNT, Level,
    ObjectType, UBERBLOCK_RING_BYTES, UBERBLOCK_RING_OFFSET_BYTES, Uberblock, UberblockRing,
};
use millpond_pool::import::{find_pools, scan_devices};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// A block that a pointer refers to.
#[derive(Debug, Clone)]
pub struct Block {
    /// The block that contains the pointer, and the pointer's first byte in it; `None` for the uberblock.
    pub parent: Option<(usize, usize)>,
    /// The original pointer.
    pub pointer: BlockPointer,
    /// The decompressed content.
    pub content: Vec<u8>,
}

/// A single-disk pool with its unencrypted blocks.
#[derive(Debug, Clone)]
pub struct PoolImage {
    base: Arc<Vec<u8>>,
    /// Parents before children.
    pub blocks: Vec<Block>,
    /// Each uberblock slot that gets a new checksum: its first byte.
    slots: Vec<(u64, usize)>,
    /// Uberblock slots with older states.
    other_slots: Vec<(u64, usize)>,
    root_endian: Endian,
}

/// A pool with some of its blocks changed.
#[derive(Debug, Clone)]
pub struct Changed<'a> {
    image: &'a PoolImage,
    contents: BTreeMap<usize, Vec<u8>>,
    /// The positions of changed blocks and new pieces: bytes from the start of the vdev's space.
    places: BTreeMap<usize, u64>,
    extra: Vec<(u64, Vec<u8>)>,
    next_free: u64,
}

impl PoolImage {
    /// Loads an unpacked image of a pool that is on this single whole disk.
    ///
    /// # Errors
    /// If the image cannot be read or does not contain such a pool.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let base = Arc::new(bytes);
        let found = scan_devices(vec![candidate(Overlay::new(Arc::clone(&base)))]);
        let pools = find_pools(&found, 0);
        let pool = pools.first().context("no pool in the image")?;
        let uberblock = pool.newest().context("no uberblock")?.uberblock;
        let ashift = pool
            .config
            .list("vdev_tree")
            .ok()
            .and_then(|tree| {
                tree.list_array("children")
                    .ok()?
                    .first()?
                    .u64("ashift")
                    .ok()
            })
            .context("no ashift")?;
        let ring = UberblockRing::new(millpond_ondisk::Ashift(u8::try_from(ashift)?));
        let mut image = Self {
            base,
            blocks: Vec::new(),
            slots: Vec::new(),
            other_slots: Vec::new(),
            root_endian: Endian::Little,
        };
        image.find_slots(ring, &uberblock)?;
        image.visit(uberblock.root, None, &mut HashSet::new());
        ensure!(image.blocks.len() > 10, "the pool's blocks are not found");
        Ok(image)
    }

    fn find_slots(&mut self, ring: UberblockRing, wanted: &Uberblock) -> Result<()> {
        let size = self.base.len() as u64 / LABEL_BYTES * LABEL_BYTES;
        for label in 0..LABEL_COUNT as u64 {
            let start = match label {
                0 | 1 => label * LABEL_BYTES,
                _ => size - (4 - label) * LABEL_BYTES,
            } + UBERBLOCK_RING_OFFSET_BYTES;
            for at in (0..UBERBLOCK_RING_BYTES).step_by(ring.slot_bytes()) {
                let offset = start + at as u64;
                let slot = &self.base[offset as usize..][..ring.slot_bytes()];
                match Uberblock::decode(slot) {
                    Ok(found) if found.txg == wanted.txg && found.root == wanted.root => {
                        self.slots.push((offset, ring.slot_bytes()));
                        self.root_endian = if slot[..8] == Uberblock::MAGIC.to_le_bytes() {
                            Endian::Little
                        } else {
                            Endian::Big
                        };
                    }
                    Ok(_) => self.other_slots.push((offset, ring.slot_bytes())),
                    Err(_) => {}
                }
            }
        }
        ensure!(!self.slots.is_empty(), "no slot holds the uberblock");
        Ok(())
    }

    fn visit(
        &mut self,
        pointer: BlockPointer,
        parent: Option<(usize, usize)>,
        seen: &mut HashSet<u64>,
    ) {
        let Some(dva) = pointer.dvas().next() else {
            return;
        };
        let is_ciphertext = pointer.is_encrypted() && pointer.level() == Level(0);
        let is_special = pointer.is_embedded() || pointer.is_hole() || pointer.is_gang();
        let is_plain = dva.vdev.0 == 0 && !is_special && !is_ciphertext;
        if !is_plain || self.blocks.len() >= BLOCKS_MAX || !seen.insert(dva.offset_bytes) {
            return;
        }
        let from = (FRONT_BYTES + dva.offset_bytes) as usize;
        let Some(stored) = self.base.get(from..from + pointer.psize_bytes() as usize) else {
            return;
        };
        let kind = pointer.compression().unwrap_or(CompressionKind::Off);
        let mut content = vec![0; pointer.lsize_bytes() as usize];
        if millpond_compress::decompress(kind, stored, &mut content).is_err() {
            return;
        }
        let number = self.blocks.len();
        let children = pointers_in(&pointer, &content);
        self.blocks.push(Block {
            parent,
            pointer,
            content,
        });
        for (at, child) in children {
            self.visit(child, Some((number, at)), seen);
        }
    }

    fn endian_of(&self, number: usize) -> Endian {
        self.blocks[number].pointer.endian()
    }

    /// The block that a pointer refers to, if it was loaded.
    pub fn block_of(&self, pointer: &BlockPointer) -> Option<usize> {
        let place = pointer.dvas().next()?.offset_bytes;
        self.blocks.iter().position(|block| {
            let dva = block.pointer.dvas().next();
            dva.is_some_and(|dva| dva.offset_bytes == place)
        })
    }

    /// Starts a set of changes.
    pub fn change(&self) -> Changed<'_> {
        Changed {
            image: self,
            contents: BTreeMap::new(),
            places: BTreeMap::new(),
            extra: Vec::new(),
            // Small pools use the front of their disk. If new data overwrites a block anyway, this is one
            // more hostile change.
            next_free: (self.base.len() as u64 * 3 / 5) & !0xffff,
        }
    }

    /// The blocks of one type and level.
    pub fn of_type(&self, object_type: ObjectType, level: u8) -> Vec<usize> {
        (0..self.blocks.len())
            .filter(|number| {
                let pointer = &self.blocks[*number].pointer;
                pointer.object_type() == object_type && pointer.level() == Level(level)
            })
            .collect()
    }

    /// The position of a MOS object's dnode: block and first byte.
    pub fn mos_dnode(&self, object: u64) -> Option<(usize, usize)> {
        self.dnode_below(0, object)
    }

    /// The position of an object's dnode in the object set with the block `set`.
    pub fn dnode_below(&self, set: usize, object: u64) -> Option<(usize, usize)> {
        let mut first = 0;
        for (number, block) in self.blocks.iter().enumerate() {
            let is_dnodes = block.pointer.object_type() == ObjectType::DNODE
                && block.pointer.level() == Level(0);
            if !is_dnodes || self.set_of(number) != Some(set) {
                continue;
            }
            // Assumes that the dnode blocks have no holes, which is true for small object sets.
            let slots = (block.content.len() / 512) as u64;
            if (first..first + slots).contains(&object) {
                return Some((number, (object - first) as usize * 512));
            }
            first += slots;
        }
        None
    }

    /// The object set block above a block; 0 for blocks of the MOS.
    pub fn set_of(&self, mut number: usize) -> Option<usize> {
        loop {
            let block = self.blocks.get(number)?;
            if block.pointer.object_type() == ObjectType::OBJECT_SET {
                return Some(number);
            }
            number = block.parent?.0;
        }
    }
}

/// Every pointer in a block, with its first byte.
pub fn pointers_in(pointer: &BlockPointer, content: &[u8]) -> Vec<(usize, BlockPointer)> {
    let endian = pointer.endian();
    let mut places = Vec::new();
    if pointer.level() > Level(0) {
        places.extend((0..content.len() / 128).map(|index| index * 128));
    } else if pointer.object_type() == ObjectType::DNODE {
        let mut at = 0;
        while at + 512 <= content.len() {
            dnode_pointers(content, at, &mut places);
            at += 512 * slots(content, at);
        }
    } else if pointer.object_type() == ObjectType::OBJECT_SET {
        for at in [0, 1024, 1536, 2048] {
            dnode_pointers(content, at, &mut places);
        }
    }
    places
        .into_iter()
        .filter_map(|at| {
            let bytes = content.get(at..at + 128)?;
            Some((at, BlockPointer::decode(bytes, endian).ok()?))
        })
        .collect()
}

fn slots(content: &[u8], at: usize) -> usize {
    match content[at] {
        0 => 1,
        _ => usize::from(content[at + 12]) + 1,
    }
}

fn dnode_pointers(content: &[u8], at: usize, places: &mut Vec<usize>) {
    let Some(dnode) = content.get(at..at + 512) else {
        return;
    };
    if dnode[0] == 0 {
        return;
    }
    let count = usize::from(dnode[3]).min(3);
    places.extend((0..count).map(|index| at + 64 + 128 * index));
    if ObjectType(dnode[4]) == ObjectType::DSL_DATASET {
        places.push(at + 64 + 128 * count + DATASET_POINTER_AT);
    }
    if dnode[7] & HAS_SPILL != 0 {
        places.push(at + 512 * slots(content, at) - 128);
    }
}

impl Changed<'_> {
    /// The original pool.
    pub fn image(&self) -> &PoolImage {
        self.image
    }
    /// A block's current content.
    pub fn content(&self, number: usize) -> &[u8] {
        self.contents
            .get(&number)
            .unwrap_or(&self.image.blocks[number].content)
    }
    /// A block's content for changes. The block gets a new checksum.
    pub fn content_mut(&mut self, number: usize) -> &mut Vec<u8> {
        let original = &self.image.blocks[number].content;
        self.contents
            .entry(number)
            .or_insert_with(|| original.clone())
    }
    /// Writes a number in the block's byte order, if it is within the block.
    pub fn put_u64(&mut self, number: usize, at: usize, value: u64) {
        let endian = self.image.blocks[number].pointer.endian();
        if let Some(place) = self.content_mut(number).get_mut(at..at + 8) {
            place.copy_from_slice(&in_order(value, endian));
        }
    }
    /// Writes a pointer in the block's byte order, if it is within the block.
    pub fn put_pointer(&mut self, number: usize, at: usize, pointer: &BlockPointer) {
        for (index, word) in pointer.words.into_iter().enumerate() {
            self.put_u64(number, at + 8 * index, word);
        }
    }
    /// Reserves unused space of at most `length` bytes.
    pub fn reserve(&mut self, length: usize) -> u64 {
        let place = self.next_free;
        self.next_free += (length as u64).next_multiple_of(4096);
        place
    }
    /// The position that a block gets when it is written.
    pub fn place_of(&mut self, number: usize) -> u64 {
        if let Some(place) = self.places.get(&number) {
            return *place;
        }
        let length = self.image.blocks[number].content.len();
        let place = self.reserve(length);
        self.places.insert(number, place);
        place
    }
    /// A pointer to the final position of a block, with its checksum disabled.
    pub fn unverified_pointer(&mut self, number: usize) -> BlockPointer {
        let place = self.place_of(number);
        self.content_mut(number);
        plain_pointer(&self.image.blocks[number].pointer, place, None)
    }
    /// Writes new bytes to free space and returns their position.
    pub fn add(&mut self, bytes: Vec<u8>) -> u64 {
        let place = self.reserve(bytes.len());
        self.extra.push((place, bytes));
        place
    }
    /// Writes a gang header with these children at `place`, valid for pointers with birth txg `birth`.
    pub fn add_gang_header(&mut self, place: u64, birth: u64, children: &[BlockPointer]) {
        let mut bytes = vec![0; 512];
        for (slot, child) in bytes.chunks_exact_mut(128).zip(children) {
            slot.copy_from_slice(&child.encode());
        }
        let pointer = gang_pointer(&BlockPointer::default(), place, birth);
        if let Some(verifier) = GangVerifier::of(&pointer) {
            // A header of 512 bytes is always large enough.
            let _ = seal_gang_header(&mut bytes, verifier, Form::Full);
        }
        self.extra.push((place, bytes));
    }

    /// Writes every changed block and all blocks above it with new checksums.
    pub fn seal(mut self) -> Overlay {
        let mut overlay = Overlay::new(Arc::clone(&self.image.base));
        // Children have higher numbers than their parents.
        while let Some(number) = self.contents.keys().next_back().copied() {
            let place = self.place_of(number);
            let Some(content) = self.contents.remove(&number) else {
                break;
            };
            let block = &self.image.blocks[number];
            let pointer = plain_pointer(&block.pointer, place, Some(&content));
            overlay.put(FRONT_BYTES + place, content);
            match block.parent {
                Some((parent, at)) => self.put_pointer(parent, at, &pointer),
                None => self.seal_uberblocks(&pointer, &mut overlay),
            }
        }
        for (place, bytes) in self.extra {
            overlay.put(FRONT_BYTES + place, bytes);
        }
        overlay
    }

    /// Writes every changed block and all blocks above it to their old positions.
    ///
    /// The original compression is used. Nothing else in the pool changes.
    ///
    /// # Errors
    /// If a changed block no longer fits its old position.
    pub fn seal_in_place(mut self) -> Result<Overlay> {
        let mut overlay = Overlay::new(Arc::clone(&self.image.base));
        // Children have higher numbers than their parents.
        while let Some((number, content)) = self.contents.pop_last() {
            let block = &self.image.blocks[number];
            let psize = block.pointer.psize_bytes() as usize;
            let mut stored = match block.pointer.compression() {
                None | Some(CompressionKind::Off) => content,
                Some(kind) => {
                    let level = millpond_compress::ZstdLevel::DEFAULT;
                    millpond_compress::compress(kind, level, &content, psize)
                        .with_context(|| format!("block {number} does not fit any more"))?
                }
            };
            ensure!(
                stored.len() <= psize,
                "block {number} does not fit any more"
            );
            stored.resize(psize, 0);
            let kind = block.pointer.checksum_kind().context("no checksum")?;
            let words = checksum(kind, &stored, block.pointer.endian(), None)?;
            let mut pointer = block.pointer;
            if let Some((parent, at)) = block.parent {
                // Other words of the pointer may have been changed too.
                let bytes = &self.content(parent)[at..at + 128];
                pointer = BlockPointer::decode(bytes, self.image.endian_of(parent))?;
            }
            pointer.words[12..].copy_from_slice(&words);
            for dva in block.pointer.dvas() {
                overlay.put(FRONT_BYTES + dva.offset_bytes, stored.clone());
            }
            match block.parent {
                Some((parent, at)) => self.put_pointer(parent, at, &pointer),
                None => self.seal_uberblocks(&pointer, &mut overlay),
            }
        }
        Ok(overlay)
    }

    fn seal_uberblocks(&self, root: &BlockPointer, overlay: &mut Overlay) {
        let image = self.image;
        for (offset, length) in &image.slots {
            let mut slot = image.base[*offset as usize..][..*length].to_vec();
            for (place, word) in slot[UBERBLOCK_ROOT_AT..]
                .chunks_exact_mut(8)
                .zip(root.words)
            {
                place.copy_from_slice(&in_order(word, image.root_endian));
            }
            if seal_label(&mut slot, *offset).is_ok() {
                overlay.put(*offset, slot);
            }
        }
        for (offset, length) in &image.other_slots {
            overlay.put(*offset, vec![0; *length]);
        }
    }
}

/// The properties of `pointer` for an uncompressed copy at `place`.
///
/// Without content, the checksum is disabled.
fn plain_pointer(pointer: &BlockPointer, place: u64, content: Option<&[u8]>) -> BlockPointer {
    let mut new = *pointer;
    let sectors = pointer.lsize_bytes() / 512;
    new.words[0] = sectors;
    new.words[1] = place / 512;
    new.words[2..6].fill(0);
    // Level, type and byte order are kept; the copy is not embedded, encrypted or deduplicated.
    let kind: u64 = match content {
        Some(_) => FLETCHER4,
        None => CHECKSUM_OFF,
    };
    let kept = pointer.words[6] & !((0x7f << 32) | (1 << 39) | (0xff << 40) | (3 << 61));
    new.words[6] =
        (kept & !0xffff_0000) | ((sectors - 1) << 16) | (COMPRESSION_OFF << 32) | (kind << 40);
    let words = content
        .and_then(|bytes| checksum(ChecksumKind::Fletcher4, bytes, pointer.endian(), None).ok());
    new.words[12..].copy_from_slice(&words.unwrap_or_default());
    new
}

/// The properties of `pointer` for a gang header at `place`, in all three DVAs.
pub fn gang_pointer(pointer: &BlockPointer, place: u64, birth: u64) -> BlockPointer {
    let mut new = *pointer;
    for index in 0..3 {
        new.words[2 * index] = 8;
        new.words[2 * index + 1] = (place / 512) | (1 << 63);
    }
    new.words[6] &= !(1 << 39);
    new.words[9] = 0;
    new.words[10] = birth;
    new
}

/// The overlay as a device found by a search.
pub fn candidate(overlay: Overlay) -> Candidate {
    Candidate {
        path: "/hostile/d0.img".into(),
        aliases: Vec::new(),
        partition: None,
        device: Arc::new(overlay),
        is_live: false,
    }
}

fn in_order(value: u64, endian: Endian) -> [u8; 8] {
    match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

/// Offsets in pointers start after two labels and the boot area.
pub const FRONT_BYTES: u64 = 4 << 20;
const UBERBLOCK_ROOT_AT: usize = 40;
/// The pointer to the object set in the bonus of a dataset.
const DATASET_POINTER_AT: usize = 128;
const HAS_SPILL: u8 = 4;
const FLETCHER4: u64 = 7;
const CHECKSUM_OFF: u64 = 2;
const COMPRESSION_OFF: u64 = 2;
const BLOCKS_MAX: usize = 20_000;
