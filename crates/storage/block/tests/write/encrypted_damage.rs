//! Damage that the checksums of encrypted datasets do not see: Fletcher's four words are folded into two.

use crate::encrypted::{encrypted, key, read};
use crate::pool::{Pool, Vdev, address, noise};
use millpond_block::{BlockWrite, WrittenForm};
use millpond_checksum::Checksummer;
use millpond_crypt::CryptSuite;
use millpond_device::Device;
use millpond_env::mark;
use millpond_ondisk::{BlockPointer, CompressionKind, Dva};

const LABELS_BYTES: u64 = 4 << 20;

/// Changes a byte of a block, counted from its end, on one leaf.
fn flip(pool: &Pool, leaf: usize, dva: Dva, at: u64, mask: u8) {
    let mut byte = [0];
    let device = &pool.devices[leaf].inner;
    let offset = LABELS_BYTES + dva.offset_bytes + at;
    device.read(offset, &mut byte).unwrap();
    device.write(offset, &[byte[0] ^ mask]).unwrap();
}

/// A bit at the end of the stored bytes whose flip the pointer's checksum does not see.
fn unseen_flip(pointer: &BlockPointer, stored: &[u8]) -> Option<(u64, u8)> {
    let checksummer = Checksummer::new(None);
    let at = stored.len() - 4;
    (0..32).find_map(|bit| {
        let (byte, mask) = (at + bit / 8, 1 << (bit % 8));
        let mut bytes = stored.to_vec();
        bytes[byte] ^= mask;
        let is_unseen = checksummer.verify(pointer, &bytes).is_ok();
        is_unseen.then_some((byte as u64, mask))
    })
}

#[test]
fn damage_that_only_the_code_sees_is_read_from_the_other_side() {
    let _mark = mark::expect("authentic-copy-read");
    let pool = Pool::new(&[(Vdev::Mirror(2), 9)]);
    let own = key(CryptSuite::Aes256Gcm, 7);
    let mut unseen = 0;
    for seed in 0..20 {
        let job = BlockWrite {
            compression: CompressionKind::Off,
            copies: 1,
            ..encrypted(&own, noise(seed, 8 << 10))
        };
        let pointer = pool.write_one(job.clone()).pointer;
        let stored = pool.reopened().read_stored(&pointer, address()).unwrap();
        let Some((at, mask)) = unseen_flip(&pointer, &stored) else {
            continue;
        };
        unseen += 1;
        // The side that is read first is not known.
        for leaf in [0, 1] {
            let dva = pointer.dvas().next().unwrap();
            flip(&pool, leaf, dva, at, mask);
            assert_eq!(read(&pool, &pointer, Some(&own)).unwrap(), *job.content);
            flip(&pool, leaf, dva, at, mask);
        }
    }
    assert!(unseen > 0);
}

/// The leaves and offsets of all gang headers.
fn gang_headers(pool: &Pool) -> Vec<(usize, u64)> {
    let mut found = vec![];
    for (leaf, device) in pool.devices.iter().enumerate() {
        let mut bytes = vec![0; usize::try_from(device.inner.size_bytes()).unwrap()];
        device.inner.read(0, &mut bytes).unwrap();
        let sectors = bytes
            .chunks(512)
            .enumerate()
            .skip((LABELS_BYTES / 512) as usize);
        let magic = 0x0210_da7a_b10c_7a11_u64.to_le_bytes();
        let headers = sectors.filter(|(_, sector)| sector[472..480] == magic);
        found.extend(headers.map(|(number, _)| (leaf, number as u64 * 512)));
    }
    found
}

/// Not all words of the checksum in a header are used. A leaf with other bytes there is still the one that is wrong, and its header
/// can be read.
#[test]
fn noise_in_the_unused_words_of_a_gang_header_blames_its_leaf_alone() {
    for vdev in [Vdev::Mirror(2), Vdev::Raidz(3, 1), Vdev::Raidz(4, 2)] {
        let pool = Pool::new(&[(vdev, 9)]);
        pool.arena.shatter(16 << 10, u64::MAX);
        let job = BlockWrite {
            compression: CompressionKind::Off,
            copies: 1,
            ..encrypted(&key(CryptSuite::Aes256Gcm, 7), noise(1, 96 << 10))
        };
        let written = pool.write_one(job);
        assert!(matches!(written.form, WrittenForm::Gang { .. }));
        let found = gang_headers(&pool);
        // Pieces are gang blocks, too.
        assert!(found.len() > written.pointer.dvas().count() * 2, "{vdev:?}");
        for (leaf, offset) in found {
            let device = &pool.devices[leaf].inner;
            let mut byte = [0];
            device.read(offset + 505, &mut byte).unwrap();
            device.write(offset + 505, &[byte[0] ^ 0x10]).unwrap();
            let audit = pool.reopened().audit(&written.pointer, address()).unwrap();
            assert!(audit.is_readable, "{vdev:?}");
            let blamed: Vec<u32> = audit
                .findings
                .iter()
                .map(|(_, found)| found.leaf.0)
                .collect();
            assert_eq!(blamed, [leaf as u32], "{vdev:?} at {offset}");
            device.write(offset + 505, &byte).unwrap();
            let audit = pool.reopened().audit(&written.pointer, address()).unwrap();
            assert!(audit.is_clean(), "{vdev:?}: {audit:?}");
        }
    }
}
