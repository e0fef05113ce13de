//! `zfs receive` through the built programs: what recorded commands of OpenZFS print for the same streams.

mod encrypted;
mod interrupted;
mod packages;
mod renamed;
#[path = "../support/stage.rs"]
mod stage;

use millpond_posix::{Caller, NewMode, WriteAt};
use stage::Stage;
use std::io::{Read, Write};
use std::process::Stdio;

/// Adds a file to a file system, without a mount.
fn fill(stage: &Stage, name: &str, file: &str, length: usize) {
    let pool = name.split('/').next().unwrap();
    let pool = stage.served.daemon.pools().writable(pool).unwrap();
    let files = pool.file_system(name).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let made = files.create(
        &caller,
        &root,
        file.as_bytes(),
        NewMode::exactly(0o600),
        true,
    );
    let (node, _) = made.unwrap();
    let bytes = millpond_sim::noise(length as u64, length);
    files
        .write(&caller, &node, WriteAt::Offset(0), &bytes)
        .unwrap();
}

/// The pools of the recording, as far as sending is built.
fn staged() -> Stage {
    let stage = Stage::new(&["a", "b"], 256);
    stage.done("zpool create -m none src @a");
    stage.done("zpool create -m none dst @b");
    stage.done("zfs create src/fs");
    fill(&stage, "src/fs", "f", 1 << 20);
    plain(&stage, "zfs snapshot src/fs@1");
    fill(&stage, "src/fs", "g", 300 << 10);
    plain(&stage, "zfs snapshot src/fs@2");
    fill(&stage, "src/fs", "h", 5000);
    plain(&stage, "zfs snapshot src/fs@3");
    stage.done("zfs create -V 8M src/vol");
    plain(&stage, "zfs snapshot src/vol@1");
    plain(&stage, "zfs clone src/fs@2 src/clone");
    plain(&stage, "zfs snapshot src/clone@c");
    stage
}

fn plain(stage: &Stage, line: &str) {
    let done = stage.command(line, false).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{line}: {text}");
}

fn sent(stage: &Stage, line: &str) -> Vec<u8> {
    let done = stage.command(line, false).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{line}: {text}");
    done.stdout
}

/// Standard error, standard output and status of a command with this input. Durations become `in T`.
fn given(stage: &Stage, line: &str, input: &[u8]) -> (String, String, i32) {
    let mut command = stage.command(line, false);
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that fails need not read everything.
        scope.spawn(move || {
            let _ = stdin.write_all(input);
        });
        let done = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            let lines = text.lines().map(|line| match line.split_once(" in ") {
                Some((before, after)) if after.ends_with("/sec)") => format!("{before} in T\n"),
                _ => format!("{line}\n"),
            });
            lines.collect::<String>()
        };
        (
            text(done.stderr),
            text(done.stdout),
            done.status.code().unwrap(),
        )
    })
}

fn quiet(stage: &Stage, line: &str, input: &[u8]) {
    assert_eq!(
        given(stage, line, input),
        (String::new(), String::new(), 0),
        "{line}"
    );
}

fn refused(stage: &Stage, line: &str, input: &[u8], words: &str) {
    let expected = (format!("{words}\n"), String::new(), 1);
    assert_eq!(given(stage, line, input), expected, "{line}");
}

fn shown(stage: &Stage, line: &str, input: &[u8], words: &str) {
    let expected = (String::new(), format!("{words}\n"), 0);
    assert_eq!(given(stage, line, input), expected, "{line}");
}

