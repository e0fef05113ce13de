//! Keys, blocks and MACs against recorded values, both byte orders, and damage of every part.

use super::*;
use millpond_ondisk::{BlockPointer, Endian, Guid, ObjectId, ObjectType};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| u8::try_from((byte as char).to_digit(16).unwrap()).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] * 16 + pair[1])
        .collect()
}

fn array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

const GCM_MASTER: &str = "91380e2592a2fc040b8e9e72b74d3bbd6bc9163668171ec662dbd782419bbf82";
const GCM_HMAC: &str = "21d30b228809368566a3098a7b1dadd9e49078c0957649e41d5b55eeb5a0cb7c
     5ee10d8cf1c90be853829d9a39c24ebdc1481c3d8e26b6dff7428ef3bde99d52";
const CCM_MASTER: &str = "837ef351b12208f52f02f9e0bf39d23bb73a7faa701bba152e11abb7cd09c054";
const CCM_HMAC: &str = "518fa4e5ce57337371d86d36ebf228f3693948fdcd552a029e173fc53099fa28
     a9605d60fcfd8d3ec7a95eb8e01ed94f36c9b2689421fe2b098091e6cd421d18";

fn gcm_object() -> CryptKey {
    CryptKey {
        suite: CryptSuite::Aes256Gcm,
        guid: Guid(0x10c6_9667_0f89_8e2b),
        version: 1,
        wrapped_master: array("8849d995acc37708c3d6a6607624d2592f99e91e0167729526bf3dafa0c7efd9"),
        wrapped_hmac: array(
            "622409cb8b0c552cc7dfd1b3f94a99238fc44610a3946237f6539a15de42e7ce
             38c93b953b87a7f6b472ff4b45f15948f39c79099b50833cb111445735d30826",
        ),
        iv: array("74fdb673c973b025e799108a"),
        mac: array("256bf546a77c7d5d33ff5dcd5efe63c4"),
        root_directory: ObjectId(0),
        reference_count: 1,
        key_format: KeyFormat::Passphrase,
        pbkdf2_salt: 0xaf55_4793_1e4b_f5d2,
        pbkdf2_iterations: 350_000,
    }
}

fn ccm_object() -> CryptKey {
    CryptKey {
        suite: CryptSuite::Aes256Ccm,
        guid: Guid(0xfdc5_48d8_cbe8_47e9),
        version: 1,
        wrapped_master: array("a3fa4ced67d46f123ae409f3a6560aad85e948ab110f5b8236587687ce331c87"),
        wrapped_hmac: array(
            "b411e8a80b594f07a59d06fc533591649cbb96d2a4facd02df9c5d8924c9822a
             eea94c0dfd6488f61f578fbcde1ade1b5768459afaba405d6cb2d9aaef13dd02",
        ),
        iv: array("297c9adb387bcb1982bd80ef"),
        mac: array("d022f87f2128d1911b62a5b326e3a0ea"),
        pbkdf2_salt: 0x360c_f7fa_1979_4138,
        ..gcm_object()
    }
}

fn gcm_key() -> DatasetKey {
    let guid = gcm_object().guid;
    DatasetKey::new(
        CryptSuite::Aes256Gcm,
        guid,
        1,
        &hex(GCM_MASTER),
        &array(GCM_HMAC),
    )
    .unwrap()
}

fn ccm_key() -> DatasetKey {
    let guid = ccm_object().guid;
    DatasetKey::new(
        CryptSuite::Aes256Ccm,
        guid,
        1,
        &hex(CCM_MASTER),
        &array(CCM_HMAC),
    )
    .unwrap()
}

fn assert_same_secrets(left: &DatasetKey, right: &DatasetKey) {
    assert_eq!(left.plain_mac(b"x"), right.plain_mac(b"x"));
    let (mut a, mut b) = ([0; 32], [0; 32]);
    let macs = [(left, &mut a), (right, &mut b)]
        .map(|(key, block)| key.encrypt_data([3; 8], [4; 12], block).unwrap());
    assert_eq!((macs[0], a), (macs[1], b));
}

#[test]
fn passphrases_become_the_recorded_wrapping_keys_and_open_the_recorded_objects() {
    for (object, wrapping, key) in [
        (
            gcm_object(),
            "4ca793c1e1bb29327c85040fc25eabb501bda4c2e5abe5fa6f7305e260fce019",
            gcm_key(),
        ),
        (
            ccm_object(),
            "40f7cd4fc262d499f0dfedd0e72ed29af2299bdaf181430868219f943a7fcbed",
            ccm_key(),
        ),
    ] {
        let derived = WrappingKey::from_user_key(
            KeyFormat::Passphrase,
            b"password\nsecond line",
            object.pbkdf2_salt,
            object.pbkdf2_iterations,
        )
        .unwrap();
        assert_eq!(derived.as_bytes().as_slice(), hex(wrapping));
        assert_same_secrets(&DatasetKey::unwrap(&object, &derived).unwrap(), &key);
    }
}

