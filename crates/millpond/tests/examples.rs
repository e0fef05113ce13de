//! Runs the examples on a pool that they make, and the parts of the interface that they do not use.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "../examples/copy_tree.rs"]
mod copy_tree;
#[path = "../examples/create.rs"]
mod create;
#[path = "../examples/read.rs"]
mod read;
#[path = "../examples/snapshots.rs"]
mod snapshots;
#[path = "../examples/space.rs"]
mod space;
#[path = "../examples/verify.rs"]
mod verify;

use millpond::{ErrorKind, OpenOptions, Pool, Progress};
use millpond_sim::noise;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn images(folder: &Path) -> [PathBuf; 2] {
    ["a.img", "b.img"].map(|name| {
        let image = folder.join(name);
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(128 << 20).unwrap();
        image
    })
}

fn make(folder: &Path) -> Pool {
    let [first, second] = images(folder);
    create::create("tank", [&first, &second]).unwrap()
}

#[test]
fn the_examples_work_on_one_pool() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    let home = pool.file_system("tank/home").unwrap();
    home.create_dir_all("mail/old").unwrap();
    let mut letter = home.create("mail/old/1").unwrap();
    letter.write_all(b"Dear ").unwrap();
    letter.seek(SeekFrom::Start(1 << 20)).unwrap();
    letter.write_all(b"reader").unwrap();
    letter.sync_all().unwrap();
    home.symlink("old/1", "mail/newest").unwrap();
    home.set_permissions("mail/old/1", 0o640).unwrap();
    for _ in 0..4 {
        snapshots::rotate(&pool, "tank/home", 2).unwrap();
    }
    let names: Vec<String> = pool
        .dataset("tank/home")
        .unwrap()
        .snapshots()
        .unwrap()
        .iter()
        .map(|s| s.name().to_owned())
        .collect();
    assert_eq!(names, ["tank/home@auto-3", "tank/home@auto-4"]);
    drop((home, letter));
    pool.export().unwrap();

    let mut file =
        read::open(folder.path(), "tank/home@auto-4", Path::new("/mail/newest")).unwrap();
    let mut text = [0; 5];
    file.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"Dear ");
    let pool = Pool::open("tank", [folder.path()]).unwrap();
    let files = pool.file_system("tank/home@auto-4").unwrap();
    let to = folder.path().join("copy");
    copy_tree::copy(&files, Path::new("mail"), &to).unwrap();
    let copied = std::fs::read(to.join("old/1")).unwrap();
    assert_eq!(copied.len(), (1 << 20) + 6);
    assert!(copied.starts_with(b"Dear \0") && copied.ends_with(b"\0reader"));
    assert_eq!(
        std::fs::read_link(to.join("newest")).unwrap(),
        Path::new("old/1")
    );

    let summary = verify::verify(&pool, &Progress::new()).unwrap();
    assert_eq!(summary.problems, 0);
    assert!(summary.blocks > 0 && summary.lost.is_empty());
    let found = pool.check(&Progress::new(), &|finding| println!("{finding}"));
    assert_eq!(found.unwrap().findings, 0);
    let lines = space::too_full(folder.path(), 0).unwrap();
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("tank: 0 % full; largest: tank"),
        "{lines:?}"
    );
    assert!(space::too_full(folder.path(), 90).unwrap().is_empty());
}

