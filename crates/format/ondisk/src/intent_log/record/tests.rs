use super::*;
use crate::WordArray;
use crate::testing::hex;
use proptest::prelude::*;

fn one(bytes: &[u8], endian: Endian) -> Result<LogRecord<'_>, DecodeError> {
    let mut frames = LogRecordFrames::new(bytes, endian);
    let record = frames.next().unwrap()?.decode()?;
    assert!(frames.next().is_none());
    Ok(record)
}

fn record(body: LogRecordBody<'_>) -> LogRecord<'_> {
    LogRecord {
        txg: Txg(30),
        sequence: 1,
        is_case_insensitive: false,
        body,
    }
}

fn create<'a>(kind: CreateKind) -> CreateRecord<'a> {
    CreateRecord {
        kind,
        directory: ObjectId(34),
        object: CreatedObject {
            id: SizedObject {
                object: ObjectId(99),
                slots: 2,
            },
            mode: 0o100_644,
            uid: 1000,
            gid: 100,
            generation: 7,
            creation_time: [5, 6],
            device: 0,
        },
        attributes: None,
        acl: None,
        domains: vec![],
        name: b"name",
        target: b"",
    }
}

fn pointer(word: u64) -> BlockPointer {
    BlockPointer { words: [word; 16] }
}

#[test]
fn the_bytes_of_a_real_create_record_read_as_its_fields() {
    let bytes = hex(
        "0100000000000000 8000000000000000 1e00000000000000 0100000000000000
         0100000000000000 0b00000000000000 1a00000000000000 0000100000000000
         0e00000000000000 0000000000000000 3063016b00000000 0002000000000000
         1a00000000000000 7a746573745f6672 65657a652830295b 305d000000000000",
    );
    let read = one(&bytes, Endian::Little).unwrap();
    assert_eq!((read.txg, read.sequence), (Txg(30), 1));
    let LogRecordBody::Create(create) = &read.body else {
        panic!("not a create record")
    };
    assert_eq!(create.kind, CreateKind::File);
    assert_eq!(
        (create.directory, create.object.id.object),
        (ObjectId(1), ObjectId(11))
    );
    assert_eq!(
        (
            create.object.id.slots,
            create.object.mode,
            create.object.uid,
            create.object.gid
        ),
        (1, 0x1a, 0x10_0000, 14)
    );
    assert_eq!(create.name, b"ztest_freeze(0)[0]");
    assert_eq!(read.encode().unwrap(), bytes);
}

fn samples() -> Vec<LogRecordBody<'static>> {
    static FUIDS: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    let acl = LogAcl {
        entry_count: 2,
        flags: 5,
        entries: b"twelve bytes",
        fuids: WordArray::new(&FUIDS, Endian::Little),
        domains: vec![b"S-1-5", b""],
    };
    let attributes = LogAttributes {
        requested: 1,
        values: 2,
        creation_time: [3, 4],
        ..LogAttributes::default()
    };
    let project = LogAttributes {
        requested: LogAttributes::PROJECT | 1,
        stamp: LogStamp::Project(77),
        ..attributes
    };
    let foreign = |kind| CreateRecord {
        object: CreatedObject {
            uid: 1 << 32 | 5,
            gid: 2 << 32 | 6,
            ..create(kind).object
        },
        domains: vec![b"one", b"two"],
        ..create(kind)
    };
    let set = SetAttributesRecord {
        object: ObjectId(5),
        mask: 0x3f,
        mode: 0o644,
        uid: 1,
        gid: 2,
        size: 3,
        access_time: [4, 5],
        modification_time: [6, 7],
        attributes: None,
        domains: vec![],
    };
    static POINTERS: [u8; 256] = [9; 256];
    let mut bodies = vec![
        LogRecordBody::Create(create(CreateKind::File)),
        LogRecordBody::Create(create(CreateKind::Directory)),
        LogRecordBody::Create(CreateRecord {
            name: b"",
            ..create(CreateKind::XattrDirectory)
        }),
        LogRecordBody::Create(CreateRecord {
            target: b"../there",
            ..create(CreateKind::SymbolicLink)
        }),
        LogRecordBody::Create(foreign(CreateKind::File)),
    ];
    for kind in [CreateKind::File, CreateKind::Directory] {
        for (with_acl, with_attributes) in [(true, false), (false, true), (true, true)] {
            bodies.push(LogRecordBody::Create(CreateRecord {
                acl: with_acl.then(|| acl.clone()),
                attributes: with_attributes.then_some(project),
                ..create(kind)
            }));
        }
    }
    bodies.extend([
        LogRecordBody::Remove {
            is_directory: false,
            directory: ObjectId(3),
            name: b"gone",
        },
        LogRecordBody::Remove {
            is_directory: true,
            directory: ObjectId(3),
            name: b"gone too",
        },
        LogRecordBody::Link {
            directory: ObjectId(3),
            object: ObjectId(4),
            name: b"other",
        },
        LogRecordBody::Rename {
            kind: RenameKind::Plain,
            source_directory: ObjectId(3),
            target_directory: ObjectId(4),
            source_name: b"a",
            target_name: b"b",
        },
        LogRecordBody::Rename {
            kind: RenameKind::Exchange,
            source_directory: ObjectId(3),
            target_directory: ObjectId(4),
            source_name: b"a",
            target_name: b"b",
        },
        LogRecordBody::Rename {
            kind: RenameKind::Whiteout(CreatedObject {
                id: SizedObject {
                    object: ObjectId(8),
                    slots: 1,
                },
                mode: 1,
                uid: 2,
                gid: 3,
                generation: 4,
                creation_time: [5, 6],
                device: 7,
            }),
            source_directory: ObjectId(3),
            target_directory: ObjectId(4),
            source_name: b"a",
            target_name: b"b",
        },
        LogRecordBody::Write {
            object: ObjectId(1),
            offset: 8,
            length: 5,
            content: WriteContent::Immediate(b"bytes"),
        },
        LogRecordBody::Write {
            object: ObjectId(1),
            offset: 8,
            length: 64,
            content: WriteContent::Indirect(pointer(3)),
        },
        LogRecordBody::WriteAgain {
            object: ObjectId(1),
            offset: 8,
            length: 64,
        },
        LogRecordBody::Truncate {
            object: ObjectId(1),
            offset: 8,
            length: 0,
        },
        LogRecordBody::SetAttributes(set.clone()),
        LogRecordBody::SetAttributes(SetAttributesRecord {
            mask: 0x8000_0001,
            attributes: Some(attributes),
            ..set.clone()
        }),
        LogRecordBody::SetAttributes(SetAttributesRecord {
            mask: 0x1_0001,
            attributes: Some(project),
            uid: 1 << 32,
            domains: vec![b"d"],
            ..set.clone()
        }),
        LogRecordBody::SetAttributes(SetAttributesRecord {
            mask: 0x1_0001,
            ..set
        }),
        LogRecordBody::SetAclV0 {
            object: ObjectId(5),
            entries: b"twelve bytestwelve bytes",
        },
        LogRecordBody::SetAcl {
            object: ObjectId(5),
            acl,
        },
        LogRecordBody::SetXattr {
            object: ObjectId(5),
            name: b"user.x",
            value: b"value",
        },
        LogRecordBody::SetXattr {
            object: ObjectId(5),
            name: b"user.x",
            value: b"",
        },
        LogRecordBody::CloneRange {
            object: ObjectId(5),
            offset: 0,
            length: 8192,
            block_bytes: 4096,
            pointers: LoggedPointers::new(&POINTERS, Endian::Little),
        },
    ]);
    bodies
}

