//! `zfs rollback` and `zfs receive` into mounted file systems that are in use.

use super::Stage;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

impl Stage {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = vec![0; 100];
    let count = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

#[test]
fn a_rollback_under_open_files_unmounts_nothing() {
    let Some(stage) = Stage::new() else { return };
    stage.done(
        "zpool create -m HERE/tank tank HERE/disk && zfs create tank/a && zfs create tank/a/b",
    );
    stage.done("mkdir HERE/tank/a/dir && echo first > HERE/tank/a/dir/file");
    stage.done("zfs snapshot tank/a@1");
    stage.done("echo second > HERE/tank/a/dir/file && echo new > HERE/tank/a/dir/new");
    stage.done("zfs snapshot tank/a@2 && zfs snapshot tank/a@3");
    stage.done("mkdir HERE/tank/a/over && mount -t tmpfs none HERE/tank/a/dir");
    stage.done("umount HERE/tank/a/dir && mkdir HERE/tank/a/dir/under HERE/tank/a/b/x");
    let file = File::open(stage.path("tank/a/dir/file")).unwrap();
    let new = File::open(stage.path("tank/a/dir/new")).unwrap();
    let below = File::open(stage.path("tank/a/b/x")).unwrap();
    let before = stage.mounts();
    // The working directory of this shell stays too.
    let listed = stage.done("cd HERE/tank/a/dir && zfs rollback -r tank/a@1 && cat file && ls");
    assert_eq!(listed, "first\nfile\n");
    assert_eq!(stage.mounts(), before);
    assert_eq!(read(&file).unwrap(), "first\n");
    assert!(read(&new).is_err());
    assert!(below.metadata().is_ok());
    assert_eq!(stage.done("zfs list -H -o name -t snapshot"), "tank/a@1\n");
    stage.done("test ! -e HERE/tank/a/over && test -d HERE/tank/a/b/x");
    // A mount inside stays where its directory stays.
    stage.done("mkdir HERE/tank/a/dir/under && zfs snapshot tank/a@2 && touch HERE/tank/a/more");
    stage
        .done("mount -t tmpfs none HERE/tank/a/dir/under && echo inside > HERE/tank/a/dir/under/f");
    stage
        .done("zfs rollback tank/a@2 && cat HERE/tank/a/dir/under/f && test ! -e HERE/tank/a/more");
    stage.done("umount HERE/tank/a/dir/under");
    drop((file, new, below));
    stage.done("zpool export tank");
}

#[test]
fn a_receive_under_open_files_unmounts_nothing() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank -O atime=off tank HERE/disk && zfs create tank/a");
    stage.done("echo first > HERE/tank/a/file && zfs snapshot tank/a@1");
    stage.done("zfs send tank/a@1 | zfs receive tank/b");
    stage.done(
        "echo second > HERE/tank/a/file && echo new > HERE/tank/a/new && zfs snapshot tank/a@2",
    );
    stage.done("zfs send tank/a@2 > HERE/full && zfs send -i @1 tank/a@2 > HERE/increment");
    let file = File::open(stage.path("tank/b/file")).unwrap();
    let before = stage.mounts();
    assert_eq!(read(&file).unwrap(), "first\n");
    stage.done("test ! -e HERE/tank/b/new && zfs receive tank/b < HERE/increment");
    assert_eq!(read(&file).unwrap(), "second\n");
    assert_eq!(stage.done("cat HERE/tank/b/new"), "new\n");
    assert_eq!(stage.mounts(), before);
    // Changes since are given up with -F.
    stage.done("zfs rollback -r tank/b@1 && echo changed > HERE/tank/b/file");
    let refused = stage.refused("zfs receive tank/b < HERE/increment");
    assert!(refused.contains("modified"), "{refused}");
    assert_eq!(read(&file).unwrap(), "changed\n");
    stage.done("zfs receive -F tank/b < HERE/increment");
    assert_eq!(read(&file).unwrap(), "second\n");
    // A full stream takes the place of everything: other files, perhaps with the same numbers.
    stage.done("zfs destroy -r tank/b@% && zfs receive -F tank/b < HERE/full");
    assert_eq!(
        stage.done("cat HERE/tank/b/file HERE/tank/b/new"),
        "second\nnew\n"
    );
    assert_eq!(stage.mounts(), before);
    drop(file);
    stage.done("zpool export tank");
}

