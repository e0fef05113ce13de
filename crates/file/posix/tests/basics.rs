//! Single operations, each compared with what the reading code finds after a sync.
#![forbid(unsafe_code)]

mod support;

use millpond_posix::live::{
    AclKind, Allocate, Atime, Caller, Errno, FileError, LiveFileSystem, NewFileSystem, NewMode,
    POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT, Place, PosixAcl, PosixAclWho, QuotaMeasure, QuotaOwner,
    RenameMode, Seek, SetAttributes, SetTime, Settings, SpecialFile, WriteAt, XattrMode,
    XattrPlace,
};
use millpond_posix::{Case, FileFlags, FileKind, Symlinks, Timestamp};
use std::sync::atomic::Ordering;
use support::Rig;

fn root() -> Caller {
    Caller::root()
}
fn plain() -> (Rig, std::sync::Arc<LiveFileSystem>) {
    Rig::new(&NewFileSystem::default(), Settings::default())
}
const MODE: NewMode = NewMode {
    mode: 0o666,
    umask: 0o022,
};
fn errno<T: std::fmt::Debug>(result: Result<T, FileError>) -> Errno {
    result.unwrap_err().errno()
}

#[test]
fn a_new_file_system_is_what_openzfs_makes() {
    let (rig, files) = plain();
    let committed = rig.committed();
    let root = committed.root().unwrap();
    let stat = root.stat().unwrap();
    assert_eq!(
        (stat.permissions, stat.links, stat.size_bytes),
        (0o755, 2, 2)
    );
    assert_eq!(stat.flags.bits(), 0x8408_0000_0144);
    assert_eq!(stat.project, Some(0));
    assert_eq!(root.parent_id().unwrap(), root.id());
    let masks: Vec<u32> = root
        .nfs4_acl()
        .unwrap()
        .unwrap()
        .iter()
        .map(|ace| ace.mask)
        .collect();
    assert_eq!(masks, [0x1e_01ff, 0x12_00a9, 0x12_00a9]);
    // Layout 2, header of 8 bytes, 24 bytes of list.
    let bonus = root.object().bonus().unwrap();
    assert_eq!(bonus[..8], [0x5a, 0x50, 0x2f, 0, 2, 4, 0x18, 0]);
    assert_eq!(bonus.len(), 176);
    assert_eq!(root.object().dnode().block_pointers.len(), 1);
    assert_eq!(files.stat(&files.root().unwrap()), stat);
    rig.check_space();
    rig.check_accounting();
}

#[test]
fn files_of_every_kind_are_read_back() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let user = Caller::user(1000, 100);
    let (file, is_new) = files.create(&user, &top, b"file", MODE, true).unwrap();
    assert!(is_new);
    files
        .write(&user, &file, WriteAt::Offset(0), b"hello")
        .unwrap();
    let directory = files
        .make_directory(&user, &top, b"dir", NewMode::exactly(0o755))
        .unwrap();
    files
        .make_symlink(&user, &directory, b"link", b"../file")
        .unwrap();
    files
        .make_special(&user, &directory, b"pipe", SpecialFile::Fifo, MODE)
        .unwrap();
    let device = SpecialFile::BlockDevice(259, 70_000);
    files
        .make_special(&root(), &directory, b"disk", device, MODE)
        .unwrap();
    assert_eq!(
        errno(files.create(&user, &top, b"file", MODE, true)),
        Errno::EEXIST
    );
    let (same, is_new) = files.create(&user, &top, b"file", MODE, false).unwrap();
    assert_eq!((same.id(), is_new), (file.id(), false));
    rig.sync();
    let committed = rig.committed();
    let node = committed.resolve(b"dir/link", Symlinks::Follow).unwrap();
    let mut content = [0; 10];
    assert_eq!(node.read(0, &mut content).unwrap(), 5);
    assert_eq!(&content[..5], b"hello");
    let stat = node.stat().unwrap();
    assert_eq!((stat.uid, stat.gid, stat.permissions), (1000, 100, 0o644));
    assert_eq!(stat.flags.bits(), 0x8408_0000_0004);
    assert_eq!(stat, files.stat(&file));
    let stat = committed
        .resolve(b"dir/disk", Symlinks::Keep)
        .unwrap()
        .stat()
        .unwrap();
    assert_eq!((stat.device, stat.project), (Some((259, 70_000)), None));
    assert_eq!(stat.flags.bits(), 0x408_0000_0004);
    assert_eq!(committed.root().unwrap().stat().unwrap().links, 3);
    let link = files.lookup(&directory, b"link").unwrap();
    assert_eq!(files.link_target(&link).unwrap(), b"../file");
    rig.check_space();
    rig.check_accounting();
}

