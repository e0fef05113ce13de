//! Compares properties of datasets created by OpenZFS with the recorded values.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../../../pool/tests/golden_import/images.rs"]
mod images;

use images::{Case, cases};
use millpond_compress::decompress;
use millpond_dataset::properties::{
    DATASET_PROPERTIES, OwnerKind, OwnerSpace, Property, Wanted, by_name,
};
use millpond_dataset::{Dataset, PropertyReader};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_ondisk::{CompressionKind, DslDatasetFlags};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_pool::{OpenOptions, PoolView};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn open(case: &Case) -> Arc<PoolView> {
    let found = scan_devices(case.candidates());
    let pools = find_pools(&found, 0);
    PoolView::open(&Env::real(), &pools[0], &OpenOptions::default()).unwrap()
}

/// Properties that changed between the record and the last txg on disk.
const MOVES: [&str; 16] = [
    "used",
    "available",
    "referenced",
    "written",
    "usedbydataset",
    "usedbysnapshots",
    "usedbychildren",
    "usedbyrefreservation",
    "logicalused",
    "logicalreferenced",
    "compressratio",
    "refcompressratio",
    "createtxg",
    "objsetid",
    "creation",
    "guid",
];

/// Cases in which even the total changed after the record: the last txgs changed the space held by a
/// checkpoint, deferred frees or special vdevs, or the record describes a later state.
const SUM_MOVES: [&str; 6] = [
    "checkpoint",
    "compat-legacy",
    "legacy-v28",
    "v24-special",
    "zil",
    "zil-slog",
];

/// The reason for a known difference.
fn reason(
    case: &str,
    name: &str,
    recorded: Option<&str>,
    found: Option<&str>,
) -> Option<&'static str> {
    match name {
        "mounted" => Some("nothing is mounted here"),
        "keystatus" if found == Some("unavailable") => Some("keys are not loaded here"),
        "snapshots_changed" if case.contains("legacy") && found.is_none() => {
            Some("older pools keep it in memory only")
        }
        "receive_resume_token" if payload(recorded?) == payload(found?) => {
            Some("another deflate gives other bytes for the same contents")
        }
        _ => None,
    }
}

/// Decompresses the payload of a resume token.
fn payload(token: &str) -> Option<Vec<u8>> {
    let fields: Vec<&str> = token.split('-').collect();
    let [_, _, length, digits] = fields[..] else {
        return None;
    };
    let squeezed: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect();
    let mut packed = vec![0; usize::from_str_radix(length, 16).ok()?];
    decompress(CompressionKind::Gzip(6), &squeezed, &mut packed).ok()?;
    Some(packed)
}

fn literal(property: &Property) -> (String, String) {
    let shape = DATASET_PROPERTIES
        .iter()
        .find(|row| row.shape.name == property.name)
        .map(|row| &row.shape);
    (property.literal(shape), property.source.word())
}

/// The properties of a dataset or bookmark of the record.
fn found_properties(
    pool: &Arc<PoolView>,
    reader: &mut PropertyReader,
    name: &str,
) -> BTreeMap<String, (String, String)> {
    let properties = match name.split_once('#') {
        Some((path, mark)) => {
            let head = Dataset::find(pool, path).unwrap();
            let bookmarks = head.bookmarks().unwrap();
            let bookmark = bookmarks
                .iter()
                .find(|bookmark| bookmark.name == mark)
                .unwrap();
            reader.bookmark_properties(bookmark, Wanted::All).unwrap()
        }
        None => {
            let dataset = Dataset::find(pool, name).unwrap();
            reader.properties(&dataset, Wanted::All).unwrap()
        }
    };
    properties
        .iter()
        .map(|property| (property.name.clone(), literal(property)))
        .collect()
}

