//! File systems of versions below 5.
//!
//! The test converts the files to the old format itself: each bonus becomes the znode that a writer of that
//! version would have written.

mod changes;

use super::{MODE, errno, root};
use crate::support::{Rig, check_consistency};
use millpond_env::sync::Arc;
use millpond_object::ObjectView;
use millpond_ondisk::acl::encode_acl;
use millpond_ondisk::dsl::keys::master_node as key;
use millpond_ondisk::znode::{ZnodeAcl, ZnodePhys};
use millpond_ondisk::{Endian, ObjectId, ObjectSetKind, ObjectType};
use millpond_posix::{
    Ace, Caller, Case, DirEntryRef, Errno, FileError, FileFlags, FileKind, FileSystem, Fuid,
    NewFileSystem, NewMode, Node, RenameMode, SetAttributes, SetTime, Settings, SpecialFile, Stat,
    Symlinks, Timestamp, VERSION, WriteAt, XattrMode, XattrPlace, create_file_system,
};
use millpond_sa::{AceFlags, AceKind, AceWho};
use millpond_zap::{Zap, ZapMut};
use std::collections::BTreeMap;

/// A file of this mode has an ACL of 30 entries, in its own object.
const LISTED: u32 = 0o640;
/// A file of this mode has a virus scanner's stamp.
const STAMPED: u32 = 0o600;
const STAMP: [u8; 32] = [0x5a; 32];

fn settings(xattr: XattrPlace) -> Settings {
    Settings {
        xattr,
        ..Settings::default()
    }
}

fn long_list() -> Vec<Ace> {
    let entry = |user| Ace {
        kind: AceKind::ALLOW,
        flags: AceFlags::empty(),
        mask: 1,
        who: AceWho::Id(Fuid(user)),
        object_types: None,
    };
    (2000..2030).map(entry).collect()
}

/// Encodes the 12-byte entries of versions 1 and 2.
fn encode_old(list: &[Ace]) -> Vec<u8> {
    let mut bytes = vec![];
    for ace in list {
        let who = match ace.who {
            AceWho::Id(id) => id.0 as u32,
            _ => u32::MAX,
        };
        bytes.extend(who.to_le_bytes());
        bytes.extend(ace.mask.to_le_bytes());
        bytes.extend(ace.flags.bits().to_le_bytes());
        bytes.extend(ace.kind.0.to_le_bytes());
    }
    bytes
}

/// Creates a file system with one file of each type, and converts it to an old version.
fn aged(version: u64) -> Rig {
    let (mut rig, files) = Rig::new(
        &NewFileSystem {
            has_projects: false,
            default_quotas: None,
            ..NewFileSystem::default()
        },
        Settings {
            has_projects: false,
            ..settings(XattrPlace::Directory)
        },
    );
    let top = files.root().unwrap();
    let user = Caller::user(1000, 100);
    let exactly = NewMode::exactly;
    let file = |name: &[u8], mode| {
        let made = files.create(&user, &top, name, mode, true).unwrap().0;
        let content = [name, b" has this content"].concat();
        files
            .write(&user, &made, WriteAt::Offset(0), &content)
            .unwrap();
        made
    };
    for name in [
        b"plain".as_slice(),
        b"cut",
        b"gone",
        b"moved",
        b"timed",
        b"owned",
    ] {
        file(name, MODE);
    }
    file(b"listed", exactly(LISTED));
    file(b"listed-gone", exactly(LISTED));
    file(b"listed-mode", exactly(LISTED));
    file(b"stamped", exactly(STAMPED));
    for name in [b"tagged".as_slice(), b"tagged-gone"] {
        let tagged = file(name, MODE);
        for (name, length) in [(b"user.a".as_slice(), 3), (b"user.long", 3000)] {
            let value = vec![b'v'; length];
            files
                .set_xattr(&user, &tagged, name, &value, XattrMode::Set)
                .unwrap();
        }
    }
    let dir = files
        .make_directory(&user, &top, b"dir", exactly(0o755))
        .unwrap();
    files.create(&user, &dir, b"inner", MODE, true).unwrap();
    files
        .make_directory(&user, &top, b"empty", exactly(0o755))
        .unwrap();
    for (name, length) in [
        (b"short".as_slice(), 10),
        (b"edge", 56),
        (b"long", 57),
        (b"far", 1000),
    ] {
        files
            .make_symlink(&user, &top, name, &vec![b't'; length])
            .unwrap();
    }
    files
        .make_special(&user, &top, b"pipe", SpecialFile::Fifo, MODE)
        .unwrap();
    let device = SpecialFile::CharacterDevice(5, 1);
    files
        .make_special(&root(), &top, b"device", device, MODE)
        .unwrap();
    rig.sync();
    let young = everything(&rig.committed());
    drop((top, dir));
    make_old(&rig, version);
    drop(files);
    rig.sync();
    let files = rig.reopen(Settings::default());
    assert_eq!(files.version(), version);
    let old = everything(&rig.committed());
    assert_eq!(young.len(), old.len());
    for (name, (stat, content)) in &young {
        // Content in other blocks uses other space.
        let mut stat = stat.clone();
        (stat.sectors, stat.block_bytes) = (old[name].0.sectors, old[name].0.block_bytes);
        stat.flags = old[name].0.flags;
        assert_eq!(old[name], (stat, content.clone()), "{name}");
    }
    check_space(&rig);
    rig
}