#[test]
fn a_files_block_grows_as_openzfs_grows_it() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let write = |at, length: usize| {
        files
            .write(&root(), &file, WriteAt::Offset(at), &vec![7; length])
            .unwrap();
        files.stat(&file).block_bytes
    };
    assert_eq!(write(0, 1), 512);
    assert_eq!(write(1, 699), 1024);
    assert_eq!(write(700, 99_300), 100_352);
    assert_eq!(write(100_000, 31_073), 131_072);
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    let mut content = vec![0; 140_000];
    assert_eq!(node.read(0, &mut content).unwrap(), 131_073);
    assert!(content[..131_073].iter().all(|byte| *byte == 7));
    assert_eq!(node.object().block_id_max().0, 1);
    let longer = SetAttributes {
        size_bytes: Some(700),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &longer).unwrap();
    assert_eq!(files.stat(&file).block_bytes, 131_072);
    rig.sync();
    rig.check_space();
}

#[test]
fn an_unlinked_file_lives_until_its_last_handle_is_dropped() {
    let (mut rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files
        .write(&root(), &file, WriteAt::End, &[9; 5000])
        .unwrap();
    let id = file.id();
    files.unlink(&top, b"f").unwrap();
    assert_eq!(errno(files.lookup(&top, b"f")), Errno::ENOENT);
    let mut content = [0; 5000];
    assert_eq!(files.read(&file, 0, &mut content).unwrap(), 5000);
    assert_eq!(content[4999], 9);
    assert_eq!(errno(files.link(&file, &top, b"again")), Errno::ENOENT);
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), [id]);
    drop(file);
    files.reap().unwrap();
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    assert!(rig.set.object(id).is_err());
    rig.check_space();
    rig.check_accounting();

    // What a crash leaves is freed after the next opening.
    let (file, _) = files.create(&root(), &top, b"g", MODE, true).unwrap();
    let id = file.id();
    files.unlink(&top, b"g").unwrap();
    rig.sync();
    std::mem::forget(file);
    let files = rig.reopen(Settings::default());
    assert_eq!(errno(files.node(id)), Errno::ESTALE);
    files.free_unlinked().unwrap();
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    assert!(rig.set.object(id).is_err());
    rig.check_space();
}

#[test]
fn a_file_made_without_a_name_gets_one_or_goes() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let file = files.make_unnamed(&root(), &top, MODE).unwrap();
    let lost = files.make_unnamed(&root(), &top, MODE).unwrap();
    files
        .write(&root(), &file, WriteAt::End, b"content")
        .unwrap();
    rig.sync();
    let mut unlinked = rig.committed().unlinked().unwrap();
    unlinked.sort();
    assert_eq!(unlinked, [file.id(), lost.id()]);
    files.link(&file, &top, b"named").unwrap();
    drop(lost);
    files.reap().unwrap();
    rig.sync();
    let committed = rig.committed();
    assert_eq!(committed.unlinked().unwrap(), []);
    let node = committed.resolve(b"named", Symlinks::Keep).unwrap();
    assert_eq!((node.id(), node.stat().unwrap().links), (file.id(), 1));
    rig.check_space();
}

