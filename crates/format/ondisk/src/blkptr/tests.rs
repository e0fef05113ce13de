use super::*;
use crate::testing::hex;

/// The root pointer of a one-disk pool, as stored in an uberblock.
const ROOT: &str = "080000000000000090190000000000000800000000000000a08d0000000000000800000000000000b0060100000000000700070002070b80000000000000000000000000000000000000000000000000290000000000000034 00000000000000bb754d10030000002df95c59c30b00000d3fb6f5359b1600d0b59bcdcf70fe1c";

#[test]
fn a_root_pointer_decodes_and_encodes_to_equal_bytes() {
    let bytes = hex(ROOT);
    let bp = BlockPointer::decode(&bytes, Endian::Little).unwrap();
    let dvas: Vec<_> = bp.dvas().collect();
    assert_eq!(dvas.len(), 3);
    assert_eq!(dvas[0].offset_bytes, 0x332000);
    assert_eq!(dvas[1].offset_bytes, 0x11b4000);
    assert_eq!(dvas[2].asize_bytes, 0x1000);
    assert_eq!((bp.lsize_bytes(), bp.psize_bytes()), (0x1000, 0x1000));
    assert_eq!(bp.checksum_kind(), Some(ChecksumKind::Fletcher4));
    assert_eq!(bp.compression(), Some(CompressionKind::Off));
    assert_eq!(bp.object_type(), ObjectType::OBJECT_SET);
    assert_eq!(
        (bp.birth(), bp.physical_birth(), bp.fill()),
        (Txg(41), Txg(41), 52)
    );
    assert_eq!(bp.endian(), Endian::Little);
    assert_eq!(bp.validate(), Ok(()));
    assert_eq!(bp.encode().as_slice(), bytes.as_slice());
}

#[test]
fn an_embedded_payload_skips_the_two_property_words() {
    let mut bp = BlockPointer::default();
    bp.words[0] = 0x0100_0321_1800_0000;
    bp.words[6] = 0x800f_008f_3600_01ff;
    bp.words[10] = 4;
    assert!(bp.is_embedded() && !bp.is_hole());
    assert_eq!(bp.lsize_bytes(), 512);
    assert_eq!(bp.embedded_payload().unwrap().as_bytes().len(), 28);
    assert_eq!(
        &bp.embedded_payload().unwrap().as_bytes()[..8],
        &[0, 0, 0, 0x18, 0x21, 3, 0, 1]
    );
    assert_eq!(bp.dvas().count(), 0);
    assert_eq!(bp.fill(), 1);
}

#[test]
fn a_hole_with_a_birth_keeps_size_type_and_level() {
    let mut bp = BlockPointer::default();
    bp.words[6] = 0x0019_0000_0000_0007;
    bp.words[10] = 12;
    assert!(bp.is_hole());
    assert_eq!(bp.lsize_bytes(), 4096);
    assert_eq!(bp.object_type(), ObjectType::OTHER_U8);
    assert_eq!(bp.validate(), Ok(()));
}

#[test]
fn an_address_keeps_each_of_its_four_parts_in_its_own_bits() {
    let first = 0x00ab_cdef_0012_3456;
    let read = Dva::from_words([first, 1 << 63 | 0x1234_5678_9abc]).unwrap();
    assert_eq!(
        (read.vdev, read.asize_bytes, read.offset_bytes, read.is_gang),
        (
            VdevId(0xab_cdef),
            0x12_3456 * 512,
            0x1234_5678_9abc * 512,
            true
        )
    );
    assert_eq!(read.to_words(), [first, 1 << 63 | 0x1234_5678_9abc]);
    let plain = Dva::from_words([1, 7]).unwrap();
    assert_eq!(
        (plain.offset_bytes, plain.is_gang, plain.to_words()),
        (7 * 512, false, [1, 7])
    );
    // The top byte of each half is padding, and an impossible offset saturates.
    let padded = Dva::from_words([0xff00_0001_ff00_0001, u64::MAX]).unwrap();
    assert_eq!((padded.vdev, padded.asize_bytes), (VdevId(1), 512));
    assert_eq!(padded.offset_bytes, u64::MAX);
    assert_eq!(Dva::from_words([0xffff_ffff_ff00_0000, 5]), None);
}

