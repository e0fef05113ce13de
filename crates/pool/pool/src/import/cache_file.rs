//! Configurations in the cache file, and device paths in any configuration.
//!
//! Page `docs/format/pool-config.md`, "Cache file".

use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{DecodeError, Guid};
use std::path::PathBuf;

/// Why a cache file cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheFileError {
    /// The file is not a packed name/value list.
    #[error("the cache file is damaged: {0}")]
    Damaged(#[from] DecodeError),
}

/// Reads the pools of a cache file: name and configuration, in file order. Skips entries that are not
/// configurations.
///
/// # Errors
/// [`CacheFileError`].
pub fn cached_pools(file: &[u8]) -> Result<Vec<(String, NvList)>, CacheFileError> {
    let list = NvList::decode(file)?;
    let pools = list.iter().filter_map(|pair| match &pair.value {
        NvValue::List(config) => Some((pair.name.to_string_lossy().into_owned(), config.clone())),
        _ => None,
    });
    Ok(pools.collect())
}

/// The paths and guids of all leaves in a configuration (of a label, the MOS or the cache file).
#[must_use]
pub fn leaf_paths(config: &NvList) -> Vec<(Guid, PathBuf)> {
    let mut paths = Vec::new();
    if let Ok(tree) = config.list("vdev_tree") {
        collect(tree, &mut paths);
    }
    paths
}

/// Recursion depth is bounded by the depth of name/value lists.
fn collect(vdev: &NvList, paths: &mut Vec<(Guid, PathBuf)>) {
    if let (Ok(guid), Ok(path)) = (vdev.u64("guid"), vdev.raw_string("path")) {
        use std::os::unix::ffi::OsStrExt;
        paths.push((
            Guid(guid),
            PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes())),
        ));
    }
    for child in vdev.list_array("children").unwrap_or(&[]) {
        collect(child, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_a_cache_file_keep_their_order() {
        let mut leaf = NvList::new();
        leaf.insert("guid", 7u64);
        leaf.insert("path", "/dev/sda1");
        let mut root = NvList::new();
        root.insert("guid", 5u64);
        root.insert("children", vec![leaf]);
        let mut config = NvList::new();
        config.insert("vdev_tree", root);
        let mut file = NvList::new();
        file.insert("zeta", config.clone());
        file.insert("number", 1u64);
        file.insert("alpha", NvList::new());
        let pools = cached_pools(&file.encode_native().unwrap()).unwrap();
        assert_eq!(
            pools,
            [
                ("zeta".to_owned(), config.clone()),
                ("alpha".to_owned(), NvList::new())
            ]
        );
        assert_eq!(leaf_paths(&config), [(Guid(7), PathBuf::from("/dev/sda1"))]);
        assert!(cached_pools(b"").is_err());
        assert!(leaf_paths(&NvList::new()).is_empty());
    }
}