#[test]
fn renames_move_replace_exchange_and_leave_whiteouts() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let one = files.make_directory(&root(), &top, b"one", MODE).unwrap();
    let two = files.make_directory(&root(), &top, b"two", MODE).unwrap();
    let place = |directory, name| Place { directory, name };
    let rename = |from: Place<'_>, to: Place<'_>, mode| files.rename(&root(), from, to, mode);
    let (a, _) = files.create(&root(), &one, b"a", MODE, true).unwrap();
    let (b, _) = files.create(&root(), &two, b"b", MODE, true).unwrap();
    let (from, to) = (place(&one, b"a"), place(&two, b"b"));
    assert_eq!(
        errno(rename(from, to, RenameMode::NoReplace)),
        Errno::EEXIST
    );
    rename(from, to, RenameMode::Exchange).unwrap();
    assert_eq!(files.lookup(&one, b"a").unwrap().id(), b.id());
    assert_eq!(files.lookup(&two, b"b").unwrap().id(), a.id());
    let b_id = b.id();
    drop(b);
    rename(to, from, RenameMode::Whiteout).unwrap();
    assert_eq!(files.lookup(&one, b"a").unwrap().id(), a.id());
    let white = files.lookup(&two, b"b").unwrap();
    assert_eq!(white.kind(), FileKind::CharacterDevice);
    assert_eq!(files.stat(&white).device, Some((0, 0)));
    // A directory never comes below itself.
    let deep = files.make_directory(&root(), &one, b"deep", MODE).unwrap();
    let result = rename(place(&top, b"one"), place(&deep, b"x"), RenameMode::Replace);
    assert_eq!(errno(result), Errno::EINVAL);
    let result = rename(place(&top, b"one"), place(&two, b"b"), RenameMode::Replace);
    assert_eq!(errno(result), Errno::ENOTDIR);
    rename(
        place(&one, b"deep"),
        place(&two, b"deep"),
        RenameMode::Replace,
    )
    .unwrap();
    let result = rename(
        place(&top, b"one"),
        place(&top, b"two"),
        RenameMode::Replace,
    );
    assert_eq!(errno(result), Errno::ENOTEMPTY);
    assert_eq!((files.stat(&one).links, files.stat(&two).links), (2, 3));
    rig.sync();
    let committed = rig.committed();
    assert!(rig.set.object(b_id).is_err());
    assert_eq!(committed.path_of(deep.id()).unwrap().unwrap(), b"two/deep");
    let stat = committed
        .resolve(b"one/a", Symlinks::Keep)
        .unwrap()
        .stat()
        .unwrap();
    assert_eq!(stat, files.stat(&a));
    rig.check_space();
    rig.check_accounting();
}

#[test]
fn holes_are_punched_found_and_cut() {
    let settings = Settings {
        record_bytes: 4096,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files
        .write(&root(), &file, WriteAt::Offset(0), &vec![5; 40_960])
        .unwrap();
    files
        .allocate(&file, Allocate::PunchHole, 6000, 10_000)
        .unwrap();
    for _ in 0..2 {
        assert_eq!(files.seek(&file, Seek::Hole, 0).unwrap(), 8192);
        assert_eq!(files.seek(&file, Seek::Data, 8192).unwrap(), 12_288);
        assert_eq!(files.seek(&file, Seek::Hole, 12_288).unwrap(), 40_960);
        assert_eq!(errno(files.seek(&file, Seek::Data, 40_960)), Errno::ENXIO);
        rig.sync();
    }
    let zero = Allocate::ZeroRange { keeps_size: false };
    files.allocate(&file, zero, 40_000, 10_000).unwrap();
    assert_eq!(file.size_bytes(), 50_000);
    let reserve = Allocate::Reserve { keeps_size: true };
    files.allocate(&file, reserve, 0, 1 << 20).unwrap();
    rig.port.available_bytes.store(1 << 19, Ordering::Relaxed);
    assert_eq!(
        errno(files.allocate(&file, reserve, 0, 1 << 20)),
        Errno::ENOSPC
    );
    rig.port.available_bytes.store(1 << 40, Ordering::Relaxed);
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    let mut content = vec![1; 50_000];
    assert_eq!(node.read(0, &mut content).unwrap(), 50_000);
    for (at, byte) in content.iter().enumerate() {
        let is_zero = (6000..16_000).contains(&at) || at >= 40_000;
        assert_eq!(*byte, if is_zero { 0 } else { 5 }, "byte {at}");
    }
    let (copy, _) = files.create(&root(), &top, b"copy", MODE, true).unwrap();
    let copied = files
        .copy_range(&root(), (&file, 5000), (&copy, 10), 1 << 20)
        .unwrap();
    assert_eq!(copied, 45_000);
    let mut copied = vec![1; 45_010];
    assert_eq!(files.read(&copy, 0, &mut copied).unwrap(), 45_010);
    assert_eq!(copied[10..], content[5000..]);
    rig.sync();
    rig.check_space();
}

#[test]
fn extended_attributes_are_packed_as_long_as_they_fit() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let set = |name: &[u8], length: usize, mode| {
        files.set_xattr(&root(), &file, name, &vec![b'x'; length], mode)
    };
    set(b"user.small", 10, XattrMode::Set).unwrap();
    assert_eq!(
        errno(set(b"user.small", 1, XattrMode::Create)),
        Errno::EEXIST
    );
    assert_eq!(
        errno(set(b"user.none", 1, XattrMode::Replace)),
        Errno::ENODATA
    );
    assert_eq!(
        errno(set(b"user.large", 65_537, XattrMode::Set)),
        Errno::E2BIG
    );
    assert_eq!(errno(set(b"user.user.x", 1, XattrMode::Set)), Errno::EINVAL);
    assert_eq!(errno(set(b"other.x", 1, XattrMode::Set)), Errno::EOPNOTSUPP);
    set(b"user.spilled", 20_000, XattrMode::Set).unwrap();
    set(b"user.hidden", 40_000, XattrMode::Set).unwrap();
    set(b"security.x", 0, XattrMode::Set).unwrap();
    let check = |rig: &Rig, lengths: &[(&[u8], usize)]| {
        rig.sync();
        let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
        let names: Vec<Vec<u8>> = lengths.iter().map(|(name, _)| name.to_vec()).collect();
        assert_eq!(node.xattr_names().unwrap(), names);
        assert_eq!(files.xattr_names(&file).unwrap(), names);
        for (name, length) in lengths {
            assert_eq!(node.xattr(name).unwrap().unwrap(), vec![b'x'; *length]);
            assert_eq!(files.xattr(&file, name).unwrap(), vec![b'x'; *length]);
        }
        rig.check_space();
        rig.check_accounting();
    };
    check(
        &rig,
        &[
            (b"security.x", 0),
            (b"user.hidden", 40_000),
            (b"user.small", 10),
            (b"user.spilled", 20_000),
        ],
    );
    // From one place to the other, each way.
    set(b"user.hidden", 100, XattrMode::Replace).unwrap();
    set(b"user.small", 33_000, XattrMode::Replace).unwrap();
    files.remove_xattr(&file, b"user.spilled").unwrap();
    assert_eq!(
        errno(files.remove_xattr(&file, b"user.spilled")),
        Errno::ENODATA
    );
    check(
        &rig,
        &[
            (b"security.x", 0),
            (b"user.hidden", 100),
            (b"user.small", 33_000),
        ],
    );
    drop(file);
    files.unlink(&top, b"f").unwrap();
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    // The root directory and nothing else counts.
    rig.check_space();
    rig.check_accounting();
    assert_eq!(
        files
            .used(QuotaOwner::User, QuotaMeasure::Objects, 0)
            .unwrap(),
        1
    );
}

