//! Tests single operations: compares each with what the read-only code finds after a sync.
#![forbid(unsafe_code)]

mod content;
mod names;
mod old;
mod rules;
#[path = "../support/mod.rs"]
mod support;
mod xattrs;

use millpond_posix::{
    Caller, Errno, FileError, FileSystem, NewFileSystem, NewMode, Settings, SpecialFile, Symlinks,
    WriteAt,
};
use support::Rig;

fn root() -> Caller {
    Caller::root()
}
fn plain() -> (Rig, std::sync::Arc<FileSystem>) {
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
fn a_new_file_system_matches_openzfs() {
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
    // Layout 2, a header of 8 bytes, an ACL of 24 bytes.
    let bonus = root.object().committed().unwrap().bonus().unwrap();
    assert_eq!(bonus[..8], [0x5a, 0x50, 0x2f, 0, 2, 4, 0x18, 0]);
    assert_eq!(bonus.len(), 176);
    assert_eq!(
        root.object()
            .committed()
            .unwrap()
            .dnode()
            .block_pointers
            .len(),
        1
    );
    assert_eq!(files.root().unwrap().stat().unwrap(), stat);
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
    assert_eq!(stat, file.stat().unwrap());
    let stat = committed
        .resolve(b"dir/disk", Symlinks::Keep)
        .unwrap()
        .stat()
        .unwrap();
    assert_eq!((stat.device, stat.project), (Some((259, 70_000)), None));
    assert_eq!(stat.flags.bits(), 0x408_0000_0004);
    assert_eq!(committed.root().unwrap().stat().unwrap().links, 3);
    let link = directory.lookup(b"link").unwrap();
    assert_eq!(link.link_target().unwrap().unwrap(), b"../file");
    rig.check_space();
    rig.check_accounting();
}