#[test]
fn a_passphrase_ends_at_its_first_nul_and_hostile_round_counts_are_refused() {
    let key = |text: &[u8], rounds| WrappingKey::from_passphrase(text, 7, rounds);
    assert_eq!(
        key(b"pass\0word", 10).unwrap().as_bytes(),
        key(b"pass", 10).unwrap().as_bytes()
    );
    for rounds in [0, PBKDF2_ITERATIONS_MAX + 1, u64::MAX] {
        assert!(matches!(
            key(b"pass", rounds),
            Err(CryptError::Unsupported { .. })
        ));
    }
}

#[test]
fn raw_and_hexadecimal_keys_have_exactly_their_length() {
    let reason = |format, text: &[u8]| match WrappingKey::from_user_key(format, text, 0, 0) {
        Ok(_) => "",
        Err(CryptError::UserKey { reason, .. }) => reason,
        Err(_) => "other",
    };
    assert_eq!(reason(KeyFormat::Raw, &[10; 32]), "");
    assert_eq!(reason(KeyFormat::Raw, &[10; 31]), "is too short");
    assert_eq!(reason(KeyFormat::Raw, &[10; 33]), "is too long");
    assert_eq!(reason(KeyFormat::Hex, "aF".repeat(32).as_bytes()), "");
    let line = "0".repeat(64) + "\n";
    assert_eq!(reason(KeyFormat::Hex, line.as_bytes()), "");
    assert_eq!(reason(KeyFormat::Hex, &[b'0'; 63]), "is too short");
    assert_eq!(reason(KeyFormat::Hex, &[b'0'; 65]), "is too long");
    assert!(reason(KeyFormat::Hex, &[b'g'; 64]).contains("no hexadecimal"));
    assert_eq!(reason(KeyFormat::None, b""), "other");
    let bytes = *WrappingKey::from_hex("0123456789abcdefABCDEF0000000000".repeat(2).as_bytes())
        .unwrap()
        .as_bytes();
    assert_eq!(bytes[..12], hex("0123456789abcdefabcdef00"));
}

#[test]
fn a_wrong_key_or_a_touched_object_does_not_open() {
    let wrapping = WrappingKey::from_bytes(&array(
        "4ca793c1e1bb29327c85040fc25eabb501bda4c2e5abe5fa6f7305e260fce019",
    ));
    let refused = |object: CryptKey| {
        let opened = DatasetKey::unwrap(&object, &wrapping);
        assert!(matches!(opened, Err(CryptError::WrongKey)));
    };
    DatasetKey::unwrap(&gcm_object(), &wrapping).unwrap();
    refused(ccm_object());
    let change = |edit: fn(&mut CryptKey)| {
        let mut object = gcm_object();
        edit(&mut object);
        object
    };
    refused(change(|object| object.guid.0 ^= 1));
    refused(change(|object| object.version = 0));
    refused(change(|object| object.suite = CryptSuite::Aes192Gcm));
    refused(change(|object| object.wrapped_master[31] ^= 1));
    refused(change(|object| object.wrapped_hmac[0] ^= 1));
    refused(change(|object| object.iv[0] ^= 1));
    refused(change(|object| object.mac[15] ^= 1));
}

