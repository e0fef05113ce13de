//! Measures a mounted file system: `mounted PHASE FOLDER [ROW]`.
//!
//! The phases are `write`, `read` and `stream` (throughput and small files), `fsync` (latency beside a
//! stream), `database` (SQLite), `prepare` and `machine` (a virtual machine's disk). Steps that other
//! programs make stand between `mounted begin` and `mounted end ROW AMOUNT`; `mounted create` makes a tree
//! for them. `mounted limit` measures the limit of two devices; `mounted table` formats the results.
//!
//! The same program does the same work on every file system and depends only on the directory.
//! `bench/mount` creates and mounts the file systems. It remounts them between the phases, so that reading
//! finds nothing in the kernel's cache. Each measurement goes to standard output as `row TAB unit TAB value`.
#![forbid(unsafe_code)]

mod cost;
mod database;
mod files;
mod latency;
mod limit;
mod machine;
mod many;
mod measurement;
mod table;

use anyhow::{Context, Result};
use cost::{Amount, Meter};
use std::path::{Path, PathBuf};
use std::time::Duration;

const USAGE: &str = "mounted write|read|stream|fsync|database|prepare|machine FOLDER [ROW] | limit IMAGE IMAGE \
                     | create TREE COUNT | begin | end ROW AMOUNT | sqlite | table";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let input = || std::io::read_to_string(std::io::stdin());
    match words.as_slice() {
        ["table"] => {
            print!("{}", table::markdown(&input()?)?);
            Ok(())
        }
        ["sqlite"] => {
            println!("{}", database::about());
            Ok(())
        }
        ["begin"] => cost::begin(),
        ["end", row, amount] => cost::end(row, amount, &input()?),
        ["create", tree, count] => many::create(Path::new(tree), count),
        ["limit", one, other] => limit::run([PathBuf::from(one), PathBuf::from(other)]),
        [phase, folder, only @ ..] => {
            let rows = Rows {
                only: only.first().map(ToString::to_string),
            };
            run(phase, Path::new(folder), &rows)
        }
        _ => anyhow::bail!(USAGE),
    }
}

fn run(phase: &str, folder: &Path, rows: &Rows) -> Result<()> {
    match phase {
        "fsync" => latency::run(folder, rows),
        "database" => database::run(folder, rows),
        "prepare" => machine::prepare(folder, rows),
        "machine" => machine::run(folder, rows),
        _ => files::run(phase, folder, rows),
    }
}

/// Selects the rows to measure.
pub struct Rows {
    only: Option<String>,
}

impl Rows {
    /// Whether the row is selected: its name starts with the requested prefix.
    pub fn wants(&self, row: &str) -> bool {
        self.only.as_ref().is_none_or(|only| row.starts_with(only))
    }
    /// Runs the work of a selected row and prints its measurements.
    ///
    /// The work returns its amount (bytes or operations).
    pub fn timed(&self, row: &str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
        if self.wants(row) {
            timed(row, work)?;
        }
        Ok(())
    }
}

/// Runs work and prints its speed and cost. Streams count bytes, all other rows operations.
pub fn timed(row: &str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
    let meter = Meter::start()?;
    let amount = work().with_context(|| row.to_owned())?;
    let amount = match row.starts_with("stream") {
        true => Amount::Bytes(amount),
        false => Amount::Operations(amount),
    };
    meter.finish(row, amount)
}

/// How long a row runs: the environment variable, or the default, in seconds.
pub fn seconds(variable: &str, default: u64) -> Result<Duration> {
    match std::env::var(variable) {
        Ok(text) => {
            let number = text.parse().with_context(|| format!("{variable}={text}"))?;
            Ok(Duration::from_secs(number))
        }
        Err(_) => Ok(Duration::from_secs(default)),
    }
}
