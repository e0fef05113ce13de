//! Streams of unencrypted datasets received as encrypted ones, and the other way round.

use super::{fill, given, plain, refused, sent};
use crate::stage::Stage;

fn value(stage: &Stage, property: &str, name: &str) -> String {
    let text = sent(stage, &format!("zfs get -Hpo value {property} {name}"));
    String::from_utf8(text).unwrap().trim_end().to_owned()
}

#[test]
fn a_received_dataset_gets_the_keys_that_are_asked_for() {
    let stage = Stage::new(&["a", "b"], 256);
    stage.done("zpool create -m none tank @a");
    stage.done("zpool create -m none back @b");
    let key = stage.image("key");
    std::fs::write(&key, "a long passphrase\n").unwrap();
    let root = format!(
        "-o encryption=on -o keyformat=passphrase -o keylocation=file://{key} -o pbkdf2iters=100000"
    );
    plain(&stage, "zfs create tank/h");
    fill(&stage, "tank/h", "f", 300 << 10);
    plain(&stage, "zfs create tank/h/below");
    plain(&stage, "zfs snapshot -r tank/h@1");
    let one = sent(&stage, "zfs send tank/h@1");
    let done = given(&stage, &format!("zfs receive -u {root} back/ne"), &one);
    assert_eq!(done, (String::new(), String::new(), 0));
    let of = |property: &str, name: &str| value(&stage, property, name);
    assert_eq!(of("encryption", "back/ne"), "aes-256-gcm");
    assert_eq!(of("encryptionroot", "back/ne"), "back/ne");
    assert_eq!(of("keylocation", "back/ne"), format!("file://{key}"));
    assert_eq!(of("keystatus", "back/ne@1"), "available");
    // The key opens it again, and the next stream continues it.
    stage.done("zfs unload-key back/ne");
    stage.done("zfs load-key back/ne");
    fill(&stage, "tank/h", "g", 100 << 10);
    plain(&stage, "zfs snapshot -r tank/h@2");
    let next = sent(&stage, "zfs send -i @1 tank/h@2");
    let set = "cannot receive incremental stream: encryption property 'encryption' cannot be set for \
               incremental streams.";
    refused(
        &stage,
        &format!("zfs receive -u {root} back/ne"),
        &next,
        set,
    );
    let done = given(&stage, "zfs receive -u back/ne", &next);
    assert_eq!(done, (String::new(), String::new(), 0));
    // A package: its root gets the key, and what is below inherits it.
    let package = sent(&stage, "zfs send -R tank/h@2");
    let done = given(&stage, &format!("zfs receive -u {root} back/all"), &package);
    assert_eq!(done, (String::new(), String::new(), 0));
    assert_eq!(of("encryptionroot", "back/all/below"), "back/all");
    assert_eq!(of("encryption", "back/all/below@2"), "aes-256-gcm");
    // Not encrypted below an encrypted parent; and without the option as the parent.
    for (options, expected) in [("-o encryption=off", "off"), ("", "aes-256-gcm")] {
        let line = format!("zfs receive -u {options} back/ne/h");
        assert_eq!(
            given(&stage, &line, &one),
            (String::new(), String::new(), 0)
        );
        assert_eq!(of("encryption", "back/ne/h"), expected);
        stage.done("zfs destroy -r back/ne/h");
    }
    for (options, why) in [
        (
            "-o encryption=on -o keyformat=passphrase -o keylocation=prompt",
            "cannot receive: Cannot use 'prompt' keylocation because stdin is in use.",
        ),
        (
            "-o encryption=on",
            "cannot receive new filesystem stream: Keyformat required for new encryption root.",
        ),
    ] {
        refused(
            &stage,
            &format!("zfs receive -u {options} back/no"),
            &one,
            why,
        );
    }
    stage.failed("zfs list back/no");
    // A locked dataset is not damaged. Older states may be: blocks of what was destroyed since are used again.
    stage.done("zpool export back");
    let (listed, status) = stage.run_alone("millpond history back");
    assert_eq!(status, 0, "{listed}");
    let newest = listed.lines().nth(1).unwrap();
    assert!(
        newest.contains(" datasets whole; locked: back/") && !newest.contains("damaged"),
        "{listed}"
    );
    for line in listed.lines() {
        let damaged = line.split_once("damaged: ").map_or("", |(_, rest)| rest);
        let damaged = damaged.split(';').next().unwrap();
        for name in ["back/all", "back/ne "] {
            assert!(!damaged.contains(name), "{listed}");
        }
    }
}
