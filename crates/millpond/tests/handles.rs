//! What must not be lost: what handles keep open, and where paths of forged directories lead.
#![allow(clippy::unwrap_used)]

use millpond::{Error, ErrorKind, FileSystem, OpenOptions, Pool, PoolBuilder};
use millpond_dataset::Estimate;
use millpond_ondisk::ObjectId;
use millpond_zap::ZapMut;
use std::path::{Path, PathBuf};

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(128 << 20).unwrap();
    image
}

fn make(folder: &Path) -> Pool {
    let pool = PoolBuilder::new("tank").single(image(folder));
    pool.create().unwrap()
}

fn kind<T>(outcome: Result<T, Error>) -> ErrorKind {
    outcome.err().unwrap().kind()
}

#[test]
fn removing_a_directory_follows_no_symbolic_link_and_needs_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    let files = pool.file_system("tank").unwrap();
    files.create_dir_all("kept/below").unwrap();
    files.write("kept/below/file", "x").unwrap();
    files.symlink("kept", "link").unwrap();
    for path in ["link", "link/"] {
        assert_eq!(kind(files.remove_dir_all(path)), ErrorKind::NotADirectory);
    }
    assert_eq!(
        kind(files.remove_dir_all("kept/below/file")),
        ErrorKind::NotADirectory
    );
    for path in ["", "/", "kept/.."] {
        assert_eq!(kind(files.remove_dir_all(path)), ErrorKind::InvalidInput);
    }
    assert_eq!(files.read("link/below/file").unwrap(), b"x");
    files.remove_dir_all("kept").unwrap();
    assert!(files.symlink_metadata("link").is_ok());
}

#[test]
fn file_systems_and_volumes_keep_the_pool_open() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    let files = pool.create_file_system("tank/home").create().unwrap();
    let disk = pool.create_volume("tank/disk", 1 << 20).create().unwrap();
    files.write("file", "before").unwrap();
    drop(pool);
    let mut file = files.open("file").unwrap();
    drop(files);
    file.write_all_at(b"after.", 0).unwrap();
    std::io::Write::write_all(&mut file, b"after!").unwrap();
    file.sync_all().unwrap();
    drop(file);
    disk.write_all_at(b"disk", 0).unwrap();
    disk.sync().unwrap();
    drop(disk);

    let options = OpenOptions::new().search(folder.path()).write(true);
    let open = || options.open("tank").unwrap();
    let files = open().file_system("tank/home").unwrap();
    assert_eq!(files.read("file").unwrap(), b"after!");
    files.vfs().sync().unwrap();
    drop(files);
    let mut bytes = [0; 4];
    let disk = open().volume("tank/disk").unwrap();
    disk.read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"disk");
}

#[test]
fn a_dropped_pool_can_be_opened_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = make(folder.path());
    let options = OpenOptions::new().search(folder.path()).write(true);
    for round in 0..40u8 {
        let files = pool.file_system("tank").unwrap();
        files.write("round", [round]).unwrap();
        drop(files);
        // The thread that writes txgs wakes this one before it has released the pool.
        let is_kept = round % 4 != 0;
        if is_kept {
            pool.sync().unwrap();
        }
        drop(pool);
        pool = options.open("tank").unwrap();
        let files = pool.file_system("tank").unwrap();
        assert!(!is_kept || files.read("round").unwrap() == [round]);
    }
}

#[test]
fn a_state_that_expired_is_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    pool.file_system("tank").unwrap().create_dir("d").unwrap();
    pool.snapshot(["tank@s"]).unwrap();
    let old = pool.dataset("tank@s").unwrap();
    let files = pool.file_system("tank@s").unwrap();
    assert_eq!(kind(files.open("none")), ErrorKind::NotFound);
    // More than the pool keeps.
    let newer: Vec<_> = (0..300).map(|_| pool.dataset("tank").unwrap()).collect();
    assert_eq!(kind(files.open("none")), ErrorKind::Expired);
    assert_eq!(kind(old.properties()), ErrorKind::Expired);
    drop(newer);
    assert_eq!(kind(files.read("d/none")), ErrorKind::Expired);
    assert!(pool.file_system("tank@s").unwrap().exists("d").unwrap());
}

#[test]
fn destroyed_pools_are_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions::new().search(folder.path());
    let pool = millpond_engine::PoolBuilder::new("tank").single(image(folder.path()));
    let pool = pool.create().unwrap();
    assert_eq!(options.list(), ["tank"]);
    pool.inner().destroy().unwrap();
    drop(pool);
    assert!(options.list().is_empty());
    assert_eq!(kind(options.open("tank")), ErrorKind::NotFound);
}

