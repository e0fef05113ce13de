//! The links `/dev/zvol/POOL/VOLUME`.

use crate::device::{has_tag, is_of_volume, label_of};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder of links to the block devices of volumes.
#[derive(Debug, Clone)]
pub struct DeviceLinks {
    folder: PathBuf,
    tag: String,
}

impl DeviceLinks {
    /// The links in a folder, for devices with a tag.
    #[must_use]
    pub fn new(folder: &Path, tag: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            tag: tag.to_owned(),
        }
    }

    /// The path of a dataset's link; `None` for a name that cannot be a path below the folder.
    #[must_use]
    pub fn path(&self, dataset: &str) -> Option<PathBuf> {
        let mut path = self.folder.clone();
        for part in dataset.split('/') {
            if matches!(part, "" | "." | "..") || part.contains('\0') {
                return None;
            }
            // As OpenZFS's rules for udev write it.
            path.push(part.replace(' ', "+"));
        }
        Some(path)
    }

    /// Lets a dataset's link point to a device.
    ///
    /// # Errors
    /// If something else is there, or the link cannot be made.
    pub fn set(&self, dataset: &str, device: &Path) -> io::Result<()> {
        let path = self.path(dataset);
        let path = path.ok_or_else(|| io::Error::other("the name cannot be a path"))?;
        if let Ok(now) = fs::read_link(&path)
            && now == device
        {
            return Ok(());
        }
        match fs::symlink_metadata(&path) {
            Ok(known) if !known.is_symlink() || !self.is_stale(&path) => {
                return Err(io::Error::other("something else has this path"));
            }
            Ok(_) => fs::remove_file(&path)?,
            Err(_) => {}
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(device, &path)
    }

    /// Removes a dataset's link if it points to the device, and folders that are then empty.
    pub fn remove(&self, dataset: &str, device: &Path) {
        let Some(path) = self.path(dataset) else {
            return;
        };
        if fs::read_link(&path).is_ok_and(|now| now == device) {
            let _ = fs::remove_file(&path);
            self.prune(path.parent());
        }
    }

    fn prune(&self, folder: Option<&Path>) {
        let mut folder = folder;
        while let Some(now) = folder.filter(|now| *now != self.folder) {
            if !now.starts_with(&self.folder) || fs::remove_dir(now).is_err() {
                return;
            }
            folder = now.parent();
        }
    }

    /// Whether a link leads to a loop device that is no volume's, or to one of this tag.
    fn is_stale(&self, path: &Path) -> bool {
        let Ok(target) = fs::read_link(path) else {
            return false;
        };
        let name = target.strip_prefix("/dev").ok().and_then(Path::to_str);
        let number = name.and_then(|name| name.strip_prefix("loop")?.parse().ok());
        match number {
            Some(number) => is_left(label_of(number).as_deref(), &self.tag),
            None => false,
        }
    }

    /// Removes the links that a killed process left. No device with this tag may be in use.
    pub fn clear_left(&self) {
        self.clear_in(&self.folder, 0);
    }

    fn clear_in(&self, folder: &Path, depth: usize) {
        /// Datasets do not lie deeper.
        const DEPTH_MAX: usize = 128;
        let Ok(listed) = fs::read_dir(folder) else {
            return;
        };
        for entry in listed.flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_symlink() && self.is_stale(&path) => {
                    let _ = fs::remove_file(&path);
                }
                Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => {
                    self.clear_in(&path, depth + 1);
                    // Only an empty one is removed.
                    let _ = fs::remove_dir(&path);
                }
                _ => {}
            }
        }
    }
}

/// Whether a link to a loop device with this label was left by a daemon that was killed.
///
/// Another program may have got the number since. A link to its disk is dangerous: who writes to the volume writes there.
fn is_left(label: Option<&str>, tag: &str) -> bool {
    label.is_none_or(|label| has_tag(label, tag) || !is_of_volume(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(folder: &Path) -> DeviceLinks {
        DeviceLinks::new(folder, "millpond test")
    }

    #[test]
    fn names_that_leave_the_folder_have_no_path() {
        let all = links(Path::new("/dev/zvol"));
        let path = all.path("tank/a b").unwrap();
        assert_eq!(path, Path::new("/dev/zvol/tank/a+b"));
        for name in ["", "tank/..", "../x", "tank//a", "tank/.", "/etc"] {
            assert_eq!(all.path(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_link_is_made_and_removed_with_its_folders() {
        let folder = tempfile::tempdir().unwrap();
        let all = links(folder.path());
        // No loop device has this number.
        let device = Path::new("/dev/loop1048575");
        all.set("tank/a/b", device).unwrap();
        let path = folder.path().join("tank/a/b");
        assert_eq!(fs::read_link(&path).unwrap(), device);
        all.remove("tank/a/b", Path::new("/dev/loop1048574"));
        assert!(path.is_symlink());
        all.remove("tank/a/b", device);
        assert!(!folder.path().join("tank").exists());
        assert!(folder.path().exists());
    }

    #[test]
    fn only_links_to_volumes_of_other_daemons_stay() {
        let tag = "millpond 5:a1";
        assert!(is_left(None, tag));
        assert!(is_left(Some("millpond 5:a1 tank/a"), tag));
        assert!(is_left(Some("/var/lib/images/disk.img"), tag));
        assert!(is_left(Some(""), tag));
        assert!(!is_left(Some("millpond 5:a12 tank/a"), tag));
    }

    #[test]
    fn what_is_not_a_stale_link_stays() {
        let folder = tempfile::tempdir().unwrap();
        let all = links(folder.path());
        fs::create_dir(folder.path().join("tank")).unwrap();
        let file = folder.path().join("tank/file");
        fs::write(&file, b"x").unwrap();
        assert!(all.set("tank/file", Path::new("/dev/loop1048575")).is_err());
        let foreign = folder.path().join("tank/foreign");
        symlink("/dev/null", &foreign).unwrap();
        assert!(
            all.set("tank/foreign", Path::new("/dev/loop1048575"))
                .is_err()
        );
        all.set("tank/left", Path::new("/dev/loop1048575")).unwrap();
        all.clear_left();
        assert!(file.exists() && foreign.is_symlink());
        assert!(!folder.path().join("tank/left").is_symlink());
    }
}
