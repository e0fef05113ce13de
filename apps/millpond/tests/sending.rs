//! `zfs send` through the built programs: a daemon that has a pool imported, and a command alone.

#[path = "support/stage.rs"]
mod stage;

use millpond_posix::{Caller, NewMode, WriteAt};
use millpond_stream::{Record, StreamReader};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use stage::Stage;
use std::io::{BufRead, Read, Seek, Write};
use std::process::Stdio;

/// More than a pipe holds.
const FILE_BYTES: usize = 8 << 20;

/// A pool with a large file in `tank@one`, and a small one more in `tank@two`.
fn filled() -> Stage {
    let stage = Stage::new(&["a"], 128);
    stage.done("zpool create -m none tank @a");
    for (snapshot, file, length) in [("one", "large", FILE_BYTES), ("two", "small", 70_000)] {
        let pool = stage.served.daemon.pools().writable("tank").unwrap();
        let files = pool.file_system("tank").unwrap();
        let (root, caller) = (files.root().unwrap(), Caller::root());
        let mode = NewMode::exactly(0o600);
        let (node, _) = (files.create(&caller, &root, file.as_bytes(), mode, true)).unwrap();
        let bytes = millpond_sim::noise(length as u64, length);
        files
            .write(&caller, &node, WriteAt::Offset(0), &bytes)
            .unwrap();
        drop((node, root, files, pool));
        assert_eq!(
            text(&stage, &format!("zfs snapshot tank@{snapshot}"), false),
            ("".into(), 0)
        );
    }
    assert_eq!(text(&stage, "zfs bookmark tank@one tank#one", false).1, 0);
    stage
}

/// Standard error followed by standard output, and the status.
fn text(stage: &Stage, line: &str, is_alone: bool) -> (String, i32) {
    let done = stage.command(line, is_alone).output().unwrap();
    let text = String::from_utf8_lossy(&[done.stderr, done.stdout].concat()).into_owned();
    (text, done.status.code().unwrap())
}

fn stream(stage: &Stage, line: &str, is_alone: bool) -> Vec<u8> {
    let done = stage.command(line, is_alone).output().unwrap();
    let complaint = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{line}: {complaint}");
    done.stdout
}

/// The bytes of all blocks in a stream.
fn written(stream: &[u8]) -> u64 {
    let mut reader = StreamReader::new(stream);
    let (mut bytes, mut has_end) = (0, false);
    while let Some(taken) = reader.take().unwrap() {
        match taken.record {
            Record::Write(write) => bytes += write.logical_bytes,
            Record::End(_) => has_end = true,
            _ => {}
        }
    }
    assert!(has_end);
    bytes
}

#[test]
fn streams_are_the_same_with_and_without_the_daemon() {
    let stage = filled();
    let lines = [
        "zfs send tank@one",
        "zfs send -i @one tank@two",
        "zfs send -i #one tank@two",
        "zfs send -L -e -c tank@two",
        "zfs send -w tank@two",
        "zfs send -I @one tank@two",
        "zfs send -R tank@two",
        "zfs send -p -h tank@two",
        "zfs send -i one tank@two",
    ];
    let sent = lines.map(|line| stream(&stage, line, false));
    assert!(written(&sent[0]) > FILE_BYTES as u64);
    assert!((70_000..FILE_BYTES as u64).contains(&written(&sent[1])));
    assert_eq!(sent[1], sent[2]);
    assert_eq!(sent[1], sent[8]);
    // The command passes it on itself then.
    let shown = stage
        .command("zfs send -v tank@one", false)
        .output()
        .unwrap();
    assert!(shown.stdout == sent[0]);
    let words = String::from_utf8(shown.stderr).unwrap();
    let first: Vec<&str> = words.lines().take(3).collect();
    let [sent_line, total, header] = first.as_slice() else {
        panic!("{words}");
    };
    assert!(
        sent_line.starts_with("full send of tank@one estimated size is 8."),
        "{words}"
    );
    assert!(total.starts_with("total estimated size is 8."), "{words}");
    assert_eq!(*header, "TIME        SENT   SNAPSHOT tank@one");
    stage.done("zpool export tank");
    for (line, sent) in lines.iter().zip(&sent) {
        assert!(stream(&stage, line, true) == *sent, "{line}");
    }
}

