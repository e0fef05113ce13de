//! Compares the logs of pools that lost power with what `zdb -i` lists.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

#[path = "../../volume/tests/support/mod.rs"]
mod support;

use millpond_dataset::Dataset;
use millpond_intent::{ChainEnd, ContentOverlay, IntentLog, LogRecords, RecordFate};
use millpond_ondisk::intent_log::{LogRecordBody, WriteContent};
use millpond_ondisk::{BlockPointer, ObjectId};
use millpond_volume::Volume;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use support::Golden;

const KEY: &[u8] = b"millpond pass";
/// Pools that lost power, opened once for all tests.
static CRASHED: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    let cases = ["zil", "zil-slog"];
    cases.into_iter().filter_map(Golden::open).collect()
});

/// One record line: type, length, txg, sequence.
type Line = (String, usize, u64, u64);

/// What zdb lists, by dataset. Datasets with a truncated list are left out.
fn listed(golden: &Golden) -> BTreeMap<String, Vec<Line>> {
    let text = golden.file("zdb-zil.txt");
    let text = String::from_utf8_lossy(&text);
    let mut lists = BTreeMap::new();
    let (mut dataset, mut lines): (String, Vec<Line>) = Default::default();
    for line in text.lines() {
        // zdb prints an extended attribute's value raw, and the next record follows on the same line.
        let line = match line.rfind("TX_") {
            Some(at) if line.contains(", seq ") => &line[at..],
            _ => line,
        };
        let words: Vec<&str> = line
            .split([' ', '\t', ','])
            .filter(|word| !word.is_empty())
            .collect();
        match words.as_slice() {
            ["Dataset", name, ..] => (dataset, lines) = ((*name).to_owned(), vec![]),
            [kind, "len", length, "txg", txg, "seq", sequence] => lines.push((
                kind.replace("ACL_ACL", "ACL"),
                length.parse().unwrap(),
                txg.parse().unwrap(),
                sequence.parse().unwrap(),
            )),
            ["Total", count] => {
                assert_eq!(lines.len().to_string(), *count, "{dataset}");
                lists.insert(dataset.clone(), std::mem::take(&mut lines));
            }
            _ => {}
        }
    }
    lists
}

fn log_of(golden: &Golden, dataset: &Dataset, with_key: bool) -> IntentLog {
    let key =
        (with_key && dataset.is_encrypted().unwrap()).then(|| golden.key(dataset.name(), KEY));
    IntentLog::open(&dataset.object_set(key).unwrap()).unwrap()
}

fn is_at_usual_end(records: &LogRecords) -> bool {
    matches!(
        records.end(),
        Some(ChainEnd::Unreadable(_) | ChainEnd::NoSuccessor)
    )
}

#[test]
fn records_are_those_that_zdb_lists_with_and_without_key() {
    for golden in CRASHED.iter() {
        let case = golden.pool.name();
        let synced = golden.pool.uberblock().txg;
        let lists = listed(golden);
        assert!(lists.len() >= 7, "{case}: {}", lists.len());
        for (name, expected) in lists {
            for with_key in [false, true] {
                let log = log_of(golden, &golden.dataset(&name), with_key);
                let mut records = log.records(synced);
                let mut found: Vec<Line> = vec![];
                for record in records.by_ref() {
                    assert_eq!(record.fate, RecordFate::Pending, "{name}");
                    assert_eq!(record.decode().is_err(), record.has_ciphertext, "{name}");
                    found.push((
                        record.type_name().to_owned(),
                        record.length_bytes(),
                        record.txg.0,
                        record.sequence,
                    ));
                }
                assert_eq!(found, expected, "{name}");
                assert!(is_at_usual_end(&records), "{name}: {:?}", records.end());
            }
        }
    }
}

