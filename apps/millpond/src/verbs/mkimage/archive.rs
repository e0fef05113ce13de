//! Reads trees from tar archives.
//!
//! Supports ustar, GNU and pax, with long names, sparse files, hard links and the extended attributes in
//! pax headers.

use super::super::cp::into::source::{Facts, Xattrs};
use super::super::cp::into::target::{Target, TargetDir, is_end};
use super::super::cp::into::tree::Pump;
use super::super::cp::report::Report;
use millpond_engine::{
    Caller, FileError, FileKind, Node, ObjectId, SetAttributes, Timestamp, WriteAt, is_safe_name,
};
use std::collections::BTreeMap;
use std::io::Read;
use tar::{Archive, Entry, EntryType};

/// One parsed entry.
struct Item {
    path: Vec<u8>,
    facts: Facts,
    /// The target of a link.
    target: Vec<u8>,
    is_hard_link: bool,
    xattrs: Xattrs,
}

/// Directories that contain extracted entries, with the attributes that they get at the end.
#[derive(Default)]
struct Directories(BTreeMap<Vec<u8>, Made>);

/// A created directory, and the attributes that it gets at the end.
type Made = (ObjectId, Option<(Facts, Xattrs)>);

/// Calls `each` with the data bytes of every entry. Entries that are not files are skipped.
pub fn measure(from: impl Read, mut each: impl FnMut(u64)) -> Result<(), String> {
    let mut archive = Archive::new(from);
    for entry in archive.entries().map_err(archive_error)? {
        let mut entry = entry.map_err(archive_error)?;
        if let Some(item) = item(&mut entry)? {
            each(if item.facts.kind == FileKind::Regular {
                item.facts.size_bytes
            } else {
                0
            });
        }
    }
    Ok(())
}

fn archive_error(error: std::io::Error) -> String {
    format!("the archive cannot be read: {error}")
}

/// Extracts every entry of an archive below `top`.
pub fn extract(
    from: impl Read,
    target: &Target,
    top: &Node,
    report: &Report,
    pump: &Pump<'_>,
) -> Result<(), String> {
    let mut archive = Archive::new(from);
    archive.set_ignore_zeros(false);
    let mut directories = Directories::default();
    directories.0.insert(vec![], (top.id(), None));
    for entry in archive.entries().map_err(archive_error)? {
        if report.is_stopped() {
            break;
        }
        let mut entry = entry.map_err(archive_error)?;
        let Some(item) = item(&mut entry)? else {
            continue;
        };
        let path = item.path.clone();
        match make(target, &mut directories, item, entry, report, pump) {
            Ok(()) => {}
            Err(Trouble::Archive(error)) => return Err(error),
            Err(Trouble::Entry(error)) => report.absent(path, error),
            Err(Trouble::File(error)) => {
                report.absent(path, &error);
                if is_end(&error) {
                    report.stop();
                }
            }
        }
        pump()?;
    }
    // Deepest first, so that no directory is changed after its times are set.
    for (path, (id, attributes)) in directories.0.iter().rev() {
        let Some((facts, xattrs)) = attributes else {
            continue;
        };
        let finished = target
            .files
            .node(*id)
            .and_then(|node| target.finish(&node, facts, xattrs, false, path, report));
        if let Err(error) = finished {
            report.absent(path.clone(), error);
        }
        pump()?;
    }
    Ok(())
}