#[test]
fn the_texts_are_those_of_openzfs() {
    let stage = staged();
    let s1 = sent(&stage, "zfs send src/fs@1");
    let s2 = sent(&stage, "zfs send -i @1 src/fs@2");
    let s3 = sent(&stage, "zfs send -i @2 src/fs@3");
    let (usage, _, status) = given(&stage, "zfs receive", &[]);
    assert!(
        usage.starts_with("missing snapshot argument\nusage:\n\treceive "),
        "{usage}"
    );
    assert_eq!(status, 2);
    refused(
        &stage,
        "zfs receive dst",
        &[],
        "cannot receive: failed to read from stream",
    );
    quiet(&stage, "zfs receive dst/a", &s1);
    let exists = "cannot receive new filesystem stream: destination 'dst/a' exists\n\
                  must specify -F to overwrite it";
    refused(&stage, "zfs receive -v dst/a", &s1, exists);
    refused(
        &stage,
        "zfs receive -F dst/a",
        &s1,
        "cannot receive new filesystem stream: destination has snapshots (eg. dst/a@1)\n\
         must destroy them to overwrite it",
    );
    shown(
        &stage,
        "zfs receive -nv dst/a",
        &s2,
        "would receive incremental stream of src/fs@2 into dst/a@2",
    );
    refused(
        &stage,
        "zfs receive dst/b",
        &s2,
        "cannot receive incremental stream: destination 'dst/b' does not exist",
    );
    refused(
        &stage,
        "zfs receive dst/no/such",
        &s1,
        "cannot open 'dst/no': dataset does not exist\n\
         cannot receive new filesystem stream: unable to restore to destination",
    );
    refused(
        &stage,
        "zfs receive nosuch/a",
        &s1,
        "cannot open 'nosuch': dataset does not exist\n\
         cannot receive new filesystem stream: unable to restore to destination",
    );
    quiet(&stage, "zfs receive dst/a@x", &s2);
    refused(
        &stage,
        "zfs receive dst/a",
        &[],
        "cannot receive: failed to read from stream",
    );
    refused(
        &stage,
        "zfs receive dst/t",
        &s1[..100],
        "cannot receive: failed to read from stream",
    );
    refused(
        &stage,
        "zfs receive dst/t",
        &s1[..100_000],
        "cannot receive new filesystem stream: incomplete stream",
    );
    refused(
        &stage,
        "zfs receive dst/x",
        &millpond_sim::noise(5, 2000),
        "cannot receive: invalid stream (bad magic number)",
    );
    let mut damaged = s1.clone();
    damaged[300_000..301_000].copy_from_slice(&millpond_sim::noise(6, 1000));
    refused(
        &stage,
        "zfs receive dst/x",
        &damaged,
        "cannot receive new filesystem stream: checksum mismatch",
    );
    // The snapshot that the next stream starts from has another name here.
    fill(&stage, "dst/a", "own", 1000);
    refused(
        &stage,
        "zfs receive dst/a",
        &s3,
        "cannot receive incremental stream: destination dst/a has been modified\n\
         since most recent snapshot",
    );
    quiet(&stage, "zfs receive -F dst/a", &s3);
    // It is here already.
    quiet(&stage, "zfs receive -F dst/a", &s3);
    quiet(&stage, "zfs receive dst/a", &s3);
    shown(
        &stage,
        "zfs receive -v dst/vol",
        &sent(&stage, "zfs send src/vol@1"),
        "receiving full stream of src/vol@1 into dst/vol@1\nreceived 3.24K stream in T",
    );
    let list = String::from_utf8(sent(&stage, "zfs list -H -o name -t all -r dst")).unwrap();
    let names: Vec<&str> = list.lines().collect();
    let wanted = [
        "dst",
        "dst/a",
        "dst/a@1",
        "dst/a@x",
        "dst/a@3",
        "dst/vol",
        "dst/vol@1",
    ];
    assert_eq!(names, wanted);
}

