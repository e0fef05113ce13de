//! Older states of pools: listed, opened, and files brought back from them.

use crate::golden::text;
use crate::into::WorkFolder;
use crate::verdict::{damage, new_pool, put};
use millpond_sim::noise;

/// Runs a command that has to fail, and returns its message.
fn refused(place: &WorkFolder, words: &[&str]) -> String {
    let output = place.run(words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    text(&output.stderr)
}

/// The newest state, from `history --json`.
fn newest(place: &WorkFolder) -> serde_json::Value {
    let lines = place.well(["--json", "history", "tank"]);
    serde_json::from_str(lines.lines().next().unwrap()).unwrap()
}

fn content(place: &WorkFolder, address: &str) -> Vec<u8> {
    place.run(["cat", address]).stdout
}

#[test]
fn a_deleted_file_comes_back_from_an_older_state() {
    let place = WorkFolder::new();
    new_pool(&place, "mirror", &["a", "b"]);
    let bytes = noise(1, 300_000);
    put(&place, "file", &bytes);
    place.well(["chmod", "640", "tank:/file"]);
    assert_eq!(newest(&place)["damaged"], serde_json::json!([]));
    place.well(["rm", "tank:/file"]);

    let found = place.well(["undelete", "-n", "tank:/file"]);
    let txg = found.strip_prefix("tank:/file: whole in txg ");
    let txg = txg.and_then(|rest| rest.split(' ').next()).expect(&found);
    let listed = place.well(["history", "tank"]);
    let is_listed =
        |line: &str| line.trim_start().starts_with(txg) && line.contains("whole, 1 dataset");
    assert!(listed.lines().any(is_listed), "{listed}");
    // The state is read in every way, but never written to.
    let old = place.well(["-T", txg, "ls", "tank:/"]);
    assert_eq!(old, "file\n");
    let message = refused(&place, &["-T", txg, "mkdir", "tank:/new"]);
    assert!(message.contains("an older state is only read"), "{message}");

    assert!(!refused(&place, &["stat", "tank:/file"]).is_empty());
    let out = place.path("out");
    place.well(["undelete", "-o", out.to_str().unwrap(), "tank:/file"]);
    assert!(std::fs::read(&out).unwrap() == bytes);
    place.well(["undelete", "tank:/file"]);
    assert!(content(&place, "tank:/file") == bytes);
    assert!(
        place
            .well(["ls", "-l", "tank:/file"])
            .starts_with("-rw-r-----")
    );
    let message = refused(&place, &["undelete", "tank:/file"]);
    assert!(message.contains("is still there and whole"), "{message}");
    place.judge("tank");
}

#[test]
fn a_directory_comes_back_and_so_does_a_file_of_a_destroyed_file_system() {
    let place = WorkFolder::new();
    new_pool(&place, "", &["a"]);
    place.well(["zfs", "create", "tank/home"]);
    place.well(["mkdir", "tank/home:/dir"]);
    for number in 0..5 {
        let path = place.path("source");
        std::fs::write(&path, noise(number, 50_000)).unwrap();
        let address = format!("tank/home:/dir/{number}");
        place.well(["cp", path.to_str().unwrap(), &address]);
    }
    place.well(["rm", "-r", "tank/home:/dir"]);
    place.well(["undelete", "tank/home:/dir"]);
    for number in 0..5 {
        let address = format!("tank/home:/dir/{number}");
        assert!(content(&place, &address) == noise(number, 50_000));
    }
    place.well(["zfs", "destroy", "tank/home"]);
    let out = place.path("out");
    place.well(["undelete", "-o", out.to_str().unwrap(), "tank/home:/dir/3"]);
    assert!(std::fs::read(&out).unwrap() == noise(3, 50_000));
}

#[test]
fn the_newest_place_that_has_a_file_whole_is_taken() {
    let place = WorkFolder::new();
    new_pool(&place, "", &["a"]);
    put(&place, "file", &noise(1, 200_000));
    place.well(["zfs", "snapshot", "tank@old"]);
    put(&place, "file", &noise(2, 200_000));
    place.well(["zfs", "snapshot", "tank@new"]);
    place.well(["rm", "tank:/file"]);
    // The newest one with the file is an older state or the snapshot: both have the same content.
    place.well(["undelete", "tank:/file"]);
    assert!(content(&place, "tank:/file") == noise(2, 200_000));
    place.well(["rm", "tank:/file"]);
    assert!(damage(&place, "a", &noise(2, 200_000)) > 0);
    let found = place.well(["undelete", "tank:/file"]);
    assert!(found.starts_with("tank:/file: whole in "), "{found}");
    assert!(
        content(&place, "tank:/file") == noise(1, 200_000),
        "{found}"
    );

    place.well(["rm", "tank:/file"]);
    damage(&place, "a", &noise(1, 200_000));
    let message = refused(&place, &["undelete", "tank:/file"]);
    assert!(
        message.contains("is whole in no state or snapshot"),
        "{message}"
    );
    assert!(message.contains("copy what is left of it"), "{message}");
    let message = refused(&place, &["undelete", "tank:/never"]);
    assert!(message.contains("is in no state or snapshot"), "{message}");
}

#[test]
fn blocks_without_checksum_are_not_read_from_older_states() {
    let place = WorkFolder::new();
    new_pool(&place, "", &["a"]);
    place.well(["zfs", "set", "checksum=off", "tank"]);
    put(&place, "file", &noise(1, 200_000));
    let txg = newest(&place)["txg"].to_string();
    assert!(content(&place, "tank:/file") == noise(1, 200_000));
    place.well(["rm", "tank:/file"]);
    let message = refused(&place, &["-T", &txg, "cat", "tank:/file"]);
    assert!(message.contains("it has no checksum"), "{message}");
    let message = refused(&place, &["undelete", "tank:/file"]);
    assert!(message.contains("it has no checksum"), "{message}");
}
