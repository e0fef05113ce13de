//! We write files of every kind and with all attributes.
//!
//! `zdb` then judges the pool and prints every object, which must match our reader line by line.

mod golden;
mod printed;

use millpond_dataset::PropertyValue;
use millpond_engine::{
    Allocate, Caller, DirEntryRef, FileSystem, NewMode, Node, OpenOptions, Pool, PoolBuilder,
    RenameMode, Search, SetAttributes, SpecialFile, View, WriteAt, WriteOptions, XattrMode,
};
use millpond_posix::{
    Errno, FileFlags, POSIX_ACL_DEFAULT, PosixAcl, PosixAclWho, QuotaMeasure, QuotaOwner, Timestamp,
};
use millpond_sim::noise;
use millpond_tests::oracle::zdb;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

const MODE: NewMode = NewMode {
    mode: 0o666,
    umask: 0o022,
};

struct Rig {
    folder: TempDir,
    images: Vec<PathBuf>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images: Vec<PathBuf> = (0..2)
            .map(|number| folder.path().join(format!("d{number}.img")))
            .collect();
        for image in &images {
            std::fs::File::create(image)
                .unwrap()
                .set_len(256 << 20)
                .unwrap();
        }
        Self { folder, images }
    }
    fn create(&self) -> Pool {
        PoolBuilder::new("tank")
            .mirror(&self.images)
            .create()
            .unwrap()
    }
    fn open(&self) -> Pool {
        let search = Search::new([self.folder.path()]);
        Pool::open(
            &search,
            "tank",
            &OpenOptions::default(),
            &WriteOptions::default(),
        )
        .unwrap()
    }
    fn read(&self) -> View {
        let search = Search::new([self.folder.path()]);
        View::open(&search, "tank", &OpenOptions::default()).unwrap()
    }
    /// `zdb` must find no errors, and print every file of these file systems as our reader sees it.
    fn judge(&self, names: &[&str]) {
        if let Some(keep) = std::env::var_os("MILLPOND_KEEP_IMAGES") {
            for image in &self.images {
                std::fs::copy(image, PathBuf::from(&keep).join(image.file_name().unwrap()))
                    .unwrap();
            }
        }
        zdb::judge(self.folder.path(), "tank")
            .unwrap()
            .require("tank");
        let pool = self.read();
        for name in names {
            let files = pool.dataset(name).unwrap().file_system().unwrap();
            printed::compare(self.folder.path(), name, &files);
        }
    }
}

