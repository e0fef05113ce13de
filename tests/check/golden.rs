//! Checks pools created by OpenZFS.
//!
//! The checker finds errors only where `zdb` does, and its counts equal those of `zdb`.

use millpond_check::{CheckOptions, CheckReport, FindingKind, check_pool};
use millpond_env::Env;
use millpond_pool::import::{ScanOptions, find_pools, scan};
use millpond_pool::{OpenOptions, PoolView};
use millpond_tests::images;
use millpond_tests::oracle::zdb;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Always checked. `MILLPOND_CASES=all` checks all cases; it also accepts names separated by commas.
const ALWAYS: [&str; 11] = [
    "bclone",
    "corrupt-labels",
    "crypt",
    "dedup-fast",
    "draid1",
    "gang-raidz",
    "legacy-v28",
    "quotas",
    "removed",
    "scrub-mid",
    "snapshots",
];

/// The findings in inconsistent pools, and why they are correct.
const EXPECTED: [(&str, &[FindingKind], &str); 1] = [(
    "corrupt-labels",
    &[FindingKind::Label],
    "its labels 0 to 2 were wiped; zdb -b looks at none",
)];

/// Cases for which zdb prints no counts, or different ones, and why.
const OTHER_NUMBERS: [(&str, &str); 4] = [
    ("gptdisk", "zdb wants the partition as a file of its own"),
    ("v24-clone", "a feature that zdb 2.3 does not know"),
    ("v24-gang", "a feature that zdb 2.3 does not know"),
    (
        "v24-rewrite",
        "zdb 2.3 does not know blocks that were written again",
    ),
];

struct Case {
    name: String,
    pool: String,
    disks: Vec<(String, PathBuf)>,
}

fn case(name: &str, folder: &Path) -> Case {
    let path = folder.join(name);
    let record = images::read_file(&path, "CASE.json").unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let disks = record["images"].as_array().unwrap().iter();
    let disks = disks.map(|image| {
        let file = image["file"].as_str().unwrap();
        let sha256 = image["sha256"].as_str().unwrap();
        let size = image["size"].as_u64().unwrap();
        let disk = file.trim_end_matches(".zst").to_owned();
        (
            disk,
            images::unpacked(&path.join(file), sha256, size).unwrap(),
        )
    });
    Case {
        name: name.to_owned(),
        pool: record["pool"].as_str().unwrap_or("").to_owned(),
        disks: disks.collect(),
    }
}

/// Checks the pool of a case; `None` if it does not open.
fn check(case: &Case) -> Option<CheckReport> {
    let disks: Vec<PathBuf> = case.disks.iter().map(|(_, path)| path.clone()).collect();
    let options = ScanOptions {
        follow_label_paths: false,
        ..ScanOptions::default()
    };
    let pools = find_pools(&scan(&disks, options), 0);
    let candidate = pools.first()?;
    let pool = PoolView::open(&Env::real(), candidate, &OpenOptions::default());
    let pool = pool.map_err(|error| println!("  does not open: {error}"));
    Some(check_pool(&pool.ok()?, &CheckOptions::default()).unwrap())
}

/// The differences from the counts of `zdb -b`.
fn compared_with_zdb(case: &Case, report: &CheckReport) -> Vec<String> {
    let disks = images::gather(&format!("check-{}", case.name), &case.disks).unwrap();
    let output = zdb::run(&disks.folder, &["-b", &case.pool]).unwrap();
    let number = |label: &str| {
        let line = output
            .lines
            .iter()
            .find(|line| line.trim().starts_with(label))?;
        let rest = line.trim().strip_prefix(label)?;
        let digits: String = rest
            .trim_start_matches([':', ' '])
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse::<u64>().ok()
    };
    let totals = &report.totals;
    let ours = [
        ("bp count", totals.pointers + totals.embedded),
        ("bp logical", totals.logical_bytes),
        ("bp physical", totals.physical_bytes),
        ("bp allocated", totals.allocated_bytes),
        ("ganged count", totals.gangs),
    ];
    let mut differences = vec![];
    for (label, ours) in ours {
        match number(label) {
            Some(theirs) if theirs == ours => {}
            theirs => differences.push(format!("{label}: {ours} here, {theirs:?} by zdb")),
        }
    }
    differences
}

#[test]
fn healthy_pools_have_no_findings() {
    let set = images::golden_set().unwrap();
    println!("{}", set.description);
    let wanted = std::env::var("MILLPOND_CASES").unwrap_or_default();
    let asks_zdb = wanted == "all" && zdb::absent().is_none();
    let mut faults = vec![];
    let mut checked = 0;
    for name in images::cases(&set.folder).unwrap() {
        let is_wanted = match wanted.as_str() {
            "" => ALWAYS.contains(&name.as_str()),
            "all" => true,
            some => some.split(',').any(|some| some == name),
        };
        if !is_wanted {
            continue;
        }
        let case = case(&name, &set.folder);
        let Some(report) = check(&case) else {
            continue;
        };
        checked += 1;
        println!(
            "{name}: {} findings, {:?}",
            report.findings.len(),
            report.totals
        );
        for reason in &report.not_judged {
            println!("  not judged: {reason}");
        }
        let expected = EXPECTED.iter().find(|(case, _, _)| *case == name);
        let expected = expected.map_or(&[][..], |(_, kinds, _)| kinds);
        for finding in &report.findings {
            println!("  {finding}");
            if !expected.contains(&finding.kind) {
                faults.push(format!("{name}: {finding}"));
            }
        }
        for kind in expected {
            if !report.has(*kind) {
                faults.push(format!("{name}: no {}", kind.code()));
            }
        }
        let totals = &report.totals;
        let owned = totals.allocated_bytes - totals.shared_bytes;
        if owned + totals.checkpoint_bytes + totals.leaked_bytes != totals.mapped_bytes {
            faults.push(format!("{name}: {totals:?}"));
        }
        if asks_zdb && !OTHER_NUMBERS.iter().any(|(case, _)| *case == name) {
            let differences = compared_with_zdb(&case, &report);
            for difference in differences {
                println!("  {difference}");
                faults.push(format!("{name}: {difference}"));
            }
        }
    }
    assert!(checked > 3, "no case was checked");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
