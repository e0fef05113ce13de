//! Files out of stored streams, without receiving them.

use crate::golden::text;
use crate::host_tree::{compare, make};
use crate::into::WorkFolder;
use millpond_sim::noise;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub fn stream(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.arg("stream").args(words);
    command.env("TZ", "UTC").env_remove("MILLPOND_SEARCH");
    command.stdin(Stdio::null()).output().unwrap()
}

pub fn well(words: &[&str]) -> Vec<u8> {
    let output = stream(words);
    assert_eq!(text(&output.stderr), "", "{words:?}");
    assert!(output.status.success(), "{words:?}");
    output.stdout
}

fn piped(words: &[&str], input: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.arg("stream").args(words).env("TZ", "UTC");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = std::fs::read(input).unwrap();
    let writer = std::thread::spawn(move || pipe.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output
}

/// A pool with a file system of many kinds of files, and its streams.
struct Sent {
    place: WorkFolder,
    tree: PathBuf,
}

impl Sent {
    fn new() -> Self {
        let place = WorkFolder::new();
        let tree = place.path("tree");
        make(&tree);
        let image = place.empty_image("a", 512);
        place.well(["zpool", "create", "tank", &image]);
        place.well(["zfs", "create", "-o", "compression=lz4", "tank/home"]);
        place.well([
            "cp",
            "-a",
            "--trusted",
            &format!("{}/.", tree.display()),
            "tank/home:/",
        ]);
        place.well(["zfs", "snapshot", "tank/home@one"]);
        Self { place, tree }
    }

    /// Sends with these options into a file.
    fn send(&self, name: &str, words: &[&str]) -> String {
        let output = self.place.run(["zfs", "send"].iter().chain(words));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let path = self.place.path(name);
        std::fs::write(&path, output.stdout).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Changes the file system and takes the next snapshot.
    fn change(&self, file: &str, content: &[u8], snapshot: &str) {
        let path = self.place.path(file);
        std::fs::write(&path, content).unwrap();
        self.place
            .well(["cp", path.to_str().unwrap(), "tank/home:/"]);
        self.place
            .well(["zfs", "snapshot", &format!("tank/home@{snapshot}")]);
    }
}

#[test]
fn a_tree_comes_out_of_each_kind_of_stream_as_it_went_in() {
    let sent = Sent::new();
    for options in [&[][..], &["-c"], &["-L", "-e", "-c"], &["-p"], &["-w"]] {
        let words: Vec<&str> = options.iter().copied().chain(["tank/home@one"]).collect();
        let file = sent.send("stream", &words);
        let out = sent.place.path("out");
        let _ = std::fs::remove_dir_all(&out);
        well(&["cp", "--trusted", "-a", &file, out.to_str().unwrap()]);
        assert!(compare(&sent.tree, &out) > 300);
        for verb in [&["ls", "-liR", "--full-time"][..], &["tree", "-a"]] {
            let of_pool = sent
                .place
                .well(verb.iter().copied().chain(["tank/home@one:/"]));
            let words: Vec<&str> = verb.iter().copied().chain([file.as_str()]).collect();
            let of_stream = text(&well(&words)).replace("tank/home@one:", "tank/home@one");
            assert_eq!(
                of_stream,
                of_pool.replace("tank/home@one:", "tank/home@one")
            );
        }
    }
}

#[test]
fn a_stream_is_read_from_a_pipe() {
    let sent = Sent::new();
    let noise = noise(7, 3 << 20);
    sent.change("noise", &noise, "two");
    let file = sent.send("stream", &["tank/home@two"]);
    for word in ["-:/noise", "/dev/stdin:/noise"] {
        let output = piped(&["cat", word], Path::new(&file));
        assert_eq!(text(&output.stderr), "", "{word}");
        assert!(output.stdout == noise, "{word}");
    }
    let output = piped(&["cat", "--", "-:/noise"], Path::new(&file));
    assert_eq!(text(&output.stderr), "");
    assert!(output.stdout == noise);
    let output = piped(&["info", "-"], Path::new(&file));
    assert!(text(&output.stdout).contains("snapshot   tank/home@two"));
}

#[test]
fn streams_that_build_on_each_other_are_opened_together() {
    let sent = Sent::new();
    let full = sent.send("full", &["tank/home@one"]);
    sent.change("first", b"first", "two");
    let second = sent.send("second", &["-i", "@one", "tank/home@two"]);
    sent.change("first", b"first again", "three");
    let third = sent.send("third", &["-i", "@two", "tank/home@three"]);
    // In any order. The newest snapshot is meant, or the one of the stream that is named.
    for order in [[&full, &second, &third], [&third, &full, &second]] {
        let words: Vec<String> = order.iter().map(|file| (*file).clone()).collect();
        let with = |last: String| {
            let mut all: Vec<&str> = vec!["cat"];
            all.extend(words.iter().map(String::as_str));
            all.push(&last);
            text(&well(&all))
        };
        assert_eq!(with(format!("{third}:/first")), "first again");
        assert_eq!(with(format!("{second}:/first")), "first");
        assert_eq!(with(format!("{third}@two:/first")), "first");
    }
    let listed = text(&well(&["ls", &third, &second, &full]));
    assert!(listed.lines().any(|line| line == "first"), "{listed}");
    // What differs is printed as between the snapshots of the pool.
    let of_pool = |words: &[&str]| {
        let words = ["zfs", "diff"].iter().chain(words);
        sent.place.well(words).replace("/tank/home/", "/")
    };
    assert_eq!(
        text(&well(&["diff", &full, &second, &third])),
        of_pool(&["tank/home@two", "tank/home@three"])
    );
    let (from, to) = (format!("{full}@one"), format!("{third}@three"));
    assert_eq!(
        text(&well(&["diff", "--types", &second, &from, &to])),
        of_pool(&["-F", "tank/home@one", "tank/home@three"])
    );
    // Without the base nothing can be shown, and the message says what is missing.
    let output = stream(&["ls", &third, &full]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("'tank/home@three' since the snapshot with guid"),
        "{message}"
    );
    let guid = sent
        .place
        .well(["zfs", "get", "-Hpo", "value", "guid", "tank/home@two"]);
    assert!(message.contains(guid.trim()), "{message}");
    let output = stream(&["verify", &third]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("whole: all checksums are right; it was not applied"));
    let verdicts = text(&well(&["verify", &full, &second, &third]));
    assert_eq!(
        verdicts.matches("sound: all checksums are right").count(),
        3
    );
    let info = text(&well(&["info", &full, &second]));
    assert!(
        info.contains("kind     increment of a file system"),
        "{info}"
    );
    assert!(info.contains("since    tank/home@one, guid"), "{info}");
}

#[test]
fn a_package_has_datasets_below_clones_and_volumes() {
    let sent = Sent::new();
    sent.place
        .well(["zfs", "create", "-o", "compression=lz4", "tank/home/below"]);
    let note = sent.place.path("note");
    std::fs::write(&note, "below").unwrap();
    sent.place
        .well(["cp", note.to_str().unwrap(), "tank/home/below:/"]);
    sent.place
        .well(["zfs", "clone", "tank/home@one", "tank/home/clone"]);
    sent.place
        .well(["zfs", "create", "-V", "1M", "tank/home/volume"]);
    let content = noise(3, 1 << 20);
    std::fs::write(&note, &content).unwrap();
    sent.place
        .well(["cp", note.to_str().unwrap(), "tank/home/volume:"]);
    sent.place.well(["zfs", "snapshot", "-r", "tank/home@all"]);
    let file = sent.send("package", &["-R", "tank/home@all"]);
    let inside = |rest: &str| format!("{file}{rest}");
    assert_eq!(well(&["cat", &inside("/below:/note")]), b"below");
    assert!(well(&["cat", &inside("/volume@all")]) == content);
    let plain = well(&["ls", "-a", &inside("@one")]);
    assert_eq!(well(&["ls", "-a", &inside("/clone:/")]), plain);
    let output = stream(&["ls", &inside("/absent:/")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("it has no snapshot of 'tank/home/absent'"));
    let info = text(&well(&["info", &file]));
    assert!(
        info.contains("package    5 streams for 'tank/home@all'"),
        "{info}"
    );
    // A cut package has the streams before the cut.
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 2000]).unwrap();
    let output = stream(&["ls", "-a", &inside("@one")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, plain);
    assert!(text(&output.stderr).contains("the stream is damaged: incomplete stream"));
    let output = stream(&["info", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("records, not whole"));
    // The dataset of a pool itself.
    let whole = sent.send("whole", &["-R", "tank/home@all"]);
    assert_eq!(well(&["cat", &format!("{whole}/below:/note")]), b"below");
    sent.place.well(["zfs", "snapshot", "tank@top"]);
    let top = sent.send("top", &["tank@top"]);
    assert_eq!(well(&["ls", &top]), b"");
}

/// Every file below a folder with its content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut stack = vec![folder.to_owned()];
    while let Some(next) = stack.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                stack.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn damaged_streams_give_whole_files_and_never_wrong_bytes() {
    let place = WorkFolder::new();
    let image = place.empty_image("a", 256);
    let tree = place.path("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..40u64 {
        let length = 20_000 + usize::try_from(number).unwrap() * 7_000;
        std::fs::write(tree.join(format!("f{number}")), noise(number, length)).unwrap();
    }
    place.well(["zpool", "create", "tank", &image]);
    place.well(["zfs", "create", "tank/home"]);
    let source = format!("{}/.", tree.display());
    place.well(["cp", "-a", &source, "tank/home:/"]);
    place.well(["zfs", "snapshot", "tank/home@one"]);
    // Half of the files change.
    for number in (0..40u64).step_by(2) {
        std::fs::write(tree.join(format!("f{number}")), noise(100 + number, 50_000)).unwrap();
    }
    place.well(["cp", "-a", &source, "tank/home:/"]);
    place.well(["zfs", "snapshot", "tank/home@two"]);
    let truth = contents(&tree);
    let full = place.run(["zfs", "send", "tank/home@two"]).stdout;
    let base = place.path("base");
    std::fs::write(&base, place.run(["zfs", "send", "tank/home@one"]).stdout).unwrap();
    let change = place
        .run(["zfs", "send", "-i", "@one", "tank/home@two"])
        .stdout;
    let (file, out) = (place.path("damaged"), place.path("out"));
    let mut shown = vec![];
    for round in 0..8u64 {
        let is_increment = round % 2 == 1;
        let whole = if is_increment { &change } else { &full };
        let place_of = |share: u64| whole.len() * usize::try_from(share).unwrap() / 8;
        let mut bytes = whole.clone();
        match round / 2 % 2 {
            0 => bytes.truncate(place_of(round + 1) - 5),
            _ => bytes[place_of(round) + 11] ^= 1,
        }
        std::fs::write(&file, &bytes).unwrap();
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir(&out).unwrap();
        let address = format!("{}:/", file.display());
        let mut words = vec!["cp", "-a"];
        words.extend(is_increment.then(|| base.to_str().unwrap()));
        words.extend([address.as_str(), out.to_str().unwrap()]);
        let output = stream(&words);
        assert_eq!(output.status.code(), Some(1), "round {round}");
        let message = text(&output.stderr);
        assert!(
            message.contains("warning") && message.contains("byte"),
            "{message}"
        );
        let found = contents(&out);
        for (name, content) in &found {
            assert!(
                truth.get(name) == Some(content),
                "round {round}: {}",
                name.display()
            );
        }
        shown.push(found.len());
        let output = stream(&["verify", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "round {round}");
        // The older snapshot is whole.
        if is_increment {
            let address = format!("{}:/f1", base.display());
            let output = stream(&["cat", &address, file.to_str().unwrap()]);
            assert!(output.stdout == truth[Path::new("f1")]);
        }
    }
    assert!(shown.iter().any(|count| *count > 25), "{shown:?}");
    assert!(shown.iter().any(|count| *count < 15), "{shown:?}");
    // Something else than a stream.
    std::fs::write(&file, noise(1, 5000)).unwrap();
    let output = stream(&["ls", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("invalid stream (bad magic number)"));
}

#[test]
fn an_index_is_used_until_its_streams_change() {
    let sent = Sent::new();
    let content = noise(900_009, 2 << 20);
    sent.change("noise", &content, "two");
    let full = sent.send("full", &["tank/home@two"]);
    let index = format!("{full}.mpindex");
    let first = well(&["ls", "-lR", "--index", &full]);
    let length = std::fs::metadata(&index).unwrap().len();
    // The content of files stays in the stream.
    assert!(
        length < std::fs::metadata(&full).unwrap().len() / 2,
        "{length}"
    );
    assert_eq!(well(&["ls", "-lR", "--index", &full]), first);
    let address = format!("{full}:/noise");
    assert!(well(&["cat", "--index", &address]) == content);
    // It was the index that was read, not the stream: one bit of the stream is wrong, and the pool's checksums say so.
    let bytes = std::fs::read(&full).unwrap();
    let at = bytes
        .windows(64)
        .position(|part| part == &content[1000..1064])
        .unwrap();
    let mut wrong = bytes.clone();
    wrong[at] ^= 1;
    std::fs::write(&full, &wrong).unwrap();
    assert_eq!(well(&["ls", "-lR", "--index", &full]), first);
    let output = stream(&["cat", "--index", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(content.starts_with(&output.stdout));
    std::fs::write(&full, &bytes).unwrap();
    // A damaged index is made anew, and so is one of other streams.
    let mut damaged = std::fs::read(&index).unwrap();
    damaged[100] ^= 1;
    std::fs::write(&index, damaged).unwrap();
    let output = stream(&["ls", "-lR", "--index", &full]);
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains("the index is damaged"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(output.stdout, first);
    assert_eq!(well(&["ls", "-lR", "--index", &full]), first);
    sent.change("noise", b"three", "three");
    let other = sent.send("full", &["tank/home@three"]);
    let output = stream(&["cat", "--index", &format!("{other}:/noise")]);
    assert_eq!(output.stdout, b"three");
    assert!(text(&output.stderr).contains("the index is of other streams"));
    // Nothing else is ever replaced, and a damaged stream has no index.
    let output = stream(&["ls", &format!("--index={full}"), &full]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("this is no index, and is not replaced"));
    std::fs::remove_file(&index).unwrap();
    std::fs::write(&full, &bytes[..bytes.len() / 2]).unwrap();
    let output = stream(&["ls", "--index", &full]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no index is written of damaged streams"));
    assert!(!Path::new(&index).exists());
}

/// Unmounts a folder when dropped.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_snapshot_in_a_stream_is_mounted() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("needs root and /dev/fuse: nothing was mounted");
        return;
    }
    let sent = Sent::new();
    let file = sent.send("stream", &["-c", "tank/home@one"]);
    let folder = sent.place.path("mounted");
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    command.args(["stream", "mount", &file]).arg(&folder);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let _unmount = Unmount(folder.clone());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("tank/home@one is mounted on "), "{line}");
    assert!(compare(&sent.tree, &folder) > 300);
    assert!(std::fs::write(folder.join("new"), "x").is_err());
    let ended = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(ended.unwrap().success());
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_stream_is_compressed_in_another_way() {
    let sent = Sent::new();
    let plain = sent.send("plain", &["tank/home@one"]);
    let compressed = sent.send("compressed", &["-c", "-L", "-e", "tank/home@one"]);
    let size = |bytes: &[u8]| bytes.len();
    let recompressed = |words: &[&str], file: &str| {
        let words: Vec<&str> = ["recompress"].iter().chain(words).copied().collect();
        let output = piped(&words, Path::new(file));
        assert_eq!(text(&output.stderr), "", "{words:?}");
        assert!(output.status.success(), "{words:?}");
        output.stdout
    };
    let off = recompressed(&["off"], &plain);
    assert!(off == std::fs::read(&plain).unwrap());
    for (words, file) in [
        (&["zstd"][..], &plain),
        (&["-l", "9", "gzip"], &compressed),
        (&["zstd-fast-10"], &compressed),
        (&["off"], &compressed),
        (&["lz4"], &plain),
    ] {
        let bytes = recompressed(words, file);
        assert!(size(&bytes) <= size(&off), "{words:?}");
        let path = sent.place.path("recompressed");
        std::fs::write(&path, &bytes).unwrap();
        let out = sent.place.path("out");
        let _ = std::fs::remove_dir_all(&out);
        let (path, to) = (path.to_str().unwrap(), out.to_str().unwrap());
        well(&["cp", "--trusted", "-a", path, to]);
        assert!(compare(&sent.tree, &out) > 300);
        // Decompressed again, its blocks are those of the plain stream.
        if file == &plain {
            assert!(recompressed(&["off"], path) == off, "{words:?}");
        }
    }
    // What cannot be done is said, and nothing else is written.
    for (words, why) in [
        (&["recompress", "zip"], "'zip' is no compression"),
        (&["decompress", "9,x"], "OBJECT,OFFSET"),
    ] {
        let output = stream(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
    let output = piped(&["decompress", "123456,0"], Path::new(&plain));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is not in the stream"));
    assert!(output.stdout == off);
    assert!(well(&["redup", &plain]) == off);
}

#[test]
fn each_verb_says_what_it_does() {
    let verbs = [
        (&["ls"][..], "List directories and files"),
        (&["tree"], "Show a directory tree"),
        (&["cat"], "Write files or volumes"),
        (&["cp"], "Copy files, directory trees"),
        (&["mount"], "Mount a file system"),
        (&["stream", "ls"], "List directories and files"),
        (&["stream", "tree"], "Show a directory tree"),
        (&["stream", "cat"], "Write files or volumes"),
        (&["stream", "cp"], "Copy files, directory trees"),
        (&["stream", "diff"], "Show what a stream changes"),
        (&["stream", "mount"], "Mount a snapshot in streams"),
        (&["stream", "info"], "Say what streams are"),
        (&["stream", "verify"], "Verify all checksums"),
        (&["stream", "recompress"], "Compress the blocks"),
        (&["stream", "decompress"], "Decompress blocks"),
        (&["stream", "redup"], "Make a stream that can be received"),
    ];
    for (words, expected) in verbs {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        let output = command.args(words).arg("--help").output().unwrap();
        let help = text(&output.stdout);
        assert!(help.starts_with(expected), "{words:?}: {help}");
    }
}
