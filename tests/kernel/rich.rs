//! File systems with all kinds of files and attributes, and sparse volumes, below `POOL/rich`.

use millpond_engine::{
    Allocate, Caller, DirEntryRef, FileFlags, FileSystem, NewMode, Node, Pool, PropertyValue,
    RenameMode, SetAttributes, SetTime, SpecialFile, Timestamp, WriteAt, XattrMode,
};
use millpond_posix::{POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, PosixAcl, PosixAclWho};
use millpond_sim::noise;
use millpond_tests::workload::text;
use std::sync::Arc;

const MODE: NewMode = NewMode {
    mode: 0o640,
    umask: 0,
};

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

/// Creates and fills them.
pub fn fill(pool: &Pool) {
    let root = pool.name();
    let datasets = pool.datasets();
    let rich = format!("{root}/rich");
    datasets
        .create_filesystem(&rich, &[text("longname", "on")])
        .unwrap();
    let kinds: [(&str, &[(String, PropertyValue)]); 4] = [
        (
            "attributes",
            &[
                text("xattr", "sa"),
                text("acltype", "posix"),
                text("dnodesize", "auto"),
            ],
        ),
        (
            "directories",
            &[
                text("xattr", "on"),
                text("acltype", "posix"),
                number("recordsize", 4096),
            ],
        ),
        (
            "nfs4",
            &[
                text("acltype", "nfsv4"),
                text("aclmode", "passthrough"),
                text("aclinherit", "passthrough"),
            ],
        ),
        (
            "copies",
            &[
                text("copies", "3"),
                text("checksum", "sha512"),
                text("compression", "gzip"),
                number("recordsize", 1 << 20),
            ],
        ),
    ];
    for (name, properties) in kinds {
        let name = format!("{rich}/{name}");
        datasets.create_filesystem(&name, properties).unwrap();
        let files = pool.file_system(&name).unwrap();
        one_of_everything(
            &files,
            name.contains("attributes") || name.contains("directories"),
        );
        if name.ends_with("attributes") {
            datasets
                .snapshot(&[&format!("{name}@before")], &[])
                .unwrap();
            change(&files, 1);
        }
    }
    for (name, size, block) in [("volume", 16 << 20, 16 << 10), ("grain", 8 << 20, 4096)] {
        let name = format!("{rich}/{name}");
        let properties = [
            number("volsize", size),
            number("volblocksize", block),
            number("refreservation", 0),
        ];
        datasets.create_volume(&name, &properties).unwrap();
        let volume = pool.volume(&name).unwrap();
        volume.write(1_000_001, &noise(9, 3_000_000)).unwrap();
        volume.write(size - 5000, &noise(8, 5000)).unwrap();
        volume.discard(2_000_000, 700_000).unwrap();
    }
}

/// Changes every third file of [`fill`], even if others changed it in the meantime.
pub fn change_all(pool: &Pool, round: u64) {
    let root = pool.name();
    for name in ["attributes", "directories", "nfs4", "copies"] {
        let files = pool.file_system(&format!("{root}/rich/{name}")).unwrap();
        change(&files, round);
    }
    for name in ["volume", "grain"] {
        let volume = pool.volume(&format!("{root}/rich/{name}")).unwrap();
        volume
            .write(7_000_000 + round, &noise(round, 400_000))
            .unwrap();
        volume.discard(1_200_000, 200_000 * round).unwrap();
    }
}

fn file(files: &Arc<FileSystem>, at: &Node, name: &[u8], content: &[u8]) -> Node {
    let root = Caller::root();
    let (node, _) = files.create(&root, at, name, MODE, true).unwrap();
    for (index, piece) in content.chunks(100_000).enumerate() {
        let at = WriteAt::Offset(index as u64 * 100_000);
        files.write(&root, &node, at, piece).unwrap();
    }
    node
}

fn directory(files: &Arc<FileSystem>, at: &Node, name: &[u8], mode: u32) -> Node {
    let mode = NewMode::exactly(mode);
    files
        .make_directory(&Caller::root(), at, name, mode)
        .unwrap()
}

