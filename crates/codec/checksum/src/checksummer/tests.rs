use super::*;
use proptest::prelude::*;

fn salt() -> Salt {
    Salt(core::array::from_fn(|i| i as u8))
}

fn input(name: char) -> Vec<u8> {
    match name {
        'Z' => vec![0; 512],
        'S' => (0..512usize).map(|i| i as u8).collect(),
        _ => (0..4096usize).map(|i| (7 * i + i / 256) as u8).collect(),
    }
}

use ChecksumKind::{Blake3, Edonr, Fletcher2, Fletcher4, Sha256, Sha512, Skein};

/// Words computed by OpenZFS's library. Data is little-endian unless stated otherwise.
const VECTORS: &[(ChecksumKind, Endian, char, [u64; 4])] = &[
    (
        Fletcher2,
        Endian::Little,
        'S',
        [
            0xefcfaf8f6f4f2f00,
            0xf0d0b09070503000,
            0x4a38261401efdd00,
            0xdac8b6a492806d80,
        ],
    ),
    (
        Fletcher2,
        Endian::Big,
        'S',
        [
            0x0f2f4f6f8fafcfe0,
            0x1030507090b0d0e0,
            0xcfe1f406182a3b70,
            0x60728496a8bacbf0,
        ],
    ),
    (
        Fletcher2,
        Endian::Little,
        'T',
        [
            0xffffffffffffff80,
            0xffffffffffffff80,
            0xca8a5e3bfd88c7c0,
            0xf74799c7c7c3a3c0,
        ],
    ),
    (
        Fletcher4,
        Endian::Little,
        'S',
        [
            0x00000040c03fbf00,
            0x00000da342e27500,
            0x000214fa7f828a80,
            0x003d9765c9f3c980,
        ],
    ),
    (
        Fletcher4,
        Endian::Big,
        'S',
        [
            0x0000003f3fc04080,
            0x00000d4262c315c0,
            0x000204948f886b00,
            0x003b7e5b56b441e0,
        ],
    ),
    (
        Fletcher4,
        Endian::Little,
        'T',
        [
            0x000001fffffffe00,
            0x0003ffee1c778f00,
            0x055664326c278200,
            0x587334b373c10f80,
        ],
    ),
    (Fletcher2, Endian::Little, 'Z', [0; 4]),
    (Fletcher4, Endian::Big, 'Z', [0; 4]),
    (
        Sha256,
        Endian::Little,
        'Z',
        [
            0x076a27c79e5ace2a,
            0x3d47f9dd2e83e4ff,
            0x6ea8872b3c2218f6,
            0x6c92b89b55f36560,
        ],
    ),
    (
        Sha256,
        Endian::Little,
        'S',
        [
            0x110009dcee21620b,
            0x166f3abfecb5eff7,
            0xa873be729d1c2d53,
            0x822e7acc5f34eb9b,
        ],
    ),
    (
        Sha256,
        Endian::Big,
        'S',
        [
            0x110009dcee21620b,
            0x166f3abfecb5eff7,
            0xa873be729d1c2d53,
            0x822e7acc5f34eb9b,
        ],
    ),
    (
        Sha512,
        Endian::Little,
        'Z',
        [
            0x5b9416975c402b55,
            0x1bc2ae9be6ae0cfc,
            0xb88df5fb0b56052a,
            0xa6422bc42c4c1abd,
        ],
    ),
    (
        Sha512,
        Endian::Little,
        'S',
        [
            0x6cf5b1411d91141d,
            0x0ea8ddb86fa627f0,
            0x991896779c0da9d7,
            0x3bdc08f7e9f3faed,
        ],
    ),
    (
        Sha512,
        Endian::Big,
        'S',
        [
            0x1d14911d41b1f56c,
            0xf027a66fb8dda80e,
            0xd7a90d9c77961899,
            0xedfaf3e9f708dc3b,
        ],
    ),
    (
        Skein,
        Endian::Little,
        'Z',
        [
            0x109f2ea97b30f4fc,
            0xf23d66cc23e4eef4,
            0x7a78159e8b3761c5,
            0x70f32bd924fee9e0,
        ],
    ),
    (
        Skein,
        Endian::Little,
        'S',
        [
            0xdf06b17bad515284,
            0xc1074e6c80f80357,
            0x0564949cf231e28f,
            0x3b30efa65148a406,
        ],
    ),
    (
        Skein,
        Endian::Little,
        'T',
        [
            0x0ee74f1f1d7170fd,
            0x6e0189ca4c8ff228,
            0x3dc785d74dded32c,
            0x0c1ddeb1cec47841,
        ],
    ),
    (
        Edonr,
        Endian::Little,
        'Z',
        [
            0x0d00b58664fa7c50,
            0x7802fba8da630b5d,
            0x57d4f6db197c77b8,
            0x8c1fe4b0b798f54c,
        ],
    ),
    (
        Edonr,
        Endian::Little,
        'S',
        [
            0x86f009c293823406,
            0x1787f335116ef352,
            0x616de2d3955eb1e1,
            0x0f0e3039494fa11f,
        ],
    ),
    (
        Edonr,
        Endian::Little,
        'T',
        [
            0x714113e045f0f3eb,
            0x5df5dfd73cc0f656,
            0x6d2dc26998d89971,
            0xbee2a45256461a16,
        ],
    ),
    (
        Blake3,
        Endian::Little,
        'Z',
        [
            0xc752cd04d56f8f60,
            0xf53871be99de6f63,
            0x1adbe7b8d8843e49,
            0xc25011996e4b107c,
        ],
    ),
    (
        Blake3,
        Endian::Little,
        'S',
        [
            0x68e5f03a15d32d73,
            0x2e2d8e52a9e2d91f,
            0xb6eb0668176e2d68,
            0x95bf9be2259b6c22,
        ],
    ),
    (
        Blake3,
        Endian::Little,
        'T',
        [
            0xf42039dff3a071e2,
            0x79c41427695ba9cc,
            0xc674abc65b255ed7,
            0xe0ec765ed46ab19b,
        ],
    ),
];

