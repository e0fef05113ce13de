//! Blocks of encrypted datasets: what is encrypted, what is only authenticated, and what a reader refuses.

use crate::pool::{Pool, TXG, Vdev, address, job, noise, text};
use millpond_block::{BlockError, BlockWrite, WriteKey, WrittenForm};
use millpond_crypt::{CryptSuite, DatasetKey};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Guid, Level, ObjectType, StoredBlock, Txg,
};
use std::collections::BTreeSet;

pub fn key(suite: CryptSuite, seed: u8) -> Arc<WriteKey> {
    let key = DatasetKey::new(
        suite,
        Guid(1),
        1,
        &vec![seed; suite.key_bytes()],
        &[seed; 64],
    );
    WriteKey::new(Arc::new(key.unwrap()), &Env::real())
}

pub fn encrypted(key: &Arc<WriteKey>, content: Vec<u8>) -> BlockWrite {
    BlockWrite {
        key: Some(Arc::clone(key)),
        copies: 2,
        ..job(content)
    }
}

pub fn read(
    pool: &Pool,
    pointer: &BlockPointer,
    key: Option<&Arc<WriteKey>>,
) -> Result<Vec<u8>, BlockError> {
    let key = key.map(|key| key.key());
    let block = pool.reopened().read(pointer, address(), key)?;
    Ok(block.bytes.to_vec())
}

/// An indirect block of pointers to data.
fn pointers() -> Vec<u8> {
    let mut bytes = vec![];
    for number in 0..32 {
        let mut pointer = StoredBlock {
            dvas: &[],
            lsize_bytes: 4096,
            psize_bytes: 4096,
            compression: CompressionKind::Off,
            checksum: ChecksumKind::Fletcher4,
            checksum_words: [number, 2, 0, 0],
            object_type: ObjectType::PLAIN_FILE,
            level: Level(0),
            birth: Txg(3),
            fill: 1,
        }
        .pointer();
        pointer.set_crypt_bit();
        pointer.set_crypt_mac([number as u8; 16]);
        bytes.extend(pointer.encode());
    }
    bytes
}

#[test]
fn every_suite_and_kind_of_block_is_read_with_its_key_only() {
    let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Raidz(4, 1), 9)]);
    for suite in CryptSuite::ALL {
        let (own, other) = (key(suite, 7), key(suite, 8));
        let data = |content| encrypted(&own, content);
        let of_type = |object_type, content| BlockWrite {
            object_type,
            ..encrypted(&own, content)
        };
        let indirect = BlockWrite {
            level: Level(1),
            copies: 3,
            ..encrypted(&own, pointers())
        };
        for (checksum, job, is_encrypted) in [
            (ChecksumKind::Fletcher4, data(text(1, 16 << 10)), true),
            (ChecksumKind::Sha256, data(noise(2, 16 << 10)), true),
            (ChecksumKind::Blake3, data(text(3, 128 << 10)), true),
            (
                ChecksumKind::Edonr,
                of_type(ObjectType::SA, noise(4, 512)),
                true,
            ),
            (
                ChecksumKind::Fletcher4,
                of_type(ObjectType::MASTER_NODE, text(5, 1024)),
                false,
            ),
            (ChecksumKind::Sha512, indirect, false),
        ] {
            let job = BlockWrite { checksum, ..job };
            let written = pool.write_one(job.clone());
            let pointer = written.pointer;
            assert_eq!(written.form, WrittenForm::Contiguous);
            assert!(pointer.has_crypt_bit() && pointer.is_encrypted() == is_encrypted);
            assert_eq!(pointer.validate(), Ok(()));
            assert_eq!(read(&pool, &pointer, Some(&own)).unwrap(), *job.content);
            // Scrubs verify the copies without a key.
            assert!(
                pool.reopened()
                    .audit(&pointer, address())
                    .unwrap()
                    .is_clean()
            );
            let wrong = read(&pool, &pointer, Some(&other));
            let locked = read(&pool, &pointer, None);
            match job.level {
                Level(0) => {
                    assert!(
                        matches!(wrong, Err(BlockError::Authentication { .. })),
                        "{wrong:?}"
                    );
                    let is_locked = matches!(locked, Err(BlockError::Locked { .. }));
                    assert_eq!(is_locked, is_encrypted);
                }
                // No key is involved.
                _ => assert!(wrong.is_ok() && locked.is_ok()),
            }
            // A block that claims to need no key.
            let mut plain = pointer;
            plain.words[6] &= !(1 << 61);
            assert!(read(&pool, &plain, Some(&own)).is_err());
        }
    }
}

