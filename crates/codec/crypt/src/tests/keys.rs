//! Wrapping keys, and the dataset keys wrapped in them.

use super::*;

#[test]
fn passphrases_derive_the_recorded_wrapping_keys() {
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
        assert_eq!(derived.as_bytes(), hex(wrapping));
        assert_same_secrets(&DatasetKey::unwrap(&object, &derived).unwrap(), &key);
    }
}

#[test]
fn passphrases_end_at_nul_and_excess_iterations_are_refused() {
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
        Err(CryptError::UserKey { reason }) => reason,
        Err(_) => "other",
    };
    assert_eq!(reason(KeyFormat::Raw, &[10; 32]), "");
    assert_eq!(
        reason(KeyFormat::Raw, &[10; 31]),
        "Raw key too short (expected 32)."
    );
    assert_eq!(
        reason(KeyFormat::Raw, &[10; 33]),
        "Raw key too long (expected 32)."
    );
    assert_eq!(reason(KeyFormat::Hex, "aF".repeat(32).as_bytes()), "");
    let line = "0".repeat(64) + "\n";
    assert_eq!(reason(KeyFormat::Hex, line.as_bytes()), "");
    assert_eq!(
        reason(KeyFormat::Hex, &[b'0'; 63]),
        "Hex key too short (expected 64)."
    );
    assert_eq!(
        reason(KeyFormat::Hex, &[b'0'; 65]),
        "Hex key too long (expected 64)."
    );
    assert_eq!(
        reason(KeyFormat::Hex, &[b'g'; 64]),
        "Invalid hex character detected."
    );
    assert_eq!(reason(KeyFormat::None, b""), "other");
    let key = WrappingKey::from_hex("0123456789abcdefABCDEF0000000000".repeat(2).as_bytes());
    assert_eq!(
        key.unwrap().as_bytes()[..12],
        hex("0123456789abcdefabcdef00")
    );
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
fn wrapped_keys_are_bound_to_guid_suite_and_version() {
    let suite = CryptSuite::Aes256Gcm;
    let wrapping = WrappingKey::from_bytes(&[9; 32]);
    let guid = 77u64.to_le_bytes();
    let rest = [suite.number(), 1].map(u64::to_le_bytes).concat();
    for (version, aad) in [(0, guid.to_vec()), (1, [&guid[..], &rest].concat())] {
        let key = DatasetKey::new(suite, Guid(77), version, &[5; 32], &[6; 64]).unwrap();
        let mut object = gcm_object();
        key.wrap(&wrapping, [8; 12], &mut object).unwrap();
        let mut text = [&object.wrapped_master[..], &object.wrapped_hmac].concat();
        let cipher = crate::cipher::Cipher::new(suite, &[9; 32]).unwrap();
        let opened = cipher.open(object.iv, &aad, &mut text, object.mac);
        assert_eq!(opened, Ok(Some(())), "version {version}");
        assert_eq!(text, [&[5; 32][..], &[6; 64]].concat());
    }
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let shown = format!("{:?} {:?}", gcm_key(), WrappingKey::from_bytes(&[0xab; 32]));
    assert!(!shown.contains("145") && !shown.contains("171"), "{shown}");
}
