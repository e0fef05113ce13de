//! Real pools by OpenZFS.

use millpond::check::{CheckOptions, CheckReport, check_pool};
use millpond_env::Env;
use millpond_pool::import::{ScanOptions, find_pools, scan};
use millpond_pool::{OpenOptions, Pool};
use millpond_tests::images;
use serde_json::Value;
use std::path::PathBuf;

/// A case's pool checked; `None` if it does not open.
fn check(name: &str, folder: &std::path::Path) -> Option<CheckReport> {
    let case = folder.join(name);
    let record = images::read_file(&case, "CASE.json").unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let mut disks: Vec<PathBuf> = Vec::new();
    for image in record["images"].as_array().unwrap() {
        let file = image["file"].as_str().unwrap();
        let sha256 = image["sha256"].as_str().unwrap();
        let size = image["size"].as_u64().unwrap();
        disks.push(images::unpacked(&case.join(file), sha256, size).unwrap());
    }
    let options = ScanOptions {
        follow_label_paths: false,
        ..ScanOptions::default()
    };
    let pools = find_pools(&scan(&disks, options), 0);
    let candidate = pools.first()?;
    let pool = Pool::open(&Env::real(), candidate, &OpenOptions::default());
    let pool = pool.map_err(|error| println!("  does not open: {error}")).ok()?;
    Some(check_pool(&pool, &CheckOptions::default()).unwrap())
}

#[test]
fn sound_pools_have_nothing_to_report() {
    let set = images::golden_set().unwrap();
    println!("{}", set.description);
    let mut faults = 0;
    for name in images::cases(&set.folder).unwrap() {
        if let Ok(wanted) = std::env::var("MILLPOND_CASES")
            && wanted != "all"
            && !wanted.split(',').any(|wanted| wanted == name)
        {
            continue;
        }
        let begun = std::time::Instant::now();
        let Some(report) = check(&name, &set.folder) else {
            continue;
        };
        println!("{name}: {} findings, {:?} {:?}", report.findings.len(), report.totals, begun.elapsed());
        for reason in &report.not_judged {
            println!("  not judged: {reason}");
        }
        for finding in report.findings.iter().take(12) {
            println!("  {finding}");
        }
        faults += report.findings.len();
    }
    assert_eq!(faults, 0);
}
