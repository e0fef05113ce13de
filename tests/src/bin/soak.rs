//! `soak`: runs pools on simulated disks until the time is over.
//!
//! It shrinks and reports the first failure.
//!
//! `soak [--seconds N] [--target OPERATIONS] [--threads-target OPERATIONS] [--shape NAME] [--from SEED]
//! [--ops N] [--zdb-every N] [--limit SECONDS] [--failures N] [--table FILE] [--record FILE]` runs one seed
//! after another, each with the shape that is furthest behind. It ends at the targets (for each shape), at
//! the time limit, or after the given number of failures.
//!
//! `soak --shape NAME --seed N --ops N [--keep-ops I,J,...]` repeats one run; `--shrink SECONDS` shrinks it
//! first.
//!
//! `soak --shape NAME --concurrent SEED [--threads N] [--rounds N] [--steps N]` repeats one concurrent workload.
//! It is deterministic if built with `--cfg millpond_sim`. `--requests FILE` records all disk requests. With `--lose 1`,
//! also for `--threads-target`, flushes of all disks fail, and the pool is resumed.

use anyhow::{Context, Result, bail};
use millpond_env::Env;
use millpond_tests::soak::{
    Crowd, Failure, Options, Plan, RunStats, SHAPES, Shape, ThreadStats, run, shrink,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: soak [--seconds N] [--target OPERATIONS] [--threads-target OPERATIONS] [--failures N] [--from SEED]
            [--table FILE] [--record FILE] [OPTION]...
       soak --shape NAME --seed N [--ops N] [--keep-ops I,J,...] [OPTION]...
       soak --shape NAME --concurrent SEED [--threads N] [--rounds N] [--steps N] [OPTION]...

Runs pools on simulated disks. The first form runs one seed after another until the time is over, the others repeat one run.

options of all forms:
  --shape NAME       only pools of this shape
  --ops N            operations of a run (1500)
  --limit SECONDS    the longest that a run may take (600)
  --shrink SECONDS   how long a failure is made smaller (60; 0: not at all)
  --zdb-every N      zdb judges one of N runs (100; 0: none)
  --recount-every N  the space is counted again at one of N reopenings (1; 0: never)
  --lose 1           flushes of all disks fail in concurrent workloads
  --turns SEED       the order in which threads of judges run, in builds with millpond_sim
  --full-log 1       show all operations of a failure
  --keep FOLDER      keep images there in which zdb finds errors
  --requests FILE    record all disk requests
";

const OPTIONS: [&str; 24] = [
    "concurrent",
    "failures",
    "from",
    "full-log",
    "keep",
    "keep-ops",
    "limit",
    "lose",
    "ops",
    "record",
    "recount-every",
    "requests",
    "rounds",
    "seconds",
    "seed",
    "shape",
    "shrink",
    "steps",
    "table",
    "target",
    "threads",
    "threads-target",
    "turns",
    "zdb-every",
];

struct Arguments(BTreeMap<String, String>);

impl Arguments {
    /// `None` if help is wanted; an error for words that are no options.
    fn parse(words: impl IntoIterator<Item = String>) -> Result<Option<Self>, String> {
        let mut values = BTreeMap::new();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if matches!(word.as_str(), "-h" | "--help") {
                return Ok(None);
            }
            let name = word
                .strip_prefix("--")
                .filter(|name| OPTIONS.contains(name));
            let name = name.ok_or_else(|| format!("unknown argument '{word}'"))?;
            let value = words.next().filter(|value| !value.starts_with("--"));
            let value = value.ok_or_else(|| format!("--{name} needs a value"))?;
            values.insert(name.to_owned(), value);
        }
        Ok(Some(Self(values)))
    }
    fn number(&self, name: &str, otherwise: u64) -> Result<u64> {
        match self.0.get(name) {
            None => Ok(otherwise),
            Some(value) => Ok(value.parse().with_context(|| format!("--{name}"))?),
        }
    }
}

