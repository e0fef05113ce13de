//! Flags that were cleared before a crash do not keep the intent log from being replayed.

use crate::sim;
use millpond_engine::{
    Caller, DirEntryRef, FileFlags, FileSystem, NewLayout, NewMode, Node, Pool, RenameMode,
    SetAttributes, WriteAt,
};
use millpond_sim::{PowerCut, World};

fn create(files: &FileSystem, directory: &Node, name: &[u8]) -> Node {
    let mode = NewMode::exactly(0o600);
    let created = files.create(&Caller::root(), directory, name, mode, true);
    created.unwrap().0
}

fn set(files: &FileSystem, node: &Node, set: &SetAttributes) {
    files.set_attributes(&Caller::root(), node, set).unwrap();
}

fn flags(set: FileFlags, clear: FileFlags) -> SetAttributes {
    SetAttributes {
        set_flags: set,
        clear_flags: clear,
        ..SetAttributes::default()
    }
}

/// What the tests use: a directory `d` with a file `old`, and a file `f` beside it.
struct Stage {
    pool: Pool,
    files: std::sync::Arc<FileSystem>,
    d: Node,
    old: Node,
}

impl Stage {
    fn new(world: &World) -> Self {
        let pool = sim::create(world, &[(NewLayout::Mirror, 2)], 64);
        let files = pool.file_system("tank").unwrap();
        let root = files.root().unwrap();
        let mode = NewMode::exactly(0o755);
        let d = files.make_directory(&Caller::root(), &root, b"d", mode);
        let d = d.unwrap();
        let old = create(&files, &d, b"old");
        create(&files, &root, b"f");
        // From now on there is a log.
        files.commit_log().unwrap();
        Self {
            pool,
            files,
            d,
            old,
        }
    }
}

/// Commits what `before` does, then does `then` and syncs a further file only; the power fails. That file must be there.
fn survives(number: u64, before: impl FnOnce(&Stage), then: impl FnOnce(&Stage)) -> Pool {
    let world = World::new(number);
    let stage = Stage::new(&world);
    before(&stage);
    stage.pool.sync().unwrap();
    then(&stage);
    let root = stage.files.root().unwrap();
    let after = create(&stage.files, &root, b"after");
    let caller = Caller::root();
    (stage.files)
        .write(&caller, &after, WriteAt::Offset(0), b"synced")
        .unwrap();
    stage.files.fsync(&after).unwrap();
    drop((after, root, stage));
    let world = world.reborn(world.recorded(), &PowerCut::EverythingWritten);
    let pool = sim::open(&world).unwrap();
    let files = pool.file_system("tank").unwrap();
    let after = files.root().unwrap().lookup(b"after").unwrap();
    let mut content = [0; 6];
    assert_eq!(after.read(0, &mut content).unwrap(), 6);
    assert_eq!(&content, b"synced");
    pool
}

fn has(pool: &Pool, path: &[&[u8]]) -> bool {
    let files = pool.file_system("tank").unwrap();
    let mut at = files.root().unwrap();
    path.iter().all(|name| {
        let found = at.lookup(name);
        found.map(|node| at = node).is_ok()
    })
}

#[test]
fn a_directory_that_was_immutable_gets_a_file() {
    for flag in [FileFlags::IMMUTABLE, FileFlags::READONLY] {
        let pool = survives(
            171,
            |stage| set(&stage.files, &stage.d, &flags(flag, FileFlags::empty())),
            |stage| {
                set(&stage.files, &stage.d, &flags(FileFlags::empty(), flag));
                create(&stage.files, &stage.d, b"new");
            },
        );
        assert!(has(&pool, &[b"d", b"new"]));
    }
}

#[test]
fn a_file_that_was_immutable_is_removed() {
    for flag in [
        FileFlags::IMMUTABLE,
        FileFlags::APPENDONLY,
        FileFlags::NOUNLINK,
    ] {
        let pool = survives(
            172,
            |stage| set(&stage.files, &stage.old, &flags(flag, FileFlags::empty())),
            |stage| {
                set(&stage.files, &stage.old, &flags(FileFlags::empty(), flag));
                stage.files.unlink(&stage.d, b"old").unwrap();
            },
        );
        assert!(has(&pool, &[b"d"]) && !has(&pool, &[b"d", b"old"]));
    }
}

#[test]
fn a_directory_that_kept_to_a_project_gets_a_file() {
    let pool = survives(
        173,
        |stage| {
            let project = SetAttributes {
                project: Some(5),
                ..flags(FileFlags::PROJECT_INHERIT, FileFlags::empty())
            };
            set(&stage.files, &stage.d, &project);
        },
        |stage| {
            let cleared = flags(FileFlags::empty(), FileFlags::PROJECT_INHERIT);
            set(&stage.files, &stage.d, &cleared);
            let root = stage.files.root().unwrap();
            let from = DirEntryRef {
                directory: &root,
                name: b"f",
            };
            let to = DirEntryRef {
                directory: &stage.d,
                name: b"moved",
            };
            let mode = RenameMode::Replace;
            (stage.files)
                .rename(&Caller::root(), from, to, mode)
                .unwrap();
        },
    );
    assert!(has(&pool, &[b"d", b"moved"]) && !has(&pool, &[b"f"]));
}

/// A file's own changes are in the list of the file: they are there if it was synced.
#[test]
fn flags_that_were_cleared_stay_cleared() {
    let pool = survives(
        174,
        |stage| {
            let immutable = flags(FileFlags::IMMUTABLE, FileFlags::empty());
            set(&stage.files, &stage.old, &immutable);
        },
        |stage| {
            let cleared = flags(FileFlags::empty(), FileFlags::IMMUTABLE);
            set(&stage.files, &stage.old, &cleared);
        },
    );
    // OpenZFS checks flags when it replays: the record stands before those of names that come after it.
    let files = pool.file_system("tank").unwrap();
    let d = files.root().unwrap().lookup(b"d").unwrap();
    files.unlink(&d, b"old").unwrap();
}

/// Who may not keep the set-user bit has cleared it for good.
#[test]
fn a_truncation_clears_the_set_user_bit_after_a_crash_too() {
    let set_user = SetAttributes {
        permissions: Some(0o4777),
        ..SetAttributes::default()
    };
    let cut = SetAttributes {
        size_bytes: Some(3),
        ..SetAttributes::default()
    };
    let pool = survives(
        179,
        |stage| set(&stage.files, &stage.old, &set_user),
        |stage| {
            let user = Caller::user(1000, 1000);
            let files = &stage.files;
            files.set_attributes(&user, &stage.old, &cut).unwrap();
            files.fsync(&stage.old).unwrap();
        },
    );
    let files = pool.file_system("tank").unwrap();
    let d = files.root().unwrap().lookup(b"d").unwrap();
    let stat = d.lookup(b"old").unwrap().stat().unwrap();
    assert_eq!((stat.size_bytes, stat.permissions), (3, 0o777));
}
