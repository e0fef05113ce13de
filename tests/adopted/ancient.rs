//! Pools of versions 1 to 15 that old software made, some of them big-endian, are changed and raised to 5000.

use anyhow::{Context, Result, ensure};
use millpond_check::{CheckOptions, check_pool};
use millpond_engine::{
    Caller, FoundLogs, NewMode, OpenOptions, Pool, PropertyValue, Search, View, WriteAt,
};
use millpond_ondisk::PoolVersion;
use millpond_pool::import::{ScanOptions, find_pools, scan};
use millpond_tests::images;
use millpond_tests::old_pools::OldPool;
use millpond_tests::oracle::{Verdict, zdb};
use millpond_tests::raised;
use millpond_tests::runner::Outcome;
use millpond_tests::workload::manifest;
use std::path::{Path, PathBuf};

/// Pools of every kind of vdev and both byte orders; with `MILLPOND_WRITING_ALL` all are changed.
pub const EVERY_DAY: &[&str] = &[
    "v1",
    "v1raidz",
    "v2mirror",
    "v3raidz2",
    "v3hotspare",
    "v4",
    "v9",
    "v11",
    "v14",
    "v15",
];

/// Whether the name is that of an old pool that opens.
pub fn is_one(pool: &OldPool) -> bool {
    let digits = pool.name.strip_prefix('v').unwrap_or_default();
    digits.starts_with(|first: char| first.is_ascii_digit()) && pool.must_be_refused.is_none()
}

pub fn run(old: &OldPool) -> Result<Outcome> {
    let place = tempfile::tempdir()?;
    let mut paths = vec![];
    for (number, packed) in old.packed.iter().enumerate() {
        let from = images::unpacked_bzip2(packed).with_context(|| old.name.clone())?;
        let to = place.path().join(format!("d{number}.img"));
        images::copy_sparse(&from, &to)?;
        paths.push(to);
    }
    let name = name_of(&paths)?;
    let already = zdb::judge(place.path(), &name)?;
    let before = listed(place.path(), &name)?;
    let found = faults(place.path(), &name)?;
    let version = read(place.path(), &name)?.inner().version();

    change(open(place.path(), &name)?, &name)?;
    judged(place.path(), &name, (&already, &found), "changed")?;
    ensure!(read(place.path(), &name)?.inner().version() == version);
    for to in [PoolVersion(11), PoolVersion(26), PoolVersion::FEATURES] {
        if to.0 <= version {
            continue;
        }
        let what = format!("raised to {}", to.0);
        let pool = open(place.path(), &name)?;
        raised::raise(&pool, to)?;
        // As after a crash.
        pool.sync()?;
        drop(pool);
        judged(place.path(), &name, (&already, &found), &what)?;
        change(open(place.path(), &name)?, &name)?;
        judged(place.path(), &name, (&already, &found), &what)?;
        ensure!(read(place.path(), &name)?.inner().version() == to.0);
    }
    let after = listed(place.path(), &name)?;
    let lost: Vec<&String> = before.iter().filter(|line| !after.contains(line)).collect();
    ensure!(lost.is_empty(), "changed by us: {lost:#?}");
    let note = match already {
        Verdict::Faults(lines) => format!("{} complaints before", lines.len()),
        _ => String::new(),
    };
    Ok(Outcome::Passed(format!(
        "version {version}, {} entries; {note}",
        before.len()
    )))
}

fn name_of(paths: &[PathBuf]) -> Result<String> {
    let options = ScanOptions {
        follow_label_paths: false,
        ..ScanOptions::default()
    };
    let pools = find_pools(&scan(paths, options), 0);
    let pool = pools.into_iter().next().context("no pool")?;
    Ok(pool.name)
}

fn open(place: &Path, name: &str) -> Result<Pool> {
    Ok(super::open(place, name, FoundLogs::Replay)?)
}

fn read(place: &Path, name: &str) -> Result<View> {
    Ok(View::open(
        &Search::new([place]),
        name,
        &OpenOptions::default(),
    )?)
}

