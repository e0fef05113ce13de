//! The device against a plain array, and indexes that lie.

use crate::device::{DEVICE_BYTES, StreamDevice};
use crate::extents::{Extent, Extents, Source};
use millpond_device::Device;
use proptest::prelude::*;
use std::io::Write;

/// What is done to the device. Offsets and lengths are in units of 512 bytes.
#[derive(Debug, Clone)]
enum Step {
    /// Writes a payload of the stream file.
    Payload {
        at: u64,
        payload: usize,
    },
    /// Writes bytes that no file has.
    Other {
        at: u64,
        units: usize,
        seed: u8,
    },
    Zeros {
        at: u64,
        units: usize,
    },
    Discard {
        at: u64,
        units: u64,
    },
}

const UNITS: u64 = 200;

fn any_step() -> impl Strategy<Value = Step> {
    let at = 0..UNITS;
    prop_oneof![
        (at.clone(), 0..6usize).prop_map(|(at, payload)| Step::Payload { at, payload }),
        (at.clone(), 1..40usize, any::<u8>()).prop_map(|(at, units, seed)| Step::Other {
            at,
            units,
            seed
        }),
        (at.clone(), 1..40usize).prop_map(|(at, units)| Step::Zeros { at, units }),
        (at, 1..40u64).prop_map(|(at, units)| Step::Discard { at, units }),
    ]
}