#[test]
fn extended_attributes_in_a_directory_are_those_of_openzfs() {
    let settings = Settings {
        xattr: XattrPlace::Directory,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let user = Caller::user(5, 6);
    let (file, _) = files.create(&user, &top, b"f", MODE, true).unwrap();
    files
        .set_xattr(&user, &file, b"user.a", b"value", XattrMode::Set)
        .unwrap();
    let chown = SetAttributes {
        uid: Some(77),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &chown).unwrap();
    rig.sync();
    let committed = rig.committed();
    let node = committed.resolve(b"f", Symlinks::Keep).unwrap();
    assert_eq!(node.xattr(b"user.a").unwrap().unwrap(), b"value");
    let hidden: Vec<_> = rig
        .set
        .committed()
        .unwrap()
        .objects()
        .filter_map(|object| committed.node(object.unwrap().id()).ok())
        .filter(|node| node.is_xattr_directory().unwrap())
        .map(|node| node.stat().unwrap())
        .collect();
    let told: Vec<_> = hidden
        .iter()
        .map(|stat| {
            (
                stat.kind,
                stat.permissions,
                stat.flags.bits(),
                stat.uid,
                stat.gid,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (FileKind::Directory, 0o1777, 0x8408_0000_0145, 77, 6),
            (FileKind::Regular, 0o644, 0x8408_0000_0005, 77, 6)
        ]
    );
    assert_eq!(
        errno(files.node_of_generation(hidden[0].id, hidden[0].generation)),
        Errno::ESTALE
    );
    rig.check_accounting();
    drop((file, node));
    files.unlink(&top, b"f").unwrap();
    rig.sync();
    rig.check_space();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    assert_eq!(
        files
            .used(QuotaOwner::Group, QuotaMeasure::Objects, 6)
            .unwrap(),
        0
    );
}

#[test]
fn posix_lists_show_in_the_mode_and_are_inherited() {
    let settings = Settings {
        acl_kind: AclKind::Posix,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let directory = files
        .make_directory(&root(), &top, b"d", NewMode::exactly(0o755))
        .unwrap();
    let acl = PosixAcl::new(vec![
        (PosixAclWho::Owner, 7),
        (PosixAclWho::User(1000), 7),
        (PosixAclWho::Group, 5),
        (PosixAclWho::Mask, 7),
        (PosixAclWho::Others, 0),
    ])
    .unwrap();
    let set =
        |node, name, value: &[u8]| files.set_xattr(&root(), node, name, value, XattrMode::Set);
    set(&directory, POSIX_ACL_DEFAULT, &acl.encode()).unwrap();
    // The default list takes the place of the umask.
    let new = NewMode {
        mode: 0o666,
        umask: 0o077,
    };
    let (file, _) = files.create(&root(), &directory, b"f", new, true).unwrap();
    assert_eq!(files.stat(&file).permissions, 0o660);
    let access = PosixAcl::decode(&files.xattr(&file, POSIX_ACL_ACCESS).unwrap());
    assert_eq!(access.unwrap().unwrap(), acl.for_new_file(0o666));
    let below = files
        .make_directory(&root(), &directory, b"below", NewMode::exactly(0o777))
        .unwrap();
    assert_eq!(
        files.xattr(&below, POSIX_ACL_DEFAULT).unwrap(),
        acl.encode()
    );
    assert_eq!(
        errno(set(&file, POSIX_ACL_DEFAULT, &acl.encode())),
        Errno::EACCES
    );
    let chmod = SetAttributes {
        permissions: Some(0o640),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &chmod).unwrap();
    let access = PosixAcl::decode(&files.xattr(&file, POSIX_ACL_ACCESS).unwrap());
    assert_eq!(access.unwrap().unwrap().mode(), 0o640);
    // A list that is the mode is not stored.
    let plain = PosixAcl::new(vec![
        (PosixAclWho::Owner, 6),
        (PosixAclWho::Group, 4),
        (PosixAclWho::Others, 4),
    ]);
    set(&file, POSIX_ACL_ACCESS, &plain.unwrap().encode()).unwrap();
    assert_eq!(errno(files.xattr(&file, POSIX_ACL_ACCESS)), Errno::ENODATA);
    assert_eq!(files.stat(&file).permissions, 0o644);
    assert_eq!(
        errno(set(&file, POSIX_ACL_ACCESS, b"nonsense")),
        Errno::EINVAL
    );
    rig.sync();
    let node = rig.committed().resolve(b"d/f", Symlinks::Keep).unwrap();
    let masks: Vec<u32> = node
        .nfs4_acl()
        .unwrap()
        .unwrap()
        .iter()
        .map(|ace| ace.mask)
        .collect();
    assert_eq!(masks, [0x1e_019f, 0x12_0089, 0x12_0089]);
    rig.check_space();
}

#[test]
fn names_are_found_as_the_file_system_compares_them() {
    let new = NewFileSystem {
        normalisation: 0x10,
        case: Case::Insensitive,
        ..NewFileSystem::default()
    };
    let (rig, files) = Rig::new(&new, Settings::default());
    let top = files.root().unwrap();
    let (file, _) = files
        .create(&root(), &top, "tim-Ä".as_bytes(), MODE, true)
        .unwrap();
    let decomposed = "TIM-a\u{308}".as_bytes();
    assert_eq!(files.lookup(&top, decomposed).unwrap().id(), file.id());
    assert_eq!(
        errno(files.create(&root(), &top, decomposed, MODE, true)),
        Errno::EEXIST
    );
    assert_eq!(
        errno(files.create(&root(), &top, b"\xff", MODE, true)),
        Errno::EILSEQ
    );
    let place = |name| Place {
        directory: &top,
        name,
    };
    let (from, to) = (place(decomposed), place("Tim-Ä".as_bytes()));
    files
        .rename(&root(), from, to, RenameMode::Replace)
        .unwrap();
    let listed = files.list(&top, 0, 10).unwrap();
    assert_eq!(listed[2].entry.name, "Tim-Ä".as_bytes());
    assert_eq!(listed.len(), 3);
    files.unlink(&top, "TIM-Ä".as_bytes()).unwrap();
    assert_eq!(files.list(&top, 0, 10).unwrap().len(), 2);
    rig.sync();
    assert_eq!(
        rig.committed().root().unwrap().stat().unwrap().size_bytes,
        2
    );
}

#[test]
fn mixed_case_finds_exact_names_only() {
    let new = NewFileSystem {
        case: Case::Mixed,
        ..NewFileSystem::default()
    };
    let (rig, files) = Rig::new(&new, Settings::default());
    let top = files.root().unwrap();
    let (one, _) = files.create(&root(), &top, b"tim", MODE, true).unwrap();
    let (two, _) = files.create(&root(), &top, b"TIM", MODE, true).unwrap();
    assert_eq!(files.lookup(&top, b"tim").unwrap().id(), one.id());
    assert_eq!(files.lookup(&top, b"TIM").unwrap().id(), two.id());
    assert_eq!(errno(files.lookup(&top, b"Tim")), Errno::ENOENT);
    rig.sync();
    let found = rig.committed().resolve(b"TIM", Symlinks::Keep).unwrap();
    assert_eq!(found.id(), two.id());
}

#[test]
fn long_names_are_made_only_where_they_are_allowed() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let long = vec![b'n'; 256];
    assert_eq!(
        errno(files.create(&root(), &top, &long, MODE, true)),
        Errno::ENAMETOOLONG
    );
    files.set_settings(Settings {
        allows_long_names: true,
        ..Settings::default()
    });
    let longest = vec![b'n'; 1023];
    files.create(&root(), &top, &longest, MODE, true).unwrap();
    assert_eq!(rig.port.long_names.load(Ordering::Relaxed), 1);
    files.set_settings(Settings::default());
    files.lookup(&top, &longest).unwrap();
    rig.sync();
    let found = rig.committed().resolve(&longest, Symlinks::Keep);
    assert!(found.is_ok());
    files.unlink(&top, &longest).unwrap();
    rig.sync();
    rig.check_space();
}

#[test]
fn flags_forbid_what_they_are_for() {
    let (_rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files.write(&root(), &file, WriteAt::End, b"123").unwrap();
    let flags = |set_flags, clear_flags| SetAttributes {
        set_flags,
        clear_flags,
        ..SetAttributes::default()
    };
    let none = FileFlags::empty();
    let immutable = FileFlags::IMMUTABLE;
    let user = Caller::user(1, 1);
    let set = flags(immutable, none);
    assert_eq!(
        errno(files.set_attributes(&user, &file, &set)),
        Errno::EPERM
    );
    files.set_attributes(&root(), &file, &set).unwrap();
    let write = |at| files.write(&root(), &file, at, b"4");
    assert_eq!(errno(write(WriteAt::End)), Errno::EPERM);
    assert_eq!(errno(files.unlink(&top, b"f")), Errno::EPERM);
    assert_eq!(errno(files.link(&file, &top, b"g")), Errno::EPERM);
    let chmod = SetAttributes {
        permissions: Some(0o600),
        ..SetAttributes::default()
    };
    assert_eq!(
        errno(files.set_attributes(&root(), &file, &chmod)),
        Errno::EPERM
    );
    let append = flags(FileFlags::APPENDONLY, immutable);
    files.set_attributes(&root(), &file, &append).unwrap();
    assert_eq!(errno(write(WriteAt::Offset(0))), Errno::EPERM);
    assert_eq!(write(WriteAt::End).unwrap(), 3);
    let cut = SetAttributes {
        size_bytes: Some(0),
        ..SetAttributes::default()
    };
    assert_eq!(
        errno(files.set_attributes(&root(), &file, &cut)),
        Errno::EPERM
    );
    let clear = flags(none, FileFlags::APPENDONLY);
    files.set_attributes(&root(), &file, &clear).unwrap();
    files.set_attributes(&root(), &file, &cut).unwrap();
    let opaque = flags(FileFlags::OPAQUE, none);
    assert_eq!(
        errno(files.set_attributes(&root(), &file, &opaque)),
        Errno::EOPNOTSUPP
    );
}

#[test]
fn set_group_directories_hand_their_group_down() {
    let (_rig, files) = plain();
    let top = files.root().unwrap();
    let shared = files
        .make_directory(&root(), &top, b"s", NewMode::exactly(0o2777))
        .unwrap();
    let group = SetAttributes {
        gid: Some(50),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &shared, &group).unwrap();
    assert_eq!(files.stat(&shared).permissions, 0o2777);
    let user = Caller::user(1000, 1000);
    let all = NewMode::exactly(0o6755);
    let (file, _) = files.create(&user, &shared, b"f", all, true).unwrap();
    let stat = files.stat(&file);
    // Set-group is lost: the user is not of the group.
    assert_eq!((stat.gid, stat.permissions), (50, 0o4755));
    let below = files
        .make_directory(&user, &shared, b"d", NewMode::exactly(0o700))
        .unwrap();
    let stat = files.stat(&below);
    assert_eq!((stat.gid, stat.permissions), (50, 0o2700));
    // Writing by others takes the set-user bit.
    files.write(&root(), &file, WriteAt::End, b"x").unwrap();
    assert_eq!(files.stat(&file).permissions, 0o4755);
    files.write(&user, &file, WriteAt::End, b"x").unwrap();
    assert_eq!(files.stat(&file).permissions, 0o755);
}

#[test]
fn times_follow_posix() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let born = files.stat(&file);
    assert!(born.atime == born.mtime && born.mtime == born.ctime && born.ctime == born.crtime);
    files.write(&root(), &file, WriteAt::End, b"x").unwrap();
    let written = files.stat(&file);
    assert!(written.mtime > born.mtime && written.mtime == written.ctime);
    assert_eq!((written.atime, written.crtime), (born.atime, born.crtime));
    files.touch_atime(&file);
    let read = files.stat(&file);
    assert!(read.atime > written.mtime);
    assert_eq!((read.mtime, read.ctime), (written.mtime, written.ctime));
    // Newer than the last change already.
    files.touch_atime(&file);
    assert_eq!(files.stat(&file), read);
    files.set_settings(Settings {
        atime: Atime::Always,
        ..Settings::default()
    });
    files.touch_atime(&file);
    assert!(files.stat(&file).atime > read.atime);
    let past = Timestamp {
        seconds: -5,
        nanoseconds: 7,
    };
    let set = SetAttributes {
        mtime: Some(SetTime::To(past)),
        atime: Some(SetTime::Now),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &set).unwrap();
    let stat = files.stat(&file);
    assert_eq!((stat.mtime, stat.atime), (past, stat.ctime));
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    assert_eq!(node.stat().unwrap(), files.stat(&file));
}

#[test]
fn quotas_hold_from_the_group_in_which_they_are_reached() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let user = Caller::user(9, 9);
    let (file, _) = files.create(&user, &top, b"f", MODE, true).unwrap();
    let write = || files.write(&user, &file, WriteAt::Offset(0), &vec![3; 200_000]);
    files
        .set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 9, 100_000)
        .unwrap();
    write().unwrap();
    rig.sync();
    assert_eq!(errno(write()), Errno::EDQUOT);
    assert_eq!(
        errno(files.create(&user, &top, b"g", MODE, true)),
        Errno::EDQUOT
    );
    let chown = SetAttributes {
        uid: Some(9),
        ..SetAttributes::default()
    };
    assert_eq!(
        errno(files.set_attributes(&root(), &top, &chown)),
        Errno::EDQUOT
    );
    files
        .set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 9, 0)
        .unwrap();
    write().unwrap();
    files
        .set_default_quota(QuotaOwner::Group, QuotaMeasure::Objects, 1)
        .unwrap();
    assert_eq!(
        errno(files.create(&user, &top, b"g", MODE, true)),
        Errno::EDQUOT
    );
    files
        .set_quota(QuotaOwner::Group, QuotaMeasure::Objects, 9, 2)
        .unwrap();
    files.create(&user, &top, b"g", MODE, true).unwrap();
    rig.sync();
    assert_eq!(
        errno(files.create(&user, &top, b"h", MODE, true)),
        Errno::EDQUOT
    );
    rig.check_accounting();
    // Quotas are there after opening again.
    let files = rig.open(Settings::default());
    let quota = files
        .quota(QuotaOwner::Group, QuotaMeasure::Objects, 1234)
        .unwrap();
    assert_eq!(quota, Some(1));
    rig.check_space();
}