#[test]
fn the_allocated_size_is_the_sum_of_all_copies() {
    let bp = BlockPointer::decode(&hex(ROOT), Endian::Little).unwrap();
    assert_eq!(bp.asize_bytes(), 0x3000);
    assert_eq!(BlockPointer::default().asize_bytes(), 0);
}

/// A synthetic pointer: one address, LZ4, Fletcher-4, a plain file, births 30 and 20.
fn stored() -> BlockPointer {
    let mut bp = BlockPointer::default();
    bp.words[0] = 0x0000_0002_0000_0010;
    bp.words[1] = 0x8000;
    bp.words[2] = 0x0000_0003_0000_0020;
    bp.words[3] = 0x9000;
    bp.words[6] = 0x8013_070f_0007_00ff;
    bp.words[9] = 20;
    bp.words[10] = 30;
    bp.words[11] = 0x0000_0005_0000_0007;
    for (word, value) in (12..16).zip([12, 13, 14, 15]) {
        bp.words[word] = value;
    }
    bp
}

/// The same with additional bits of the property word.
fn with_bits(bits: u64) -> BlockPointer {
    let mut bp = stored();
    bp.words[6] |= bits;
    bp
}

const EMBEDDED: u64 = 1 << 39;
const CRYPT: u64 = 1 << 61;
const DEDUP: u64 = 1 << 62;

#[test]
fn births_fill_and_checksum_are_read_from_their_words() {
    let bp = stored();
    assert_eq!((bp.birth(), bp.physical_birth()), (Txg(30), Txg(20)));
    assert_eq!(bp.allocation_birth(), Txg(30));
    assert_eq!(bp.fill(), 0x0000_0005_0000_0007);
    assert_eq!(bp.checksum_words(), [12, 13, 14, 15]);
    assert_eq!(bp.asize_bytes(), (0x10 + 0x20) * 512);
    assert!(!bp.is_rewritten() && !bp.is_dedup() && !bp.has_crypt_bit());
    let mut rewritten = bp;
    rewritten.words[7] = 1 << 63;
    assert!(rewritten.is_rewritten());
    assert_eq!(rewritten.allocation_birth(), Txg(20));
    rewritten.words[7] = !(1 << 63);
    assert!(!rewritten.is_rewritten());
    let mut young = bp;
    young.words[9] = 0;
    assert_eq!(young.physical_birth(), Txg(30));
    let embedded = with_bits(EMBEDDED);
    assert_eq!(embedded.physical_birth(), Txg(0));
    assert_eq!(embedded.fill(), 1);
    assert_eq!(embedded.asize_bytes(), 0);
    // The payload of an embedded pointer contains no flags.
    let mut full = BlockPointer {
        words: [u64::MAX; 16],
    };
    full.words[6] = EMBEDDED;
    assert!(!full.is_rewritten());
}

#[test]
fn a_rewritten_block_keeps_its_logical_birth() {
    let mut new = stored();
    (new.words[9], new.words[10]) = (0, 40);
    let kept = new.rewritten_from(Txg(30));
    assert!(kept.is_rewritten());
    assert_eq!((kept.birth(), kept.physical_birth()), (Txg(30), Txg(40)));
    assert_eq!(kept.allocation_birth(), Txg(40));
    assert_eq!(kept.checksum_words(), new.checksum_words());
    // A clone and a further write are ordinary blocks.
    assert!(!kept.cloned_in(Txg(50)).is_rewritten());
    assert_eq!(kept.cloned_in(Txg(50)).physical_birth(), Txg(40));
    // Without an older birth, without space, and in a dedup table it is a new block.
    let mut deduplicated = new;
    deduplicated.set_dedup_bit();
    let mut embedded = with_bits(EMBEDDED);
    embedded.words[10] = 40;
    for (pointer, birth) in [(new, 40), (new, 0), (deduplicated, 30), (embedded, 30)] {
        assert_eq!(pointer.rewritten_from(Txg(birth)), pointer, "{birth}");
    }
}