#[test]
fn blocks_of_write_records_hold_their_range() {
    for golden in CRASHED.iter() {
        let case = golden.pool.name();
        let synced = golden.pool.uberblock().txg;
        let (mut indirect, mut immediate, mut zeros) = (0, 0, 0);
        for record in golden.datasets() {
            let dataset = golden.dataset(record["name"].as_str().unwrap());
            let set = dataset.object_set(None).unwrap();
            if IntentLog::open(&set).is_none() {
                continue;
            }
            let log = log_of(golden, &dataset, true);
            for record in log.records(synced) {
                let LogRecordBody::Write {
                    object,
                    offset,
                    length,
                    content,
                } = record.decode().unwrap().body
                else {
                    continue;
                };
                match content {
                    WriteContent::Immediate(data) => {
                        assert_eq!(data.len() as u64, length);
                        immediate += 1;
                    }
                    WriteContent::Indirect(pointer) => {
                        let block = log.read_indirect(&pointer, object, offset).unwrap();
                        let size = pointer.lsize_bytes();
                        assert_eq!(block.bytes.len() as u64, size);
                        assert!(offset % size + length <= size, "{}", dataset.name());
                        zeros += u32::from(pointer.is_hole());
                        indirect += 1;
                    }
                }
            }
        }
        println!("{case}: {immediate} immediate, {indirect} indirect, {zeros} of them holes");
        assert!(immediate > 100 && indirect > 10);
    }
}

#[test]
fn nothing_is_pending_once_the_txgs_have_synced() {
    let Some(golden) = CRASHED.iter().find(|golden| golden.pool.name() == "pzil") else {
        return;
    };
    let log = log_of(golden, &golden.dataset("pzil/std"), false);
    let later = golden.pool.uberblock().txg.0 + 1000;
    let fates: Vec<_> = log
        .records(millpond_ondisk::Txg(later))
        .map(|record| record.fate)
        .collect();
    assert!(fates.len() > 50 && fates.iter().all(|fate| *fate == RecordFate::Synced));
}

#[test]
fn a_pool_that_was_exported_has_nothing_pending() {
    let Some(golden) = Golden::open("zvols") else {
        return;
    };
    let mut chains = 0;
    for record in golden.datasets() {
        let dataset = golden.dataset(record["name"].as_str().unwrap());
        if dataset.is_snapshot() {
            continue;
        }
        if let Some(log) = IntentLog::open(&dataset.object_set(None).unwrap()) {
            chains += 1;
            let pending = log
                .records(golden.pool.uberblock().txg)
                .filter(|record| record.fate == RecordFate::Pending);
            assert_eq!(pending.count(), 0, "{}", dataset.name());
        }
    }
    println!("{chains} headers with a chain");
}

/// The digest of a volume's content, with or without the log applied.
fn digest(golden: &Golden, name: &str, with_log: bool) -> String {
    let set = golden.dataset(name).object_set(None).unwrap();
    let volume = Volume::open(name, &set).unwrap();
    let log = IntentLog::open(&set).unwrap();
    let overlay = ContentOverlay::of_volume(&log, golden.pool.uberblock().txg).unwrap();
    assert!(!overlay.is_empty());
    let mut sum = Sha256::new();
    // Reads that are not aligned to blocks.
    let mut piece = vec![0u8; 99_991];
    let mut at = 0;
    while at < volume.size_bytes() {
        let count = (volume.size_bytes() - at).min(piece.len() as u64) as usize;
        let buffer = &mut piece[..count];
        volume.read(at, buffer).unwrap();
        if with_log {
            let mut read =
                |pointer: &BlockPointer, at: u64| log.read_indirect(pointer, ObjectId(1), at);
            overlay.apply(at, buffer, &mut read).unwrap();
        }
        sum.update(&*buffer);
        at += count as u64;
    }
    sum.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn a_volume_overlaid_with_its_log_matches_openzfs() {
    let mut compared = 0;
    for golden in CRASHED.iter() {
        let before = golden.file("UNREPLAYED.json");
        let before: serde_json::Value = serde_json::from_slice(&before).unwrap();
        let recorded = |records: &serde_json::Value, name: &str| {
            let datasets = records["datasets"].as_array().unwrap();
            let found = datasets
                .iter()
                .find(|record| record["name"] == name)
                .unwrap();
            found["volume_sha256"].as_str().unwrap().to_owned()
        };
        for volume in ["vol", "volalways"] {
            let name = format!("{}/{volume}", golden.pool.name());
            let (old, new) = (recorded(&before, &name), recorded(&golden.record, &name));
            assert_ne!(old, new);
            assert_eq!(digest(golden, &name, false), old, "{name}");
            assert_eq!(digest(golden, &name, true), new, "{name}");
            compared += 1;
        }
    }
    println!("{compared} volumes");
}
