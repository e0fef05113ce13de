//! Keys of several datasets.

use super::*;

#[test]
fn keys_that_are_as_wanted_are_passed_over() {
    let stage = Stage::new(&["a"], 256);
    stage.quietly("zpool create -m none tank @a");
    let key = stage.tools.path().join("key");
    std::fs::write(&key, "12345678\n").unwrap();
    let options = format!(
        "-o encryption=on -o keyformat=passphrase -o keylocation=file://{}",
        key.display()
    );
    for name in ["one", "two"] {
        stage.quietly(&format!(
            "zfs create {options} -o pbkdf2iters=100000 tank/{name}"
        ));
    }
    stage.refused(
        &format!("zfs create {options} -o pbkdf2iters=100 tank/three"),
        "cannot create 'tank/three': minimum pbkdf2 iterations is 100000",
    );
    let told = |line: &str, words: &str| {
        assert_eq!(stage.run(line), (format!("{words}\n"), 0), "{line}");
    };
    stage.quietly("zfs unload-key tank/two");
    told("zfs load-key -a", "1 / 1 key(s) successfully loaded");
    told("zfs load-key -r tank", "0 / 0 key(s) successfully loaded");
    // Keys that are only tried may be loaded.
    told(
        "zfs load-key -n tank/one",
        "1 / 1 key(s) successfully verified",
    );
    told("zfs load-key -na", "2 / 2 key(s) successfully verified");
    stage.quietly("zfs unload-key tank/one");
    told("zfs unload-key -a", "1 / 1 key(s) successfully unloaded");
    // One that was named is not.
    let (text, status) = stage.run("zfs unload-key tank/one");
    let words = "Key unload error: Key already unloaded for 'tank/one'.\n";
    assert_eq!((text.as_str(), status), (words, 255));
    std::fs::write(&key, "wrong passphrase\n").unwrap();
    let (text, status) = stage.run("zfs load-key -n tank/one");
    assert!(
        text.ends_with("0 / 1 key(s) successfully verified\n"),
        "{text}"
    );
    assert_eq!(status, 255);
}
