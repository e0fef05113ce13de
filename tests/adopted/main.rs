//! Pools created by OpenZFS are opened for changes, changed in many ways and exported.
//!
//! OpenZFS must find no errors, and all old content must match the record. Pools that must not be written
//! are refused with the right reason.
//!
//! By default a few small cases run. `MILLPOND_WRITING_ALL` (`make test-writing-all`) runs all,
//! `MILLPOND_ADOPTED` selects cases by name, separated by commas; the images then stay in
//! `target/adopted-CASE`.
#![forbid(unsafe_code)]

mod ancient;
mod change;
mod judge;
mod old;
mod ztest;

use anyhow::{Context, Result, bail, ensure};
use change::{change_datasets, change_files, continues};
use judge::{is_accused, judge};
use millpond_engine::{Error, FoundLogs, OpenOptions, Pool, Search, View, WriteOptions};
use millpond_tests::oracle::Verdict;
use millpond_tests::reader::DatasetKind;
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::{images, old_pools, record, recount};
use old::{below_the_pool, compare_old, touched, without_growth};
use std::path::Path;
use std::process::ExitCode;

/// Small cases of different layouts and kinds.
const EVERY_DAY: &[&str] = &[
    "single",
    "gang-raidz",
    "checkpoint",
    "legacy-v28",
    "draid1",
    "expanded",
    "expanding",
    "snapshots",
    "names",
    "crypt",
    "dedup-fast",
    "dedup-legacy",
    "removed",
    "scrub-mid",
    "sends",
    "zil",
];

/// Cases that cannot be written, and a word that the refusal must contain.
const REFUSED: &[(&str, &str)] = &[];

fn main() -> ExitCode {
    runner::main(trials())
}

fn trials() -> Result<Vec<Trial>> {
    let set = images::golden_set()?;
    println!("golden cases: {}", set.description);
    let named = std::env::var("MILLPOND_ADOPTED").ok();
    let named: Option<Vec<&str>> = named.as_ref().map(|names| names.split(',').collect());
    let is_all = std::env::var_os("MILLPOND_WRITING_ALL").is_some();
    let mut trials = vec![];
    for case in images::cases(&set.folder)? {
        let is_wanted = match &named {
            Some(named) => named.contains(&case.as_str()),
            None => is_all || EVERY_DAY.contains(&case.as_str()),
        };
        if !is_wanted {
            continue;
        }
        let folder = set.folder.join(&case);
        let keeps = named.is_some();
        trials.push(Trial {
            name: format!("adopted::{case}"),
            run: Box::new(move || {
                run(&case, &folder, keeps)
                    .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
            }),
        });
    }
    let folder = old_pools::folder();
    for pool in folder
        .iter()
        .flat_map(|at| old_pools::list(at).unwrap_or_default())
    {
        let is_wanted = match &named {
            Some(named) => named.contains(&pool.name.as_str()),
            None => is_all || ancient::EVERY_DAY.contains(&pool.name.as_str()),
        };
        if ancient::is_one(&pool) && is_wanted {
            trials.push(Trial {
                name: format!("ancient::{}", pool.name),
                run: Box::new(move || {
                    ancient::run(&pool)
                        .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
                }),
            });
        }
    }
    if is_all && named.is_none() {
        for shape in ztest::SHAPES {
            trials.push(Trial {
                name: format!("ztest::{}", shape.concat()),
                run: Box::new(|| {
                    ztest::run(shape).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
                }),
            });
        }
    }
    Ok(trials)
}