/// Makes a file system `tank/forged` with a directory `d`, in which an entry with this name leads to the root
/// directory, or to a file.
fn forged(folder: &Path, name: &[u8], leads_to_root: bool) -> FileSystem {
    const DIRECTORY: u64 = 4 << 60;
    const FILE: u64 = 8 << 60;
    let pool = millpond_engine::PoolBuilder::new("tank").single(image(folder));
    let pool = pool.create().unwrap();
    pool.datasets()
        .create_filesystem("tank/forged", &[])
        .unwrap();
    let mut ids = vec![];
    {
        let files = pool.file_system("tank/forged").unwrap();
        let caller = millpond_engine::Caller::root();
        let mode = millpond_engine::NewMode::exactly(0o755);
        let root = files.root().unwrap();
        let directory = files.make_directory(&caller, &root, b"d", mode).unwrap();
        let (file, _) = files.create(&caller, &root, b"file", mode, true).unwrap();
        ids.extend([root.id(), directory.id(), file.id()]);
        let head = pool.datasets().open_head("tank/forged").unwrap();
        let tx = head
            .begin(Estimate {
                bytes: 1 << 20,
                ..Estimate::default()
            })
            .unwrap();
        let table = ZapMut::of_set(&head.set(), directory.id(), &tx).unwrap();
        let ObjectId(id) = if leads_to_root { root.id() } else { file.id() };
        let value = id | if leads_to_root { DIRECTORY } else { FILE };
        table.insert_u64(name, value).unwrap();
    }
    pool.export().unwrap();
    let options = OpenOptions::new().search(folder).write(true);
    options
        .open("tank")
        .unwrap()
        .file_system("tank/forged")
        .unwrap()
}

#[test]
fn names_that_lead_out_of_their_directory_are_damage() {
    for name in [&b"/file"[..], b"../file", b"..", b"."] {
        let folder = tempfile::tempdir().unwrap();
        let files = forged(folder.path(), name, false);
        let found = files.read_dir("d").unwrap().next().unwrap();
        assert_eq!(kind(found), ErrorKind::Damaged, "{name:?}");
        assert_eq!(kind(files.remove_dir_all("d")), ErrorKind::Damaged);
        assert!(files.exists("file").unwrap());
    }
}

#[test]
fn a_directory_below_itself_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let files = forged(folder.path(), b"up", true);
    let walk: Vec<_> = files.walk("/").unwrap().take(10).collect();
    let paths = walk.iter().flatten().map(millpond::DirEntry::path);
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    assert_eq!(paths, ["/d", "/d/up", "/file"].map(PathBuf::from));
    assert_eq!(walk.len(), 4);
    let error = walk.into_iter().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("/d/up"), "{error}");
    assert_eq!(kind(files.remove_dir_all("d")), ErrorKind::Damaged);
}

#[test]
fn files_of_a_pool_share_what_is_copied_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let pool = make(folder.path());
    let home = pool.create_file_system("tank/home").create().unwrap();
    let other = pool.create_file_system("tank/other").create().unwrap();
    let bytes: Vec<u8> = (0..1_000_000u32)
        .map(|at| (at.wrapping_mul(at) >> 7) as u8)
        .collect();
    home.write("source", &bytes).unwrap();
    pool.sync().unwrap();
    let source = home.open("source").unwrap();
    let copy = other.create("copy").unwrap();
    assert_eq!(copy.copy_from(&source, 0, 0, u64::MAX).unwrap(), 1_000_000);
    assert_eq!(other.read("copy").unwrap(), bytes);
    pool.sync().unwrap();
    home.remove_file("source").unwrap();
    drop(source);
    pool.sync().unwrap();
    assert_eq!(other.read("copy").unwrap(), bytes);
}

#[test]
fn a_pool_with_an_older_copy_is_written_to_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| {
        let below = folder.path().join(name);
        std::fs::create_dir(&below).unwrap();
        image(&below)
    });
    let pool = PoolBuilder::new("tank").single(&first).single(&second);
    pool.create().unwrap().export().unwrap();
    let open = || OpenOptions::new().search(&first).search(&second);
    let copy = folder.path().join("copy");
    std::fs::copy(&second, &copy).unwrap();
    for _ in 0..3 {
        let pool = open().write(true).open("tank").unwrap();
        pool.file_system("tank").unwrap().write("f", "x").unwrap();
        pool.export().unwrap();
    }
    std::fs::copy(&copy, &second).unwrap();
    assert_eq!(kind(open().write(true).open("tank")), ErrorKind::ReadOnly);
    open().open("tank").unwrap();
    let forced = open().write(true).force(true);
    forced.open("tank").unwrap();
}
