//! Reads every block of every encrypted dataset in pools created by OpenZFS. The test opens the datasets with
//! the users' keys and verifies each MAC, from the object set down to the last data block and the intent
//! logs.
//!
//! The `crypt` case is in the repository. The cases with unreplayed logs are in the large golden set, in the
//! folder named by `MILLPOND_GOLDEN` or beside the repository.
#![allow(
    clippy::print_stdout,
    reason = "tests say what they saw, and when a case is absent"
)]

mod pool;

use millpond_compress::decompress;
use millpond_crypt::{
    CryptError, CryptKey, CryptSuite, DatasetKey, KeyFormat, LocalMac, WrappingKey,
    verify_indirect_block,
};
use millpond_ondisk::{
    BlockPointer, Dnode, DslDatasetPhys, IntentLogBlockHeader, IntentLogHeader, Level, ObjectId,
    ObjectSetPhys, ObjectType,
};
use pool::{GoldenPool, case_folder};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Counts of opened blocks by kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    object_sets: u32,
    indirect: u32,
    dnodes: u32,
    data: u32,
    plain: u32,
    spill: u32,
    log: u32,
}

/// One dataset with its key. All its blocks are read.
struct Walk<'a> {
    pool: &'a GoldenPool,
    key: &'a DatasetKey,
    counts: Counts,
}

impl Walk<'_> {
    fn object_set(&mut self, root: &BlockPointer) -> ObjectSetPhys {
        assert!(root.has_crypt_bit());
        let stored = self.pool.read_stored(root);
        let local = self.key.verify_object_set(&stored, root.endian()).unwrap();
        let mut again = stored.clone();
        again[720..784].fill(0);
        self.key.seal_object_set(&mut again, root.endian()).unwrap();
        assert!(again == stored);
        // A change of one bit in the meta-dnode must be detected.
        let mut touched = stored.clone();
        touched[2] ^= 1;
        assert!(self.key.decrypt_block(root, &mut touched).is_err());
        self.counts.object_sets += 1;
        let set = ObjectSetPhys::decode(&stored, root.endian()).unwrap();
        // Volumes have no accounting, so there is nothing for the local MAC to bind.
        let has_accounting = set.flags & 1 != 0 && set.user_used.is_some();
        assert_eq!(local == LocalMac::Verified, has_accounting);
        let mut dnodes = Vec::new();
        self.tree(&set.meta_dnode, &mut |block, endian| {
            dnodes.extend(pool::dnodes(block, endian));
        });
        for dnode in dnodes
            .iter()
            .chain(&set.user_used)
            .chain(&set.group_used)
            .chain(&set.project_used)
        {
            self.tree(dnode, &mut |_, _| {});
            if let Some(spill) = &dnode.spill {
                self.block(spill);
                self.counts.spill += 1;
            }
        }
        let log = IntentLogHeader::from_words(&set.intent_log_header).log;
        self.log(log);
        set
    }

    fn tree(&mut self, dnode: &Dnode, each: &mut dyn FnMut(&[u8], millpond_ondisk::Endian)) {
        let mut pointers = dnode.block_pointers.clone();
        while let Some(bp) = pointers.pop() {
            if bp.is_hole() {
                continue;
            }
            let contents = self.block(&bp);
            if bp.level() > Level(0) {
                pointers.extend(pool::pointers(&contents, bp.endian()));
            } else {
                each(&contents, bp.endian());
            }
        }
    }

    /// Returns the content of any block except object sets and logs.
    fn block(&mut self, bp: &BlockPointer) -> Vec<u8> {
        assert!(bp.has_crypt_bit() && !bp.is_embedded(), "{bp:?}");
        let mut stored = self.pool.read_stored(bp);
        if bp.level() == Level(0) {
            let mut other = *bp;
            other.words[14] ^= 1;
            let refused = self.key.decrypt_block(&other, &mut stored.clone());
            assert!(matches!(refused, Err(CryptError::MacMismatch { .. })));
            let ciphertext = stored.clone();
            self.key.decrypt_block(bp, &mut stored).unwrap();
            // The same salt and IV must produce OpenZFS's bytes again.
            let mut again = stored.clone();
            let (salt, iv) = (bp.crypt_salt(), bp.crypt_iv());
            let mac = match bp.object_type() {
                ObjectType::DNODE => self
                    .key
                    .encrypt_dnodes(salt, iv, &mut again, bp.endian())
                    .unwrap(),
                kind if kind.is_encrypted() => self.key.encrypt_data(salt, iv, &mut again).unwrap(),
                _ => self.key.plain_mac(&again),
            };
            assert!(again == ciphertext && mac == bp.crypt_mac());
        }
        let mut contents = vec![0; usize::try_from(bp.lsize_bytes()).unwrap()];
        decompress(bp.compression().unwrap(), &stored, &mut contents).unwrap();
        let count = match (bp.level(), bp.object_type()) {
            (Level(0), ObjectType::DNODE) => &mut self.counts.dnodes,
            (Level(0), kind) if kind.is_encrypted() => &mut self.counts.data,
            (Level(0), _) => &mut self.counts.plain,
            _ => {
                verify_indirect_block(bp, &contents).unwrap();
                &mut self.counts.indirect
            }
        };
        *count += 1;
        contents
    }

    fn log(&mut self, first: BlockPointer) {
        let mut bp = first;
        while !bp.is_hole() {
            let mut block = self.pool.read_stored(&bp);
            // A block that was allocated but never written ends the chain.
            let Ok(header) = IntentLogBlockHeader::decode(&block) else {
                break;
            };
            let [first, second, set, sequence] = bp.checksum_words();
            if header.next.checksum_words() != [first, second, set, sequence + 1] {
                break;
            }
            assert!(bp.has_crypt_bit());
            let ciphertext = block.clone();
            self.key.decrypt_block(&bp, &mut block).unwrap();
            let mut again = block;
            let (salt, iv) = (bp.crypt_salt(), bp.crypt_iv());
            self.key
                .encrypt_log(salt, iv, &mut again, bp.endian())
                .unwrap();
            assert!(again == ciphertext);
            self.counts.log += 1;
            bp = header.next;
        }
    }
}

