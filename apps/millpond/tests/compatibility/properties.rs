//! Sets every property of a real pool that can be set, and compares the outcome with the page.

use crate::names::{Name, sections};
use crate::page::{Support, of_property};
use millpond_dataset::properties::{DatasetKind, PropertyName, by_name};
use millpond_pool::properties::{Edit, Form, Preset, Shape, table, vdev_table};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        let stage = Self(tempfile::tempdir().unwrap());
        for name in ["a", "b"] {
            let image = std::fs::File::create(stage.image(name)).unwrap();
            image.set_len(96 << 20).unwrap();
        }
        let (a, b) = (stage.image("a"), stage.image("b"));
        stage.expect(&["zpool", "create", "tank", text(&a), text(&b)]);
        stage.expect(&["zfs", "create", "tank/fs"]);
        stage.expect(&["zfs", "create", "-s", "-V", "16M", "tank/vol"]);
        let key = stage.0.path().join("key");
        std::fs::write(&key, "01".repeat(32)).unwrap();
        let words = stage.with_key("keyformat=hex");
        let mut create = vec!["zfs", "create"];
        create.extend(words.iter().map(String::as_str));
        create.push("tank/enc");
        stage.expect(&create);
        stage
    }

    /// Options for a dataset with a key of its own.
    fn with_key(&self, assignment: &str) -> Vec<String> {
        let location = format!("keylocation=file://{}", self.0.path().join("key").display());
        let mut words = vec![assignment.to_owned(), location];
        if !assignment.starts_with("encryption") {
            words.push("encryption=on".to_owned());
        }
        if !assignment.starts_with("keyformat") {
            words.push("keyformat=passphrase".to_owned());
        }
        let options = words.into_iter();
        options.flat_map(|word| ["-o".to_owned(), word]).collect()
    }

    fn image(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_millpond"))
            // `multihost` needs a host id.
            .env("ZFS_HOSTID", "1")
            .arg("-d")
            .arg(self.0.path())
            .args(words)
            .output()
            .unwrap()
    }

    fn expect(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A value that differs from the default.
fn value_for(shape: &Shape) -> &'static str {
    match (shape.name, shape.form) {
        ("version", _) => "5",
        ("recordsize", _) => "65536",
        ("volblocksize", _) => "8192",
        ("volsize", _) => "33554432",
        ("special_small_blocks", _) => "4096",
        ("ashift", _) => "12",
        ("pbkdf2iters", _) => "200000",
        ("encryption", _) => "aes-128-gcm",
        ("keyformat", _) => "hex",
        ("mountpoint" | "altroot", _) => "/mnt/elsewhere",
        ("sharenfs" | "sharesmb", _) => "on",
        ("bootfs", _) => "tank/fs",
        ("cachefile" | "mlslabel", _) => "none",
        ("keylocation", _) => "prompt",
        ("path", _) => "/dev/null",
        ("compatibility", _) => "legacy",
        ("context" | "fscontext" | "defcontext" | "rootcontext", _) => "system_u:object_r:tmp_t:s0",
        ("comment", _) => "words",
        (_, Form::Text) => "words",
        (_, Form::Number(_)) => "8388608",
        (_, Form::Words(words)) => {
            let is_other = |word: &&'static str| Preset::Text(word) != shape.preset;
            let mut all = words
                .iter()
                .map(|(word, _)| *word)
                .filter(|word| *word != "-");
            all.find(is_other).unwrap()
        }
    }
}

/// Whether a command did what the page says of the property.
fn compare(name: &Name, support: Support, done: &Output, wrong: &mut Vec<String>) {
    let is_set = done.status.success();
    if is_set == (support == Support::Refused) {
        let message = String::from_utf8_lossy(&done.stderr);
        wrong.push(format!(
            "{}: {support:?}, {:?}: {message}",
            name.text, done.status
        ));
    }
}

#[test]
fn every_dataset_property_is_settable_as_the_page_states() {
    let stage = Stage::new();
    let (mut wrong, mut number) = (vec![], 0);
    for name in &names("dataset properties") {
        let Some(PropertyName::Native(property)) = by_name(name.text) else {
            continue;
        };
        let shape = &property.shape;
        let support = of_property("dataset properties", name);
        let is_of_files = property.kinds.contains(DatasetKind::Filesystem);
        let assignment = format!("{}={}", shape.name, value_for(shape));
        let target = match shape.edit {
            Edit::ReadOnly => continue,
            // The salt of a key is never given by users.
            _ if !shape.is_listed => continue,
            Edit::Settable | Edit::Inheritable => {
                let target = match (shape.name, is_of_files) {
                    // Only encryption roots have one.
                    ("keylocation", _) => "tank/enc",
                    (_, true) => "tank/fs",
                    (_, false) => "tank/vol",
                };
                let done = stage.run(&["zfs", "set", &assignment, target]);
                compare(name, support, &done, &mut wrong);
                target.to_owned()
            }
            Edit::Once | Edit::OnceByKey => {
                number += 1;
                let target = format!("tank/new{number}");
                let is_of_key = matches!(shape.name, "encryption" | "keyformat" | "pbkdf2iters");
                let options = match is_of_key {
                    true => stage.with_key(&assignment),
                    false => vec!["-o".to_owned(), assignment.clone()],
                };
                let mut words = vec!["zfs", "create"];
                words.extend(options.iter().map(String::as_str));
                if !is_of_files {
                    words.extend(["-s", "-V", "16M"]);
                }
                words.push(&target);
                let done = stage.run(&words);
                compare(name, support, &done, &mut wrong);
                target
            }
        };
        if support == Support::Refused {
            continue;
        }
        let shown = stage.expect(&["zfs", "get", "-Hpo", "value", shape.name, &target]);
        if shape.name == "readonly" {
            stage.expect(&["zfs", "inherit", "readonly", &target]);
        }
        let is_same = shape.number_of(shown.trim()).is_some()
            && shape.number_of(shown.trim()) == shape.number_of(value_for(shape));
        if shown.trim() != value_for(shape) && !is_same {
            wrong.push(format!("{assignment} is shown as {}", shown.trim()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_pool_property_is_settable_as_the_page_states() {
    let stage = Stage::new();
    let mut wrong = vec![];
    for name in &names("pool properties") {
        let Some(shape) = table::find(name.text) else {
            continue;
        };
        // The first two are given when a pool is created or imported, and only older pools are raised.
        let is_given_later = !matches!(shape.name, "altroot" | "readonly" | "version");
        if shape.edit != Edit::Settable || !is_given_later {
            continue;
        }
        let support = of_property("pool properties", name);
        let assignment = format!("{}={}", shape.name, value_for(shape));
        let done = stage.run(&["zpool", "set", &assignment, "tank"]);
        compare(name, support, &done, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_vdev_property_is_settable_as_the_page_states() {
    let stage = Stage::new();
    let a = stage.image("a");
    let mut wrong = vec![];
    for name in &names("vdev properties") {
        let Some(shape) = vdev_table::find(name.text) else {
            continue;
        };
        if shape.edit != Edit::Settable {
            continue;
        }
        let support = of_property("vdev properties", name);
        let assignment = format!("{}={}", shape.name, value_for(shape));
        let done = stage.run(&["zpool", "set", &assignment, "tank", text(&a)]);
        compare(name, support, &done, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn names(title: &str) -> Vec<Name> {
    let mut all = sections().into_iter();
    all.find(|section| section.title.text == title)
        .expect("a section")
        .names
}
