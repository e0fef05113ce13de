//! Evaluates property `compatibility`: the features that it requests.
//!
//! The value may come from an untrusted pool.

use millpond_control::{FeatureFileError, FeatureFileProblem, RequestedFeatures};
use millpond_device::open_regular;
use millpond_ondisk::Feature;
use millpond_pool::properties::compatibility::{NAMES_BYTES_MAX, known_set, listed};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Where the administrator keeps feature sets. It comes first.
const OWN_FOLDER: &str = "/etc/zfs/compatibility.d";
/// Where systems with OpenZFS keep the feature sets that `compatibility` names.
const SHIPPED_FOLDER: &str = "/usr/share/zfs/compatibility.d";
/// The largest file of a feature set, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// As [`read_sets`], for information: a set that cannot be used makes the value unreadable.
pub(crate) fn requested(compatibility: Option<&str>) -> RequestedFeatures {
    read_sets(compatibility).unwrap_or(RequestedFeatures::Unreadable)
}

/// The features that all sets named by `compatibility` have in common. The sets that OpenZFS ships are built
/// in, so their files are not needed.
///
/// # Errors
/// The sets that cannot be used.
pub(crate) fn read_sets(
    compatibility: Option<&str>,
) -> Result<RequestedFeatures, Vec<FeatureFileError>> {
    let names = match compatibility {
        None | Some("off" | "") => return Ok(RequestedFeatures::All),
        Some("legacy") => return Ok(RequestedFeatures::Legacy),
        Some(names) => names,
    };
    if names.len() > NAMES_BYTES_MAX {
        let name = names.chars().take(40).collect();
        let problem = FeatureFileProblem::LongList;
        return Err(vec![FeatureFileError { name, problem }]);
    }
    let mut common: Option<Vec<String>> = None;
    let mut unusable = vec![];
    // A name that is repeated changes nothing.
    for name in names.split(',').collect::<BTreeSet<_>>() {
        match read_set(name) {
            Ok(set) => {
                let mut kept = common.take().unwrap_or_else(|| set.clone());
                kept.retain(|word| set.binary_search(word).is_ok());
                common = Some(kept);
            }
            Err(problem) => unusable.push(FeatureFileError {
                name: name.to_owned(),
                problem,
            }),
        }
    }
    match unusable.is_empty() {
        true => Ok(RequestedFeatures::Listed(common.unwrap_or_default())),
        false => Err(unusable),
    }
}

/// The features of a set, in order.
fn read_set(name: &str) -> Result<Vec<String>, FeatureFileProblem> {
    // It must not escape the folders.
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(FeatureFileProblem::Unknown);
    }
    if let Some(set) = read_file(&Path::new(OWN_FOLDER).join(name))? {
        let unknown = set.iter().filter(|word| Feature::by_name(word).is_none());
        let unknown: Vec<&str> = unknown.map(String::as_str).collect();
        if !unknown.is_empty() {
            let feature = unknown.join(" ");
            return Err(FeatureFileProblem::UnknownFeature { feature });
        }
        return Ok(set);
    }
    // A distribution may list features that came later.
    if let Some(set) = read_file(&Path::new(SHIPPED_FOLDER).join(name))? {
        return Ok(set);
    }
    let known = known_set(name).ok_or(FeatureFileProblem::Unknown)?;
    Ok(known.into_iter().map(str::to_owned).collect())
}

/// The words in a regular file, in order; `None` if there is no such file.
fn read_file(path: &Path) -> Result<Option<Vec<String>>, FeatureFileProblem> {
    let unreadable = |error: std::io::Error| FeatureFileProblem::Unreadable(error.to_string());
    let file = match open_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unreadable)?,
    };
    let file = file.ok_or(FeatureFileProblem::NotAFile)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut bytes = vec![];
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    let size = bytes.len() as u64;
    if size == 0 || size > FILE_BYTES_MAX {
        let bytes = length.max(size);
        return Err(FeatureFileProblem::Size { bytes });
    }
    let text = String::from_utf8(bytes).map_err(|_| FeatureFileProblem::NotText)?;
    match text.ends_with('\n') {
        true => Ok(Some(listed(&text))),
        false => Err(FeatureFileProblem::NoNewline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_regular_files_that_end_with_a_newline_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            read_file(&path)
        };
        let words = |words: &[&str]| Ok(Some(words.iter().map(ToString::to_string).collect()));
        assert_eq!(
            read(b"lz4_compress,bookmarks\n"),
            words(&["bookmarks", "lz4_compress"])
        );
        assert_eq!(read(b"\n"), words(&[]));
        assert_eq!(read(b"bookmarks"), Err(FeatureFileProblem::NoNewline));
        assert_eq!(read(b"\xff\n"), Err(FeatureFileProblem::NotText));
        assert_eq!(read(b""), Err(FeatureFileProblem::Size { bytes: 0 }));
        let mut most = vec![b'#'; 16 << 10];
        *most.last_mut().unwrap() = b'\n';
        assert_eq!(read(&most), words(&[]));
        most.insert(0, b'#');
        let bytes = most.len() as u64;
        assert_eq!(read(&most), Err(FeatureFileProblem::Size { bytes }));
        // A device without end, and a pipe that never delivers data.
        let refused = Err(FeatureFileProblem::NotAFile);
        assert_eq!(read_file(Path::new("/dev/zero")), refused);
        assert_eq!(read_file(folder.path()), refused);
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        assert_eq!(read_file(&pipe), refused);
        assert_eq!(read_file(&folder.path().join("none")), Ok(None));
    }

    #[test]
    fn all_names_must_be_those_of_sets() {
        let listed = |value| match read_sets(Some(value)) {
            Ok(RequestedFeatures::Listed(names)) => names.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(listed("openzfs-2.3"), 44);
        assert_eq!(
            listed("openzfs-2.3,zol-0.6.1,openzfs-2.3"),
            listed("zol-0.6.1")
        );
        assert_eq!(read_sets(Some("off")), Ok(RequestedFeatures::All));
        for value in ["no-such-set", "../passwd", "/etc/passwd", "a\0", ","] {
            let refused = read_sets(Some(value)).unwrap_err();
            let is_unknown =
                |error: &FeatureFileError| error.problem == FeatureFileProblem::Unknown;
            assert!(refused.iter().all(is_unknown), "{value}: {refused:?}");
            assert_eq!(requested(Some(value)), RequestedFeatures::Unreadable);
        }
        let refused = read_sets(Some(&"openzfs-2.3,".repeat(400))).unwrap_err();
        assert_eq!(refused[0].problem, FeatureFileProblem::LongList);
    }
}