fn make_old(rig: &Rig, version: u64) {
    let committed = rig.committed();
    let tx = rig.groups.begin(1 << 20).unwrap();
    for object in committed.committed().unwrap().objects() {
        let object = object.unwrap();
        if object.dnode().bonus_type == ObjectType::SA {
            let node = committed.node(object.id()).unwrap();
            let live = rig.set.object(object.id()).unwrap();
            let mut znode = old_znode(&node, version);
            if let Some(target) = node.link_target().unwrap() {
                if target.len() <= 56 {
                    znode.tail = target;
                } else {
                    let bytes = target.len().next_multiple_of(512) as u32;
                    live.set_block_bytes(&tx, bytes, None).unwrap();
                    live.write(&tx, 0, &target).unwrap();
                }
                live.set_spill(&tx, None).unwrap();
            } else if znode.mode & 0o777 == u64::from(LISTED) {
                let list = long_list();
                let (kind, bytes) = match znode.acl.version {
                    0 => (ObjectType::OLD_ACL, encode_old(&list)),
                    _ => (ObjectType::ACL, encode_acl(&list).unwrap()),
                };
                let new = millpond_object::NewObject::new(kind);
                let holder = rig.set.allocate(&tx, new).unwrap();
                holder.set_block_bytes(&tx, 512, None).unwrap();
                holder.write(&tx, 0, &bytes).unwrap();
                znode.acl.external = holder.id();
                (znode.acl.size, znode.acl.count) = match znode.acl.version {
                    0 => (30, 0),
                    _ => (bytes.len() as u32, 30),
                };
            }
            let bonus = znode.encode().unwrap();
            live.set_typed_bonus(&tx, ObjectType::ZNODE, bonus).unwrap();
        }
        if version == 1 && object.dnode().object_type == ObjectType::DIRECTORY {
            let table = ZapMut::of_set(&rig.set, object.id(), &tx).unwrap();
            for entry in committed.node(object.id()).unwrap().entries().unwrap() {
                let entry = entry.unwrap();
                table.update_u64(&entry.name, entry.id.0).unwrap();
            }
        }
    }
    let master = ZapMut::of_set(&rig.set, ObjectId(1), &tx).unwrap();
    let attributes = key::SYSTEM_ATTRIBUTES.as_bytes();
    let tables = ObjectId(master.lookup_u64(attributes).unwrap().unwrap());
    for key in [b"REGISTRY".as_slice(), b"LAYOUTS"] {
        let table = ZapMut::of_set(&rig.set, tables, &tx).unwrap();
        let id = ObjectId(table.lookup_u64(key).unwrap().unwrap());
        rig.set.free(&tx, id).unwrap();
    }
    rig.set.free(&tx, tables).unwrap();
    assert!(master.remove(attributes).unwrap());
    master.update_u64(key::VERSION.as_bytes(), version).unwrap();
}

fn old_znode(node: &Node, version: u64) -> ZnodePhys {
    let stat = node.stat().unwrap();
    let list = node.nfs4_acl().unwrap().unwrap();
    let (bytes, acl_version) = match version {
        1 | 2 => (encode_old(&list), 0),
        _ => (encode_acl(&list).unwrap(), 1),
    };
    let mut embedded = [0; 72];
    embedded[..bytes.len()].copy_from_slice(&bytes);
    let is_stamped = stat.permissions == STAMPED;
    let mut flags = stat.flags;
    flags.set(FileFlags::BONUS_SCANSTAMP, is_stamped);
    flags.set(FileFlags::ACL_TRIVIAL, stat.permissions != LISTED);
    let (major, minor) = stat.device.unwrap_or_default();
    let registry = millpond_sa::SaRegistry::open(node.file_system().committed().unwrap()).unwrap();
    let stored = registry
        .attributes(node.object().committed().unwrap())
        .unwrap();
    let xattr = stored.xattr_directory().unwrap();
    ZnodePhys {
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        crtime: stat.crtime,
        generation: stat.generation,
        mode: stat.kind.entry_type() << 12 | u64::from(stat.permissions),
        size: stat.size_bytes,
        parent: node.parent_id().unwrap(),
        links: stat.links,
        xattr: xattr.unwrap_or(ObjectId(0)),
        rdev: u64::from(major) << 20 | u64::from(minor),
        flags,
        uid: stat.owner,
        gid: stat.group,
        acl: ZnodeAcl {
            external: ObjectId(0),
            size: match acl_version {
                0 => list.len() as u32,
                _ => bytes.len() as u32,
            },
            version: acl_version,
            count: match acl_version {
                0 => 0,
                _ => list.len() as u16,
            },
            embedded,
            endian: Endian::Little,
        },
        tail: if is_stamped { STAMP.to_vec() } else { vec![] },
    }
}

