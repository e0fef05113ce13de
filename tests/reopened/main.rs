//! Real pools are opened for changes, changed slightly and exported; OpenZFS must find no errors.
//!
//! `MILLPOND_REOPENED` selects cases by name, separated by commas; the images then stay in
//! `target/reopened-CASE`.

use anyhow::{Context, Result, ensure};
use millpond_dataset::Datasets;
use millpond_device::OpenOptions as DeviceOptions;
use millpond_engine::FileSystemInitializer;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_pool::import::{PoolCandidate, ScanOptions, find_pools, scan};
use millpond_pool::{OpenError, OpenOptions, PoolError, PoolView};
use millpond_pool::{Pool, WriteOptions};
use millpond_tests::oracle::zdb;
use millpond_tests::record::Record;
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::{images, record};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    runner::main(trials())
}

fn trials() -> Result<Vec<Trial>> {
    let set = images::golden_set()?;
    println!("golden cases: {}", set.description);
    let only: Option<Vec<String>> = std::env::var("MILLPOND_REOPENED")
        .ok()
        .map(|names| names.split(',').map(str::to_owned).collect());
    let mut trials = vec![];
    for case in images::cases(&set.folder)? {
        if only.as_ref().is_some_and(|only| !only.contains(&case)) {
            continue;
        }
        let folder = set.folder.join(&case);
        let keep = only.is_some();
        trials.push(Trial {
            name: format!("reopened::{case}"),
            run: Box::new(move || {
                run(&case, &folder, keep)
                    .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
            }),
        });
    }
    Ok(trials)
}

fn run(case: &str, folder: &Path, keep: bool) -> Result<Outcome> {
    let record = record::load(folder)?;
    let place = if keep {
        let place = images::workspace().join(format!("target/reopened-{case}"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place)?;
        WorkFolder::Kept(place)
    } else {
        WorkFolder::Passing(tempfile::tempdir()?)
    };
    let paths = copies(&record, folder, place.path())?;
    let candidate = find(&paths)?;
    let before = match PoolView::open(&Env::real(), &candidate, &OpenOptions::default()) {
        Ok(pool) => pool,
        Err(error) => return Ok(Outcome::PassedOver(format!("does not open: {error}"))),
    };
    let (name, txg) = (before.name().to_owned(), before.uberblock().txg);
    let directories = before.directory_number("root_dataset")?;
    drop(before);
    // Errors that already exist do not count.
    let already = zdb::judge(place.path(), &name)?;
    let pool = match open(&candidate) {
        Ok(pool) => pool,
        Err(OpenError::ReadOnly(why)) => {
            return Ok(Outcome::PassedOver(format!("read only: {why}")));
        }
        Err(OpenError::State {
            error: PoolError::Unsupported { what },
            ..
        }) => return Ok(Outcome::PassedOver(format!("refused: {what}"))),
        Err(error) => return Err(error).context("opening for changes"),
    };
    for round in 0..5u64 {
        pool.sync_task(|ctx| {
            // All readers ignore unknown names.
            ctx.set_directory_number("org.example:round", round)
        })?;
    }
    ensure!(pool.uberblock().txg > txg);
    // After a simulated crash, the pool must be consistent.
    drop((pool, candidate));
    let crashed = zdb::judge(place.path(), &name)?;
    let candidate = find(&paths)?;
    let pool = open(&candidate).context("opening again")?;
    let committed = pool.committed()?;
    ensure!(committed.directory_number("org.example:round")? == Some(4));
    ensure!(committed.directory_number("root_dataset")? == directories);
    pool.sync_task(|ctx| ctx.remove_directory_entry("org.example:round"))?;
    drop(committed);
    pool.export()?;
    let exported = zdb::judge(place.path(), &name)?;
    if !already.is_clean() {
        return Ok(Outcome::PassedOver(format!(
            "not clean before: {already:?}; after: {exported:?}"
        )));
    }
    ensure!(crashed.is_clean(), "after a crash: {crashed:?}");
    ensure!(exported.is_clean(), "after export: {exported:?}");
    Ok(Outcome::Passed(format!("txg {txg} and on")))
}

enum WorkFolder {
    Passing(tempfile::TempDir),
    Kept(PathBuf),
}

impl WorkFolder {
    fn path(&self) -> &Path {
        match self {
            Self::Passing(folder) => folder.path(),
            Self::Kept(folder) => folder,
        }
    }
}

fn copies(record: &Record, folder: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    record
        .images
        .iter()
        .map(|image| {
            let from =
                images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes)?;
            let to = to.join(image.file.trim_end_matches(".zst"));
            images::copy_sparse(&from, &to)?;
            Ok(to)
        })
        .collect()
}

fn find(paths: &[PathBuf]) -> Result<PoolCandidate> {
    let options = ScanOptions {
        open: DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        },
        follow_label_paths: false,
        ..ScanOptions::default()
    };
    let pools = find_pools(&scan(paths, options), 0);
    pools.into_iter().next().context("no pool")
}

fn open(candidate: &PoolCandidate) -> Result<Arc<Pool>, OpenError> {
    Pool::open(
        &Env::real(),
        candidate,
        &OpenOptions::default(),
        &WriteOptions::default(),
        Datasets::new(FileSystemInitializer::of(
            &Env::real(),
            &WriteOptions::default(),
        )),
    )
}
