//! Data blocks and indirect blocks, and random bytes of every type.

use super::*;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

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

#[test]
fn indirect_blocks_verify_without_a_key() {
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
fn plain_types_are_authenticated_but_not_encrypted() {
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
    let largest = &mut block[1..];
    let mac = ccm.encrypt_data([1; 8], [2; 12], largest).unwrap();
    assert_eq!(ccm.decrypt_data([1; 8], [2; 12], mac, largest), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn blocks_decrypt_only_with_their_salt_iv_and_mac(
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

#[test]
fn keys_print_their_guid_and_no_secret() {
    let (master, hmac) = ([0x7a; 32], [0x7b; 64]);
    let key = DatasetKey::new(CryptSuite::Aes256Gcm, Guid(4711), 1, &master, &hmac).unwrap();
    assert_eq!(key.guid(), Guid(4711));
    let shown = format!("{key:?}");
    assert_eq!(
        shown,
        "DatasetKey { suite: Aes256Gcm, guid: Guid(4711), version: 1, .. }"
    );
    let wrapping = crate::WrappingKey::from_hex(&[b'7'; 64]).unwrap();
    assert_eq!(format!("{wrapping:?}"), "WrappingKey(secret)");
}
