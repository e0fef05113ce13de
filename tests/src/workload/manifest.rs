//! Everything in a pool, a line each, as `tools/kernel/check` writes it down.

use crate::images::hex;
use millpond::{DatasetKind, FileKind, Node, Pool};
use sha2::{Digest, Sha256};

/// The manifest of a pool, sorted.
///
/// # Errors
/// If it cannot be read.
pub fn manifest(pool: &Pool) -> Result<Vec<String>, millpond::Error> {
    let mut lines = vec![];
    for dataset in pool.datasets() {
        let dataset = dataset?;
        let is_volume = dataset.kind()? == DatasetKind::Volume;
        if is_volume {
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
            lines.push(format!("{}\tvolume\t{digest}\t-", dataset.name()));
            continue;
        }
        let mut all = vec![dataset.clone()];
        all.extend(dataset.snapshots()?);
        for dataset in all {
            let files = dataset.file_system()?;
            let mut open = vec![(b".".to_vec(), files.root()?)];
            while let Some((path, node)) = open.pop() {
                lines.push(line(dataset.name(), &path, &node)?);
                if node.kind() == FileKind::Directory {
                    for entry in node.entries()? {
                        let entry = entry?;
                        let below = [&path[..], b"/", &entry.name].concat();
                        open.push((below, files.node(entry.id)?));
                    }
                }
            }
        }
    }
    lines.sort();
    Ok(lines)
}

fn line(dataset: &str, path: &[u8], node: &Node) -> Result<String, millpond::Error> {
    let stat = node.stat()?;
    let kind = match stat.kind {
        FileKind::Fifo => "fifo",
        FileKind::CharacterDevice => "character special file",
        FileKind::Directory => "directory",
        FileKind::BlockDevice => "block special file",
        FileKind::Regular if stat.size_bytes == 0 => "regular empty file",
        FileKind::Regular => "regular file",
        FileKind::Symlink => "symbolic link",
        FileKind::Socket => "socket",
    };
    let what = match stat.kind {
        FileKind::Symlink => {
            String::from_utf8_lossy(&node.link_target()?.unwrap_or_default()).into_owned()
        }
        FileKind::Regular => {
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
            hex(&digest.finalize())
        }
        _ => "-".to_owned(),
    };
    Ok(format!(
        "{dataset}\t{kind} {:o} {}:{} {} {} {}.{:09}\t{what}\t{}",
        stat.permissions,
        stat.uid,
        stat.gid,
        stat.links,
        stat.size_bytes,
        stat.mtime.seconds,
        stat.mtime.nanoseconds,
        String::from_utf8_lossy(path)
    ))
}
