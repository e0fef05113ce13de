//! Compares the output of `zdb -ddddd` for each file with our reader.

use millpond_posix::{FileKind, FileSystem, Node};
use millpond_tests::oracle::zdb;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// One printed object: the words of each line by the first word.
type Printed = BTreeMap<String, String>;

fn objects(text: &str) -> BTreeMap<u64, Printed> {
    let mut found: BTreeMap<u64, Printed> = BTreeMap::new();
    let mut at = None;
    let mut is_next_head = false;
    let mut is_in_path = false;
    for line in text.split('\n') {
        // A path continues, with every blank and newline in it, until the next field.
        let is_next_field = line.starts_with("\tuid ") || line.starts_with("\ttarget\t");
        if is_in_path && !is_next_field {
            if let Some(path) = at.and_then(|id| found.get_mut(&id)?.get_mut("path")) {
                path.push('\n');
                path.push_str(line);
            }
            continue;
        }
        is_in_path = false;
        if let (Some(id), Some(path)) = (at, line.strip_prefix("\tpath\t")) {
            let object = found.entry(id).or_default();
            is_in_path = true;
            object.insert("path".into(), path.into());
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"Object") {
            is_next_head = true;
            continue;
        }
        if is_next_head && !words.is_empty() {
            is_next_head = false;
            at = words[0].parse().ok();
            if let Some(id) = at {
                found
                    .entry(id)
                    .or_default()
                    .insert("dnsize".into(), words[5].into());
            }
            continue;
        }
        if let (Some(id), Some((key, value))) = (at, line.trim().split_once(['\t', ' ', ':'])) {
            let object = found.entry(id).or_default();
            object
                .entry(key.into())
                .or_insert_with(|| value.trim().into());
        }
    }
    found
}

/// Asserts that every file of a file system is printed as our reader sees it.
pub fn compare(folder: &Path, name: &str, files: &Arc<FileSystem>) {
    if let Some(why) = zdb::absent() {
        eprintln!("not compared: {why}");
        return;
    }
    let output = zdb::print(folder, &["-ddddd", name]).unwrap();
    let printed = objects(&output);
    let mut compared = 0;
    for object in files.committed().unwrap().objects() {
        let object = object.unwrap();
        let Ok(node) = files.node(object.id()) else {
            continue;
        };
        let printed = printed
            .get(&object.id().0)
            .unwrap_or_else(|| panic!("{name}: zdb does not print object {}", object.id()));
        compare_one(name, files, &node, printed);
        compared += 1;
    }
    eprintln!("{name}: {compared} files are printed as we read them");
}

fn compare_one(name: &str, files: &Arc<FileSystem>, node: &Node, printed: &Printed) {
    let stat = node.stat().unwrap();
    let mode = match stat.kind {
        FileKind::Fifo => 0o010_000,
        FileKind::CharacterDevice => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::BlockDevice => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    } | stat.permissions;
    let expect = |key: &str, wanted: String| {
        let found = printed.get(key).map(String::as_str);
        assert_eq!(
            found,
            Some(wanted.as_str()),
            "{name}, object {}: {key}",
            node.id()
        );
    };
    expect("uid", stat.owner.0.to_string());
    expect("gid", stat.group.0.to_string());
    expect("gen", stat.generation.to_string());
    expect("mode", format!("{mode:o}"));
    expect("size", stat.size_bytes.to_string());
    expect("parent", node.parent_id().unwrap().to_string());
    expect("links", stat.links.to_string());
    expect("pflags", format!("{:x}", stat.flags.bits()));
    if let Some(project) = stat.project {
        expect("projid", project.to_string());
    }
    let path = files.path_of(node.id()).unwrap();
    if let Some(path) = path.filter(|_| !node.is_xattr_directory().unwrap() && stat.links == 1) {
        expect("path", format!("/{}", String::from_utf8_lossy(&path)));
    }
    let slots = node.object().dnode_slots();
    expect(
        "dnsize",
        if slots == 1 {
            "512".into()
        } else {
            format!("{}K", slots / 2)
        },
    );
}