fn run(case: &str, folder: &Path, keeps: bool) -> Result<Outcome> {
    let mut record = record::load(folder)?;
    let temporary = tempfile::tempdir()?;
    let place = if keeps {
        let place = images::workspace().join(format!("target/adopted-{case}"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place)?;
        place
    } else {
        temporary.path().to_owned()
    };
    for image in &record.images {
        let from = images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes)?;
        images::copy_sparse(&from, &place.join(image.file.trim_end_matches(".zst")))?;
    }
    let must_refuse = REFUSED.iter().find(|(name, _)| *name == case);
    // Judged before opening, because opening writes. A refused pool is not changed.
    let already = match must_refuse {
        Some(_) => Verdict::Clean,
        None => judge(case, folder, &place, &record.pool)?,
    };
    if case.starts_with("zil") {
        // The log of a locked dataset stays claimed, with references of its own to the blocks that it cloned, until
        // the key is loaded below.
        open(&place, &record.pool, FoundLogs::Replay)?.export()?;
        let claimed = judge(case, folder, &place, &record.pool)?.beyond(&already);
        ensure!(!is_accused(&claimed), "with a claimed log: {claimed:?}");
        counts_its_clones(&place, &record.pool)?;
        // The record describes the state after the module's log replay. Modification times are those of the
        // replay.
        record = record::load_state(folder, "CASE.json")?;
        let files = record
            .datasets
            .iter_mut()
            .filter_map(|one| one.tree.as_mut());
        files.flatten().for_each(touched);
    }
    let pool = match (open(&place, &record.pool, FoundLogs::Replay), must_refuse) {
        (Ok(_), Some((_, word))) => bail!("opens, although it has {word}"),
        (Err(error), Some((_, word))) => {
            let words = error.to_string();
            ensure!(
                words.to_lowercase().contains(&word.to_lowercase()),
                "is refused in other words: {words}"
            );
            return Ok(Outcome::Passed(format!("refused: {words}")));
        }
        (Err(error), None) if case.starts_with("zil") || EVERY_DAY.contains(&case) => {
            bail!("does not open: {error}")
        }
        (Err(error), None) => return Ok(Outcome::PassedOver(format!("does not open: {error}"))),
        (Ok(pool), None) => pool,
    };
    for (dataset, key) in &record.keys {
        pool.committed()?.load_key(dataset, &key.bytes)?;
    }
    let mut notes = vec![];
    for number in 0..record.datasets.len() {
        let dataset = &record.datasets[number];
        if dataset.kind != DatasetKind::Filesystem || dataset.tree.is_none() {
            continue;
        }
        let name = dataset.name.clone();
        let files = match pool.file_system(&name) {
            Ok(files) => files,
            Err(error) => {
                notes.push(format!("{name}: {error}"));
                continue;
            }
        };
        if files.settings().is_read_only {
            notes.push(format!("{name}: readonly"));
            continue;
        }
        let lost = record.lost.clone();
        let below = below_the_pool(&name);
        let is_lost = |path: &[u8]| lost.contains(&[below.as_bytes(), path].concat());
        let entries = record.datasets[number].tree.as_mut().context("a tree")?;
        if case.starts_with("zil") {
            without_growth(&files, entries)?;
        }
        change_files(&pool, &name, &files, entries, &is_lost).with_context(|| name.clone())?;
    }
    change_datasets(&pool, &record)?;
    if std::env::var_os("MILLPOND_WRITING_ALL").is_some() {
        // Leaves the pool as after a crash, and continues from there.
        pool.sync()?;
        drop(pool);
        let crashed = judge(case, folder, &place, &record.pool)?.beyond(&already);
        ensure!(!is_accused(&crashed), "after a crash: {crashed:?}");
        let pool = open(&place, &record.pool, FoundLogs::Replay)?;
        continues(&pool, &record.pool)?;
        pool.export()?;
    } else {
        pool.export()?;
    }

    let (found, count) = compare_old(&place, &record)?;
    ensure!(
        found.differences_count == 0,
        "{} differences:\n  {}",
        found.differences_count,
        found.differences.join("\n  ")
    );
    let after = judge(case, folder, &place, &record.pool)?.beyond(&already);
    ensure!(!is_accused(&after), "afterwards: {after:?}");
    match (&already, after) {
        (Verdict::Faults(lines), _) => notes.push(format!(
            "{} complaints before and after, the same",
            lines.len()
        )),
        (_, Verdict::Absent(why)) => notes.push(format!("not judged: {why}")),
        _ => {}
    }
    notes.push(format!("{count} old files compared"));
    Ok(Outcome::Passed(notes.join("; ")))
}

/// Checks the clone tables, in which a claimed log has references.
fn counts_its_clones(place: &Path, name: &str) -> Result<()> {
    let view = View::open(&Search::new([place]), name, &OpenOptions::default())?;
    let cloned = view.inner().space()?.clones;
    ensure!(cloned.entries > 0, "the claimed log has no references");
    let faults = recount::faults_of(view.inner());
    ensure!(faults.is_empty(), "with a claimed log: {faults:#?}");
    Ok(())
}

fn open(place: &Path, name: &str, found_logs: FoundLogs) -> Result<Pool, Error> {
    let writing = WriteOptions {
        found_logs,
        ..WriteOptions::default()
    };
    let options = OpenOptions::default();
    Pool::open(&Search::new([place]), name, &options, &writing)
}
