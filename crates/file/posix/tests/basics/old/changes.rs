//! Changes of old files, in their own form and after an upgrade.

use super::*;
use millpond_ondisk::intent_log::{LogAcl, LogRecord, LogRecordBody};
use millpond_ondisk::{Txg, WordArray};

/// Changes every file. Returns the attributes afterwards, as the live file system sees them.
fn change_everything(files: &FileSystem) -> BTreeMap<Vec<u8>, Stat> {
    let user = Caller::user(1000, 100);
    let top = files.root().unwrap();
    let node = |name: &[u8]| at(files, name);
    let set = |name: &[u8], set: SetAttributes| {
        files.set_attributes(&root(), &node(name), &set).unwrap();
    };
    let none = SetAttributes::default;
    files
        .write(&user, &node(b"plain"), WriteAt::Offset(3), &[b'x'; 5000])
        .unwrap();
    set(
        b"cut",
        SetAttributes {
            size_bytes: Some(4),
            ..none()
        },
    );
    files.unlink(&top, b"gone").unwrap();
    files.unlink(&top, b"listed-gone").unwrap();
    files.unlink(&top, b"tagged-gone").unwrap();
    let dir = node(b"dir");
    let from = DirEntryRef {
        directory: &top,
        name: b"moved",
    };
    let to = DirEntryRef {
        directory: &dir,
        name: b"moved",
    };
    files.rename(&user, from, to, RenameMode::Replace).unwrap();
    let time = Timestamp {
        seconds: 12,
        nanoseconds: 34,
    };
    set(
        b"timed",
        SetAttributes {
            mtime: Some(SetTime::To(time)),
            ..none()
        },
    );
    for name in [b"owned".as_slice(), b"short", b"long", b"pipe", b"tagged"] {
        set(
            name,
            SetAttributes {
                uid: Some(3000),
                gid: Some(300),
                ..none()
            },
        );
    }
    set(
        b"edge",
        SetAttributes {
            atime: Some(SetTime::To(time)),
            ..none()
        },
    );
    files
        .set_xattr(
            &root(),
            &node(b"far"),
            b"trusted.t",
            b"of a link",
            XattrMode::Set,
        )
        .unwrap();
    set(
        b"listed",
        SetAttributes {
            atime: Some(SetTime::To(time)),
            ..none()
        },
    );
    set(
        b"listed-mode",
        SetAttributes {
            permissions: Some(0o604),
            ..none()
        },
    );
    let project = SetAttributes {
        project: Some(77),
        ..none()
    };
    if files.version() == VERSION {
        set(b"stamped", project);
    } else {
        let refused = files.set_attributes(&root(), &node(b"stamped"), &project);
        assert_eq!(errno(refused), Errno::EOPNOTSUPP);
        let mode = SetAttributes {
            permissions: Some(STAMPED | 0o1000),
            ..none()
        };
        set(b"stamped", mode);
    }
    let tagged = node(b"tagged");
    files
        .set_xattr(&user, &tagged, b"user.new", b"packed", XattrMode::Set)
        .unwrap();
    files
        .set_xattr(&user, &tagged, b"user.a", b"packed now", XattrMode::Replace)
        .unwrap();
    files.remove_xattr(&tagged, b"user.long").unwrap();
    set(
        b"device",
        SetAttributes {
            permissions: Some(0o640),
            ..none()
        },
    );
    files.remove_directory(&top, b"empty").unwrap();
    files.create(&user, &dir, b"new", MODE, true).unwrap();
    files.make_symlink(&user, &top, b"new-link", b"x").unwrap();
    files.link(&node(b"plain"), &dir, b"again").unwrap();
    let mut all = BTreeMap::new();
    for line in top.list(0, 1000).unwrap() {
        let name = line.entry.name;
        if name != b"." && name != b".." {
            all.insert(name.clone(), node(&name).stat().unwrap());
        }
    }
    all
}

