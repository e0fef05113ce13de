//! Commands that read devices themselves, with a pool that the daemon has imported.

use crate::stage::Stage;
use millpond_sim::noise;
use std::io::Read;
use std::process::Stdio;

/// A pool with a file and a volume of this content, imported by the daemon.
fn imported(stage: &Stage, create: &str, volume: &[u8]) {
    stage.done(&format!("zpool create -O mountpoint=none {create}"));
    stage.done(&format!(
        "zfs create -s -V {}M tank/vol",
        volume.len() >> 20
    ));
    stage.done("zpool export tank");
    stage.file("greeting", b"hello\n");
    stage.file("content", volume);
    let alone = |line: &str| assert_eq!(stage.run_alone(line), (String::new(), 0), "{line}");
    alone("millpond cp @greeting tank:/greeting");
    alone("millpond cp @content tank/vol");
    stage.done("zpool import tank");
}

#[test]
fn an_imported_pool_is_read_through_its_devices() {
    let stage = Stage::new(&["a", "b"], 128);
    imported(&stage, "tank mirror @a @b", &noise(1, 8 << 20));
    let warning = "millpond: warning: 'tank' is in use by the daemon: this is its state of txg ";
    let read = |line: &str| {
        let text = stage.done(line);
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with(warning), "{line}: {text}");
        rest.to_owned()
    };
    assert_eq!(read("millpond ls tank"), "greeting\n");
    assert_eq!(read("millpond cat tank:/greeting"), "hello\n");
    assert_eq!(read("millpond cp tank/vol @copy"), "");
    assert_eq!(
        std::fs::read(stage.image("copy")).unwrap(),
        std::fs::read(stage.image("content")).unwrap()
    );
    assert!(read("millpond verify tank").contains("sound"));
    assert!(read("millpond check tank").contains("sound"));
    let guid = stage.done("zpool get -H -o value guid tank");
    let text = stage.done(&format!("millpond ls {}", guid.trim()));
    assert!(text.ends_with("\ngreeting\n"), "{text}");
    // What was changed just before is there.
    stage.done("zfs create tank/new");
    assert_eq!(read("millpond ls tank/new"), "");
    // In a folder that was given it is the same pool.
    let text = stage.run_alone("millpond ls tank").0;
    assert!(text.starts_with(warning), "{text}");
    stage.done("zpool destroy tank");
}

#[test]
fn an_imported_pool_is_not_changed_behind_the_daemon() {
    let stage = Stage::new(&["a"], 128);
    imported(&stage, "tank @a", &noise(2, 8 << 20));
    for line in [
        "millpond mkdir tank:/x",
        "millpond rm tank:/greeting",
        "millpond cp @greeting tank:/x",
        "millpond cp @content tank/vol",
        "millpond mount tank @mnt",
    ] {
        let text = stage.failed(line);
        assert!(
            text.contains("'tank' is imported by the daemon") && text.contains("zpool export tank"),
            "{line}: {text}"
        );
    }
    let (text, status) = stage.run_alone("millpond mkdir tank:/x");
    assert_eq!(status, 1);
    assert!(text.contains("in use by another program"), "{text}");
    // Words that are not said twice.
    for verb in ["verify", "check"] {
        let (text, status) = stage.run_alone(&format!("millpond {verb} nosuch"));
        assert_eq!(status, 2, "{text}");
        assert!(text.starts_with("millpond: cannot open 'nosuch'"), "{text}");
    }
    stage.done("zpool destroy tank");
}

#[test]
fn what_is_read_is_not_overwritten_meanwhile() {
    let stage = Stage::new(&["a"], 512);
    // More than is read ahead.
    let content = noise(3, 100 << 20);
    imported(&stage, "tank @a", &content);
    stage.done_as_it_is("zfs snapshot tank/vol@s");
    stage.file("stream", &stage.done_as_it_is("zfs send tank/vol@s"));
    let mut command = stage.command("millpond cat tank/vol", false);
    let mut reader = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = reader.stdout.take().unwrap();
    let mut read = vec![0; 1];
    // It has opened the pool, and waits until more is read.
    out.read_exact(&mut read).unwrap();
    // Everything that was free, and what the volume had, would be used again.
    stage.done("zfs destroy -r tank/vol");
    for number in 0..7 {
        let mut command = stage.command(&format!("zfs receive tank/r{number}"), false);
        let stream = std::fs::File::open(stage.image("stream")).unwrap();
        let done = command.stdin(stream).output().unwrap();
        assert!(done.status.success(), "{number}: {done:?}");
        stage.done(&format!("zfs destroy -r tank/r{number}"));
        stage.done("zpool sync tank");
    }
    out.read_to_end(&mut read).unwrap();
    assert!(reader.wait().unwrap().success());
    assert!(read == content, "other bytes were read");
    stage.done("zpool destroy tank");
}

#[test]
fn an_export_does_not_wait_for_readers() {
    let stage = Stage::new(&["a"], 128);
    let content = noise(4, 40 << 20);
    imported(&stage, "tank @a", &content);
    let mut command = stage.command("millpond cat tank/vol", false);
    let mut reader = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = reader.stdout.take().unwrap();
    let mut read = vec![0; 1];
    out.read_exact(&mut read).unwrap();
    stage.quietly("zpool export tank");
    out.read_to_end(&mut read).unwrap();
    assert!(reader.wait().unwrap().success());
    assert!(read == content, "other bytes were read");
}

#[test]
fn a_state_that_is_gone_is_no_damage() {
    let stage = Stage::new(&["a"], 256);
    // More than is read ahead.
    imported(&stage, "tank @a", &noise(5, 100 << 20));
    let mut command = stage.command("millpond cat tank/vol", false);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut reader = command.spawn().unwrap();
    reader
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0])
        .unwrap();
    stage.quietly("zpool export tank");
    // Another program uses the disk.
    let disk = std::fs::File::options().write(true).open(stage.image("a"));
    let zeros = vec![0; 200 << 20];
    std::os::unix::fs::FileExt::write_all_at(&disk.unwrap(), &zeros, 8 << 20).unwrap();
    let done = reader.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("is gone: the pool was exported meanwhile"),
        "{said}"
    );
}
