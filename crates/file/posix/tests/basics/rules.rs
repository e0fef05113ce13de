//! Permissions and inheritance: flags, groups, times, quotas, projects.

use super::{MODE, errno, plain, root};
use crate::support::Rig;
use millpond_ondisk::Txg;
use millpond_posix::vfs::{
    SnapshotChange, SnapshotEntry, SnapshotPort, Vfs, VfsNode, VfsPlace, ZfsCtlDir,
};
use millpond_posix::{
    Allocate, Atime, Caller, DirEntryRef, Errno, FileError, FileFlags, FileSystem, NewFileSystem,
    NewMode, QuotaMeasure, QuotaOwner, RenameMode, SetAttributes, SetTime, Settings,
    SnapshotDirectory, Symlinks, Timestamp, WriteAt, XattrMode,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn flags_forbid_changes() {
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
fn setgid_directories_pass_on_their_group() {
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
    assert_eq!(shared.stat().unwrap().permissions, 0o2777);
    let user = Caller::user(1000, 1000);
    let all = NewMode::exactly(0o6755);
    let (file, _) = files.create(&user, &shared, b"f", all, true).unwrap();
    let stat = file.stat().unwrap();
    // The set-group bit is cleared, because the user is not a member of the group.
    assert_eq!((stat.gid, stat.permissions), (50, 0o4755));
    let below = files
        .make_directory(&user, &shared, b"d", NewMode::exactly(0o700))
        .unwrap();
    let stat = below.stat().unwrap();
    assert_eq!((stat.gid, stat.permissions), (50, 0o2700));
    // A write by another user clears the set-user bit.
    files.write(&root(), &file, WriteAt::End, b"x").unwrap();
    assert_eq!(file.stat().unwrap().permissions, 0o4755);
    files.write(&user, &file, WriteAt::End, b"x").unwrap();
    assert_eq!(file.stat().unwrap().permissions, 0o755);
}

/// As in Linux: the set-user bit goes also if the file is not executable. The set-group bit stays if the group cannot execute it.
#[test]
fn changes_by_another_user_clear_the_set_user_and_group_bits() {
    let (_rig, files) = plain();
    let top = files.root().unwrap();
    let user = Caller::user(1000, 1000);
    for (mode, after) in [
        (0o4666, 0o666),
        (0o4755, 0o755),
        (0o2676, 0o676),
        (0o2667, 0o2667),
        (0o6666, 0o2666),
        (0o6777, 0o777),
    ] {
        let name = format!("{mode:o}");
        let exactly = NewMode::exactly(mode);
        let (file, _) = files
            .create(&root(), &top, name.as_bytes(), exactly, true)
            .unwrap();
        let again = SetAttributes {
            permissions: Some(mode),
            ..SetAttributes::default()
        };
        let cut = SetAttributes {
            size_bytes: Some(3),
            ..SetAttributes::default()
        };
        let kept = SetAttributes {
            uid: Some(0),
            ..SetAttributes::default()
        };
        let shown = || file.stat().unwrap().permissions;
        files
            .write(&root(), &file, WriteAt::End, b"content")
            .unwrap();
        files.set_attributes(&root(), &file, &cut).unwrap();
        assert_eq!(shown(), mode);
        files.write(&user, &file, WriteAt::End, b"x").unwrap();
        assert_eq!(shown(), after, "a write to {name}");
        for change in [cut, kept] {
            files.set_attributes(&root(), &file, &again).unwrap();
            assert_eq!(shown(), mode);
            files.set_attributes(&user, &file, &change).unwrap();
            assert_eq!(shown(), after, "{change:?} of {name}");
        }
    }
}

#[test]
fn times_follow_posix() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let born = file.stat().unwrap();
    assert!(born.atime == born.mtime && born.mtime == born.ctime && born.ctime == born.crtime);
    files.write(&root(), &file, WriteAt::End, b"x").unwrap();
    let written = file.stat().unwrap();
    assert!(written.mtime > born.mtime && written.mtime == written.ctime);
    assert_eq!((written.atime, written.crtime), (born.atime, born.crtime));
    files.touch_atime(&file);
    let read = file.stat().unwrap();
    assert!(read.atime > written.mtime);
    assert_eq!((read.mtime, read.ctime), (written.mtime, written.ctime));
    // The access time is already newer than the last change.
    files.touch_atime(&file);
    assert_eq!(file.stat().unwrap(), read);
    files.set_settings(Settings {
        atime: Atime::Always,
        ..Settings::default()
    });
    files.touch_atime(&file);
    assert!(file.stat().unwrap().atime > read.atime);
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
    let stat = file.stat().unwrap();
    assert_eq!((stat.mtime, stat.atime), (past, stat.ctime));
    rig.sync();
    let node = rig.committed().resolve(b"f", Symlinks::Keep).unwrap();
    assert_eq!(node.stat().unwrap(), file.stat().unwrap());
}

#[test]
fn quotas_hold_from_the_txg_that_reaches_them() {
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
    // Quotas persist after opening again.
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
    assert_eq!(file.stat().unwrap().project, Some(42));
    let (other, _) = files.create(&root(), &top, b"other", MODE, true).unwrap();
    assert_eq!(errno(files.link(&other, &directory, b"o")), Errno::EXDEV);
    let from = DirEntryRef {
        directory: &top,
        name: b"other",
    };
    let to = DirEntryRef {
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
fn a_file_without_project_id_gets_one_in_its_slot() {
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
        file.stat().unwrap().flags.bits(),
        0x408_0000_0004 | 0x8_0000_0000
    );
    assert_eq!(file.stat().unwrap().project, None);
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
    let bonus = node.object().committed().unwrap().bonus().unwrap();
    assert_eq!(
        bonus[8 + 8 + 128],
        3,
        "16 bytes of header, the project at 128"
    );
    rig.check_accounting();
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
    // Files can be removed from a full pool.
    drop(file);
    files.unlink(&top, b"f").unwrap();
    rig.sync();
    rig.check_space();
}

#[test]
fn a_committed_file_system_is_read_and_refuses_changes() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files.write(&root(), &file, WriteAt::End, b"123").unwrap();
    files
        .set_xattr(&root(), &file, b"user.a", b"b", XattrMode::Set)
        .unwrap();
    rig.sync();
    let committed = rig.committed();
    let read_top = committed.root().unwrap();
    let read = committed.resolve(b"f", Symlinks::Follow).unwrap();
    assert_eq!(read.stat().unwrap(), file.stat().unwrap());
    assert_eq!(read_top.list(0, 10).unwrap(), top.list(0, 10).unwrap());
    assert_eq!(read.xattr_names().unwrap(), file.xattr_names().unwrap());
    let caller = root();
    let entry = |name| DirEntryRef {
        directory: &read_top,
        name,
    };
    let refused = [
        committed
            .create(&caller, &read_top, b"g", MODE, true)
            .map(|_| ()),
        committed
            .make_directory(&caller, &read_top, b"g", MODE)
            .map(|_| ()),
        committed
            .create_tmpfile(&caller, &read_top, MODE)
            .map(|_| ()),
        committed.link(&read, &read_top, b"g"),
        committed.unlink(&read_top, b"f"),
        committed.remove_directory(&read_top, b"f"),
        committed.rename(&caller, entry(b"f"), entry(b"g"), RenameMode::Replace),
        committed
            .write(&caller, &read, WriteAt::End, b"x")
            .map(|_| ()),
        committed.allocate(&read, Allocate::PunchHole, 0, 1),
        committed.set_attributes(&caller, &read, &SetAttributes::default()),
        committed.set_xattr(&caller, &read, b"user.a", b"c", XattrMode::Set),
        committed.remove_xattr(&read, b"user.a"),
        committed.set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 0, 1),
        committed.raise_version(5).map(|_| ()),
        committed.free_unlinked(),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(errno(refused), Errno::EROFS, "{number}");
    }
    committed.touch_atime(&read);
    committed.fsync(&read).unwrap();
    // Files of a committed state are not changed through another file system either.
    assert_eq!(errno(files.unlink(&read_top, b"f")), Errno::EROFS);
}

