//! Creates, moves, removes, finds and lists names.

use super::{MODE, errno, plain, root};
use crate::support::Rig;
use millpond_env::Tunable;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, Level};
use millpond_posix::{
    Case, DirEntryRef, Errno, FileError, FileKind, FileSystem, NewFileSystem, Node, RenameMode,
    Settings, Symlinks, WriteAt,
};
use millpond_sa::value::{time, word};
use millpond_sa::{SaAttribute, SaLayouts, SaObject};
use std::sync::atomic::Ordering;

#[test]
fn an_unlinked_file_lasts_until_its_last_handle() {
    let (mut rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    files
        .write(&root(), &file, WriteAt::End, &[9; 5000])
        .unwrap();
    let id = file.id();
    files.unlink(&top, b"f").unwrap();
    assert_eq!(errno(top.lookup(b"f")), Errno::ENOENT);
    let mut content = [0; 5000];
    assert_eq!(file.read(0, &mut content).unwrap(), 5000);
    assert_eq!(content[4999], 9);
    assert_eq!(errno(files.link(&file, &top, b"again")), Errno::ENOENT);
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), [id]);
    drop(file);
    files.reap().unwrap();
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    assert!(rig.set.object(id).is_err());
    rig.check_space();
    rig.check_accounting();

    // A file left by a crash is freed after the next opening.
    let (file, _) = files.create(&root(), &top, b"g", MODE, true).unwrap();
    let id = file.id();
    files.unlink(&top, b"g").unwrap();
    rig.sync();
    std::mem::forget(file);
    let files = rig.reopen(Settings::default());
    assert_eq!(errno(files.node(id)), Errno::ESTALE);
    files.free_unlinked().unwrap();
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    assert!(rig.set.object(id).is_err());
    rig.check_space();
}

#[test]
fn unlinked_files_are_counted_and_kept_as_long_as_asked() {
    let (mut rig, files) = plain();
    let top = files.root().unwrap();
    let names: [&[u8]; 2] = [b"f", b"g"];
    for name in names {
        let (file, _) = files.create(&root(), &top, name, MODE, true).unwrap();
        let at = WriteAt::Offset(0);
        files.write(&root(), &file, at, &[9; 5000]).unwrap();
    }
    let counts = |files: &FileSystem| {
        let counts = files.statistics().unwrap();
        (counts.unlinks, counts.unlinked)
    };
    let written = files.statistics().unwrap();
    assert_eq!((written.writes, written.written_bytes), (2, 10_000));
    assert_eq!(counts(&files), (0, 0));
    files.unlink(&top, names[0]).unwrap();
    assert_eq!(counts(&files), (1, 1));
    let tunables = Arc::clone(&rig.env.tunables);
    let suspend = |value| assert!(tunables.set(Tunable::UnlinkSuspendProgress, value));
    suspend(1);
    files.unlink(&top, names[1]).unwrap();
    files.free_unlinked().unwrap();
    assert_eq!(counts(&files), (2, 1));
    rig.sync();
    // It stays in the set until the file system is opened again and may free it.
    let files = rig.reopen(Settings::default());
    files.free_unlinked().unwrap();
    assert_eq!(counts(&files), (1, 0));
    suspend(0);
    files.free_unlinked().unwrap();
    assert_eq!(counts(&files), (1, 1));
    rig.sync();
    assert_eq!(rig.committed().unlinked().unwrap(), []);
    rig.check_space();
}

#[test]
fn a_tmpfile_is_linked_or_freed() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let file = files.create_tmpfile(&root(), &top, MODE).unwrap();
    let lost = files.create_tmpfile(&root(), &top, MODE).unwrap();
    files
        .write(&root(), &file, WriteAt::End, b"content")
        .unwrap();
    rig.sync();
    let mut unlinked = rig.committed().unlinked().unwrap();
    unlinked.sort();
    assert_eq!(unlinked, [file.id(), lost.id()]);
    files.link(&file, &top, b"named").unwrap();
    drop(lost);
    files.reap().unwrap();
    rig.sync();
    let committed = rig.committed();
    assert_eq!(committed.unlinked().unwrap(), []);
    let node = committed.resolve(b"named", Symlinks::Keep).unwrap();
    assert_eq!((node.id(), node.stat().unwrap().links), (file.id(), 1));
    rig.check_space();
}