#[test]
fn every_property_matches_its_record() {
    let (mut compared, mut equal) = (0, 0);
    let mut unexpected = vec![];
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for case in cases() {
        let pool = open(&case);
        let mut reader = PropertyReader::new(&pool);
        for dataset in case.record["datasets"].as_array().unwrap() {
            let name = dataset["name"].as_str().unwrap();
            let found = found_properties(&pool, &mut reader, name);
            let recorded = dataset["properties"].as_object().unwrap();
            let names: BTreeSet<&String> = recorded.keys().chain(found.keys()).collect();
            for property in names {
                let wanted = recorded.get(property).map(|pair| {
                    let text = |at: usize| pair[at].as_str().unwrap().to_owned();
                    (text(0), text(1))
                });
                compared += 1;
                if wanted.as_ref() == found.get(property) {
                    equal += 1;
                    continue;
                }
                let line = format!(
                    "{name} {property}: {:?}, recorded {wanted:?}",
                    found.get(property)
                );
                let (recorded, found) = (wanted.as_ref(), found.get(property));
                let values = (
                    recorded.map(|(v, _)| v.as_str()),
                    found.map(|(v, _)| v.as_str()),
                );
                if let Some(reason) = reason(&case.name, property, values.0, values.1) {
                    *known.entry(reason.to_owned()).or_default() += 1;
                } else if MOVES.contains(&property.as_str())
                    && recorded.is_some()
                    && found.is_some()
                {
                    *known.entry(format!("{property} moved")).or_default() += 1;
                    if std::env::var_os("MILLPOND_VERBOSE").is_some() {
                        println!("  {}: {line}", case.name);
                    }
                } else {
                    unexpected.push(format!("{}: {line}", case.name));
                }
            }
        }
    }
    println!("{equal} of {compared} dataset properties equal");
    for (reason, count) in known {
        println!("  {count}: {reason}");
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

fn row(owners: &str, row: &Value) -> OwnerSpace {
    let texts: Vec<&str> = row
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    let texts = if owners == "projectspace" {
        &texts[..]
    } else {
        &texts[1..]
    };
    let number = |at: usize| texts[at].parse::<u64>().ok();
    OwnerSpace {
        id: number(0).unwrap(),
        used_bytes: number(1).unwrap(),
        quota_bytes: number(2).unwrap(),
        objects: number(3),
        objects_quota: number(4),
    }
}

#[test]
fn used_and_available_sum_to_the_recorded_total() {
    let mut exact = 0;
    let mut others = vec![];
    for case in cases() {
        let pool = open(&case);
        let root = case.record["datasets"][0]["properties"]
            .as_object()
            .unwrap();
        let recorded: u64 = ["used", "available"]
            .iter()
            .map(|name| root[*name][0].as_str().unwrap().parse::<u64>().unwrap())
            .sum();
        let mut reader = PropertyReader::new(&pool);
        let found = found_properties(&pool, &mut reader, case.pool());
        let sum: u64 = ["used", "available"]
            .iter()
            .map(|name| found[*name].0.parse::<u64>().unwrap())
            .sum();
        if sum == recorded {
            exact += 1;
        } else {
            others.push((case.name.clone(), sum as i64 - recorded as i64));
        }
    }
    println!("{exact} sums exact, not: {others:?}");
    others.retain(|(name, _)| !SUM_MOVES.contains(&name.as_str()));
    assert!(others.is_empty());
}

#[test]
fn space_by_owner_matches_its_record() {
    let (mut rows, mut moved) = (0, 0);
    for case in cases() {
        let pool = open(&case);
        for dataset in case.record["datasets"].as_array().unwrap() {
            let name = dataset["name"].as_str().unwrap();
            for (key, owners) in [
                ("userspace", OwnerKind::User),
                ("groupspace", OwnerKind::Group),
                ("projectspace", OwnerKind::Project),
            ] {
                let Some(recorded) = dataset[key].as_array() else {
                    continue;
                };
                let found = Dataset::find(&pool, name).unwrap();
                let is_partial = found.phys().flags.contains(DslDatasetFlags::INCONSISTENT);
                if is_partial {
                    continue; // the commands refuse to list these
                }
                if found.is_encrypted().unwrap() {
                    assert!(found.space_by_owner(owners, None).is_err(), "{name}");
                    continue;
                }
                let recorded: Vec<OwnerSpace> = recorded
                    .iter()
                    .filter(|line| line.as_array().is_some_and(|line| line.len() >= 5))
                    .map(|line| row(key, line))
                    .collect();
                let found = found.space_by_owner(owners, None).unwrap();
                let limits = |rows: &[OwnerSpace]| -> Vec<(u64, u64, Option<u64>)> {
                    rows.iter()
                        .map(|row| (row.id, row.quota_bytes, row.objects_quota))
                        .collect()
                };
                // For pools that lost power, the record describes a later state.
                let is_later = case.record["state"]
                    .as_str()
                    .is_some_and(|state| state.contains("import"));
                if found != recorded && is_later {
                    moved += 1;
                    continue;
                }
                assert_eq!(
                    limits(&found),
                    limits(&recorded),
                    "{} {name} {key}",
                    case.name
                );
                assert_eq!(found, recorded, "{} {name} {key}", case.name);
                rows += found.len();
            }
        }
    }
    println!("{rows} rows equal, {moved} tables of later states");
}

#[test]
fn written_since_a_snapshot_sums_over_those_between() {
    let (mut steps, mut marks) = (0, 0);
    for case in cases() {
        let pool = open(&case);
        let mut reader = PropertyReader::new(&pool);
        let names = case.record["datasets"].as_array().unwrap().iter();
        let heads = names.filter(|dataset| {
            ["filesystem", "volume"].contains(&dataset["type"].as_str().unwrap())
        });
        for head in heads.map(|dataset| dataset["name"].as_str().unwrap()) {
            let head = Dataset::find(&pool, head).unwrap();
            let mut value_of = |dataset: &Dataset, name: &str| {
                let names = [by_name(name).unwrap()];
                let found = reader.properties(dataset, Wanted::Named(&names)).unwrap();
                found
                    .first()
                    .map(|property| literal(property).0.parse::<u64>().unwrap())
            };
            let mut chain = head.snapshots().unwrap();
            chain.push(head.clone());
            for pair in chain.windows(2) {
                let [older, newer] = pair else { continue };
                let since = format!("written@{}", older.snapshot_name().unwrap());
                // The headers of whole deadlists on one side, the formula on the other.
                assert_eq!(
                    value_of(newer, &since),
                    value_of(newer, "written"),
                    "{} {since}",
                    newer.name()
                );
                assert_eq!(value_of(older, &since), None, "{}", older.name());
                steps += 1;
            }
            for bookmark in head.bookmarks().unwrap() {
                let exists = chain
                    .iter()
                    .find(|snapshot| snapshot.guid() == bookmark.phys.guid);
                let Some(snapshot) = exists else { continue };
                let by_mark = value_of(&head, &format!("written#{}", bookmark.name));
                let by_snapshot = value_of(
                    &head,
                    &format!("written@{}", snapshot.snapshot_name().unwrap()),
                );
                if by_mark.is_some() {
                    assert_eq!(by_mark, by_snapshot, "{}#{}", head.name(), bookmark.name);
                    marks += 1;
                }
            }
        }
    }
    println!("{steps} steps, {marks} bookmarks");
}
