//! `zfs upgrade` on a pool created by OpenZFS with file systems of versions 1 to 4.
//!
//! Afterwards their files are changed.

use crate::golden::text;
use millpond_engine::{
    Caller, DirEntryRef as Name, FileSystem, NewMode, Node, OpenOptions, Pool, RenameMode, Search,
    SetAttributes, SetTime, Timestamp, View, WriteAt, WriteOptions, XattrMode,
};
use millpond_tests::compare::{Leeway, compare};
use millpond_tests::oracle::{kernel, zdb};
use millpond_tests::record::{self, Record};
use millpond_tests::workload::manifest;
use millpond_tests::{adaptor, images};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

const ALL: [&str; 6] = [
    "old-files/v1",
    "old-files/v2",
    "old-files/v3",
    "old-files/v4",
    "old-files/v3/below",
    "old-files/clone",
];

/// A copy of the pool's image for changes.
struct PoolCopy {
    folder: TempDir,
}

fn case() -> (PathBuf, Record) {
    let folder = images::workspace().join("testdata/old-files");
    let record = record::load(&folder).unwrap();
    (folder, record)
}

impl PoolCopy {
    fn new() -> Self {
        let (packed, record) = case();
        let folder = tempfile::tempdir().unwrap();
        let image = &record.images[0];
        let from = packed.join(&image.file);
        let from = images::unpacked(&from, &image.sha256, image.size_bytes).unwrap();
        images::copy_sparse(&from, &folder.path().join("d0.img")).unwrap();
        Self { folder }
    }
    fn path(&self) -> &Path {
        self.folder.path()
    }
    fn run(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command
            .arg("-d")
            .arg(self.path())
            .args(line.split_whitespace());
        command.env("TZ", "UTC").env_remove("MILLPOND_SEARCH");
        command.stdin(Stdio::null()).output().unwrap()
    }
    /// Runs a command and compares its output, errors and status with those of OpenZFS.
    fn answers(&self, line: &str, out: &str, err: &str, status: i32) {
        let output = self.run(line);
        let found = (text(&output.stdout), text(&output.stderr));
        assert_eq!((found.0.as_str(), found.1.as_str()), (out, err), "{line}");
        assert_eq!(output.status.code(), Some(status), "{line}");
    }
    fn open(&self) -> Pool {
        let writing = WriteOptions::default();
        let search = Search::new([self.path()]);
        Pool::open(&search, "old-files", &OpenOptions::default(), &writing).unwrap()
    }
    fn manifest(&self) -> Vec<String> {
        let search = Search::new([self.path()]);
        let pool = View::open(&search, "old-files", &OpenOptions::default()).unwrap();
        manifest(&pool).unwrap()
    }
    fn judge(&self) {
        zdb::judge(self.path(), "old-files")
            .unwrap()
            .require("old-files");
        let output = self.run("check old-files");
        assert!(output.status.success(), "{}", text(&output.stdout));
    }
}

#[test]
fn files_of_old_versions_are_as_openzfs_recorded_them() {
    let (packed, record) = case();
    let image = &record.images[0];
    let path = packed.join(&image.file);
    let path = images::unpacked(&path, &image.sha256, image.size_bytes).unwrap();
    let disks = images::gather("old-files", &[("d0.img".into(), path)]).unwrap();
    let mut pool = adaptor::open(&disks, &record.keys).unwrap();
    let mut found = compare(&mut *pool, &record, &Leeway::default());
    // A clone does not have its origin's acltype, and without it the module does not show such a list.
    let hidden = "old-files/clone:/moved has extended attributes";
    found.differences.retain(|one| !one.starts_with(hidden));
    assert_eq!(found.differences, Vec::<String>::new());
    assert!(found.files > 100, "{} files", found.files);
}

const USAGE: &str = "\
usage:
\tupgrade [-v]
\tupgrade [-r] [-V version] <-a | filesystem ...>

For the property list, run: zfs set|get

For the delegated permission list, run: zfs allow|unallow

For further help on a command or topic, run: zfs help [<topic>]
";