#[test]
fn the_crypt_bit_has_three_meanings_and_none_when_embedded() {
    let properties_of = |bp: &BlockPointer| {
        [
            bp.has_crypt_bit(),
            bp.is_encrypted(),
            bp.is_authenticated(),
            bp.has_indirect_mac(),
        ]
    };
    assert_eq!(properties_of(&stored()), [false; 4]);
    let file = with_bits(CRYPT);
    assert_eq!(properties_of(&file), [true, true, false, false]);
    let mut plain = file;
    // Type 11, an object set, is never encrypted.
    plain.words[6] = plain.words[6] & !(0xff << 48) | 11 << 48;
    assert_eq!(properties_of(&plain), [true, false, true, false]);
    let indirect = with_bits(CRYPT | 1 << 56);
    assert_eq!(properties_of(&indirect), [true, false, false, true]);
    let mut plain_indirect = plain;
    plain_indirect.words[6] |= 1 << 56;
    assert_eq!(properties_of(&plain_indirect), [true, false, false, true]);
    assert_eq!(properties_of(&with_bits(1 << 56)), [false; 4]);
    assert_eq!(properties_of(&with_bits(CRYPT | EMBEDDED)), [false; 4]);
    assert!(with_bits(DEDUP).is_dedup() && !with_bits(DEDUP | EMBEDDED).is_dedup());
}

