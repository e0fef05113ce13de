//! Copies to places that are named without a colon.

use crate::stage::Stage;
use millpond_sim::noise;

#[test]
fn a_volume_or_file_system_needs_no_colon() {
    let stage = Stage::new(&["a"], 128);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done("zfs create -V 8M tank/vol");
    stage.done("zfs create tank/fs");
    stage.done("zpool export tank");
    stage.file("content", &noise(1, 8 << 20));
    let quietly = |line: &str| assert_eq!(stage.run_alone(line), (String::new(), 0), "{line}");
    quietly("millpond cp @content tank/vol");
    // A name that the host has not is looked for in a pool.
    quietly("millpond cp tank/vol @out");
    let bytes = |name: &str| std::fs::read(stage.image(name)).unwrap();
    assert!(bytes("out") == bytes("content"));
    // The root of a file system is a folder.
    quietly("millpond cp @content @out tank/fs");
    assert_eq!(
        stage.run_alone("millpond ls tank/fs"),
        ("content\nout\n".into(), 0)
    );
    let text = stage.run_alone("millpond cp @content @nosuch/copy").0;
    assert!(text.contains("is no address"), "{text}");
    let text = stage.run_alone("millpond cp @content nosuch/copy").0;
    assert!(text.contains("cannot open 'nosuch'"), "{text}");
}