#[test]
fn every_suite_and_version_wraps_and_unwraps() {
    let wrapping = WrappingKey::from_bytes(&[9; 32]);
    for suite in CryptSuite::ALL {
        for version in [0, 1] {
            let master = vec![5; suite.key_bytes()];
            let key = DatasetKey::new(suite, Guid(77), version, &master, &[6; 64]).unwrap();
            let mut object = gcm_object();
            key.wrap(&wrapping, [8; 12], &mut object).unwrap();
            assert!(
                object.wrapped_master[suite.key_bytes()..]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            let back = DatasetKey::unwrap(&object, &wrapping).unwrap();
            assert_eq!((back.suite(), back.version()), (suite, version));
            assert_same_secrets(&key, &back);
        }
        assert!(DatasetKey::new(suite, Guid(1), 1, &[5; 31], &[6; 64]).is_err());
    }
    assert!(DatasetKey::new(CryptSuite::Aes256Gcm, Guid(1), 2, &[5; 32], &[6; 64]).is_err());
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let shown = format!("{:?} {:?}", gcm_key(), WrappingKey::from_bytes(&[0xab; 32]));
    assert!(!shown.contains("145") && !shown.contains("171"), "{shown}");
}

#[test]
fn a_dedup_block_gets_the_recorded_salt_iv_ciphertext_and_mac() {
    let key = gcm_key();
    let mut block = vec![0; 4096];
    let (salt, iv) = key.dedup_salt_and_iv(&block);
    assert_eq!(salt, array("04294e8763e096af"));
    assert_eq!(iv, array("94a5aef5aa7223981e806ef1"));
    let mac = key.encrypt_data(salt, iv, &mut block).unwrap();
    assert_eq!(block[..16], hex("aac856507f8938753d53ff2db5a324a1"));
    assert_eq!(
        Sha256::digest(&block).as_slice(),
        hex("ac7529a544d94c8c3a5205e5952df920a60fe3212fb32976db5c56183021725c")
    );
    assert_eq!(mac, array("d16281803453f840f57d534ab06d2af9"));

    let master = hex(GCM_MASTER);
    let ccm = DatasetKey::new(CryptSuite::Aes256Ccm, Guid(1), 1, &master, &array(GCM_HMAC));
    let mut block = vec![0; 4096];
    let mac = ccm.unwrap().encrypt_data(salt, iv, &mut block).unwrap();
    assert_eq!(block[..16], hex("267ef2f36a1628ee3ca356068a9db370"));
    assert_eq!(mac, array("9bf639f9df0218309c297c457b76d35d"));
}

#[test]
fn the_block_key_of_the_recorded_salt_is_the_recorded_one() {
    let mut block = [0; 64];
    let iv = [1; 12];
    let mac = gcm_key()
        .encrypt_data(array("39c8ab906765d324"), iv, &mut block)
        .unwrap();
    let direct = cipher::Cipher::new(
        CryptSuite::Aes256Gcm,
        &hex("46823619e4fecc72325de556b007b6b2258178089a99efb9d67411c89da78c97"),
    )
    .unwrap();
    assert_eq!(direct.open(iv, &[], &mut block, mac), Ok(Some(())));
    assert_eq!(block, [0; 64]);
}

fn indirect_pointer() -> Vec<u8> {
    hex(
        "02000000 00000000 30010000 00000000 02000000 00000000 30810000 00000000
         00000000 00000000 00000000 00000000 ff000100 0f070aa5 00000000 00000000
         00000000 00000000 00000000 00000000 08000000 00000000 06000000 00000000 b4ddb684 f49e1f00
         da1c4b2d b6f5dd07 4ff47521 08c5cd5a 36633756 6b5590ca",
    )
}

#[test]
fn the_recorded_pointer_gives_the_recorded_entry() {
    let bp = BlockPointer::decode(&indirect_pointer(), Endian::Little).unwrap();
    assert_eq!(
        auth::entry(&bp, 1).as_bytes(),
        hex("ff00000000000a25 4ff4752108c5cd5a366337566b5590ca 0000000000000000")
    );
    assert_eq!(
        auth::entry(&bp, 0).as_bytes(),
        hex("ff0000000f000aa5 4ff4752108c5cd5a366337566b5590ca")
    );
    let hole = BlockPointer::default();
    assert_eq!(auth::entry(&hole, 1).as_bytes(), [0; 32]);
    assert_eq!(auth::entry(&hole, 0).as_bytes(), [0; 24]);
}

/// The same block with every field in the other byte order, as a machine of that order writes it.
fn swapped_words(block: &[u8]) -> Vec<u8> {
    let mut swapped = block.to_vec();
    swapped.chunks_exact_mut(8).for_each(<[u8]>::reverse);
    swapped
}

fn object_set() -> Vec<u8> {
    let mut block = vec![0; 4096];
    block[..24].copy_from_slice(&hex("0a11060300000001 2000000000000000 0100000000000000"));
    block[24..32].copy_from_slice(&[9; 8]);
    block[64..192].copy_from_slice(&indirect_pointer());
    block[704] = 2;
    block[712] = 1;
    block[1024..1032].copy_from_slice(&hex("27 11 01 03 00 00 00 00"));
    block
}

/// The object set as a big-endian machine would have stored it.
fn foreign_object_set(block: &[u8]) -> Vec<u8> {
    let mut foreign = swapped_words(block);
    for dnode in [0, 1024, 1536, 2048] {
        foreign[dnode..dnode + 16].copy_from_slice(&block[dnode..dnode + 16]);
        foreign[dnode + 8..dnode + 10].reverse();
        foreign[dnode + 10..dnode + 12].reverse();
    }
    foreign[720..784].copy_from_slice(&block[720..784]);
    foreign
}

#[test]
fn the_recorded_object_set_has_the_recorded_portable_mac() {
    let macs = ccm_key()
        .object_set_macs(&object_set(), Endian::Little)
        .unwrap();
    assert_eq!(
        macs.portable,
        array("b932f8b88bf683753a48c24ccd13f344d81e2cc1a57907d52601ed70a3ff83ab")
    );
    assert_ne!(macs.local, [0; 32]);
    // The pointer's own strings belong to its block's order, so a foreign set has the same MACs.
    let foreign = ccm_key().object_set_macs(&foreign_object_set(&object_set()), Endian::Big);
    assert_eq!(foreign, Ok(macs));
}

#[test]
fn an_object_set_is_refused_when_any_covered_byte_changes_and_accepted_without_a_local_mac() {
    let key = ccm_key();
    let mut block = object_set();
    key.seal_object_set(&mut block, Endian::Little).unwrap();
    let verify = |block: &[u8]| key.verify_object_set(block, Endian::Little);
    assert_eq!(verify(&block), Ok(LocalMac::Verified));
    // Kind, meta-dnode, flags, accounting dnode and both MACs; not: used bytes, log header, padding.
    for (offset, is_covered) in [
        (0, true),
        (8, true),
        (24, false),
        (64 + 48, true),
        (64 + 112, true),
        (64 + 96, false),
        (520, false),
        (704, true),
        (712, true),
        (713, true),
        (720, true),
        (752, true),
        (800, false),
        (1024, true),
        (1026, true),
        (2600, false),
    ] {
        let mut changed = block.clone();
        changed[offset] ^= 2;
        assert_eq!(verify(&changed).is_err(), is_covered, "byte {offset}");
    }
    block[752..784].fill(0);
    assert_eq!(verify(&block), Ok(LocalMac::Absent));
    assert!(matches!(
        verify(&block[..700]),
        Err(CryptError::Malformed { .. })
    ));
    block[3] = 200;
    assert!(matches!(verify(&block), Err(CryptError::Malformed { .. })));
}

#[test]
fn an_object_set_without_complete_accounting_has_a_zero_local_mac() {
    let mut block = object_set();
    block[712] = 0;
    let macs = |block: &[u8]| ccm_key().object_set_macs(block, Endian::Little).unwrap();
    assert_eq!(macs(&block).local, [0; 32]);
    block[712] = 1;
    assert_eq!(macs(&block[..1024]).local, [0; 32]);
    assert_ne!(macs(&block[..2048]).local, [0; 32]);
}

/// A pointer to a block written in `endian`, with the given kind.
fn pointer(endian: Endian, object_type: ObjectType, level: u64) -> BlockPointer {
    let mut bp = BlockPointer::default();
    (bp.words[0], bp.words[1], bp.words[10], bp.words[11]) = (8, 8, 5, 1);
    let order = u64::from(endian == Endian::Little) << 63;
    bp.words[6] = order | 1 << 61 | level << 56 | u64::from(object_type.0) << 48 | 7 << 40;
    bp.set_crypt_salt_and_iv([1, 2, 3, 4, 5, 6, 7, 8], [21; 12]);
    bp
}

fn stored_pointer(bp: &BlockPointer, endian: Endian) -> Vec<u8> {
    bp.words
        .iter()
        .flat_map(|word| match endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        })
        .collect()
}

