//! Golden cases of the repository.
//!
//! Also runs the program on them, and compares a copied tree with the record.

use millpond_tests::images::{self, Disks};
use millpond_tests::record::{self, Content, Dataset, Entry, Record};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A case with its disks unpacked.
pub struct Case {
    pub folder: PathBuf,
    pub record: Record,
    pub disks: Disks,
}

/// Unpacks a case of the repository's own set, without the named disks.
pub fn case_without(name: &str, absent: &[&str]) -> Case {
    let folder = images::workspace().join("testdata/golden").join(name);
    let record = record::load(&folder).unwrap();
    let disks: Vec<(String, PathBuf)> = record
        .images
        .iter()
        .filter(|image| !absent.iter().any(|absent| image.file.starts_with(absent)))
        .map(|image| {
            let packed = folder.join(&image.file);
            let path = images::unpacked(&packed, &image.sha256, image.size_bytes).unwrap();
            (image.file.trim_end_matches(".zst").to_owned(), path)
        })
        .collect();
    let disks = images::gather(&format!("verbs-{name}"), &disks).unwrap();
    Case {
        folder,
        record,
        disks,
    }
}

/// Unpacks a whole case.
pub fn case(name: &str) -> Case {
    case_without(name, &[])
}

impl Case {
    /// Runs the program on the disks of the case.
    pub fn run<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.arg("-d").arg(&self.disks.folder);
        command.args(words);
        command.env("TZ", "UTC").env_remove("MILLPOND_SEARCH");
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs the program and requires success.
    pub fn run_well<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Vec<u8> {
        let output = self.run(words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    }

    /// The recorded content of a dataset.
    pub fn dataset(&self, name: &str) -> &Dataset {
        let mut all = self.record.datasets.iter();
        all.find(|dataset| dataset.name == name).unwrap()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compares a copied tree with the record.
///
/// The content of the `lost` paths is not compared. Returns the number of files compared.
pub fn compare(dataset: &Dataset, copy: &Path, lost: &[&str]) -> usize {
    let tree = dataset.tree.as_ref().expect("the record has a tree");
    let is_root = copy.metadata().unwrap().uid() == 0;
    for entry in tree {
        let path = copy.join(OsStr::from_bytes(&entry.path));
        let shown = text(&entry.path);
        let found = path
            .symlink_metadata()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        let wanted = &entry.attributes;
        assert_eq!(kind(&found), wanted.kind, "{shown}: kind");
        if wanted.kind != "symlink" {
            assert_eq!(found.mode() & 0o7777, wanted.mode, "{shown}: mode");
        }
        assert_eq!(time(&found), wanted.mtime_ns, "{shown}: time");
        if is_root {
            let owner = (u64::from(found.uid()), u64::from(found.gid()));
            assert_eq!(owner, (wanted.uid, wanted.gid), "{shown}: owner");
        }
        if let Some(target) = &wanted.target {
            let link = std::fs::read_link(&path).unwrap();
            assert_eq!(link.as_os_str().as_bytes(), target, "{shown}: target");
        }
        if let Some(device) = wanted.rdev {
            let (major, minor) = (
                rustix::fs::major(found.rdev()),
                rustix::fs::minor(found.rdev()),
            );
            assert_eq!((u64::from(major), u64::from(minor)), device, "{shown}");
        }
        if wanted.kind == "file" {
            assert_eq!(found.len(), wanted.size, "{shown}: size");
            assert_eq!(found.nlink(), wanted.nlink, "{shown}: links");
            if !lost.contains(&shown.as_str()) {
                content(entry, &path, &shown);
            }
        }
        if matches!(wanted.kind.as_str(), "file" | "dir") && is_root {
            xattrs(entry, &path, &shown);
        }
    }
    tree.len()
}

fn content(entry: &Entry, path: &Path, shown: &str) {
    if let Some(Content::Whole(digest)) = &entry.content {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(&sha256(&bytes), digest, "{shown}: content");
    }
}

fn xattrs(entry: &Entry, path: &Path, shown: &str) {
    for (name, value) in &entry.attributes.xattrs {
        // Attributes that the destination's file system does not support are absent.
        let mut buffer = vec![0u8; 1 << 16];
        match rustix::fs::getxattr(path, name.as_str(), &mut buffer[..]) {
            Ok(count) => assert_eq!(&buffer[..count], value, "{shown}: {name}"),
            Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => panic!("{shown}: {name}: {error}"),
        }
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    images::hex(&Sha256::digest(bytes))
}

fn kind(found: &std::fs::Metadata) -> &'static str {
    let kind = found.file_type();
    match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "dir",
        () if kind.is_symlink() => "symlink",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "sock",
        () if kind.is_block_device() => "blk",
        () => "chr",
    }
}

fn time(found: &std::fs::Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}
