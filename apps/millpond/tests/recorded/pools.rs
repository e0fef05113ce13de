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
fn a_device_of_an_empty_pool_of_small_ones_is_removed() {
    let stage = Stage::new(&["a", "b", "c"], 128);
    stage.quietly("zpool create -m none rem @a @b @c");
    stage.quietly("zpool remove -w rem @b");
    let status = stage.done("zpool status rem");
    assert!(
        status.contains("remove: Removal of vdev 1 copied "),
        "{status}"
    );
    assert!(!status.contains("@b") && status.contains("@c"), "{status}");
    // The last two together have less than one of them available.
    stage.refused("zpool remove rem @c", "cannot remove @c: out of space");
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

#[test]
fn features_that_others_need_are_listed_and_recorded() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create -m none -d tank @a");
    let text = stage.done("zpool upgrade tank");
    assert!(
        text.contains("\n  resilver_defer\n  bookmark_v2\n  redaction_bookmarks\n"),
        "{text}"
    );
    stage.quietly("zpool create -m none new @b");
    for pool in ["tank", "new"] {
        let history = stage.done(&format!("zpool history -i {pool}"));
        let set = |name: &str| {
            let line = format!("set feature@{name}=enabled\n");
            history.matches(&line).count()
        };
        assert_eq!(set("bookmark_v2"), 1, "{history}");
        assert_eq!(set("encryption"), 1, "{history}");
    }
}

#[test]
fn a_sync_is_not_recorded() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    stage.quietly("zpool sync");
    stage.quietly("zpool sync tank");
    let history = stage.done("zpool history tank");
    assert!(!history.contains("sync"), "{history}");
    stage.quietly("zpool export tank");
    assert_eq!(stage.run_alone("zpool sync tank"), (String::new(), 0));
    stage.quietly("zpool import tank");
    let history = stage.done("zpool history tank");
    assert!(!history.contains("sync"), "{history}");
}

#[test]
fn a_forced_sync_writes_a_txg_without_changes() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    let committed = || {
        let pool = stage.served.daemon.pools().writable("tank").unwrap();
        let view = pool.committed().unwrap();
        view.inner().uberblock().txg
    };
    stage.quietly("zpool sync tank");
    for line in ["zpool sync -f tank", "zpool sync -f"] {
        let before = committed();
        stage.quietly(line);
        assert!(committed() > before, "{line}");
    }
    let before = committed();
    stage.quietly("zpool sync tank");
    assert_eq!(committed(), before);
}

/// The pool is whole as soon as the device is there again.
#[test]
fn a_pool_whose_device_is_missing_is_not_to_be_destroyed() {
    let stage = Stage::new(&["a", "b"], 128);
    stage.quietly("zpool create -m none tank @a @b");
    stage.quietly("zpool export tank");
    stage.resize("b", 0);
    let (said, status) = stage.run("zpool import tank");
    assert_ne!(status, 0);
    assert!(said.contains("Attach the missing devices"), "{said}");
    assert!(!said.to_lowercase().contains("destroy"), "{said}");
}

#[test]
fn a_device_without_its_label_is_shown_by_its_guid() {
    let stage = Stage::new(&["a", "b", "c"], 128);
    stage.quietly("zpool create -m none tank raidz @a @b @c");
    let guid = guid_of(&stage, "tank @b");
    stage.quietly("zpool export tank");
    stage.resize("b", 0);
    stage.resize("b", 128);
    stage.quietly("zpool import tank");
    let status = stage.done("zpool status tank");
    let line = status.lines().find(|line| line.contains(&guid));
    let words: Vec<&str> = line.unwrap_or(&status).split_whitespace().collect();
    assert_eq!(
        words,
        [&guid, "UNAVAIL", "0", "0", "0", "was", "@b"],
        "{status}"
    );
    let list = stage.done("zpool list -v tank");
    let line = list.lines().find(|line| line.contains(&guid));
    let words: Vec<&str> = line.unwrap_or(&list).split_whitespace().collect();
    assert_eq!((words[0], words[1]), (guid.as_str(), "128M"), "{list}");
    stage.quietly("zpool replace tank @b");
    stage.quietly("zpool wait tank");
    let status = stage.done("zpool status tank");
    assert!(!status.contains(&guid), "{status}");
}
