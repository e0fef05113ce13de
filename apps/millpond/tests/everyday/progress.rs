//! Progress where there is no terminal.

use crate::stage::Stage;
use millpond_sim::noise;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

/// Runs a command that reads a stream which does not end. Returns its first line on standard error, and its output.
fn watched(stage: &Stage, line: &str, stream: &[u8]) -> (String, String) {
    let mut command = stage.command(line, false);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let (first, rest) = stream.split_at(stream.len() / 2);
    input.write_all(first).unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    input.write_all(rest).unwrap();
    drop(input);
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{line}: {said}");
    (said, out)
}

#[test]
fn long_work_shows_lines_of_progress_on_request() {
    let stage = Stage::new(&["a"], 128);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done_as_it_is("zfs snapshot tank@s");
    let sent = stage.done_as_it_is("zfs send tank@s");
    let (said, out) = watched(&stage, "millpond --progress stream verify -", &sent);
    assert!(
        said.contains(" read at ") && said.ends_with("/s\n"),
        "{said}"
    );
    assert!(out.contains("sound"), "{out}");
    let (said, out) = watched(&stage, "millpond --json stream verify -", &sent);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let progress = &said["progress"];
    assert_eq!(progress["action"], "read");
    assert!(progress["bytes"].as_u64() > Some(0), "{said}");
    assert!(progress["bytes_per_second"].is_u64(), "{said}");
    let out: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out["verdict"], "sound");
    stage.done("zpool destroy tank");
}

#[test]
fn one_file_is_one() {
    let stage = Stage::new(&["a"], 128);
    stage.done("zpool create -O mountpoint=none tank @a");
    stage.done("zpool export tank");
    stage.file("content", &noise(1, 8 << 20));
    let said = |line: &str| stage.run_alone(line);
    assert_eq!(
        said("millpond --progress cp @content tank:/one"),
        ("1 file, 8M copied\n".into(), 0)
    );
    assert_eq!(
        said("millpond --progress cp @content tank:/two"),
        ("1 file, 8M copied\n".into(), 0)
    );
    std::fs::create_dir(stage.image("out")).unwrap();
    assert_eq!(
        said("millpond --progress cp tank:/one tank:/two @out"),
        ("2 files, 16M copied\n".into(), 0)
    );
    assert_eq!(
        said("millpond --progress cp -q tank:/one @out"),
        (String::new(), 0)
    );
}