struct NoSnapshots;

impl SnapshotPort for NoSnapshots {
    fn snapshots(&self) -> Result<Vec<SnapshotEntry>, FileError> {
        Ok(vec![])
    }
    fn find(&self, _name: &[u8]) -> Result<Option<SnapshotEntry>, FileError> {
        Ok(None)
    }
    fn changed(&self) -> Result<Timestamp, FileError> {
        Ok(Timestamp {
            seconds: 7,
            nanoseconds: 9,
        })
    }
    fn open(&self, _snapshot: &SnapshotEntry) -> Result<Arc<FileSystem>, FileError> {
        Err(FileError::NotFound)
    }
    fn last_destroyed(&self) -> Txg {
        Txg(0)
    }
    fn still_has(
        &self,
        _snapshot: &SnapshotEntry,
        _files: &FileSystem,
    ) -> Result<Option<Txg>, FileError> {
        Ok(None)
    }
    fn change(&self, _caller: &Caller, _change: SnapshotChange<'_>) -> Result<(), FileError> {
        Err(FileError::Busy)
    }
}

fn place<'p>(directory: &'p VfsNode, name: &'p [u8]) -> VfsPlace<'p> {
    VfsPlace { directory, name }
}

#[test]
fn changes_in_the_snapshot_directory_are_those_of_the_port() {
    let (_rig, files) = plain();
    let served = ZfsCtlDir::new(Arc::clone(&files), Box::new(NoSnapshots), None);
    let top = served.root().unwrap();
    let control = served.lookup(place(&top, b".zfs")).unwrap();
    let snapshots = served.lookup(place(&control, b"snapshot")).unwrap();
    let stat = served.stat(&snapshots).unwrap();
    assert_eq!((stat.mtime.seconds, stat.ctime.nanoseconds), (7, 9));
    let (here, there) = (place(&snapshots, b"a"), place(&top, b"a"));
    let made = served.make_directory(&root(), here, MODE);
    assert_eq!(made.unwrap_err().errno(), Errno::EBUSY);
    let made = served.make_directory(&root(), place(&control, b"a"), MODE);
    assert_eq!(made.unwrap_err().errno(), Errno::EPERM);
    // What is not there is not asked of the port.
    assert_eq!(errno(served.remove_directory(&root(), here)), Errno::ENOENT);
    let other = place(&snapshots, b"b");
    let rename = |from, to, mode| errno(served.rename(&root(), from, to, mode));
    assert_eq!(rename(here, other, RenameMode::Replace), Errno::ENOENT);
    assert_eq!(rename(here, other, RenameMode::Exchange), Errno::EINVAL);
    served.make_directory(&root(), there, MODE).unwrap();
    assert_eq!(rename(here, there, RenameMode::Replace), Errno::EINVAL);
    assert_eq!(rename(there, here, RenameMode::Replace), Errno::EINVAL);
    served.remove_directory(&root(), there).unwrap();
    files.set_settings(Settings {
        snapshot_directory: SnapshotDirectory::Disabled,
        ..files.settings()
    });
    let gone = served.lookup(place(&top, b".zfs"));
    assert_eq!(gone.unwrap_err().errno(), Errno::ENOENT);
}

#[test]
fn a_committed_view_has_nothing_to_reap() {
    let (rig, _) = plain();
    let served = ZfsCtlDir::new(rig.committed(), Box::new(NoSnapshots), None);
    served.reap().unwrap();
    let top = served.root().unwrap();
    assert_eq!(served.stat(&top).unwrap().links, 2);
}
