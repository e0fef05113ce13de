//! The minimal reader for these tests: one disk, no parity, no checksums (the images are known to be good).
//! It shares no code with the layers above, so it tests this crate independently of them.

use millpond_compress::decompress;
use millpond_ondisk::zap::{MicroZap, ZapForm, ZapLeaf};
use millpond_ondisk::{
    Ashift, BlockPointer, CryptKey, CryptKeyValue, Dnode, Endian, Level, ObjectId, ObjectSetPhys,
    ObjectType, Uberblock, UberblockRing, VDEV_DATA_START_BYTES,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Returns the folder of a case, in the repository or in the large set.
pub fn case_folder(case: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let large = std::env::var_os("MILLPOND_GOLDEN").map(PathBuf::from);
    let large = large.unwrap_or_else(|| root.join("../shared/golden"));
    [root.join("testdata/golden"), large]
        .into_iter()
        .map(|set| set.join(case))
        .find(|folder| folder.join("d0.img.zst").exists())
}

/// A pool of one disk.
pub struct GoldenPool {
    image: File,
    meta: BTreeMap<ObjectId, Dnode>,
}

impl GoldenPool {
    pub fn open(image: &Path) -> Self {
        let mut pool = Self {
            image: decompress_image(image),
            meta: BTreeMap::new(),
        };
        let mut ring = vec![0; 128 << 10];
        pool.image.read_exact_at(&mut ring, 128 << 10).unwrap();
        let root = [9, 12, 13]
            .into_iter()
            .flat_map(|ashift| UberblockRing::new(Ashift(ashift)).slots(&ring))
            .filter_map(|(_, slot)| Uberblock::decode(slot).ok())
            .max_by_key(Uberblock::rank)
            .unwrap()
            .root;
        let set = ObjectSetPhys::decode(&pool.read_plain(&root), root.endian()).unwrap();
        let mut meta = BTreeMap::new();
        pool.object(&set.meta_dnode, &mut |block_id, block, endian| {
            for (slot, dnode) in numbered_dnodes(block, endian) {
                meta.insert(ObjectId(block_id * 32 + slot), dnode);
            }
        });
        pool.meta = meta;
        pool
    }

    /// The pool's own objects.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, &Dnode)> {
        self.meta.iter().map(|(number, dnode)| (*number, dnode))
    }

    /// Returns all stored bytes of a block's first copy.
    pub fn read_stored(&self, bp: &BlockPointer) -> Vec<u8> {
        let dva = bp.dvas().next().unwrap();
        assert!(!dva.is_gang && dva.vdev.0 == 0);
        let mut stored = vec![0; usize::try_from(bp.psize_bytes()).unwrap()];
        let offset = VDEV_DATA_START_BYTES + dva.offset_bytes;
        self.image.read_exact_at(&mut stored, offset).unwrap();
        stored
    }

    fn read_plain(&self, bp: &BlockPointer) -> Vec<u8> {
        let stored = match bp.embedded_payload() {
            Some(payload) => payload.as_bytes().to_vec(),
            None => self.read_stored(bp),
        };
        let mut contents = vec![0; usize::try_from(bp.lsize_bytes()).unwrap()];
        decompress(bp.compression().unwrap(), &stored, &mut contents).unwrap();
        contents
    }

    /// Calls `each` with block id and content of every data block of an unencrypted object.
    fn object(&self, dnode: &Dnode, each: &mut dyn FnMut(u64, &[u8], Endian)) {
        let fan_out = 1u64 << dnode.pointers_shift();
        let top = u32::from(dnode.levels) - 1;
        let mut work: Vec<(u64, BlockPointer)> = (0..).zip(dnode.block_pointers.clone()).collect();
        assert!(u32::from(dnode.levels) == top + 1);
        while let Some((number, bp)) = work.pop() {
            if bp.is_hole() {
                continue;
            }
            let contents = self.read_plain(&bp);
            if bp.level() == Level(0) {
                each(number, &contents, bp.endian());
            } else {
                let below = pointers(&contents, bp.endian());
                work.extend((number * fan_out..).zip(below));
            }
        }
    }

    fn zap(&self, dnode: &Dnode) -> BTreeMap<String, CryptKeyValue> {
        let mut entries = BTreeMap::new();
        self.object(dnode, &mut |number, block, endian| {
            if number == 0 && ZapForm::of_first_block(block, endian) == Ok(ZapForm::Micro) {
                for entry in MicroZap::decode(block, endian).unwrap().entries() {
                    let (_, entry) = entry.unwrap();
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    entries.insert(name, CryptKeyValue::Number(entry.value));
                }
            }
            // Pointer table blocks are not leaves. The order of blocks does not matter here.
            let Ok(leaf) = ZapLeaf::decode(block, endian) else {
                return;
            };
            for entry in leaf.entries() {
                let entry = entry.unwrap();
                let name = String::from_utf8(leaf.name(&entry).unwrap()).unwrap();
                let name = name.trim_end_matches('\0').to_owned();
                let value = leaf.value(&entry).unwrap();
                let value = match value.integer_bytes {
                    1 => CryptKeyValue::Bytes(value.bytes),
                    _ => CryptKeyValue::Number(value.first().unwrap()),
                };
                entries.insert(name, value);
            }
        });
        entries
    }

    /// Returns every key object.
    pub fn crypt_keys(&self) -> BTreeMap<ObjectId, CryptKey> {
        let objects = self.key_objects_of_directories();
        objects
            .into_values()
            .map(|number| {
                let entries = self.zap(&self.meta[&number]);
                let key = CryptKey::decode(|name| entries.get(name).cloned()).unwrap();
                (number, key)
            })
            .collect()
    }

    /// Returns the key object of each DSL directory that has one.
    pub fn key_objects_of_directories(&self) -> BTreeMap<ObjectId, ObjectId> {
        let zapified = self.objects().filter(|(_, dnode)| {
            dnode.bonus_type == ObjectType::DSL_DIRECTORY
                && dnode.object_type == ObjectType::METADATA_ZAP
        });
        zapified
            .filter_map(
                |(number, dnode)| match self.zap(dnode).get("com.datto:crypto_key_obj") {
                    Some(CryptKeyValue::Number(object)) => Some((number, ObjectId(*object))),
                    _ => None,
                },
            )
            .collect()
    }
}

