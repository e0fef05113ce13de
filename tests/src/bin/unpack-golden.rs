//! Unpacks the disks of a golden case into a directory, or checks files that were copied out of it.
//!
//! `unpack-golden CASE FOLDER` and `unpack-golden --check CASE DATASET FOLDER`.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use millpond_tests::images::{self, hex};
use millpond_tests::record::{self, Content};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--check", case, dataset, folder] => check(Path::new(case), dataset, Path::new(folder)),
        [case, folder] => unpack(Path::new(case), Path::new(folder)),
        _ => bail!("usage: unpack-golden CASE FOLDER | unpack-golden --check CASE DATASET FOLDER"),
    }
}

fn unpack(case: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for image in record::load(case)?.images {
        let cached = images::unpacked(&case.join(&image.file), &image.sha256, image.size_bytes)?;
        let name = image.file.trim_end_matches(".zst");
        images::copy_sparse(&cached, &folder.join(name))?;
        println!("{name}");
    }
    Ok(())
}

/// Every regular file of the record must be in the directory, with the recorded content.
fn check(case: &Path, dataset: &str, folder: &Path) -> Result<()> {
    let record = record::load(case)?;
    let dataset = record
        .datasets
        .iter()
        .find(|known| known.name == dataset)
        .with_context(|| format!("the record has no dataset {dataset}"))?;
    let mut files = 0_u32;
    for entry in dataset.tree.iter().flatten() {
        let Some(Content::Whole(digest)) = &entry.content else {
            continue;
        };
        let path = folder.join(OsStr::from_bytes(&entry.path));
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let found = hex(&Sha256::digest(&bytes));
        ensure!(
            found == *digest,
            "{} has digest {found}, not {digest}",
            path.display()
        );
        files += 1;
    }
    ensure!(files > 0, "the record has no file to compare");
    println!("{files} files, each with the recorded content");
    Ok(())
}
