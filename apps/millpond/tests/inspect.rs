//! `millpond inspect` on golden pools, through the built program.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/file/volume/tests/support/mod.rs"]
mod golden;

use golden::Golden;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn inspect(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millpond"))
        .arg("-d")
        .arg(folder)
        .arg("inspect")
        .args(words)
        .output()
        .unwrap()
}

fn text(folder: &Path, words: &[&str]) -> String {
    let out = inspect(folder, words);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{words:?}: {errors}");
    String::from_utf8(out.stdout).unwrap()
}

fn json(folder: &Path, words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&text(folder, &words)).unwrap()
}

#[test]
fn every_part_prints_lines_and_json() {
    let Some(golden) = Golden::open("single") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    golden.save(folder.path());
    let at = folder.path();
    let parts: [&[&str]; 10] = [
        &["labels"],
        &["uberblocks", "-v"],
        &["config"],
        &["datasets"],
        &["object", "--mos", "single"],
        &["object", "single", "0", "1", "--bonus"],
        &["blocks", "--levels"],
        &["spacemaps"],
        &["log", "--records"],
        &["history"],
    ];
    for words in parts {
        let lines = text(at, words);
        let value = json(at, words);
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        assert_eq!(lines.is_empty(), is_empty, "{words:?}");
    }
    let mos = json(at, &["datasets"])[0].clone();
    assert_eq!(mos["name"], "mos");
    let objects = json(at, &["object", "--mos", "single"]);
    let numbered = objects.as_array().unwrap().iter();
    let numbered = numbered
        .filter(|object| object["object"].as_i64() > Some(0))
        .count();
    assert_eq!(mos["objects"], numbered);
    let labels = json(at, &["labels"]);
    assert_eq!(labels[0]["labels"].as_array().unwrap().len(), 4);
    assert_eq!(labels[0]["labels"][3]["config"]["name"], "single");
}

#[test]
fn missing_objects_give_status_1_and_usage_errors_2() {
    let Some(golden) = Golden::open("single") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    golden.save(folder.path());
    for words in [
        &["datasets", "nosuch"][..],
        &["object", "single", "99999"],
        &["log", "single/no"],
    ] {
        assert_eq!(
            inspect(folder.path(), words).status.code(),
            Some(1),
            "{words:?}"
        );
    }
    for words in [&["nosuch"][..], &["object"], &["object", "single", "x"]] {
        assert_eq!(
            inspect(folder.path(), words).status.code(),
            Some(2),
            "{words:?}"
        );
    }
    let empty = tempfile::tempdir().unwrap();
    for part in ["labels", "uberblocks", "config", "datasets", "blocks"] {
        assert_eq!(
            inspect(empty.path(), &[part]).status.code(),
            Some(1),
            "{part}"
        );
    }
}
