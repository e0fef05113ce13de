//! What the record says of old files, and whether it is still so.

use anyhow::{Result, ensure};
use millpond::live::LiveFileSystem;
use millpond_tests::compare::Findings;
use millpond_tests::images::{Disks, hex};
use millpond_tests::record::{Content, Entry, Record};
use millpond_tests::{adaptor, tree};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Stands for times that are no longer as recorded.
const TOUCHED: i128 = i128::MIN;

/// Compares every file of the record with what is there. Also gives how many.
pub fn compare_old(place: &Path, record: &Record) -> Result<(Findings, u64)> {
    let paths: Vec<PathBuf> = record
        .images
        .iter()
        .map(|image| place.join(image.file.trim_end_matches(".zst")))
        .collect();
    // The folder must not go when this is dropped.
    let disks = std::mem::ManuallyDrop::new(Disks {
        folder: place.to_owned(),
        paths,
    });
    let mut pool = adaptor::open(&disks, &record.keys)
        .map_err(|error| anyhow::anyhow!("afterwards: {error}"))?;
    let mut findings = Findings::default();
    for dataset in &record.datasets {
        let Some(entries) = &dataset.tree else {
            continue;
        };
        let mut entries = entries.clone();
        for entry in &mut entries {
            if entry.attributes.mtime_ns != TOUCHED {
                continue;
            }
            let found = pool
                .attributes(&dataset.name, entry.object)
                .map_err(|error| anyhow::anyhow!("{}: {error}", dataset.name))?;
            let recorded = &mut entry.attributes;
            recorded.mtime_ns = found.mtime_ns;
            recorded.ctime_ns = found.ctime_ns;
            recorded.atime_ns = found.atime_ns;
            recorded.blocks = found.blocks;
            if recorded.kind == "dir" {
                recorded.size = found.size;
            }
        }
        let below = below_the_pool(&dataset.name);
        let is_lost = |path: &[u8]| record.lost.contains(&[below.as_bytes(), path].concat());
        let expected = tree::Expected {
            dataset: &dataset.name,
            entries: &entries,
            is_lost: &is_lost,
            // What the last txg wrote went with the newest uberblock.
            may_differ: &|path| record.pool == "pcorrupt-uberblock" && path == b"last",
        };
        tree::compare(&mut *pool, &expected, &mut findings);
    }
    let count = findings.files;
    Ok((findings, count))
}

/// `pool/a/b@s` as the beginning of paths below the pool's mount point: `a/b/`.
pub fn below_the_pool(dataset: &str) -> String {
    let name = dataset.split('@').next().unwrap_or(dataset);
    name.split_once('/')
        .map_or(String::new(), |(_, path)| format!("{path}/"))
}

/// Times and space are no longer as recorded: [`compare_old`] takes them as they are found.
pub fn touched(entry: &mut Entry) {
    entry.attributes.mtime_ns = TOUCHED;
}

/// The module's replay of a block that was written as a whole makes a file that ends inside the block longer, up to
/// the block's end, by zeros that nobody wrote. Ours does not.
pub fn without_growth(files: &Arc<LiveFileSystem>, entries: &mut [Entry]) -> Result<()> {
    let root = files.root()?;
    for entry in entries {
        let is_concerned = entry.path == b"old-file" && entry.attributes.size == 524_288;
        let Some(Content::Whole(digest)) = entry.content.clone().filter(|_| is_concerned) else {
            continue;
        };
        let node = files.lookup(&root, &entry.path)?;
        let mut bytes = vec![0; node.size_bytes() as usize];
        files.read(&node, 0, &mut bytes)?;
        ensure!(bytes.len() == 500_000, "old-file has {} bytes", bytes.len());
        entry.content = Some(Content::Whole(hex(&Sha256::digest(&bytes))));
        entry.attributes.size = bytes.len() as u64;
        entry.extents = None;
        bytes.resize(524_288, 0);
        let padded = hex(&Sha256::digest(&bytes));
        ensure!(padded == digest, "old-file differs otherwise");
    }
    Ok(())
}
