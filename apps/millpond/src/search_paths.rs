//! Says why a search finds no pool in the given files, devices and folders.

use crate::text::errors::words_of;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// One line for each path that cannot lead to a pool, with the reason. Paths that could have none.
pub fn problems(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().filter_map(|path| problem(path)).collect()
}

fn problem(path: &Path) -> Option<String> {
    let shown = path.display();
    let said = |error: &std::io::Error| Some(format!("{shown}: {}", words_of(error)));
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return said(&error),
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        return match fs::read_dir(path) {
            Err(error) => said(&error),
            Ok(mut entries) => match entries.next() {
                None => Some(format!("{shown} is an empty folder")),
                Some(_) => None,
            },
        };
    }
    if kind.is_block_device() || kind.is_char_device() {
        return fs::File::open(path).err().and_then(|error| said(&error));
    }
    match (kind.is_file(), metadata.len()) {
        (true, 0) => Some(format!("{shown} is an empty file")),
        (true, _) => fs::File::open(path).err().and_then(|error| said(&error)),
        (false, _) => Some(format!("{shown} is no folder, image or device")),
    }
}

/// Says so if a cache file lists nothing because it is empty.
pub fn cache_file_problem(file: &Path) -> Option<String> {
    let is_empty = fs::metadata(file).is_ok_and(|metadata| metadata.len() == 0);
    is_empty.then(|| {
        format!(
            "the cache file {} is empty: it lists no pools",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_without_pools_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(
            problems(&[folder.path().to_owned()]),
            [format!("{} is an empty folder", folder.path().display())]
        );
        fs::write(at("empty"), b"").unwrap();
        fs::write(at("image"), b"x").unwrap();
        assert_eq!(
            problems(&[folder.path().to_owned(), at("image")]),
            [] as [String; 0]
        );
        assert_eq!(
            problems(&[at("nosuch"), at("empty")]),
            [
                format!("{}: No such file or directory", at("nosuch").display()),
                format!("{} is an empty file", at("empty").display()),
            ]
        );
        assert!(cache_file_problem(&at("empty")).is_some());
        assert!(cache_file_problem(&at("image")).is_none());
    }
}