#[test]
fn renames_move_replace_exchange_and_leave_whiteouts() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let one = files.make_directory(&root(), &top, b"one", MODE).unwrap();
    let two = files.make_directory(&root(), &top, b"two", MODE).unwrap();
    let place = |directory, name| DirEntryRef { directory, name };
    let rename =
        |from: DirEntryRef<'_>, to: DirEntryRef<'_>, mode| files.rename(&root(), from, to, mode);
    let (a, _) = files.create(&root(), &one, b"a", MODE, true).unwrap();
    let (b, _) = files.create(&root(), &two, b"b", MODE, true).unwrap();
    let (from, to) = (place(&one, b"a"), place(&two, b"b"));
    assert_eq!(
        errno(rename(from, to, RenameMode::NoReplace)),
        Errno::EEXIST
    );
    rename(from, to, RenameMode::Exchange).unwrap();
    assert_eq!(one.lookup(b"a").unwrap().id(), b.id());
    assert_eq!(two.lookup(b"b").unwrap().id(), a.id());
    let b_id = b.id();
    drop(b);
    rename(to, from, RenameMode::Whiteout).unwrap();
    assert_eq!(one.lookup(b"a").unwrap().id(), a.id());
    let white = two.lookup(b"b").unwrap();
    assert_eq!(white.kind(), FileKind::CharacterDevice);
    assert_eq!(white.stat().unwrap().device, Some((0, 0)));
    // A directory cannot be moved below itself.
    let deep = files.make_directory(&root(), &one, b"deep", MODE).unwrap();
    let result = rename(place(&top, b"one"), place(&deep, b"x"), RenameMode::Replace);
    assert_eq!(errno(result), Errno::EINVAL);
    let result = rename(place(&top, b"one"), place(&two, b"b"), RenameMode::Replace);
    assert_eq!(errno(result), Errno::ENOTDIR);
    rename(
        place(&one, b"deep"),
        place(&two, b"deep"),
        RenameMode::Replace,
    )
    .unwrap();
    let result = rename(
        place(&top, b"one"),
        place(&top, b"two"),
        RenameMode::Replace,
    );
    assert_eq!(errno(result), Errno::ENOTEMPTY);
    assert_eq!(
        (one.stat().unwrap().links, two.stat().unwrap().links),
        (2, 3)
    );
    rig.sync();
    let committed = rig.committed();
    assert!(rig.set.object(b_id).is_err());
    assert_eq!(committed.path_of(deep.id()).unwrap().unwrap(), b"two/deep");
    let stat = committed
        .resolve(b"one/a", Symlinks::Keep)
        .unwrap()
        .stat()
        .unwrap();
    assert_eq!(stat, a.stat().unwrap());
    rig.check_space();
    rig.check_accounting();
}

#[test]
fn names_are_found_as_the_file_system_compares_them() {
    let new = NewFileSystem {
        normalisation: 0x10,
        case: Case::Insensitive,
        ..NewFileSystem::default()
    };
    let (rig, files) = Rig::new(&new, Settings::default());
    let top = files.root().unwrap();
    let (file, _) = files
        .create(&root(), &top, "tim-Ä".as_bytes(), MODE, true)
        .unwrap();
    let decomposed = "TIM-a\u{308}".as_bytes();
    assert_eq!(top.lookup(decomposed).unwrap().id(), file.id());
    assert_eq!(
        errno(files.create(&root(), &top, decomposed, MODE, true)),
        Errno::EEXIST
    );
    assert_eq!(
        errno(files.create(&root(), &top, b"\xff", MODE, true)),
        Errno::EILSEQ
    );
    let place = |name| DirEntryRef {
        directory: &top,
        name,
    };
    let (from, to) = (place(decomposed), place("Tim-Ä".as_bytes()));
    files
        .rename(&root(), from, to, RenameMode::Replace)
        .unwrap();
    let listed = top.list(0, 10).unwrap();
    assert_eq!(listed[2].entry.name, "Tim-Ä".as_bytes());
    assert_eq!(listed.len(), 3);
    files.unlink(&top, "TIM-Ä".as_bytes()).unwrap();
    assert_eq!(top.list(0, 10).unwrap().len(), 2);
    rig.sync();
    assert_eq!(
        rig.committed().root().unwrap().stat().unwrap().size_bytes,
        2
    );
}

