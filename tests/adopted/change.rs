//! Changes to pools created by OpenZFS.

use super::old::touched;
use anyhow::Result;
use millpond_engine::{
    Caller, FileFlags, FileSystem, NewMode, Node, Pool, PropertyValue, SetAttributes, WriteAt,
    XattrMode,
};
use millpond_tests::images::hex;
use millpond_tests::record::{Content, Entry, Record};
use sha2::{Digest, Sha256};
use std::sync::Arc;

const OURS: &[u8] = b"written-by-another-hand";
const SNAPSHOT: &str = "by-another-hand";

/// Changes old files and their records, creates and removes new files, and takes a snapshot in between.
pub fn change_files(
    pool: &Pool,
    name: &str,
    files: &Arc<FileSystem>,
    entries: &mut Vec<Entry>,
    is_lost: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    let (root, caller) = (files.root()?, Caller::root());
    let mode = NewMode::exactly(0o755);
    let ours = files.make_directory(&caller, &root, OURS, mode)?;
    // A record of 512 bytes can take eight times its size, and some pools are small.
    let step = if files.settings().record_bytes < 4096 {
        100
    } else {
        700
    };
    for number in 0..60usize {
        let file = format!("file{number}").into_bytes();
        let (node, _) = files.create(&caller, &ours, &file, NewMode::exactly(0o600), true)?;
        let bytes = vec![number as u8; number * step];
        files.write(&caller, &node, WriteAt::Offset(0), &bytes)?;
        if number % 9 == 0 && files.settings().xattr != millpond_posix::XattrPlace::Off {
            files.set_xattr(&caller, &node, b"user.ours", &[b'x'; 300], XattrMode::Set)?;
        }
    }
    let mut changed = 0;
    let mut removed = vec![];
    for (index, entry) in entries.iter_mut().enumerate() {
        let is_plain = entry.attributes.kind == "file" && entry.attributes.nlink == 1;
        let is_whole = matches!(entry.content, Some(Content::Whole(_)));
        let size = entry.attributes.size as usize;
        if !is_plain
            || !is_whole
            || entry.is_unreadable
            || is_lost(&entry.path)
            || size == 0
            || size > 4 << 20
        {
            continue;
        }
        let mut holder = root.clone();
        let parts: Vec<&[u8]> = entry.path.split(|byte| *byte == b'/').collect();
        let Some((last, above)) = parts.split_last() else {
            continue;
        };
        for part in above {
            holder = holder.lookup(part)?;
        }
        let node = holder.lookup(last)?;
        if !may_change(&node) {
            continue;
        }
        changed += 1;
        match changed {
            1 => {
                drop(node);
                files.unlink(&holder, last)?;
                removed.push((index, above.join(&b'/')));
            }
            2 | 3 => {
                let mut bytes = vec![0; size];
                node.read(0, &mut bytes)?;
                let (at, with) = (size / 2, b"changed by another hand");
                files.write(&caller, &node, WriteAt::Offset(at as u64), with)?;
                bytes.resize(size.max(at + with.len()), 0);
                bytes[at..at + with.len()].copy_from_slice(with);
                if changed == 3 {
                    let half = bytes.len() / 2 + 1;
                    let set = SetAttributes {
                        size_bytes: Some(half as u64),
                        ..SetAttributes::default()
                    };
                    files.set_attributes(&caller, &node, &set)?;
                    bytes.truncate(half);
                }
                entry.content = Some(Content::Whole(hex(&Sha256::digest(&bytes))));
                entry.extents = None;
                entry.attributes.size = bytes.len() as u64;
                entry.attributes.mode &= 0o1777
                    | if entry.attributes.mode & 0o6000 == 0 {
                        0o6000
                    } else {
                        0
                    };
                touched(entry);
            }
            _ => break,
        }
    }
    pool.datasets()
        .snapshot(&[&format!("{name}@{SNAPSHOT}")], &[])?;
    for number in 0..60usize {
        let file = format!("file{number}").into_bytes();
        if number % 2 == 0 {
            files.unlink(&ours, &file)?;
        } else {
            let node = ours.lookup(&file)?;
            files.write(&caller, &node, WriteAt::End, &[9; 10_000])?;
        }
    }
    for number in (1..60).step_by(2) {
        files.unlink(&ours, format!("file{number}").as_bytes())?;
    }
    drop(ours);
    files.remove_directory(&root, OURS)?;
    files.reap()?;
    // Adding or removing an entry changes the times of its directory.
    let mut above = vec![b".".to_vec()];
    for (index, directory) in removed.into_iter().rev() {
        entries.remove(index);
        above.push(directory);
    }
    for entry in entries.iter_mut() {
        if above.contains(&entry.path) || (entry.path == b"." && above.contains(&vec![])) {
            touched(entry);
            entry.sampled = None;
        }
    }
    Ok(())
}

