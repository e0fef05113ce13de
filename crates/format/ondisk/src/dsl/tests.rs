use super::*;
use crate::testing::swapped_words;
use crate::{Endian, ObjectId, Txg};
use proptest::prelude::*;

#[test]
fn a_real_root_directory_reads_as_its_counters() {
    let words: [u64; 19] = [
        1795253936, 54, 0, 48, 34, 12667392, 8658432, 164846080, 0, 0, 33, 0, 1, 1024, 0, 12666368,
        0, 0, 0,
    ];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(256, 0);
    let directory = DslDirectoryPhys::decode(&bytes, Endian::Little).unwrap();
    assert_eq!(directory.head_dataset, Some(ObjectId(54)));
    assert_eq!(directory.parent, None);
    assert_eq!(directory.origin, Some(ObjectId(48)));
    assert_eq!(directory.child_directories, Some(ObjectId(34)));
    assert_eq!(directory.properties, Some(ObjectId(33)));
    let breakdown = directory.breakdown().unwrap();
    assert_eq!(
        breakdown.head_bytes + breakdown.children_bytes,
        directory.used_bytes
    );
    assert_eq!(directory.encode(), bytes);
    assert_eq!(
        DslDirectoryPhys::decode(&swapped_words(&bytes), Endian::Big).unwrap(),
        directory
    );
}

#[test]
fn short_bonuses_are_refused() {
    assert!(DslDirectoryPhys::decode(&[0; 255], Endian::Little).is_err());
    assert!(DslDatasetPhys::decode(&[0; 319], Endian::Little).is_err());
}

#[test]
fn a_dataset_with_a_next_snapshot_is_a_snapshot() {
    let head = DslDatasetPhys {
        creation_txg: Txg(4),
        ..DslDatasetPhys::default()
    };
    assert!(!head.is_snapshot());
    let snapshot = DslDatasetPhys {
        next_snapshot: Some(ObjectId(45)),
        children_count: 2,
        ..head
    };
    assert!(snapshot.is_snapshot());
    assert_eq!(snapshot.clones_count(), 1);
    let cloned = DslDatasetPhys {
        children_count: 5,
        ..snapshot
    };
    assert_eq!((cloned.clones_count(), head.clones_count()), (4, 0));
}

#[test]
fn hexadecimal_keys_are_strict() {
    assert_eq!(hex_key_number(b"36"), Some(54));
    assert_eq!(hex_key_number(b"0"), Some(0));
    assert_eq!(hex_key_number(b"ffffffffffffffff"), Some(u64::MAX));
    for bad in [
        &b""[..],
        b"00",
        b"01",
        b"1C",
        b"x",
        b"10000000000000000",
        b"-1",
    ] {
        assert_eq!(hex_key_number(bad), None, "{bad:?}");
    }
    assert_eq!(hex_key(54), "36");
}

#[test]
fn permission_keys_name_subject_and_scope() {
    let key = PermissionKey::parse(b"ul$1001").unwrap();
    assert_eq!(key.holder, PermissionHolder::User(1001));
    assert_eq!(key.reach, PermissionReach::Local);
    assert!(!key.names_sets);
    let key = PermissionKey::parse(b"gd$7").unwrap();
    assert_eq!(key.holder, PermissionHolder::Group(7));
    assert_eq!(key.reach, PermissionReach::Descendant);
    let key = PermissionKey::parse(b"Ed$").unwrap();
    assert_eq!(key.holder, PermissionHolder::Everyone);
    assert!(key.names_sets && key.reach == PermissionReach::Descendant);
    let key = PermissionKey::parse(b"s-$@ops").unwrap();
    assert_eq!(key.holder, PermissionHolder::Set("@ops".into()));
    assert_eq!(
        PermissionKey::parse(b"c-$").unwrap().holder,
        PermissionHolder::Creator
    );
    for bad in [
        &b"u-$1"[..],
        b"ul$",
        b"ul$-1",
        b"ul$99999999999999999999",
        b"el$1",
        b"s-$ops",
        b"",
        b"zz$",
        b"g-$1",
        b"e-$",
        b"E-$",
        b"cl$",
        b"c-$x",
        b"sl$@ops",
        b"u?$1",
        b"s-$@\xff",
    ] {
        assert_eq!(PermissionKey::parse(bad), None, "{bad:?}");
    }
}

#[test]
fn default_quotas_are_recognised_by_name() {
    for (owner, name) in ["user", "group", "project"].into_iter().enumerate() {
        let parsed = |name: String| keys::master_node::default_quota(&name);
        assert_eq!(parsed(format!("default{name}quota")), Some((owner, false)));
        assert_eq!(
            parsed(format!("default{name}objquota")),
            Some((owner, true))
        );
        assert_eq!(parsed(format!("{name}quota@")), None);
    }
}

#[test]
fn names_starting_with_dollar_or_with_a_percent_are_hidden() {
    assert!(keys::is_hidden_name(b"$MOS") && keys::is_hidden_name(b"%recv"));
    assert!(keys::is_hidden_name(b"x%y") && !keys::is_hidden_name(b"home$"));
}

proptest! {
    #[test]
    fn datasets_and_directories_round_trip_in_both_orders(words in proptest::collection::vec(any::<u64>(), 40)) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let dataset = DslDatasetPhys::decode(&bytes, Endian::Little).unwrap();
        prop_assert_eq!(&dataset.encode()[..280], &bytes[..280]);
        prop_assert_eq!(DslDatasetPhys::decode(&swapped_words(&bytes), Endian::Big).unwrap(), dataset);
        let directory = DslDirectoryPhys::decode(&bytes, Endian::Little).unwrap();
        prop_assert_eq!(&directory.encode()[..152], &bytes[..152]);
        prop_assert_eq!(DslDirectoryPhys::decode(&swapped_words(&bytes), Endian::Big).unwrap(), directory);
    }
    #[test]
    fn hexadecimal_keys_round_trip(number: u64) {
        prop_assert_eq!(hex_key_number(hex_key(number).as_bytes()), Some(number));
    }
    #[test]
    fn any_bytes_parse_as_a_key_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
        let _ = (hex_key_number(&bytes), PermissionKey::parse(&bytes));
    }
    #[test]
    fn permission_keys_round_trip(key in "[uUgG][ld]\\$(0|[1-9][0-9]{0,9})|[eE][ld]\\$|[cC]-\\$|[sS]-\\$@[a-z.]{0,9}") {
        let parsed = PermissionKey::parse(key.as_bytes());
        prop_assert_eq!(parsed.map(|parsed| parsed.to_string()), Some(key));
    }
}