#[test]
fn logged_pointers_are_read_and_a_truncated_one_is_skipped() {
    let bytes: Vec<u8> = [pointer(1).encode(), pointer(2).encode()].concat();
    let pointers = LoggedPointers::new(&bytes[..255], Endian::Little);
    assert_eq!(pointers.iter().collect::<Vec<_>>(), [pointer(1)]);
    let both = LoggedPointers::new(&bytes, Endian::Little);
    assert_eq!(both.iter().collect::<Vec<_>>(), [pointer(1), pointer(2)]);
    assert!(both != pointers && both == LoggedPointers::new(&bytes, Endian::Little));
}

#[test]
fn a_record_may_be_a_header_alone_if_its_type_allows() {
    let mut bytes = vec![0; 32];
    bytes[..16].copy_from_slice(&hex("0900000000000000 2000000000000000"));
    let mut frames = LogRecordFrames::new(&bytes, Endian::Little);
    let frame = frames.next().unwrap().unwrap();
    assert!(frame.decode().is_err() && frames.next().is_none());
    bytes[8] = 24;
    let mut frames = LogRecordFrames::new(&bytes, Endian::Little);
    assert_eq!(
        frames.next().unwrap().unwrap_err().reason,
        "length is impossible"
    );
}

#[test]
fn attributes_are_read_only_if_the_mask_is_set() {
    let set = |mask, uid, gid, domains| SetAttributesRecord {
        object: ObjectId(5),
        mask,
        mode: 0o644,
        uid,
        gid,
        size: 3,
        access_time: [4, 5],
        modification_time: [6, 7],
        attributes: None,
        domains,
    };
    // A domain name followed by zeros that would also be a valid block of attributes.
    let body = LogRecordBody::SetAttributes(set(0x3f, 1 << 32, 0, vec![b"\x03"]));
    let mut bytes = record(body.clone()).encode().unwrap();
    bytes.resize(bytes.len() + 96, 0);
    let length = bytes.len() as u64;
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    assert_eq!(one(&bytes, Endian::Little).unwrap().body, body);
    // If owner and group have the same domain, its name is stored once; otherwise each has its own.
    for (gid, domains) in [
        (1 << 32 | 6, vec![&b"one"[..]]),
        (2 << 32, vec![b"one", b"two"]),
    ] {
        let body = LogRecordBody::SetAttributes(set(0x3f, 1 << 32 | 5, gid, domains));
        let bytes = record(body.clone()).encode().unwrap();
        assert_eq!(one(&bytes, Endian::Little).unwrap().body, body);
    }
}

