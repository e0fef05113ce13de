//! Files out of raw streams of encrypted file systems.

use crate::golden::text;
use crate::into::WorkFolder;
use crate::stored::{stream, well};
use millpond_sim::noise;
use std::path::PathBuf;

/// An encrypted file system with files, and its raw stream.
struct Encrypted {
    place: WorkFolder,
    /// The option for its key.
    key: String,
    raw: PathBuf,
}

impl Encrypted {
    fn new(files: &[(String, Vec<u8>)]) -> Self {
        let place = WorkFolder::new();
        let image = place.empty_image("a", 128);
        let key = place.path("key");
        std::fs::write(&key, "long enough a passphrase").unwrap();
        let location = format!("keylocation=file://{}", key.display());
        let options = ["encryption=on", "keyformat=passphrase", &location];
        let options = options.into_iter().flat_map(|option| ["-o", option]);
        let create = ["zfs", "create"].into_iter().chain(options);
        place.well(["zpool", "create", "tank", &image]);
        place.well(create.chain(["tank/safe"]));
        let key = format!("tank/safe={}", key.display());
        let folder = place.path("files");
        std::fs::create_dir(&folder).unwrap();
        for (name, content) in files {
            std::fs::write(folder.join(name), content).unwrap();
        }
        let all = format!("{}/.", folder.display());
        place.well(["cp", "-a", "--key", &key, &all, "tank/safe:/"]);
        place.well(["zfs", "snapshot", "tank/safe@s"]);
        let raw = place.path("raw");
        let output = place.run(["zfs", "send", "-w", "tank/safe@s"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        std::fs::write(&raw, &output.stdout).unwrap();
        Self { place, key, raw }
    }
}

#[test]
fn an_encrypted_stream_needs_its_key() {
    let content = noise(5, 300 << 10);
    let sent = Encrypted::new(&[("note".into(), content.clone())]);
    let address = format!("{}:/note", sent.raw.display());
    let output = stream(&["cat", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("--key tank/safe=file:///PATH"),
        "{}",
        text(&output.stderr)
    );
    assert!(well(&["cat", "--key", &sent.key, &address]) == content);
}

/// The code of its object set covers all objects together, so it is not right any more.
#[test]
fn a_cut_encrypted_stream_gives_what_is_whole() {
    let files: Vec<(String, Vec<u8>)> = (0..200u64)
        .map(|number| (format!("{number:03}"), noise(number, 9000)))
        .collect();
    let sent = Encrypted::new(&files);
    let cut = sent.place.path("cut");
    let bytes = std::fs::read(&sent.raw).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() * 7 / 10]).unwrap();
    let (from, out) = (cut.to_str().unwrap(), sent.place.path("out"));
    let output = stream(&["cp", "-a", "--key", &sent.key, from, out.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("files and directories with an inode number of"),
        "{said}"
    );
    let whole = files.iter().filter(|(name, content)| {
        let copied = std::fs::read(out.join(name));
        copied.is_ok_and(|copied| copied == *content)
    });
    let whole = whole.count();
    assert!((100..140).contains(&whole), "{whole} {said}");
    let info = stream(&["info", from]);
    assert_eq!(info.status.code(), Some(1));
    // Without its key nothing can be shown.
    let locked = stream(&["ls", from]);
    assert_eq!(text(&locked.stdout), "");
    assert!(text(&locked.stderr).contains("--key tank/safe=file:///PATH"));
}