#[test]
fn mixed_case_finds_exact_names_only() {
    let new = NewFileSystem {
        case: Case::Mixed,
        ..NewFileSystem::default()
    };
    let (rig, files) = Rig::new(&new, Settings::default());
    let top = files.root().unwrap();
    let (one, _) = files.create(&root(), &top, b"tim", MODE, true).unwrap();
    let (two, _) = files.create(&root(), &top, b"TIM", MODE, true).unwrap();
    assert_eq!(top.lookup(b"tim").unwrap().id(), one.id());
    assert_eq!(top.lookup(b"TIM").unwrap().id(), two.id());
    assert_eq!(errno(top.lookup(b"Tim")), Errno::ENOENT);
    rig.sync();
    let found = rig.committed().resolve(b"TIM", Symlinks::Keep).unwrap();
    assert_eq!(found.id(), two.id());
}

/// The spelling of a long name whose letters are large where `number` has bits.
fn spelling(number: u32) -> Vec<u8> {
    let letters = (0..12).map(|at| match number >> at & 1 {
        0 => b'a' + at,
        _ => b'A' + at,
    });
    letters
        .chain(*b"-and-more-letters-that-are-equal")
        .collect()
}

/// Names that differ in case only have one hash, so they have to fit into one leaf of the directory.
#[test]
fn too_many_spellings_of_a_name_are_refused_and_nothing_breaks() {
    let new = NewFileSystem {
        case: Case::Mixed,
        ..NewFileSystem::default()
    };
    let (rig, files) = Rig::new(&new, Settings::default());
    let top = files.root().unwrap();
    let mut made = 0;
    let refused = loop {
        let name = spelling(made);
        match files.create(&root(), &top, &name, MODE, true) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 4096);
    };
    assert_eq!(refused.errno(), Errno::ENOSPC);
    assert!(made > 100, "{made}");
    let next = spelling(made);
    let (other, _) = files.create(&root(), &top, b"other", MODE, true).unwrap();
    assert_eq!(errno(files.link(&other, &top, &next)), Errno::ENOSPC);
    assert_eq!(
        errno(files.make_directory(&root(), &top, &next, MODE)),
        Errno::ENOSPC
    );
    let place = |name| DirEntryRef {
        directory: &top,
        name,
    };
    let (from, to) = (place(b"other".as_slice()), place(next.as_slice()));
    let renamed = files.rename(&root(), from, to, RenameMode::NoReplace);
    assert_eq!(errno(renamed), Errno::ENOSPC);
    // All names are there, and one that goes makes room for another.
    assert_eq!(top.lookup(b"other").unwrap().id(), other.id());
    files.unlink(&top, &spelling(0)).unwrap();
    files.link(&other, &top, &next).unwrap();
    rig.sync();
    let view = rig.committed();
    let names = view.root().unwrap().entries().unwrap();
    assert_eq!(names.count(), made as usize + 1);
    rig.check_space();
}

#[test]
fn long_names_are_made_only_where_they_are_allowed() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let long = vec![b'n'; 256];
    assert_eq!(
        errno(files.create(&root(), &top, &long, MODE, true)),
        Errno::ENAMETOOLONG
    );
    files.set_settings(Settings {
        allows_long_names: true,
        ..Settings::default()
    });
    let longest = vec![b'n'; 1023];
    files.create(&root(), &top, &longest, MODE, true).unwrap();
    assert_eq!(rig.port.long_names.load(Ordering::Relaxed), 1);
    files.set_settings(Settings::default());
    top.lookup(&longest).unwrap();
    rig.sync();
    let found = rig.committed().resolve(&longest, Symlinks::Keep);
    assert!(found.is_ok());
    files.unlink(&top, &longest).unwrap();
    rig.sync();
    rig.check_space();
}

#[test]
fn cookies_stay_valid_while_the_directory_changes() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let name = |number: u32| format!("file-{number:04}").into_bytes();
    for number in 0..300 {
        files
            .create(&root(), &top, &name(number), MODE, true)
            .unwrap();
    }
    let mut seen = vec![];
    let mut cookie = 0;
    loop {
        let part = top.list(cookie, 7).unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.cookie;
        seen.extend(part.into_iter().map(|listed| listed.entry.name));
        // The directory becomes a fat ZAP on the way. Entries that are added and removed do not disturb the
        // listing.
        let extra = format!("extra-{}", seen.len()).into_bytes();
        if seen.len() < 1800 {
            files.create(&root(), &top, &extra, MODE, true).unwrap();
            if seen.len() % 3 == 0 {
                files.unlink(&top, &extra).unwrap();
            }
        }
    }
    assert_eq!(&seen[..2], [b".".to_vec(), b"..".to_vec()]);
    seen.sort();
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]));
    for number in 0..300 {
        assert!(seen.binary_search(&name(number)).is_ok());
    }
    rig.sync();
    rig.check_space();
}