fn listed(place: &Path, name: &str) -> Result<Vec<String>> {
    Ok(manifest(&read(place, name)?)?)
}

/// What our own check finds.
fn faults(place: &Path, name: &str) -> Result<Vec<String>> {
    let read = read(place, name)?;
    let report = check_pool(read.inner(), &CheckOptions::default())?;
    let lines = report.findings.iter().map(|found| format!("{found:?}"));
    Ok(lines.collect())
}

fn judged(
    place: &Path,
    name: &str,
    (already, found): (&Verdict, &[String]),
    what: &str,
) -> Result<()> {
    let verdict = zdb::judge(place, name)?.beyond(already);
    ensure!(!super::is_accused(&verdict), "{what}: {verdict:?}");
    let now = faults(place, name)?;
    ensure!(
        now.len() <= found.len(),
        "{what}: {now:#?}, before {found:#?}"
    );
    Ok(())
}

/// Changes datasets of all kinds and destroys what is new, so that the old content is there afterwards.
fn change(pool: Pool, name: &str) -> Result<()> {
    let (datasets, caller) = (pool.datasets(), Caller::root());
    let number = |name: &str, value| (name.to_owned(), PropertyValue::Number(value));
    let [one, two] = ["one", "two"].map(|short| format!("{name}@{short}"));
    let [clone, made, volume] = ["clone", "made", "volume"].map(|short| format!("{name}/{short}"));
    datasets.snapshot(&[&one], &[])?;
    datasets.clone_snapshot(&one, &clone, &[])?;
    let files = pool.file_system(&clone)?;
    let root = files.root()?;
    // What the clone removes stays in the snapshot.
    for listed in root.list(0, usize::MAX)? {
        let node = root.lookup(&listed.entry.name)?;
        if node.kind() == millpond_engine::FileKind::Regular {
            files.write(&caller, &node, WriteAt::Offset(0), &[5; 3000])?;
            files.unlink(&root, &listed.entry.name)?;
        }
    }
    for round in 0..30usize {
        let file = format!("new{round}").into_bytes();
        let (node, _) = files.create(&caller, &root, &file, NewMode::exactly(0o600), true)?;
        files.write(&caller, &node, WriteAt::Offset(0), &vec![7; round * 4000])?;
    }
    let of_clone = [format!("{clone}@a"), format!("{clone}@b")];
    datasets.snapshot(&[&of_clone[0]], &[])?;
    for round in (0..30usize).step_by(3) {
        files.unlink(&root, format!("new{round}").as_bytes())?;
    }
    datasets.snapshot(&[&of_clone[1]], &[])?;
    drop((root, files));
    datasets.snapshot(&[&two], &[])?;
    datasets.promote(&clone)?;
    datasets.promote(name)?;
    datasets.rollback(&two)?;
    datasets.destroy_snapshots(&[&of_clone[0]], Default::default())?;
    datasets.rollback(&of_clone[1])?;
    datasets.create_filesystem(&made, &[])?;
    let files = pool.file_system(&made)?;
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &files.root()?, b"file", mode, true)?;
    files.write(&caller, &node, WriteAt::Offset(0), &[1; 200_000])?;
    drop((node, files));
    let properties = [number("volsize", 1 << 20), number("refreservation", 0)];
    datasets.create_volume(&volume, &properties)?;
    pool.volume(&volume)?.write(100_000, &[3; 100_000])?;
    pool.sync()?;
    datasets.destroy(&volume, Default::default())?;
    datasets.destroy(&made, Default::default())?;
    datasets.destroy_snapshots(&[&of_clone[1]], Default::default())?;
    datasets.destroy(&clone, Default::default())?;
    datasets.destroy_snapshots(&[&one], Default::default())?;
    datasets.destroy_snapshots(&[&two], Default::default())?;
    pool.sync()?;
    pool.export()?;
    Ok(())
}