/// The attributes and content (or target) of everything below the root directory. Extended attributes appear
/// as files below their file.
fn everything(files: &Arc<FileSystem>) -> BTreeMap<String, (Stat, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut stack = vec![(String::new(), files.root().unwrap())];
    while let Some((name, node)) = stack.pop() {
        let stat = node.stat().unwrap();
        let mut content = match node.link_target().unwrap() {
            Some(target) => target,
            None if stat.kind == FileKind::Regular => {
                let mut content = vec![0; stat.size_bytes as usize];
                node.read(0, &mut content).unwrap();
                content
            }
            None => vec![],
        };
        if stat.kind == FileKind::Directory {
            for entry in node.entries().unwrap() {
                let entry = entry.unwrap();
                let shown = format!("{name}/{}", String::from_utf8_lossy(&entry.name));
                stack.push((shown, files.node(entry.id).unwrap()));
            }
        }
        for attribute in node.xattr_names().unwrap() {
            content.extend(&attribute);
            content.extend(node.xattr(&attribute).unwrap().unwrap());
        }
        found.insert(name, (stat, content));
    }
    found
}

fn objects_of(rig: &Rig, is_meant: impl Fn(&ObjectView) -> bool) -> usize {
    let set = rig.set.committed().unwrap();
    let objects = set.objects().map(Result::unwrap);
    objects.filter(is_meant).count()
}
fn lists(rig: &Rig) -> usize {
    let kinds = [ObjectType::ACL, ObjectType::OLD_ACL];
    objects_of(rig, |object| kinds.contains(&object.dnode().object_type))
}

/// Checks blocks and counters. Links are not checked, because in version 1 directories do not store file
/// types.
fn check_space(rig: &Rig) {
    rig.check_space();
    rig.check_accounting();
}

fn at(files: &FileSystem, name: &[u8]) -> Node {
    files.root().unwrap().lookup(name).unwrap()
}
fn is_old(rig: &Rig, name: &[u8]) -> bool {
    let node = rig.committed().resolve(name, Symlinks::Keep).unwrap();
    node.object().committed().unwrap().dnode().bonus_type == ObjectType::ZNODE
}

#[test]
fn old_versions_refuse_what_they_cannot_store() {
    use millpond_posix::QuotaMeasure::Bytes;
    use millpond_posix::QuotaOwner::User;
    for version in 1..VERSION {
        let mut rig = aged(version);
        let files = rig.reopen(Settings::default());
        let file = at(&files, b"plain");
        let limited = files.set_quota(User, Bytes, 1000, 1 << 30);
        let default = files.set_default_quota(User, Bytes, 1 << 30);
        let flags = SetAttributes {
            set_flags: FileFlags::IMMUTABLE,
            ..SetAttributes::default()
        };
        let flagged = files.set_attributes(&root(), &file, &flags);
        if version < 4 {
            assert_eq!(errno(limited), Errno::EOPNOTSUPP);
            let refused = FileError::OldVersion { version, needed: 4 };
            assert_eq!(default, Err(refused));
        } else {
            assert_eq!((limited, default), (Ok(()), Ok(())));
        }
        match version < 3 {
            true => assert_eq!(errno(flagged), Errno::EINVAL),
            false => assert_eq!(flagged, Ok(())),
        }
        rig.sync();
        check_space(&rig);
    }
}

