//! Blocks of intent logs.

use super::*;

fn log_block(endian: Endian) -> Vec<u8> {
    let word = |value: u64| match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    };
    let mut block = vec![0; 8192];
    block[8..136].fill(4);
    let mut at = 184;
    let records: [(u64, usize); 5] = [(1, 120), (9, 192), (9, 256), (24, 72 + 256), (8, 32)];
    for (kind, length) in records {
        let record = &mut block[at..at + length];
        record.fill(b'r');
        record[..8].copy_from_slice(&word(kind));
        record[8..16].copy_from_slice(&word(length as u64));
        at += length;
    }
    block[136..144].copy_from_slice(&word(at as u64));
    block
}

#[test]
fn encrypted_log_blocks_hide_records_and_bind_headers() {
    for endian in [Endian::Little, Endian::Big] {
        for key in [gcm_key(), ccm_key()] {
            let plain = log_block(endian);
            let bp = pointer(endian, ObjectType::INTENT_LOG, 0);
            let mut block = plain.clone();
            let mac = key
                .encrypt_log(bp.crypt_salt(), bp.crypt_iv(), &mut block, endian)
                .unwrap();
            assert_eq!(block[168..184], mac);
            // Record starts: 184, 304, 496, 752, 1080.
            let hidden = [216..304, 336..368, 528..560, 688..752, 784..816];
            for at in (0..plain.len()).filter(|at| !(168..184).contains(at)) {
                let is_hidden = hidden.iter().any(|area| area.contains(&at));
                assert!(is_hidden || block[at] == plain[at], "byte {at}");
            }
            for area in hidden {
                assert_ne!(block[area.clone()], plain[area]);
            }
            // Checksum words and the bytes after the records are not bound.
            for (at, is_bound) in [
                (0, true),
                (20, true),
                (145, false),
                (152, false),
                (170, true),
                (200, true),
                (220, true),
                (400, true),
                (820, true),
                (1112, false),
            ] {
                let mut touched = block.clone();
                touched[at] ^= 1;
                let verdict = key.decrypt_block(&bp, &mut touched);
                assert_eq!(verdict.is_err(), is_bound, "byte {at}");
            }
            key.decrypt_block(&bp, &mut block).unwrap();
            block[168..184].fill(0);
            assert!(block == plain);
        }
    }
}

#[test]
fn intent_log_blocks_with_impossible_lengths_are_refused() {
    let key = gcm_key();
    let verdict = |offset: usize, value: u64| {
        let mut block = log_block(Endian::Little);
        block[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        key.encrypt_log([1; 8], [2; 12], &mut block, Endian::Little)
    };
    for refused in [
        verdict(136, 183),
        verdict(136, 8193),
        verdict(136, u64::MAX),
        verdict(136, 200),
        verdict(136, 1111),
        verdict(192, 0),
        verdict(192, 31),
        verdict(192, u64::MAX),
        verdict(504, 184),
        verdict(504, 191),
    ] {
        assert!(matches!(refused, Err(CryptError::Malformed { .. })));
    }
    let short = key.encrypt_log([1; 8], [2; 12], &mut [0; 183], Endian::Little);
    assert!(matches!(short, Err(CryptError::Malformed { .. })));
}
