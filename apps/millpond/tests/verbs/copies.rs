//! `millpond cp`.

use crate::golden::{case, case_without, compare, sha256, text};
use millpond_tests::record::Volume;
use std::os::unix::fs::{MetadataExt, symlink};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_copied_tree_matches_the_openzfs_record() {
    let case = case("single");
    let folder = folder();
    let to = folder.path().join("copy");
    case.run_well(["cp", "--trusted", "-r", "single:/", to.to_str().unwrap()]);
    assert!(compare(case.dataset("single"), &to, &[]) > 20);
    // Copying again into the same directory replaces everything and duplicates nothing.
    case.run_well(["cp", "--trusted", "-r", "single:/", to.to_str().unwrap()]);
    compare(case.dataset("single"), &to, &[]);
}

#[test]
fn snapshots_are_copied_and_found_below_the_folder_of_snapshots() {
    let case = case("snapshots");
    let snapshot = case
        .record
        .datasets
        .iter()
        .find(|dataset| dataset.name.contains('@') && dataset.tree.is_some())
        .unwrap();
    let (dataset, name) = snapshot.name.split_once('@').unwrap();
    let folder = folder();
    for (to, address) in [
        ("a", format!("{dataset}@{name}:/")),
        ("b", format!("{dataset}:/.zfs/snapshot/{name}/")),
    ] {
        let to = folder.path().join(to);
        case.run_well(["cp", "--trusted", "-a", &address, to.to_str().unwrap()]);
        compare(snapshot, &to, &[]);
    }
}

#[test]
fn names_of_every_kind_are_copied_byte_for_byte() {
    let case = case("names");
    let folder = folder();
    for dataset in &case.record.datasets {
        let Some(tree) = &dataset.tree else { continue };
        // Names too long for the destination's file system are reported.
        let is_long = |path: &[u8]| path.split(|b| *b == b'/').any(|name| name.len() > 255);
        if tree.iter().any(|entry| is_long(&entry.path)) {
            continue;
        }
        let to = folder.path().join(dataset.name.replace(['/', '@'], "-"));
        let address = format!("{}:/", dataset.name);
        case.run_well(["cp", "--trusted", "-r", &address, to.to_str().unwrap()]);
        compare(dataset, &to, &[]);
    }
}

#[test]
fn encrypted_trees_are_copied_with_their_keys_and_named_without() {
    let case = case("crypt");
    let folder = folder();
    let mut count = 0;
    for (root, key) in &case.record.keys {
        let dataset = case.dataset(root);
        if dataset.tree.is_none() {
            continue;
        }
        count += 1;
        let file = folder.path().join(format!("key{count}"));
        std::fs::write(&file, &key.bytes).unwrap();
        let to = folder.path().join(format!("copy{count}"));
        let option = format!("{root}=file://{}", file.display());
        let address = format!("{root}:/");
        let to_text = to.to_str().unwrap();
        case.run_well(["--key", &option, "cp", "--trusted", "-r", &address, to_text]);
        compare(dataset, &to, &[]);
        let locked = case.run(["cp", "-r", &address, to_text]);
        assert_eq!(locked.status.code(), Some(1));
        assert!(text(&locked.stderr).contains(&format!("--key {root}=")));
    }
    assert!(count > 3);
}

