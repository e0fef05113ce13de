//! Lists everything in a pool, one item per line, in the format of `tools/kernel/check`.

use crate::images::hex;
use millpond_engine::{Dataset, DatasetKind, FileKind, Node, OwnerKind, Timestamp, View};
use millpond_posix::{POSIX_ACL_ACCESS, PosixAcl, PosixAclWho};
use millpond_sa::FileFlags;
use sha2::{Digest, Sha256};

/// The user and group whose permissions are listed.
const UNPRIVILEGED: u32 = 1001;

/// The manifest of a pool, sorted. Datasets without loaded keys are left out.
///
/// # Errors
/// If the pool cannot be read.
pub fn manifest(pool: &View) -> Result<Vec<String>, millpond_engine::Error> {
    let mut lines = vec![];
    for dataset in pool.datasets() {
        let dataset = dataset?;
        if dataset.is_locked()? {
            continue;
        }
        if dataset.kind()? == DatasetKind::Volume {
            lines.push(volume(&dataset)?);
            continue;
        }
        let mut all = vec![dataset.clone()];
        all.extend(dataset.snapshots()?);
        for dataset in all {
            let files = dataset.file_system()?;
            let root = files.root()?;
            let may_enter = rights(&root)?.1;
            lines.push(line(dataset.name(), b".", &root, may_enter)?);
            let mut open = vec![(b".".to_vec(), root)];
            while let Some((path, node)) = open.pop() {
                let may_enter = rights(&node)?.1;
                for entry in node.entries()? {
                    let entry = entry?;
                    let below = [&path[..], b"/", &entry.name].concat();
                    let child = files.node(entry.id)?;
                    lines.push(line(dataset.name(), &below, &child, may_enter)?);
                    if child.kind() == FileKind::Directory {
                        open.push((below, child));
                    }
                }
            }
        }
    }
    lines.sort();
    Ok(lines)
}

fn volume(dataset: &Dataset) -> Result<String, millpond_engine::Error> {
    let volume = dataset.volume()?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < volume.size_bytes() {
        let count = (volume.size_bytes() - at).min(1 << 20) as usize;
        volume.read(at, &mut buffer[..count])?;
        digest.update(&buffer[..count]);
        at += count as u64;
    }
    let digest = hex(&digest.finalize());
    Ok(format!("{}\tvolume\t{digest}", dataset.name()))
}

fn line(
    dataset: &str,
    path: &[u8],
    node: &Node,
    may_enter: bool,
) -> Result<String, millpond_engine::Error> {
    let stat = node.stat()?;
    let (kind, has_size) = match stat.kind {
        FileKind::Fifo => ("fifo", false),
        FileKind::CharacterDevice => ("character", false),
        FileKind::Directory => ("directory", true),
        FileKind::BlockDevice => ("block", false),
        FileKind::Regular => ("file", true),
        FileKind::Symlink => ("link", true),
        FileKind::Socket => ("socket", false),
    };
    let dash = || "-".to_owned();
    let what = match stat.kind {
        FileKind::Symlink => shown(&node.link_target()?.unwrap_or_default()),
        FileKind::Regular => digest(node)?,
        _ => dash(),
    };
    let runs = match stat.kind {
        FileKind::Regular => runs(node)?,
        _ => dash(),
    };
    let flags = match stat.kind {
        FileKind::Regular | FileKind::Directory => {
            let letters: String = [
                ('i', FileFlags::IMMUTABLE),
                ('a', FileFlags::APPENDONLY),
                ('d', FileFlags::NODUMP),
                ('P', FileFlags::PROJECT_INHERIT),
            ]
            .into_iter()
            .filter_map(|(letter, flag)| stat.flags.contains(flag).then_some(letter))
            .collect();
            format!("{letters}:{}", stat.project.unwrap_or(0))
        }
        _ => dash(),
    };
    let may = match stat.kind {
        FileKind::Symlink => dash(),
        _ => {
            let (read, execute) = rights(node)?;
            [(read, 'r'), (execute, 'x')]
                .map(|(may, letter)| if may && may_enter { letter } else { '-' })
                .iter()
                .collect()
        }
    };
    let device = stat.device.map_or_else(dash, |(a, b)| format!("{a},{b}"));
    let ns =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    Ok(format!(
        "{dataset}\t{kind} {:o} {}:{} {} {} {} {} {} {} {} {device}\t{what}\t{runs}\t{}\t{flags}\t{may}\t{}",
        stat.permissions,
        stat.uid,
        stat.gid,
        stat.links,
        if has_size { stat.size_bytes } else { 0 },
        stat.sectors,
        ns(stat.mtime),
        ns(stat.ctime),
        ns(stat.atime),
        ns(stat.crtime),
        xattrs(node)?,
        shown(path)
    ))
}

fn shown(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| match byte {
            0x21..=0x5b | 0x5d..=0x7e => char::from(*byte).to_string(),
            other => format!("\\x{other:02x}"),
        })
        .collect()
}

fn digest(node: &Node) -> Result<String, millpond_engine::Error> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let count = node.read(at, &mut buffer)?;
        if count == 0 {
            break;
        }
        digest.update(&buffer[..count]);
        at += count as u64;
    }
    Ok(hex(&digest.finalize()))
}