#[test]
fn new_file_systems_of_old_versions_have_the_objects_of_their_time() {
    let master = |rig: &Rig, key: &str| {
        let master = rig.set.committed().unwrap().object(ObjectId(1)).unwrap();
        let table = Zap::open(master).unwrap();
        table.lookup_u64(key.as_bytes()).unwrap()
    };
    for version in 1..VERSION {
        let new = NewFileSystem {
            version,
            ..NewFileSystem::default()
        };
        let (rig, files) = Rig::new(&new, Settings::default());
        assert_eq!(files.version(), version);
        assert_eq!(master(&rig, key::VERSION), Some(version));
        assert_eq!(master(&rig, key::SYSTEM_ATTRIBUTES), None);
        assert_eq!(master(&rig, key::CASE_SENSITIVITY), Some(0));
        let flags = files.root().unwrap().stat().unwrap().flags.bits();
        // As in file systems of these versions that OpenZFS 2.3 made.
        let wanted = [0x144, 0x144, 0x408_0000_0144, 0x408_0000_0144];
        assert_eq!(flags, wanted[version as usize - 1], "{version}");
        let top = files.root().unwrap();
        let made = files.create(&root(), &top, b"file", MODE, true).unwrap().0;
        files
            .set_xattr(&root(), &made, b"user.a", b"v", XattrMode::Set)
            .unwrap();
        files
            .make_symlink(&root(), &top, b"short", &[b't'; 56])
            .unwrap();
        files
            .make_symlink(&root(), &top, b"long", &[b't'; 57])
            .unwrap();
        rig.sync();
        let bonus_bytes = |name: &[u8]| {
            let node = rig.committed().resolve(name, Symlinks::Keep).unwrap();
            node.object().committed().unwrap().dnode().bonus.len()
        };
        assert_eq!(bonus_bytes(b"file"), 264);
        assert_eq!(bonus_bytes(b"short"), 320);
        assert_eq!(bonus_bytes(b"long"), 264);
        let directory = rig
            .set
            .committed()
            .unwrap()
            .object(files.root_id())
            .unwrap();
        let value = Zap::open(directory).unwrap().lookup_u64(b"file").unwrap();
        let kind = if version == 1 { 0 } else { 8 << 60 };
        assert_eq!(value, Some(made.id().0 | kind));
        check_space(&rig);
        check_consistency(&rig.set.committed().unwrap());
    }
}

#[test]
fn versions_below_3_have_no_rules_for_names() {
    for (version, is_made) in [
        (1, false),
        (2, false),
        (3, true),
        (4, true),
        (0, false),
        (6, false),
    ] {
        let (rig, tx) = Rig::empty(ObjectSetKind::FileSystem);
        let new = NewFileSystem {
            version,
            case: Case::Insensitive,
            ..NewFileSystem::default()
        };
        let made = create_file_system(&rig.set, &tx, &rig.env, &new);
        assert_eq!(made.is_ok(), is_made, "{version}: {made:?}");
    }
}

#[test]
fn raising_changes_the_master_node_and_no_file() {
    let mut rig = aged(1);
    let before = everything(&rig.committed());
    let files = rig.reopen(Settings {
        is_read_only: true,
        ..Settings::default()
    });
    let master = |rig: &Rig, key: &str| {
        let master = rig.set.committed().unwrap().object(ObjectId(1)).unwrap();
        Zap::open(master)
            .unwrap()
            .lookup_u64(key.as_bytes())
            .unwrap()
    };
    for wrong in [0, VERSION + 1] {
        assert_eq!(errno(files.raise_version(wrong)), Errno::EINVAL);
    }
    assert_eq!(files.raise_version(4).unwrap(), 1);
    assert_eq!(files.raise_version(4).unwrap(), 4);
    assert_eq!(errno(files.raise_version(3)), Errno::EINVAL);
    rig.sync();
    assert_eq!(master(&rig, key::VERSION), Some(4));
    assert_eq!(master(&rig, key::SYSTEM_ATTRIBUTES), None);
    assert_eq!(files.raise_version(5).unwrap(), 4);
    rig.sync();
    assert_eq!(master(&rig, key::VERSION), Some(5));
    let tables = ObjectId(master(&rig, key::SYSTEM_ATTRIBUTES).unwrap());
    let tables = rig.set.committed().unwrap().object(tables).unwrap();
    assert_eq!(tables.dnode().object_type, ObjectType::SA_MASTER);
    assert_eq!(Zap::open(tables).unwrap().entry_count().unwrap(), 0);
    assert_eq!(everything(&rig.committed()), before);
    let of_attributes = |object: &ObjectView| object.dnode().bonus_type == ObjectType::SA;
    assert_eq!(objects_of(&rig, of_attributes), 0);
    // The property `readonly` still applies.
    assert_eq!(
        errno(files.unlink(&files.root().unwrap(), b"plain")),
        Errno::EROFS
    );
    let files = rig.reopen(Settings::default());
    assert_eq!(files.version(), 5);
    check_space(&rig);
}
