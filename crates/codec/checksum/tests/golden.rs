//! Verifies every block of one-device pools created by OpenZFS against its checksum. The test walks from the
//! best uberblock through all object sets, snapshots included, down to the last indirect block and file
//! block, including gang headers and intent log chains.
//!
//! The walk is a small separate reader, so that it tests this crate and not the engine. It needs `zstd` in
//! the path and the golden pools in `testdata/golden`. It also walks the pools in `MILLPOND_GOLDEN` or in
//! `../shared/golden` beside the workspace, if they exist.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use millpond_checksum::{
    Checksummer, Form, GangVerifier, Salt, find_gang_header, verify_label, verify_zilog2,
};
use millpond_compress::decompress;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Dnode, Endian, Level, ObjectSetPhys, ObjectType,
};

const DATA_START: u64 = 4 << 20;
const LABEL: u64 = 256 << 10;

#[test]
fn every_checksum_of_a_plain_pool_holds() {
    walk("single", |seen| {
        assert!(seen.count("fletcher4") > 50, "{seen:?}");
    });
}

#[test]
fn every_function_holds_in_a_pool_that_has_them_all() {
    walk("checksum", |seen| {
        for name in [
            "fletcher2",
            "fletcher4",
            "sha256",
            "sha512",
            "skein",
            "edonr",
            "blake3",
            "off",
        ] {
            assert!(seen.count(name) > 0, "no block with {name}: {seen:?}");
        }
    });
}

#[test]
fn truncated_checksums_hold_in_encrypted_datasets() {
    walk("crypt", |seen| {
        assert!(seen.count("truncated") > 100, "{seen:?}");
    });
}

#[test]
fn deduplicated_and_embedded_blocks_do_not_disturb() {
    walk("dedup-fast", |seen| {
        assert!(seen.count("sha256") > 0, "{seen:?}");
    });
    walk("embedded", |_| ());
}

#[test]
fn pools_from_before_feature_flags_hold() {
    walk("legacy-v28", |_| ());
}

#[test]
fn gang_headers_of_both_sizes_hold() {
    walk("gang", |seen| {
        assert!(seen.count("gang header 512") > 10, "{seen:?}");
    });
    // A mirror: its first side is complete.
    walk("v24-gang", |seen| {
        assert!(seen.count("gang header 4096") > 10, "{seen:?}");
    });
}

#[test]
fn blocks_of_unreplayed_intent_logs_hold() {
    walk("zil", |seen| {
        assert!(seen.count("zilog2") > 3, "{seen:?}");
    });
}

/// Counts of the valid checksums of each kind.
#[derive(Debug, Default)]
struct Seen(BTreeMap<String, u64>);

impl Seen {
    fn note(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }
    fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// Walks the pool of a case, or reports that the case is absent.
fn walk(case: &str, check: impl FnOnce(&Seen)) {
    let Some(folder) = case_folder(case) else {
        println!("golden case {case} is not here: nothing was compared");
        return;
    };
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let image = scratch.path().join("d0.img");
    let unpacked = Command::new("zstd")
        .args(["-q", "-d", "--long=27", "--sparse", "-o"])
        .arg(&image)
        .arg(folder.join("d0.img.zst"))
        .status();
    if !unpacked.is_ok_and(|status| status.success()) {
        println!("zstd did not unpack {case}: nothing was compared");
        return;
    }
    let mut pool = Pool {
        device: File::open(&image).expect("the image"),
        checksummer: Checksummer::new(None),
        seen: Seen::default(),
        visited: HashSet::new(),
    };
    let root = pool.labels();
    // Object 1 of the MOS is metadata with fletcher4, so the salt is read before it is needed.
    if let Some(salt) = pool.salt(&root) {
        pool.checksummer = Checksummer::new(Some(salt));
    }
    pool.block(&root);
    println!("{case}: {:?}", pool.seen.0);
    check(&pool.seen);
}

fn case_folder(case: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    [
        std::env::var_os("MILLPOND_GOLDEN").map(PathBuf::from),
        Some(workspace.join("testdata/golden")),
        Some(workspace.join("../shared/golden")),
        // One folder further up.
        Some(workspace.join("../../shared/golden")),
    ]
    .into_iter()
    .flatten()
    .map(|golden| golden.join(case))
    .find(|folder| folder.join("d0.img.zst").exists())
}

struct Pool {
    device: File,
    checksummer: Checksummer,
    seen: Seen,
    /// Blocks shared by snapshots and clones are visited once.
    visited: HashSet<[u64; 2]>,
}

impl Pool {
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.device
            .read_exact_at(&mut bytes, offset)
            .expect("within the device");
        bytes
    }