#[test]
fn clones_and_names_are_made_as_by_openzfs() {
    let stage = staged();
    let all = sent(&stage, "zfs send src/fs@2");
    quiet(&stage, "zfs receive -d dst", &all);
    refused(
        &stage,
        "zfs receive -e dst",
        &all,
        "cannot receive new filesystem stream: destination 'dst/fs' exists\n\
         must specify -F to overwrite it",
    );
    let clone = sent(&stage, "zfs send -i src/fs@2 src/clone@c");
    let (_, shown, _) = given(&stage, "zfs receive -v dst/c", &clone);
    assert!(
        shown.starts_with(
            "found clone origin dst/fs@2\nreceiving incremental stream of src/clone@c into dst/c@c\nreceived "
        ),
        "{shown}"
    );
    quiet(&stage, "zfs receive -o origin=dst/fs@2 dst/c2", &clone);
    refused(
        &stage,
        "zfs receive -o origin=dst/fs@nosuch dst/c3",
        &clone,
        "cannot receive: specified origin fs (dst/fs@nosuch) does not exist",
    );
    let origins =
        String::from_utf8(sent(&stage, "zfs get -H -o value origin dst/c dst/c2")).unwrap();
    assert_eq!(origins, "dst/fs@2\ndst/fs@2\n");
    quiet(
        &stage,
        "zfs receive -o compression=lz4 -x atime dst/p",
        &all,
    );
    let values = sent(&stage, "zfs get -H -o value,source compression,atime dst/p");
    assert_eq!(
        String::from_utf8(values).unwrap(),
        "lz4\tlocal\non\tdefault\n"
    );
    refused(
        &stage,
        "zfs receive -o bogus=1 dst/pp",
        &all,
        "cannot receive: cannot receive: invalid property 'bogus'",
    );
    let (usage, _, status) = given(
        &stage,
        "zfs receive -x compression -o compression=off dst/pp",
        &all,
    );
    assert!(usage.starts_with("property 'compression' specified multiple times\nusage:"));
    assert_eq!(status, 2);
    plain(&stage, "zfs create dst/un");
    plain(&stage, "zfs set quota=500K dst/un");
    refused(
        &stage,
        "zfs receive dst/un/big",
        &all,
        "cannot receive new filesystem stream: destination dst/un/big space quota exceeded.",
    );
    let package = sent(&stage, "zfs send -I @2 src/fs@3");
    refused(
        &stage,
        "zfs receive dst/fs@y",
        &package,
        "cannot receive: cannot specify snapshot name for multi-snapshot stream",
    );
    quiet(&stage, "zfs receive dst/fs", &package);
}

#[test]
fn a_receive_without_the_daemon_is_the_same() {
    let stage = staged();
    let stream = sent(&stage, "zfs send src/fs@1");
    let mut command = stage.command("zfs receive dst/a", true);
    let refused = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(text, "cannot receive: pool is busy\n");
    stage.done("zpool export dst");
    let mut command = stage.command("zfs receive dst/a", true);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&stream).unwrap();
    assert!(child.wait().unwrap().success());
    stage.done("zpool import dst");
    let again = sent(&stage, "zfs send dst/a@1");
    // The name of the snapshot differs.
    assert_eq!(again.len(), stream.len());
}

#[test]
fn a_pool_that_is_received_into_stays() {
    let stage = staged();
    let stream = sent(&stage, "zfs send src/fs@1");
    let mut command = stage.command("zfs receive dst/a", false);
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&stream[..400_000]).unwrap();
    let busy = loop {
        let done = stage.command("zpool export dst", false).output().unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        if done.status.success() {
            // The receive had not begun.
            stage.done("zpool import dst");
            continue;
        }
        break text;
    };
    assert_eq!(busy, "cannot export 'dst': pool is busy\n");
    drop(stdin);
    let mut words = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut words)
        .unwrap();
    assert_eq!(
        words,
        "cannot receive new filesystem stream: incomplete stream\n"
    );
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let list = String::from_utf8(sent(&stage, "zfs list -H -o name -r dst")).unwrap();
    assert_eq!(list, "dst\n");
    stage.done("zpool export dst");
}

