//! Help and versions, and how commands that are not implemented are marked.

use crate::stage::Stage;
use std::fs;
use std::os::unix::fs::PermissionsExt;

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

#[test]
fn help_of_zpool_and_zfs_needs_no_pages_of_openzfs() {
    let stage = Stage::new(&[], 0);
    let programs = stage.tools.path().join("programs");
    fs::create_dir(&programs).unwrap();
    // A man program that has these pages only.
    let script = |pages: &str| {
        let man = programs.join("man");
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = -w ] && find=1 && shift\ncase \" {pages} \" in\n\
             *\" $1 \"*) [ $find ] || echo \"page $1\" ;;\n\
             *) echo \"No manual entry for $1\" >&2; exit 16 ;;\nesac\n"
        );
        fs::write(&man, text).unwrap();
        fs::set_permissions(&man, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let run = |line: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = stage.command(line, false);
        command.env("PATH", format!("{}:{path}", programs.display()));
        let done = command.output().unwrap();
        let text = String::from_utf8([done.stderr, done.stdout].concat()).unwrap();
        (text, done.status.code().unwrap())
    };
    script("zpool zpool-list zfsprops millpond-zpool");
    assert_eq!(run("zpool help"), ("page zpool\n".into(), 0));
    assert_eq!(run("zpool help list"), ("page zpool-list\n".into(), 0));
    assert_eq!(run("zfs help properties"), ("page zfsprops\n".into(), 0));
    let missing = ("No manual entry for zpool-bogus\n".into(), 16);
    assert_eq!(run("zpool help bogus"), missing);

    script("millpond-zpool");
    assert_eq!(run("zpool help"), ("page millpond-zpool\n".into(), 0));
    assert_eq!(run("zpool help bogus"), missing);
    for (line, wanted) in [
        ("zpool help list", "\tlist [-gHLpPv]"),
        ("zpool help properties", "autoexpand"),
        ("zpool help features", "lz4_compress"),
        ("zfs help", "usage: zfs command args"),
        ("zfs help create", "\tcreate [-Pnpuv]"),
    ] {
        let (shown, status) = run(line);
        assert_eq!(status, 0, "{line}: {shown}");
        assert!(shown.contains(wanted), "{line}: {shown}");
        assert!(shown.contains("is not installed"), "{line}: {shown}");
    }
}