/// What cannot be destroyed keeps all that would have been destroyed before it.
#[test]
fn a_snapshot_that_is_sent_or_held_keeps_its_tree_and_its_clones() {
    let stage = filled();
    for line in [
        "zfs clone tank@one tank/q",
        "zfs create tank/q/a",
        "zfs create tank/q/b",
        "zfs snapshot -r tank/q@1",
        "zfs snapshot tank/q@2",
        "zfs snapshot tank/q@3",
        "zfs clone tank/q@3 tank/c3",
        "zfs clone tank/q/a@1 tank/ca",
        "zfs bookmark tank/q@3 tank/q#3",
    ] {
        assert_eq!(text(&stage, line, false), (String::new(), 0), "{line}");
    }
    let all = "zfs list -H -r -t all -o name tank";
    let before = text(&stage, all, false);
    let refused = |line: &str, words: &str| {
        let done = text(&stage, line, false);
        assert_eq!(done, (format!("{words}\n"), 1), "{line}");
        assert_eq!(text(&stage, all, false), before, "{line}");
    };
    let mut command = stage.command("zfs send tank/q@2", false);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 1000]).unwrap();
    refused(
        "zfs destroy -R tank/q",
        "cannot destroy 'tank/q@2': dataset is busy",
    );
    refused(
        "zfs rollback -R tank/q@1",
        "cannot rollback to 'tank/q@1': dataset is busy",
    );
    drop(output);
    child.wait().unwrap();
    let held = |name: &str| {
        format!(
            "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders."
        )
    };
    let hold = |name: &str, verb: &str| {
        assert_eq!(text(&stage, &format!("zfs {verb} k {name}"), false).1, 0);
    };
    hold("tank/q/b@1", "hold");
    refused("zfs destroy -R tank/q", &held("tank/q/b@1"));
    refused("zfs destroy -R tank/q@1", &held("tank/q/b@1"));
    hold("tank/q/b@1", "release");
    hold("tank/q@2", "hold");
    let (words, status) = text(&stage, "zfs rollback -R tank/q@1", false);
    assert!(status == 1 && words.contains("being held"), "{words}");
    assert_eq!(text(&stage, all, false), before);
    hold("tank/q@2", "release");
    // A file system in use is not rolled back, so nothing newer is destroyed for it.
    let pool = stage.served.daemon.pools().writable("tank").unwrap();
    let used = pool.file_system("tank/q").unwrap();
    let (words, status) = text(&stage, "zfs rollback -R tank/q@1", false);
    assert!(status == 1 && words.contains("busy"), "{words}");
    assert_eq!(text(&stage, all, false), before);
    drop((used, pool));
    for line in ["zfs rollback -R tank/q@1", "zfs destroy -R tank/q"] {
        assert_eq!(text(&stage, line, false), (String::new(), 0), "{line}");
    }
}

/// `dd`, `pv` and people ask for progress with a signal.
#[test]
fn a_signal_asks_for_progress_and_ends_nothing() {
    let stage = filled();
    let whole = stream(&stage, "zfs send tank@one", false);
    for (line, ending) in [
        ("zfs send tank@one", "   tank@one\n"),
        ("zfs send -P tank@one", "\ttank@one\n"),
    ] {
        let mut command = stage.command(line, false);
        let mut child = (command.stdout(Stdio::piped()).stderr(Stdio::piped()))
            .spawn()
            .unwrap();
        let mut sent = vec![0; 1000];
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut sent).unwrap();
        // The pipes are full, and the rest waits.
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::USR1).unwrap();
        let mut told = String::new();
        let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
        errors.read_line(&mut told).unwrap();
        assert!(told.ends_with(ending), "{told:?}");
        output.read_to_end(&mut sent).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(sent == whole, "{line}");
    }
    // Output that takes no pages.
    let path = stage.tools.path().join("appended");
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path);
    let mut command = stage.command("zfs send tank@one", false);
    assert!(command.stdout(file.unwrap()).status().unwrap().success());
    assert!(std::fs::read(&path).unwrap() == whole);
}

/// A send that waits for its reader says what it has sent in its own name, and in a bar on a terminal.
#[test]
fn progress_is_in_the_name_and_on_a_terminal() {
    let stage = filled();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, vec![]).unwrap().into_string().unwrap();
    let mut open = std::fs::OpenOptions::new();
    let shown = open.read(true).write(true).open(name).unwrap();
    let mut command = stage.command("zfs send -V tank@one", false);
    let mut child = (command.stdout(Stdio::piped()).stderr(shown))
        .spawn()
        .unwrap();
    drop(command);
    let mut output = child.stdout.take().unwrap();
    let own_name = || std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    while !own_name().starts_with("send ") {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(own_name().contains("% "), "{}", own_name());
    let mut bar = std::fs::File::from(terminal);
    let mut seen = vec![];
    while !String::from_utf8_lossy(&seen).contains("% done") {
        let mut bytes = [0; 1000];
        let read = bar.read(&mut bytes).unwrap();
        seen.extend_from_slice(&bytes[..read]);
    }
    assert!(String::from_utf8_lossy(&seen).contains(" sent at "));
    let mut sent = vec![];
    output.read_to_end(&mut sent).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(sent == stream(&stage, "zfs send tank@one", false));
}

