use super::*;
use crate::{Free, StreamFeatures, StreamReader, Write, WriteByRef};
use std::io::Cursor;

const GUID: u64 = 77;

fn begin(kind: StreamKind, features: StreamFeatures) -> Begin {
    Begin {
        kind,
        features,
        to_guid: GUID,
        to_name: b"tank/a@1".to_vec(),
        ..Begin::default()
    }
}

fn write(object: u64, offset: u64, logical_bytes: u64) -> Write {
    Write {
        object,
        object_type: 19,
        offset,
        logical_bytes,
        to_guid: GUID,
        checksum: 7,
        ..Write::default()
    }
}

/// A package of one stream with these records.
fn package(features: StreamFeatures, records: &[(Record, Vec<u8>)]) -> Vec<u8> {
    let mut writer = StreamWriter::new(vec![]);
    let list = [1, 2, 3, 4];
    writer
        .begin(begin(StreamKind::Package, features), &list)
        .unwrap();
    writer.end_package().unwrap();
    writer
        .begin(begin(StreamKind::Stream, features), &[])
        .unwrap();
    for (record, payload) in records {
        writer.record(record, payload).unwrap();
    }
    writer.end(GUID).unwrap();
    writer.end_package().unwrap();
    writer.output()
}

fn filtered(stream: &[u8], filter: &mut dyn RecordFilter) -> Result<Vec<u8>, FilterError> {
    StreamWriter::new(vec![]).filtered(&mut StreamReader::new(stream), filter)
}

/// The features of the stream, and its records.
fn records(stream: &[u8]) -> (StreamFeatures, Vec<(Record, Vec<u8>)>) {
    let mut reader = StreamReader::new(stream);
    let (mut features, mut all) = (StreamFeatures::empty(), vec![]);
    while let Some(taken) = reader.take().unwrap() {
        match taken.record {
            Record::Begin(begin) => features = begin.features,
            Record::End(_) => {}
            record => all.push((record, taken.payload)),
        }
    }
    (features, all)
}

fn text(length: usize) -> Vec<u8> {
    b"a file of words "
        .iter()
        .copied()
        .cycle()
        .take(length)
        .collect()
}

/// Bytes that no function makes smaller.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn plain() -> Vec<(Record, Vec<u8>)> {
    let free = Free {
        object: 3,
        length: crate::TO_THE_END,
        to_guid: GUID,
        ..Free::default()
    };
    vec![
        (Record::Write(write(2, 0, 131_072)), text(131_072)),
        (Record::Write(write(2, 131_072, 131_072)), noise(131_072)),
        (Record::Free(free), vec![]),
        (Record::Write(write(4, 0, 512)), text(512)),
    ]
}

#[test]
fn every_function_gives_the_same_content_again() {
    let features = StreamFeatures::SPILL;
    let stream = package(features, &plain());
    let level = ZstdLevel::DEFAULT;
    for kind in [
        CompressionKind::Lz4,
        CompressionKind::Zstd,
        CompressionKind::Gzip(6),
        CompressionKind::Lzjb,
        CompressionKind::Zle,
        CompressionKind::On,
    ] {
        let changed = filtered(&stream, &mut Recompress::new(kind, level)).unwrap();
        let (has, all) = records(&changed);
        assert!(
            has.contains(features | StreamFeatures::COMPRESSED),
            "{kind:?}"
        );
        let Record::Write(first) = &all[0].0 else {
            panic!("{all:?}");
        };
        if kind != CompressionKind::Zle {
            assert_ne!(first.compression, 0, "{kind:?}");
            assert_eq!(all[0].1.len() % 512, 0);
            assert!(changed.len() < stream.len());
        }
        // Noise stays plain, and so does what cannot shrink by a sector.
        assert_eq!(all[1..], plain()[1..], "{kind:?}");
        let off = &mut Recompress::new(CompressionKind::Off, level);
        assert!(filtered(&changed, off).unwrap() == stream, "{kind:?}");
    }
}

