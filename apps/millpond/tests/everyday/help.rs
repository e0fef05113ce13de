//! Help, versions, and what is not implemented.

use crate::stage::Stage;

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_version_is_told() {
    let stage = Stage::new(&[], 0);
    for word in ["--version", "-V"] {
        let shown = stage.done(&format!("millpond {word}"));
        assert_eq!(shown, format!("millpond {VERSION}\n"));
        let shown = stage.done(&format!("millpond daemon {word}"));
        assert_eq!(shown, format!("millpondd {VERSION}\n"));
    }
}

#[test]
fn each_word_has_its_own_help() {
    let stage = Stage::new(&[], 0);
    for (line, wanted) in [
        ("millpond help ls", "Usage: millpond ls"),
        ("millpond help stream cat", "Usage: millpond stream cat"),
        ("millpond -d /nowhere help verify", "Exit status: 0 sound"),
        ("millpond help daemon", "--arc-max SIZE"),
        ("millpond help zpool", "usage: zpool command args"),
        ("millpond help zpool offline", "\toffline [--power]"),
        ("millpond help zfs", "Not implemented yet: zone, unzone"),
        ("millpond help zfs zone", "Not implemented yet: zfs zone"),
    ] {
        let shown = stage.done(line);
        assert!(shown.contains(wanted), "{line}: {shown}");
    }
    assert!(
        !stage
            .done("millpond help zfs list")
            .contains("Not implemented")
    );
    for (line, wanted) in [
        ("millpond help nosuch", "'nosuch'"),
        ("millpond help stream nosuch", "'nosuch'"),
        (
            "millpond help zpool nosuch",
            "unrecognized command 'nosuch'",
        ),
    ] {
        let (shown, status) = stage.run(line);
        assert_eq!(status, 2, "{line}: {shown}");
        assert!(shown.contains(wanted), "{line}: {shown}");
    }
}

#[test]
fn the_help_lists_the_other_programs_and_what_they_lack() {
    let stage = Stage::new(&[], 0);
    for line in ["millpond help", "millpond --help"] {
        let shown = stage.done(line);
        for word in ["\n  daemon ", "\n  zpool ", "\n  zfs ", "\n  ls "] {
            assert!(shown.contains(word), "{line}: {shown}");
        }
        let words: Vec<&str> = shown.split_whitespace().collect();
        let words = words.join(" ");
        assert!(
            words.contains("(not implemented yet: zone, unzone)"),
            "{words}"
        );
    }
    let (shown, status) = stage.run("millpond --json zpool list");
    assert_eq!(status, 2, "{shown}");
    assert!(shown.contains("'zpool' comes first"), "{shown}");
}