#[test]
fn projects_are_inherited_and_kept_apart() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let directory = files.make_directory(&root(), &top, b"p", MODE).unwrap();
    let set = SetAttributes {
        project: Some(42),
        set_flags: FileFlags::PROJECT_INHERIT,
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &directory, &set).unwrap();
    let (file, _) = files.create(&root(), &directory, b"f", MODE, true).unwrap();
    assert_eq!(files.stat(&file).project, Some(42));
    let (other, _) = files.create(&root(), &top, b"other", MODE, true).unwrap();
    assert_eq!(errno(files.link(&other, &directory, b"o")), Errno::EXDEV);
    let from = Place {
        directory: &top,
        name: b"other",
    };
    let to = Place {
        directory: &directory,
        name: b"o",
    };
    assert_eq!(
        errno(files.rename(&root(), from, to, RenameMode::Replace)),
        Errno::EXDEV
    );
    files
        .set_quota(QuotaOwner::Project, QuotaMeasure::Objects, 42, 5)
        .unwrap();
    rig.sync();
    let full = files.stat_file_system(&directory).unwrap();
    assert_eq!((full.files, full.files_free), (5, 3));
    rig.check_accounting();
}

#[test]
fn a_file_without_a_project_gets_one_at_its_place() {
    let settings = Settings {
        has_projects: false,
        ..Settings::default()
    };
    let new = NewFileSystem {
        has_projects: false,
        ..NewFileSystem::default()
    };
    let (rig, files) = Rig::new(&new, settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files
        .set_xattr(&root(), &file, b"user.a", b"b", XattrMode::Set)
        .unwrap();
    assert_eq!(
        files.stat(&file).flags.bits(),
        0x408_0000_0004 | 0x8_0000_0000
    );
    assert_eq!(files.stat(&file).project, None);
    let set = SetAttributes {
        project: Some(3),
        ..SetAttributes::default()
    };
    assert_eq!(
        errno(files.set_attributes(&root(), &file, &set)),
        Errno::EOPNOTSUPP
    );
    files.set_settings(Settings::default());
    files.set_attributes(&root(), &file, &set).unwrap();
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    assert_eq!(node.stat().unwrap().project, Some(3));
    assert_eq!(node.xattr(b"user.a").unwrap().unwrap(), b"b");
    let bonus = node.object().bonus().unwrap();
    assert_eq!(
        bonus[8 + 8 + 128],
        3,
        "16 bytes of header, the project at 128"
    );
    rig.check_accounting();
}

#[test]
fn a_listing_goes_on_from_its_cookies_while_the_directory_changes() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let name = |number: u32| format!("file-{number:04}").into_bytes();
    for number in 0..300 {
        files
            .create(&root(), &top, &name(number), MODE, true)
            .unwrap();
    }
    let mut seen = vec![];
    let mut cookie = 0;
    loop {
        let part = files.list(&top, cookie, 7).unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.cookie;
        seen.extend(part.into_iter().map(|listed| listed.entry.name));
        // Becomes a fat table on the way; what comes and goes does not disturb.
        let extra = format!("extra-{}", seen.len()).into_bytes();
        if seen.len() < 1800 {
            files.create(&root(), &top, &extra, MODE, true).unwrap();
            if seen.len() % 3 == 0 {
                files.unlink(&top, &extra).unwrap();
            }
        }
    }
    assert_eq!(&seen[..2], [b".".to_vec(), b"..".to_vec()]);
    seen.sort();
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]));
    for number in 0..300 {
        assert!(seen.binary_search(&name(number)).is_ok());
    }
    rig.sync();
    rig.check_space();
}

