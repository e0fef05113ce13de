use super::*;
use crate::{fletcher2_by_definition, fletcher4_by_definition};
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .map(|d| (d as char).to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Slot 15 of label 0 of a pool written by OpenZFS.
fn uberblock_slot() -> Vec<u8> {
    let mut slot = hex("
        0cb1ba0000000000 8813000000000000 0f01000000000000 ffa73cedf99189d5
        3f61016b00000000 1000000000000000 50040e0000000000 1000000000000000
        a004000000000000 1000000000000000 a004010000000000 0700070002070b80
        0000000000000000 0000000000000000 0000000000000000 0f01000000000000
        5900000000000000 bbe0d1d902000000 9dba6844f50a0000 1842d4ad1c151500
        337ef2337bb8111b 8813000000000000 11ea1ca100000000 0000000000000000
        0000000000000000 0000000000000000 0000000000000000");
    slot.resize(4056, 0);
    slot.extend(hex("117a0cb17ada1002 8f1d55771ca377f0 8b67a4b95de93812
        02f8c6c8c39e218b b17385f083ed1944"));
    assert_eq!(slot.len(), 4096);
    slot
}

#[test]
fn a_label_slot_verifies_only_at_its_own_offset() {
    let slot = uberblock_slot();
    assert_eq!(verify_label(&slot, 0x2f000), Ok(Endian::Little));
    assert!(matches!(
        verify_label(&slot, 0x2e000),
        Err(ChecksumError::Mismatch(_))
    ));
    let mut again = slot.clone();
    again[4056..].fill(0xff);
    assert_eq!(
        verify_label(&again, 0x2f000),
        Err(ChecksumError::Magic { found: u64::MAX })
    );
    seal_label(&mut again, 0x2f000).unwrap();
    assert_eq!(again, slot);
}

#[test]
fn a_big_endian_label_stores_the_digest_unswapped() {
    let mut region = vec![3u8; 1024];
    region[984..992].copy_from_slice(&TRAILER_MAGIC.to_be_bytes());
    region[992..1000].copy_from_slice(&0x4000u64.to_be_bytes());
    region[1000..].fill(0);
    let digest = Sha256::digest(&region);
    region[992..].copy_from_slice(&digest);
    assert_eq!(verify_label(&region, 0x4000), Ok(Endian::Big));
    assert!(verify_label(&region, 0x4001).is_err());
}

const GANG: GangVerifier = GangVerifier {
    vdev: VdevId(1),
    offset_bytes: 0x6b3_4c00,
    birth: Txg(159),
};

#[test]
fn gang_headers_of_both_sizes_are_bound_to_their_address() {
    for form in [Form::Full, Form::Truncated] {
        for length in [512usize, 4096, 16384] {
            let mut bytes: Vec<u8> = (0..length).map(|i| (i / 3) as u8).collect();
            seal_gang_header(&mut bytes, GANG, form).unwrap();
            let found = find_gang_header(&bytes, GANG, form).unwrap();
            assert_eq!((found.length, found.endian), (length, Endian::Little));
            // An old header at the start of a larger sector.
            let mut sector = bytes[..512].to_vec();
            seal_gang_header(&mut sector, GANG, form).unwrap();
            sector.resize(4096, 0);
            assert_eq!(find_gang_header(&sector, GANG, form).unwrap().length, 512);
            if form == Form::Truncated {
                assert!(bytes[length - 16..].iter().all(|b| *b == 0));
            }
            for other in [
                GangVerifier {
                    vdev: VdevId(0),
                    ..GANG
                },
                GangVerifier {
                    offset_bytes: 0x200,
                    ..GANG
                },
                GangVerifier {
                    birth: Txg(160),
                    ..GANG
                },
            ] {
                assert!(
                    find_gang_header(&bytes, other, form)
                        .unwrap_err()
                        .is_damage()
                );
            }
        }
    }
    assert_eq!(
        find_gang_header(&[0; 511], GANG, Form::Full),
        Err(ChecksumError::Size {
            expected: 512,
            length: 511
        })
    );
}

#[test]
fn the_gang_verifier_is_first_dva_and_physical_birth() {
    let mut bp = BlockPointer::default();
    assert_eq!(GangVerifier::of(&bp), None);
    bp.words[..4].copy_from_slice(&[0x1_0000_0020, 0x8000_0000_0003_59a6, 0x20, 8]);
    bp.words[10] = 200;
    bp.words[9] = 159;
    assert_eq!(GangVerifier::of(&bp), Some(GANG));
}

const CHAIN: [u64; 4] = [0xbd82_74c0_2f8a_bbff, 0xb54d_3c18_30f7_d6a4, 5, 2];

/// A block of the present form in `endian` order, with its checksum computed according to the definition.
fn zilog2_block(nused: u64, length: usize, endian: Endian) -> Vec<u8> {
    let put = |block: &mut Vec<u8>, at: usize, word: u64| {
        let bytes = match endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        };
        block[at..at + 8].copy_from_slice(&bytes);
    };
    let mut block: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
    put(&mut block, 136, nused);
    put(&mut block, 144, TRAILER_MAGIC);
    for (i, word) in CHAIN.into_iter().enumerate() {
        put(&mut block, 152 + 8 * i, word);
    }
    let covered = nused
        .checked_next_multiple_of(4096)
        .map_or(length, |covered| length.min(covered as usize));
    let sum = fletcher4_by_definition(&block[..covered], endian);
    for (i, word) in sum.into_iter().enumerate() {
        put(&mut block, 152 + 8 * i, word);
    }
    block
}

#[test]
fn new_log_blocks_checksum_only_the_used_bytes() {
    for endian in [Endian::Little, Endian::Big] {
        for (nused, length) in [(184, 4096), (4096, 4096), (4097, 12288), (12288, 12288)] {
            let mut block = zilog2_block(nused, length, endian);
            assert_eq!(verify_zilog2(&block, CHAIN, Form::Full), Ok(endian));
            let mut next = CHAIN;
            next[3] += 1;
            assert!(verify_zilog2(&block, next, Form::Full).is_err());
            let covered = (nused as usize).next_multiple_of(4096);
            if covered < length {
                block[covered] ^= 1;
                assert_eq!(verify_zilog2(&block, CHAIN, Form::Full), Ok(endian));
            }
            block[covered - 1] ^= 1;
            assert!(
                verify_zilog2(&block, CHAIN, Form::Full)
                    .unwrap_err()
                    .is_damage()
            );
        }
    }
    let block = zilog2_block(300, 4096, Endian::Little);
    let mut again = block.clone();
    again[144..184].fill(0);
    seal_zilog2(&mut again, CHAIN, Form::Full).unwrap();
    assert_eq!(again, block);
}

#[test]
fn log_blocks_that_claim_impossible_lengths_are_refused() {
    for nused in [0, 183, 4097, 1 << 40, u64::MAX, u64::MAX - 4095] {
        let block = zilog2_block(nused, 4096, Endian::Little);
        assert_eq!(
            verify_zilog2(&block, CHAIN, Form::Full),
            Err(ChecksumError::Extent {
                nused_bytes: nused,
                length: 4096
            })
        );
    }
    let size = Err(ChecksumError::Size {
        expected: 184,
        length: 183,
    });
    assert_eq!(verify_zilog2(&[0; 183], CHAIN, Form::Full), size);
    let mut small = [3; 183];
    let sealed = seal_zilog2(&mut small, CHAIN, Form::Full);
    assert_eq!(sealed.map(|()| Endian::Little), size);
    assert_eq!(small, [3; 183]);
    let mut short = zilog2_block(184, 4096, Endian::Little);
    short.truncate(184);
    assert_eq!(
        verify_zilog2(&short, CHAIN, Form::Full),
        Err(ChecksumError::Extent {
            nused_bytes: 184,
            length: 184
        })
    );
    assert!(verify_zilog(&[0; 39], CHAIN, Form::Full).is_err());
}

#[test]
fn old_log_blocks_checksum_the_whole_block() {
    for endian in [Endian::Little, Endian::Big] {
        let to_bytes = |word: u64| match endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        };
        let mut block: Vec<u8> = (0..4096usize).map(|i| (i * 5 % 253) as u8).collect();
        let put = |words: [u64; 4], block: &mut Vec<u8>| {
            block[4056..4064].copy_from_slice(&to_bytes(TRAILER_MAGIC));
            for (i, word) in words.into_iter().enumerate() {
                block[4064 + 8 * i..4072 + 8 * i].copy_from_slice(&to_bytes(word));
            }
        };
        put(CHAIN, &mut block);
        let sum = fletcher2_by_definition(&block, endian);
        put(sum, &mut block);
        assert_eq!(verify_zilog(&block, CHAIN, Form::Full), Ok(endian));
        if endian == Endian::Little {
            let mut again = block.clone();
            again[4056..].fill(9);
            seal_zilog(&mut again, CHAIN, Form::Full).unwrap();
            assert_eq!(again, block);
        }
        block[17] ^= 2;
        assert!(
            verify_zilog(&block, CHAIN, Form::Full)
                .unwrap_err()
                .is_damage()
        );
    }
}

#[test]
fn encrypted_log_blocks_keep_their_mac_and_compare_two_words() {
    let mac = [0x77u8; 16];
    let mut block = zilog2_block(500, 4096, Endian::Little);
    let [a, b, c, d] = Endian::Little.words("sum", &block[152..]).unwrap();
    block[168..184].copy_from_slice(&mac);
    seal_zilog2(&mut block, CHAIN, Form::Truncated).unwrap();
    assert_eq!(block[168..184], mac);
    let stored: [u64; 2] = Endian::Little.words("sum", &block[152..]).unwrap();
    assert_eq!(stored, [a ^ c, b ^ d]);
    assert_eq!(
        verify_zilog2(&block, CHAIN, Form::Truncated),
        Ok(Endian::Little)
    );
    assert!(verify_zilog2(&block, CHAIN, Form::Full).is_err());
    // The checksum does not cover the MAC, which is verified with the key.
    block[170] ^= 1;
    assert!(verify_zilog2(&block, CHAIN, Form::Truncated).is_ok());
    block[500] ^= 1;
    assert!(verify_zilog2(&block, CHAIN, Form::Truncated).is_err());
}

#[test]
fn log_pointers_verify_through_the_checksummer() {
    let block = zilog2_block(500, 4096, Endian::Little);
    let mut bp = BlockPointer::default();
    bp.words[0] = 8;
    bp.words[1] = 8;
    bp.words[6] = 7 | 7 << 16 | 2 << 32 | 9 << 40 | 9 << 48 | 1 << 63;
    bp.words[12..].copy_from_slice(&CHAIN);
    let pool = crate::Checksummer::new(None);
    assert_eq!(pool.verify(&bp, &block), Ok(()));
    // The old form, 5, is another function with its trailer elsewhere.
    let mut old = vec![7u8; 4096];
    seal_zilog(&mut old, CHAIN, Form::Full).unwrap();
    let mut old_bp = bp;
    old_bp.words[6] ^= (9 ^ 5) << 40;
    assert_eq!(pool.verify(&old_bp, &old), Ok(()));
    assert!(pool.verify(&bp, &old).is_err() && pool.verify(&old_bp, &block).is_err());
    bp.words[15] += 1;
    assert!(pool.verify(&bp, &block).unwrap_err().is_damage());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_bytes_make_a_verifier_panic_and_sealed_ones_hold(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..900),
        magic in 0usize..3,
        nused in prop_oneof![0u64..6000, any::<u64>()],
        form in prop_oneof![Just(Form::Full), Just(Form::Truncated)],
        at in any::<prop::sample::Index>(),
    ) {
        // A plausible trailer at both possible positions.
        for place in [bytes.len().checked_sub(40), Some(144)].into_iter().flatten() {
            if let Some(field) = bytes.get_mut(place..place + 8) {
                match magic {
                    0 => field.copy_from_slice(&TRAILER_MAGIC.to_le_bytes()),
                    1 => field.copy_from_slice(&TRAILER_MAGIC.to_be_bytes()),
                    _ => {}
                }
            }
        }
        if let Some(field) = bytes.get_mut(136..144) {
            field.copy_from_slice(&nused.to_le_bytes());
        }
        prop_assert!(verify_label(&bytes, 0).is_err());
        prop_assert!(find_gang_header(&bytes, GANG, form).is_err());
        prop_assert!(verify_zilog(&bytes, CHAIN, form).is_err());
        prop_assert!(verify_zilog2(&bytes, CHAIN, form).is_err());

        if bytes.len() >= 40 {
            seal_label(&mut bytes, 77).unwrap();
            prop_assert_eq!(verify_label(&bytes, 77), Ok(Endian::Little));
            let at = at.index(bytes.len());
            bytes[at] ^= 0x10;
            prop_assert!(verify_label(&bytes, 77).is_err());
        }
        bytes.resize(bytes.len().next_multiple_of(16).max(48), 1);
        seal_zilog(&mut bytes, CHAIN, form).unwrap();
        prop_assert_eq!(verify_zilog(&bytes, CHAIN, form), Ok(Endian::Little));
    }
}
