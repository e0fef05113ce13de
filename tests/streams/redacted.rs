//! A redaction bookmark made here has the list of the one that OpenZFS made.

use anyhow::{Result, anyhow, ensure};
use millpond_dataset::RedactionList;
use millpond_engine::{OpenOptions, Pool, Search, View, WriteOptions};
use millpond_tests::oracle::zdb;
use millpond_tests::runner::Outcome;
use millpond_tests::{images, record, recount};
use std::path::Path;

fn list(view: &View, name: &str) -> Result<RedactionList> {
    let marks = view.dataset("sends/red")?.inner().bookmarks()?;
    let mark = marks.into_iter().find(|mark| mark.name == name);
    let list = mark.and_then(|mark| mark.phys.redaction_list);
    let list = list.ok_or_else(|| anyhow!("no list of {name}"))?;
    Ok(RedactionList::open(view.inner(), list)?)
}

/// Makes the bookmark again, compares it, destroys both, and judges the pool.
pub fn outcome(folder: &Path) -> Result<Outcome> {
    let record = record::load(folder)?;
    let own = tempfile::tempdir()?;
    for image in &record.images {
        let from = images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes)?;
        images::copy_sparse(&from, &own.path().join(image.file.trim_end_matches(".zst")))?;
    }
    let search = Search::new([own.path()]);
    let options = OpenOptions::default();
    let pool = Pool::open(&search, "sends", &options, &WriteOptions::default())?;
    pool.redact(
        "sends/red@base",
        "sends/red#own",
        &["sends/redclone@r".to_owned()],
    )?;
    let (theirs, ours) = {
        let view = pool.committed()?;
        let (theirs, ours) = (list(&view, "book")?, list(&view, "own")?);
        ensure!(
            theirs.is_complete() && ours.is_complete(),
            "a list is not complete"
        );
        ensure!(theirs.snapshots() == ours.snapshots(), "other snapshots");
        (theirs.entries(0)?, ours.entries(0)?)
    };
    ensure!(theirs == ours, "theirs {theirs:#?}\nours {ours:#?}");
    pool.export()?;
    zdb::judge(own.path(), "sends")?.require("with both");
    let pool = Pool::open(&search, "sends", &options, &WriteOptions::default())?;
    for name in ["sends/red#own", "sends/red#book"] {
        pool.datasets().destroy(name, Default::default())?;
    }
    pool.export()?;
    let view = View::open(&search, "sends", &options)?;
    let faults = recount::faults_of(view.inner());
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    drop(view);
    zdb::judge(own.path(), "sends")?.require("with neither");
    Ok(Outcome::Passed(format!("{} entries", theirs.len())))
}