/// The output of a command that reads this.
fn reading(stage: &Stage, line: &str, input: &[u8]) -> (String, i32) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    let done = stage.command(line, false).stdin(file).output().unwrap();
    let text = String::from_utf8_lossy(&[done.stderr, done.stdout].concat()).into_owned();
    (text, done.status.code().unwrap())
}

#[test]
fn what_a_clone_has_changed_is_left_out() {
    let stage = filled();
    let quiet = |line: &str| {
        let done = text(&stage, line, false);
        assert_eq!(done, (String::new(), 0), "{line}");
    };
    quiet("zfs clone tank@one tank/clone");
    {
        let pool = stage.served.daemon.pools().writable("tank").unwrap();
        let files = pool.file_system("tank/clone").unwrap();
        let node = files.root().unwrap().lookup(b"large").unwrap();
        let bytes = millpond_sim::noise(3, 1 << 20);
        files
            .write(&Caller::root(), &node, WriteAt::Offset(0), &bytes)
            .unwrap();
    }
    quiet("zfs snapshot tank/clone@r");
    quiet("zfs redact tank@one book tank/clone@r");
    let whole = stream(&stage, "zfs send tank@one", false);
    let redacted = stream(&stage, "zfs send --redact book tank@one", false);
    assert_eq!(written(&whole) - written(&redacted), 1 << 20);
    let again = stream(&stage, "zfs send -d tank#book tank@one", false);
    assert!(again == redacted);
    for (line, words) in [
        (
            "zfs redact tank@one book tank/clone@r",
            "cannot redact 'tank@one': bookmark exists",
        ),
        (
            "zfs redact tank@one more tank@two",
            "cannot redact 'tank@one': 'tank@two' is not a descendent of snapshot 'tank@one': redaction takes snapshots of its clones",
        ),
        (
            "zfs redact tank@one #more tank/clone@r",
            "cannot redact 'tank@one': '#more': the name of the bookmark must not contain '#'",
        ),
        (
            "zfs redact tank@one more @two",
            "cannot redact 'tank@one': '@two': snapshots are given with their full dataset names",
        ),
        (
            "zfs redact tank@none more tank@two",
            "cannot redact 'tank@none': 'tank@none' does not exist",
        ),
        (
            "zfs send -w --redact book tank@one",
            "Error: raw sends may not be redacted.",
        ),
        (
            "zfs send --redact none tank@one",
            "warning: cannot send 'tank@one': redaction bookmark (tank#none) does not exist",
        ),
    ] {
        assert_eq!(
            text(&stage, line, false),
            (format!("{words}\n"), 1),
            "{line}"
        );
    }
    let received = reading(&stage, "zfs receive tank/got", &redacted);
    assert_eq!(received, (String::new(), 0));
    let guid = text(&stage, "zfs get -H -o value guid tank/clone@r", false);
    for name in ["tank/got@one", "tank#book"] {
        let line = format!("zfs get -H -o value redact_snaps {name}");
        assert_eq!(text(&stage, &line, false), guid, "{name}");
    }
    assert_eq!(
        text(&stage, "zfs mount tank/got", false),
        (
            "cannot mount 'tank/got': what its stream left out is missing: it was redacted; mount it with -f\n"
                .into(),
            1
        )
    );
    let other = stream(&stage, "zfs send -i @one tank@two", false);
    let (words, status) = reading(&stage, "zfs receive tank/got", &other);
    assert!(status == 1 && words.contains("redacted"), "{words}");
    let rest = stream(&stage, "zfs send -i tank@one tank/clone@r", false);
    let done = reading(
        &stage,
        "zfs receive -o origin=tank/got@one tank/full",
        &rest,
    );
    assert_eq!(done, (String::new(), 0));
    let (sent, here) = (
        stream(&stage, "zfs send tank/clone@r", false),
        stream(&stage, "zfs send tank/full@r", false),
    );
    assert_eq!(written(&sent), written(&here));
    // An interrupted redacted stream is continued, and one from the bookmark brings what was left out.
    let cut = &redacted[..redacted.len() / 2];
    let (words, _) = reading(&stage, "zfs receive -s tank/again", cut);
    let token = words.trim_end().rsplit(' ').next().unwrap();
    let rest = stream(&stage, &format!("zfs send -t {token}"), false);
    assert!(rest.len() < redacted.len());
    let missing = stream(&stage, "zfs send -i #book tank@two", false);
    for stream in [rest, missing] {
        let done = reading(&stage, "zfs receive -s tank/again", &stream);
        assert_eq!(done, (String::new(), 0));
    }
    assert_eq!(
        written(&stream(&stage, "zfs send tank@two", false)),
        written(&stream(&stage, "zfs send tank/again@two", false))
    );
    // The verbs warn, once.
    quiet("zpool export tank");
    let (listed, status) = stage.run_alone("millpond stat tank/got:/large tank/got:/");
    let warning =
        "'tank/got' was received from a redacted stream: what that left out reads as zeros";
    assert_eq!(
        (listed.matches(warning).count(), status),
        (1, 0),
        "{listed}"
    );
    let (listed, _) = stage.run_alone("millpond stat tank/full:/large");
    assert!(!listed.contains("warning"), "{listed}");
}

