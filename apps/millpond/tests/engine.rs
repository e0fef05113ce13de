//! The commands on real pools: the engine opens golden images in this process.

mod support;

use millpond_cli::session::{OpenService, Session};
use millpond_control::Service;
use millpond_engine::Search;
use millpond_service::{LocalChanges, LocalPools, LocalService};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::recording;

struct Engine(LocalService);

impl OpenService for Engine {
    fn service(&self) -> Result<&dyn Service, String> {
        Ok(&self.0)
    }
}

fn service_of(folder: &Path) -> LocalService {
    let search = Search::new([folder]);
    let changes = LocalChanges::new(search.clone(), None, 0);
    LocalService::new(LocalPools::search(&search), changes)
}

/// Runs a command on the pool in `folder` and returns what it printed.
fn run(folder: &Path, words: &[&str]) -> String {
    let engine = Engine(service_of(folder));
    let environment = support::environment();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut session = Session {
        out: &mut out,
        err: &mut err,
        pools: &engine,
        environment: &environment,
    };
    let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    let status = match words[0].as_str() {
        "zpool" => millpond_cli::zpool::run(&mut session, &words[1..]),
        _ => millpond_cli::zfs::run(&mut session, &words[1..]),
    };
    assert_eq!(
        status.expect("writing to memory"),
        0,
        "{}",
        String::from_utf8_lossy(&err)
    );
    String::from_utf8(out).expect("text")
}

/// Unpacks a golden case. Returns `None`, with a message, if it is not available.
fn case(name: &str) -> Option<(Unpacked, serde_json::Value)> {
    let folder = recording::golden()?.join(name);
    let text = std::fs::read_to_string(folder.join("CASE.json")).ok()?;
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let own = format!("millpond-cli-{}-{call}-{name}", std::process::id());
    let target = std::env::temp_dir().join(own);
    std::fs::create_dir_all(&target).expect("a temporary folder");
    let unpacked = Unpacked(target);
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let file = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let Some(image) = file.strip_suffix(".zst").filter(|f| f.ends_with(".img")) else {
            continue;
        };
        let done = Command::new("zstd")
            .args(["-q", "-d", "--long=27", "--sparse", "-o"])
            .arg(unpacked.0.join(image))
            .arg(&path)
            .status();
        let Ok(status) = done else {
            println!("no zstd to unpack {} with; passed over", path.display());
            return None;
        };
        assert!(status.success(), "{} does not unpack", path.display());
    }
    Some((unpacked, serde_json::from_str(&text).expect("JSON")))
}

