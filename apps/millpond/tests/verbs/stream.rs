//! Send streams shown: as `zstream dump -v` printed them for the recorded streams.

use crate::golden::text;
use crate::into::WorkFolder;
use millpond_tests::images;
use std::process::Command;

fn stream(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    let output = command.arg("stream").args(words).output().unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn streams_are_shown_as_openzfs_shows_them() {
    let set = images::golden_set().unwrap();
    let place = WorkFolder::new();
    let mut count = 0;
    for case in images::cases(&set.folder).unwrap() {
        let folder = set.folder.join(&case);
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let Some(name) = name.strip_suffix(".dump.txt") else {
                continue;
            };
            let bytes = images::read_file(&folder, &format!("{name}.zsend")).unwrap();
            let file = place.path("stream");
            std::fs::write(&file, bytes).unwrap();
            let expected = std::fs::read_to_string(&path).unwrap();
            let (status, out, err) = stream(&["dump", "-v", file.to_str().unwrap()]);
            assert_eq!((status, err.as_str()), (Some(0), ""), "{case}/{name}");
            let recorded: Vec<&str> = expected.lines().collect();
            assert!(out.lines().count() >= recorded.len(), "{case}/{name}");
            for (number, (line, recorded_line)) in out.lines().zip(&recorded).enumerate() {
                // Of long ones only the first part was recorded.
                let is_cut = number + 1 == recorded.len() && line.starts_with(recorded_line);
                let number = number + 1;
                assert!(
                    is_cut || line == *recorded_line,
                    "{case}/{name}, line {number}: {line}"
                );
            }
            count += 1;
        }
    }
    match count {
        0 => println!("the recorded streams are absent: nothing was compared"),
        _ => assert!(count > 30, "{count}"),
    }
}

/// What zstream prints of the same stream, if OpenZFS's programs are unpacked.
fn zstream(words: &[&str]) -> Option<String> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/oracle/zstream");
    let output = Command::new(program).args(words).output().ok()?;
    output.status.success().then(|| text(&output.stdout))
}

#[test]
fn payloads_and_checksums_are_shown_as_zstream_shows_them() {
    let place = WorkFolder::new();
    let image = place.empty_image("a", 128);
    place.well(["zpool", "create", "tank", &image]);
    std::fs::write(place.path("note"), b"a line of text\n\xff\x80").unwrap();
    place.well(["cp", place.path("note").to_str().unwrap(), "tank:/note"]);
    place.well(["zfs", "snapshot", "tank@s"]);
    for options in [&[][..], &["-p"], &["-e", "-c"]] {
        let words = ["zfs", "send"].iter().chain(options).chain(&["tank@s"]);
        let bytes = place.run(words.copied()).stdout;
        let path = place.path("stream");
        std::fs::write(&path, bytes).unwrap();
        let file = path.to_str().unwrap();
        let (status, out, err) = stream(&["dump", "-d", file]);
        assert_eq!((status, err.as_str()), (Some(0), ""));
        let line = " 61 20 6c 69  6e 65 20 6f  66 20 74 65  78 74 0a ff   a li ne o f te xt..\n";
        assert!(out.contains(line) || options.contains(&"-e"), "{out}");
        match zstream(&["dump", "-d", file]) {
            Some(expected) => assert_eq!(out, expected),
            None => println!("zstream is not there: nothing was compared"),
        }
    }
}

#[test]
fn a_damaged_stream_is_shown_up_to_the_damage() {
    let place = WorkFolder::new();
    let image = place.empty_image("a", 128);
    place.well(["zpool", "create", "tank", &image]);
    place.well(["zfs", "snapshot", "tank@s"]);
    let mut bytes = place.run(["zfs", "send", "tank@s"]).stdout;
    let file = place.path("stream");
    std::fs::write(&file, &bytes).unwrap();
    let (status, whole, _) = stream(&["dump", file.to_str().unwrap()]);
    assert_eq!(status, Some(0));
    assert!(whole.contains("\ttoname = tank@s\n"), "{whole}");
    assert!(
        whole.contains("\tTotal DRR_END records = 1 (0 bytes)\n"),
        "{whole}"
    );
    assert!(
        whole.contains(&format!("\tTotal stream length = {} (", bytes.len())),
        "{whole}"
    );
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (status, cut, err) = stream(&["dump", file.to_str().unwrap()]);
    assert_eq!(status, Some(1));
    assert!(cut.contains("DRR_END records = 0 "), "{cut}");
    assert!(err.contains("the stream is damaged"), "{err}");
    let (status, all, err) = stream(&["dump", "-C", file.to_str().unwrap()]);
    assert_eq!((status, err.as_str()), (Some(0), ""));
    assert_eq!(all, whole);
    let (status, _, err) = stream(&["token", "1-abc"]);
    assert_eq!(status, Some(1));
    assert!(err.contains("the token is corrupt"), "{err}");
}
