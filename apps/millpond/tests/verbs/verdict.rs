//! The verdicts of `verify` and `check`: what they say, their exit status, and whether the advice works.

use crate::golden::text;
use crate::into::WorkFolder;
use millpond_sim::noise;
use std::os::unix::fs::FileExt;
use std::process::Output;

/// Overwrites these bytes wherever they are in an image, and returns in how many places.
pub(crate) fn damage(place: &WorkFolder, image: &str, content: &[u8]) -> usize {
    let path = place.image(image);
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let found = (0..bytes.len())
        .step_by(512)
        .filter(|&offset| bytes[offset..].starts_with(&content[..512]));
    let mut count = 0;
    for offset in found {
        file.write_all_at(&[0x5a; 512], offset as u64).unwrap();
        count += 1;
    }
    count
}

pub(crate) fn new_pool(place: &WorkFolder, kind: &str, images: &[&str]) {
    for image in images {
        let file = std::fs::File::create(place.image(image)).unwrap();
        file.set_len(128 << 20).unwrap();
    }
    let images = images.iter().map(|image| place.image(image));
    let mut words = vec!["zpool".to_owned(), "create".to_owned(), "tank".to_owned()];
    words.extend((!kind.is_empty()).then(|| kind.to_owned()));
    words.extend(images);
    place.well(words);
}

/// Copies a file of these bytes into the root of the pool.
pub(crate) fn put(place: &WorkFolder, name: &str, content: &[u8]) {
    let path = place.path(name);
    std::fs::write(&path, content).unwrap();
    place.well(["cp", path.to_str().unwrap(), "tank:/"]);
}

/// Verifies the pool, and returns the exit status with the lines from the verdict on.
fn verify(place: &WorkFolder) -> (i32, String) {
    ended(&place.run(["verify", "-q", "tank"]), place)
}

fn ended(output: &Output, place: &WorkFolder) -> (i32, String) {
    let printed = text(&output.stdout);
    let from = printed
        .find("verdict: ")
        .unwrap_or_else(|| panic!("{printed}{}", text(&output.stderr)));
    let folder = format!("{}/", place.images().display());
    (
        output.status.code().unwrap(),
        printed[from..].replace(&folder, "@"),
    )
}

#[test]
fn verify_says_which_files_are_lost_and_where_they_are_whole() {
    let place = WorkFolder::new();
    new_pool(&place, "", &["a"]);
    let content = |seed| noise(seed, 300_000);
    put(&place, "changed", &content(1));
    put(&place, "kept", &content(2));
    place.well(["zfs", "snapshot", "tank@old"]);
    put(&place, "other", &content(3));
    place.well(["zfs", "snapshot", "tank@new"]);
    put(&place, "changed", &content(4));
    put(&place, "young", &content(5));
    assert_eq!(verify(&place), (0, "verdict: sound: no errors\n".into()));

    for seed in [4, 2, 5] {
        assert_eq!(damage(&place, "a", &content(seed)), 1);
    }
    let (status, verdict) = verify(&place);
    assert_eq!(status, 3, "{verdict}");
    let mut lines: Vec<&str> = verdict.lines().collect();
    lines[1..4].sort_unstable();
    assert_eq!(
        lines,
        [
            "verdict: lost: 3 files or objects, and 2 of snapshots cannot be read whole from any copy",
            "  tank:/changed: whole in tank@new: `millpond cp 'tank@new:/changed' .`",
            "  tank:/kept: whole in no snapshot: restore it from a backup",
            "  tank:/young: whole in no snapshot: restore it from a backup",
            "  tank@old:/kept: cannot be read whole in this snapshot",
            "  tank@new:/kept: cannot be read whole in this snapshot",
        ]
    );
    let out = place.path("restored");
    place.well(["cp", "tank@new:/changed", out.to_str().unwrap()]);
    assert!(std::fs::read(out).unwrap() == content(1));

    let (status, verdict) = ended(&place.run(["check", "-q", "tank"]), &place);
    assert_eq!(
        (status, verdict.as_str()),
        (0, "verdict: sound: nothing found\n")
    );
}

#[test]
fn verify_names_the_device_and_its_advice_repairs_it() {
    let place = WorkFolder::new();
    new_pool(&place, "mirror", &["a", "b"]);
    put(&place, "file", &noise(1, 300_000));
    assert_eq!(damage(&place, "b", &noise(1, 300_000)), 1);
    let line =
        "verdict: repairable: no file is lost; @b has damage that `zpool scrub tank` repairs\n";
    assert_eq!(verify(&place), (1, line.into()));
    place.well(["zpool", "scrub", "-w", "tank"]);
    assert_eq!(verify(&place), (0, "verdict: sound: no errors\n".into()));

    // Labels 1 and 2.
    let image = std::fs::File::options()
        .write(true)
        .open(place.image("a"))
        .unwrap();
    for offset in [256 << 10, (128 << 20) - (512 << 10)] {
        image.write_all_at(&[0x5a; 256 << 10], offset).unwrap();
    }
    let line = "verdict: repairable: no file is lost; @a has damaged labels, which are written anew by \
                `zpool export` and `zpool import`\n";
    assert_eq!(verify(&place), (1, line.into()));
    // Each command with `-d` imports the pool and exports it.
    put(&place, "file", b"new");
    assert_eq!(verify(&place), (0, "verdict: sound: no errors\n".into()));
}

#[test]
fn verify_counts_absent_and_stale_devices() {
    let place = WorkFolder::new();
    new_pool(&place, "mirror", &["a", "b"]);
    put(&place, "file", &noise(1, 300_000));
    let away = place.path("b");
    std::fs::rename(place.image("b"), &away).unwrap();
    let (status, verdict) = verify(&place);
    assert_eq!(status, 1, "{verdict}");
    let line = "verdict: degraded: no errors in what is there, but @b is absent: ";
    assert!(verdict.starts_with(line), "{verdict}");
    put(&place, "file", &noise(2, 300_000));
    std::fs::rename(&away, place.image("b")).unwrap();
    let line = "verdict: stale: no errors, but @b is not up to date: run `zpool online tank @b`\n";
    assert_eq!(verify(&place), (1, line.into()));
    place.well(["zpool", "online", "tank", &place.image("b")]);
    assert_eq!(verify(&place), (0, "verdict: sound: no errors\n".into()));
}

#[test]
fn a_pool_that_is_not_found_has_no_verdict() {
    let place = WorkFolder::new();
    for verb in ["verify", "check"] {
        let output = place.run([verb, "tank"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
    }
}