fn runs(node: &Node) -> Result<String, millpond_engine::Error> {
    let mut found = vec![];
    for extent in node.extents() {
        let extent = extent?;
        found.push(format!("{}+{}", extent.offset_bytes, extent.length_bytes));
    }
    let text = found.join(",");
    if found.len() <= 6 {
        return Ok(text);
    }
    let digest = hex(&Sha256::digest(text.as_bytes()));
    Ok(format!("{}:{}", found.len(), &digest[..16]))
}

fn xattrs(node: &Node) -> Result<String, millpond_engine::Error> {
    let mut digest = Sha256::new();
    let names = node.xattr_names()?;
    for name in &names {
        let value = node.xattr(name)?.unwrap_or_default();
        digest.update((name.len() as u32).to_le_bytes());
        digest.update(name);
        digest.update((value.len() as u32).to_le_bytes());
        digest.update(value);
    }
    if names.is_empty() {
        return Ok("-".to_owned());
    }
    let digest = hex(&digest.finalize());
    Ok(format!("{}:{}", names.len(), &digest[..16]))
}

/// Whether [`UNPRIVILEGED`] may read and execute a file (or list and enter a directory).
///
/// The POSIX ACL decides, or else the mode.
fn rights(node: &Node) -> Result<(bool, bool), millpond_engine::Error> {
    let stat = node.stat()?;
    let mode = stat.permissions;
    let list = match node.xattr(POSIX_ACL_ACCESS)? {
        Some(value) => PosixAcl::decode(&value).ok().flatten(),
        None => None,
    };
    let mut allowed = if stat.uid == UNPRIVILEGED {
        mode >> 6
    } else if stat.gid == UNPRIVILEGED {
        mode >> 3
    } else {
        mode
    };
    // If the group bits of the mode (the mask) are empty, Linux ignores the ACL.
    if let Some(list) = list
        && stat.uid != UNPRIVILEGED
        && mode & 0o070 != 0
    {
        let get = |wanted| {
            let mut entries = list.entries().iter();
            entries.find(|(who, _)| *who == wanted).map(|entry| entry.1)
        };
        let mask = get(PosixAclWho::Mask).unwrap_or(7);
        let owning = (stat.gid == UNPRIVILEGED)
            .then(|| get(PosixAclWho::Group))
            .flatten();
        let groups = [owning, get(PosixAclWho::NamedGroup(UNPRIVILEGED))];
        allowed = u32::from(match get(PosixAclWho::User(UNPRIVILEGED)) {
            Some(own) => own & mask,
            None if groups.iter().any(Option::is_some) => {
                groups.iter().flatten().fold(0, |sum, one| sum | one) & mask
            }
            None => get(PosixAclWho::Others).unwrap_or(0),
        });
    }
    Ok((allowed & 4 != 0, allowed & 1 != 0))
}

/// Lists the usage of each owner, group and project, in the format of `tools/kernel/check`.
///
/// The columns are dataset, kind, id, bytes, objects; the lines are sorted.
///
/// # Errors
/// If the pool cannot be read.
pub fn space_by_owner(pool: &View) -> Result<Vec<String>, millpond_engine::Error> {
    let mut lines = vec![];
    for dataset in pool.datasets() {
        let dataset = dataset?;
        if dataset.kind()? == DatasetKind::Volume || dataset.is_locked()? {
            continue;
        }
        for (what, kind) in [
            ("user", OwnerKind::User),
            ("group", OwnerKind::Group),
            ("project", OwnerKind::Project),
        ] {
            for row in dataset.space_by_owner(kind)? {
                lines.push(format!(
                    "{}\t{what}\t{}\t{}\t{}",
                    dataset.name(),
                    row.id,
                    row.used_bytes,
                    row.objects
                        .map_or("-".to_owned(), |count| count.to_string())
                ));
            }
        }
    }
    lines.sort();
    Ok(lines)
}

/// Lists the space counters of each dataset and snapshot, as in `zfs list -Hp`.
///
/// The columns are name, type, used, referenced, usedbydataset, usedbysnapshots, logicalreferenced,
/// written; the lines are sorted. The usage of the root directory and of the whole pool changes with every
/// import and is shown as `*`.
///
/// # Errors
/// If the pool cannot be read.
pub fn space_list(pool: &View) -> Result<Vec<String>, millpond_engine::Error> {
    let mut lines = vec![];
    for head in pool.datasets() {
        let head = head?;
        let mut all = vec![head.clone()];
        all.extend(head.snapshots()?);
        for dataset in all {
            let properties = dataset.literal_properties()?;
            let value = |name: &str| {
                let found = properties.iter().find(|property| property.name == name);
                found.map_or("-".to_owned(), |property| property.value.clone())
            };
            let used = match dataset.name() == pool.name() {
                true => "*".to_owned(),
                false => value("used"),
            };
            let rest = [
                "referenced",
                "usedbydataset",
                "usedbysnapshots",
                "logicalreferenced",
                "written",
            ]
            .map(value)
            .join("\t");
            let name = dataset.name();
            lines.push(format!("{name}\t{}\t{used}\t{rest}", value("type")));
        }
    }
    lines.sort();
    Ok(lines)
}
