//! Compares statistics and properties of pools created by OpenZFS with the recorded values.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../golden_import/images.rs"]
mod images;

use images::{Case, cases};
use millpond_alloc::AllocationClass;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_pool::import::{find_pools, scan_devices};
use millpond_pool::properties::literal_pool_properties;
use millpond_pool::{OpenOptions, PoolView};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

fn open(case: &Case) -> Arc<PoolView> {
    let found = scan_devices(case.candidates());
    let pools = find_pools(&found, 0);
    PoolView::open(&Env::real(), &pools[0], &OpenOptions::default()).unwrap()
}

/// Properties that depend on the import or on the running system.
const OF_THE_IMPORT: [&str; 4] = ["altroot", "cachefile", "readonly", "load_guid"];

/// Statistics that changed between the record and the last txg.
///
/// For pools that lost power, the record describes the state after OpenZFS imported them. For other pools,
/// the export with its last flush of space maps happened after the record.
const MOVES: [&str; 10] = [
    "allocated",
    "free",
    "fragmentation",
    "capacity",
    "freeing",
    "checkpoint",
    "dedup_table_size",
    "bcloneused",
    "bclonesaved",
    "bcloneratio",
];

#[test]
fn every_pool_property_matches_its_record() {
    let mut report = BTreeMap::<&str, Vec<String>>::new();
    let (mut compared, mut equal) = (0, 0);
    for case in cases() {
        let pool = open(&case);
        let found: BTreeMap<String, (String, String)> = literal_pool_properties(&pool)
            .unwrap()
            .into_iter()
            .map(|(name, value, source)| (name, (value, source)))
            .collect();
        let recorded = case.record["zpool_get"].as_object().unwrap();
        for (name, pair) in recorded {
            if OF_THE_IMPORT.contains(&name.as_str()) {
                continue;
            }
            compared += 1;
            let wanted = (
                pair[0].as_str().unwrap().to_owned(),
                pair[1].as_str().unwrap().to_owned(),
            );
            if found.get(name) == Some(&wanted) {
                equal += 1;
                continue;
            }
            let line = format!("{}: {:?}, recorded {wanted:?}", case.name, found.get(name));
            // For pools that lost power, the record describes the state after an import and its replay.
            let state = case.record["state"].as_str().unwrap_or_default();
            let is_later = name.starts_with("feature@") && state.contains("import");
            // A leaf that misses txgs is not reported as healthy, whether or not it is resilvering.
            let misses = name == "health" && case.name == "resilver-mid";
            let key = match (is_later, misses) {
                (true, _) => Some(&"features of a later state"),
                (_, true) => Some(&"health of leaves that miss txgs"),
                _ => MOVES.iter().find(|moving| *moving == name),
            };
            match key {
                Some(key) => report.entry(key).or_default().push(line),
                None => report
                    .entry("unexpected")
                    .or_default()
                    .push(format!("{name}: {line}")),
            }
        }
        for name in found.keys() {
            // Features newer than the recording software are reported as disabled.
            let is_news = name.starts_with("feature@") && found[name].0 == "disabled";
            if !recorded.contains_key(name) && !is_news {
                let line = format!("{name}: {}: not recorded", case.name);
                report.entry("unexpected").or_default().push(line);
            }
        }
    }
    println!("{equal} of {compared} pool properties equal");
    for (name, lines) in &report {
        println!("{name}: {} differ", lines.len());
        for line in lines {
            println!("  {line}");
        }
    }
    assert!(!report.contains_key("unexpected"));
}

/// Cases whose statistics are compared with the reference dumper's count of every block.
const COUNTED: [&str; 8] = [
    "single",
    "gang-raidz",
    "draid1",
    "quotas",
    "raidz1-3",
    "legacy-v28",
    "log-spacemap",
    "embedded",
];

#[test]
fn allocation_and_fragmentation_match_the_reference() {
    let zdb = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tools/oracle/zdb");
    let is_there = Command::new(&zdb).arg("-V").output();
    if !is_there.is_ok_and(|output| output.status.code() != Some(75)) {
        println!("zdb is not at hand (tools/oracle/fetch): nothing compared");
        return;
    }
    let mut compared = 0;
    for case in cases()
        .iter()
        .filter(|case| COUNTED.contains(&case.name.as_str()))
    {
        let folder = tempfile::tempdir().unwrap();
        for (file, _) in case.images() {
            let image = images::SparseImage::unpack(&case.folder.join(&file));
            image.save(&folder.path().join(file.strip_suffix(".zst").unwrap()));
        }
        let run = |option: &str| {
            let output = Command::new(&zdb)
                .args(["-e", "-p"])
                .arg(folder.path())
                .args([option, case.pool()])
                .output()
                .unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let number_after = |text: &str, label: &str| {
            let rest = &text[text.find(label)? + label.len()..];
            let word = rest.split_whitespace().next()?;
            word.trim_end_matches('%').parse::<u64>().ok()
        };
        let space = open(case).space().unwrap();
        let counted = number_after(&run("-b"), "bp allocated:");
        let logs: u64 = space
            .vdevs
            .iter()
            .filter(|vdev| vdev.usage.class == AllocationClass::Log)
            .map(|vdev| vdev.usage.allocated_bytes)
            .sum();
        assert_eq!(
            Some(space.pool().allocated_bytes + logs),
            counted,
            "{}",
            case.name
        );
        let pool_line = format!("pool {}\tfragmentation", case.pool());
        let fragmentation = number_after(&run("-MM"), &pool_line);
        let ours = space.fragmentation_percent().map(u64::from);
        assert_eq!(ours, fragmentation, "{}", case.name);
        compared += 1;
    }
    println!("{compared} pools compared");
}
