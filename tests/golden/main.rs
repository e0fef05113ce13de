//! Compares every golden case with its record, with every permitted set of disks absent.
//!
//! Also reads the pools of old versions.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use millpond_tests::compare::{Findings, Leeway, compare};
use millpond_tests::reader::ReadError;
use millpond_tests::record::Record;
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::{absence, adaptor, images, mutate, old_pools, record};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    runner::main(trials())
}

fn trials() -> Result<Vec<Trial>> {
    let mut trials = golden_trials()?;
    trials.extend(checkpoint_trial()?);
    trials.extend(mutated_trials()?);
    match old_pools::folder() {
        Some(folder) => match old_pools::list(&folder) {
            Ok(pools) => trials.extend(pools.into_iter().map(|pool| Trial {
                name: format!("old::{}", pool.name),
                run: Box::new(move || run_old_pool(&pool).unwrap_or_else(broken)),
            })),
            Err(error) => println!("the old pools cannot be listed: {error}"),
        },
        None => println!("pools of old versions: passed over, run tools/oracle/fetch to have them"),
    }
    Ok(trials)
}

fn golden_trials() -> Result<Vec<Trial>> {
    let set = images::golden_set()?;
    let cases = images::cases(&set.folder)?;
    println!("golden cases: {}, {} cases", set.description, cases.len());
    anyhow::ensure!(!cases.is_empty(), "{} holds no case", set.folder.display());
    Ok(cases
        .into_iter()
        .map(|case| {
            let folder = set.folder.join(&case);
            Trial {
                name: format!("golden::{case}"),
                run: Box::new(move || run_case(&case, &folder).unwrap_or_else(broken)),
            }
        })
        .collect())
}

/// The state preserved by a pool's checkpoint, if the set has such a case.
fn checkpoint_trial() -> Result<Option<Trial>> {
    let folder = images::golden_set()?.folder.join("checkpoint");
    if !folder.is_dir() {
        println!("the state at a checkpoint: passed over, only the large set has the case");
        return Ok(None);
    }
    Ok(Some(Trial {
        name: "golden::checkpoint-rewound".to_owned(),
        run: Box::new(move || run_checkpoint(&folder).unwrap_or_else(broken)),
    }))
}

fn run_checkpoint(folder: &Path) -> Result<Outcome> {
    let record = record::load_state(folder, "CHECKPOINT.json")?;
    let mut present = Vec::new();
    for image in &record.images {
        let packed = folder.join(&image.file);
        let path = images::unpacked(&packed, &image.sha256, image.size_bytes)?;
        present.push((image.file.trim_end_matches(".zst").to_owned(), path));
    }
    let disks = images::gather("checkpoint-rewound", &present)?;
    let leeway = leeway("checkpoint");
    Ok(match adaptor::open_state(&disks, &record.keys, true) {
        Ok(mut pool) => {
            let findings = compare(&mut *pool, &record, &leeway);
            if findings.differences_count == 0 {
                Outcome::Passed(format!("{} files", findings.files))
            } else {
                Outcome::Failed(describe(&[], &findings))
            }
        }
        Err(error) => Outcome::Failed(error.to_string()),
    })
}

/// Small cases with random changes to bytes of their disks, from fixed seeds.
///
/// `MILLPOND_ROT_SEEDS` sets the number of seeds per case, four by default.
fn mutated_trials() -> Result<Vec<Trial>> {
    let small = images::workspace().join("testdata/golden");
    anyhow::ensure!(small.is_dir(), "{} is missing", small.display());
    let mut trials = Vec::new();
    let seeds = std::env::var("MILLPOND_ROT_SEEDS").ok();
    let seeds: u64 = seeds.and_then(|count| count.parse().ok()).unwrap_or(4);
    for case in ROTTEN_CASES {
        for seed in 1..=seeds {
            let folder = small.join(case);
            trials.push(Trial {
                name: format!("mutated::{case}-{seed}"),
                run: Box::new(move || run_mutated(case, &folder, seed).unwrap_or_else(broken)),
            });
        }
    }
    Ok(trials)
}

/// Cases of every redundancy, encrypted, old, and with tables of every kind.
const ROTTEN_CASES: &[&str] = &[
    "bclone",
    "gang-raidz",
    "snapshots",
    "crypt",
    "dedup-fast",
    "draid1",
    "embedded",
    "names",
    "quotas",
    "v24-default",
];

fn run_mutated(case: &str, folder: &Path, seed: u64) -> Result<Outcome> {
    let record = record::load(folder)?;
    let mut present = Vec::new();
    for (number, image) in record.images.iter().enumerate() {
        let packed = folder.join(&image.file);
        let whole = images::unpacked(&packed, &image.sha256, image.size_bytes)?;
        // The damage grows with the seed. On pools with redundancy it affects every disk.
        let rotten = mutate::rotten_copy(
            &whole,
            seed * 16 + number as u64,
            4_usize.pow(1 + (seed - 1) as u32 % 5),
        )?;
        present.push((image.file.trim_end_matches(".zst").to_owned(), rotten));
    }
    let outcome = run_with(case, &record, &Leeway::default(), &present);
    for (_, rotten) in &present {
        std::fs::remove_file(rotten)?;
    }
    Ok(match outcome? {
        Ok(findings) if findings.wrong_count > 0 => Outcome::Failed(describe(&[], &findings)),
        Ok(findings) => Outcome::Passed(format!("{} errors", findings.differences_count)),
        Err(ReadError::NotOffered(what)) => Outcome::PassedOver(format!("not offered yet: {what}")),
        // A pool that is too damaged may fail to open, but must not panic.
        Err(error) => Outcome::Passed(format!("does not open: {error}")),
    })
}