#[test]
fn only_content_records_may_follow_on_an_object() {
    let mut kinds = std::collections::BTreeMap::new();
    for body in samples() {
        let record = record(body);
        let bytes = record.encode().unwrap();
        kinds.insert(bytes[0], record.is_out_of_order());
    }
    let late: Vec<u8> = kinds
        .iter()
        .filter(|(_, late)| **late)
        .map(|(kind, _)| *kind)
        .collect();
    assert_eq!(late, [9, 10, 11, 12, 13, 20, 21, 24]);
    let others: Vec<u8> = (1..=8).chain(14..=19).chain(22..=23).collect();
    let early: Vec<u8> = kinds
        .iter()
        .filter(|(_, late)| !**late)
        .map(|(kind, _)| *kind)
        .collect();
    assert_eq!(early, others);
}

#[test]
fn every_type_of_record_round_trips() {
    let mut numbers = std::collections::BTreeSet::new();
    for body in samples() {
        let given = record(body);
        let bytes = given.encode().unwrap();
        assert!(bytes.len().is_multiple_of(8));
        numbers.insert(bytes[0]);
        assert_eq!(one(&bytes, Endian::Little).unwrap(), given, "{given:?}");
    }
    assert_eq!(
        numbers.into_iter().collect::<Vec<_>>(),
        (1..=24).collect::<Vec<_>>()
    );
}

#[test]
fn records_follow_each_other_and_may_ignore_case() {
    let mut bytes = Vec::new();
    for (sequence, body) in samples().into_iter().enumerate() {
        let given = LogRecord {
            txg: Txg(9),
            sequence: sequence as u64,
            is_case_insensitive: true,
            body,
        };
        bytes.extend(given.encode().unwrap());
    }
    let read: Vec<_> = LogRecordFrames::new(&bytes, Endian::Little)
        .map(|frame| frame.unwrap().decode().unwrap())
        .collect();
    assert_eq!(read.len(), samples().len());
    assert!(read.iter().all(|record| record.is_case_insensitive));
    assert!(
        read.iter()
            .map(|record| record.sequence)
            .eq(0..read.len() as u64)
    );
}

#[test]
fn a_foreign_writers_record_has_swapped_numbers_and_plain_names() {
    let given = record(LogRecordBody::Link {
        directory: ObjectId(3),
        object: ObjectId(4),
        name: b"other",
    });
    let mut bytes = given.encode().unwrap();
    for word in bytes[..48].chunks_mut(8) {
        word.reverse();
    }
    assert_eq!(one(&bytes, Endian::Big).unwrap(), given);
}