#[test]
fn a_large_directory_is_listed_whole_open_and_committed() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let mut expected: Vec<Vec<u8>> = (0..1000).map(|n| format!("f{n}").into_bytes()).collect();
    for name in &expected {
        files.create(&root(), &top, name, MODE, true).unwrap();
    }
    expected.sort();
    rig.sync();
    let read_top = rig.committed().root().unwrap();
    for directory in [&top, &read_top] {
        let entries = directory.entries().unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().name).collect();
        names.sort();
        assert_eq!(names, expected);
        // From any position on, each of the rest once.
        let mut first = directory.entries().unwrap();
        let taken: Vec<_> = first.by_ref().take(700).collect();
        let rest = directory.entries_from(first.cookie()).unwrap();
        assert_eq!(taken.len() + rest.count(), expected.len());
    }
}

#[test]
fn a_listing_ends_at_a_bad_leaf_and_an_iterator_continues() {
    let (mut rig, files) = plain();
    let top = files.root().unwrap();
    for number in 0..4000 {
        let name = format!("f{number}").into_bytes();
        files.create(&root(), &top, &name, MODE, true).unwrap();
    }
    rig.sync();
    let committed = rig.committed().root().unwrap();
    let table = committed.object().committed().unwrap();
    assert!(table.block_id_max().0 > 8);
    for leaf in [2, 4, 6] {
        let pointer = table.pointer(Level(0), BlockId(leaf)).unwrap();
        rig.sink.damage(&pointer);
    }
    drop((top, files));
    let files = rig.reopen(Settings::default());
    let read = |directory: &Node| {
        let entries: Vec<_> = directory.entries().unwrap().collect();
        let (names, errors): (Vec<_>, Vec<_>) = entries.into_iter().partition(Result::is_ok);
        assert!((1000..4000).contains(&names.len()), "{}", names.len());
        assert_eq!(errors.len(), 3);
        names
    };
    let open = files.root().unwrap();
    for directory in [&open, &committed] {
        assert_eq!(errno(directory.list(0, 4000)), Errno::EIO);
        assert_eq!(rig.store.damaged_blocks().len(), 1);
    }
    assert_eq!(read(&open), read(&committed));
}

#[test]
fn names_that_cannot_exist_are_not_found() {
    let (rig, files) = plain();
    for files in [files, rig.committed()] {
        let top = files.root().unwrap();
        assert_eq!(top.find(b"").unwrap(), None);
        assert_eq!(errno(top.lookup(b"")), Errno::ENOENT);
        let path = vec![b'n'; 1024];
        let error = files.resolve(&path, Symlinks::Keep).unwrap_err();
        assert_eq!(error.errno(), Errno::ENAMETOOLONG);
        assert!(matches!(error, FileError::Path { .. }));
    }
}

#[test]
fn a_snapshots_file_without_a_parent_is_shown() {
    let (rig, files) = plain();
    let top = files.root().unwrap();
    let (file, _) = files.create(&root(), &top, b"f", MODE, true).unwrap();
    let (id, stat) = (file.id(), file.stat().unwrap());
    let tx = rig.groups.begin(1 << 20).unwrap();
    let layouts = SaLayouts::open(&rig.set, &rig.env).unwrap();
    let mode = word(0o100_000 | u64::from(stat.permissions));
    let (zero, one) = (word(0), word(1));
    let (generation, now) = (word(stat.generation), time(stat.mtime));
    let attributes = [
        (SaAttribute::Mode, &mode),
        (SaAttribute::Size, &zero),
        (SaAttribute::Generation, &generation),
        (SaAttribute::Uid, &zero),
        (SaAttribute::Gid, &zero),
        (SaAttribute::Flags, &zero),
        (SaAttribute::Atime, &now),
        (SaAttribute::Mtime, &now),
        (SaAttribute::Ctime, &now),
        (SaAttribute::Crtime, &now),
        (SaAttribute::Links, &one),
    ];
    let attributes = attributes.map(|(attribute, bytes)| (attribute, bytes.as_slice()));
    let object = rig.set.object(id).unwrap();
    let stored = SaObject::new(&rig.set, &object, &tx);
    layouts.replace(&tx, &stored, &attributes).unwrap();
    drop(tx);
    rig.sync();
    let damaged = rig.committed().node(id).unwrap();
    assert_eq!(damaged.stat().unwrap().mtime, stat.mtime);
    assert!(damaged.parent_id().is_err());
}
