//! Files that are replaced under programs that use them, by a rollback.

use crate::mapped::Mapping;
use crate::rig::Rig;
use millpond_engine::Pool;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const STALE: Option<i32> = Some(116);

fn snapshot(rig: &Rig, name: &str) -> String {
    let name = format!("{}@{name}", rig.dataset);
    rig.pool.datasets().snapshot(&[&name], &[]).unwrap();
    name
}

fn roll_back(rig: &mut Rig, snapshot: &str) {
    rig.replace_files(|pool: &Pool| pool.datasets().rollback(snapshot).unwrap());
}

fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = vec![0; 100];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(String::from_utf8(bytes).unwrap())
}

#[test]
fn descriptors_and_names_follow_a_rollback() {
    let Some(mut rig) = Rig::new(&[]) else {
        return;
    };
    fs::create_dir_all(rig.path("kept/below")).unwrap();
    fs::write(rig.path("kept/file"), "first").unwrap();
    fs::write(rig.path("kept/removed"), "removed").unwrap();
    fs::write(rig.path("kept/moved"), "moved").unwrap();
    let one = snapshot(&rig, "one");
    let in_snapshot = File::open(rig.path(".zfs/snapshot/one/kept/file")).unwrap();
    fs::write(rig.path("kept/file"), "second, and longer").unwrap();
    fs::remove_file(rig.path("kept/removed")).unwrap();
    fs::rename(rig.path("kept/moved"), rig.path("elsewhere")).unwrap();
    fs::create_dir(rig.path("new")).unwrap();
    fs::write(rig.path("new/file"), "new").unwrap();
    fs::write(rig.path("kept/new"), "new").unwrap();
    let kept = File::options()
        .read(true)
        .write(true)
        .open(rig.path("kept/file"))
        .unwrap();
    let unlinked = File::create_new(rig.path("kept/unlinked")).unwrap();
    unlinked.write_at(b"unlinked", 0).unwrap();
    fs::remove_file(rig.path("kept/unlinked")).unwrap();
    let new = File::open(rig.path("new/file")).unwrap();
    assert_eq!(read(&kept).unwrap(), "second, and longer");
    assert!(!rig.path("kept/removed").exists());

    roll_back(&mut rig, &one);
    assert_eq!(read(&kept).unwrap(), "first");
    assert_eq!(kept.metadata().unwrap().len(), 5);
    assert_eq!(fs::read_to_string(rig.path("kept/file")).unwrap(), "first");
    assert_eq!(
        fs::read_to_string(rig.path("kept/removed")).unwrap(),
        "removed"
    );
    assert_eq!(fs::read_to_string(rig.path("kept/moved")).unwrap(), "moved");
    for gone in ["elsewhere", "new", "kept/new", "new/file"] {
        let error = fs::metadata(rig.path(gone)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{gone}: {error}");
    }
    let mut names: Vec<_> = fs::read_dir(rig.path("kept"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["below", "file", "moved", "removed"]);
    for stale in [&new, &unlinked] {
        assert_eq!(stale.sync_all().unwrap_err().raw_os_error(), STALE);
        assert!(read(stale).is_err());
    }
    assert_eq!(read(&in_snapshot).unwrap(), "first");
    // The descriptor still writes to the file of its name.
    kept.write_at(b"third", 0).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(fs::read_to_string(rig.path("kept/file")).unwrap(), "third");
    let (open, named) = (kept.metadata(), fs::metadata(rig.path("kept/file")));
    assert_eq!(open.unwrap().ino(), named.unwrap().ino());
    drop((kept, unlinked, new, in_snapshot));
    rig.finish();
}

#[test]
fn a_descriptor_never_becomes_one_of_another_file() {
    let Some(mut rig) = Rig::new(&[]) else {
        return;
    };
    let empty = snapshot(&rig, "empty");
    let old = File::create_new(rig.path("old")).unwrap();
    old.write_at(b"old", 0).unwrap();
    let number = old.metadata().unwrap().ino();
    roll_back(&mut rig, &empty);
    // The numbers of new files begin at the same one.
    let new = (0..1000).map(|count| rig.path(&format!("new{count}")));
    let new = new.into_iter().find(|path| {
        fs::write(path, "new").unwrap();
        fs::metadata(path).unwrap().ino() == number
    });
    let new = new.expect("the number is used again");
    assert!(old.write_at(b"lost", 0).is_err());
    assert!(read(&old).is_err());
    assert_eq!(fs::read_to_string(&new).unwrap(), "new");
    drop(old);
    rig.finish();
}

#[test]
fn changed_pages_of_mappings_do_not_reach_the_files_after() {
    let Some(mut rig) = Rig::new(&[]) else {
        return;
    };
    let page = vec![b'a'; 8192];
    fs::write(rig.path("file"), &page).unwrap();
    let one = snapshot(&rig, "one");
    let file = File::options()
        .read(true)
        .write(true)
        .open(rig.path("file"))
        .unwrap();
    let mut mapping = Mapping::new(&file, 8192);
    mapping.write(0, b"written");
    mapping.sync();
    mapping.write(4096, b"dirty");
    roll_back(&mut rig, &one);
    assert_eq!(fs::read(rig.path("file")).unwrap(), page);
    assert_eq!(mapping.read(4096, 5), b"aaaaa");
    // The lost change is reported once.
    assert!(file.sync_all().is_err() || mapping.try_sync().is_err());
    mapping.write(4096, b"again");
    mapping.sync();
    file.sync_all().unwrap();
    assert_eq!(fs::read(rig.path("file")).unwrap()[4096..4101], *b"again");
    drop((mapping, file));
    rig.finish();
}

#[test]
fn changed_pages_of_mappings_are_written_if_nothing_was_replaced() {
    let Some(mut rig) = Rig::new(&[]) else {
        return;
    };
    fs::write(rig.path("file"), vec![b'a'; 8192]).unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .open(rig.path("file"))
        .unwrap();
    let mut mapping = Mapping::new(&file, 8192);
    mapping.write(4096, b"dirty");
    let missing = format!("{}@missing", rig.dataset);
    rig.reopen_files(false, |pool| {
        pool.datasets().rollback(&missing).unwrap_err();
    });
    assert_eq!(mapping.read(4096, 5), b"dirty");
    mapping.sync();
    file.sync_all().unwrap();
    assert_eq!(fs::read(rig.path("file")).unwrap()[4096..4101], *b"dirty");
    drop((mapping, file));
    rig.finish();
}

/// Programs that read, write, create and list meanwhile see the state before or after, and no other error than that a file
/// is gone.
#[test]
fn programs_at_work_wait_and_continue() {
    let Some(mut rig) = Rig::new(&[]) else {
        return;
    };
    fs::create_dir(rig.path("files")).unwrap();
    for number in 0..50 {
        fs::write(rig.path(&format!("files/{number}")), "kept").unwrap();
    }
    let one = snapshot(&rig, "one");
    let is_over = AtomicBool::new(false);
    let folder = rig.path("files");
    thread::scope(|scope| {
        for worker in 0..4 {
            let (is_over, folder) = (&is_over, &folder);
            scope.spawn(move || {
                let kept = File::options()
                    .read(true)
                    .write(true)
                    .open(folder.join(format!("{worker}")))
                    .unwrap();
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    let path = folder.join(format!("w{worker}-{round}"));
                    let made = fs::write(&path, "made").and_then(|()| fs::read(&path));
                    match made {
                        Ok(bytes) => assert!(bytes == b"made" || bytes.is_empty(), "{bytes:?}"),
                        Err(error) => {
                            let is_gone = error.kind() == ErrorKind::NotFound
                                || error.raw_os_error() == STALE;
                            assert!(is_gone, "{error}");
                        }
                    }
                    kept.write_at(b"new!", 0).unwrap();
                    assert_eq!(read(&kept).unwrap().len(), 4);
                    kept.sync_all().unwrap();
                    let names = fs::read_dir(folder).unwrap().count();
                    assert!(names >= 50, "{names}");
                }
            });
        }
        for _ in 0..5 {
            thread::sleep(std::time::Duration::from_millis(200));
            roll_back(&mut rig, &one);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    roll_back(&mut rig, &one);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 50);
    for number in 0..50 {
        let content = fs::read_to_string(folder.join(number.to_string())).unwrap();
        assert_eq!(content, "kept");
    }
    rig.finish();
}

#[test]
fn without_files_all_requests_fail() {
    let Some(rig) = Rig::new(&[]) else {
        return;
    };
    fs::write(rig.path("file"), "text").unwrap();
    let file = File::open(rig.path("file")).unwrap();
    drop(rig.mount.suspend().unwrap());
    assert!(file.sync_all().is_err());
    assert!(rig.mount.suspend().is_err());
    drop(file);
    rig.finish();
}