#[test]
fn errors_have_kinds_and_name_what_they_are_about() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    let home = pool.file_system("tank/home").unwrap();
    let kind = |error: millpond::Error| (error.kind(), error.to_string());
    let (found, text) = kind(home.read("mail/1").unwrap_err());
    assert_eq!(found, ErrorKind::NotFound);
    assert_eq!(text, "tank/home:mail/1: no such file or directory");
    assert_eq!(
        kind(home.remove_file("").unwrap_err()).0,
        ErrorKind::InvalidInput
    );
    assert_eq!(kind(home.open("/").unwrap_err()).0, ErrorKind::IsADirectory);
    assert_eq!(
        kind(home.create("README/x").unwrap_err()).0,
        ErrorKind::NotADirectory
    );
    assert_eq!(
        kind(home.create_new("README").unwrap_err()).0,
        ErrorKind::AlreadyExists
    );
    home.create_dir("d").unwrap();
    home.write("d/x", "").unwrap();
    assert_eq!(
        kind(home.remove_dir("d").unwrap_err()).0,
        ErrorKind::DirectoryNotEmpty
    );
    pool.snapshot(["tank/home@s"]).unwrap();
    assert_eq!(
        kind(pool.destroy("tank/home").unwrap_err()).0,
        ErrorKind::Busy
    );
    assert_eq!(
        kind(pool.dataset("tank/none").unwrap_err()).0,
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(pool.snapshot(["tank/home@"]).unwrap_err()).0,
        ErrorKind::InvalidInput
    );
    pool.create_volume("tank/disk", 1 << 20).create().unwrap();
    let volume = pool.file_system("tank/disk");
    assert_eq!(kind(volume.unwrap_err()).0, ErrorKind::InvalidInput);
    home.symlink("nowhere", "dangling").unwrap();
    assert_eq!(
        kind(home.create_dir_all("dangling").unwrap_err()).0,
        ErrorKind::AlreadyExists
    );
    let again = pool.create_file_system("tank/home").create();
    assert_eq!(kind(again.unwrap_err()).0, ErrorKind::AlreadyExists);
    let full = (0..64).find_map(|n| home.write(format!("{n}"), noise(n, 1 << 20)).err());
    assert_eq!(kind(full.unwrap()).0, ErrorKind::QuotaExceeded);
    // The devices are locked while the pool is open for writing.
    let writing = OpenOptions::new().search(folder.path()).write(true);
    let (found, text) = kind(writing.open("tank").unwrap_err());
    assert_eq!(found, ErrorKind::Busy, "{text}");
    assert_eq!(
        kind(writing.open("none").unwrap_err()).0,
        ErrorKind::NotFound
    );
    let again = millpond::PoolBuilder::new("other").single(folder.path().join("a.img"));
    assert_eq!(kind(again.create().unwrap_err()).0, ErrorKind::Busy);
    let reading = Pool::open("tank", [folder.path()]).unwrap();
    assert!(reading.is_in_use() && !pool.is_in_use());
    drop(reading);
    drop(home);
    pool.export().unwrap();
    let pool = Pool::open("tank", [folder.path()]).unwrap();
    assert!(!pool.is_writable() && !pool.is_in_use());
    let (found, text) = kind(pool.snapshot(["tank@a"]).unwrap_err());
    assert_eq!(found, ErrorKind::ReadOnly);
    assert!(text.starts_with("tank: "), "{text}");
    let home = pool.file_system("tank/home").unwrap();
    assert_eq!(
        kind(home.write("README", "x").unwrap_err()).0,
        ErrorKind::ReadOnly
    );
    let error = std::io::Error::from(Pool::open("none", [folder.path()]).unwrap_err());
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn after_a_failed_write_the_position_tells_how_much_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let home = make(folder.path()).file_system("tank/home").unwrap();
    let mut long = home.create("long").unwrap();
    let bytes = noise(1, 14 << 20);
    assert_eq!(long.write(&bytes).unwrap(), 4 << 20);
    let outcome = (0..8).try_for_each(|_| long.write_all(&bytes));
    assert_eq!(
        outcome.unwrap_err().kind(),
        std::io::ErrorKind::QuotaExceeded
    );
    assert_eq!(long.stream_position().unwrap(), long.len());
}

#[test]
fn files_and_directories_change_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    let home = pool.file_system("tank/home").unwrap().as_user(1000, 100);
    home.create_dir_all("/a/b/c/").unwrap();
    home.create_dir_all("a/b/c").unwrap();
    home.write("a/one", "1").unwrap();
    home.hard_link("a/one", "a/b/uno").unwrap();
    assert_eq!(home.metadata("a/one").unwrap().links(), 2);
    assert_eq!(
        (
            home.metadata("a/one").unwrap().uid(),
            home.metadata("a").unwrap().gid()
        ),
        (1000, 100)
    );
    home.rename("a/one", "a/b/eins").unwrap();
    assert!(!home.exists("a/one").unwrap());
    home.set_xattr("a/b/eins", "user.comment", "first").unwrap();
    assert_eq!(
        home.xattr("a/b/uno", "user.comment").unwrap().unwrap(),
        b"first"
    );
    assert_eq!(home.xattr_names("a/b/uno").unwrap(), ["user.comment"]);
    home.remove_xattr("a/b/uno", "user.comment").unwrap();
    assert!(home.xattr("a/b/uno", "user.comment").unwrap().is_none());
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    home.set_modified("a/b/eins", time).unwrap();
    assert_eq!(home.metadata("a/b/uno").unwrap().modified(), time);
    let file = home.open("a/b/uno").unwrap();
    assert_eq!(file.append(b"23").unwrap(), 1);
    file.set_len(2).unwrap();
    assert_eq!(home.read("a/b/eins").unwrap(), b"12");
    let entries = home.walk("a").unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(
        names,
        ["a/b", "a/b/c", "a/b/eins", "a/b/uno"].map(PathBuf::from)
    );
    home.remove_dir_all("a").unwrap();
    assert!(!home.exists("a").unwrap());

    let mut disk = pool.create_volume("tank/disk", 8 << 20).create().unwrap();
    disk.seek(SeekFrom::End(-4)).unwrap();
    assert!(disk.write_all(b"12345").is_err(), "beyond the end");
    disk.write_all_at(b"begin", 0).unwrap();
    disk.sync().unwrap();
    let mut text = [0; 5];
    assert_eq!(disk.read_at(&mut text, (8 << 20) - 4).unwrap(), 4);
    assert_eq!(&text[..4], b"1234");
    pool.snapshot(["tank/disk@s"]).unwrap();
    disk.discard(0, 8 << 20).unwrap();
    let old = pool.volume("tank/disk@s").unwrap();
    old.read_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"begin");
    pool.set_property("tank/disk", "comment:x", "text").unwrap();
    let disk = pool.dataset("tank/disk").unwrap();
    assert_eq!(disk.property("comment:x").unwrap().unwrap().value, "text");
}