#[test]
fn a_real_indirect_write_of_zeros_has_a_hole_with_a_size() {
    let mut hole = BlockPointer::default();
    hole.words[6] = 0x7ff;
    let given = record(LogRecordBody::Write {
        object: ObjectId(2),
        offset: 0x3b00_0000,
        length: 0x10_0000,
        content: WriteContent::Indirect(hole),
    });
    let bytes = given.encode().unwrap();
    assert_eq!(bytes.len(), LOG_WRITE_BYTES);
    let LogRecordBody::Write {
        content: WriteContent::Indirect(read),
        ..
    } = one(&bytes, Endian::Little).unwrap().body
    else {
        panic!("not an indirect write")
    };
    assert!(read.is_hole());
    assert_eq!(read.lsize_bytes(), 1 << 20);
    assert!(given.is_out_of_order());
}

#[test]
fn lengths_that_cannot_be_end_the_log() {
    let good = record(LogRecordBody::Truncate {
        object: ObjectId(1),
        offset: 8,
        length: 0,
    })
    .encode()
    .unwrap();
    for length in [0u64, 24, 31, 33, 64, u64::MAX] {
        let mut bytes = good.clone();
        bytes[8..16].copy_from_slice(&length.to_le_bytes());
        let read: Vec<_> = LogRecordFrames::new(&bytes, Endian::Little).collect();
        assert_eq!(read.len(), 1);
        assert!(read[0].is_err(), "{length}");
    }
    assert!(
        LogRecordFrames::new(&good[..31], Endian::Little)
            .next()
            .unwrap()
            .is_err()
    );
}

#[test]
fn types_that_do_not_exist_are_refused() {
    for number in [0u64, 25, 1 << 62] {
        let mut bytes = record(LogRecordBody::Truncate {
            object: ObjectId(1),
            offset: 8,
            length: 0,
        })
        .encode()
        .unwrap();
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        assert!(one(&bytes, Endian::Little).is_err(), "{number}");
    }
}

#[test]
fn counts_and_lengths_inside_a_record_cannot_leave_it() {
    for body in samples() {
        let good = record(body).encode().unwrap();
        for at in (LOG_RECORD_HEADER_BYTES..good.len()).step_by(8) {
            for value in [u64::MAX, 1 << 60, 1 << 32, 100_000] {
                let mut bytes = good.clone();
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                let _ = one(&bytes, Endian::Little);
                let _ = one(&good[..at], Endian::Little);
            }
        }
    }
}

#[test]
fn invalid_records_are_not_encoded() {
    let link = CreateRecord {
        attributes: Some(LogAttributes::default()),
        ..create(CreateKind::SymbolicLink)
    };
    assert!(record(LogRecordBody::Create(link)).encode().is_err());
    for (length, data) in [(0, &b""[..]), (4, b"bytes")] {
        let write = LogRecordBody::Write {
            object: ObjectId(1),
            offset: 0,
            length,
            content: WriteContent::Immediate(data),
        };
        assert!(record(write).encode().is_err());
    }
    assert!(
        record(LogRecordBody::SetAclV0 {
            object: ObjectId(1),
            entries: b"short"
        })
        .encode()
        .is_err()
    );
}

proptest! {
    #[test]
    fn any_bytes_are_records_or_an_error(
        number in 0u64..26,
        bytes in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..400),
    ) {
        let mut framed = number.to_le_bytes().to_vec();
        framed.extend((bytes.len() as u64 / 8 * 8 + 32).to_le_bytes());
        framed.extend([0; 16]);
        framed.extend(&bytes);
        for endian in [Endian::Little, Endian::Big] {
            for frame in LogRecordFrames::new(&framed, endian).chain(LogRecordFrames::new(&bytes, endian)) {
                if let Ok(read) = frame.and_then(|frame| frame.decode()) {
                    let shown = format!("{read:?}");
                    prop_assert!(shown.len() < 100_000);
                }
            }
        }
    }
    #[test]
    fn writes_round_trip(object: u64, offset: u64, data in proptest::collection::vec(any::<u8>(), 1..100)) {
        let given = record(LogRecordBody::Write {
            object: ObjectId(object), offset, length: data.len() as u64, content: WriteContent::Immediate(&data),
        });
        let bytes = given.encode().unwrap();
        prop_assert_eq!(one(&bytes, Endian::Little).unwrap(), given);
    }
}
