use crate::*;
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{CryptKey, CryptSuite, DnodeArrayShape, Endian, Guid, KeyFormat, ObjectId};
use proptest::prelude::*;

const GUID: u64 = 0x1122_3344_5566_7788;

/// The stream of one object with one block, as `docs/format/send-stream.md` describes it.
fn small() -> Vec<u8> {
    let mut stream = StreamWriter::new(vec![]);
    let begin = Begin {
        features: StreamFeatures::SPILL,
        creation_s: 0x6500_0000,
        object_set_type: 2,
        flags: BeginFlags::FREE_RECORDS | BeginFlags::SPILL_BLOCKS,
        to_guid: GUID,
        to_name: b"tank/fs@a".to_vec(),
        ..Begin::default()
    };
    stream.begin(begin, &[]).unwrap();
    let object = ObjectRecord {
        object: 1,
        object_type: 21,
        block_bytes: 512,
        slots: 1,
        to_guid: GUID,
        ..ObjectRecord::default()
    };
    stream.record(&Record::Object(object), &[]).unwrap();
    let free = Free {
        object: 1,
        offset: 512,
        length: TO_THE_END,
        to_guid: GUID,
    };
    stream.record(&Record::Free(free), &[]).unwrap();
    let write = Write {
        object: 1,
        object_type: 21,
        logical_bytes: 512,
        to_guid: GUID,
        checksum: 2,
        ..Write::default()
    };
    let payload: Vec<u8> = (0..=255).chain(0..=255).collect();
    stream.record(&Record::Write(write), &payload).unwrap();
    let free = FreeObjects {
        first: 2,
        count: 30,
        to_guid: GUID,
    };
    stream.record(&Record::FreeObjects(free), &[]).unwrap();
    stream.end(GUID).unwrap();
    assert_eq!(stream.written_bytes(), 2384);
    stream.output()
}

fn all(bytes: &[u8]) -> Result<Vec<Taken>, StreamError> {
    let mut reader = StreamReader::new(bytes);
    let mut taken = vec![];
    while let Some(one) = reader.take()? {
        taken.push(one);
    }
    Ok(taken)
}

/// OpenZFS's receiver accepted this stream.
#[test]
fn the_bytes_are_those_that_openzfs_accepts() {
    let bytes = small();
    let words = |at: usize| -> [u64; 4] { Endian::Little.words("", &bytes[at..]).unwrap() };
    // The checksums of the object record and of the end.
    let object = [
        0x2_d3ae_eb80,
        0x16d_0df1_bec1,
        0x614a_846e_e463,
        0x11_cf05_5177_6adf,
    ];
    assert_eq!(words(312 + 280), object);
    let end = bytes.len() - 312;
    let before_end = [
        0x4f_773d_0bf2,
        0x317c_cdd6_134b,
        0x15_19e8_6c2c_2590,
        0x819_65d9_e377_a694,
    ];
    assert_eq!(words(end + 8), before_end);
    let own = [
        0x52_7aab_53b0,
        0x47f8_3224_58cd,
        0x25_bdeb_447b_4877,
        0x1009_49b8_8f89_da88,
    ];
    assert_eq!(words(end + 280), own);
}

/// The same stream, written by a machine of the other byte order.
#[test]
fn both_byte_orders_are_read() {
    let [little, big] = ["little", "big"].map(|order| {
        let path = format!("../../../fuzz/corpus/send_stream/{order}-endian");
        std::fs::read(path).unwrap()
    });
    assert_eq!(little, small());
    let (little, big) = (all(&little).unwrap(), all(&big).unwrap());
    for (one, other) in little.iter().zip(&big) {
        match (&one.record, &other.record) {
            // Its checksum is that of other bytes.
            (Record::End(one), Record::End(other)) => assert_eq!(one.to_guid, other.to_guid),
            (one, other) => assert_eq!(one, other),
        }
        assert_eq!((other.endian, one.at), (Endian::Big, other.at));
    }
    assert_eq!(little.len(), big.len());
}

#[test]
fn what_is_written_is_read() {
    let taken = all(&small()).unwrap();
    assert_eq!(taken.len(), 6);
    let Record::Begin(begin) = &taken[0].record else {
        panic!("{:?}", taken[0]);
    };
    assert_eq!(begin.to_name, b"tank/fs@a");
    assert_eq!(taken[3].payload.len(), 512);
    assert!(matches!(taken[5].record, Record::End(_)));
}

#[test]
fn a_cut_stream_is_incomplete_at_every_byte() {
    let bytes = small();
    for length in 0..bytes.len() {
        let error = all(&bytes[..length]).unwrap_err();
        assert!(matches!(error, StreamError::Truncated { .. }), "{length}");
    }
}

