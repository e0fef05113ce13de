use super::*;
use crate::acl::decode_acl;
use proptest::prelude::*;

use SaAttribute::*;

fn registrations(list: &[SaAttribute]) -> Vec<SaRegistration> {
    list.iter().map(|one| one.registration()).collect()
}

const FILE: [SaAttribute; 14] = [
    Mode, Size, Generation, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links, DaclCount,
    DaclAces,
];

fn root_directory() -> Vec<u8> {
    let words = |list: &[u64]| -> Vec<u8> { list.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let time = words(&[1_332_272_887, 150_483_340]);
    let aces = [
        0, 0, 0, 0x10, 0xbf, 0x01, 0x1e, 0, 0, 0, 0x40, 0x20, 0xa9, 0, 0x12, 0, 0, 0, 0, 0x40,
        0xa9, 0, 0x12, 0,
    ];
    let values: Vec<Vec<u8>> = vec![
        words(&[0o40755]),
        words(&[2]),
        words(&[4]),
        words(&[0]),
        words(&[0]),
        words(&[4]),
        words(&[0x408_0000_0144]),
        time.clone(),
        time.clone(),
        time.clone(),
        time,
        words(&[2]),
        words(&[3]),
        aces.to_vec(),
    ];
    let list = registrations(&FILE);
    let attributes: Vec<_> = list
        .iter()
        .zip(&values)
        .map(|(one, value)| (*one, value.as_slice()))
        .collect();
    encode_attributes(2, &attributes).unwrap()
}

#[test]
fn the_root_directory_of_a_real_pool_has_these_bytes() {
    let buffer = root_directory();
    assert_eq!(buffer.len(), 168);
    assert_eq!(
        buffer[..16],
        [
            0x5a, 0x50, 0x2f, 0, 0x02, 0x04, 0x18, 0, 0xed, 0x41, 0, 0, 0, 0, 0, 0
        ]
    );
    assert_eq!(
        buffer[0x38..0x50],
        [
            0x44, 1, 0, 0, 0x08, 4, 0, 0, 0xf7, 0xde, 0x68, 0x4f, 0, 0, 0, 0, 0x8c, 0x31, 0xf8, 8,
            0, 0, 0, 0
        ]
    );
    let header = SaHeader::decode(&buffer).unwrap();
    assert_eq!((header.layout, header.header_bytes), (2, 8));
    let fields = header.fields(&buffer, &registrations(&FILE)).unwrap();
    let last = fields.last().unwrap();
    assert_eq!((last.start, last.end), (144, 168));
    let entries = decode_acl(&buffer[last.start..last.end], header.endian, 3).unwrap();
    assert_eq!(entries[0].mask, 0x1e01bf);
}

#[test]
fn a_big_endian_header_is_recognised_by_its_magic() {
    let head = [
        0x00, 0x2f, 0x50, 0x5a, 0x04, 0x02, 0x00, 0x18, 0, 0, 0, 0, 0, 0, 0x41, 0x6d,
    ];
    let header = SaHeader::decode(&head).unwrap();
    assert_eq!(header.endian, Endian::Big);
    assert_eq!((header.layout, header.header_bytes), (2, 8));
}

#[test]
fn a_symlink_has_two_lengths_in_its_head() {
    let list = registrations(&[Mode, DaclAces, Symlink]);
    let buffer = encode_attributes(
        4,
        &[
            (list[0], &[0; 8]),
            (list[1], &[0; 24]),
            (list[2], b"abcdefghijk"),
        ],
    )
    .unwrap();
    assert_eq!(
        buffer[..16],
        [
            0x5a, 0x50, 0x2f, 0, 0x04, 0x08, 24, 0, 11, 0, 0, 0, 0, 0, 0, 0
        ]
    );
    assert_eq!(buffer.len(), 16 + 8 + 24 + 11);
    let header = SaHeader::decode(&buffer).unwrap();
    let fields = header.fields(&buffer, &list).unwrap();
    assert_eq!(&buffer[fields[2].start..fields[2].end], b"abcdefghijk");
}

#[test]
fn a_spill_of_entries_and_xattr_has_one_length() {
    let list = registrations(&[DaclAces, Xattr]);
    let buffer = encode_attributes(10, &[(list[0], &[1; 320]), (list[1], &[2; 8])]).unwrap();
    assert_eq!(buffer[..8], [0x5a, 0x50, 0x2f, 0, 0x0a, 0x04, 0x40, 0x01]);
    assert_eq!(buffer[0x148..], [2; 8]);
}

#[test]
fn zeros_mean_no_attributes_and_other_magics_are_errors() {
    let header = SaHeader::decode(&[0; 8]).unwrap();
    assert_eq!(header.layout, SA_LAYOUT_EMPTY);
    assert!(header.fields(&[0; 8], &[]).unwrap().is_empty());
    assert!(SaHeader::decode(&[1, 0, 0, 0, 0, 0, 0, 0]).is_err());
    assert!(SaHeader::decode(&[0, 0, 0, 0, 1, 0, 0, 0]).is_err());
    assert!(SaHeader::decode(&[0x5a, 0x50, 0x2f]).is_err());
}

#[test]
fn wrong_lengths_and_headers_are_errors() {
    let list = registrations(&FILE);
    let good = root_directory();
    let reason = |buffer: &[u8], list: &[SaRegistration]| {
        let header = SaHeader::decode(buffer).unwrap();
        header.fields(buffer, list).unwrap_err().reason
    };
    let mut bad = good.clone();
    bad[6] = 25;
    assert_eq!(reason(&bad, &list), "attribute reaches beyond the buffer");
    let mut bad = good.clone();
    bad[5] = 0x08;
    assert_eq!(reason(&bad, &list), "header length contradicts the layout");
    let twice = [Mode, Mode].map(SaAttribute::registration);
    assert_eq!(reason(&good, &twice), "layout names an attribute twice");
    assert_eq!(
        reason(&good[..7], &list),
        "attribute reaches beyond the buffer"
    );
    let variable = [DaclAces.registration()];
    assert_eq!(reason(&good[..7], &variable), "too short");
}

#[test]
fn registry_words_are_as_printed() {
    assert_eq!(DaclAces.registration().to_word(), 0x40013);
    assert_eq!(Mode.registration().to_word(), 0x0800_0005);
    for one in SaAttribute::ALL {
        let registration = one.registration();
        assert_eq!(
            SaRegistration::from_word(registration.to_word()).unwrap(),
            registration
        );
    }
    for (number, class) in (0..).zip([
        SaClass::U64,
        SaClass::U32,
        SaClass::U16,
        SaClass::Bytes,
        SaClass::Acl,
    ]) {
        let one = SaRegistration::from_word(0x1234 | number << 16 | 0x5678 << 24).unwrap();
        assert_eq!((one.number, one.class, one.length), (0x1234, class, 0x5678));
        assert_eq!(one.to_word(), 0x1234 | number << 16 | 0x5678 << 24);
        assert!(!one.is_variable());
    }
    assert!(DaclAces.registration().is_variable());
    assert!(SaRegistration::from_word(0x50000).is_err());
    assert!(SaRegistration::from_word(1 << 40).is_err());
}

/// A file with a project and an ACL of this size, followed by more attributes.
fn base(acl_bytes: usize, more: &[(usize, bool)]) -> Vec<(usize, bool)> {
    let mut list = vec![(8, false); 7];
    list.extend([(16, false); 4]);
    list.extend([(8, false), (8, false), (8, false), (acl_bytes, true)]);
    list.extend(more);
    list
}

#[test]
fn attributes_are_placed_where_openzfs_placed_them() {
    let whole = |list: &[(usize, bool)], dnode| {
        let placed = place_attributes(list, dnode);
        assert_eq!(placed.spill_bytes, None);
        assert_eq!(placed.bonus_attributes, list.len());
        (placed.bonus_header_bytes, placed.bonus_bytes)
    };
    assert_eq!(whole(&base(24, &[]), 512), (8, 176));
    assert_eq!(whole(&base(24, &[(136, true)]), 512), (16, 320));
    assert_eq!(whole(&base(160, &[]), 512), (8, 312));
    assert_eq!(whole(&base(24, &[(500, true)]), 1024), (16, 684));
    assert_eq!(whole(&base(24, &[(5000, true)]), 16384), (16, 5184));

    let spilled = place_attributes(&base(24, &[(137, true)]), 512);
    assert_eq!(
        spilled,
        SaPlacement {
            bonus_attributes: 15,
            bonus_header_bytes: 8,
            bonus_bytes: 192,
            spill_bytes: Some(8 + 137),
        }
    );
    let spilled = place_attributes(&base(320, &[(8, false)]), 512);
    assert_eq!((spilled.bonus_attributes, spilled.bonus_bytes), (14, 192));
    assert_eq!(spilled.spill_bytes, Some(8 + 320 + 8));
    let spilled = place_attributes(&base(24, &[(700, true)]), 1024);
    assert_eq!(spilled.bonus_bytes, 704);
    // A symlink has no project.
    let mut link = base(24, &[(11, true)]);
    link.remove(12);
    assert_eq!(whole(&link, 512), (16, 187));
    link.last_mut().unwrap().0 = 900;
    let spilled = place_attributes(&link, 512);
    assert_eq!(spilled.spill_bytes, Some(908));
}

#[test]
fn attributes_beyond_the_buffer_are_not_encoded() {
    let one = |length| SaRegistration {
        number: 0,
        class: SaClass::Bytes,
        length,
    };
    let reason = |layout, attributes: &[(SaRegistration, &[u8])]| {
        encode_attributes(layout, attributes)
            .map(|bytes| bytes.len())
            .map_err(|error| error.reason)
    };
    assert_eq!(reason(1023, &[]), Ok(8));
    assert_eq!(reason(1024, &[]), Err("layout number above 1023"));
    assert_eq!(reason(2, &[(one(3), b"abc")]), Ok(11));
    assert_eq!(
        reason(2, &[(one(3), b"ab")]),
        Err("value has not its registered length")
    );
    let longest = vec![1; 65_535];
    assert_eq!(reason(2, &[(one(0), &longest)]), Ok(8 + 65_535));
    let longer = vec![1; 65_536];
    assert_eq!(
        reason(2, &[(one(0), &longer)]),
        Err("attribute above 65535 bytes")
    );
    // 63 units of 8 bytes: 6 for the header, the others for lengths.
    let many = |count| vec![(one(0), &b""[..]); count];
    assert_eq!(reason(2, &many(249)), Ok(504));
    assert_eq!(
        reason(2, &many(250)),
        Err("too many attributes of variable length")
    );
    let bytes = encode_attributes(2, &many(249)).unwrap();
    let header = SaHeader::decode(&bytes).unwrap();
    assert_eq!((header.layout, header.header_bytes), (2, 504));
}

#[test]
fn the_borders_are_where_the_rule_has_them() {
    // Up to the position of the spill pointer, without overlap.
    let placed = place_attributes(&[(184, false), (200, false)], 512);
    assert_eq!((placed.bonus_attributes, placed.bonus_bytes), (1, 192));
    let placed = place_attributes(&[(185, false), (200, false)], 512);
    assert_eq!(placed.bonus_attributes, 0);
    // All of the space if only the first length is variable...
    let placed = place_attributes(&[(312, true)], 512);
    assert_eq!((placed.spill_bytes, placed.bonus_bytes), (None, 320));
    // ...and less than that if more lengths are: five attributes that would fill it exactly spill.
    let five = |last| {
        place_attributes(
            &[(8, true), (8, true), (8, true), (8, true), (last, true)],
            512,
        )
    };
    assert_eq!(five(271).spill_bytes, None);
    assert_eq!(five(272).bonus_attributes, 4);
    assert_eq!(five(272).spill_bytes, Some(8 + 272));
}

proptest! {
    #[test]
    fn encoded_attributes_are_found(
        parts in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 1..80)), 0..30),
        layout in 0u16..1024,
    ) {
        let attributes: Vec<(SaRegistration, &[u8])> = parts.iter().enumerate().map(|(number, (is_variable, value))| {
            let length = if *is_variable { 0 } else { value.len() as u16 };
            (SaRegistration { number: number as u16, class: SaClass::Bytes, length }, value.as_slice())
        }).collect();
        let buffer = encode_attributes(layout, &attributes).unwrap();
        let header = SaHeader::decode(&buffer).unwrap();
        prop_assert_eq!(header.layout, layout);
        let list: Vec<_> = attributes.iter().map(|(one, _)| *one).collect();
        let fields = header.fields(&buffer, &list).unwrap();
        for (field, (one, value)) in fields.iter().zip(&attributes) {
            prop_assert_eq!(field.number, one.number);
            prop_assert_eq!(field.start % 8, 0);
            prop_assert_eq!(&buffer[field.start..field.end], *value);
        }
    }

    #[test]
    fn placed_attributes_fit(
        list in proptest::collection::vec((1usize..900, any::<bool>()), 0..24),
        slots in 1usize..32,
    ) {
        let placed = place_attributes(&list, slots * 512);
        prop_assert!(placed.bonus_attributes <= list.len());
        let full = slots * 512 - 192;
        let limit = if placed.spill_bytes.is_some() { full - 128 } else { full };
        let kept = &list[..placed.bonus_attributes];
        let end = kept.iter().fold(0usize, |total, (length, _)| total.next_multiple_of(8) + length);
        let variable = kept.iter().filter(|(_, is_variable)| *is_variable).count();
        prop_assert_eq!(placed.bonus_header_bytes, header_length(variable));
        prop_assert!(end + placed.bonus_header_bytes <= limit);
        prop_assert_eq!(placed.spill_bytes.is_some(), placed.bonus_attributes < list.len());
    }

    #[test]
    fn any_bytes_are_a_buffer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300), is_big in any::<bool>()) {
        let mut bytes = bytes;
        if bytes.len() > 4 {
            let magic = if is_big { MAGIC.to_be_bytes() } else { MAGIC.to_le_bytes() };
            bytes[..4].copy_from_slice(&magic);
        }
        if let Ok(header) = SaHeader::decode(&bytes)
            && let Ok(fields) = header.fields(&bytes, &registrations(&FILE))
        {
            prop_assert!(fields.iter().all(|field| field.start <= field.end && field.end <= bytes.len()));
        }
    }
}