/// Whether the flags of a file allow changes.
fn may_change(node: &Node) -> bool {
    let flags = node.stat().unwrap().flags;
    !flags.intersects(
        FileFlags::IMMUTABLE | FileFlags::APPENDONLY | FileFlags::NOUNLINK | FileFlags::READONLY,
    )
}

/// Creates clones and volumes, destroys datasets, sets properties and writes.
pub fn change_datasets(pool: &Pool, record: &Record) -> Result<()> {
    let datasets = pool.datasets();
    let root = &record.pool;
    let text = |name: &str, value: &str| (name.to_owned(), PropertyValue::Text(value.to_owned()));
    datasets.set_properties(
        root,
        &[
            text("compression", "gzip-1"),
            text("org.example:was", "here"),
        ],
    )?;
    let snapshot = format!("{root}@{SNAPSHOT}");
    let clone = format!("{root}/clone-of-ours");
    if datasets
        .snapshot(&[&format!("{root}@{SNAPSHOT}-2")], &[])
        .is_ok()
    {
        let from = format!("{root}@{SNAPSHOT}-2");
        datasets.clone_snapshot(&from, &clone, &[])?;
        // `ztest` creates heads that are not file systems.
        if let Ok(files) = pool.file_system(&clone) {
            let at_root = files.root()?;
            let caller = Caller::root();
            let mode = NewMode::exactly(0o600);
            let (node, _) = files.create(&caller, &at_root, b"in the clone", mode, true)?;
            files.write(&caller, &node, WriteAt::Offset(0), &[7; 300_000])?;
        }
    }
    let made = format!("{root}/made-by-us");
    datasets.create_filesystem(&made, &[text("compression", "gzip-9")])?;
    let files = pool.file_system(&made)?;
    let (node, _) = files.create(
        &Caller::root(),
        &files.root()?,
        b"file",
        NewMode::exactly(0o600),
        true,
    )?;
    files.write(&Caller::root(), &node, WriteAt::Offset(0), &[1; 500_000])?;
    let volume = format!("{root}/volume-by-us");
    let size = ("volsize".to_owned(), PropertyValue::Number(1 << 20));
    let sparse = ("refreservation".to_owned(), PropertyValue::Number(0));
    datasets.create_volume(&volume, &[size, sparse])?;
    pool.volume(&volume)?.write(100_000, &[3; 200_000])?;
    pool.sync()?;
    drop((node, files));
    datasets.destroy(&made, Default::default())?;
    // The snapshot is destroyed, if nothing depends on it.
    let _ = datasets.destroy_snapshots(&[&snapshot], Default::default());
    Ok(())
}

/// Makes a few more changes after a crash.
pub fn continues(pool: &Pool, name: &str) -> Result<()> {
    let (datasets, caller) = (pool.datasets(), Caller::root());
    let made = format!("{name}/after-the-crash");
    datasets.create_filesystem(&made, &[])?;
    let files = pool.file_system(&made)?;
    let root = files.root()?;
    for number in 0..40usize {
        let file = format!("file{number}").into_bytes();
        let (node, _) = files.create(&caller, &root, &file, NewMode::exactly(0o600), true)?;
        let bytes = vec![number as u8; number * 3000];
        files.write(&caller, &node, WriteAt::Offset(0), &bytes)?;
    }
    datasets.snapshot(&[&format!("{made}@then")], &[])?;
    for number in (0..40).step_by(2) {
        files.unlink(&root, format!("file{number}").as_bytes())?;
    }
    Ok(())
}
