//! Datasets, their properties and streams.

use super::*;

#[test]
fn a_name_that_is_too_deep_leaves_no_ancestors() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    let deep = |count: usize| format!("tank{}", "/n".repeat(count));
    for (options, count) in [("-p", 60), ("-p", 50), ("", 50)] {
        let name = deep(count);
        let words = format!("cannot create '{name}': maximum name nesting depth exceeded");
        stage.refused(&format!("zfs create {options} {name}"), &words);
        assert_eq!(stage.done("zfs list -H -o name"), "tank\n");
    }
    stage.refused(
        &format!("zfs create {}", deep(49)),
        &format!("cannot create '{}': parent does not exist", deep(49)),
    );
    stage.quietly(&format!("zfs create -p {}", deep(49)));
    assert_eq!(stage.done("zfs list -H -o name").lines().count(), 50);
    stage.quietly("zfs create tank/x");
    let (_, status) = stage.run(&format!("zfs rename -p tank/x tank/new{}", "/n".repeat(60)));
    assert_eq!(status, 1);
    let (text, _) = stage.run("zfs list -H -o name tank/new");
    assert_eq!(text, "cannot open 'tank/new': dataset does not exist\n");
}

#[test]
fn a_single_word_sets_nothing() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    let (text, status) = stage.run("zfs set tank");
    assert!(
        text.starts_with("missing property=value argument(s)\nusage:\n\tset "),
        "{text}"
    );
    assert_eq!(status, 2);
}

#[test]
fn options_end_at_the_first_operand_if_the_environment_says_so() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    let line = "zfs get -H quota tank -p";
    assert_eq!(stage.run(line), ("tank\tquota\t0\tdefault\n".into(), 0));
    let mut command = stage.command(line, false);
    let done = command.env("POSIXLY_CORRECT", "").output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(text, "tank\tquota\tnone\tdefault\n");
    let text = String::from_utf8(done.stderr).unwrap();
    assert!(text.contains("'-p'"), "{text}");
    assert!(!done.status.success());
}
