//! Datasets that are named by a path of a mounted file system.

use std::path::Path;

/// Whether an operand is a path instead of a name.
fn is_path(operand: &str) -> bool {
    operand.starts_with('/') || operand.starts_with("./") || operand.starts_with("../")
}

/// The name that an operand stands for: itself, or that of the file system at a path. The error is the reason.
pub fn dataset_of(operand: &str) -> Result<String, String> {
    match is_path(operand) {
        true => dataset_at(operand),
        false => Ok(operand.to_owned()),
    }
}

/// The name of the file system that is mounted where a path leads. The error is the reason.
fn dataset_at(path: &str) -> Result<String, String> {
    let real = Path::new(path).canonicalize();
    let real = real.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        _ => "the path cannot be followed".to_owned(),
    })?;
    millpond_fuse::mounted_dataset(&real).ok_or_else(|| "not a ZFS filesystem".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_names() {
        assert!(is_path("/tank") && is_path("./tank") && is_path("../tank"));
        assert!(!is_path("tank/fs") && !is_path("tank@s") && !is_path(""));
    }
}
