//! Pools filled by OpenZFS's own stress test, `ztest`.

use super::change::{change_datasets, continues};
use super::judge::is_accused;
use super::open;
use anyhow::{Result, bail, ensure};
use millpond_engine::{Error, FoundLogs, OpenError, OpenOptions, Search, View};
use millpond_tests::images;
use millpond_tests::oracle::{Verdict, zdb};
use millpond_tests::record::Record;
use millpond_tests::runner::Outcome;
use std::path::Path;

/// Pool layouts for `ztest`.
///
/// No dRAID and no expansion, which are refused; no mirrors of RAID-Z, which only `ztest` creates (`-m 0`
/// selects RAID-Z alone). `ztest` chooses everything else at random, so some pools are refused anyway.
pub const SHAPES: &[&[&str]] = &[
    &["-v", "2", "-m", "1", "-r", "1"],
    &["-v", "2", "-m", "2", "-r", "1"],
    &["-v", "1", "-m", "0", "-r", "4", "-R", "1"],
    &["-v", "2", "-m", "0", "-r", "5", "-R", "2", "-a", "12"],
    &["-v", "1", "-m", "3", "-r", "1", "-a", "12"],
    &["-v", "1", "-m", "0", "-r", "6", "-R", "3", "-a", "10"],
];
/// Number of attempts per layout before it is skipped.
const TRIES: usize = 6;

/// Changes a pool filled by `ztest`, crashes, opens it again and exports it. It must have no new errors.
pub fn run(shape: &[&str]) -> Result<Outcome> {
    if let Some(why) = zdb::absent() {
        return Ok(Outcome::PassedOver(why));
    }
    let mut refusals = vec![];
    for _ in 0..TRIES {
        let place = tempfile::tempdir()?;
        // `ztest` starts `zdb` by this name.
        let tools = images::workspace().join("tools/oracle");
        let path = std::env::var("PATH").unwrap_or_default();
        let done = std::process::Command::new("timeout")
            .arg("600")
            .arg(tools.join("run"))
            .args(["ztest", "-T", "3", "-P", "1", "-s", "128m", "-K", "raidz"])
            .args(["-C", "special=off", "-f"])
            .arg(place.path())
            .args(shape)
            .env("PATH", format!("{}:{path}", tools.display()))
            .output()?;
        if !done.status.success() {
            let status = done.status.code();
            refusals.push(format!("ztest ended with {status:?}"));
            continue;
        }
        match live_on(place.path())? {
            Ok(note) => return Ok(Outcome::Passed(note)),
            Err(why) => refusals.push(why),
        }
    }
    Ok(Outcome::PassedOver(refusals.join("; ")))
}

/// Continues with the pool. Returns a note of what was done, or why the pool is refused.
fn live_on(place: &Path) -> Result<Result<String, String>> {
    let already = zdb::judge(place, "ztest")?;
    let pool = match open(place, "ztest", FoundLogs::Replay) {
        Ok(pool) => pool,
        Err(Error::Open { error, .. }) => {
            return match *error {
                OpenError::ReadOnly(why) if !why.reasons.is_empty() => {
                    Ok(Err(format!("refused: {why}")))
                }
                // A pool in which OpenZFS itself finds errors need not open.
                error if is_accused(&already) => Ok(Err(format!("does not open: {error}"))),
                error => bail!("does not open: {error}"),
            };
        }
        Err(error) => return Ok(Err(error.to_string())),
    };
    let from = pool.inner().uberblock().txg.0;
    let record = Record {
        pool: "ztest".to_owned(),
        ..Record::default()
    };
    change_datasets(&pool, &record)?;
    pool.sync()?;
    drop(pool);
    let crashed = zdb::judge(place, "ztest")?.beyond(&already);
    ensure!(!is_accused(&crashed), "after a crash: {crashed:?}");
    let pool = open(place, "ztest", FoundLogs::Replay)?;
    continues(&pool, "ztest")?;
    let to = pool.inner().uberblock().txg.0;
    pool.export()?;
    let after = zdb::judge(place, "ztest")?.beyond(&already);
    ensure!(!is_accused(&after), "afterwards: {after:?}");
    let pool = View::open(&Search::new([place]), "ztest", &OpenOptions::default())?;
    let blocks = verified(&pool)?;
    let before = match already {
        Verdict::Faults(lines) => format!("; complaints before and after, the same: {lines:?}"),
        _ => String::new(),
    };
    Ok(Ok(format!(
        "changed, txg {from} to {to}, clean after a crash and after export, {blocks} blocks verified{before}"
    )))
}

/// Verifies every block and returns their number.
fn verified(pool: &View) -> Result<u64> {
    let progress = millpond_verify::Progress::default();
    let problems = std::sync::Mutex::new(vec![]);
    let note = |problem: &millpond_verify::Problem| {
        let mut all = problems.lock().unwrap_or_else(|poison| poison.into_inner());
        all.push(format!("{problem:?}"));
    };
    let report = pool.verify(&progress, &note)?;
    let problems = problems
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    ensure!(report.is_clean(), "verify: {problems:#?}");
    Ok(report.blocks)
}