#[test]
fn an_encrypted_pointer_has_two_dvas_salt_iv_and_mac() {
    let mut bp = with_bits(CRYPT);
    bp.words[4] = 0x0807_0605_0403_0201;
    bp.words[5] = 0x1817_1615_1413_1211;
    bp.words[11] = 0x2423_2221_0000_0007;
    bp.words[14] = 0x3837_3635_3433_3231;
    bp.words[15] = 0x4847_4645_4443_4241;
    assert_eq!((bp.dvas().count(), bp.fill()), (2, 7));
    assert_eq!(bp.crypt_salt(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let iv = [
        0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24,
    ];
    assert_eq!(bp.crypt_iv(), iv);
    let mac: Vec<u8> = (0x31..0x39).chain(0x41..0x49).collect();
    assert_eq!(bp.crypt_mac().as_slice(), mac);
    // A writer of the other byte order stores the same words in the other order.
    bp.words[6] &= !(1 << 63);
    assert_eq!(bp.endian(), Endian::Big);
    assert_eq!(bp.crypt_salt(), [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(
        bp.crypt_iv(),
        [
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21
        ]
    );
    let mac: Vec<u8> = (0x31..0x39).rev().chain((0x41..0x49).rev()).collect();
    assert_eq!(bp.crypt_mac().as_slice(), mac);
    // Without the bit, the same words are a third address.
    bp.words[6] &= !CRYPT;
    assert_eq!(bp.dvas().count(), 3);
}

#[test]
fn a_block_is_a_gang_block_if_its_first_dva_is() {
    let mut bp = stored();
    assert!(!bp.is_gang());
    bp.words[3] |= 1 << 63;
    assert!(!bp.is_gang());
    bp.words[1] |= 1 << 63;
    assert!(bp.is_gang());
}

#[test]
fn the_kind_of_an_embedded_payload_is_recognised() {
    assert_eq!(stored().embedded_kind(), None);
    assert_eq!(stored().embedded_payload(), None);
    let kind = |number: u64| {
        let mut bp = with_bits(EMBEDDED);
        bp.words[6] = bp.words[6] & !(0xff << 40) | number << 40;
        bp.embedded_kind()
    };
    assert_eq!(kind(0), Some(EmbeddedKind::Data));
    assert_eq!(kind(2), Some(EmbeddedKind::Redacted));
    assert_eq!(kind(1), Some(EmbeddedKind::Unknown(1)));
    assert_eq!(kind(255), Some(EmbeddedKind::Unknown(255)));
    assert_eq!(with_bits(EMBEDDED).checksum_kind(), None);
    let long = |psize: u64| {
        let mut bp = BlockPointer::default();
        bp.words[6] = EMBEDDED | (psize - 1) << 25;
        bp.embedded_payload()
            .map(|payload| payload.as_bytes().len())
    };
    assert_eq!((long(1), long(112), long(113)), (Some(1), Some(112), None));
}

#[test]
fn pointers_are_equal_if_dvas_and_births_are_equal() {
    let bp = stored();
    for word in 0..16 {
        let mut other = bp;
        other.words[word] ^= 1 << 30;
        let counts = word < 6 || word == 9 || word == 10;
        assert_eq!(bp.is_same_block(&other), !counts, "word {word}");
    }
    // A physical birth of 0 means the logical birth.
    let (mut old, mut new) = (bp, bp);
    old.words[9] = 0;
    new.words[9] = 30;
    assert!(old.is_same_block(&new));
}

/// The reason and the byte offset in [`BlockPointer::validate`]'s error for this property word.
fn refused(word: u64) -> Option<(&'static str, u32)> {
    let mut bp = stored();
    bp.words[6] = word;
    bp.validate()
        .err()
        .map(|error| (error.reason, error.offset))
}

#[test]
fn each_broken_rule_is_named_with_its_byte() {
    let word = stored().words[6];
    let without = |low: u32, width: u32| word & !(((1u64 << width) - 1) << low);
    assert_eq!(refused(word), None);
    assert_eq!(
        refused(without(48, 8) | 0x80 << 48 | 0x7f << 48),
        Some(("object type does not exist", 54))
    );
    assert_eq!(
        refused(without(32, 7) | 0x7f << 32),
        Some(("compression function does not exist", 52))
    );
    assert_eq!(
        refused(without(40, 8) | 0xff << 40),
        Some(("checksum function does not exist", 53))
    );
    // 32,768 sectors are 16 MiB: the largest valid size.
    assert_eq!(refused(without(0, 16) | 0x7fff), None);
    assert_eq!(
        refused(without(0, 16) | 0x8000),
        Some(("logical size above 16 MiB", 48))
    );
    assert_eq!(refused(without(16, 16) | 0x7fff << 16), None);
    assert_eq!(
        refused(without(16, 16) | 0x8000 << 16),
        Some(("physical size above 16 MiB", 50))
    );
    let embedded =
        |kind: u64, psize: u64| EMBEDDED | 19 << 48 | kind << 40 | 15 << 32 | (psize - 1) << 25;
    assert_eq!(refused(embedded(0, 112)), None);
    assert_eq!(refused(embedded(2, 1)), None);
    assert_eq!(
        refused(embedded(1, 1)),
        Some(("kind of embedded payload does not exist", 53))
    );
    assert_eq!(
        refused(embedded(0, 113)),
        Some(("embedded payload above 112 bytes", 51))
    );
    let mut unaddressed = stored();
    unaddressed.words[0] = 0;
    let error = unaddressed.validate().unwrap_err();
    assert_eq!((error.reason, error.offset), ("first address is unused", 0));
    assert_eq!(BlockPointer::default().validate(), Ok(()));
    let full = BlockPointer {
        words: [u64::MAX; 16],
    };
    assert!(full.validate().is_err());
    // A word other than 0 requires a type.
    let mut typeless = BlockPointer::default();
    typeless.words[10] = 5;
    assert_eq!(
        typeless.validate().is_ok(),
        typeless.object_type().is_valid()
    );
}

#[test]
fn indirect_blocks_are_byteswapped_as_words() {
    let text = stored();
    assert_eq!(text.content_byteswap(), text.object_type().byteswap());
    assert_ne!(text.content_byteswap(), Some(ByteswapClass::U64));
    assert_eq!(
        with_bits(1 << 56).content_byteswap(),
        Some(ByteswapClass::U64)
    );
}

#[test]
fn a_pointer_is_printed_for_people() {
    let text = format!("{:?}", stored());
    for part in [
        "<2:1000000:2000>",
        "<3:1200000:4000>",
        "L0 ",
        "20000L/1000P",
        "birth=30/20",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("gang"));
    let mut hole = BlockPointer::default();
    hole.words[10] = 9;
    assert_eq!(format!("{hole:?}"), "BlockPointer(hole birth=9)");
}