/// Removed when dropped.
struct Unpacked(PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reduces device names to their number, and removes column widths.
fn plain(text: &str) -> Vec<String> {
    let device = |word: &str| -> String {
        let last = word
            .rsplit(['/', '-'])
            .next()
            .unwrap_or(word)
            .trim_end_matches(".img");
        let is_disk = last.len() > 1
            && last.starts_with('d')
            && last[1..].bytes().all(|b| b.is_ascii_digit())
            && (word.starts_with('/') || word.ends_with(".img"));
        if is_disk { last.into() } else { word.into() }
    };
    let words = |line: &str| {
        line.split_whitespace()
            .map(device)
            .collect::<Vec<_>>()
            .join(" ")
    };
    text.lines()
        .map(words)
        .filter(|line| !line.is_empty())
        .collect()
}

/// Cases whose status differs from the recording, and why.
const OTHER_STATUS: [(&str, &str); 9] = [
    (
        "resilver-mid",
        "a device that misses txgs is never called ONLINE here",
    ),
    ("checkpoint", "the space that it takes grew in the last txg"),
    ("corrupt-ditto", "errors met by our own reading are counted"),
    (
        "corrupt-mirror",
        "errors met by our own reading are counted",
    ),
    (
        "corrupt-raidz1",
        "errors met by our own reading are counted",
    ),
    (
        "corrupt-raidz2",
        "errors met by our own reading are counted",
    ),
    (
        "corrupt-raidz2-split",
        "errors met by our own reading are counted",
    ),
    ("expanding", "the rate depends on the time"),
    ("gptdisk", "the device has another name"),
];

/// Cases that were imaged before the import that recorded their history. That import added records.
const LOST_POWER: [&str; 6] = [
    "async-destroy",
    "livelist",
    "log-spacemap",
    "unlinked",
    "zil",
    "zil-slog",
];

#[test]
fn status_and_history_of_real_pools_print_as_in_openzfs() {
    let Some(golden) = recording::golden() else {
        return;
    };
    let mut names: Vec<String> = std::fs::read_dir(&golden)
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    let mut compared = 0;
    for name in names {
        // Cases without an uncompressed record are skipped; other cases cover the same comparison.
        let Some((folder, case)) = case(&name) else {
            continue;
        };
        let theirs = case["zpool_status"].as_str().expect("a status");
        let ours = run(&folder.0, &["zpool", "status"]);
        match OTHER_STATUS.iter().find(|(other, _)| *other == name) {
            Some((_, reason)) => println!("status of {name}: passed over, {reason}"),
            None => assert_eq!(plain(&ours), plain(theirs), "{name}"),
        }
        // The record of the export is newer than the description. For pools that lost power, the
        // description was taken after an import, which added records.
        let theirs: Vec<&str> = case["zpool_history"]
            .as_str()
            .expect("a history")
            .trim_end()
            .lines()
            .collect();
        let ours = run(&folder.0, &["zpool", "history", "-il"]);
        let ours: Vec<&str> = ours.trim_end().lines().collect();
        assert!(
            ours.len() >= theirs.len() || LOST_POWER.contains(&name.as_str()),
            "{name}: {} of {} lines of history",
            ours.len(),
            theirs.len()
        );
        let both = ours.len().min(theirs.len());
        assert!(both > 10, "{name}: {both} records");
        assert_eq!(ours[..both], theirs[..both], "{name}");
        compared += 1;
    }
    println!("status and history of {compared} pools compared");
    assert!(compared > 10);
}

#[test]
fn properties_of_real_pools_print_as_in_openzfs() {
    for name in ["single", "classes", "v24-special"] {
        let Some((folder, case)) = case(name) else {
            return;
        };
        let ours = run(&folder.0, &["zpool", "get", "-Hp", "all"]);
        // These depend on the import, or changed with the export.
        let moving = [
            "readonly",
            "load_guid",
            "free",
            "allocated",
            "capacity",
            "fragmentation",
            "dedup_table_size",
        ];
        let is_fixed = |property: &str| !moving.contains(&property);
        let ours: Vec<Vec<&str>> = ours
            .lines()
            .map(|line| line.split('\t').skip(1).collect::<Vec<_>>())
            .filter(|fields| is_fixed(fields[0]))
            .collect();
        let theirs: Vec<Vec<&str>> = case["zpool_get"]
            .as_object()
            .expect("properties")
            .iter()
            .filter(|(property, _)| is_fixed(property))
            .map(|(p, pair)| {
                vec![
                    p.as_str(),
                    pair[0].as_str().unwrap_or("-"),
                    pair[1].as_str().unwrap_or("-"),
                ]
            })
            .collect();
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn datasets_of_a_real_pool_are_all_listed_and_in_order() {
    let Some((folder, case)) = case("snapshots") else {
        return;
    };
    let ours = run(
        &folder.0,
        &["zfs", "list", "-H", "-t", "all", "-o", "name,type"],
    );
    let mut theirs: Vec<String> = case["datasets"]
        .as_array()
        .expect("datasets")
        .iter()
        .map(|d| {
            format!(
                "{}\t{}",
                d["name"].as_str().unwrap_or(""),
                d["type"].as_str().unwrap_or("")
            )
        })
        .collect();
    let mut ours: Vec<String> = ours.lines().map(str::to_string).collect();
    assert_eq!(ours.first(), theirs.first());
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

#[test]
fn properties_of_real_datasets_print_as_in_openzfs() {
    // Not implemented yet; or changed with the export; or specific to a mounted file system.
    let elsewhere = [
        "available",
        "written",
        "snapshots_changed",
        "clones",
        "used",
        "usedbychildren",
        "logicalused",
        "mounted",
    ];
    for name in ["single", "zvols", "snapshots"] {
        let Some((folder, case)) = case(name) else {
            return;
        };
        let pool = case["pool"].as_str().expect("a pool");
        let ours = run(
            &folder.0,
            &["zfs", "get", "-Hp", "-r", "-t", "all", "all", pool],
        );
        let mut ours: Vec<&str> = ours
            .lines()
            .filter(|line| !elsewhere.contains(&line.split('\t').nth(1).unwrap_or_default()))
            .collect();
        let mut theirs = Vec::new();
        for dataset in case["datasets"].as_array().expect("datasets") {
            let owner = dataset["name"].as_str().expect("a name");
            for (property, pair) in dataset["properties"].as_object().expect("properties") {
                if !elsewhere.contains(&property.as_str()) {
                    let text = |at: usize| pair[at].as_str().unwrap_or("-").to_owned();
                    theirs.push(format!("{owner}\t{property}\t{}\t{}", text(0), text(1)));
                }
            }
        }
        // Other tests check the order of datasets and properties.
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "{name}");
    }
}
