//! Receives that were interrupted: what is kept, and how they go on.

use super::{given, plain, quiet, refused, sent, shown, staged};
use std::io::Write;

#[test]
fn an_interrupted_receive_goes_on_or_is_given_up() {
    let stage = staged();
    let stream = sent(&stage, "zfs send src/fs@1");
    let (words, _, status) = given(&stage, "zfs receive -s dst/t", &stream[..500_000]);
    let expected = "cannot receive new filesystem stream: checksum mismatch or incomplete stream.\n\
                    Partially received snapshot is saved.\n\
                    A resuming stream can be generated on the sending system by running:\n    \
                    zfs send -t 1-";
    assert!(words.starts_with(expected), "{words}");
    assert_eq!(status, 1);
    let token = words.trim_end().rsplit(' ').next().unwrap().to_owned();
    let stored = sent(&stage, "zfs get -H -o value receive_resume_token dst/t");
    assert_eq!(String::from_utf8(stored).unwrap().trim_end(), token);
    let exists = "cannot receive new filesystem stream: destination 'dst/t' exists\n\
                  must specify -F to overwrite it";
    refused(&stage, "zfs receive dst/t", &stream, exists);
    let dry = String::from_utf8(sent(&stage, &format!("zfs send -nv -t {token}"))).unwrap();
    assert!(
        dry.starts_with("resume token contents:\nnvlist version: 0\n\tobject = 0x"),
        "{dry}"
    );
    assert!(
        dry.contains("\ttoname = src/fs@1\nfull send of src/fs@1 estimated size is "),
        "{dry}"
    );
    // It survives that the pool is closed.
    stage.done("zpool export dst");
    stage.done("zpool import dst");
    let rest = sent(&stage, &format!("zfs send -t {token}"));
    assert!(rest.len() < stream.len());
    // It is checked without being received, and continues only where it belongs.
    shown(
        &stage,
        "zfs receive -nv dst/t",
        &rest,
        "would receive full stream of src/fs@1 into dst/t@1",
    );
    refused(
        &stage,
        "zfs receive -nv dst/none",
        &rest,
        "cannot receive resume stream: destination 'dst/none' does not exist",
    );
    plain(&stage, "zfs create dst/whole");
    refused(
        &stage,
        "zfs receive -n dst/whole",
        &rest,
        "cannot receive resume stream: 'dst/whole' has no interrupted receive that this stream continues",
    );
    quiet(&stage, "zfs receive -s dst/t", &rest);
    refused(
        &stage,
        "zfs receive -n dst/t",
        &rest,
        "cannot receive resume stream: 'dst/t' has no interrupted receive that this stream continues",
    );
    assert_eq!(sent(&stage, "zfs send dst/t@1").len(), stream.len());
    // The same for an increment, which is given up.
    let more = sent(&stage, "zfs send -i @1 src/fs@2");
    let (words, _, _) = given(&stage, "zfs receive -s dst/t", &more[..200_000]);
    assert!(words.contains("zfs send -t 1-"), "{words}");
    refused(
        &stage,
        "zfs receive dst/t",
        &more,
        "cannot receive incremental stream: destination dst/t contains partially-complete state from \
         \"zfs receive -s\".",
    );
    plain(&stage, "zfs receive -A dst/t");
    refused(
        &stage,
        "zfs receive -A dst/t",
        &[],
        "'dst/t' does not have any resumable receive state to abort",
    );
    quiet(&stage, "zfs receive dst/t", &more);
    let (usage, _, status) = given(&stage, "zfs receive -A dst/none", &[]);
    assert!(
        usage.starts_with("cannot open 'dst/none': dataset does not exist\nusage:"),
        "{usage}"
    );
    assert_eq!(status, 2);
    for (token, words) in [
        ("bogustoken", "invalid format"),
        ("1-abc-def-0123", "incorrect checksum"),
    ] {
        let text = format!("cannot resume send: resume token is corrupt ({words})\n");
        let line = format!("zfs send -t {token}");
        assert_eq!(given(&stage, &line, &[]), (text, String::new(), 255));
    }
}

