//! Operations that programs take for granted.

use crate::rig::Rig;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

fn mode_of(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode()
}

#[test]
fn basic_posix_behaviour_of_a_mount() {
    let Some(rig) = Rig::new(&[("acltype", "posix"), ("xattr", "sa")]) else {
        return;
    };
    names_and_links(&rig);
    unnamed_files(&rig);
    attributes(&rig);
    renames(&rig);
    lists_of_rights(&rig);
    programs_lose_their_privileges_when_written(&rig);
    other_users_clear_the_set_user_bit(&rig);
    appending(&rig);
    large_directories(&rig);
    rig.finish();
}

fn names_and_links(rig: &Rig) {
    let (a, b, link) = (rig.path("a"), rig.path("b"), rig.path("link"));
    fs::write(&a, "text").unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "text");
    fs::hard_link(&a, &b).unwrap();
    let (one, other) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
    assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    std::os::unix::fs::symlink("b", &link).unwrap();
    assert_eq!(fs::read_to_string(&link).unwrap(), "text");
    assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("b"));
    // A name that was looked up in vain is found once it is created.
    let late = rig.path("late");
    assert!(!late.exists());
    fs::create_dir(&late).unwrap();
    assert!(late.is_dir());
    assert!(fs::remove_file(&late).is_err());
    fs::remove_dir(&late).unwrap();
    assert!(!late.exists());
    for (name, kind, device) in [
        ("pipe", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (
            "disk",
            FileType::BlockDevice,
            rustix::fs::makedev(259, 70_000),
        ),
    ] {
        let path = rig.path(name);
        rustix::fs::mknodat(CWD, &path, kind, Mode::from(0o640), device).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(FileType::from_raw_mode(found.mode()), kind, "{name}");
        assert_eq!(found.rdev(), device, "{name}");
    }
    let mut null = File::create(rig.path("null")).unwrap();
    null.write_all(b"gone").unwrap();
}

fn unnamed_files(rig: &Rig) {
    let path = rig.path("open");
    let mut file = File::create_new(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut file_again = File::open(format!("/proc/self/fd/{}", fd(&file))).unwrap();
    let mut text = String::new();
    file_again.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    file.write_all(b" and longer").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 21);
    drop((file, file_again));
    // O_TMPFILE, linked to a name later.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let unnamed = rustix::fs::open(rig.path(""), flags, Mode::from(0o600)).unwrap();
    let mut unnamed = File::from(unnamed);
    unnamed.write_all(b"named late").unwrap();
    let from = format!("/proc/self/fd/{}", fd(&unnamed));
    let to = rig.path("named");
    rustix::fs::linkat(CWD, &*from, CWD, &to, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read_to_string(&to).unwrap(), "named late");
    assert_eq!(unnamed.metadata().unwrap().nlink(), 1);
}