#[test]
fn every_function_gives_the_words_that_openzfs_gives() {
    for &(kind, endian, name, expected) in VECTORS {
        let found = checksum(kind, &input(name), endian, Some(&salt())).unwrap();
        assert_eq!(found, expected, "{} {endian:?} {name}", kind.name());
        let pool = Checksummer::new(Some(salt()));
        assert_eq!(pool.checksum(kind, &input(name), endian), Ok(expected));
    }
}

#[test]
fn digests_of_byteswapped_blocks_are_byteswapped() {
    for &(kind, endian, name, words) in VECTORS {
        if endian == Endian::Little && matches!(kind, Sha512 | Skein | Edonr | Blake3) {
            let found = checksum(kind, &input(name), Endian::Big, Some(&salt())).unwrap();
            assert_eq!(found, words.map(u64::swap_bytes), "{}", kind.name());
        }
    }
}

#[test]
fn uncomputable_checksums_are_errors() {
    let pool = Checksummer::new(None);
    let ask = |kind| pool.checksum(kind, &[0; 512], Endian::Little);
    for kind in [Skein, Edonr, Blake3] {
        assert_eq!(ask(kind), Err(ChecksumError::NoSalt { kind }));
    }
    for kind in [ChecksumKind::Inherit, ChecksumKind::On] {
        assert_eq!(ask(kind), Err(ChecksumError::NotAFunction { kind }));
    }
    for kind in ChecksumKind::ALL.into_iter().filter(|k| k.is_embedded()) {
        assert_eq!(ask(kind), Err(ChecksumError::Embedded { kind }));
    }
    assert_eq!(ask(ChecksumKind::Off), Ok([0; 4]));
    assert_eq!(ask(ChecksumKind::NoParity), Ok([0; 4]));
}

/// A pointer to a block of 512 bytes: one address, then the given function, bits and words.
fn pointer(kind: u8, object_type: ObjectType, crypt: bool, words: [u64; 4]) -> BlockPointer {
    let mut bp = BlockPointer::default();
    bp.words[0] = 1;
    bp.words[1] = 8;
    bp.words[6] = u64::from(kind) << 40
        | u64::from(object_type.0) << 48
        | u64::from(crypt) << 61
        | 1 << 63
        | 2 << 32;
    bp.words[10] = 5;
    bp.words[12..].copy_from_slice(&words);
    bp
}

#[test]
fn pointers_verify_only_their_own_block() {
    let pool = Checksummer::new(Some(salt()));
    for &(kind, endian, name, words) in VECTORS {
        if name == 'T' || endian == Endian::Big {
            continue;
        }
        let data = input(name);
        let bp = pointer(kind.number(), ObjectType::PLAIN_FILE, false, words);
        assert_eq!(pool.verify(&bp, &data), Ok(()));
        let mut bad = data.clone();
        bad[100] ^= 4;
        let error = pool.verify(&bp, &bad).unwrap_err();
        assert!(error.is_damage());
        assert!(matches!(
            error,
            ChecksumError::Mismatch(Mismatch { kind: k, form: Form::Full, expected, .. })
                if k == kind && expected == words
        ));
        // The same words with the other data byte order (bit B cleared).
        if name == 'S' && kind != Sha256 {
            let mut foreign = bp;
            foreign.words[6] &= !(1 << 63);
            assert!(pool.verify(&foreign, &data).is_err());
        }
    }
}

