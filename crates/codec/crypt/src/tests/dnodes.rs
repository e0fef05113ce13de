//! Blocks of dnodes.

use super::*;

/// A block of dnodes: one of two slots with encrypted bonus and spill, a free one, one with a plain bonus,
/// one with an encrypted bonus, and free ones.
fn dnode_block(endian: Endian) -> Vec<u8> {
    let mut block = vec![0; 16384];
    let mut child = pointer(endian, ObjectType::PLAIN_FILE, 0);
    child.set_crypt_mac([77; 16]);
    let short = |value: u16| match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    };
    for (slot, bonus_type, extra, flags) in [(0, 44, 1, 5), (3, 12, 0, 1), (4, 44, 0, 1)] {
        let at = slot * 512;
        let size = 512 * (1 + usize::from(extra));
        block[at..at + 8].copy_from_slice(&[19, 17, 1, 1, bonus_type, 0, 0, flags]);
        block[at + 10..at + 12].copy_from_slice(&short(100));
        block[at + 12] = extra;
        block[at + 24..at + 32].fill(3);
        block[at + 64..at + 192].copy_from_slice(&stored_pointer(&child, endian));
        block[at + 192..at + 292].fill(b'b');
        if flags & 4 != 0 {
            let spill = at + size - 128;
            block[spill..spill + 128].copy_from_slice(&stored_pointer(&child, endian));
        }
    }
    block
}

#[test]
fn encrypted_dnodes_hide_bonuses_and_authenticate_the_rest() {
    for suite in CryptSuite::ALL {
        for endian in [Endian::Little, Endian::Big] {
            let master = vec![5; suite.key_bytes()];
            let key = DatasetKey::new(suite, Guid(7), 1, &master, &[6; 64]).unwrap();
            let plain = dnode_block(endian);
            let mut bp = pointer(endian, ObjectType::DNODE, 0);
            let mut block = plain.clone();
            let mac = key
                .encrypt_dnodes(bp.crypt_salt(), bp.crypt_iv(), &mut block, endian)
                .unwrap();
            bp.set_crypt_mac(mac);
            let differs: Vec<usize> = (0..block.len())
                .filter(|at| block[*at] != plain[*at])
                .collect();
            // The first dnode's bonus ends at the spill pointer, the third one's at its own end.
            assert!(
                differs
                    .iter()
                    .all(|at| (192..896).contains(at) || (2240..2560).contains(at))
            );
            assert!(differs.len() > 900, "to the end of the areas");
            let stored = block.clone();
            key.decrypt_block(&bp, &mut block).unwrap();
            assert!(block == plain);
            for (at, is_bound) in [
                (0, true),
                (7, false),
                (24, false),
                (40, true),
                (64 + 48, true),
                // Little-endian: the checksum function. Big-endian: the physical size.
                (64 + 53, endian == Endian::Big),
                (300, true),
                (910, false),
                (896 + 112, true),
                (1030, true),
                (3 * 512 + 300, true),
                (16383, true),
            ] {
                let mut touched = stored.clone();
                touched[at] ^= 1;
                let verdict = key.decrypt_block(&bp, &mut touched);
                assert_eq!(verdict.is_err(), is_bound, "{suite:?} {endian:?} {at}");
            }
        }
    }
}

#[test]
fn a_dnode_block_without_encrypted_bonus_still_has_a_mac() {
    let key = ccm_key();
    let mut block = vec![0; 16384];
    let mac = key
        .encrypt_dnodes([1; 8], [2; 12], &mut block, Endian::Little)
        .unwrap();
    assert!(block.iter().all(|byte| *byte == 0));
    let decrypt =
        |mac, block: &mut [u8]| key.decrypt_dnodes([1; 8], [2; 12], mac, block, Endian::Little);
    assert_eq!(decrypt(mac, &mut block), Ok(()));
    assert!(decrypt([0; 16], &mut block).is_err());
}

#[test]
fn rows_of_impossible_dnodes_are_refused() {
    let key = gcm_key();
    let verdict = |offset: usize, value: u8, length: usize| {
        let mut block = vec![0; length];
        if let Some(byte) = block.get_mut(offset) {
            *byte = value;
        }
        key.encrypt_dnodes([1; 8], [2; 12], &mut block, Endian::Little)
    };
    for refused in [
        verdict(3, 4, 512),
        verdict(12, 1, 512),
        verdict(512 + 12, 255, 16384),
        verdict(3, 255, 16384),
        verdict(0, 0, 700),
    ] {
        assert!(matches!(refused, Err(CryptError::Malformed { .. })));
    }
    assert!(verdict(3, 3, 512).is_ok());
}

#[test]
fn a_spill_pointer_over_the_block_pointers_is_refused() {
    let key = gcm_key();
    let plain_and_encrypted = [0, 44];
    for (bonus_type, pointers) in plain_and_encrypted
        .map(|kind| [(kind, 2), (kind, 3)])
        .concat()
    {
        let is_good = pointers == 2;
        let mut block = vec![0; 512];
        (block[0], block[3], block[4], block[7]) = (19, pointers, bonus_type, 4);
        block[10] = 8;
        let sealed = key.encrypt_dnodes([1; 8], [2; 12], &mut block, Endian::Little);
        assert_eq!(sealed.is_ok(), is_good, "{pointers} pointers: {sealed:?}");
    }
}