#[test]
fn a_receive_that_was_to_replace_goes_on_by_force() {
    let stage = staged();
    let stream = sent(&stage, "zfs send src/fs@1");
    plain(&stage, "zfs create dst/old");
    let (words, _, _) = given(&stage, "zfs receive -s -F dst/old", &stream[..500_000]);
    let token = words.trim_end().rsplit(' ').next().unwrap();
    let rest = sent(&stage, &format!("zfs send -t {token}"));
    // A refusal leaves what was received.
    for line in ["zfs receive -n dst/old", "zfs receive -s dst/old"] {
        let words = "cannot receive resume stream: Resuming recv on existing destination 'dst/old'\n\
                     must specify -F to overwrite it";
        refused(&stage, line, &rest, words);
    }
    quiet(&stage, "zfs receive -s -F dst/old", &rest);
    assert_eq!(sent(&stage, "zfs send dst/old@1").len(), stream.len());
}

/// A receive under way is no state that was left.
#[test]
fn another_receive_into_the_same_dataset_is_busy() {
    let stage = staged();
    for line in ["zfs send src/fs@1", "zfs send -i @1 src/fs@2"] {
        let stream = sent(&stage, line);
        let is_next = line.contains("-i");
        let mut command = stage.command("zfs receive dst/t", false);
        let mut first = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut input = first.stdin.take().unwrap();
        input.write_all(&stream[..200_000]).unwrap();
        // Until it has begun, another one could be received.
        let second = loop {
            let (words, _, status) = given(&stage, "zfs receive -F -n dst/t", &stream);
            if status != 0 {
                break words;
            }
            std::thread::yield_now();
        };
        let kind = if is_next {
            "incremental"
        } else {
            "new filesystem"
        };
        let busy = format!("cannot receive {kind} stream: destination dst/t is busy\n");
        assert_eq!(second, busy);
        input.write_all(&stream[200_000..]).unwrap();
        drop(input);
        assert!(first.wait().unwrap().success());
    }
}

/// What has no files yet is not mounted by itself, and keeps nothing else from being mounted.
#[test]
fn a_partly_received_file_system_is_skipped() {
    let stage = staged();
    let stream = sent(&stage, "zfs send src/fs@1");
    let place = stage.tools.path().join("place");
    let line = format!("zfs receive -s -o mountpoint={} dst/k", place.display());
    let (words, _, status) = given(&stage, &line, &stream[..500_000]);
    assert_eq!(status, 1, "{words}");
    stage.quietly("zfs mount -a");
    stage.quietly("zpool export dst");
    stage.quietly("zpool import dst");
    stage.refused(
        "zfs mount dst/k",
        "cannot mount 'dst/k': Contains partially-completed state from \"zfs receive -s\", \
         which can be resumed with \"zfs send -t\"",
    );
}

#[test]
fn a_stream_of_a_file_system_without_a_snapshot_goes_on() {
    let stage = staged();
    let stream = sent(&stage, "zfs send src/fs");
    let (words, _, _) = given(&stage, "zfs receive -s dst/t@now", &stream[..500_000]);
    let token = words.trim_end().rsplit(' ').next().unwrap().to_owned();
    let rest = sent(&stage, &format!("zfs send -t {token}"));
    assert!(rest.len() < stream.len());
    quiet(&stage, "zfs receive -s dst/t", &rest);
    let whole = sent(&stage, "zfs list -H -o refer src/fs dst/t");
    let whole = String::from_utf8(whole).unwrap();
    let sizes: Vec<&str> = whole.lines().collect();
    assert_eq!(sizes[0], sizes[1]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let stage = staged();
    let twice = stage.command("zfs send -i src/fs@1 -i src/fs@1 src/fs@2", false);
    let twice = { twice }.output().unwrap();
    assert_eq!(twice.status.code(), Some(2));
    let stream = sent(&stage, "zfs send src/fs@1");
    for name in ["version", "normalization", "volsize", "creation"] {
        let text = format!("cannot receive: cannot receive: invalid property '{name}'");
        refused(
            &stage,
            &format!("zfs receive -x {name} dst/t"),
            &stream,
            &text,
        );
    }
    quiet(&stage, "zfs receive -x quota -x encryption dst/t", &stream);
}
