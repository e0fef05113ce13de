//! Extended attributes and ACLs.

use super::{MODE, errno, plain, root};
use crate::support::Rig;
use millpond_env::mark;
use millpond_posix::{
    AclKind, Caller, Errno, FileKind, NewFileSystem, NewMode, POSIX_ACL_ACCESS, POSIX_ACL_DEFAULT,
    PosixAcl, PosixAclWho, QuotaMeasure, QuotaOwner, SetAttributes, Settings, Symlinks, XattrMode,
    XattrPlace,
};

#[test]
fn a_longer_value_fits_after_the_record_size_became_smaller() {
    let mut settings = Settings {
        xattr: XattrPlace::Directory,
        ..Settings::default()
    };
    let (rig, files) = Rig::new(&NewFileSystem::default(), settings);
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    for (record_bytes, length) in [(131_072, 34_000), (4096, 40_000), (8192, 65_536), (512, 3)] {
        settings.record_bytes = record_bytes;
        files.set_settings(settings);
        let value = vec![b'x'; length];
        files
            .set_xattr(&root(), &file, b"user.a", &value, XattrMode::Set)
            .unwrap();
        rig.sync();
        assert_eq!(file.xattr(b"user.a").unwrap().unwrap(), value);
        let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
        assert_eq!(node.xattr(b"user.a").unwrap().unwrap(), value);
    }
    rig.check_space();
    rig.check_accounting();
}

#[test]
fn extended_attributes_are_packed_as_long_as_they_fit() {
    let _mark = mark::expect("attributes-spill");
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
        assert_eq!(file.xattr_names().unwrap(), names);
        for (name, length) in lengths {
            assert_eq!(node.xattr(name).unwrap().unwrap(), vec![b'x'; *length]);
            assert_eq!(file.xattr(name).unwrap().unwrap(), vec![b'x'; *length]);
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
    // Move values from each storage place to the other.
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
    // Only the root directory is counted.
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
    let _mark = mark::expect("hidden-directory-follows-its-file");
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
    let listed: Vec<_> = hidden
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
        listed,
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
fn posix_acls_show_in_the_mode_and_are_inherited() {
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
    // The default ACL replaces the umask.
    let new = NewMode {
        mode: 0o666,
        umask: 0o077,
    };
    let (file, _) = files.create(&root(), &directory, b"f", new, true).unwrap();
    assert_eq!(file.stat().unwrap().permissions, 0o660);
    let access = PosixAcl::decode(&file.xattr(POSIX_ACL_ACCESS).unwrap().unwrap());
    assert_eq!(access.unwrap().unwrap(), acl.for_new_file(0o666));
    let below = files
        .make_directory(&root(), &directory, b"below", NewMode::exactly(0o777))
        .unwrap();
    assert_eq!(
        below.xattr(POSIX_ACL_DEFAULT).unwrap().unwrap(),
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
    let access = PosixAcl::decode(&file.xattr(POSIX_ACL_ACCESS).unwrap().unwrap());
    assert_eq!(access.unwrap().unwrap().mode(), 0o640);
    // An ACL that is equivalent to the mode is not stored.
    let plain = PosixAcl::new(vec![
        (PosixAclWho::Owner, 6),
        (PosixAclWho::Group, 4),
        (PosixAclWho::Others, 4),
    ]);
    set(&file, POSIX_ACL_ACCESS, &plain.unwrap().encode()).unwrap();
    assert_eq!(file.xattr(POSIX_ACL_ACCESS).unwrap(), None);
    assert_eq!(file.stat().unwrap().permissions, 0o644);
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
