//! Pools with hostile content under valid checksums: every operation on them must end without a crash.
//!
//! `MILLPOND_HOSTILE_SECONDS` is the time for random changes to each image (default: a fixed number of
//! seeds), `MILLPOND_HOSTILE_SEED` the first seed.
#![forbid(unsafe_code)]

mod named;

use anyhow::{Context, Result};
use millpond_tests::hostile::child::{self, Ended};
use millpond_tests::hostile::exercise::exercise;
use millpond_tests::hostile::image::PoolImage;
use millpond_tests::hostile::mutation::lie;
use millpond_tests::runner::{self, Outcome, Trial};
use millpond_tests::{images, record};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    if let Some(order) = child::order() {
        return match obey(&order) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::from(1)
            }
        };
    }
    let mut trials: Vec<Trial> = named::NAMES
        .iter()
        .map(|name| Trial {
            name: format!("named::{name}"),
            run: Box::new(move || one_child(&format!("named {name}"))),
        })
        .collect();
    for case in CASES {
        trials.push(Trial {
            name: format!("random::{case}"),
            run: Box::new(move || random(case)),
        });
    }
    runner::main(Ok(trials))
}

fn one_child(order: &str) -> Outcome {
    match child::run(order) {
        Ok(Ended::Well(last)) => Outcome::Passed(last),
        Ok(Ended::Died(last, description)) => Outcome::Failed(format!("{last}: {description}")),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Applies random changes to one image.
///
/// A seed that kills its child process is reported, and the run continues with the next.
fn random(case: &str) -> Outcome {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("MILLPOND_HOSTILE_SEED").unwrap_or(1);
    let seconds: Option<u64> = number("MILLPOND_HOSTILE_SECONDS");
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut next = first;
    let mut dead = Vec::new();
    loop {
        let left = match until {
            Some(until) => match until.checked_duration_since(Instant::now()) {
                Some(left) => Some(left.as_secs() + 1),
                None => break,
            },
            None if next - first >= SEEDS => break,
            None => None,
        };
        let count = if left.is_some() {
            u64::MAX
        } else {
            SEEDS - (next - first)
        };
        let order = format!(
            "random {case} {next} {count} {}",
            left.unwrap_or(u64::MAX >> 20)
        );
        match child::run(&order) {
            Ok(Ended::Well(last)) => {
                next = seed_of(&last).unwrap_or(next) + 1;
                if left.is_none() {
                    break;
                }
            }
            Ok(Ended::Died(last, description)) => {
                dead.push(format!("{last}: {description}"));
                let Some(seed) = seed_of(&last) else { break };
                next = seed + 1;
            }
            Err(error) => return Outcome::Failed(format!("{error:#}")),
        }
    }
    if dead.is_empty() {
        Outcome::Passed(format!("{} pools", next - first))
    } else {
        Outcome::Failed(dead.join("\n"))
    }
}

fn seed_of(line: &str) -> Option<u64> {
    line.split_whitespace().last()?.parse().ok()
}

/// Runs an order in a child process.
fn obey(order: &str) -> Result<()> {
    let words: Vec<&str> = order.split_whitespace().collect();
    match words.as_slice() {
        ["named", name] => {
            child::begin(name);
            named::run(name, &|case| load(case), &child::confine)
        }
        ["random", case, first, count, seconds] => {
            let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
            let until = Instant::now() + Duration::from_secs(seconds.parse()?);
            let image = load(case)?;
            child::confine();
            for seed in first..first.saturating_add(count) {
                if Instant::now() > until {
                    break;
                }
                child::begin(&format!("seed {seed}"));
                let mut changed = image.change();
                lie(&mut changed, seed);
                exercise(changed.seal());
            }
            Ok(())
        }
        _ => anyhow::bail!("an order that makes no sense: {order}"),
    }
}

fn load(case: &str) -> Result<PoolImage> {
    let folder = images::workspace().join("testdata/golden").join(case);
    let record = record::load(&folder)?;
    let image = record.images.first().context("a case without images")?;
    let path = images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes)?;
    PoolImage::load(&path)
}

/// Pools of one whole disk, with different content.
const CASES: &[&str] = &[
    "single",
    "snapshots",
    "names",
    "quotas",
    "bclone",
    "dedup-fast",
    "embedded",
    "crypt",
    "v24-default",
    "legacy-v28",
];
/// Seeds per image in a short run.
const SEEDS: u64 = 40;