fn fd(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

fn attributes(rig: &Rig) {
    let path = rig.path("attributes");
    fs::write(&path, vec![7; 100_000]).unwrap();
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let before = rustix::fs::statx(CWD, &path, AtFlags::empty(), mask).unwrap();
    assert_eq!(before.stx_size, 100_000);
    assert!(
        before.stx_mask & StatxFlags::BTIME.bits() != 0,
        "no birth time"
    );
    assert!(before.stx_btime.tv_sec > 1_700_000_000);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(mode_of(&path) & 0o7777, 0o4711);
    std::os::unix::fs::chown(&path, Some(1000), Some(100)).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.uid(), after.gid()), (1000, 100));
    // A change of owner clears the set-user-ID bit.
    assert_eq!(after.mode() & 0o7777, 0o711);
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(981_173_106, 123_456_789);
    let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_times(times)
        .unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(
        (after.mtime(), after.mtime_nsec()),
        (981_173_106, 123_456_789)
    );
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.one", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.one", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(
        set("user.two", b"2", XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    set("user.large", &[9; 60_000], XattrFlags::empty()).unwrap();
    let mut value = vec![0; 70_000];
    assert_eq!(
        rustix::fs::getxattr(&path, "user.large", &mut value[..]),
        Ok(60_000)
    );
    assert_eq!(
        rustix::fs::getxattr(&path, "user.large", &mut value[..10]),
        Err(Errno::RANGE)
    );
    let mut names = vec![0; 1000];
    let count = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    assert_eq!(&names[..count], b"user.large\0user.one\0");
    rustix::fs::removexattr(&path, "user.one").unwrap();
    assert_eq!(
        rustix::fs::getxattr(&path, "user.one", &mut value[..]),
        Err(Errno::NODATA)
    );
    let space = rustix::fs::statvfs(rig.path("")).unwrap();
    assert!(space.f_blocks > 0 && space.f_bavail <= space.f_blocks && space.f_namemax == 255);
}

fn renames(rig: &Rig) {
    let (one, other) = (rig.path("one"), rig.path("other"));
    fs::write(&one, "1").unwrap();
    fs::write(&other, "2").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &other, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(&one).unwrap(), "2");
    let held = File::open(&other).unwrap();
    fs::rename(&one, &other).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "2");
    let mut byte = [0];
    held.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(&byte, b"1", "a replaced file lives while it is open");
    rustix::fs::renameat_with(CWD, &other, CWD, &one, RenameFlags::WHITEOUT).unwrap();
    let left = fs::symlink_metadata(&other).unwrap();
    assert_eq!(
        FileType::from_raw_mode(left.mode()),
        FileType::CharacterDevice
    );
    assert_eq!(left.rdev(), 0);
    let (outer, inner) = (rig.path("outer"), rig.path("outer/inner"));
    fs::create_dir_all(&inner).unwrap();
    assert!(fs::rename(&outer, inner.join("below")).is_err());
}

/// Encodes a POSIX ACL as its attribute value.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn lists_of_rights(rig: &Rig) {
    const NONE: u32 = u32::MAX;
    let folder = rig.path("shared");
    fs::create_dir(&folder).unwrap();
    let default = list(&[
        (1, 7, NONE),
        (2, 7, 1234),
        (4, 5, NONE),
        (0x10, 7, NONE),
        (0x20, 0, NONE),
    ]);
    let name = "system.posix_acl_default";
    rustix::fs::setxattr(&folder, name, &default, XattrFlags::empty()).unwrap();
    let file = folder.join("file");
    // The ACL applies instead of the umask of the process.
    File::create(&file).unwrap();
    assert_eq!(mode_of(&file) & 0o777, 0o660);
    let mut value = [0; 200];
    let name = "system.posix_acl_access";
    let count = rustix::fs::getxattr(&file, name, &mut value[..]).unwrap();
    let expected = list(&[
        (1, 6, NONE),
        (2, 7, 1234),
        (4, 5, NONE),
        (0x10, 6, NONE),
        (0x20, 0, NONE),
    ]);
    assert_eq!(&value[..count], &expected[..]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let count = rustix::fs::getxattr(&file, name, &mut value[..]).unwrap();
    assert_eq!(
        value[4 + 3 * 8 + 2..][..2],
        4u16.to_le_bytes(),
        "the mask follows the mode"
    );
    assert_eq!(count, expected.len());
    // Directories pass on the ACL, and a group set on them.
    let group = rig.path("group");
    fs::create_dir(&group).unwrap();
    std::os::unix::fs::chown(&group, None, Some(4321)).unwrap();
    fs::set_permissions(&group, fs::Permissions::from_mode(0o2775)).unwrap();
    fs::create_dir(group.join("below")).unwrap();
    let below = fs::metadata(group.join("below")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o2000), (4321, 0o2000));
}

