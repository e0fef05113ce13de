//! The project's targets for ratios.

/// Rows that behave like programs. Their only target: on a disk, `fsync` is no slower than ext4's.
const PROGRAMS: [&str; 3] = ["fsync beside a stream", "database", "virtual machine"];

/// The target of a row compared with a rival. Some rows of mounted file systems have one.
pub fn aim(section: &str, rival: &str, row: &str) -> Option<f64> {
    if PROGRAMS.iter().any(|program| row.starts_with(program)) {
        let is_latency = row.starts_with("fsync beside a stream: p");
        let is_asked = (section, rival) == ("Mounted on a disk", "over ext4") && is_latency;
        return is_asked.then_some(1.0);
    }
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

    #[test]
    fn rows_of_programs_have_one_aim() {
        let disk = "Mounted on a disk";
        let latency = "fsync beside a stream: p99.9";
        assert_eq!(aim(disk, "over ext4", latency), Some(1.0));
        assert_eq!(aim("Mounted", "over ext4", latency), None);
        for row in [
            latency,
            "fsync beside a stream: the stream",
            "database: WAL",
            "virtual machine: p99 read",
        ] {
            assert_eq!(aim("Mounted", "over zfs-fuse", row), None, "{row}");
            assert_eq!(aim("Mounted", "over Btrfs", row), None, "{row}");
        }
        assert_eq!(
            aim(disk, "over ext4", "fsync beside a stream: the stream"),
            None
        );
    }
}