fn acl(entries: &[(PosixAclWho, u8)]) -> Vec<u8> {
    PosixAcl::new(entries.to_vec()).unwrap().encode()
}

fn one_of_everything(files: &Arc<FileSystem>, has_acls: bool) {
    let (root, top) = (Caller::root(), files.root().unwrap());
    let open = SetAttributes {
        permissions: Some(0o755),
        ..SetAttributes::default()
    };
    files.set_attributes(&root, &top, &open).unwrap();
    // Lengths around the limits of embedded blocks, sectors and records.
    let sizes = directory(files, &top, b"sizes", 0o755);
    for length in [
        0usize, 1, 70, 112, 113, 511, 512, 513, 4095, 4097, 131_071, 131_072, 131_073, 1_000_000,
    ] {
        file(
            files,
            &sizes,
            format!("noise-{length}").as_bytes(),
            &noise(3, length),
        );
        file(
            files,
            &sizes,
            format!("text-{length}").as_bytes(),
            &b"again and again. ".repeat(length / 17 + 1)[..length],
        );
    }
    // Holes.
    let sparse = file(files, &top, b"sparse", &noise(4, 600_000));
    let hole = Allocate::PunchHole;
    files.allocate(&sparse, hole, 131_072, 300_000).unwrap();
    let far = WriteAt::Offset(3 << 20);
    files.write(&root, &sparse, far, &noise(5, 10_000)).unwrap();
    // A file that is almost entirely a hole; the machine reads it completely.
    let empty = file(files, &top, b"nearly-nothing", b"");
    let end = SetAttributes {
        size_bytes: Some((2 << 20) + 77),
        ..SetAttributes::default()
    };
    files.set_attributes(&root, &empty, &end).unwrap();
    // All kinds of special files.
    let kinds = directory(files, &top, b"kinds", 0o3777);
    for (name, what) in [
        (&b"fifo"[..], SpecialFile::Fifo),
        (b"socket", SpecialFile::Socket),
        (b"block", SpecialFile::BlockDevice(8, 300)),
        (b"character", SpecialFile::CharacterDevice(300, 70_000)),
    ] {
        let mode = NewMode::exactly(0o604);
        files.make_special(&root, &kinds, name, what, mode).unwrap();
    }
    for length in [1, 40, 150, 2000] {
        let name = format!("symlink-{length}").into_bytes();
        let target = vec![b't'; length];
        files.make_symlink(&root, &kinds, &name, &target).unwrap();
    }
    // Names.
    let names = directory(files, &top, b"names", 0o755);
    file(files, &names, "ünï cödé\n\t\\ end".as_bytes(), b"odd");
    file(files, &names, b"\xff\xfe not unicode", b"odd");
    file(files, &names, &[b'n'; 255], b"the longest of old");
    for length in [256, 500, 1023] {
        file(files, &names, &vec![b'l'; length], b"long");
    }
    // A directory that becomes a fat ZAP, and one that was one.
    let many = directory(files, &top, b"many", 0o755);
    for number in 0..130 {
        file(files, &many, format!("entry {number}").as_bytes(), b"");
    }
    for number in (0..130).step_by(3) {
        let name = format!("entry {number}").into_bytes();
        files.unlink(&many, &name).unwrap();
    }
    // Links and renames.
    let linked = file(files, &top, b"linked", b"three names");
    files.link(&linked, &kinds, b"second").unwrap();
    files.link(&linked, &many, b"third").unwrap();
    let place = |directory, name: &'static [u8]| DirEntryRef { directory, name };
    let (from, to) = (place(&top, b"linked"), place(&many, b"moved"));
    files.rename(&root, from, to, RenameMode::Whiteout).unwrap();
    // Extended attributes, small to large.
    let attributed = file(files, &top, b"attributed", b"x");
    for (name, length) in [
        (&b"user.empty"[..], 0usize),
        (b"user.small", 10),
        (b"user.spilled", 5_000),
        (b"user.hidden", 50_000),
        (b"trusted.t", 300),
        (b"security.s", 30),
    ] {
        let (value, set) = (noise(1, length), XattrMode::Set);
        files
            .set_xattr(&root, &attributed, name, &value, set)
            .unwrap();
    }
    let on_directory = (b"user.on-directory", b"value");
    files
        .set_xattr(
            &root,
            &names,
            on_directory.0,
            on_directory.1,
            XattrMode::Set,
        )
        .unwrap();
    // Owners, modes, times.
    let owned = directory(files, &top, b"owned", 0o755);
    for (index, mode) in [
        0, 0o400, 0o040, 0o004, 0o100, 0o010, 0o001, 0o755, 0o6751, 0o1777,
    ]
    .into_iter()
    .enumerate()
    {
        for (uid, gid) in [(1001, 5), (5, 1001), (7, 8), (1002, 1003)] {
            let name = format!("mode-{index}-{uid}").into_bytes();
            let node = file(files, &owned, &name, b"who may read this?");
            let seconds = [-1000, 0, 1, 1 << 31, 1 << 33][index % 5];
            let time = Timestamp {
                seconds,
                nanoseconds: 5 + index as u64,
            };
            let set = SetAttributes {
                permissions: Some(mode),
                uid: Some(uid),
                gid: Some(gid),
                // The kernel's output for times before 1970 depends on its release.
                mtime: (seconds >= 0).then_some(SetTime::To(time)),
                atime: (seconds >= 0).then_some(SetTime::To(time)),
                ..SetAttributes::default()
            };
            files.set_attributes(&root, &node, &set).unwrap();
        }
    }
    for (name, mode) in [
        (&b"closed"[..], 0o700),
        (b"no-entry", 0o744),
        (b"no-list", 0o711),
    ] {
        let closed = directory(files, &owned, name, mode);
        file(files, &closed, b"inside", b"inside");
    }
    // Flags and projects.
    let flagged = directory(files, &top, b"flagged", 0o755);
    for (name, flags) in [
        (&b"immutable"[..], FileFlags::IMMUTABLE),
        (b"append", FileFlags::APPENDONLY | FileFlags::NODUMP),
        (b"nodump", FileFlags::NODUMP),
    ] {
        let node = file(files, &flagged, name, b"flags");
        let set = SetAttributes {
            set_flags: flags,
            project: Some(99),
            ..SetAttributes::default()
        };
        files.set_attributes(&root, &node, &set).unwrap();
    }
    let project = directory(files, &top, b"project", 0o2755);
    let set = SetAttributes {
        project: Some(17),
        set_flags: FileFlags::PROJECT_INHERIT,
        ..SetAttributes::default()
    };
    files.set_attributes(&root, &project, &set).unwrap();
    file(files, &project, b"inherits", &noise(6, 30_000));
    let below = directory(files, &project, b"below", 0o755);
    file(files, &below, b"inherits too", b"project 17");
    if has_acls {
        lists(files, &top);
    }
}