#[test]
fn upgrade_answers_as_openzfs_did_about_this_pool() {
    let place = PoolCopy::new();
    let listing = "This system is currently running ZFS filesystem version 5.

The following filesystems are out of date, and can be upgraded.  After being
upgraded, these filesystems (and any 'zfs send' streams generated from
subsequent snapshots) will no longer be accessible by older software versions.


VER  FILESYSTEM
---  ------------
 3   old-files/clone
 1   old-files/v1
 2   old-files/v2
 3   old-files/v3
 3   old-files/v3/below
 4   old-files/v4
";
    place.answers("zfs upgrade", listing, "", 0);
    for version in ["9", "foo", "0"] {
        let err = format!("invalid version {version}\n{USAGE}");
        let line = format!("zfs upgrade -V {version} old-files/v1");
        place.answers(&line, "", &err, 2);
    }
    for words in ["-V 3", "-r", "-v old-files/v1", "-a old-files/v1"] {
        place.answers(&format!("zfs upgrade {words}"), "", USAGE, 2);
    }
    let nothing = "0 filesystems upgraded\n";
    for (name, reason) in [
        ("nosuch", "dataset does not exist"),
        ("old-files/nosuch", "dataset does not exist"),
        (
            "old-files/v3@before",
            "snapshot delimiter '@' is not expected here",
        ),
    ] {
        let err = format!("cannot open '{name}': {reason}\n");
        place.answers(&format!("zfs upgrade {name}"), nothing, &err, 1);
    }
    let lower = |name: &str, version| {
        format!("{name}: can not be downgraded; it is already at version {version}\n")
    };
    let out = lower("old-files/v3", 3) + nothing;
    place.answers("zfs upgrade -V 2 old-files/v3", &out, "", 1);
    let out = "0 filesystems upgraded\n1 filesystems already at this version\n";
    place.answers("zfs upgrade -V 3 old-files/v3", out, "", 0);
    let one = "1 filesystems upgraded\n";
    place.answers("zfs upgrade -V 3 old-files/v1", one, "", 0);
    let out = lower("old-files/v1", 3)
        + &lower("old-files/v3", 3)
        + "0 filesystems upgraded\n1 filesystems already at this version\n";
    let line = "zfs upgrade -V 2 old-files/v1 old-files/v3 old-files/v2";
    place.answers(line, &out, "", 1);
    let err = "cannot set property for 'old-files/v3': Can not downgrade; already at version 3\n";
    place.answers("zfs set version=2 old-files/v3", "", err, 255);
    place.answers("zfs set readonly=on old-files/v2", "", "", 0);
    place.answers("zfs upgrade old-files/v2", one, "", 0);
    let out = "old-files/v1\tversion\t3\t-\nold-files/v2\tversion\t5\t-\n";
    place.answers("zfs get -Hp version old-files/v1 old-files/v2", out, "", 0);
    let out = "1 filesystems upgraded\n1 filesystems already at this version\n";
    let err = "cannot open 'nosuch': dataset does not exist\n";
    let line = "zfs upgrade old-files old-files/v4 nosuch old-files/v4";
    place.answers(line, out, err, 1);
    let out = lower("old-files", 5)
        + &lower("old-files/v2", 5)
        + &lower("old-files/v4", 5)
        + "4 filesystems upgraded\n";
    place.answers("zfs upgrade -r -V 4 old-files", &out, "", 1);
    place.answers("zfs set version=current old-files/v1", "", "", 0);
    let out = "2 filesystems upgraded\n";
    place.answers("zfs upgrade -r old-files/v3", out, "", 0);
    let out = "1 filesystems upgraded\n6 filesystems already at this version\n";
    place.answers("zfs upgrade -a", out, "", 0);
    let out = "0 filesystems upgraded\n7 filesystems already at this version\n";
    place.answers("zfs upgrade -a", out, "", 0);
    let history = text(&place.run("zpool history -i old-files").stdout);
    for noted in [
        "upgrade old-files/v1 (77) from 1 to 3",
        "upgrade old-files/v1 (77) from 3 to 4",
        "upgrade old-files/v1 (77) from 4 to 5",
        "upgrade old-files/v2 (86) from 2 to 5",
        "upgrade old-files/clone (102) from 4 to 5",
    ] {
        assert!(history.contains(noted), "{noted}: {history}");
    }
    place.judge();
}

