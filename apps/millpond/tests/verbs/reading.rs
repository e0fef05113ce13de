//! `millpond ls`, `cat`, `stat`, `tree`, `find`, `import`.

use crate::golden::{case, case_without, sha256, text};
use millpond_tests::record::Content;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

fn lines(bytes: &[u8]) -> Vec<Value> {
    let lines = text(bytes);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn find_shows_every_file_as_openzfs_recorded_it() {
    let case = case("names");
    for dataset in &case.record.datasets {
        let Some(tree) = &dataset.tree else { continue };
        let address = format!("{}:/", dataset.name);
        let found = case.run_well(["find", &address, "--json"]);
        let found: BTreeMap<u64, Value> = lines(&found)
            .into_iter()
            .map(|line| (line["ino"].as_u64().unwrap(), line))
            .collect();
        let (mut compared, mut inodes) = (0, std::collections::BTreeSet::new());
        for entry in tree {
            let line = &found[&entry.object];
            let wanted = &entry.attributes;
            assert_eq!(line["type"], wanted.kind);
            assert_eq!(line["mode"], format!("{:o}", wanted.mode));
            assert_eq!(line["size"], wanted.size);
            assert_eq!(
                i128::from(line["mtime_ns"].as_i64().unwrap()),
                wanted.mtime_ns
            );
            inodes.insert(entry.object);
            compared += 1;
        }
        assert!(compared > 0);
        if tree.iter().all(|entry| entry.sampled.is_none()) {
            assert_eq!(found.len(), inodes.len(), "{}", dataset.name);
        }
    }
}

#[test]
fn every_name_found_can_be_asked_for_again() {
    let case = case("names");
    let dataset = case.record.datasets.iter().find(|dataset| {
        let is_odd = |path: &[u8]| std::str::from_utf8(path).is_err();
        let tree = dataset.tree.as_ref();
        tree.is_some_and(|tree| tree.iter().any(|entry| is_odd(&entry.path)))
    });
    let dataset = dataset.expect("some names are not UTF-8");
    let found = case.run_well(["find", &dataset.name, "-type", "f", "-print0"]);
    let mut count = 0;
    for path in found
        .split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
    {
        case.run_well([OsStr::new("cat"), OsStr::from_bytes(path)]);
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn cat_writes_the_bytes_that_openzfs_read() {
    let case = case("single");
    for entry in case.dataset("single").tree.as_ref().unwrap() {
        if let Some(Content::Whole(digest)) = &entry.content {
            let address = format!("single:/{}", text(&entry.path));
            assert_eq!(
                &sha256(&case.run_well(["cat", &address])),
                digest,
                "{address}"
            );
        }
    }
}

#[test]
fn cat_continues_after_an_unreadable_file() {
    let case = case("corrupt-lost");
    let output = case.run(["cat", "pcorrupt-lost:/count", "pcorrupt-lost:/hello.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"hello, mill pond\n");
    assert!(text(&output.stderr).contains("pcorrupt-lost:/count: stopped at byte 0"));
}

#[test]
fn ls_sorts_and_shows_as_requested() {
    let case = case("single");
    let plain = text(&case.run_well(["ls", "single:/dir"]));
    assert_eq!(plain, "hello-hardlink\nm200000\nsub\n");
    let unsorted = text(&case.run_well(["ls", "-U", "single:/dir"]));
    let mut names: Vec<&str> = unsorted.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["hello-hardlink", "m200000", "sub"]);
    let long = text(&case.run_well(["ls", "-ln", "single:/link-short", "single:/r513"]));
    assert!(long.contains("link-short -> hello.txt"), "{long}");
    assert!(
        long.contains("-rw-r--r--   1 1001     1002            513 "),
        "{long}"
    );
    let below = text(&case.run_well(["ls", "-R", "single:/dir"]));
    assert!(
        below.contains("\nsingle:/dir/sub/deeper:\ntext150007\n"),
        "{below}"
    );
    assert_eq!(
        text(&case.run_well(["ls", "-d", "single:/dir"])),
        "single:/dir\n"
    );
}

#[test]
fn find_combines_its_tests() {
    let case = case("single");
    let found = |words: &[&str]| {
        let all = [&["find", "single:/"], words].concat();
        text(&case.run_well(all))
    };
    assert_eq!(
        found(&["-name", "r51?", "-size", "-513c"]),
        "single:/r511\nsingle:/r512\n"
    );
    assert_eq!(
        found(&["-iname", "HELLO*", "-maxdepth", "1"]),
        "single:/hello.txt\n"
    );
    assert_eq!(
        found(&["-type", "l", "!", "-name", "*long"]),
        "single:/link-short\n"
    );
    assert_eq!(found(&["-uid", "1001", "-type", "f"]), "single:/r513\n");
    assert_eq!(
        found(&["-path", "*/sub/*", "-type", "d"]),
        "single:/dir/sub/deeper\n"
    );
    assert_eq!(
        found(&["-newer", "single:/hello.txt", "-name", "empty"]),
        "single:/empty\n"
    );
    assert_eq!(
        case.run(["find", "single:/", "-nosuch"]).status.code(),
        Some(2)
    );
}

#[test]
fn stat_shows_links_flags_and_the_parent() {
    let case = case("single");
    let json_lines = lines(&case.run_well(["stat", "--json", "single:/hello.txt"]));
    assert_eq!(json_lines[0]["nlink"], 2);
    assert_eq!(json_lines[0]["data_bytes"], 17);
    assert_eq!(json_lines[0]["parent_path"], "/dir");
    assert_eq!(json_lines[0]["nfs4_acl"][2], "allow everyone@ rtncy -");
    let shown = text(&case.run_well(["stat", "single:/hello.txt"]));
    assert!(shown.contains("mode: 0644 -rw-r--r--\n"), "{shown}");
}

#[test]
fn tree_draws_branches() {
    let case = case("single");
    let drawn = text(&case.run_well(["tree", "single:/dir"]));
    let expected = "single:/dir\n├── hello-hardlink\n├── m200000\n└── sub\n    ├── deeper\n    │   \
                    └── text150007\n    └── text256k\n\n2 directories, 4 files\n";
    assert_eq!(drawn, expected);
}

#[test]
fn import_lists_pools_and_missing_disks() {
    let case = case_without("gang-raidz", &["d1."]);
    let listed = text(&case.run_well(["import"]));
    assert!(
        listed.contains("pool: pgangz") && listed.contains("DEGRADED"),
        "{listed}"
    );
    let json_lines = lines(&case.run_well(["import", "--json"]));
    let present = |line: &Value| {
        let devices = line["devices"].as_array().unwrap();
        devices
            .iter()
            .filter(|device| device["is_present"] == true)
            .count()
    };
    assert_eq!(
        (json_lines[0]["name"].as_str(), present(&json_lines[0])),
        (Some("pgangz"), 2)
    );
}

#[test]
fn a_pool_is_found_by_guid_too() {
    let case = case("single");
    let json_lines = lines(&case.run_well(["import", "--json"]));
    let guid = json_lines[0]["guid"].as_str().unwrap();
    let address = format!("{guid}:/hello.txt");
    assert_eq!(case.run_well(["cat", &address]), b"hello, mill pond\n");
}