/// POSIX ACLs with all kinds of entries.
fn lists(files: &Arc<FileSystem>, top: &Node) {
    use PosixAclWho::{Group, Mask, NamedGroup, Others, Owner, User};
    let root = Caller::root();
    let listed = directory(files, top, b"listed", 0o755);
    for (name, entries) in [
        (
            &b"named user"[..],
            vec![
                (Owner, 6),
                (User(1001), 5),
                (Group, 0),
                (Mask, 7),
                (Others, 0),
            ],
        ),
        (
            b"masked",
            vec![
                (Owner, 7),
                (User(1001), 7),
                (Group, 7),
                (Mask, 2),
                (Others, 5),
            ],
        ),
        (
            b"named group",
            vec![
                (Owner, 7),
                (Group, 0),
                (NamedGroup(1001), 4),
                (Mask, 7),
                (Others, 1),
            ],
        ),
        (
            b"denied group",
            vec![
                (Owner, 7),
                (Group, 4),
                (NamedGroup(1001), 0),
                (Mask, 7),
                (Others, 7),
            ],
        ),
        (
            b"no more than a mode",
            vec![(Owner, 6), (Group, 4), (Others, 5)],
        ),
        (
            b"many",
            [(Owner, 7)]
                .into_iter()
                .chain((0..60).map(|user| (User(2000 + user), (user % 8) as u8)))
                .chain([(Group, 1), (Mask, 5), (Others, 4)])
                .collect(),
        ),
    ] {
        let node = file(files, &listed, name, b"listed");
        let value = acl(&entries);
        files
            .set_xattr(&root, &node, POSIX_ACL_ACCESS, &value, XattrMode::Set)
            .unwrap();
    }
    let heir = directory(files, &listed, b"default", 0o755);
    let value = acl(&[
        (Owner, 7),
        (User(1001), 7),
        (Group, 5),
        (NamedGroup(9), 1),
        (Mask, 7),
        (Others, 0),
    ]);
    files
        .set_xattr(&root, &heir, POSIX_ACL_DEFAULT, &value, XattrMode::Set)
        .unwrap();
    file(files, &heir, b"inherits", b"a list");
    let below = directory(files, &heir, b"inherits too", 0o750);
    file(files, &below, b"and again", b"a list");
    // Setting the mode changes the mask.
    let changed = file(files, &heir, b"then changed", b"a list");
    let set = SetAttributes {
        permissions: Some(0o604),
        ..SetAttributes::default()
    };
    files.set_attributes(&root, &changed, &set).unwrap();
}

