//! Error messages state what happened, to which object, and how to resolve it.

use crate::golden::{case, case_without, text};

#[test]
fn missing_names_give_status_1_and_usage_errors_2() {
    let case = case("single");
    for (words, status, said) in [
        (&["ls", "nosuch"][..], 1, "no such pool"),
        (&["ls", "nosuch"], 1, "-d DIR says where to look"),
        (&["ls", "single/nosuch"], 1, "dataset does not exist"),
        (&["cat", "single:/nosuch"], 1, "no such file"),
        (&["cat", "single:/dir"], 1, "is a directory"),
        (&["ls", "single:/hello.txt/x"], 1, "not a directory"),
        (&["ls", "/etc"], 2, "is no address"),
        (&["ls"], 2, "Usage"),
        (&["nosuch"], 2, "nosuch"),
        (&["--key", "single", "ls", "single"], 2, "DATASET="),
    ] {
        let output = case.run(words);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {message}");
        assert!(message.contains(said), "{words:?}: {message}");
    }
}

#[test]
fn a_pool_without_enough_disks_names_those_that_are_missing() {
    let case = case_without("gang-raidz", &["d0.", "d1."]);
    let output = case.run(["ls", "pgangz"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("mp-gang-raidz-d0") && message.contains("mp-gang-raidz-d1"),
        "{message}"
    );
    assert!(!message.contains("mp-gang-raidz-d2"), "{message}");
}

#[test]
fn every_verb_has_help() {
    let case = case("single");
    for verb in ["import", "ls", "cat", "stat", "tree", "find", "cp"] {
        let help = text(&case.run_well([verb, "--help"]));
        assert!(
            help.contains("--json") && help.contains("Usage"),
            "{verb}: {help}"
        );
    }
}