#[test]
fn a_read_only_file_system_changes_nothing() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files.set_settings(Settings {
        is_read_only: true,
        ..Settings::default()
    });
    assert_eq!(
        errno(files.create(&root(), &top, b"g", MODE, true)),
        Errno::EROFS
    );
    assert_eq!(errno(files.unlink(&top, b"f")), Errno::EROFS);
    assert_eq!(
        errno(files.write(&root(), &file, WriteAt::End, b"x")),
        Errno::EROFS
    );
    files.touch_atime(&file);
    rig.port.available_bytes.store(0, Ordering::Relaxed);
    files.set_settings(Settings::default());
    assert_eq!(
        errno(files.create(&root(), &top, b"g", MODE, true)),
        Errno::ENOSPC
    );
    // A full pool still lets files be removed.
    drop(file);
    files.unlink(&top, b"f").unwrap();
    rig.sync();
    rig.check_space();
}

#[test]
fn a_file_of_very_many_blocks_goes_in_several_groups_and_whole() {
    let settings = Settings {
        record_bytes: 512,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    // 80000 blocks, and a few far away.
    files
        .write(&root(), &file, WriteAt::Offset(0), &vec![1; 40_960_000])
        .unwrap();
    for distance in 31..38 {
        files
            .write(&root(), &file, WriteAt::Offset(1 << distance), b"far")
            .unwrap();
    }
    rig.sync();
    let begun = rig.port.begun.load(Ordering::Relaxed);
    let cut = SetAttributes {
        size_bytes: Some(1000),
        ..SetAttributes::default()
    };
    files.set_attributes(&root(), &file, &cut).unwrap();
    assert!(rig.port.begun.load(Ordering::Relaxed) >= begun + 3);
    rig.sync();
    rig.check_space();
    assert!(rig.sink.living().len() < 100);
    let mut content = [0; 2000];
    assert_eq!(files.read(&file, 0, &mut content).unwrap(), 1000);
    assert!(content[..1000].iter().all(|byte| *byte == 1));

    files
        .write(&root(), &file, WriteAt::Offset(0), &vec![1; 40_960_000])
        .unwrap();
    rig.sync();
    drop(file);
    let begun = rig.port.begun.load(Ordering::Relaxed);
    files.unlink(&top, b"f").unwrap();
    assert!(rig.port.begun.load(Ordering::Relaxed) >= begun + 4);
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    rig.check_space();
    assert!(rig.sink.living().len() < 100);
}