fn change(files: &Arc<FileSystem>, round: u64) {
    let top = files.root().unwrap();
    let mut count = round;
    change_below(files, &top, round, &mut count);
    let ours = directory(files, &top, format!("ours-{round}").as_bytes(), 0o755);
    for number in 0..40usize {
        let name = format!("new-{number}").into_bytes();
        file(files, &ours, &name, &noise(round, number * 2000));
    }
    files.reap().unwrap();
}

fn change_below(files: &Arc<FileSystem>, at: &Node, round: u64, count: &mut u64) {
    let root = Caller::root();
    for listed in at.list(0, usize::MAX).unwrap() {
        let name = listed.entry.name;
        if name == b"." || name == b".." {
            continue;
        }
        let node = at.lookup(&name).unwrap();
        match node.kind() {
            millpond_engine::FileKind::Directory => {
                change_below(files, &node, round, count);
                continue;
            }
            millpond_engine::FileKind::Regular => {}
            _ => continue,
        }
        let flags = node.stat().unwrap().flags;
        if flags.intersects(FileFlags::IMMUTABLE | FileFlags::APPENDONLY) {
            continue;
        }
        *count += 1;
        let size = node.size_bytes();
        match *count % 30 {
            0 | 1 => {
                let more = noise(*count, 20_000);
                files.write(&root, &node, WriteAt::End, &more).unwrap();
            }
            2 | 3 => {
                let middle = WriteAt::Offset(size / 3);
                files.write(&root, &node, middle, b"changed by us").unwrap();
            }
            4 => {
                let half = SetAttributes {
                    size_bytes: Some(size / 2),
                    ..SetAttributes::default()
                };
                files.set_attributes(&root, &node, &half).unwrap();
            }
            5 => {
                drop(node);
                files.unlink(at, &name).unwrap();
            }
            6 => {
                for name in node.xattr_names().unwrap() {
                    files.remove_xattr(&node, &name).unwrap();
                }
            }
            7 | 8 => {
                let value = noise(*count, (*count as usize % 40) * 100);
                files
                    .set_xattr(&root, &node, b"user.ours", &value, XattrMode::Set)
                    .unwrap();
            }
            9 => {
                let set = SetAttributes {
                    permissions: Some(0o754),
                    uid: Some(1001),
                    project: Some(1000 + round as u32),
                    ..SetAttributes::default()
                };
                files.set_attributes(&root, &node, &set).unwrap();
            }
            10 => {
                let top = files.root().unwrap();
                let new = format!("moved-by-us-{round}-{count}").into_bytes();
                let from = DirEntryRef {
                    directory: at,
                    name: &name,
                };
                let to = DirEntryRef {
                    directory: &top,
                    name: &new,
                };
                let mode = RenameMode::NoReplace;
                files.rename(&root, from, to, mode).unwrap();
            }
            _ => {}
        }
    }
}