/// Writes all kinds of files into a file system.
fn fill(files: &Arc<FileSystem>) {
    let root = Caller::root();
    let user = Caller::user(1000, 100);
    let top = files.root().unwrap();
    let file = |directory: &Node, name: &[u8], content: &[u8]| {
        let (node, _) = files.create(&user, directory, name, MODE, true).unwrap();
        files
            .write(&user, &node, WriteAt::Offset(0), content)
            .unwrap();
        node
    };
    file(&top, b"empty", b"");
    file(&top, b"short", b"short");
    for (number, length) in [511usize, 513, 4096, 100_000, 131_072, 131_073, 3_000_000]
        .iter()
        .enumerate()
    {
        file(
            &top,
            format!("of-{length}").as_bytes(),
            &noise(number as u64, *length),
        );
    }
    // Holes: at the start, punched, truncated and extended again.
    let holed = file(&top, b"holed", &noise(9, 1_000_000));
    files
        .allocate(&holed, Allocate::PunchHole, 200_000, 500_000)
        .unwrap();
    let far = file(&top, b"far", b"");
    files
        .write(&root, &far, WriteAt::Offset(5 << 30), b"far away")
        .unwrap();
    let cut = file(&top, b"cut", &noise(10, 700_000));
    for size_bytes in [300_001, 900_000] {
        let set = SetAttributes {
            size_bytes: Some(size_bytes),
            ..SetAttributes::default()
        };
        files.set_attributes(&root, &cut, &set).unwrap();
    }
    // All kinds of special files.
    let kinds = files
        .make_directory(&user, &top, b"kinds", NewMode::exactly(0o1777))
        .unwrap();
    files
        .make_symlink(&user, &kinds, b"short-link", b"../short")
        .unwrap();
    files
        .make_symlink(&user, &kinds, b"long-link", &[b'x'; 3000])
        .unwrap();
    for (name, what) in [
        (&b"fifo"[..], SpecialFile::Fifo),
        (b"socket", SpecialFile::Socket),
        (b"character", SpecialFile::CharacterDevice(5, 1)),
        (b"block", SpecialFile::BlockDevice(259, 70_000)),
    ] {
        files
            .make_special(&root, &kinds, name, what, NewMode::exactly(0o640))
            .unwrap();
    }
    // A directory that becomes a fat ZAP.
    let many = files
        .make_directory(&user, &top, b"many", NewMode::exactly(0o755))
        .unwrap();
    for number in 0..3000 {
        let name = format!("file number {number}").into_bytes();
        files.create(&user, &many, &name, MODE, true).unwrap();
    }
    for number in (0..3000).step_by(3) {
        files
            .unlink(&many, format!("file number {number}").as_bytes())
            .unwrap();
    }
    // Links and renames.
    let linked = file(&top, b"linked", b"three names");
    files.link(&linked, &kinds, b"second").unwrap();
    files.link(&linked, &many, b"third").unwrap();
    let place = |directory, name: &'static [u8]| DirEntryRef { directory, name };
    files
        .rename(
            &root,
            place(&top, b"linked"),
            place(&many, b"moved"),
            RenameMode::Whiteout,
        )
        .unwrap();
    files
        .rename(
            &root,
            place(&top, b"short"),
            place(&top, b"empty"),
            RenameMode::Exchange,
        )
        .unwrap();
    // Extended attributes in all places where they can be stored.
    let attributed = file(&top, b"attributed", b"x");
    for (name, length) in [
        ("user.small", 10),
        ("user.spilled", 5_000),
        ("user.hidden", 50_000),
        ("trusted.t", 0),
    ] {
        files
            .set_xattr(
                &root,
                &attributed,
                name.as_bytes(),
                &noise(1, length),
                XattrMode::Set,
            )
            .unwrap();
    }
    files
        .set_xattr(
            &root,
            &kinds,
            b"user.on-directory",
            b"value",
            XattrMode::Set,
        )
        .unwrap();
    // Modes, owners, flags, times, project.
    let odd = file(&top, b"odd", b"odd");
    let set = SetAttributes {
        permissions: Some(0o4604),
        uid: Some(u32::MAX - 2),
        gid: Some(77),
        project: Some(4242),
        mtime: Some(millpond_engine::SetTime::To(Timestamp {
            seconds: -1000,
            nanoseconds: 5,
        })),
        set_flags: FileFlags::APPENDONLY | FileFlags::NODUMP,
        ..SetAttributes::default()
    };
    files.set_attributes(&root, &odd, &set).unwrap();
    let project = files
        .make_directory(&user, &top, b"project", NewMode::exactly(0o2755))
        .unwrap();
    let set = SetAttributes {
        project: Some(17),
        set_flags: FileFlags::PROJECT_INHERIT,
        ..SetAttributes::default()
    };
    files.set_attributes(&root, &project, &set).unwrap();
    file(&project, b"inherits", b"project 17");
    // Removed files leave nothing behind.
    let gone = file(&top, b"gone", &noise(3, 2_000_000));
    files
        .set_xattr(
            &root,
            &gone,
            b"user.hidden",
            &noise(1, 60_000),
            XattrMode::Set,
        )
        .unwrap();
    drop(gone);
    files.unlink(&top, b"gone").unwrap();
}

#[test]
fn zdb_prints_every_kind_of_item_as_millpond_reads_it() {
    let rig = Rig::new();
    let pool = rig.create();
    let number = |name: &str, value: u64| (name.to_owned(), PropertyValue::Number(value));
    let datasets = Arc::clone(pool.datasets());
    datasets.create_filesystem("tank/plain", &[]).unwrap();
    let legacy = [
        number("xattr", 1),
        number("recordsize", 8192),
        number("compression", 2),
    ];
    datasets.create_filesystem("tank/legacy", &legacy).unwrap();
    let modern = [
        number("dnodesize", 1),
        number("recordsize", 1 << 20),
        number("acltype", 1),
        number("longname", 1),
    ];
    datasets.create_filesystem("tank/modern", &modern).unwrap();
    for name in ["tank/plain", "tank/legacy", "tank/modern"] {
        fill(&pool.file_system(name).unwrap());
    }
    let files = pool.file_system("tank/modern").unwrap();
    let (root, top) = (Caller::root(), files.root().unwrap());
    let acl = PosixAcl::new(vec![
        (PosixAclWho::Owner, 7),
        (PosixAclWho::User(1000), 7),
        (PosixAclWho::Group, 5),
        (PosixAclWho::Mask, 7),
        (PosixAclWho::Others, 0),
    ]);
    let listed = files.make_directory(&root, &top, b"listed", MODE).unwrap();
    let value = acl.unwrap().encode();
    files
        .set_xattr(&root, &listed, POSIX_ACL_DEFAULT, &value, XattrMode::Set)
        .unwrap();
    files
        .create(&root, &listed, b"inherits", MODE, true)
        .unwrap();
    files
        .create(&root, &top, &[b'n'; 1000], MODE, true)
        .unwrap();
    files
        .set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 1000, 1 << 30)
        .unwrap();
    drop((listed, top, files));
    pool.export().unwrap();
    rig.judge(&["tank/plain", "tank/legacy", "tank/modern"]);
}

