//! Compares the files of one file system or snapshot.

use crate::compare::Findings;
use crate::images::hex;
use crate::reader::{Answer, Attributes, PoolReader, ReadError};
use crate::record::{Content, Entry};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// What a tree is compared with.
pub struct Expected<'a> {
    /// The dataset's name.
    pub dataset: &'a str,
    /// The recorded files.
    pub entries: &'a [Entry],
    /// Whether reading the file at this path must fail.
    pub is_lost: &'a dyn Fn(&[u8]) -> bool,
    /// Whether the file at this path may differ in content, size and times.
    pub may_differ: &'a dyn Fn(&[u8]) -> bool,
}

/// Walks the tree from its root and compares it with the record.
pub fn compare(pool: &mut dyn PoolReader, expected: &Expected<'_>, findings: &mut Findings) {
    let mut missing: BTreeMap<&[u8], &Entry> = expected
        .entries
        .iter()
        .map(|entry| (entry.path.as_slice(), entry))
        .collect();
    let root = match pool.root(expected.dataset) {
        Ok(root) => root,
        Err(error) => return findings.failed(expected.dataset, "its root", error),
    };
    // Directories still to be listed, the deepest last. Their number is limited by the record.
    let mut open = vec![(b".".to_vec(), root)];
    // Files below an unreadable directory are not reported as missing, because their existence is unknown.
    let mut unreadable: Vec<Vec<u8>> = Vec::new();
    while let Some((path, object)) = open.pop() {
        let place = place(expected.dataset, &path);
        let Some(entry) = missing.remove(path.as_slice()) else {
            findings.differs(&place, "should not exist, or stands twice");
            continue;
        };
        if entry.object != object && entry.object < CONTROL_OBJECTS_FROM {
            findings.differs(&place, &format!("is object {object}, not {}", entry.object));
        }
        compare_entry(pool, expected, entry, object, &place, findings);
        if entry.attributes.kind != "dir" {
            continue;
        }
        let children = match pool.list(expected.dataset, object) {
            Ok(children) => children,
            Err(error) => {
                findings.failed(&place, "its entries", error);
                unreadable.push(if path == b"." {
                    Vec::new()
                } else {
                    [&path[..], b"/"].concat()
                });
                continue;
            }
        };
        if let Some((count, digest)) = &entry.sampled {
            compare_names(&children, *count, digest, &place, findings);
        }
        for (name, child) in children {
            let below = if path == b"." {
                name
            } else {
                [&path[..], b"/", &name].concat()
            };
            // In a partially recorded directory, only the recorded part is compared.
            if entry.sampled.is_none() || missing.contains_key(below.as_slice()) {
                open.push((below, child));
            }
        }
    }
    for path in missing.keys() {
        if unreadable.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        findings.differs(&place(expected.dataset, path), "is missing");
    }
}

fn compare_names(
    children: &[(Vec<u8>, u64)],
    count: u64,
    digest: &str,
    place: &str,
    findings: &mut Findings,
) {
    let mut names: Vec<&[u8]> = children.iter().map(|(name, _)| name.as_slice()).collect();
    names.sort_unstable();
    if names.len() as u64 != count {
        findings.differs(place, &format!("has {} entries, not {count}", names.len()));
    } else if hex(&Sha256::digest(names.join(&b'\n'))) != digest {
        findings.differs(place, "has other names than recorded");
    }
}