/// A row of dnodes: one of two slots with encrypted bonus and spill, a free one, one with a plain bonus,
/// one with encrypted bonus, free ones.
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
fn dnode_blocks_hide_bonus_areas_and_bind_everything_but_used_space_and_accounting_flags() {
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
            // First dnode's bonus: to the spill pointer. Third one's: to its end.
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
fn intent_log_blocks_hide_what_records_say_and_bind_headers_and_pointers() {
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
            // Checksum words, and what lies behind the records, are not bound.
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

#[test]
fn indirect_blocks_verify_without_a_key_in_either_version_and_order() {
    for endian in [Endian::Little, Endian::Big] {
        let mut child = pointer(endian, ObjectType::PLAIN_FILE, 0);
        child.set_crypt_mac([66; 16]);
        let mut contents = stored_pointer(&child, endian);
        contents.resize(4096, 0);
        let mut macs = Vec::new();
        for version in [0, 1] {
            let mac = indirect_block_mac(&contents, endian, version).unwrap();
            let mut bp = pointer(endian, ObjectType::PLAIN_FILE, 1);
            bp.set_crypt_mac(mac);
            assert_eq!(verify_indirect_block(&bp, &contents), Ok(()));
            let mut touched = contents.clone();
            touched[115] ^= 1;
            assert!(verify_indirect_block(&bp, &touched).is_err());
            assert!(matches!(
                verify_indirect_block(&bp, &contents[..100]),
                Err(CryptError::Malformed { .. })
            ));
            macs.push(mac);
        }
        assert_ne!(macs[0], macs[1]);
    }
}

#[test]
fn plain_types_are_only_checked_and_pointers_without_crypt_bit_are_refused() {
    let key = gcm_key();
    let mut block = vec![8; 1024];
    let mut bp = pointer(Endian::Little, ObjectType::MASTER_NODE, 0);
    assert!(key.decrypt_block(&bp, &mut block).is_err());
    bp.set_crypt_mac(key.plain_mac(&block));
    assert_eq!(key.decrypt_block(&bp, &mut block), Ok(()));
    assert_eq!(block, [8; 1024]);
    bp.words[6] &= !(1 << 61);
    assert_eq!(
        key.decrypt_block(&bp, &mut block),
        Err(CryptError::Unprotected)
    );
    let hole = BlockPointer::default();
    assert_eq!(key.decrypt_block(&hole, &mut []), Ok(()));
    let indirect = pointer(Endian::Little, ObjectType::PLAIN_FILE, 1);
    assert!(matches!(
        key.decrypt_block(&indirect, &mut block),
        Err(CryptError::Unsupported { .. })
    ));
}

#[test]
fn sixteen_mebibytes_are_a_message_for_gcm_but_not_for_ccm() {
    let mut block = vec![1; 16 << 20];
    let mac = gcm_key().encrypt_data([1; 8], [2; 12], &mut block).unwrap();
    gcm_key()
        .decrypt_data([1; 8], [2; 12], mac, &mut block)
        .unwrap();
    let ccm = ccm_key();
    assert!(matches!(
        ccm.encrypt_data([1; 8], [2; 12], &mut block),
        Err(CryptError::Unsupported { .. })
    ));
    assert!(matches!(
        ccm.decrypt_data([1; 8], [2; 12], mac, &mut block),
        Err(CryptError::Unsupported { .. })
    ));
    let largest = &mut block[512..];
    let mac = ccm.encrypt_data([1; 8], [2; 12], largest).unwrap();
    assert_eq!(ccm.decrypt_data([1; 8], [2; 12], mac, largest), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_block_comes_back_with_its_salt_iv_and_mac_and_with_no_others(
        sectors in 1usize..9,
        seed in any::<u8>(),
        salt: [u8; 8],
        iv: [u8; 12],
        suite in 0usize..6,
        is_big: bool,
        touched in 0usize..512,
    ) {
        let suite = CryptSuite::ALL[suite];
        let master = vec![seed; suite.key_bytes()];
        let key = DatasetKey::new(suite, Guid(7), 1, &master, &[seed; 64]).unwrap();
        let endian = if is_big { Endian::Big } else { Endian::Little };
        let plain = vec![seed; sectors * 512];
        let mut bp = pointer(endian, ObjectType::PLAIN_FILE, 0);
        bp.set_crypt_salt_and_iv(salt, iv);
        let mut stored = plain.clone();
        bp.set_crypt_mac(key.encrypt_data(salt, iv, &mut stored).unwrap());
        prop_assert!(stored != plain);
        let mut block = stored.clone();
        prop_assert_eq!(key.decrypt_block(&bp, &mut block), Ok(()));
        prop_assert!(block == plain);
        for word in [4, 5, 14, 15] {
            let mut other = bp;
            other.words[word] ^= 1;
            prop_assert!(key.decrypt_block(&other, &mut stored.clone()).is_err());
        }
        stored[touched] ^= 1;
        prop_assert!(key.decrypt_block(&bp, &mut stored).is_err());
    }

    #[test]
    fn any_bytes_of_any_type_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..2048),
        words: [u64; 16],
        object_type in any::<u8>(),
    ) {
        let mut bp = BlockPointer { words };
        bp.words[6] = bp.words[6] & !(0xff << 48) & !(0x1f << 56) & !(1 << 39) | 1 << 61;
        for kind in [object_type, 9, 10, 11, 19] {
            let mut one = bp;
            one.words[6] |= u64::from(kind) << 48;
            let mut block = bytes.clone();
            prop_assert!(one.is_hole() || gcm_key().decrypt_block(&one, &mut block).is_err());
        }
        let _ = verify_indirect_block(&bp, &bytes);
    }
}