fn at(files: &FileSystem, path: &str) -> Node {
    let steps = path.split('/');
    steps.fold(files.root().unwrap(), |node, name| {
        node.lookup(name.as_bytes()).unwrap()
    })
}

/// The files that [`change`] touches; nothing else is below them.
const CHANGED: [&str; 24] = [
    ".",
    "./noise",
    "./numbers",
    "./empty",
    "./one",
    "./one-again",
    "./gone",
    "./moved",
    "./deep",
    "./deep/moved",
    "./deep/new",
    "./empty-dir",
    "./holes",
    "./many",
    "./many/file-1",
    "./many/file-3",
    "./wide",
    "./few",
    "./sticky",
    "./pipe",
    "./disk",
    "./link-10",
    "./link-57",
    "./link-300",
];

/// Changes a file of every kind.
fn change(files: &Arc<FileSystem>) {
    let root = Caller::root();
    let top = files.root().unwrap();
    let set = |path: &str, set: SetAttributes| {
        files.set_attributes(&root, &at(files, path), &set).unwrap();
    };
    let none = SetAttributes::default;
    let owner = || SetAttributes {
        uid: Some(2000),
        gid: Some(2001),
        ..none()
    };
    let write = |path: &str, offset, bytes: &[u8]| {
        let node = at(files, path);
        files
            .write(&root, &node, WriteAt::Offset(offset), bytes)
            .unwrap();
    };
    write("noise", 100, &[b'n'; 70_000]);
    write("empty", 0, b"not any more");
    write("holes", 150_000, b"middle");
    set(
        "numbers",
        SetAttributes {
            size_bytes: Some(12_345),
            ..owner()
        },
    );
    set(
        "one",
        SetAttributes {
            permissions: Some(0o640),
            ..none()
        },
    );
    for name in ["gone", "one-again"] {
        files.unlink(&top, name.as_bytes()).unwrap();
    }
    files.remove_directory(&top, b"empty-dir").unwrap();
    let deep = at(files, "deep");
    let from = Name {
        directory: &top,
        name: b"moved",
    };
    let to = Name {
        directory: &deep,
        name: b"moved",
    };
    files.rename(&root, from, to, RenameMode::Replace).unwrap();
    let mode = NewMode::exactly(0o644);
    files.create(&root, &deep, b"new", mode, true).unwrap();
    let value = vec![b'x'; 300];
    let many = at(files, "many");
    files
        .set_xattr(&root, &many, b"user.packed", &value, XattrMode::Set)
        .unwrap();
    files.remove_xattr(&many, b"user.long").unwrap();
    set("many/file-1", owner());
    files.unlink(&many, b"file-3").unwrap();
    let wide = at(files, "wide");
    for line in wide.list(0, 30).unwrap() {
        if line.entry.name != b"." && line.entry.name != b".." {
            files.unlink(&wide, &line.entry.name).unwrap();
        }
    }
    let moment = SetTime::To(Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 987_654_321,
    });
    set(
        "sticky",
        SetAttributes {
            mtime: Some(moment),
            ..none()
        },
    );
    set(
        "disk",
        SetAttributes {
            permissions: Some(0o666),
            ..none()
        },
    );
    for path in ["pipe", "link-57", "link-300"] {
        set(path, owner());
    }
    let link = at(files, "link-10");
    files
        .set_xattr(&root, &link, b"trusted.more", b"of a link", XattrMode::Set)
        .unwrap();
}

#[test]
fn openzfs_accepts_old_files_changed_after_an_upgrade() {
    change_and_judge(true);
}

#[test]
fn openzfs_accepts_old_files_changed_without_an_upgrade() {
    change_and_judge(false);
}