#[test]
fn old_files_of_every_kind_can_be_changed_after_an_upgrade() {
    for version in 1..VERSION {
        change_and_compare(version, true);
    }
}

#[test]
fn old_files_of_every_kind_can_be_changed_without_an_upgrade() {
    for version in 1..VERSION {
        change_and_compare(version, false);
    }
}

fn change_and_compare(version: u64, is_raised: bool) {
    let mut rig = aged(version);
    let before = everything(&rig.committed());
    let files = rig.reopen(Settings::default());
    if is_raised {
        files.raise_version(VERSION).unwrap();
    }
    let all = change_everything(&files);
    rig.sync();
    drop(files);
    let files = rig.reopen(Settings::default());
    let committed = rig.committed();
    for (name, stat) in &all {
        let shown = String::from_utf8_lossy(name);
        let node = committed.resolve(name, Symlinks::Keep).unwrap();
        let mut stored = node.stat().unwrap();
        assert_eq!(stored, at(&files, name).stat().unwrap(), "{shown}");
        // Space usage is as of the last sync.
        stored.sectors = stat.sectors;
        assert_eq!(stored, *stat, "{shown}");
        let is_link = ["short", "long", "edge", "far"].contains(&&*shown);
        assert_eq!(is_old(&rig, name), is_link || !is_raised, "{shown}");
        if let Some((old, content)) = before.get(&format!("/{shown}")) {
            assert_eq!(stored.generation, old.generation);
            assert_eq!(stored.crtime, old.crtime);
            if is_link {
                assert_eq!(&node.link_target().unwrap().unwrap(), content);
            }
            let may_have_one = matches!(stored.kind, FileKind::Regular | FileKind::Directory);
            if is_raised && may_have_one {
                assert!(stored.flags.contains(FileFlags::PROJECT_ID), "{shown}");
                let wanted = if shown == "stamped" { 77 } else { 0 };
                assert_eq!(stored.project, Some(wanted), "{shown}");
            } else {
                assert_eq!(stored.project, None, "{shown}");
            }
        }
    }
    let node = |name: &[u8]| committed.resolve(name, Symlinks::Keep).unwrap();
    assert_eq!(node(b"short").stat().unwrap().uid, 3000);
    assert_eq!(
        node(b"far").xattr(b"trusted.t").unwrap().unwrap(),
        b"of a link"
    );
    assert_eq!(node(b"listed").nfs4_acl().unwrap().unwrap(), long_list());
    assert_eq!(node(b"listed-mode").nfs4_acl().unwrap().unwrap().len(), 5);
    assert_eq!(node(b"device").stat().unwrap().device, Some((5, 1)));
    let registry = millpond_sa::SaRegistry::open(committed.committed().unwrap()).unwrap();
    let stamped = registry
        .attributes(node(b"stamped").object().committed().unwrap())
        .unwrap();
    assert_eq!(stamped.scanstamp().unwrap(), Some(STAMP));
    let tagged = node(b"tagged");
    let names = [b"user.a".to_vec(), b"user.new".to_vec()];
    assert_eq!(tagged.xattr_names().unwrap(), names);
    assert_eq!(tagged.xattr(b"user.a").unwrap().unwrap(), b"packed now");
    assert!(committed.resolve(b"dir/moved", Symlinks::Keep).is_ok());
    // The ACLs moved into attributes, or were freed with their files and when a mode replaced them.
    assert_eq!(lists(&rig), usize::from(!is_raised));
    check_space(&rig);
    check_consistency(&rig.set.committed().unwrap());
    drop(files);
}