#[test]
fn no_flipped_bit_passes() {
    let bytes = small();
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        let Err(error) = all(&bytes) else {
            panic!("byte {at}");
        };
        assert!(!error.to_string().is_empty());
    }
}

/// A record is not returned before its payload is covered.
#[test]
fn a_damaged_payload_is_not_returned() {
    let mut bytes = small();
    let payload = 4 * 312 + 100;
    bytes[payload] ^= 1;
    let mut reader = StreamReader::new(bytes.as_slice());
    for _ in 0..3 {
        reader.take().unwrap();
    }
    let error = reader.take().unwrap_err();
    assert!(matches!(error, StreamError::Checksum { .. }), "{error}");
}

#[test]
fn packages_hold_streams() {
    let mut package = StreamWriter::new(vec![]);
    let begin = Begin {
        kind: StreamKind::Package,
        to_name: b"tank/fs@a".to_vec(),
        ..Begin::default()
    };
    package.begin(begin, b"a list").unwrap();
    package.end_package().unwrap();
    let mut bytes = package.output();
    bytes.extend(small());
    bytes.extend(small());
    let mut end = StreamWriter::new(vec![]);
    end.end_package().unwrap();
    bytes.extend(end.output());
    let taken = all(&bytes).unwrap();
    assert_eq!(taken.len(), 2 + 6 + 6 + 1);
    assert_eq!(taken[0].payload, b"a list\0\0");
    assert!(all(&bytes[..bytes.len() - 312]).is_err());
}

proptest! {
    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = all(&bytes);
    }

    #[test]
    fn any_record_is_read_as_written(header: [u8; 304], kind in 1u32..11) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&header);
        let record = Record::load(&bytes, Endian::Little).unwrap();
        let again = Record::load(&record.header(), Endian::Little).unwrap();
        prop_assert_eq!(record, again);
    }
}

fn raw_keys() -> RawKeys {
    RawKeys {
        key: CryptKey {
            suite: CryptSuite::Aes128Ccm,
            guid: Guid(5),
            version: 1,
            wrapped_master: [1; 32],
            wrapped_hmac: [2; 64],
            iv: [3; 12],
            mac: [4; 16],
            root_directory: ObjectId(0),
            reference_count: 0,
            key_format: KeyFormat::Passphrase,
            pbkdf2_salt: 9,
            pbkdf2_iterations: 100_000,
        },
        portable_mac: [5; 32],
        array: DnodeArrayShape {
            checksum: 0,
            compression: 0,
            levels: 6,
            indirect_shift: 17,
            last_block: 77,
        },
        to_iv_set: 6,
        from_iv_set: 7,
    }
}

#[test]
fn raw_keys_survive_their_list() {
    let keys = raw_keys();
    let mut list = NvList::new();
    keys.put(&mut list);
    let bytes = list.encode_native().unwrap();
    assert_eq!(RawKeys::find(&NvList::decode(&bytes).unwrap()), Ok(keys));
}

#[test]
fn raw_keys_that_no_sender_writes_are_refused() {
    let refused = |spoil: &dyn Fn(&mut NvList)| {
        let mut list = NvList::new();
        raw_keys().put(&mut list);
        let Some(NvValue::List(own)) = list.get("crypt_keydata") else {
            panic!("no list");
        };
        let mut own = own.clone();
        spoil(&mut own);
        let mut list = NvList::new();
        list.push("crypt_keydata", own);
        RawKeys::find(&list).unwrap_err()
    };
    assert_eq!(
        refused(&|own| own.insert("DSL_CRYPTO_SUITE", 9u64)),
        RawKeysError::UnknownSuite(9)
    );
    assert_eq!(
        refused(&|own| own.insert("DSL_CRYPTO_VERSION", 0u64)),
        RawKeysError::OldVersion
    );
    for (name, value) in [
        ("keyformat", 0),
        ("keyformat", 1),
        ("pbkdf2salt", 0),
        ("mdn_compress", 15),
        ("mdn_checksum", 9),
        ("mdn_nlevels", 0),
        ("mdn_nlevels", 1),
        ("mdn_nlevels", 13),
        ("mdn_blksz", 512),
        ("mdn_indblkshift", 18),
        ("mdn_nblkptr", 1),
        ("mdn_maxblkid", u64::MAX),
    ] {
        // A last block that a tree of one level does not reach.
        let error = refused(&|own| {
            own.insert("mdn_maxblkid", 1u64 << 20);
            own.insert(name, value);
        });
        assert!(matches!(error, RawKeysError::Invalid(_)), "{name}: {error}");
    }
    let short = refused(&|own| own.insert("portable_mac", NvValue::Uint8Array(vec![0; 31])));
    assert!(matches!(short, RawKeysError::Invalid(_)));
    assert!(matches!(
        RawKeys::find(&NvList::new()),
        Err(RawKeysError::Invalid(_))
    ));
}
