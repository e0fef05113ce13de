//! Compares old files with their records.

use anyhow::{Result, ensure};
use millpond_engine::FileSystem;
use millpond_tests::compare::Findings;
use millpond_tests::images::{Disks, hex};
use millpond_tests::record::{Content, Entry, Record};
use millpond_tests::{adaptor, tree};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Stands for times that no longer match the record.
const TOUCHED: i128 = i128::MIN;

/// Compares every recorded file with the pool. Also returns the number of files.
pub fn compare_old(place: &Path, record: &Record) -> Result<(Findings, u64)> {
    let paths: Vec<PathBuf> = record
        .images
        .iter()
        .map(|image| place.join(image.file.trim_end_matches(".zst")))
        .collect();
    // Dropping `Disks` would remove the directory, which must stay.
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
            // The writes of the last txg were lost with the newest uberblock.
            may_differ: &|path| record.pool == "pcorrupt-uberblock" && path == b"last",
        };
        tree::compare(&mut *pool, &expected, &mut findings);
    }
    let count = findings.files;
    Ok((findings, count))
}

/// Turns `pool/a/b@s` into the prefix of paths below the pool's mount point: `a/b/`.
pub fn below_the_pool(dataset: &str) -> String {
    let name = dataset.split('@').next().unwrap_or(dataset);
    name.split_once('/')
        .map_or(String::new(), |(_, path)| format!("{path}/"))
}

/// Marks times and space as changed: [`compare_old`] then accepts the values that it finds.
pub fn touched(entry: &mut Entry) {
    entry.attributes.mtime_ns = TOUCHED;
}

/// Adjusts records for a difference in log replay.
///
/// When the module replays a whole-block write to a file that ends inside the block, it extends the file
/// with zeros to the end of the block. Our replay does not.
pub fn without_growth(files: &Arc<FileSystem>, entries: &mut [Entry]) -> Result<()> {
    let root = files.root()?;
    for entry in entries {
        let is_concerned = entry.path == b"old-file" && entry.attributes.size == 524_288;
        let Some(Content::Whole(digest)) = entry.content.clone().filter(|_| is_concerned) else {
            continue;
        };
        let node = root.lookup(&entry.path)?;
        let mut bytes = vec![0; node.size_bytes() as usize];
        node.read(0, &mut bytes)?;
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