fn run_case(case: &str, folder: &Path) -> Result<Outcome> {
    let record = record::load(folder)?;
    let leeway = leeway(case);
    let unpacked: Vec<(String, PathBuf)> = record
        .images
        .iter()
        .map(|image| {
            let packed = folder.join(&image.file);
            let path = images::unpacked(&packed, &image.sha256, image.size_bytes)?;
            Ok((image.file.clone(), path))
        })
        .collect::<Result<_>>()?;
    let mut not_compared = BTreeSet::new();
    let mut failures = Vec::new();
    let sets = absence::permitted(&record.may_be_absent);
    for absent in &sets {
        let present: Vec<(String, PathBuf)> = unpacked
            .iter()
            .filter(|(name, _)| !absent.contains(name))
            .map(|(name, path)| (name.trim_end_matches(".zst").to_owned(), path.clone()))
            .collect();
        match run_with(case, &record, &leeway, &present)? {
            Ok(findings) => {
                not_compared.extend(findings.not_compared.iter().copied());
                if findings.differences_count > 0 {
                    failures.push(describe(absent, &findings));
                }
            }
            Err(ReadError::NotOffered(what)) => {
                return Ok(Outcome::PassedOver(format!("not offered yet: {what}")));
            }
            Err(error) => failures.push(format!("{}: does not open: {error}", without(absent))),
        }
    }
    if failures.is_empty() {
        let mut note = Vec::new();
        if sets.len() > 1 {
            note.push(format!("{} sets of absent disks", sets.len() - 1));
        }
        if !not_compared.is_empty() {
            let list: Vec<&str> = not_compared.into_iter().collect();
            note.push(format!("not compared: {}", list.join(", ")));
        }
        return Ok(Outcome::Passed(note.join("; ")));
    }
    // Show only the first few, because sets of absent disks mostly fail in the same way.
    let (shown, count) = (failures.len().min(3), failures.len());
    failures.truncate(shown);
    failures.push(format!("{count} of {} sets of disks failed", sets.len()));
    Ok(Outcome::Failed(failures.join("\n")))
}

fn run_with(
    case: &str,
    record: &Record,
    leeway: &Leeway,
    present: &[(String, PathBuf)],
) -> Result<Result<Findings, ReadError>> {
    let disks = images::gather(case, present)?;
    Ok(adaptor::open(&disks, &record.keys).map(|mut pool| compare(&mut *pool, record, leeway)))
}

fn run_old_pool(pool: &old_pools::OldPool) -> Result<Outcome> {
    let mut disks = Vec::new();
    for (number, packed) in pool.packed.iter().enumerate() {
        let path = images::unpacked_bzip2(packed).with_context(|| packed.display().to_string())?;
        disks.push((format!("d{number}.img"), path));
    }
    let disks = images::gather(&pool.name, &disks)?;
    Ok(
        match (
            adaptor::open(&disks, &Default::default()),
            pool.must_be_refused,
        ) {
            (Err(ReadError::NotOffered(what)), _) => {
                Outcome::PassedOver(format!("not offered yet: {what}"))
            }
            (Ok(_), Some(why)) => Outcome::Failed(format!("opens, although {why}")),
            (Err(_), Some(_)) => Outcome::Passed(String::new()),
            (Err(error), None) => Outcome::Failed(format!("does not open: {error}")),
            (Ok(mut reader), None) => {
                let findings = old_pools::read_everything(&mut *reader);
                if findings.differences_count > 0 {
                    Outcome::Failed(describe(&[], &findings))
                } else {
                    Outcome::Passed(format!("{} files", findings.files))
                }
            }
        },
    )
}

/// Differences from a case's record that are permitted.
fn leeway(case: &str) -> Leeway {
    // Its newest uberblock is destroyed, and with it the writes of the last transaction group.
    let may_differ: &[&[u8]] = if case == "corrupt-uberblock" {
        &[b"last"]
    } else {
        &[]
    };
    Leeway {
        may_differ: may_differ.iter().map(|path| path.to_vec()).collect(),
    }
}

fn describe(absent: &[String], findings: &Findings) -> String {
    let mut text = format!(
        "{}: {} differences",
        without(absent),
        findings.differences_count
    );
    for difference in &findings.differences {
        text.push_str("\n  ");
        text.push_str(difference);
    }
    if findings.differences_count > findings.differences.len() {
        text.push_str("\n  …");
    }
    text
}

fn without(absent: &[String]) -> String {
    if absent.is_empty() {
        return "all disks present".to_owned();
    }
    let names: Vec<&str> = absent
        .iter()
        .map(|name| name.trim_end_matches(".img.zst"))
        .collect();
    format!("without {}", names.join(", "))
}

fn broken(error: anyhow::Error) -> Outcome {
    Outcome::Failed(format!("the case itself is broken: {error:#}"))
}