#[test]
fn encrypted_pointers_keep_two_words_and_leave_two_to_the_mac() {
    let pool = Checksummer::new(Some(salt()));
    let mac = [0xdead, 0xbeef];
    for &(kind, endian, name, [a, b, c, d]) in VECTORS {
        if name != 'S' || endian == Endian::Big {
            continue;
        }
        let data = input('S');
        let stored = match kind {
            Sha256 | Sha512 | Skein | Blake3 => [a, b],
            _ => [a ^ c, b ^ d],
        };
        let words = [stored[0], stored[1], mac[0], mac[1]];
        let bp = pointer(kind.number(), ObjectType::PLAIN_FILE, true, words);
        assert_eq!(Form::of(&bp), Form::Truncated);
        assert_eq!(pool.verify(&bp, &data), Ok(()), "{}", kind.name());
        let mut bad = data.clone();
        bad[100] ^= 4;
        assert!(pool.verify(&bp, &bad).is_err());
        // Folding weakens Fletcher sums at the end of the block, where a change adds the same value to every
        // sum. The block's MAC protects these bytes.
        let mut bad = data.clone();
        bad[511] ^= 0x80;
        assert_eq!(pool.verify(&bp, &bad).is_ok(), kind == Fletcher2);
        // Object sets contain their MACs and keep all four words.
        let bp = pointer(kind.number(), ObjectType::OBJECT_SET, true, [a, b, c, d]);
        assert_eq!(pool.verify(&bp, &data), Ok(()));
        let bp = pointer(kind.number(), ObjectType::OBJECT_SET, true, words);
        assert!(pool.verify(&bp, &data).is_err());
    }
}

#[test]
fn blocks_without_checksum_pass_only_with_zero_words() {
    let pool = Checksummer::new(None);
    for kind in [2, 10] {
        let bp = pointer(kind, ObjectType::PLAIN_FILE, false, [0; 4]);
        assert_eq!(pool.verify(&bp, &[0x5a; 512]), Ok(()));
        let bp = pointer(kind, ObjectType::PLAIN_FILE, true, [0, 0, 7, 8]);
        assert_eq!(pool.verify(&bp, &[0x5a; 512]), Ok(()));
        let bp = pointer(kind, ObjectType::PLAIN_FILE, false, [0, 0, 0, 1]);
        assert!(pool.verify(&bp, &[0x5a; 512]).unwrap_err().is_damage());
    }
}

#[test]
fn pointers_that_cannot_be_checked_are_refused() {
    let pool = Checksummer::new(None);
    let data = [0; 512];
    let plain = ObjectType::PLAIN_FILE;
    assert_eq!(
        pool.verify(&BlockPointer::default(), &data),
        Err(ChecksumError::NoBlock)
    );
    let mut embedded = pointer(7, plain, false, [0; 4]);
    embedded.words[6] |= 1 << 39;
    assert_eq!(pool.verify(&embedded, &data), Err(ChecksumError::NoBlock));
    assert_eq!(
        pool.verify(&pointer(15, plain, false, [0; 4]), &data),
        Err(ChecksumError::UnknownKind)
    );
    assert_eq!(
        pool.verify(&pointer(7, plain, false, [0; 4]), &data[..508]),
        Err(ChecksumError::Size {
            expected: 512,
            length: 508
        })
    );
    for kind in [0, 1, 3, 4] {
        let error = pool.verify(&pointer(kind, plain, false, [0; 4]), &data);
        assert!(matches!(error, Err(ChecksumError::NotAFunction { .. })));
        assert!(!error.unwrap_err().is_damage());
    }
    let error = pool.verify(&pointer(12, plain, false, [0; 4]), &data);
    assert_eq!(error, Err(ChecksumError::NoSalt { kind: Skein }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_changed_byte_is_noticed(
        mut data in proptest::collection::vec(any::<u8>(), 16..1500),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        foreign in any::<bool>(),
    ) {
        data.truncate(data.len() / 16 * 16);
        let endian = if foreign { Endian::Big } else { Endian::Little };
        let pool = Checksummer::new(Some(salt()));
        for kind in [Fletcher2, Fletcher4, Sha256, Sha512, Skein, Edonr, Blake3] {
            let before = pool.checksum(kind, &data, endian).unwrap();
            let mut changed = data.clone();
            changed[at.index(data.len())] ^= flip;
            let after = pool.checksum(kind, &changed, endian).unwrap();
            prop_assert_ne!(before, after, "{}", kind.name());
            if kind.is_dedup_strong() {
                prop_assert_ne!(before[..2].to_vec(), after[..2].to_vec(), "{}", kind.name());
            }
        }
    }
    #[test]
    fn any_pointer_and_any_bytes_give_an_answer(
        words in any::<[u64; 16]>(),
        data in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let bp = BlockPointer { words };
        let _ = Checksummer::new(Some(salt())).verify(&bp, &data);
        // The same with plausible size and function, so that the check is reached.
        for kind in 0..16u64 {
            let mut words = words;
            words[6] = words[6] & !0xff80_ffff_0000 | kind << 40;
            let block = vec![data.first().copied().unwrap_or(1); 512];
            let bp = BlockPointer { words };
            let refused = Checksummer::new(None).verify(&bp, &block).is_err();
            prop_assert!(refused || matches!(kind, 2 | 10));
        }
    }
}

#[test]
fn the_salt_of_a_pool_can_be_read_back() {
    assert_eq!(Checksummer::new(Some(salt())).salt(), Some(salt()));
    assert_eq!(Checksummer::new(None).salt(), None);
}