/// A stream file of payloads at odd places. Two have the same ends and middle, and differ elsewhere.
fn payloads() -> (std::fs::File, Vec<(u64, Vec<u8>)>) {
    let mut file = tempfile::tempfile().unwrap();
    let mut found = vec![];
    let mut at = 0u64;
    for number in 0..6u8 {
        let units = 1 + usize::from(number) * 7;
        let mut payload: Vec<u8> = (0..units * 512)
            .map(|byte| (byte % 251) as u8 ^ (number / 2))
            .collect();
        if number == 5 {
            payload = found
                .last()
                .map(|(_, payload): &(u64, Vec<u8>)| payload.clone())
                .unwrap();
            payload[2000] ^= 0xff;
        }
        file.write_all(&[0xee; 13]).unwrap();
        file.write_all(&payload).unwrap();
        found.push((at + 13, payload.clone()));
        at += 13 + payload.len() as u64;
    }
    (file, found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_device_holds_what_was_written(
        steps in prop::collection::vec(any_step(), 1..60),
        memory in prop_oneof![Just(0u64), Just(10_000), Just(1 << 20)],
    ) {
        let (file, payloads) = payloads();
        let device = StreamDevice::new(memory, std::env::temp_dir());
        let number = device.add_file(file);
        for (offset, payload) in &payloads {
            device.payloads().remember(number, *offset, payload);
        }
        let mut model = vec![0u8; (UNITS as usize + 80) * 512];
        for step in &steps {
            let (at, bytes) = match step {
                Step::Payload { at, payload } => (*at, payloads[*payload].1.clone()),
                Step::Other { at, units, seed } => {
                    (*at, (0..units * 512).map(|byte| (byte % 253) as u8 ^ seed).collect())
                }
                Step::Zeros { at, units } => (*at, vec![0; units * 512]),
                Step::Discard { at, units } => {
                    device.discard(at * 512, units * 512).unwrap();
                    let range = *at as usize * 512..(at + units) as usize * 512;
                    model[range].fill(0);
                    continue;
                }
            };
            device.write(at * 512, &bytes).unwrap();
            model[at as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
        }
        let mut read = vec![0xaa; model.len()];
        device.read(0, &mut read).unwrap();
        prop_assert!(read == model);
        let mut part = vec![0xaa; 3000];
        device.read(777, &mut part).unwrap();
        prop_assert!(part[..] == model[777..3777]);
        // Everything is counted once.
        let usage = device.usage();
        let nonzero = model.iter().filter(|byte| **byte != 0).count() as u64;
        prop_assert!(usage.shared_bytes + usage.kept_bytes <= model.len() as u64);
        prop_assert!(usage.shared_bytes + usage.kept_bytes >= nonzero);
    }
}

#[test]
fn payloads_are_not_stored_again() {
    let (file, payloads) = payloads();
    let device = StreamDevice::new(1 << 20, std::env::temp_dir());
    let number = device.add_file(file);
    let (offset, payload) = &payloads[4];
    device.payloads().remember(number, *offset, payload);
    device.write(4096, payload).unwrap();
    let usage = device.usage();
    assert_eq!(
        (usage.shared_bytes, usage.kept_bytes),
        (payload.len() as u64, 0)
    );
    // Equal samples with other bytes between them are no payload.
    device.write(1 << 20, &payloads[5].1).unwrap();
    assert_eq!(device.usage().kept_bytes, payload.len() as u64);
    let mut read = vec![0; payload.len()];
    device.read(1 << 20, &mut read).unwrap();
    assert!(read == payloads[5].1);
    let mut past_end = [0; 2];
    assert!(device.read(DEVICE_BYTES - 1, &mut past_end).is_err());
}

#[test]
fn adjacent_extents_of_adjacent_bytes_are_one() {
    let mut extents = Extents::default();
    let kept = |start, length, offset| Extent {
        start,
        length,
        source: Source::Kept { offset },
    };
    for extent in [kept(0, 10, 100), kept(20, 10, 120), kept(10, 10, 110)] {
        extents.insert(extent);
    }
    assert_eq!(extents.iter().collect::<Vec<_>>(), [kept(0, 30, 100)]);
    let removed = extents.remove(&(5..12));
    assert_eq!(removed, [kept(5, 7, 105)]);
    assert_eq!(
        extents.iter().collect::<Vec<_>>(),
        [kept(0, 5, 100), kept(12, 18, 112)]
    );
}

mod indexes {
    use crate::index::{self, IndexProblem};
    use crate::{AppliedStream, StoredError};
    use millpond_device::Device;
    use sha2::{Digest, Sha256};
    use std::path::PathBuf;

    use super::{StreamDevice, payloads};

    /// A stream file, its index, and what the device of the index holds.
    fn indexed(folder: &std::path::Path) -> (PathBuf, PathBuf, Vec<u8>) {
        let (mut file, payloads) = payloads();
        let stream = folder.join("stream");
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::copy(&mut file, &mut std::fs::File::create(&stream).unwrap()).unwrap();
        let device = StreamDevice::new(100, folder.to_owned());
        let number = device.add_file(std::fs::File::open(&stream).unwrap());
        for (at, (offset, payload)) in payloads.iter().enumerate() {
            device.payloads().remember(number, *offset, payload);
            device.write(at as u64 * 65536, payload).unwrap();
        }
        device.write(300_000, &[7; 9000]).unwrap();
        device.write(1 << 40, &[9; 512]).unwrap();
        let applied = AppliedStream {
            path: stream.clone(),
            dataset: "tank/home".into(),
            snapshots: vec!["tank/home@s".into()],
            damage: None,
        };
        let path = folder.join("index");
        index::write(&path, &device, &[applied], std::slice::from_ref(&stream)).unwrap();
        let mut content = vec![0; 500_000];
        device.read(0, &mut content).unwrap();
        (stream, path, content)
    }

    fn problem(stream: &PathBuf, path: &std::path::Path) -> Option<IndexProblem> {
        let read = index::read(path, std::slice::from_ref(stream)).unwrap();
        read.unwrap().err()
    }

    #[test]
    fn an_index_holds_what_the_device_held() {
        let folder = tempfile::tempdir().unwrap();
        let (stream, path, content) = indexed(folder.path());
        let read = index::read(&path, std::slice::from_ref(&stream)).unwrap();
        let opened = read.unwrap().ok().unwrap();
        assert_eq!(opened.streams[0].snapshots, ["tank/home@s"]);
        let mut found = vec![1; content.len()];
        opened.device.read(0, &mut found).unwrap();
        assert!(found == content);
        let mut far = [0; 513];
        opened.device.read((1 << 40) - 1, &mut far).unwrap();
        assert_eq!((far[0], far[1], far[512]), (0, 9, 9));
        assert!(opened.device.write(0, &[1; 512]).is_err());
        // A stream that was moved is the same one.
        let moved = folder.path().join("moved");
        std::fs::rename(&stream, &moved).unwrap();
        assert_eq!(problem(&moved, &path), None);
        let mut bytes = std::fs::read(&moved).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&moved, &bytes).unwrap();
        assert_eq!(problem(&moved, &path), Some(IndexProblem::Stale));
        std::fs::write(&moved, &bytes[1..]).unwrap();
        assert_eq!(problem(&moved, &path), Some(IndexProblem::Stale));
        let other = index::read(&moved, std::slice::from_ref(&moved));
        assert!(matches!(other, Err(StoredError::NoIndex { .. })));
        let absent = index::read(&folder.path().join("absent"), &[]).unwrap();
        assert!(absent.is_none());
    }

    #[test]
    fn indexes_that_lie_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (stream, path, _) = indexed(folder.path());
        let bytes = std::fs::read(&path).unwrap();
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (list, count) = (number(16) as usize, number(24) as usize);
        let table = 40 + list;
        let digest = table + count * 32;
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut lie = bytes.clone();
            change(&mut lie);
            let right = Sha256::digest(&lie[..digest]);
            lie[digest..digest + 32].copy_from_slice(&right);
            std::fs::write(&path, &lie).unwrap();
            problem(&stream, &path)
        };
        let put = |lie: &mut [u8], at: usize, value: u64| {
            lie[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        assert_eq!(with(&|_| {}), None);
        assert_eq!(with(&|lie| put(lie, 8, 2)), Some(IndexProblem::Version));
        let is_damaged = |found: Option<IndexProblem>| {
            assert!(matches!(found, Some(IndexProblem::Damaged(_))), "{found:?}");
        };
        // Lengths and counts.
        for at in [16, 24, 32] {
            for value in [0, 1 << 20, u64::MAX] {
                is_damaged(with(&|lie| put(lie, at, value)));
            }
        }
        // Each number of each extent: beyond the device, beyond its source, over the one before, empty.
        for extent in 0..count {
            for (field, value) in [
                (0, u64::MAX),
                (1, u64::MAX),
                (1, 0),
                (2, 77),
                (3, u64::MAX - 5),
            ] {
                is_damaged(with(&|lie| {
                    put(lie, table + extent * 32 + field * 8, value)
                }));
            }
        }
        is_damaged(with(&|lie| put(lie, table + 32, 0)));
        // Any bit, and any end.
        for at in (8..digest + 32).step_by(7) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 4;
            std::fs::write(&path, &wrong).unwrap();
            assert!(problem(&stream, &path).is_some(), "byte {at}");
        }
        for end in [8, 39, 40, table + 5, digest, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..end]).unwrap();
            is_damaged(problem(&stream, &path));
        }
    }
}