fn compare_entry(
    pool: &mut dyn PoolReader,
    expected: &Expected<'_>,
    entry: &Entry,
    object: u64,
    place: &str,
    findings: &mut Findings,
) {
    let found = match pool.attributes(expected.dataset, object) {
        Ok(found) => found,
        Err(error) => return findings.failed(place, "its attributes", error),
    };
    findings.files += 1;
    let may_differ = (expected.may_differ)(&entry.path);
    for difference in attribute_differences(entry, &found, may_differ) {
        findings.differs(place, &difference);
    }
    if entry.attributes.kind != "file" || found.kind != "file" || may_differ {
        return;
    }
    if let Some(recorded) = &entry.extents {
        match pool.extents(expected.dataset, object) {
            Ok(extents) if extents != *recorded => findings.differs(
                place,
                &format!("has the data ranges {extents:?}, not {recorded:?}"),
            ),
            Ok(_) => {}
            Err(error) => findings.failed(place, "its data ranges", error),
        }
    }
    let digest = content_digest(pool, expected.dataset, object, entry);
    let is_lost = entry.is_unreadable || (expected.is_lost)(&entry.path);
    match (digest, is_lost) {
        (Err(ReadError::Io(_)), true) => findings.expected_errors += 1,
        (Ok(_), true) => findings.differs(place, "was read although its blocks are lost"),
        (Ok((digest, recorded)), false) if digest != recorded => {
            findings.differs(place, &format!("has content {digest}, not {recorded}"));
        }
        (Ok(_), false) => {}
        (Err(error), _) => findings.failed(place, "its content", error),
    }
}

fn attribute_differences(entry: &Entry, found: &Attributes, may_differ: bool) -> Vec<String> {
    let recorded = &entry.attributes;
    let mut differences = Vec::new();
    let mut check = |what: &str, recorded: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
        let (recorded, found) = (format!("{recorded:?}"), format!("{found:?}"));
        if recorded != found {
            differences.push(format!("has {what} {found}, not {recorded}"));
        }
    };
    check("kind", &recorded.kind, &found.kind);
    check("mode", &recorded.mode, &found.mode);
    check("owner", &recorded.uid, &found.uid);
    check("group", &recorded.gid, &found.gid);
    check("links", &recorded.nlink, &found.nlink);
    check("target", &recorded.target, &found.target);
    check("device", &recorded.rdev, &found.rdev);
    if !entry.xattrs_unknown {
        check("extended attributes", &recorded.xattrs, &found.xattrs);
    }
    if !may_differ {
        check("size", &recorded.size, &found.size);
        check("blocks", &recorded.blocks, &found.blocks);
        check("mtime", &recorded.mtime_ns, &found.mtime_ns);
        check("ctime", &recorded.ctime_ns, &found.ctime_ns);
        check("atime", &recorded.atime_ns, &found.atime_ns);
    }
    differences
}

/// The digest of a file's content in the form that the record uses, and the recorded digest.
fn content_digest<'a>(
    pool: &mut dyn PoolReader,
    dataset: &str,
    object: u64,
    entry: &'a Entry,
) -> Answer<(String, &'a str)> {
    let whole = [(0, entry.attributes.size)];
    let (ranges, recorded): (&[(u64, u64)], &str) = match (&entry.content, &entry.extents) {
        (Some(Content::Whole(digest)), _) => (&whole, digest),
        (Some(Content::Data(digest)), Some(extents)) => (extents, digest),
        (Some(Content::Data(_)), None) => {
            return Err(ReadError::Other("the record has no data ranges".to_owned()));
        }
        (None, _) => (&whole, ""),
    };
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    for (start, length) in ranges {
        let mut done = 0;
        while done < *length {
            let count = (*length - done).min(CHUNK_BYTES as u64) as usize;
            let piece = &mut buffer[..count];
            pool.read(dataset, object, start + done, piece)?;
            digest.update(&*piece);
            done += count as u64;
        }
    }
    Ok((hex(&digest.finalize()), recorded))
}

fn place(dataset: &str, path: &[u8]) -> String {
    format!("{dataset}:/{}", String::from_utf8_lossy(path))
}

/// Snapshots were listed through `.zfs/snapshot`.
///
/// There the kernel shows inode numbers of its own for their roots, counted down from 2^48.
const CONTROL_OBJECTS_FROM: u64 = 1 << 47;
const CHUNK_BYTES: usize = 1 << 20;