    /// Verifies the regions of all four labels. Returns the best uberblock's root pointer.
    fn labels(&mut self) -> BlockPointer {
        let size = self.device.metadata().expect("size").len() / LABEL * LABEL;
        let mut best: Option<(u64, BlockPointer)> = None;
        for label in [0, LABEL, size - 2 * LABEL, size - LABEL] {
            let config = label + (16 << 10);
            verify_label(&self.read(config, 112 << 10), config).expect("a label's configuration");
            self.seen.note("label");
            let ring = label + (128 << 10);
            for slot in 0..128u64 {
                let at = ring + slot * 1024;
                let Some((length, endian)) = [1024usize, 2048, 4096, 8192]
                    .into_iter()
                    .filter(|length| at.is_multiple_of(*length as u64))
                    .filter(|length| at + *length as u64 <= label + LABEL)
                    .find_map(|length| {
                        Some((length, verify_label(&self.read(at, length), at).ok()?))
                    })
                else {
                    continue;
                };
                let bytes = self.read(at, length);
                let words: [u64; 5] = endian.words("uberblock", &bytes).expect("long enough");
                if words[0] != 0x00ba_b10c {
                    continue;
                }
                self.seen.note("label");
                let root = BlockPointer::decode(&bytes[40..], endian).expect("long enough");
                if best.is_none_or(|(txg, _)| words[2] > txg) {
                    best = Some((words[2], root));
                }
            }
        }
        best.expect("an uberblock").1
    }

    /// Returns the stored bytes of a block after verifying them.
    fn stored(&mut self, bp: &BlockPointer) -> Vec<u8> {
        let length = usize::try_from(bp.psize_bytes()).expect("at most 32 MiB");
        let dva = bp.dvas().next().expect("an address");
        let bytes = if dva.is_gang {
            self.gang(bp)
        } else {
            self.read(DATA_START + dva.offset_bytes, length)
        };
        if let Err(error) = self.checksummer.verify(bp, &bytes) {
            panic!("{error} in {bp:?}");
        }
        let kind = bp.checksum_kind().expect("verified");
        self.seen.note(kind.name());
        if Form::of(bp) == Form::Truncated {
            self.seen.note("truncated");
        }
        bytes
    }

    fn gang(&mut self, bp: &BlockPointer) -> Vec<u8> {
        let dvas: Vec<_> = bp.dvas().collect();
        let verifier = GangVerifier::of(bp).expect("an address");
        let mut header = Vec::new();
        // Every copy of the header is valid, with the first address as the verifier of all.
        for dva in &dvas {
            header = self.read(DATA_START + dva.offset_bytes, 4096);
            let found = find_gang_header(&header, verifier, Form::of(bp))
                .unwrap_or_else(|error| panic!("{error} in the gang header of {bp:?}"));
            assert_eq!(found.endian, bp.endian());
            header.truncate(found.length);
            self.seen.note(format!("gang header {}", found.length));
        }
        let mut bytes = Vec::new();
        for child in header[..header.len() - 40].chunks_exact(128) {
            let child = BlockPointer::decode(child, bp.endian()).expect("128 bytes");
            if child.is_hole() {
                continue;
            }
            if child.is_gang() {
                // It is not specified what an interior pointer's own checksum covers.
                bytes.extend(self.gang(&child));
            } else {
                bytes.extend(self.stored(&child));
            }
        }
        bytes
    }

    /// Returns the verified and decompressed content, or `None` for holes and for ciphertext.
    fn content(&mut self, bp: &BlockPointer) -> Option<Vec<u8>> {
        if bp.is_hole() {
            return None;
        }
        let stored = match bp.embedded_payload() {
            Some(payload) => payload.as_bytes().to_vec(),
            None => self.stored(bp),
        };
        // Encrypted dnodes are readable except for their bonus.
        if bp.is_encrypted() && bp.object_type() != ObjectType::DNODE {
            return None;
        }
        let length = usize::try_from(bp.lsize_bytes()).expect("at most 32 MiB");
        let mut content = vec![0; length];
        let kind = bp.compression().expect("a function");
        if kind == CompressionKind::Off {
            return Some(stored);
        }
        decompress(kind, &stored, &mut content).expect("verified bytes decompress");
        Some(content)
    }