/// The pointers in an indirect block.
pub fn pointers(contents: &[u8], endian: Endian) -> Vec<BlockPointer> {
    contents
        .chunks(128)
        .map(|chunk| BlockPointer::decode(chunk, endian).unwrap())
        .collect()
}

/// Returns the used dnodes in a block of dnodes.
pub fn dnodes(block: &[u8], endian: Endian) -> Vec<Dnode> {
    numbered_dnodes(block, endian)
        .into_iter()
        .map(|(_, dnode)| dnode)
        .collect()
}

fn numbered_dnodes(block: &[u8], endian: Endian) -> Vec<(u64, Dnode)> {
    let mut found = Vec::new();
    let mut slot = 0usize;
    while slot < block.len() / 512 {
        let bytes = &block[slot * 512..];
        if let Some(dnode) = Dnode::decode(bytes, endian).unwrap() {
            found.push((u64::try_from(slot).unwrap(), dnode));
        }
        slot += Dnode::slot_count(bytes);
    }
    found
}

/// Decompresses an image into an unnamed sparse file.
fn decompress_image(path: &Path) -> File {
    let packed = std::fs::read(path).unwrap();
    let mut context = zstd_safe::DCtx::create();
    context
        .set_parameter(zstd_safe::DParameter::WindowLogMax(27))
        .unwrap();
    let image = tempfile::tempfile().unwrap();
    let mut chunk = vec![0; 1 << 20];
    let mut input = zstd_safe::InBuffer::around(&packed);
    let mut offset = 0u64;
    loop {
        let mut output = zstd_safe::OutBuffer::around(&mut chunk[..]);
        let left = context.decompress_stream(&mut output, &mut input).unwrap();
        let bytes = output.as_slice();
        for sector in bytes.chunks(4096) {
            if sector.iter().any(|byte| *byte != 0) {
                image.write_all_at(sector, offset).unwrap();
            }
            offset += u64::try_from(sector.len()).unwrap();
        }
        let is_stuck = bytes.is_empty() && input.pos() == packed.len();
        if left == 0 || is_stuck {
            break;
        }
    }
    image.set_len(offset).unwrap();
    image
}