#[test]
fn everything_is_removed_again() {
    let rig = Rig::new();
    let pool = rig.create();
    pool.datasets().create_filesystem("tank/fs", &[]).unwrap();
    let files = pool.file_system("tank/fs").unwrap();
    fill(&files);
    pool.sync().unwrap();
    drop(files);
    pool.export().unwrap();
    let pool = rig.open();
    let files = pool.file_system("tank/fs").unwrap();
    let top = files.root().unwrap();
    empty(&files, &top);
    files.close_unused().unwrap();
    pool.sync().unwrap();
    let used = |measure| files.used(QuotaOwner::User, measure, 1000).unwrap();
    assert_eq!(
        (used(QuotaMeasure::Bytes), used(QuotaMeasure::Objects)),
        (0, 0)
    );
    drop((top, files));
    pool.export().unwrap();
    rig.judge(&["tank/fs"]);
}

fn empty(files: &Arc<FileSystem>, directory: &Node) {
    let root = Caller::root();
    for listed in directory.list(0, usize::MAX).unwrap() {
        let name = listed.entry.name;
        if name == b"." || name == b".." {
            continue;
        }
        let node = directory.lookup(&name).unwrap();
        let clear = SetAttributes {
            clear_flags: FileFlags::APPENDONLY,
            ..SetAttributes::default()
        };
        files.set_attributes(&root, &node, &clear).unwrap();
        let is_directory = listed.entry.kind == Some(millpond_posix::FileKind::Directory);
        if is_directory {
            empty(files, &node);
        }
        drop(node);
        let removed = if is_directory {
            files.remove_directory(directory, &name)
        } else {
            files.unlink(directory, &name)
        };
        removed.unwrap();
    }
}

#[test]
fn a_dataset_quota_stops_writing_and_leaves_the_pool_whole() {
    let rig = Rig::new();
    let pool = rig.create();
    let quota = [("quota".to_owned(), PropertyValue::Number(20 << 20))];
    pool.datasets()
        .create_filesystem("tank/fs", &quota)
        .unwrap();
    let files = pool.file_system("tank/fs").unwrap();
    let (root, top) = (Caller::root(), files.root().unwrap());
    let (file, _) = files.create(&root, &top, b"f", MODE, true).unwrap();
    let block = noise(1, 1 << 20);
    let mut written = 0;
    let error = loop {
        match files.write(&root, &file, WriteAt::End, &block) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 64, "the quota holds nothing up");
    };
    assert!(
        matches!(error.errno(), Errno::EDQUOT | Errno::ENOSPC),
        "{error}"
    );
    assert!(written >= 10, "{written} MiB of 20");
    drop(file);
    files.unlink(&top, b"f").unwrap();
    pool.sync().unwrap();
    drop((top, files));
    pool.export().unwrap();
    rig.judge(&["tank/fs"]);
}

#[test]
fn volumes_are_written_resized_and_discarded() {
    let rig = Rig::new();
    let pool = rig.create();
    let size = |name: &str, value: u64| (name.to_owned(), PropertyValue::Number(value));
    let properties = [size("volsize", 32 << 20), size("volblocksize", 16 << 10)];
    pool.datasets()
        .create_volume("tank/v", &properties)
        .unwrap();
    let volume = pool.volume("tank/v").unwrap();
    let content = noise(5, 5_000_000);
    volume.write(1_000_001, &content).unwrap();
    volume.discard(2_000_000, 1_000_000).unwrap();
    volume.resize(8 << 20).unwrap();
    assert!(volume.write(8 << 20, b"x").is_err());
    pool.sync().unwrap();
    drop(volume);
    pool.export().unwrap();
    zdb::judge(rig.folder.path(), "tank")
        .unwrap()
        .require("tank");
    let pool = rig.read();
    let volume = pool.dataset("tank/v").unwrap().volume().unwrap();
    assert_eq!(volume.size_bytes(), 8 << 20);
    let mut wanted = vec![0; 8 << 20];
    wanted[1_000_001..6_000_001].copy_from_slice(&content);
    // Whole blocks inside the discarded range.
    let block = 16 << 10;
    let (from, to) = (
        2_000_000usize.div_ceil(block) * block,
        3_000_000 / block * block,
    );
    wanted[from..to].fill(0);
    let mut found = vec![1; 8 << 20];
    volume.read(0, &mut found).unwrap();
    assert!(found == wanted);
}