#[test]
fn nothing_is_embedded_and_zeros_stay_holes() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let own = key(CryptSuite::Aes256Gcm, 7);
    let tiny = pool.write_one(encrypted(&own, vec![b'x'; 4096]));
    assert_eq!(tiny.form, WrittenForm::Contiguous);
    let hole = pool.write_one(encrypted(&own, vec![0; 4096]));
    assert!(hole.pointer.is_hole() && !hole.pointer.has_crypt_bit());
    let three = BlockWrite {
        copies: 3,
        ..encrypted(&own, noise(1, 4096))
    };
    let refused = pool.store.write(TXG, &pool.arena, vec![three]).remove(0);
    assert!(
        matches!(refused, Err(BlockError::Write { .. })),
        "{refused:?}"
    );
}

#[test]
fn no_two_blocks_share_salt_and_iv() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let own = key(CryptSuite::Aes128Ccm, 7);
    let jobs = (0..200).map(|_| encrypted(&own, text(1, 4096))).collect();
    let written = pool.write(jobs);
    let used: BTreeSet<_> = (written.iter())
        .map(|block| (block.pointer.crypt_salt(), block.pointer.crypt_iv()))
        .collect();
    assert_eq!(used.len(), 200);
    let salts: BTreeSet<_> = used.iter().map(|(salt, _)| salt).collect();
    assert_eq!(salts.len(), 1);
}

#[test]
fn an_encrypted_gang_block_is_split_after_it_was_encrypted() {
    for suite in [CryptSuite::Aes192Gcm, CryptSuite::Aes256Ccm] {
        let pool = Pool::new(&[(Vdev::Disk, 9), (Vdev::Disk, 9)]);
        pool.arena.shatter(16 << 10, u64::MAX);
        let own = key(suite, 7);
        let job = BlockWrite {
            compression: CompressionKind::Off,
            ..encrypted(&own, noise(1, 96 << 10))
        };
        let written = pool.write_one(job.clone());
        assert!(matches!(written.form, WrittenForm::Gang { .. }));
        assert_eq!(
            read(&pool, &written.pointer, Some(&own)).unwrap(),
            *job.content
        );
        let audit = pool.reopened().audit(&written.pointer, address()).unwrap();
        assert!(audit.is_clean(), "{audit:?}");
        assert_eq!(written.pointer.asize_bytes(), pool.arena.live_bytes());
    }
}

#[test]
fn forgetting_a_block_drops_all_its_cache_entries() {
    let pool = Pool::new(&[(Vdev::Disk, 9)]);
    let own = key(CryptSuite::Aes128Gcm, 7);
    // Without its key only the authenticated form of such a block can be read, so it is cached twice.
    let dnodes = BlockWrite {
        object_type: ObjectType::MASTER_NODE,
        ..encrypted(&own, text(5, 1024))
    };
    for job in [dnodes, encrypted(&own, text(1, 16 << 10))] {
        let other = pool.write_one(encrypted(&own, text(2, 8 << 10))).pointer;
        let pointer = pool.write_one(job).pointer;
        let store = pool.reopened();
        let entries = || store.cache_statistics().entries;
        store.read(&other, address(), Some(own.key())).unwrap();
        assert_eq!(entries(), 1);
        store.read(&pointer, address(), Some(own.key())).unwrap();
        let is_read_twice = store.read(&pointer, address(), None).is_ok();
        assert_eq!(entries(), 2 + u64::from(is_read_twice));
        store.forget(&pointer);
        assert_eq!(entries(), 1);
        store.forget(&pointer);
        assert_eq!(entries(), 1);
    }
}