enum Trouble {
    /// The archive ends or is damaged; no more entries can be read.
    Archive(String),
    Entry(&'static str),
    File(FileError),
}

impl From<FileError> for Trouble {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

/// Normalizes a path: removes `.` and superfluous slashes. `None` if the path could lead outside.
fn cleaned(path: &[u8]) -> Option<Vec<u8>> {
    let names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".");
    let mut clean = vec![];
    for name in names {
        if !is_safe_name(name) {
            return None;
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(name);
    }
    Some(clean)
}

fn parsed_time(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().take(9).collect();
    let mut nanoseconds: u64 = format!("{digits:0<9}").parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        // -1.25 is stored as -2 seconds plus 0.75.
        seconds = seconds.checked_sub(1)?;
        nanoseconds = 1_000_000_000 - nanoseconds;
    }
    Some(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// Parses the headers of an entry; `None` if it is not a file.
fn item<R: Read>(entry: &mut Entry<'_, R>) -> Result<Option<Item>, String> {
    let header = entry.header();
    let kind = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => {
            FileKind::Regular
        }
        EntryType::Directory => FileKind::Directory,
        EntryType::Symlink => FileKind::Symlink,
        EntryType::Fifo => FileKind::Fifo,
        EntryType::Char => FileKind::CharacterDevice,
        EntryType::Block => FileKind::BlockDevice,
        _ => return Ok(None),
    };
    let is_hard_link = header.entry_type() == EntryType::Link;
    let number = |read: std::io::Result<u64>| {
        read.map(|number| u32::try_from(number).unwrap_or(u32::MAX))
            .map_err(archive_error)
    };
    let device = match kind {
        FileKind::CharacterDevice | FileKind::BlockDevice => Some((
            header.device_major().map_err(archive_error)?.unwrap_or(0),
            header.device_minor().map_err(archive_error)?.unwrap_or(0),
        )),
        _ => None,
    };
    let mtime = Timestamp {
        seconds: header.mtime().map_err(archive_error)?.cast_signed(),
        nanoseconds: 0,
    };
    let mut facts = Facts {
        kind,
        permissions: header.mode().map_err(archive_error)? & 0o7777,
        uid: number(header.uid())?,
        gid: number(header.gid())?,
        size_bytes: entry.size(),
        atime: mtime,
        mtime,
        device,
        links: 1,
        id: (0, 0),
    };
    let mut xattrs = vec![];
    let mut atime = None;
    let mut is_pax_sparse = false;
    let mut real_name = None;
    if let Some(extensions) = entry.pax_extensions().map_err(archive_error)? {
        for extension in extensions {
            let extension = extension.map_err(archive_error)?;
            let (key, value) = (extension.key_bytes(), extension.value_bytes());
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok())
            };
            match key {
                b"mtime" => facts.mtime = parsed_time(value).unwrap_or(facts.mtime),
                b"atime" => atime = parsed_time(value),
                b"uid" => facts.uid = number().unwrap_or(facts.uid),
                b"gid" => facts.gid = number().unwrap_or(facts.gid),
                b"GNU.sparse.name" => real_name = Some(value.to_vec()),
                key => {
                    // In every version of this format, the stored bytes are not the file's content.
                    is_pax_sparse |= key.starts_with(b"GNU.sparse.");
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        xattrs.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
    }
    facts.atime = atime.unwrap_or(facts.mtime);
    xattrs.sort_unstable();
    let path = real_name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let shown = String::from_utf8_lossy(&path).into_owned();
    if is_pax_sparse {
        return Err(format!(
            "{shown}: a sparse file of the pax form, which is not read yet: make the archive with \
             --format=gnu, or without --sparse"
        ));
    }
    let path = cleaned(&path).ok_or_else(|| format!("{shown}: the name could lead elsewhere"))?;
    let target = entry.link_name_bytes().map(|target| target.into_owned());
    Ok(Some(Item {
        path,
        facts,
        target: target.unwrap_or_default(),
        is_hard_link,
        xattrs,
    }))
}

impl Directories {
    /// Returns the directory at a path, and creates it if no entry has created it yet.
    fn open(&mut self, target: &Target, path: &[u8], like: &Facts) -> Result<TargetDir, FileError> {
        if let Some((id, _)) = self.0.get(path) {
            return Ok(TargetDir {
                node: target.files.node(*id)?,
                hands_down: false,
            });
        }
        let (above, name) = split(path);
        let place = self.open(target, above, like)?;
        let facts = Facts {
            kind: FileKind::Directory,
            permissions: 0o755,
            ..*like
        };
        let made = target.make(&place, name, &facts, None)?;
        let node = made.ok_or(FileError::Exists)?;
        self.0
            .insert(path.to_vec(), (node.id(), Some((facts, vec![]))));
        Ok(TargetDir {
            node,
            hands_down: false,
        })
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

fn make<R: Read>(
    target: &Target,
    directories: &mut Directories,
    item: Item,
    mut entry: Entry<'_, R>,
    report: &Report,
    pump: &Pump<'_>,
) -> Result<(), Trouble> {
    if item.path.split(|byte| *byte == b'/').count() > DEPTH_MAX {
        return Err(Trouble::Entry("nested too deep"));
    }
    let facts = item.facts;
    if facts.kind == FileKind::Directory {
        let place = directories.open(target, &item.path, &facts)?;
        let known = (place.node.id(), Some((facts, item.xattrs)));
        directories.0.insert(item.path, known);
        report.copied();
        return Ok(());
    }
    let (above, name) = split(&item.path);
    if name.is_empty() {
        return Err(Trouble::Entry("it has no name"));
    }
    let place = directories.open(target, above, &facts)?;
    if item.is_hard_link {
        let first = cleaned(&item.target).ok_or(Trouble::Entry("a link that leads elsewhere"))?;
        let (first_above, first_name) = split(&first);
        let directory = directories.0.get(first_above).map(|(id, _)| *id);
        let directory =
            directory.ok_or(Trouble::Entry("a link to a file that did not come before"))?;
        let directory = target.files.node(directory)?;
        let node = directory.lookup(first_name)?;
        target.link(&node, &place, name)?;
        report.copied();
        return Ok(());
    }
    let link = (facts.kind == FileKind::Symlink).then_some(item.target.as_slice());
    let Some(node) = target.make(&place, name, &facts, link)? else {
        return Ok(());
    };
    if facts.kind == FileKind::Regular {
        copy_bytes(target, &node, &facts, &mut entry, report, pump)?;
    }
    target.finish(&node, &facts, &item.xattrs, false, &item.path, report)?;
    report.copied();
    Ok(())
}

/// Copies the bytes of an entry. Blocks of zeros become holes, because most archives do not record holes.
fn copy_bytes(
    target: &Target,
    node: &Node,
    facts: &Facts,
    entry: &mut impl Read,
    report: &Report,
    pump: &Pump<'_>,
) -> Result<(), Trouble> {
    let files = &target.files;
    let chunk = (1 << 20).max(files.settings().record_bytes as usize);
    let mut buffer = vec![0; chunk.min(usize::try_from(facts.size_bytes).unwrap_or(chunk))];
    let mut at = 0;
    while at < facts.size_bytes {
        let left = usize::try_from(facts.size_bytes - at).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let read = entry.read_exact(&mut buffer[..wanted]);
        read.map_err(|error| Trouble::Archive(archive_error(error)))?;
        let bytes = &buffer[..wanted];
        if bytes.iter().any(|byte| *byte != 0) {
            files.write(&Caller::root(), node, WriteAt::Offset(at), bytes)?;
        }
        at += wanted as u64;
        report.wrote(wanted as u64);
        pump().map_err(Trouble::Archive)?;
    }
    if node.size_bytes() < facts.size_bytes {
        let set = SetAttributes {
            size_bytes: Some(facts.size_bytes),
            ..SetAttributes::default()
        };
        files.set_attributes(&Caller::root(), node, &set)?;
    }
    Ok(())
}

const DEPTH_MAX: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_names_that_leave_the_tree_are_refused() {
        let clean = |path: &str| cleaned(path.as_bytes());
        assert_eq!(clean("./a//b/"), Some(b"a/b".to_vec()));
        assert_eq!(clean("/etc/passwd"), Some(b"etc/passwd".to_vec()));
        assert_eq!(clean("."), Some(vec![]));
        assert_eq!(clean("a/../../b"), None);
    }

    #[test]
    fn sparse_files_in_archives_are_refused() {
        let refused = |keys: &[(&str, &[u8])]| {
            let mut builder = tar::Builder::new(vec![]);
            let keys = keys.iter().copied();
            builder.append_pax_extensions(keys).unwrap();
            let mut header = tar::Header::new_ustar();
            header.set_size(4);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            builder
                .append_data(&mut header, "big", &b"map\n"[..])
                .unwrap();
            measure(&*builder.into_inner().unwrap(), |_| {}).is_err()
        };
        let size = ("GNU.sparse.realsize", &b"5368709120"[..]);
        assert!(refused(&[("GNU.sparse.major", b"1"), size]));
        assert!(refused(&[
            ("GNU.sparse.size", b"9"),
            ("GNU.sparse.map", b"0,4")
        ]));
        assert!(!refused(&[("mtime", b"1.5")]));
    }

    #[test]
    fn times_have_fractions() {
        let time = |text: &str| {
            let time = parsed_time(text.as_bytes()).unwrap();
            (time.seconds, time.nanoseconds)
        };
        assert_eq!(time("12"), (12, 0));
        assert_eq!(time("12.5"), (12, 500_000_000));
        assert_eq!(time("12.1234567899"), (12, 123_456_789));
        assert_eq!(time("-1.25"), (-2, 750_000_000));
        assert!(parsed_time(b"x").is_none());
    }
}
