//! Datasets, their properties and streams.

use super::*;
use millpond_posix::{Caller, NewMode, WriteAt};
use std::process::Stdio;

/// Adds a file without a mount, as long as there is room. Returns whether there was.
fn fill(stage: &Stage, name: &str, file: &str, length: usize) -> bool {
    let pool = name.split('/').next().unwrap();
    let pool = stage.served.daemon.pools().writable(pool).unwrap();
    let files = pool.file_system(name).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o600);
    let Ok((node, _)) = files.create(&caller, &root, file.as_bytes(), mode, true) else {
        return false;
    };
    let piece = 128 << 10;
    let bytes = millpond_sim::noise(length as u64, piece);
    let mut at = (0..length as u64).step_by(piece);
    at.all(|at| {
        let written = files.write(&caller, &node, WriteAt::Offset(at), &bytes);
        written.is_ok()
    })
}

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

#[test]
fn a_full_pool_takes_no_snapshots() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    stage.quietly("zfs create -o quota=1M tank/small");
    assert!(!fill(&stage, "tank/small", "f", 4 << 20));
    stage.quietly("zpool sync");
    // What is at its quota only takes them.
    let none = (String::new(), 0);
    assert_eq!(plain(&stage, "zfs snapshot tank/small@full"), none);
    let mut count = 0;
    while fill(&stage, "tank", &format!("f{count}"), 8 << 20) {
        count += 1;
    }
    stage.quietly("zpool sync");
    assert_eq!(stage.done("zfs list -Hp -o avail tank"), "0\n");
    let words = "cannot create snapshots : out of space\n".to_owned();
    assert_eq!(plain(&stage, "zfs snapshot tank@full"), (words, 1));
    stage.refused(
        "zfs create tank/full",
        "cannot create 'tank/full': out of space",
    );
    assert_eq!(
        stage.done("zfs list -H -o name -t snapshot"),
        "tank/small@full\n"
    );
}

#[test]
fn a_send_whose_reader_is_gone_ends_silently() {
    let stage = Stage::new(&["a"], 128);
    stage.quietly("zpool create -m none tank @a");
    assert!(fill(&stage, "tank", "f", 4 << 20));
    assert_eq!(plain(&stage, "zfs snapshot tank@s"), (String::new(), 0));
    let mut command = stage.command("zfs send tank@s", false);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(done.stderr).unwrap(), "");
    assert!(!done.status.success());
}
