//! Selects the judge of a pool: `zdb` 2.3, or a virtual machine with OpenZFS 2.4.

use anyhow::{Context, Result, ensure};
use millpond_engine::{OpenOptions, Search, View};
use millpond_tests::oracle::{Verdict, kernel, zdb};
use millpond_tests::workload::manifest;
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub fn is_accused(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Faults(_))
}

/// Cases that `zdb` 2.3 does not support, or fails on.
///
/// A machine with 2.4, started by hand, judges them.
const JUDGED_BY_2_4: &[&str] = &["v24-clone", "v24-gang", "v24-rewrite", "v24-special"];

/// Judges a case with the selected judge.
pub fn judge(case: &str, folder: &Path, place: &Path, pool: &str) -> Result<Verdict> {
    if JUDGED_BY_2_4.contains(&case) {
        return judge_in_a_machine(place, pool);
    }
    // `zdb` reads images of whole disks, not partitioned ones.
    let table = folder.join("sfdisk.txt");
    if table.exists() {
        let cut = tempfile::tempdir()?;
        cut_out(&table, &place.join("d0.img"), &cut.path().join("d0.img"))?;
        return zdb::judge(cut.path(), pool);
    }
    zdb::judge(place, pool)
}

/// Imports and scrubs the pool, compares every file with our reader, and runs 2.4's own `zdb`.
fn judge_in_a_machine(place: &Path, name: &str) -> Result<Verdict> {
    if std::env::var_os("MILLPOND_KERNEL").is_none() {
        let why = "2.3 cannot judge it; MILLPOND_KERNEL=1 starts a machine with 2.4";
        return Ok(Verdict::Absent(why.to_owned()));
    }
    let mut paths: Vec<PathBuf> = std::fs::read_dir(place)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    paths.sort();
    let share = tempfile::tempdir()?;
    let verdict = kernel::judge(kernel::Release::V2_4, &paths, name, Some(share.path()))?;
    if verdict.is_clean() {
        let pool = View::open(&Search::new([place]), name, &OpenOptions::default())?;
        let ours: BTreeSet<String> = manifest(&pool)?.into_iter().collect();
        let text = std::fs::read_to_string(share.path().join("manifest.txt"))?;
        let theirs: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        println!("{name}: {} lines compared with 2.4's", ours.len());
        let differing: Vec<_> = ours.symmetric_difference(&theirs).take(20).collect();
        ensure!(differing.is_empty(), "we and 2.4 differ: {differing:#?}");
    }
    Ok(verdict)
}

/// Copies the first partition of an image, found in the listing of its table, to an image of its own.
fn cut_out(table: &Path, image: &Path, to: &Path) -> Result<()> {
    let listing = std::fs::read_to_string(table)?;
    let number = |name: &str| {
        let (_, rest) = listing.split_once(name)?;
        rest.split(',').next()?.trim().parse::<u64>().ok()
    };
    let (start, sectors) = (
        number("start=").context("no start")?,
        number("size=").context("no size")?,
    );
    let mut from = std::fs::File::open(image)?;
    from.seek(SeekFrom::Start(start * 512))?;
    let mut partition = std::fs::File::create(to)?;
    std::io::copy(&mut from.take(sectors * 512), &mut partition)?;
    Ok(())
}
