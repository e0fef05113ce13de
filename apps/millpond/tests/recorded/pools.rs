//! Pools and their devices.

use super::*;

fn guid_of(stage: &Stage, line: &str) -> String {
    let text = stage.done(&format!("zpool get -Hp -o value guid {line}"));
    text.trim().to_owned()
}

#[test]
fn a_guid_in_use_is_not_given_to_another_pool() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create -m none one @a");
    stage.quietly("zpool create -m none two @b");
    let used = [
        guid_of(&stage, "two"),
        guid_of(&stage, "one"),
        guid_of(&stage, "one @a"),
    ];
    for guid in &used {
        let line = format!("zpool reguid -g {guid} one");
        let words = format!(
            "cannot reguid 'one': guid {guid} is in use by an imported pool; give another one\n"
        );
        assert_eq!(stage.run(&line), (words, 255));
    }
    assert_eq!(guid_of(&stage, "one"), used[1]);
    stage.quietly("zpool reguid -g 12345 one");
    assert_eq!(guid_of(&stage, "one"), "12345");
    // Without the daemon the pools of the search count, exported or not.
    stage.quietly("zpool export -a");
    let (text, status) = stage.run_alone(&format!("zpool reguid -g {} one", used[0]));
    assert!(
        text.contains("is in use") && status == 255,
        "{text} {status}"
    );
    stage.quietly("zpool import -a");
    assert_eq!(
        stage.done("zpool list -H -o name,health"),
        "one\tONLINE\ntwo\tONLINE\n"
    );
}

#[test]
fn labels_are_cleared_by_a_relative_path() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create -m none tank @a @b");
    stage.quietly("zpool export tank");
    for name in ["a", "./b"] {
        let mut command = stage.command(&format!("zpool labelclear -f {name}"), false);
        let done = command.current_dir(stage.folder.path()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let mut command = stage.command("zpool labelclear -f none", false);
    let done = command.current_dir(stage.folder.path()).output().unwrap();
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(text, "failed to open none: No such file or directory\n");
    let (text, _) = stage.run("zpool import");
    assert_eq!(text, "no pools available to import\n");
}

#[test]
fn errors_of_a_hot_spare_are_not_cleared() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create -m none tank @a spare @b");
    stage.refused(
        "zpool clear tank @b",
        "cannot clear errors for @b: device is reserved as a hot spare",
    );
    stage.quietly("zpool clear tank @a");
}
