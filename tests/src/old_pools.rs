//! Pools of old versions, from Debian's package of OpenZFS's test suite.
//!
//! They have no record. The test is that they open and that all their data can be read with valid
//! checksums. They are in the oracle's cache after `tools/oracle/fetch` has run.

use crate::compare::Findings;
use crate::images::workspace;
use crate::reader::{Answer, DatasetKind, PoolReader, ReadError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One pool with its packed images.
#[derive(Debug, Clone)]
pub struct OldPool {
    /// Its name: `v1mirror`, `v15`.
    pub name: String,
    /// Its disks, packed with bzip2.
    pub packed: Vec<PathBuf>,
    /// Why opening it must be refused, or `None`.
    pub must_be_refused: Option<&'static str>,
}

/// The directory of the oracle's pools, if they were downloaded.
pub fn folder() -> Option<PathBuf> {
    let output = Command::new(workspace().join("tools/oracle/where"))
        .output()
        .ok()?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("pools");
    folder.is_dir().then_some(folder)
}

/// The pools in a directory; disks of the same pool are grouped.
///
/// # Errors
/// If the directory cannot be read.
pub fn list(folder: &Path) -> std::io::Result<Vec<OldPool>> {
    let mut pools: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if let Some(name) = name.strip_suffix(".dat.bz2") {
            pools.entry(pool_of(name)).or_default().push(path);
        }
    }
    Ok(pools
        .into_iter()
        .map(|(name, mut packed)| {
            packed.sort();
            let refused = REFUSED.iter().find(|(refused, _)| *refused == name);
            OldPool {
                name,
                packed,
                must_be_refused: refused.map(|(_, why)| *why),
            }
        })
        .collect())
}

/// The name of the pool that a disk belongs to: `zfs-pool-v1mirror2` belongs to `v1mirror`.
fn pool_of(disk: &str) -> String {
    let name = disk.strip_prefix("zfs-pool-").unwrap_or(disk);
    let last = name.chars().last();
    let is_of_several = ["mirror", "raidz", "stripe", "hotspare"]
        .iter()
        .any(|kind| name.contains(kind));
    match last {
        Some(digit) if digit.is_ascii_digit() && is_of_several => name[..name.len() - 1].to_owned(),
        _ => name.to_owned(),
    }
}

/// Lists every dataset and reads every file and volume.
pub fn read_everything(pool: &mut dyn PoolReader) -> Findings {
    let mut findings = Findings::default();
    let datasets = match pool.datasets() {
        Ok(datasets) => datasets,
        Err(error) => {
            findings.failed("the pool", "its datasets", error);
            return findings;
        }
    };
    let kinds: BTreeMap<String, DatasetKind> = datasets.iter().cloned().collect();
    for (name, kind) in datasets {
        let outcome = match kind {
            DatasetKind::Bookmark => Ok(()),
            DatasetKind::Volume => read_volume(pool, &name),
            DatasetKind::Filesystem => read_tree(pool, &name, &mut findings),
            // A snapshot is read like the dataset that it was taken of.
            DatasetKind::Snapshot => match kinds.get(name.split('@').next().unwrap_or(&name)) {
                Some(DatasetKind::Volume) => read_volume(pool, &name),
                _ => read_tree(pool, &name, &mut findings),
            },
        };
        match outcome {
            // A dataset without its key is refused.
            Ok(()) | Err(ReadError::Refused(_)) => {}
            Err(ReadError::NotOffered(what)) => drop(findings.not_compared.insert(what)),
            Err(error) => findings.failed(&name, "everything in it", error),
        }
    }
    findings
}

fn read_tree(pool: &mut dyn PoolReader, dataset: &str, findings: &mut Findings) -> Answer<()> {
    let mut open = vec![pool.root(dataset)?];
    let mut buffer = vec![0; 1 << 20];
    while let Some(object) = open.pop() {
        let attributes = pool.attributes(dataset, object)?;
        findings.files += 1;
        if findings.files > FILES_MAX {
            return Err(ReadError::Other("the tree does not end".to_owned()));
        }
        match attributes.kind.as_str() {
            "dir" => open.extend(
                pool.list(dataset, object)?
                    .into_iter()
                    .map(|(_, child)| child),
            ),
            "file" => {
                let mut done = 0;
                while done < attributes.size {
                    let count = (attributes.size - done).min(buffer.len() as u64) as usize;
                    pool.read(dataset, object, done, &mut buffer[..count])?;
                    done += count as u64;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn read_volume(pool: &mut dyn PoolReader, dataset: &str) -> Answer<()> {
    let size = pool.volume_size(dataset)?;
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    while done < size {
        let count = (size - done).min(buffer.len() as u64) as usize;
        pool.read_volume(dataset, done, &mut buffer[..count])?;
        done += count as u64;
    }
    Ok(())
}

const FILES_MAX: u64 = 1_000_000;

const REFUSED: [(&str, &str); 1] = [("v999", "its version is in the future")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_one_pool_are_grouped() {
        assert_eq!(pool_of("zfs-pool-v1mirror2"), "v1mirror");
        assert_eq!(pool_of("zfs-pool-v15"), "v15");
        assert_eq!(pool_of("zfs-pool-v3raidz21"), "v3raidz2");
        assert_eq!(pool_of("zfs-pool-v3raidz2"), "v3raidz");
        assert_eq!(pool_of("zfs-broken-mirror1"), "zfs-broken-mirror");
        assert_eq!(pool_of("cryptv0"), "cryptv0");
    }
}