    /// Verifies a block and everything below it.
    fn block(&mut self, bp: &BlockPointer) {
        if !bp.is_embedded() && !self.visited.insert([bp.words[0] >> 32 << 32, bp.words[1]]) {
            return;
        }
        let Some(content) = self.content(bp) else {
            return;
        };
        let endian = bp.endian();
        if bp.level() > Level(0) {
            for child in content.chunks_exact(128) {
                self.block(&BlockPointer::decode(child, endian).expect("128 bytes"));
            }
        } else if bp.object_type() == ObjectType::OBJECT_SET {
            let set = ObjectSetPhys::decode(&content, endian).expect("an object set");
            self.intent_log(set.intent_log_header);
            let dnodes = [set.user_used, set.group_used, set.project_used];
            for dnode in dnodes.into_iter().flatten().chain([set.meta_dnode]) {
                self.dnode(&dnode);
            }
        } else if bp.object_type() == ObjectType::DNODE {
            for dnode in dnodes(&content, endian) {
                self.dnode(&dnode);
            }
        }
    }

    fn dnode(&mut self, dnode: &Dnode) {
        for bp in dnode.block_pointers.iter().chain(&dnode.spill) {
            self.block(bp);
        }
        // The pointer to a dataset's object set.
        if dnode.bonus_type == ObjectType::DSL_DATASET {
            let bp = BlockPointer::decode(&dnode.bonus[128..], dnode.endian).expect("320 bytes");
            self.block(&bp);
        }
    }

    /// Follows a chain of log blocks to its open end. The last pointer refers to a block that is not written.
    fn intent_log(&mut self, header: [u64; 24]) {
        let mut bp = BlockPointer::default();
        bp.words.copy_from_slice(&header[2..18]);
        while !bp.is_hole() && bp.checksum_kind() == Some(ChecksumKind::Zilog2) {
            let dva = bp.dvas().next().expect("an address");
            let length = usize::try_from(bp.psize_bytes()).expect("at most 32 MiB");
            let block = self.read(DATA_START + dva.offset_bytes, length);
            let Ok(endian) = verify_zilog2(&block, bp.checksum_words(), Form::of(&bp)) else {
                break;
            };
            assert_eq!(self.checksummer.verify(&bp, &block), Ok(()));
            self.seen.note("zilog2");
            bp = BlockPointer::decode(&block[8..], endian).expect("long enough");
        }
    }

    /// Returns the checksum salt from the MOS directory by searching the leaves for its entry.
    fn salt(&mut self, root: &BlockPointer) -> Option<Salt> {
        let set = self.content(root)?;
        let set = ObjectSetPhys::decode(&set, root.endian()).expect("the MOS");
        let mut bp = set.meta_dnode.block_pointers[0];
        while bp.level() > Level(0) {
            bp = BlockPointer::decode(&self.content(&bp)?, bp.endian()).expect("a pointer");
        }
        let directory = dnodes(&self.content(&bp)?, bp.endian())
            .into_iter()
            .next()?;
        assert_eq!(directory.object_type, ObjectType::OBJECT_DIRECTORY);
        let mut blocks = directory.block_pointers;
        while let Some(bp) = blocks.pop() {
            let Some(content) = self.content(&bp) else {
                continue;
            };
            if bp.level() > Level(0) {
                let children = content.chunks_exact(128);
                blocks.extend(children.map(|b| BlockPointer::decode(b, bp.endian()).expect("128")));
            } else if let Some(salt) = salt_in_leaf(&content, bp.endian()) {
                return Some(salt);
            }
        }
        None
    }
}

fn dnodes(content: &[u8], endian: Endian) -> Vec<Dnode> {
    let mut dnodes = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let rest = &content[at..];
        let slots = Dnode::slot_count(rest).max(1);
        let slot = &rest[..(slots * 512).min(rest.len())];
        dnodes.extend(Dnode::decode(slot, endian).expect("a dnode"));
        at += slots * 512;
    }
    dnodes
}

/// Chunks of 24 bytes follow the header and the hash table. Names and values are in arrays of 21 bytes.
fn salt_in_leaf(leaf: &[u8], endian: Endian) -> Option<Salt> {
    let chunks = leaf.get(48 + leaf.len() / 16..)?;
    let chunk = |index: u16| chunks.get(usize::from(index) * 24..)?.get(..24);
    let half = |bytes: &[u8], at: usize| endian.u16([bytes[at], bytes[at + 1]]);
    let array = |mut index: u16, length: usize| {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let chunk = chunk(index).filter(|chunk| chunk[0] == 251)?;
            bytes.extend(&chunk[1..22]);
            index = half(chunk, 22);
        }
        bytes.truncate(length);
        Some(bytes)
    };
    (0..)
        .map_while(chunk)
        .filter(|entry| entry[0] == 252 && entry[1] == 1 && half(entry, 10) == 32)
        .find_map(|entry| {
            let name = array(half(entry, 4), usize::from(half(entry, 6)))?;
            let value = array(half(entry, 8), 32)?;
            (name == b"org.illumos:checksum_salt\0").then(|| Salt(value.try_into().expect("32")))
        })
}