#[test]
fn the_texts_are_those_of_openzfs() {
    let stage = filled();
    for (line, words) in [
        (
            "zfs send tank@none",
            "cannot open 'tank@none': dataset does not exist",
        ),
        (
            "zfs send none@one",
            "cannot open 'none@one': dataset does not exist",
        ),
        (
            "zfs send tank#one",
            "cannot open 'tank#one': bookmark delimiter '#' is not expected here",
        ),
        (
            "zfs send -i @two tank@one",
            "warning: cannot send 'tank@one': not an earlier snapshot from the same fs",
        ),
        (
            "zfs send -i @none tank@two",
            "cannot open 'tank@none': dataset does not exist",
        ),
        (
            "zfs send -i #none tank@two",
            "warning: cannot send 'tank@two': incremental source (tank#none) does not exist",
        ),
        (
            "zfs send -R tank@none",
            "cannot open 'tank@none': dataset does not exist",
        ),
        (
            "zfs send -S tank",
            "cannot send 'tank': it has no partially-received state",
        ),
        (
            "zfs send -p tank",
            "cannot send 'tank': a package is sent of a snapshot only",
        ),
        (
            "zfs send -R --exclude tank tank@one",
            "cannot send 'tank@one': its own dataset cannot be excluded",
        ),
        (
            "zfs send -I #one tank@two",
            "Error: multiple snapshots cannot be sent from a bookmark.",
        ),
        (
            "zfs send -R -i @one tank@one",
            "WARNING: could not send tank@one:\nincremental source (tank@one) is not earlier than it",
        ),
        (
            "zfs send -I @two tank@one",
            "warning: cannot send 'tank@one': not an earlier snapshot from the same fs",
        ),
    ] {
        assert_eq!(
            text(&stage, line, false),
            (format!("{words}\n"), 1),
            "{line}"
        );
    }
    let (usage, status) = text(&stage, "zfs send -S --redact book tank", false);
    let words = "incompatible flags combined with saved send flag";
    assert!(usage.starts_with(words) && status == 2, "{usage}");
    let (usage, status) = text(&stage, "zfs send", false);
    assert!(
        usage.starts_with("missing snapshot argument\nusage:\n\tsend "),
        "{usage}"
    );
    assert_eq!(status, 2);
    for (line, beginning) in [
        (
            "zfs send -nvP -i #one tank@two",
            "incremental\ttank#one\ttank@two\t",
        ),
        (
            "zfs send -nvP -I @one tank@two",
            "incremental\tone\ttank@two\t",
        ),
        (
            "zfs send -nv -I @one tank@two",
            "send from @one to tank@two estimated size is ",
        ),
        ("zfs send -nvP -R tank@two", "full\ttank@one\t"),
        (
            "zfs send -nvP -R -i @one tank@two",
            "incremental\tone\ttank@two\t",
        ),
        (
            "zfs send -nvp tank@one",
            "full send of tank@one estimated size is ",
        ),
    ] {
        let (dry, _) = text(&stage, line, false);
        assert!(dry.starts_with(beginning), "{dry}");
    }
    assert_eq!(
        text(&stage, "zfs send -n tank@two", false),
        (String::new(), 0)
    );
}

#[test]
fn a_snapshot_that_is_being_sent_stays() {
    let stage = filled();
    let mut command = stage.command("zfs send tank@one", false);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    // From then on the daemon waits for space in the pipe.
    output.read_exact(&mut [0; 1000]).unwrap();
    let busy = "cannot destroy snapshot tank@one: dataset is busy\n";
    let refused = text(&stage, "zfs destroy tank@one", false);
    assert_eq!(refused, (busy.into(), 1));
    let refused = text(&stage, "zpool export tank", false);
    assert_eq!(refused, ("cannot export 'tank': pool is busy\n".into(), 1));
    // The reader goes away.
    drop(output);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(
        text(&stage, "zfs destroy tank@one", false),
        (String::new(), 0)
    );
}

/// The command is killed, and the reader of the stream waits for more.
#[test]
fn a_killed_command_ends_the_send() {
    let stage = filled();
    let mut command = stage.command("zfs send tank@one", false);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 1000]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // It ends although not everything was sent.
    let mut rest = vec![];
    output.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < FILE_BYTES, "{}", rest.len());
}
