//! Measures a mounted file system: `mounted PHASE FOLDER`, where the phase is `write`, `read` or `stream`.
//!
//! `mounted limit IMAGE IMAGE` measures the limit of two devices; `mounted table < RESULTS` formats the
//! results.
//!
//! The same program does the same work on every file system and depends only on the directory.
//! `bench/mount` creates and mounts the file systems. It remounts them between the phases, so that `read`
//! finds nothing in the kernel's cache. Each row goes to standard output as `row TAB amount TAB seconds`.
#![forbid(unsafe_code)]

mod files;
mod limit;
mod table;

use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["table"] => {
            let text = std::io::read_to_string(std::io::stdin())?;
            print!("{}", table::markdown(&text)?);
            Ok(())
        }
        ["limit", one, other] => limit::run([PathBuf::from(one), PathBuf::from(other)]),
        [phase, folder, only @ ..] => {
            let rows = Rows {
                only: only.first().map(ToString::to_string),
            };
            files::run(phase, &PathBuf::from(folder), &rows)
        }
        _ => anyhow::bail!("mounted write|read|stream FOLDER [ROW] | limit IMAGE IMAGE | table"),
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
    /// Runs the work of a selected row and prints its duration.
    ///
    /// The work returns its amount (bytes or operations).
    pub fn timed(&self, row: &str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
        if self.wants(row) {
            timed(row, work)?;
        }
        Ok(())
    }
}

/// Runs work and prints its duration.
pub fn timed(row: &str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
    let begun = Instant::now();
    let amount = work().with_context(|| row.to_owned())?;
    println!("{row}\t{amount}\t{:.6}", begun.elapsed().as_secs_f64());
    Ok(())
}