/// Lines without what depends on time.
fn timeless(words: &str) -> String {
    let lines = words.lines().map(|line| match line.split_once(" in ") {
        Some((start, _)) if line.starts_with("received ") => format!("{start} in T\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn a_tree_is_sent_and_received_as_recorded() {
    let stage = staged();
    plain(&stage, "zfs create src/fs/child");
    plain(&stage, "zfs snapshot src/fs/child@3");
    plain(&stage, "zfs set compression=zstd src/fs");
    plain(&stage, "zfs set user:note=hello src/fs/child");
    plain(&stage, "zfs hold keep src/fs@2");
    let lines = String::from_utf8(sent(&stage, "zfs send -nvP -R -h src/fs@3")).unwrap();
    let firsts: Vec<&str> = lines
        .lines()
        .map(|line| line.rsplit_once('\t').unwrap().0)
        .collect();
    let expected = [
        "full\tsrc/fs@1",
        "incremental\t1\tsrc/fs@2",
        "incremental\t2\tsrc/fs@3",
        "full\tsrc/fs/child@3",
        "size",
    ];
    assert_eq!(firsts, expected);
    let package = sent(&stage, "zfs send -R -h src/fs@3");
    let (_, words, status) = given(&stage, "zfs receive -v dst/r", &package);
    assert_eq!(status, 0);
    let words = timeless(&words);
    for (kind, name) in [
        ("full", "@1"),
        ("incremental", "@2"),
        ("incremental", "@3"),
        ("full", "/child@3"),
    ] {
        let line = format!("receiving {kind} stream of src/fs{name} into dst/r{name}\nreceived ");
        assert!(words.contains(&line), "{words}");
    }
    let get = "zfs get -H -o value,received,source compression dst/r";
    assert_eq!(sent(&stage, get), b"zstd\tzstd\treceived\n");
    let get = "zfs get -H -o value,source user:note dst/r/child";
    assert_eq!(sent(&stage, get), b"hello\treceived\n");
    let holds = String::from_utf8(sent(&stage, "zfs holds -H dst/r@2")).unwrap();
    assert!(holds.starts_with("dst/r@2\tkeep\t"), "{holds}");
    // An increment takes over what was destroyed.
    plain(&stage, "zfs release keep src/fs@2");
    plain(&stage, "zfs destroy src/fs@1");
    plain(&stage, "zfs snapshot -r src/fs@4");
    let package = sent(&stage, "zfs send -R -I @3 src/fs@4");
    let (_, words, status) = given(&stage, "zfs receive -Fv dst/r", &package);
    assert_eq!(status, 0);
    let expected = "attempting destroy dst/r@1\n\
                    success\n\
                    receiving incremental stream of src/fs@4 into dst/r@4\n\
                    received 312B stream in T\n\
                    receiving incremental stream of src/fs/child@4 into dst/r/child@4\n\
                    received 312B stream in T\n";
    assert_eq!(timeless(&words), expected);
    // A dataset without the snapshot.
    plain(&stage, "zfs create src/fs/late");
    plain(&stage, "zfs snapshot src/fs@5");
    plain(&stage, "zfs snapshot src/fs/child@5");
    plain(&stage, "zfs destroy src/fs/child@5");
    refused(
        &stage,
        "zfs send -n -R -X src/fs/late src/fs@5",
        &[],
        "cannot send src/fs@5 recursively: snapshot src/fs/child@5 does not exist",
    );
    let (warning, _, status) = given(&stage, "zfs send -n -R -X src/fs/late -s src/fs@5", &[]);
    assert_eq!(
        (warning.as_str(), status),
        (
            "WARNING: skipping dataset src/fs/child: snapshot src/fs/child@5 does not exist\n",
            0
        )
    );
    // The receiver of an increment takes it for destroyed.
    let send = "zfs send -R -X src/fs/late -s -i @4 src/fs@5";
    let done = stage.command(send, false).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&done.stderr),
        "WARNING: skipping dataset src/fs/child: snapshot src/fs/child@5 does not exist\n\
         \t'zfs receive -F' of this stream destroys the copy of src/fs/child, with all datasets below it\n",
    );
}

#[test]
fn a_raw_stream_needs_no_key_until_it_is_read() {
    let stage = staged();
    let key = stage.tools.path().join("key");
    std::fs::write(&key, "a good passphrase").unwrap();
    let key = key.display();
    plain(
        &stage,
        &format!(
            "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 -o keylocation=file://{key} src/enc"
        ),
    );
    fill(&stage, "src/enc", "f", 200_000);
    plain(&stage, "zfs snapshot src/enc@1");
    refused(
        &stage,
        "zfs send -p src/enc@1",
        &[],
        "cannot send src/enc@1: encrypted dataset src/enc may not be sent with properties without the raw flag",
    );
    plain(&stage, "zfs unload-key src/enc");
    let locked = "warning: cannot send 'src/enc@1': dataset key must be loaded";
    refused(&stage, "zfs send src/enc@1", &[], locked);
    let raw = sent(&stage, "zfs send -w src/enc@1");
    for option in ["-o encryption=off", "-x encryption"] {
        let line = format!("zfs receive {option} dst/raw2");
        let text = "cannot receive new filesystem stream: encryption property 'encryption' cannot be set or \
                    excluded for raw streams.";
        refused(&stage, &line, &raw, text);
    }
    quiet(&stage, "zfs receive dst/raw", &raw);
    let get = "zfs get -H -o value encryption,keystatus,encryptionroot,keylocation dst/raw";
    let expected = b"aes-256-gcm\nunavailable\ndst/raw\nprompt\n";
    assert_eq!(sent(&stage, get), expected);
    plain(&stage, &format!("zfs load-key -L file://{key} dst/raw"));
    plain(&stage, "zfs load-key src/enc");
    let theirs = sent(&stage, "zfs send src/enc@1");
    assert_eq!(sent(&stage, "zfs send dst/raw@1").len(), theirs.len());
    // With its properties, the place of the key comes along.
    for (options, copy) in [("-R -w", "dst/tree"), ("-w -p", "dst/one")] {
        let package = sent(&stage, &format!("zfs send {options} src/enc@1"));
        quiet(&stage, &format!("zfs receive {copy}"), &package);
        let get = format!("zfs get -H -o value keylocation {copy}");
        assert_eq!(sent(&stage, &get), format!("file://{key}\n").as_bytes());
        plain(&stage, &format!("zfs load-key {copy}"));
    }
}

#[test]
fn a_forced_full_stream_replaces_a_root_dataset_with_what_is_below() {
    let stage = staged();
    stage.done("zfs create dst/old");
    plain(&stage, "zfs snapshot -r src@final");
    let package = sent(&stage, "zfs send -R src@final");
    quiet(&stage, "zfs receive -d -F dst", &package);
    let listed = String::from_utf8(sent(&stage, "zfs list -H -o name -t snapshot -r dst")).unwrap();
    for name in [
        "dst@final",
        "dst/fs@final",
        "dst/vol@final",
        "dst/clone@final",
    ] {
        assert!(listed.lines().any(|line| line == name), "{name}: {listed}");
    }
    let volume = sent(&stage, "zfs send src/vol@1");
    refused(
        &stage,
        "zfs receive -F dst",
        &volume,
        "cannot receive new filesystem stream: destination has snapshots (eg. dst@final)\n\
         must destroy them to overwrite it",
    );
}

/// What is below a dataset goes before it, and clones before the snapshots that they begin with.
#[test]
fn a_forced_package_destroys_a_whole_tree_that_the_sender_has_not() {
    let stage = staged();
    for line in [
        "zfs create -p src/gone/low/lower",
        "zfs snapshot src/gone/low/lower@origin",
        "zfs clone src/gone/low/lower@origin src/gone/clone",
        "zfs snapshot -r src@final",
    ] {
        plain(&stage, line);
    }
    let package = sent(&stage, "zfs send -R src@final");
    quiet(&stage, "zfs receive -d -F dst", &package);
    plain(&stage, "zfs destroy -r src/gone");
    plain(&stage, "zfs snapshot -r src@after");
    let package = sent(&stage, "zfs send -R -I @final src@after");
    quiet(&stage, "zfs receive -d -F dst", &package);
    let names = |pool: &str| {
        let listed = sent(&stage, &format!("zfs list -H -o name -t all -r {pool}"));
        String::from_utf8(listed).unwrap().replace(pool, "POOL")
    };
    assert_eq!(names("dst"), names("src"));
}