fn main() -> Result<ExitCode> {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            let shapes: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            print!("{USAGE}\nshapes: {}\n", shapes.join(", "));
            return Ok(ExitCode::SUCCESS);
        }
        Err(why) => {
            eprint!("soak: {why}\n\n{USAGE}");
            return Ok(ExitCode::from(2));
        }
    };
    let shapes: Vec<&'static Shape> = match arguments.0.get("shape") {
        None => SHAPES.iter().collect(),
        Some(name) => vec![Shape::named(name).context("no such shape")?],
    };
    let options = Options {
        zdb_every: arguments.number("zdb-every", 100)?,
        recount_every: arguments.number("recount-every", 1)?,
        limit: Duration::from_secs(arguments.number("limit", 600)?),
        full_log: arguments.number("full-log", 0)? != 0,
        keep: arguments.0.get("keep").map(Into::into),
        requests: arguments.0.get("requests").map(Into::into),
        turns: match arguments.0.get("turns") {
            Some(seed) => Some(seed.parse().context("--turns")?),
            None => None,
        },
    };
    let ops = usize::try_from(arguments.number("ops", 1500)?)?;
    let shrinking = Duration::from_secs(arguments.number("shrink", 60)?);
    let size = |name, otherwise| -> Result<usize> {
        Ok(usize::try_from(arguments.number(name, otherwise)?)?)
    };
    let crowd = Crowd {
        shape: shapes[0],
        seed: arguments.number("concurrent", 1)?,
        threads: size("threads", 4)?,
        rounds: size("rounds", 8)?,
        steps: size("steps", 250)?,
        loses_flushes: arguments.number("lose", 0)? != 0,
    };
    if arguments.0.contains_key("concurrent") {
        match crowd.meet_with(options.limit, options.requests.clone()) {
            Ok(stats) => println!("passed: {stats:?}"),
            Err(error) => {
                tell_crowd(crowd, error, &options, shrinking);
                return Ok(ExitCode::from(1));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
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
    let session = Session {
        shapes,
        options,
        ops,
        shrinking,
        seconds: arguments.number("seconds", 3600)?,
        target: arguments.number("target", u64::MAX)?,
        in_threads: arguments.number("threads-target", 100_000)?,
        crowd,
        failures_max: arguments.number("failures", 1)?,
        first: arguments.number("from", 1)?,
        table: arguments.0.get("table").map(Into::into),
    };
    session.run(arguments.0.get("record").map(Path::new))
}

/// Runs simulated and concurrent workloads until the time is over or every shape has reached its targets.
struct Session {
    shapes: Vec<&'static Shape>,
    options: Options,
    ops: usize,
    shrinking: Duration,
    seconds: u64,
    /// Target number of operations per shape in simulated runs.
    target: u64,
    /// Target number of operations per shape in concurrent workloads.
    in_threads: u64,
    /// The concurrent workload, without shape and seed.
    crowd: Crowd,
    failures_max: u64,
    first: u64,
    /// Rewritten during the session.
    table: Option<PathBuf>,
}

/// The progress of a shape.
#[derive(Default)]
struct Account {
    lives: u64,
    stats: RunStats,
    crowds: u64,
    crowd: ThreadStats,
    failures: u64,
}

impl Session {
    fn run(&self, record_in: Option<&Path>) -> Result<ExitCode> {
        let clock = Env::real().clock;
        let begun = clock.monotonic_ns();
        let elapsed = || clock.monotonic_ns().saturating_sub(begun) / 1_000_000_000;
        let mut all: BTreeMap<&str, Account> = BTreeMap::new();
        for shape in &self.shapes {
            all.insert(shape.name, Account::default());
        }
        let (mut reported_s, mut failures) = (0, 0);
        while elapsed() < self.seconds && failures < self.failures_max {
            // The work that is furthest behind.
            let behind = |done: u64, target: u64| done.saturating_mul(1_000_000) / target.max(1);
            let next = self.shapes.iter().flat_map(|shape| {
                let account = &all[shape.name];
                let lived = (behind(account.stats.ops, self.target), false, *shape);
                let crowd = (behind(account.crowd.ops, self.in_threads), true, *shape);
                [
                    (self.target > 0).then_some(lived),
                    (self.in_threads > 0).then_some(crowd),
                ]
            });
            let next = next
                .flatten()
                .filter(|(share, ..)| *share < 1_000_000)
                .min_by_key(|(share, is_crowd, shape)| (*share, *is_crowd, all[shape.name].lives));
            let Some((_, is_crowd, shape)) = next else {
                break;
            };
            let account = all.entry(shape.name).or_default();
            if is_crowd {
                let seed = self.first + account.crowds;
                account.crowds += 1;
                let crowd = Crowd {
                    shape,
                    seed,
                    ..self.crowd
                };
                match crowd.meet(self.options.limit) {
                    Ok(stats) => account.crowd += stats,
                    Err(error) => {
                        println!("FAILED:");
                        tell_crowd(crowd, error, &self.options, self.shrinking);
                        account.failures += 1;
                        failures += 1;
                    }
                }
            } else {
                let seed = self.first + account.lives;
                account.lives += 1;
                let plan = Plan::new(shape, seed, self.ops);
                match run(&plan, &self.options) {
                    Ok(stats) => account.stats += stats,
                    Err(failure) => {
                        println!("FAILED:");
                        tell(&plan, failure, &self.options, self.shrinking);
                        account.failures += 1;
                        failures += 1;
                    }
                }
            }
            if elapsed() >= reported_s + 30 {
                reported_s = elapsed();
                let lived: u64 = all.values().map(|account| account.stats.ops).sum();
                let crowds: u64 = all.values().map(|account| account.crowd.ops).sum();
                println!(
                    "{reported_s} s, {} s of CPU time: {lived} single-threaded operations, {crowds} concurrent, {failures} failures",
                    processor_seconds()
                );
                if let Some(file) = &self.table {
                    std::fs::write(file, table(&all, self.first, reported_s))?;
                }
            }
        }
        let table = table(&all, self.first, elapsed());
        print!("{table}");
        if let Some(file) = &self.table {
            std::fs::write(file, &table)?;
        }
        if let Some(file) = record_in {
            record(file, &table)?;
        }
        Ok(ExitCode::from(u8::from(failures > 0)))
    }
}

/// CPU time of this process so far; 0 if unknown.
fn processor_seconds() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    // A tick is a hundredth of a second on every current Linux.
    ticks
        .filter_map(|word| word.parse::<u64>().ok())
        .sum::<u64>()
        / 100
}

fn one(plan: &Plan, options: &Options, shrinking: Duration) -> ExitCode {
    match run(plan, options) {
        Ok(stats) => {
            println!("passed: {stats:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            tell(plan, failure, options, shrinking);
            ExitCode::from(1)
        }
    }
}

fn tell_crowd(crowd: Crowd, error: String, options: &Options, shrinking: Duration) {
    let say = |crowd: Crowd, error: &str| {
        println!(
            "threads, {}, seed {}: {error}\nrepeat with: soak --shape {} --concurrent {} --threads {} --rounds {} --steps {} --lose {}",
            crowd.shape.name,
            crowd.seed,
            crowd.shape.name,
            crowd.seed,
            crowd.threads,
            crowd.rounds,
            crowd.steps,
            u8::from(crowd.loses_flushes),
        );
    };
    say(crowd, &error);
    // Without the seeded scheduler, the same workload may or may not fail.
    if cfg!(millpond_sim) && !shrinking.is_zero() {
        let (small, error) = crowd.shrink(error, options.limit, shrinking);
        println!("minimized:");
        say(small, &error);
    }
}

fn tell(plan: &Plan, failure: Failure, options: &Options, shrinking: Duration) {
    println!(
        "{} seed {}: operation {}: {}",
        plan.shape.name, plan.seed, failure.at, failure.text
    );
    println!(
        "repeat with: soak --shape {} --seed {} --ops {}",
        plan.shape.name,
        plan.seed,
        plan.ops.len().saturating_sub(2)
    );
    if shrinking.is_zero() {
        println!("after:\n  {}", failure.log.join("\n  "));
        return;
    }
    let (small, failure) = shrink(plan, failure, options, shrinking);
    // The remaining operations have the same order as in the plan.
    let mut left = plan.ops.iter().enumerate();
    let numbers: Vec<String> = small
        .ops
        .iter()
        .filter_map(|op| left.find(|(_, other)| *other == op))
        .map(|(number, _)| number.to_string())
        .collect();
    println!(
        "minimized to {} operations: {}\nafter:\n  {}\n{:?}\n--keep-ops {}",
        small.ops.len(),
        failure.text,
        failure.log.join("\n  "),
        small.ops,
        numbers.join(",")
    );
}

fn table(all: &BTreeMap<&str, Account>, first: u64, seconds: u64) -> String {
    let build = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\nSeeds from {first} on, {build} build, {seconds} s, {} s of CPU time:\n\n\
         | shape | runs | operations | txgs | power cuts | reopens | faults injected | faulty requests | comparisons | recounts | zdb checks | pool full | acknowledged syncs | replayed effects | partial replays | lost logs | mended | attached | replaced | detached | sequential resilvers | spares | growths | trim slices | checkpoints | rewinds | removed | cancelled | expanded | concurrent: runs | operations | reopens | comparisons | power cuts | acknowledged syncs | failed |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        processor_seconds()
    );
    for (name, account) in all {
        let (f, c) = (&account.stats, &account.crowd);
        let columns = [
            account.lives,
            f.ops,
            f.txgs,
            f.cuts,
            f.reopened,
            f.faults,
            f.broken_promises,
            f.compared,
            f.recounted,
            f.judged,
            f.full,
            f.promises,
            f.brought_back,
            f.torn,
            f.lost_logs,
            f.mended,
            f.attached,
            f.replaced,
            f.detached,
            f.rebuilt,
            f.spared,
            f.grown,
            f.trimmed,
            f.checkpoints,
            f.rewound,
            f.removed,
            f.cancelled,
            f.expanded,
            account.crowds,
            c.ops,
            c.reopened,
            c.compared,
            c.cuts,
            c.promises,
            account.failures,
        ];
        let columns: Vec<String> = columns.iter().map(u64::to_string).collect();
        let _ = writeln!(text, "| {name} | {} |", columns.join(" | "));
    }
    text
}

fn record(file: &Path, table: &str) -> Result<()> {
    let mut text = std::fs::read_to_string(file).unwrap_or_default();
    text.push_str(table);
    std::fs::write(file, text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Arguments, OPTIONS, USAGE};

    fn parse(line: &str) -> Result<Option<Arguments>, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments_are_options_with_values_or_a_request_for_help() {
        let given = parse("--seed 7 --ops 3").unwrap().unwrap();
        assert_eq!(
            (
                given.number("seed", 1).unwrap(),
                given.number("ops", 1).unwrap()
            ),
            (7, 3)
        );
        assert_eq!(given.number("limit", 600).unwrap(), 600);
        for line in ["--help", "-h", "--seed 7 --help"] {
            assert!(parse(line).unwrap().is_none(), "{line}");
        }
        for line in ["seed", "--sed 7", "--seed", "--seed --ops 3"] {
            assert!(parse(line).is_err(), "{line}");
        }
        for name in OPTIONS {
            assert!(USAGE.contains(&format!("--{name} ")), "{name}");
        }
    }
}
