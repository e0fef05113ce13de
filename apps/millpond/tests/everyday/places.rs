//! Words for what is not there, is empty, or is too small.

use crate::stage::Stage;

#[test]
fn a_dry_run_refuses_devices_that_are_too_small() {
    let stage = Stage::new(&["a", "b", "c", "d"], 128);
    stage.file("nothing", b"");
    stage.resize("small", 1);
    stage.done("zpool create -O mountpoint=none tank mirror @a @b");
    let words = "cannot add to 'tank': device is less than the minimum size (64M)";
    for what in [
        "mirror @small @nothing",
        "mirror @c @small",
        "spare @small",
        "log mirror @c @small",
    ] {
        stage.refused(&format!("zpool add -n tank {what}"), words);
        stage.refused(&format!("zpool add -n -f tank {what}"), words);
        stage.refused(&format!("zpool add -f tank {what}"), words);
    }
    let words = "cannot create 'x': one or more devices is less than the minimum size (64M)";
    for line in ["zpool create -n x @small", "zpool create x @small"] {
        stage.refused(line, words);
    }
    let shown = stage.done("zpool add -n tank mirror @c @d");
    assert!(shown.starts_with("would update 'tank'"), "{shown}");
    stage.done("zpool export tank");
    let (text, status) = stage.run_alone("zpool add -n tank mirror @c @small");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("minimum size"), "{text}");
}

#[test]
fn places_in_messages_are_named_once() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done("zpool export tank");
    // All that is behind the labels is lost.
    let mut bytes = std::fs::read(stage.image("a")).unwrap();
    bytes[4 << 20..][..100 << 20].fill(0xa5);
    stage.file("a", &bytes);
    let text = stage.failed("zpool import tank");
    assert!(
        text.contains("pool metadata, object set: no good copy"),
        "{text}"
    );
    assert!(!text.contains("pool metadata: pool metadata"), "{text}");
    // That it was imported so needs no reason.
    stage.done("zpool create -O mountpoint=none other @b");
    stage.done("zpool export other");
    stage.done("zpool import -o readonly=on other");
    stage.refused(
        "zpool set comment=x other",
        "cannot set property for 'other': pool is read-only",
    );
    stage.done("zpool export other");
}
