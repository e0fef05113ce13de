//! Verifies every golden pool.
//!
//! Intact pools have no errors; for damaged pools the damaged disks and the lost files are reported.
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use millpond_engine::{OpenOptions, Search, View};
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::{images, record};
use millpond_verify::{Problem, Progress, VerifyReport};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    runner::main(trials())
}

fn trials() -> Result<Vec<Trial>> {
    let set = images::golden_set()?;
    println!("golden cases: {}", set.description);
    let cases = images::cases(&set.folder)?;
    ensure!(!cases.is_empty(), "{} holds no case", set.folder.display());
    let trials = cases.into_iter().map(|case| {
        let folder = set.folder.join(&case);
        Trial {
            name: format!("verify::{case}"),
            run: Box::new(move || match run(&case, &folder) {
                Ok(outcome) => outcome,
                Err(error) => Outcome::Failed(format!("{error:#}")),
            }),
        }
    });
    Ok(trials.collect())
}

/// The disks of a case that hold wrong bytes; `None` for intact cases.
fn damaged_disks(case: &str) -> Option<&'static [&'static str]> {
    Some(match case {
        "corrupt-mirror" => &["d1.img"],
        "corrupt-mirror-split" => &["d0.img", "d1.img"],
        "corrupt-raidz1" => &["d1.img"],
        "corrupt-raidz2" => &["d0.img", "d3.img"],
        // The second half of d2 and d4 holds no blocks; the scrub of the kernel module reports the same two
        // disks.
        "corrupt-raidz2-split" => &["d0.img", "d1.img"],
        "corrupt-ditto" | "corrupt-lost" | "corrupt-labels" => &["d0.img"],
        "corrupt-uberblock" => &[],
        _ => return None,
    })
}

fn run(case: &str, folder: &Path) -> anyhow::Result<Outcome> {
    let record = record::load(folder)?;
    let mut present: Vec<(String, PathBuf)> = vec![];
    for image in &record.images {
        let path = images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes)?;
        present.push((image.file.trim_end_matches(".zst").to_owned(), path));
    }
    let disks = images::gather(case, &present)?;
    let candidates = Search::new([disks.folder.clone()]).pools();
    anyhow::ensure!(candidates.len() == 1, "{} pools found", candidates.len());
    let options = OpenOptions {
        cache_bytes: Some(16 << 20),
        ..OpenOptions::default()
    };
    let pool = View::open_candidate(&candidates[0], &options)?;
    let progress = Progress::default();
    let report = pool.verify(&progress, &|_: &Problem| {})?;
    anyhow::ensure!(
        report.blocks > 40,
        "only {} blocks were read",
        report.blocks
    );
    let note = format!(
        "{} blocks, {} KiB read",
        report.blocks,
        report.read_bytes / 1024
    );
    let Some(expected) = damaged_disks(case) else {
        return Ok(if report.is_clean() {
            Outcome::Passed(note)
        } else {
            Outcome::Failed(format!("a sound pool is not clean: {}", describe(&report)))
        });
    };
    let named: BTreeSet<String> = report
        .leaves
        .values()
        .filter(|leaf| !leaf.is_clean())
        .map(|leaf| leaf.name.rsplit('/').next().unwrap_or_default().to_owned())
        .collect();
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    if named != expected {
        return Ok(Outcome::Failed(format!(
            "blames {named:?}, not {expected:?}"
        )));
    }
    let may_lose = case == "corrupt-lost";
    if (report.lost > 0) != may_lose || report.invalid > 0 {
        return Ok(Outcome::Failed(describe(&report)));
    }
    if may_lose {
        return check_lost(folder, &report, note);
    }
    Ok(Outcome::Passed(format!("{note}; blames {named:?}")))
}

/// The reported lost files are exactly those that lost data.
fn check_lost(folder: &Path, report: &VerifyReport, note: String) -> anyhow::Result<Outcome> {
    let text = String::from_utf8(images::read_file(folder, "LOST.txt")?)?;
    let lost: BTreeSet<String> = report
        .damaged
        .iter()
        .filter(|object| object.lost > 0)
        .filter_map(|object| {
            let path = String::from_utf8_lossy(object.path.as_deref()?).into_owned();
            Some(format!("{}:/{path}", object.dataset.as_deref()?))
        })
        .collect();
    let mut unnamed = vec![];
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let name = line.split_whitespace().next().unwrap_or_default();
        let file = name.rsplit('/').next().unwrap_or_default();
        if !lost.iter().any(|path| path.ends_with(&format!("/{file}"))) {
            unnamed.push(line.to_owned());
        }
    }
    Ok(if unnamed.is_empty() && !lost.is_empty() {
        Outcome::Passed(format!("{note}; {} files named as lost", lost.len()))
    } else {
        Outcome::Failed(format!("not named: {unnamed:?}; named: {lost:?}"))
    })
}

fn describe(report: &VerifyReport) -> String {
    let mut words = vec![format!(
        "{} lost, {} repairable, {} invalid, gave up: {:?}",
        report.lost, report.repairable, report.invalid, report.gave_up
    )];
    for leaf in report.leaves.values().filter(|leaf| !leaf.is_clean()) {
        words.push(format!("{leaf:?}"));
    }
    for object in report.damaged.iter().take(8) {
        words.push(format!("{object:?}"));
    }
    words.join("\n  ")
}