#[test]
fn raw_damaged_and_lying_streams_are_refused() {
    let lz4 = || Recompress::new(CompressionKind::Lz4, ZstdLevel::DEFAULT);
    let raw = package(StreamFeatures::RAW | StreamFeatures::COMPRESSED, &[]);
    assert!(matches!(filtered(&raw, &mut lz4()), Err(FilterError::Raw)));
    let mut damaged = package(StreamFeatures::SPILL, &plain());
    damaged[2000] ^= 1;
    let error = filtered(&damaged, &mut lz4()).unwrap_err();
    assert!(matches!(error, FilterError::Stream(_)), "{error}");
    let lie = |compression, logical_bytes| {
        let write = Write {
            compression,
            compressed_bytes: 512,
            ..write(2, 0, logical_bytes)
        };
        let lying = package(
            StreamFeatures::COMPRESSED,
            &[(Record::Write(write), noise(512))],
        );
        filtered(&lying, &mut lz4()).unwrap_err()
    };
    assert!(matches!(lie(15, 4096), FilterError::Block { .. }));
    assert!(matches!(lie(99, 4096), FilterError::Record { .. }));
    assert!(matches!(lie(15, u64::MAX), FilterError::Record { .. }));
}

#[test]
fn named_blocks_are_decompressed_and_others_stay() {
    let content = text(4096);
    let lz4 = millpond_compress::compress(CompressionKind::Lz4, ZstdLevel::DEFAULT, &content, 4096);
    let mut lz4 = lz4.unwrap();
    lz4.resize(512, 0);
    let stored = Write {
        compression: 15,
        compressed_bytes: lz4.len() as u64,
        ..write(2, 0, 4096)
    };
    // This one is plain, although its record names a function.
    let wrong = Write {
        compression: 15,
        compressed_bytes: 4096,
        ..write(2, 4096, 4096)
    };
    let all = [
        (Record::Write(stored), lz4.clone()),
        (Record::Write(wrong), content.clone()),
    ];
    let stream = package(StreamFeatures::COMPRESSED | StreamFeatures::LZ4, &all);
    let target = |offset, kind| DecompressTarget {
        object: 2,
        offset,
        kind,
    };
    let mut filter = Decompress::new(&[
        target(0, CompressionKind::Lz4),
        target(4096, CompressionKind::Off),
        target(9, CompressionKind::Lz4),
    ]);
    let (_, changed) = records(&filtered(&stream, &mut filter).unwrap());
    let expected = [
        (Record::Write(write(2, 0, 4096)), content.clone()),
        (Record::Write(write(2, 4096, 4096)), content),
    ];
    assert_eq!(changed, expected);
    let counts = filter
        .outcomes()
        .iter()
        .map(|(_, one)| (one.changed, one.failed));
    assert_eq!(counts.collect::<Vec<_>>(), [(1, 0), (1, 0), (0, 0)]);
    // What cannot be decompressed stays.
    let mut filter = Decompress::new(&[
        target(0, CompressionKind::Off),
        target(4096, CompressionKind::Zstd),
    ]);
    assert!(filtered(&stream, &mut filter).unwrap() == stream);
    assert!(filter.outcomes().iter().all(|(_, one)| one.failed == 1));
}

#[test]
fn references_are_replaced_by_the_blocks() {
    let reference = |object, source_object, source_offset| WriteByRef {
        object,
        offset: 512,
        length: 512,
        to_guid: GUID,
        source_guid: GUID,
        source_object,
        source_offset,
        ..WriteByRef::default()
    };
    let first = (Record::Write(write(2, 0, 512)), text(512));
    let all = [
        first.clone(),
        (Record::WriteByRef(reference(3, 2, 0)), vec![]),
        (Record::WriteByRef(reference(4, 3, 512)), vec![]),
    ];
    let stream = package(StreamFeatures::DEDUP | StreamFeatures::SPILL, &all);
    let mut filter = Redup::new(Cursor::new(stream.clone()));
    let changed = filtered(&stream, &mut filter).unwrap();
    assert_eq!(filter.replaced(), 2);
    let (features, found) = records(&changed);
    assert_eq!(features, StreamFeatures::SPILL);
    let copy = |object| (Record::Write(write(object, 512, 512)), text(512));
    assert_eq!(found, [first, copy(3), copy(4)]);
    let missing = [(Record::WriteByRef(reference(3, 2, 0)), vec![])];
    let stream = package(StreamFeatures::DEDUP, &missing);
    let mut filter = Redup::new(Cursor::new(stream.clone()));
    let error = filtered(&stream, &mut filter).unwrap_err();
    assert!(matches!(error, FilterError::MissingBlock { object: 3, .. }));
}
