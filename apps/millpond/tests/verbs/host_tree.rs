//! Trees on the host with everything that a copy must preserve, and their comparison.

use crate::golden::text;
use millpond_sim::noise;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr,
    lsetxattr, mknodat, utimensat,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn times(path: &Path, seconds: i64) {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(seconds + 1, 111_222_333),
        last_modification: time(seconds, 123_456_789),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Creates a tree with all kinds of files.
///
/// It has files of many sizes, holes, hard and symbolic links, a pipe, a socket, unusual names, modes,
/// times with nanoseconds and, if the host supports them, extended attributes.
pub fn make(top: &Path) {
    std::fs::create_dir_all(top.join("deep/er/and/deeper")).unwrap();
    std::fs::create_dir_all(top.join("empty")).unwrap();
    for (number, length) in [
        0, 1, 511, 512, 513, 4096, 131_071, 131_072, 131_073, 3_000_000,
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("file{number}");
        std::fs::write(top.join(&name), noise(number as u64, length)).unwrap();
    }
    for number in 0..300 {
        let name = format!("deep/er/n{number}");
        std::fs::write(top.join(name), format!("content {number}\n").repeat(number)).unwrap();
    }
    let sparse = std::fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    sparse.write_all_at(&noise(77, 200_000), 16 << 20).unwrap();
    sparse.write_all_at(b"end", (30 << 20) - 3).unwrap();
    std::fs::hard_link(top.join("file9"), top.join("deep/also file9")).unwrap();
    std::fs::hard_link(top.join("file9"), top.join("deep/er/and/third")).unwrap();
    symlink("../file1", top.join("deep/link")).unwrap();
    symlink("/nowhere/at/all", top.join("dangling")).unwrap();
    let name: OsString = std::os::unix::ffi::OsStringExt::from_vec(b"b\xe4d\nname".to_vec());
    std::fs::write(top.join(name), b"odd").unwrap();
    mknodat(
        CWD,
        top.join("pipe"),
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    drop(std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap());
    for (path, mode) in [
        ("file1", 0o4751),
        ("file2", 0o600),
        ("empty", 0o1777),
        ("deep/er", 0o2750),
    ] {
        std::fs::set_permissions(top.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (path, name, value) in [
        ("file3", "user.one", &b"1"[..]),
        ("file3", "user.two", &[0, 255, 13][..]),
        ("deep", "user.of a directory", &b"yes"[..]),
    ] {
        let set = lsetxattr(top.join(path), name, value, XattrFlags::empty());
        if let Err(error) = set {
            eprintln!("extended attributes are not compared here: {error}");
        }
    }
    let _ = lsetxattr(
        top.join("file4"),
        "user.large",
        &noise(5, 3000),
        XattrFlags::empty(),
    );
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(top.join("file5"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::lchown(top.join("dangling"), Some(77), Some(88)).unwrap();
        mknodat(
            CWD,
            top.join("device"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o620),
            rustix::fs::makedev(1, 3),
        )
        .unwrap();
    }
    let mut all = vec![];
    walk(top, Path::new(""), &mut all);
    for (index, path) in all.iter().rev().enumerate() {
        times(&top.join(path), 1_500_000_000 - index as i64 * 1000);
    }
    times(&top.join("file0"), -5);
}

fn walk(top: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    found.push(below.to_owned());
    let path = top.join(below);
    if !path.symlink_metadata().unwrap().is_dir() {
        return;
    }
    let mut names: Vec<OsString> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    for name in names {
        walk(top, &below.join(name), found);
    }
}

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn xattrs(path: &Path) -> Xattrs {
    let mut buffer = vec![0; 1 << 16];
    let Ok(length) = llistxattr(path, &mut buffer) else {
        return Xattrs::new();
    };
    let names: Vec<Vec<u8>> = buffer[..length]
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl"))
        .map(<[u8]>::to_vec)
        .collect();
    names
        .into_iter()
        .map(|name| {
            let length = lgetxattr(path, name.as_slice(), &mut buffer).unwrap();
            (name, buffer[..length].to_vec())
        })
        .collect()
}

/// Asserts that two trees are equal except for access times. Returns the number of files compared.
pub fn compare(one: &Path, other: &Path) -> usize {
    let (mut left, mut right) = (vec![], vec![]);
    walk(one, Path::new(""), &mut left);
    walk(other, Path::new(""), &mut right);
    assert_eq!(left, right);
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    for path in &left {
        let shown = text(path.as_os_str().as_encoded_bytes());
        let (a, b) = (one.join(path), other.join(path));
        let (x, y) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
        assert_eq!(x.mode(), y.mode(), "{shown}: mode");
        let owners = |m: &std::fs::Metadata| (m.uid(), m.gid(), m.rdev());
        assert_eq!(owners(&x), owners(&y), "{shown}: owner or device");
        let time = |m: &std::fs::Metadata| (m.mtime(), m.mtime_nsec());
        assert_eq!(time(&x), time(&y), "{shown}: time");
        assert_eq!(xattrs(&a), xattrs(&b), "{shown}: extended attributes");
        if x.is_symlink() {
            let target = |path| std::fs::read_link(path).unwrap();
            assert_eq!(target(&a), target(&b), "{shown}: target");
        } else if x.is_file() {
            assert_eq!(x.len(), y.len(), "{shown}: size");
            assert_eq!(x.nlink(), y.nlink(), "{shown}: links");
            let number = *numbers.entry(x.ino()).or_insert(y.ino());
            assert_eq!(number, y.ino(), "{shown}: another file of the same name");
            assert!(
                std::fs::read(&a).unwrap() == std::fs::read(&b).unwrap(),
                "{shown}: content"
            );
        }
    }
    left.len()
}