#[test]
fn a_forged_acl_object_in_a_znode_is_not_freed() {
    let mut rig = aged(4);
    let files = rig.reopen(Settings::default());
    files.raise_version(VERSION).unwrap();
    let victim = at(&files, b"plain").id();
    let file = at(&files, b"owned");
    {
        let tx = rig.groups.begin(1 << 20).unwrap();
        let live = rig.set.object(file.id()).unwrap();
        let mut bonus = live.bonus().to_vec();
        bonus[176..184].copy_from_slice(&victim.0.to_le_bytes());
        live.set_bonus(&tx, bonus).unwrap();
    }
    let set = SetAttributes {
        permissions: Some(0o600),
        ..SetAttributes::default()
    };
    assert_eq!(
        errno(files.set_attributes(&root(), &file, &set)),
        Errno::EIO
    );
    let id = file.id();
    drop(file);
    // It cannot be removed, and the attempt changes nothing.
    files.unlink(&files.root().unwrap(), b"owned").unwrap_err();
    assert_eq!(at(&files, b"owned").id(), id);
    rig.sync();
    assert!(rig.committed().node(victim).is_ok());
    check_space(&rig);
}

/// Gives a file this list. It comes from a log record, as other systems write it.
fn give_list(files: &FileSystem, node: &Node, list: &[Ace]) {
    let bytes = encode_acl(list).unwrap();
    let acl = LogAcl {
        entry_count: list.len() as u64,
        flags: 0,
        entries: &bytes,
        fuids: WordArray::new(&[], Endian::Little),
        domains: vec![],
    };
    let object = node.id();
    let record = LogRecord::new(Txg(1), LogRecordBody::SetAcl { object, acl });
    files.begin_replay();
    files
        .replay_record(&record, Endian::Little, [0; 24], &mut |_, _, _| {
            panic!("a list has no block")
        })
        .unwrap();
    files.end_replay();
}

#[test]
fn inherited_lists_of_old_versions_have_their_own_objects() {
    let inherit = AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT;
    let mut inherited = long_list();
    inherited
        .iter_mut()
        .for_each(|entry| entry.flags |= inherit);
    for version in 1..VERSION {
        let new = NewFileSystem {
            version,
            ..NewFileSystem::default()
        };
        let (mut rig, files) = Rig::new(&new, Settings::default());
        let top = files.root().unwrap();
        let directory = |at: &Node, name: &[u8]| {
            let mode = NewMode::exactly(0o755);
            files.make_directory(&root(), at, name, mode).unwrap()
        };
        let dir = directory(&top, b"dir");
        give_list(&files, &dir, &inherited);
        let file = files.create(&root(), &dir, b"file", MODE, true).unwrap().0;
        directory(&dir, b"below");
        rig.sync();
        assert_eq!(lists(&rig), 3);
        let stored = |rig: &Rig, path: &[u8]| {
            let node = rig.committed().resolve(path, Symlinks::Keep).unwrap();
            node.nfs4_acl().unwrap().unwrap()
        };
        assert_eq!(stored(&rig, b"dir"), inherited);
        assert_eq!(stored(&rig, b"dir/file").len(), 33);
        assert_eq!(stored(&rig, b"dir/below").len(), 33);
        check_space(&rig);
        let mode = SetAttributes {
            permissions: Some(0o600),
            ..SetAttributes::default()
        };
        files.set_attributes(&root(), &file, &mode).unwrap();
        files.remove_directory(&dir, b"below").unwrap();
        rig.sync();
        assert_eq!(lists(&rig), 1);
        assert_eq!(stored(&rig, b"dir/file").len(), 3);
        drop((top, dir, file, files));
        let files = rig.reopen(Settings::default());
        assert_eq!(at(&files, b"dir").nfs4_acl().unwrap().unwrap(), inherited);
        files.raise_version(VERSION).unwrap();
        let dir = at(&files, b"dir");
        files.create(&root(), &dir, b"new", MODE, true).unwrap();
        rig.sync();
        assert_eq!(lists(&rig), 0);
        assert_eq!(stored(&rig, b"dir"), inherited);
        check_space(&rig);
        check_consistency(&rig.set.committed().unwrap());
    }
}
