use crate::{DEPTH_MAX, EncodeError, LookupError, NvList, NvPair, NvString, NvType, NvValue};
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|d| d as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn one(name: &str, value: impl Into<NvValue>) -> NvList {
    let mut list = NvList::new();
    list.push(name, value);
    list
}

/// Lists and their bytes as the reference library writes them (XDR, and native where known).
fn vectors() -> Vec<(NvList, &'static str, Option<&'static str>)> {
    let mut y = NvList::new();
    y.insert_flag("y");
    vec![
        (
            NvList::new(),
            "0101000000000000000000010000000000000000",
            Some("00010000000000000100000000000000"),
        ),
        (
            one("b", NvValue::Boolean),
            "010100000000000000000001 00000018 00000018 00000001 62000000 00000001 00000000 0000000000000000",
            Some("000100000000000001000000 18000000 0200 0000 00000000 01000000 6200000000000000 00000000"),
        ),
        (
            one("bv", true),
            "010100000000000000000001 0000001c 00000020 00000002 62760000 00000015 00000001 00000001 0000000000000000",
            None,
        ),
        (
            one("u8", NvValue::Uint8(0xfe)),
            "010100000000000000000001 0000001c 00000020 00000002 75380000 00000017 00000001 fffffffe 0000000000000000",
            None,
        ),
        (
            one("u16", 0xfffeu16),
            "010100000000000000000001 0000001c 00000020 00000003 75313600 00000004 00000001 0000fffe 0000000000000000",
            None,
        ),
        (
            one("abc", 0x0102_0304_0506_0708u64),
            "010100000000000000000001 00000020 00000020 00000003 61626300 00000008 00000001 0102030405060708 0000000000000000",
            Some("000100000000000001000000 20000000 0400 0000 01000000 08000000 6162630000000000 0807060504030201 00000000"),
        ),
        (
            one("name", "tank"),
            "010100000000000000000001 00000020 00000020 00000004 6e616d65 00000009 00000001 00000004 74616e6b 0000000000000000",
            None,
        ),
        (
            one("ba", NvValue::ByteArray(vec![1, 2, 3])),
            "010100000000000000000001 0000001c 00000020 00000002 62610000 0000000a 00000003 01020300 0000000000000000",
            None,
        ),
        (
            one("ua", NvValue::Uint8Array(vec![1, 255, 3])),
            "010100000000000000000001 00000028 00000020 00000002 75610000 0000001a 00000003 00000003 00000001 ffffffff 00000003 0000000000000000",
            None,
        ),
        (
            one("h", vec![1u64, 2]),
            "010100000000000000000001 0000002c 00000028 00000001 68000000 00000010 00000002 00000002 0000000000000001 0000000000000002 0000000000000000",
            None,
        ),
        (
            one("sa", vec![NvString::from("a"), NvString::from("bcd")]),
            "010100000000000000000001 00000028 00000030 00000002 73610000 00000011 00000002 00000001 61000000 00000003 62636400 0000000000000000",
            Some("000100000000000001000000 30000000 0300 0000 02000000 11000000 7361000000000000 0000000000000000 0000000000000000 6100626364000000 00000000"),
        ),
        (
            one("n", one("x", 5u64)),
            "010100000000000000000001 00000048 00000030 00000001 6e000000 00000013 00000001
             00000000 00000001 00000020 00000020 00000001 78000000 00000008 00000001 0000000000000005 0000000000000000 0000000000000000",
            Some("000100000000000001000000 30000000 0200 0000 01000000 13000000 6e00000000000000
             00000000 01000000 0000000000000000 00000000 00000000  20000000 0200 0000 01000000 08000000 7800000000000000 0500000000000000 00000000 00000000"),
        ),
        (
            one("c", vec![y, NvList::new()]),
            "010100000000000000000001 00000050 00000058 00000001 63000000 00000014 00000002
             00000000 00000001 00000018 00000018 00000001 79000000 00000001 00000000 0000000000000000  00000000 00000001 0000000000000000  0000000000000000",
            None,
        ),
        (
            one("e", NvValue::ListArray(vec![])),
            "010100000000000000000001 00000018 00000018 00000001 65000000 00000014 00000000 0000000000000000",
            None,
        ),
    ]
}

#[test]
fn the_reference_librarys_bytes_decode_and_encode_to_themselves() {
    for (list, xdr, native) in vectors() {
        assert_eq!(NvList::decode(&hex(xdr)).unwrap(), list);
        assert_eq!(list.encode_xdr().unwrap(), hex(xdr));
        if let Some(native) = native {
            assert_eq!(NvList::decode(&hex(native)).unwrap(), list);
            assert_eq!(list.encode_native().unwrap(), hex(native));
        }
    }
}

#[test]
fn every_type_number_names_one_type() {
    for kind in NvType::ALL {
        assert_eq!(NvType::from_number(kind.number()), Some(*kind));
    }
    assert_eq!(NvType::ALL.len(), 27);
    assert_eq!(NvType::from_number(0), None);
    assert_eq!(NvType::from_number(28), None);
}

#[test]
fn a_foreign_native_list_is_read_with_swapping() {
    let bytes = hex(
        "000000000000000000000001 00000020 0004 0000 00000001 00000008 6162630000000000 0102030405060708 00000000",
    );
    assert_eq!(
        NvList::decode(&bytes).unwrap(),
        one("abc", 0x0102_0304_0506_0708u64)
    );
}

#[test]
fn the_order_byte_of_xdr_is_ignored() {
    let mut bytes = one("abc", 1u64).encode_xdr().unwrap();
    bytes[1] = 0;
    assert_eq!(NvList::decode(&bytes).unwrap(), one("abc", 1u64));
}

#[test]
fn bytes_after_the_list_are_ignored_and_not_counted() {
    let packed = one("abc", 1u64).encode_xdr().unwrap();
    let mut padded = packed.clone();
    padded.resize(packed.len() + 100, 0);
    let (list, consumed) = NvList::decode_prefix(&padded).unwrap();
    assert_eq!(list, one("abc", 1u64));
    assert_eq!(consumed, packed.len());
}

#[test]
fn of_a_repeated_name_the_last_value_counts() {
    let mut list = NvList::new();
    list.push("a", 1u64);
    list.push("a", 2u64);
    let again = NvList::decode(&list.encode_xdr().unwrap()).unwrap();
    assert_eq!(again.len(), 2);
    assert_eq!(again.u64("a"), Ok(2));
    list.insert("a", 3u64);
    assert_eq!((list.len(), list.u64("a")), (2, Ok(3)));
    assert!(list.remove("a"));
    assert!(list.is_empty());
}

#[test]
fn failed_lookups_name_the_cause() {
    let mut list = one("a", 1u64);
    list.insert("s", NvString::from(&b"\xff"[..]));
    assert_eq!(
        list.string("a"),
        Err(LookupError::WrongType {
            name: "a".into(),
            expected: NvType::String,
            found: NvType::Uint64
        })
    );
    assert_eq!(
        list.u64("b"),
        Err(LookupError::Missing { name: "b".into() })
    );
    assert_eq!(list.opt_u64("b"), Ok(None));
    assert_eq!(
        list.string("s"),
        Err(LookupError::NotUtf8 { name: "s".into() })
    );
    assert_eq!(list.raw_string("s").unwrap().as_bytes(), b"\xff");
}

#[test]
fn a_wrong_decoded_size_is_refused_a_wrong_encoded_one_not() {
    let good = one("abc", 1u64).encode_xdr().unwrap();
    let mut encoded = good.clone();
    encoded[15] ^= 0xff;
    assert!(NvList::decode(&encoded).is_ok());
    for delta in [-8i8, -1, 1, 8] {
        let mut decoded = good.clone();
        decoded[19] = decoded[19].wrapping_add_signed(delta);
        assert_eq!(
            NvList::decode(&decoded).unwrap_err().reason,
            "decoded size of a pair is wrong"
        );
    }
}

#[test]
fn a_list_without_its_end_is_an_error_at_every_length() {
    for (list, _, _) in vectors() {
        for bytes in [list.encode_xdr().unwrap(), list.encode_native().unwrap()] {
            for length in 0..bytes.len() {
                assert!(NvList::decode(&bytes[..length]).is_err());
            }
        }
    }
}

fn nested(depth: usize) -> NvList {
    (0..depth).fold(NvList::new(), |inner, _| one("n", inner))
}

#[test]
fn twenty_levels_are_read_and_written_and_one_more_is_neither() {
    let list = nested(DEPTH_MAX);
    assert_eq!(NvList::decode(&list.encode_xdr().unwrap()).unwrap(), list);
    assert_eq!(
        NvList::decode(&list.encode_native().unwrap()).unwrap(),
        list
    );
    let list = nested(DEPTH_MAX + 1);
    assert_eq!(list.encode_xdr(), Err(EncodeError::TooDeep));
    assert_eq!(list.encode_native(), Err(EncodeError::TooDeep));
    // The same from bytes: a long run of pair headers, each of which opens another list.
    let mut bytes = hex("01010000");
    for _ in 0..100_000 {
        bytes.extend(hex(
            "00000000 00000001 00000000 00000030 00000001 6e000000 00000013 00000001",
        ));
    }
    assert_eq!(
        NvList::decode(&bytes).unwrap_err().reason,
        "lists nest deeper than 20"
    );
}

#[test]
fn counts_beyond_the_input_fail_without_memory_for_them() {
    for kind in NvType::ALL {
        for count in [2u32, 0x10_0000, 0x7fff_ffff, u32::MAX] {
            let mut xdr = hex("010100000000000000000001 00000018 7fffffff 00000001 61000000");
            xdr.extend(kind.number().to_be_bytes());
            xdr.extend(count.to_be_bytes());
            xdr.extend(count.to_be_bytes());
            xdr.extend([0; 16]);
            assert!(NvList::decode(&xdr).is_err(), "{kind} {count}");
            let mut native = hex("000100000000000001000000 30000000 0200 0000");
            native.extend(count.to_le_bytes());
            native.extend(kind.number().to_le_bytes());
            native.extend(hex("6100000000000000"));
            native.extend([0; 36]);
            let _ = NvList::decode(&native);
        }
    }
}

#[test]
fn a_nul_in_a_name_or_string_is_neither_read_nor_written() {
    for list in [one("a\0b", 1u64), one("a", "x\0y")] {
        assert_eq!(list.encode_xdr(), Err(EncodeError::NulInString));
        assert_eq!(list.encode_native(), Err(EncodeError::NulInString));
    }
    let mut bytes = one("name", "tank").encode_xdr().unwrap();
    let at = bytes.windows(4).position(|w| w == b"tank").unwrap();
    bytes[at] = 0;
    assert_eq!(
        NvList::decode(&bytes).unwrap_err().reason,
        "NUL inside a string"
    );
}

#[test]
fn text_is_indented_like_that_of_the_label_dumper() {
    let mut leaf = one("type", "disk");
    leaf.insert("id", 0u64);
    let mut list = one("version", 5000u64);
    list.insert("children", vec![leaf]);
    let mut features = NvList::new();
    features.insert_flag("a:b");
    list.insert("features_for_read", features);
    assert_eq!(
        list.to_string(),
        "version: 5000\nchildren[0]:\n    type: 'disk'\n    id: 0\nfeatures_for_read:\n    a:b\n"
    );
}

#[test]
fn a_list_keeps_the_flags_that_its_writer_gave_it() {
    assert_eq!(NvList::new().flags(), NvList::UNIQUE_NAME);
    for flags in [0, NvList::UNIQUE_NAME_AND_TYPE, 7] {
        let mut list = NvList::with_flags(flags);
        list.push("a", 1u64);
        for bytes in [list.encode_xdr().unwrap(), list.encode_native().unwrap()] {
            assert_eq!(NvList::decode(&bytes).unwrap().flags(), flags);
        }
    }
}

#[test]
fn presence_queries_return_both_answers() {
    let mut list = NvList::new();
    assert!(list.is_empty() && !list.contains("a"));
    list.insert_flag("a");
    list.insert("yes", true);
    list.insert("no", false);
    list.insert("one", 1u64);
    list.insert("zero", 0u64);
    assert!(!list.is_empty() && list.contains("a") && !list.contains("b"));
    let names = ["a", "yes", "no", "one", "absent"];
    let flags = names.map(|name| list.flag(name));
    assert_eq!(flags, [true, true, false, false, false]);
    let names = ["one", "zero", "yes", "absent"];
    let set = names.map(|name| list.u64_is_set(name));
    assert_eq!(set, [true, false, false, false]);
    assert!(list.remove("a") && !list.remove("a"));
}

#[test]
fn optional_pairs_are_none_or_of_the_right_type() {
    let mut list = one("text", "tank");
    list.insert("number", 7u64);
    list.insert("latin", NvString::from(&b"\xe9"[..]));
    assert!(matches!(
        list.opt_string("latin"),
        Err(LookupError::NotUtf8 { .. })
    ));
    assert_eq!(list.opt_string("text"), Ok(Some("tank")));
    assert_eq!(list.opt_string("absent"), Ok(None));
    assert_eq!(list.opt_u64("number"), Ok(Some(7)));
    assert!(list.opt_string("number").is_err());
    assert!(list.opt_u64("text").is_err());
}

#[test]
fn a_list_collected_from_pairs_has_them_in_order() {
    let mut list = one("b", 1u64);
    list.push("a", 2u64);
    let again: NvList = list.iter().cloned().collect();
    assert_eq!(again, list);
    let counted = (&again).into_iter().count();
    assert_eq!((again.len(), counted), (2, 2));
}

#[test]
fn an_unknown_byte_order_differs_from_an_unknown_encoding() {
    let order = NvList::decode(&[0, 2, 0, 0]).unwrap_err();
    assert_eq!(
        (order.reason, order.offset),
        ("byte order does not exist", 1)
    );
    let encoding = NvList::decode(&[2, 1, 0, 0]).unwrap_err();
    assert_eq!(
        (encoding.reason, encoding.offset),
        ("encoding does not exist", 0)
    );
}

#[test]
fn a_nul_inside_a_native_name_is_refused() {
    let mut bytes = one("abc", 1u64).encode_native().unwrap();
    let at = bytes.windows(4).position(|four| four == b"abc\0").unwrap();
    bytes[at + 1] = 0;
    let error = NvList::decode(&bytes).unwrap_err();
    assert_eq!(error.reason, "a pair's name does not end with NUL");
}

#[test]
fn an_array_that_ends_the_input_lacks_only_the_list_end() {
    let whole = one("a", vec![1u64, 2]).encode_xdr().unwrap();
    let cut = whole.len() - 8;
    let error = NvList::decode(&whole[..cut]).unwrap_err();
    assert_eq!(error.offset as usize, cut);
    let error = NvList::decode(&whole[..cut - 1]).unwrap_err();
    assert!((error.offset as usize) < cut - 8);
}

#[test]
fn text_shows_each_element_of_an_array() {
    let mut list = one("words", vec![NvString::from("x"), NvString::from("y z")]);
    list.insert("numbers", vec![7u64, 8]);
    let lines = [
        "words[0]: 'x'",
        "words[1]: 'y z'",
        "numbers[0]: 7",
        "numbers[1]: 8",
        "",
    ];
    assert_eq!(list.to_string(), lines.join("\n"));
}

#[test]
fn equal_strings_are_equal_whatever_their_source() {
    let made = [
        NvString::from("tank"),
        NvString::from("tank".to_owned()),
        NvString::from(&b"tank"[..]),
        NvString::from(b"tank".to_vec()),
    ];
    for string in made {
        assert_eq!(
            (string.as_bytes(), string.as_ref()),
            (&b"tank"[..], &b"tank"[..])
        );
        assert_eq!((string.to_str(), string.len()), (Some("tank"), 4));
        assert!(!string.is_empty());
        assert_eq!(format!("{string:?}"), "\"tank\"");
    }
    assert!(NvString::default().is_empty());
    assert_eq!(NvString::from(&b"\xff"[..]).to_str(), None);
}

#[test]
fn a_type_is_called_by_its_name() {
    assert_eq!(NvType::Uint64.to_string(), "uint64");
    assert_eq!(NvType::ListArray.to_string(), NvType::ListArray.name());
}

fn any_string() -> impl Strategy<Value = NvString> {
    proptest::collection::vec(1u8..=255, 0..12).prop_map(NvString::from)
}

fn vec_of<T: Strategy>(item: T) -> impl Strategy<Value = Vec<T::Value>> {
    proptest::collection::vec(item, 0..6)
}

fn any_value() -> impl Strategy<Value = NvValue> {
    let scalar = prop_oneof![
        Just(NvValue::Boolean),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i8>().prop_map(NvValue::Int8),
        any::<u8>().prop_map(NvValue::Uint8),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u16>().prop_map(NvValue::Uint16),
        any::<i32>().prop_map(NvValue::Int32),
        any::<u32>().prop_map(NvValue::Uint32),
        any::<i64>().prop_map(NvValue::Int64),
        any::<u64>().prop_map(NvValue::Uint64),
        any::<i64>().prop_map(NvValue::HrTime),
        any::<u64>().prop_map(NvValue::Double),
        any::<bool>().prop_map(NvValue::BooleanValue),
        any_string().prop_map(NvValue::String),
    ];
    let array = prop_oneof![
        vec_of(any::<u8>()).prop_map(NvValue::ByteArray),
        vec_of(any::<i8>()).prop_map(NvValue::Int8Array),
        vec_of(any::<u8>()).prop_map(NvValue::Uint8Array),
        vec_of(any::<i16>()).prop_map(NvValue::Int16Array),
        vec_of(any::<u16>()).prop_map(NvValue::Uint16Array),
        vec_of(any::<i32>()).prop_map(NvValue::Int32Array),
        vec_of(any::<u32>()).prop_map(NvValue::Uint32Array),
        vec_of(any::<i64>()).prop_map(NvValue::Int64Array),
        vec_of(any::<u64>()).prop_map(NvValue::Uint64Array),
        vec_of(any::<bool>()).prop_map(NvValue::BooleanArray),
        vec_of(any_string()).prop_map(NvValue::StringArray),
    ];
    prop_oneof![scalar, array]
}

fn any_list() -> impl Strategy<Value = NvList> {
    let leaf = list_of(any_value());
    leaf.prop_recursive(3, 24, 4, |inner| {
        list_of(prop_oneof![
            any_value(),
            inner.clone().prop_map(NvValue::List),
            proptest::collection::vec(inner, 0..3).prop_map(NvValue::ListArray),
        ])
    })
}

fn list_of(value: impl Strategy<Value = NvValue>) -> impl Strategy<Value = NvList> {
    proptest::collection::vec((any_string(), value), 0..6).prop_map(|pairs| {
        pairs
            .into_iter()
            .map(|(name, value)| NvPair { name, value })
            .collect()
    })
}

proptest! {
    #[test]
    fn any_list_survives_both_encodings(list in any_list()) {
        let xdr = list.encode_xdr().unwrap();
        let native = list.encode_native().unwrap();
        prop_assert_eq!(xdr.len() % 4, 0);
        prop_assert_eq!(NvList::decode_prefix(&xdr).unwrap(), (list.clone(), xdr.len()));
        prop_assert_eq!(NvList::decode_prefix(&native).unwrap(), (list, native.len()));
    }

    #[test]
    fn a_damaged_list_decodes_or_fails_but_never_panics(
        list in any_list(),
        native in any::<bool>(),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = if native { list.encode_native() } else { list.encode_xdr() }.unwrap();
        for (index, byte) in hits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = NvList::decode(&bytes);
    }

    #[test]
    fn noise_decodes_or_fails_but_never_panics(
        start in 0usize..3,
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let heads: [&[u8]; 3] = [&[1, 1, 0, 0], &[0, 1, 0, 0], &[0, 0, 0, 0]];
        let _ = NvList::decode(&[heads[start], &[0, 0, 0, 0, 1, 0, 0, 0], &noise].concat());
    }
}