/// Unwraps every key object of a case with the keys in its folder.
fn unlock(folder: &Path, pool: &GoldenPool) -> BTreeMap<ObjectId, DatasetKey> {
    let objects: BTreeMap<ObjectId, CryptKey> = pool.crypt_keys();
    let directories: BTreeMap<ObjectId, ObjectId> = pool.key_objects_of_directories();
    let user_keys: Vec<Vec<u8>> = ["pass", "pass2", "raw", "hex"]
        .iter()
        .filter_map(|name| std::fs::read(folder.join(name)).ok())
        .chain([b"millpond pass".to_vec()])
        .collect();
    let mut wrapping_keys: BTreeMap<ObjectId, WrappingKey> = BTreeMap::new();
    let mut unlocked = BTreeMap::new();
    for (number, object) in &objects {
        let root = &objects[&directories[&object.root_directory]];
        let known = wrapping_keys.get(&object.root_directory).cloned();
        let mut refused = 0;
        let candidates = known.into_iter().chain(user_keys.iter().filter_map(|text| {
            if root.key_format == KeyFormat::Passphrase && text.len() == 32 {
                return None;
            }
            let (salt, rounds) = (root.pbkdf2_salt, root.pbkdf2_iterations);
            WrappingKey::from_user_key(root.key_format, text, salt, rounds).ok()
        }));
        for candidate in candidates {
            match DatasetKey::unwrap(object, &candidate) {
                Ok(key) => {
                    wrapping_keys.insert(object.root_directory, candidate);
                    unlocked.insert(*number, key);
                    break;
                }
                Err(error) => {
                    assert_eq!(error, CryptError::WrongKey);
                    refused += 1;
                }
            }
        }
        assert!(unlocked.contains_key(number), "refused {refused} keys");
    }
    unlocked
}

/// Walks every encrypted dataset and snapshot of a case. Returns the suites seen and the counts.
fn walk(folder: &Path) -> (BTreeSet<&'static str>, Vec<Counts>) {
    let pool = GoldenPool::open(&folder.join("d0.img.zst"));
    let keys = unlock(folder, &pool);
    let directories = pool.key_objects_of_directories();
    let mut suites = BTreeSet::new();
    let mut all = Vec::new();
    for (number, dnode) in pool.objects() {
        if dnode.bonus_type != ObjectType::DSL_DATASET {
            continue;
        }
        let dataset = DslDatasetPhys::decode(&dnode.bonus, dnode.endian).unwrap();
        let Some(key_object) = directories.get(&dataset.directory) else {
            continue;
        };
        if dataset.block_pointer.is_hole() {
            continue;
        }
        let key = &keys[key_object];
        let counts = Counts::default();
        let pool = &pool;
        let mut walk = Walk { pool, key, counts };
        walk.object_set(&dataset.block_pointer);
        println!("dataset {number}: {} {:?}", key.suite().name(), walk.counts);
        suites.insert(key.suite().name());
        all.push(walk.counts);
    }
    (suites, all)
}

#[test]
fn every_block_of_every_suite_decrypts_with_its_key() {
    let Some(folder) = case_folder("crypt") else {
        println!("golden case crypt is absent: nothing was tested");
        return;
    };
    let (suites, counts) = walk(&folder);
    assert_eq!(suites.len(), CryptSuite::ALL.len(), "{suites:?}");
    assert!(counts.len() >= 15);
    for count in &counts {
        assert!(count.object_sets == 1 && count.indirect > 0 && count.dnodes > 0);
        assert!(count.data > 0 && count.plain > 0);
    }
    assert!(counts.iter().any(|count| count.spill > 0));
}

#[test]
fn unreplayed_encrypted_logs_decrypt_to_their_end() {
    let Some(folder) = case_folder("zil") else {
        println!("golden case zil is absent: nothing was tested");
        return;
    };
    let (_, counts) = walk(&folder);
    let log: u32 = counts.iter().map(|count| count.log).sum();
    assert!(log > 0, "{counts:?}");
}

#[test]
fn snapshots_that_raw_streams_were_made_of_open() {
    let Some(folder) = case_folder("sends-crypt") else {
        println!("golden case sends-crypt is absent: nothing was tested");
        return;
    };
    let (_, counts) = walk(&folder);
    assert!(counts.len() > 3, "{counts:?}");
}
