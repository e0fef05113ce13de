//! The names of vdevs in output.

use crate::command::Parsed;
use crate::session::Environment;
use millpond_control::{VdevInfo, VdevKind};

/// How to name vdevs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naming {
    /// `-P`: full paths.
    pub has_full_path: bool,
    /// `-g`: guids.
    pub has_guid: bool,
    /// `-L`: resolves symbolic links.
    pub follows_links: bool,
}

impl Naming {
    /// Reads the options and the environment.
    pub fn read(parsed: &Parsed, environment: &Environment) -> Naming {
        let is_on = |option, variable| parsed.has(option) || environment.is_on(variable);
        Naming {
            has_full_path: is_on("P", "ZPOOL_VDEV_NAME_PATH"),
            has_guid: is_on("g", "ZPOOL_VDEV_NAME_GUID"),
            follows_links: is_on("L", "ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
        }
    }

    /// The name of a vdev that is not the root.
    pub fn of(self, vdev: &VdevInfo) -> String {
        if self.has_guid || (vdev.kind.is_leaf() && vdev.is_absent) {
            return vdev.guid.to_string();
        }
        let id = vdev.id;
        match vdev.kind {
            VdevKind::RaidZ { parity } => format!("raidz{parity}-{id}"),
            VdevKind::Draid {
                parity,
                data,
                children,
                spares,
            } => {
                format!("draid{parity}:{data}d:{children}c:{spares}s-{id}")
            }
            VdevKind::DistributedSpare {
                parity,
                top_id,
                spare_id,
            } => {
                format!("draid{parity}-{top_id}-{spare_id}")
            }
            kind if kind.is_device() => match &vdev.path {
                None => vdev.guid.to_string(),
                Some(path) => self.of_path(vdev, path),
            },
            kind => format!("{}-{id}", kind.word()),
        }
    }

    fn of_path(self, vdev: &VdevInfo, path: &str) -> String {
        let mut path = path.to_string();
        if self.follows_links
            && let Ok(target) = std::fs::canonicalize(&path)
        {
            path = target.to_string_lossy().into_owned();
        }
        if self.has_full_path || vdev.kind == VdevKind::File {
            return path;
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        if vdev.is_whole_disk {
            without_partition(name).to_string()
        } else {
            name.to_string()
        }
    }
}

/// Removes a partition suffix: `sda1` becomes `sda`, `nvme0n1p1` `nvme0n1`, `ata-X-part1` `ata-X`.
fn without_partition(name: &str) -> &str {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == name.len() || stem.is_empty() {
        return name;
    }
    if let Some(disk) = stem.strip_suffix("-part") {
        return disk;
    }
    match stem.strip_suffix('p') {
        Some(disk) if disk.ends_with(|c: char| c.is_ascii_digit()) => disk,
        _ if stem.bytes().all(|b| b.is_ascii_lowercase()) => stem,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_disks_lose_their_partition() {
        for (name, disk) in [
            ("sda1", "sda"),
            ("nvme0n1p1", "nvme0n1"),
            ("ata-X-part1", "ata-X"),
            ("wwn-0x5000", "wwn-0x5000"),
            ("1", "1"),
            ("sda", "sda"),
        ] {
            assert_eq!(without_partition(name), disk);
        }
    }

    #[test]
    fn files_keep_their_path_and_disks_their_last_name() {
        let mut vdev = VdevInfo {
            guid: 7,
            path: Some("/dev/disk/by-id/x".into()),
            ..Default::default()
        };
        assert_eq!(Naming::default().of(&vdev), "x");
        assert_eq!(
            Naming {
                has_full_path: true,
                ..Default::default()
            }
            .of(&vdev),
            "/dev/disk/by-id/x"
        );
        vdev.kind = VdevKind::File;
        assert_eq!(Naming::default().of(&vdev), "/dev/disk/by-id/x");
        vdev.is_absent = true;
        assert_eq!(Naming::default().of(&vdev), "7");
    }
}
