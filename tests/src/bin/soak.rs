//! `soak`: lives on simulated disks until the time is over; the first failure is made small and told.
//!
//! `soak [--seconds N] [--shape NAME] [--from SEED] [--ops N] [--zdb-every N] [--threads-every N] [--record FILE]`
//! lives seed after seed, shape after shape. `soak --shape NAME --seed N --ops N [--keep-ops I,J,...]` lives one
//! life again; `--shrink SECONDS` makes it small first.

use anyhow::{Context, Result, bail};
use millpond_env::Env;
use millpond_tests::soak::{Figures, Options, Plan, SHAPES, Shape, crowd, run, shrink};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn read() -> Result<Self> {
        let mut values = BTreeMap::new();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                bail!("what is '{word}'?");
            };
            let value = words.next().with_context(|| format!("--{name} what?"))?;
            values.insert(name.to_owned(), value);
        }
        Ok(Self(values))
    }
    fn number(&self, name: &str, otherwise: u64) -> Result<u64> {
        match self.0.get(name) {
            None => Ok(otherwise),
            Some(value) => Ok(value.parse().with_context(|| format!("--{name}"))?),
        }
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::read()?;
    let shapes: Vec<&'static Shape> = match arguments.0.get("shape") {
        None => SHAPES.iter().collect(),
        Some(name) => vec![Shape::named(name).context("no such shape")?],
    };
    let options = Options {
        zdb_every: arguments.number("zdb-every", 400)?,
        recount_every: arguments.number("recount-every", 3)?,
        full_log: arguments.number("full-log", 0)? != 0,
        keep: arguments.0.get("keep").map(Into::into),
    };
    let ops = usize::try_from(arguments.number("ops", 1500)?)?;
    let shrinking = Duration::from_secs(arguments.number("shrink", 60)?);
    if let Some(seed) = arguments.0.get("seed") {
        let [shape] = shapes[..] else {
            bail!("--seed needs --shape");
        };
        let mut plan = Plan::new(shape, seed.parse()?, ops);
        if let Some(kept) = arguments.0.get("keep-ops") {
            let mut ops = vec![];
            for number in kept.split(',') {
                ops.push(
                    *plan
                        .ops
                        .get(number.parse::<usize>()?)
                        .context("no such operation")?,
                );
            }
            plan.ops = ops;
        }
        return Ok(one(&plan, &options, shrinking));
    }
    let clock = Env::real().clock;
    let begun = clock.monotonic_ns();
    let seconds = arguments.number("seconds", 3600)?;
    let elapsed = || clock.monotonic_ns().saturating_sub(begun) / 1_000_000_000;
    let mut all: BTreeMap<&str, (u64, Figures)> = BTreeMap::new();
    let mut in_threads = 0;
    let mut outcome = ExitCode::SUCCESS;
    let threads_every = arguments.number("threads-every", 40)?;
    let first = arguments.number("from", 1)?;
    'seeds: for seed in first.. {
        for shape in &shapes {
            if elapsed() >= seconds {
                break 'seeds;
            }
            let plan = Plan::new(shape, seed, ops);
            match run(&plan, &options) {
                Ok(figures) => {
                    let entry = all.entry(shape.name).or_default();
                    entry.0 += 1;
                    entry.1 += figures;
                }
                Err(_) => {
                    one(&plan, &options, shrinking);
                    outcome = ExitCode::from(1);
                    break 'seeds;
                }
            }
            if threads_every > 0 && seed.is_multiple_of(threads_every) {
                match crowd(shape, seed, 4, 4, 200) {
                    Ok(figures) => in_threads += figures.ops,
                    Err(error) => {
                        println!("threads, {}, seed {seed}: {error}", shape.name);
                        outcome = ExitCode::from(1);
                        break 'seeds;
                    }
                }
            }
        }
        if seed.is_multiple_of(10) {
            let sum: u64 = all.values().map(|(_, figures)| figures.ops).sum();
            eprintln!("seed {seed}: {sum} operations in {} s", elapsed());
        }
    }
    let table = table(&all, in_threads, first, elapsed());
    print!("{table}");
    if let Some(file) = arguments.0.get("record") {
        record(Path::new(file), &table)?;
    }
    Ok(outcome)
}

fn one(plan: &Plan, options: &Options, shrinking: Duration) -> ExitCode {
    let failure = match run(plan, options) {
        Ok(figures) => {
            println!("lived: {figures:?}");
            return ExitCode::SUCCESS;
        }
        Err(failure) => failure,
    };
    println!(
        "{} seed {}: operation {}: {}",
        plan.shape.name, plan.seed, failure.at, failure.text
    );
    println!(
        "again: soak --shape {} --seed {} --ops {}",
        plan.shape.name,
        plan.seed,
        plan.ops.len().saturating_sub(2)
    );
    let (small, failure) = shrink(plan, failure, options, shrinking);
    // What is left stands in the plan in the same order.
    let mut left = plan.ops.iter().enumerate();
    let numbers: Vec<String> = small
        .ops
        .iter()
        .filter_map(|op| left.find(|(_, other)| *other == op))
        .map(|(number, _)| number.to_string())
        .collect();
    println!(
        "made small: {} operations: {}\nafter:\n  {}\n{:?}\n--keep-ops {}",
        small.ops.len(),
        failure.text,
        failure.log.join("\n  "),
        small.ops,
        numbers.join(",")
    );
    ExitCode::from(1)
}

fn table(
    all: &BTreeMap<&str, (u64, Figures)>,
    in_threads: u64,
    first: u64,
    seconds: u64,
) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nFrom seed {first} on, {seconds} s, {in_threads} operations by threads besides:\n\n\
         | shape | lives | operations | txgs | power cuts | reopened | faults planted | requests that went wrong | compared | judged by zdb | ended full |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for (name, (lives, f)) in all {
        let _ = writeln!(
            text,
            "| {name} | {lives} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            f.ops,
            f.txgs,
            f.cuts,
            f.reopened,
            f.faults,
            f.broken_promises,
            f.compared,
            f.judged,
            f.full
        );
    }
    text
}

fn record(file: &Path, table: &str) -> Result<()> {
    let mut text = std::fs::read_to_string(file).unwrap_or_default();
    text.push_str(table);
    std::fs::write(file, text)?;
    Ok(())
}