fn programs_lose_their_privileges_when_written(rig: &Rig) {
    let path = rig.path("program");
    fs::write(&path, "x").unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = "security.capability";
    rustix::fs::setxattr(&path, name, &capability, XattrFlags::empty()).unwrap();
    let mut value = [0; 64];
    rustix::fs::getxattr(&path, name, &mut value[..]).unwrap();
    fs::write(&path, "changed").unwrap();
    let found = rustix::fs::getxattr(&path, name, &mut value[..]);
    assert_eq!(found, Err(Errno::NODATA));
}

/// A change of a file by one of those who may not keep the bits.
type Change = fn(&File, &File) -> std::io::Result<()>;

/// The set-user bit goes also if the file is not executable. The set-group bit stays if the group cannot execute it.
fn other_users_clear_the_set_user_bit(rig: &Rig) {
    let changes: [(&str, Change); 6] = [
        ("truncated", |file, _| file.set_len(100)),
        ("written", |file, _| file.write_all_at(b"new", 5)),
        ("allocated", |file, _| {
            let mode = FallocateFlags::empty();
            Ok(rustix::fs::fallocate(file, mode, 0, 10_000)?)
        }),
        ("punched", |file, _| {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, mode, 0, 100)?)
        }),
        ("copied", |file, other| {
            rustix::fs::copy_file_range(other, Some(&mut 0), file, Some(&mut 0), 50)?;
            Ok(())
        }),
        ("handed over", |file, _| {
            std::os::unix::fs::fchown(file, Some(4711), None)
        }),
    ];
    let other = rig.path("source");
    fs::write(&other, [5; 5000]).unwrap();
    for (name, change) in changes {
        for (mode, after) in [(0o4666, 0o666), (0o6777, 0o777), (0o2666, 0o2666)] {
            let path = rig.path(&format!("{name}-{mode:o}"));
            fs::write(&path, [1; 5000]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&path, Some(4711), Some(4711)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            // From now on the kernel may keep the mode for long.
            rig.pool.sync().unwrap();
            assert_eq!(mode_of(&path) & 0o7777, mode);
            std::thread::scope(|scope| {
                let user = scope.spawn(|| {
                    // Only of this thread.
                    rustix::thread::set_thread_groups(&[]).unwrap();
                    rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(4711)).unwrap();
                    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(4711)).unwrap();
                    let file = File::options().read(true).write(true).open(&path)?;
                    change(&file, &File::open(&other)?)
                });
                user.join().unwrap().unwrap();
            });
            // What the kernel goes by when it starts the program.
            let cached = AtFlags::STATX_DONT_SYNC;
            let known = rustix::fs::statx(CWD, &path, cached, StatxFlags::MODE).unwrap();
            assert_eq!(u32::from(known.stx_mode) & 0o7777, after, "{name} {mode:o}");
            assert_eq!(mode_of(&path) & 0o7777, after, "{name} {mode:o}");
            fs::remove_file(&path).unwrap();
        }
    }
    fs::remove_file(&other).unwrap();
}

fn appending(rig: &Rig) {
    let path = rig.path("appended");
    let open = || {
        File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap()
    };
    let (mut one, mut other) = (open(), open());
    for _ in 0..50 {
        one.write_all(b"1").unwrap();
        other.write_all(b"22").unwrap();
    }
    let text = fs::read(&path).unwrap();
    assert_eq!(text, b"122".repeat(50));
    let mut file = File::open(&path).unwrap();
    file.seek(SeekFrom::End(-2)).unwrap();
    let mut last = vec![];
    file.read_to_end(&mut last).unwrap();
    assert_eq!(last, b"22");
}

fn large_directories(rig: &Rig) {
    let folder = rig.path("many");
    fs::create_dir(&folder).unwrap();
    for number in 0..700 {
        File::create(folder.join(format!("a file with a name of some length {number}"))).unwrap();
    }
    for _ in 0..2 {
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .inspect(|entry| {
                assert!(
                    entry.metadata().unwrap().ino() == std::os::unix::fs::DirEntryExt::ino(entry)
                )
            })
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(names.len(), 700);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 700);
    }
    fs::remove_dir_all(&folder).unwrap();
}
