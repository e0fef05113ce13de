//! The project's targets for ratios.

/// The target of a row compared with a rival. Some rows of mounted file systems have one.
pub fn aim(section: &str, rival: &str, row: &str) -> Option<f64> {
    let is_data = !["stat", "readdir", "rename", "unlink"]
        .iter()
        .any(|metadata| row.ends_with(metadata));
    let is_writing = row.contains("write") || row.ends_with("create");
    match (section, rival) {
        ("Mounted", "over zfs-fuse") => Some(if is_writing { 5.0 } else { 2.0 }),
        ("Mounted", "over Btrfs") => is_data.then_some(1.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_reading_and_metadata_have_their_aims() {
        let fuse = |row: &str| aim("Mounted", "over zfs-fuse", row);
        let btrfs = |row: &str| aim("Mounted", "over Btrfs", row);
        for row in [
            "stream write",
            "sync write 4k, 1 at once",
            "files of 4k: create",
        ] {
            assert_eq!((fuse(row), btrfs(row)), (Some(5.0), Some(1.0)), "{row}");
        }
        for row in ["stream read", "random read 4k", "files of 4k: read"] {
            assert_eq!((fuse(row), btrfs(row)), (Some(2.0), Some(1.0)), "{row}");
        }
        for row in ["stat", "readdir", "rename", "unlink"] {
            let row = format!("files of 4k: {row}");
            assert_eq!((fuse(&row), btrfs(&row)), (Some(2.0), None), "{row}");
        }
        assert_eq!(aim("Mounted", "over XFS", "stream write"), None);
        assert_eq!(aim("Writing", "over zfs-fuse", "stream write"), None);
    }
}