#[test]
fn a_wrong_key_is_refused() {
    let case = case("crypt");
    let folder = folder();
    let file = folder.path().join("key");
    std::fs::write(&file, "not the pass phrase").unwrap();
    let option = format!("pcrypt/pass={}", file.display());
    let output = case.run(["--key", &option, "ls", "pcrypt/pass"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("Incorrect key"));
}

#[test]
fn unreadable_files_are_named_and_the_rest_is_copied() {
    let case = case("corrupt-lost");
    let folder = folder();
    for dataset in ["pcorrupt-lost", "pcorrupt-lost/small"] {
        let below = dataset.strip_prefix("pcorrupt-lost").unwrap();
        let lost: Vec<String> = std::fs::read_to_string(case.folder.join("LOST.txt"))
            .unwrap()
            .lines()
            .filter_map(|line| match below.strip_prefix('/') {
                Some(child) => line.strip_prefix(child)?.strip_prefix('/'),
                None => (!line.starts_with("small/")).then_some(line),
            })
            .map(str::to_owned)
            .collect();
        assert!(!lost.is_empty());
        let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
        let to = folder.path().join(dataset.replace('/', "-"));
        let address = format!("{dataset}:/");
        let output = case.run([
            "cp",
            "--trusted",
            "--json",
            "-r",
            &address,
            to.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(1));
        let (mut named, mut ranges) = (vec![], vec![]);
        for line in text(&output.stdout).lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            if let Some(path) = line["path"].as_str() {
                named.push(path.strip_prefix(&address).unwrap().to_owned());
                let range = &line["lost"][0];
                let start = range["offset"].as_u64().unwrap();
                let end = start + range["length"].as_u64().unwrap();
                assert!(end > start);
                ranges.push((path.strip_prefix(&address).unwrap().to_owned(), start, end));
            }
        }
        let mut expected = lost.clone();
        expected.sort_unstable();
        assert_eq!(named, expected);
        compare(case.dataset(dataset), &to, &lost);
        // Lost ranges are holes, and all other data is present.
        for (path, start, end) in &ranges {
            let copy = std::fs::read(to.join(path)).unwrap();
            let (start, end) = (*start as usize, *end as usize);
            assert!(copy[start..end].iter().all(|byte| *byte == 0), "{path}");
            let around = [&copy[..start], &copy[end..]].concat();
            assert!(around.is_empty() || around.iter().any(|byte| *byte != 0));
        }

        let whole = folder
            .path()
            .join(format!("{}-whole", dataset.replace('/', "-")));
        let output = case.run([
            "cp",
            "-r",
            "--skip-damaged",
            &address,
            whole.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(1));
        for path in &lost {
            assert!(!whole.join(path).exists(), "{path}");
            assert!(text(&output.stderr).contains(path));
        }
    }
}

#[test]
fn a_raidz_copies_out_without_one_of_its_disks() {
    let case = case_without("gang-raidz", &["d1."]);
    let folder = folder();
    let dataset = case.record.datasets.iter().find(|one| one.tree.is_some());
    let dataset = dataset.unwrap();
    let to = folder.path().join("copy");
    let address = format!("{}:/", dataset.name);
    case.run_well(["cp", "--trusted", "-r", &address, to.to_str().unwrap()]);
    compare(dataset, &to, &[]);
}

#[test]
fn a_volume_becomes_a_sparse_image() {
    let case = case("crypt");
    let folder = folder();
    let mut count = 0;
    for dataset in &case.record.datasets {
        let Some(Volume::Whole(digest)) = &dataset.volume else {
            continue;
        };
        let to = folder.path().join(format!("v{count}.img"));
        let mut words = vec![];
        for (index, (root, key)) in case.record.keys.iter().enumerate() {
            let file = folder.path().join(format!("key{index}"));
            std::fs::write(&file, &key.bytes).unwrap();
            words.extend(["--key".to_owned(), format!("{root}={}", file.display())]);
        }
        let name = dataset.name.clone();
        let cat = [words.clone(), vec!["cat".into(), name.clone()]].concat();
        words.extend(["cp".into(), name, to.to_str().unwrap().to_owned()]);
        case.run_well(words);
        assert_eq!(&sha256(&std::fs::read(&to).unwrap()), digest);
        let found = to.metadata().unwrap();
        assert!(
            found.blocks() * 512 < found.len(),
            "{} is not sparse",
            dataset.name
        );
        assert_eq!(&sha256(&case.run_well(cat)), digest);
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn symlinks_in_the_destination_are_not_followed() {
    let case = case("single");
    let folder = folder();
    let (outside, to) = (folder.path().join("outside"), folder.path().join("copy"));
    std::fs::create_dir_all(outside.join("deep")).unwrap();
    std::fs::write(outside.join("precious"), "precious").unwrap();
    std::fs::create_dir(&to).unwrap();
    // Links in place of a directory, a file and a link.
    symlink(outside.join("deep"), to.join("dir")).unwrap();
    symlink(outside.join("precious"), to.join("count")).unwrap();
    symlink(outside.join("precious"), to.join("link-short")).unwrap();
    std::fs::hard_link(outside.join("precious"), to.join("r512")).unwrap();
    let output = case.run(["cp", "-r", "single:/", to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("single:/dir: not copied"));
    let precious = outside.join("precious");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    assert_eq!(precious.metadata().unwrap().mode() & 0o777, 0o644);
    assert_eq!(outside.join("deep").read_dir().unwrap().count(), 0);
    assert!(to.join("count").symlink_metadata().unwrap().is_file());
    assert_eq!(to.join("r512").metadata().unwrap().len(), 512);
}

#[test]
fn the_destination_determines_the_name_of_a_copy() {
    let case = case("single");
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    case.run_well(["cp", "single:/hello.txt", &at("renamed")]);
    assert_eq!(std::fs::read(at("renamed")).unwrap(), b"hello, mill pond\n");
    case.run_well(["cp", "single:/hello.txt", "single:/r112", &at("")]);
    assert!(folder.path().join("hello.txt").exists() && folder.path().join("r112").exists());
    // A directory requires `-r`; several sources require a directory as destination.
    let output = case.run(["cp", "single:/dir", &at("")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("use -r"));
    let output = case.run(["cp", "single:/r112", "single:/r511", &at("renamed")]);
    assert_eq!(output.status.code(), Some(2));
    // `-n` keeps existing files.
    std::fs::write(at("renamed"), "mine").unwrap();
    case.run_well(["cp", "-n", "single:/hello.txt", &at("renamed")]);
    assert_eq!(std::fs::read(at("renamed")).unwrap(), b"mine");
}