#[test]
fn mount_options_change_in_place_while_files_are_open() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("mkdir HERE/tank/a/dir && echo text > HERE/tank/a/file");
    stage.done("mount -t tmpfs none HERE/tank/a/dir && echo inside > HERE/tank/a/dir/file");
    let file = File::open(stage.path("tank/a/file")).unwrap();
    let options = || {
        let all = stage.mounts();
        let own = all.iter().find_map(|line| line.strip_prefix("/tank/a "));
        own.unwrap().to_owned()
    };
    let has = |word: &str| options().split(',').any(|one| one == word);
    assert!(has("rw") && !has("noexec"), "{}", options());
    stage.done("cd HERE/tank/a && zfs set exec=off tank/a && zfs set setuid=off tank/a");
    stage.done("zfs set devices=off tank/a");
    assert!(
        has("rw") && has("noexec") && has("nosuid") && has("nodev"),
        "{}",
        options()
    );
    stage.done("zfs set exec=on tank/a && zfs set setuid=on tank/a && zfs set devices=on tank/a");
    assert!(!has("noexec") && !has("nosuid"), "{}", options());
    // Read-only, and back.
    stage.done("zfs set readonly=on tank/a");
    assert!(has("ro"), "{}", options());
    stage.refused("echo more > HERE/tank/a/file");
    stage.done("zfs set readonly=off tank/a && echo more > HERE/tank/a/more");
    assert!(has("rw"), "{}", options());
    stage.done("zfs mount -o remount,ro,noexec tank/a");
    assert!(has("ro") && has("noexec"), "{}", options());
    stage.refused("echo more > HERE/tank/a/file");
    stage.done("zfs mount -o remount tank/a");
    assert!(has("rw") && !has("noexec"), "{}", options());
    // While a file is open for writing, only the property makes it read-only.
    let refused = stage.refused("exec 7> HERE/tank/a/written; zfs mount -o remount,ro tank/a");
    assert!(refused.contains("busy"), "{refused}");
    assert!(has("rw"), "{}", options());
    let written =
        stage.run("exec 7> HERE/tank/a/written; zfs set readonly=on tank/a && echo x >&7");
    assert!(!written.status.success(), "{written:?}");
    assert_eq!(stage.done("zfs get -H -o value readonly tank/a"), "on\n");
    stage.done("zfs set readonly=off tank/a");
    assert_eq!(stage.done("cat HERE/tank/a/dir/file"), "inside\n");
    assert_eq!(read(&file).unwrap(), "text\n");
    drop(file);
    stage.done("umount HERE/tank/a/dir && zpool export tank");
}

/// Otherwise an increment could not be received any more.
#[test]
fn reading_a_read_only_mount_changes_nothing() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("echo text > HERE/tank/a/file && zfs snapshot tank/a@1 && zfs unmount tank/a");
    let read = "ls HERE/tank/a && cat HERE/tank/a/file && zpool sync tank";
    let written = "zfs get -H -p -o value written tank/a";
    stage.done("zfs mount -o ro tank/a");
    stage.done(read);
    assert_eq!(stage.done(written), "0\n");
    // It keeps the times of reads again when it can be written.
    stage.done("zfs mount -o remount,rw tank/a");
    stage.done(read);
    assert_ne!(stage.done(written), "0\n");
    stage.done("zpool export tank");
}

#[test]
fn what_another_program_unmounted_is_replaced_too() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("echo first > HERE/tank/a/file && zfs snapshot tank/a@1");
    stage.done("zfs send tank/a@1 | zfs receive tank/b && cat HERE/tank/b/file");
    stage.done("echo second > HERE/tank/a/file && zfs snapshot tank/a@2");
    stage.done("umount HERE/tank/b && zfs send -i @1 tank/a@2 | zfs receive -F tank/b");
    // The daemon may still be writing and closing the files of the mount.
    for _ in 0..20 {
        stage.done("zfs mount tank/b && echo own > HERE/tank/b/file && umount HERE/tank/b");
        stage.done("zfs rollback tank/b@2");
    }
    stage.done("zfs mount tank/b");
    assert_eq!(stage.done("cat HERE/tank/b/file"), "second\n");
    stage.done("zpool export tank");
}

/// The directory that a file system is mounted on goes with the old content of the one above.
#[test]
fn a_mount_whose_directory_a_stream_removes_is_no_obstacle() {
    let Some(stage) = Stage::new() else { return };
    stage.done("zpool create -m HERE/tank tank HERE/disk && zfs create tank/a");
    stage.done("zfs snapshot tank/a@1 && zfs send tank/a@1 | zfs receive tank/b");
    stage.done("zfs create tank/c && zfs snapshot tank/c@1");
    stage.done("zfs send tank/c@1 | zfs receive tank/b/c");
    stage.done("touch HERE/tank/a/more HERE/tank/c/more");
    stage.done("zfs snapshot tank/a@2 && zfs snapshot tank/c@2");
    stage.done("zfs send -i @1 tank/a@2 | zfs receive -F tank/b");
    stage.done("ls HERE/tank/b; zfs send -i @1 tank/c@2 | zfs receive -F tank/b/c");
    stage.done("zfs mount -a && test -e HERE/tank/b/c/more && zpool export tank");
}