fn change_and_judge(is_raised: bool) {
    let place = PoolCopy::new();
    let before = place.manifest();
    if is_raised {
        assert!(place.run("zfs upgrade -a").status.success());
        assert_eq!(place.manifest(), before, "raising changes no file");
    }
    let pool = place.open();
    for name in ALL {
        change(&pool.file_system(name).unwrap());
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    let after = place.manifest();
    let mut unchanged = 0;
    for line in &before {
        let columns: Vec<&str> = line.split("\t").collect();
        let (dataset, path) = (columns[0], columns[columns.len() - 1]);
        let is_changed =
            ALL.contains(&dataset) && (CHANGED.contains(&path) || path.starts_with("./wide/"));
        if !is_changed {
            assert!(after.contains(line), "{line}");
            unchanged += 1;
        }
    }
    assert!(unchanged > 200, "{unchanged} lines");
    place.judge();
    if std::env::var_os("MILLPOND_KERNEL").is_some() {
        // Otherwise the module does not show the ACLs of files there.
        let set = place.run("zfs set acltype=posix old-files/clone");
        assert!(set.status.success());
        let (verdict, count) =
            kernel::compare(kernel::Release::V2_3, place.path(), "old-files").unwrap();
        println!("{count} lines compared with the module's");
        verdict.require("old-files in the kernel module");
    }
}

#[test]
fn an_open_file_system_stays_writable_while_it_is_upgraded() {
    let place = PoolCopy::new();
    let pool = place.open();
    let files = pool.file_system("old-files/v2").unwrap();
    let top = files.root().unwrap();
    files.unlink(&top, b"gone").unwrap();
    pool.raise_version("old-files/v2", 4).unwrap();
    files.unlink(&top, b"one").unwrap();
    assert!(pool.raise_version("old-files/v2", 3).is_err());
    pool.raise_version("old-files/v2", 5).unwrap();
    files.unlink(&top, b"moved").unwrap();
    assert!(Arc::ptr_eq(
        &files,
        &pool.file_system("old-files/v2").unwrap()
    ));
    drop((top, files));
    pool.export().unwrap();
    place.judge();
}

#[test]
fn file_systems_are_made_in_old_versions() {
    let place = PoolCopy::new();
    let version = |name: &str| {
        let output = place.run(&format!("zfs get -H -o value version {name}"));
        text(&output.stdout).trim().to_owned()
    };
    for made in 1..=4 {
        let name = format!("old-files/made-{made}");
        place.answers(&format!("zfs create -o version={made} {name}"), "", "", 0);
        assert_eq!(version(&name), made.to_string());
        place.answers(&format!("zfs create {name}/below"), "", "", 0);
        // The version is not inherited.
        assert_eq!(version(&format!("{name}/below")), "5");
        place.answers(&format!("zfs snapshot {name}@now"), "", "", 0);
        place.answers(&format!("zfs clone {name}@now {name}/clone"), "", "", 0);
        assert_eq!(version(&format!("{name}/clone")), made.to_string());
        assert!(place.run(&format!("mkdir {name}:/dir")).status.success());
    }
    let refused = |options: &str| {
        let needs = "pool must be upgraded to set this property or value";
        let error = format!("cannot create 'old-files/no': {needs}\n");
        place.answers(&format!("zfs create {options} old-files/no"), "", &error, 1);
    };
    refused("-o version=2 -o casesensitivity=insensitive");
    refused("-o version=1 -o normalization=formD");
    std::fs::File::create(place.path().join("new.img"))
        .and_then(|file| file.set_len(128 << 20))
        .unwrap();
    let create = |version: u64| {
        let image = place.path().join("new.img");
        let options = format!("-O version={version} -O casesensitivity=mixed");
        place.run(&format!("zpool create {options} new {}", image.display()))
    };
    let output = create(2);
    assert_eq!(
        text(&output.stderr),
        "cannot create 'new': operation not supported on this type of pool\n"
    );
    let output = create(3);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(version("new"), "3");
    let limit = "zfs set userquota@7=1G old-files/made-3";
    let error = "cannot set property for 'old-files/made-3': pool and or dataset must be upgraded to \
                 set this property or value\n";
    place.answers(limit, "", error, 255);
    let limit = "zfs set userquota@7=1G old-files/made-4";
    place.answers(limit, "", "", 0);
    place.judge();
}
