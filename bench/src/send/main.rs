//! The parts of `bench/send` that a shell cannot do: see [`USAGE`].
//!
//! What measures prints `seconds TAB bytes TAB bytes read from the device`; the time to open and export the pool is not
//! counted. `table` formats the measurements of all rounds.
#![forbid(unsafe_code)]

mod change;
mod library;
mod table;

use anyhow::{Context, Result};
use millpond_bench::plain;
use std::path::{Path, PathBuf};
use std::time::Instant;

const USAGE: &str = "send send FOLDER SNAPSHOT FROM|- plain|c|w OUTPUT | receive FOLDER DATASET STREAM \
                     | read FOLDER DATASET | write FOLDER DATASET TREE \
                     | plain-read IMAGE... | plain-write FILE BYTES \
                     | fill FILE RECORDS RECORD-BYTES | overwrite FILE RECORDS RECORD-BYTES CHANGES | rewrite TREE EVERY \
                     | large FOLDER DATASET BYTES | snapshots FOLDER DATASET FIRST LAST | table";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["send", folder, snapshot, from, form, output] => {
            let from = Some(*from).filter(|from| *from != "-");
            library::send(Path::new(folder), snapshot, from, form, Path::new(output))
        }
        ["receive", folder, dataset, stream] => {
            library::receive(Path::new(folder), dataset, Path::new(stream))
        }
        ["read", folder, dataset] => library::read(Path::new(folder), dataset),
        ["write", folder, dataset, tree] => {
            library::write(Path::new(folder), dataset, Path::new(tree))
        }
        ["large", folder, dataset, bytes] => {
            library::large(Path::new(folder), dataset, bytes.parse()?)
        }
        ["snapshots", folder, dataset, first, last] => {
            let numbers = first.parse()?..=last.parse()?;
            library::snapshots(Path::new(folder), dataset, numbers)
        }
        ["plain-read", images @ ..] => {
            let images: Vec<PathBuf> = images.iter().map(PathBuf::from).collect();
            print_figure(Instant::now(), plain::read(&images)?, None);
            Ok(())
        }
        ["plain-write", file, bytes] => {
            let begun = Instant::now();
            let bytes = plain::write(Path::new(file), bytes.parse()?)?;
            print_figure(begun, bytes, None);
            Ok(())
        }
        ["fill", file, records, record_bytes] => {
            change::fill(Path::new(file), records.parse()?, record_bytes.parse()?)
        }
        ["overwrite", file, records, record_bytes, changes] => change::overwrite(
            Path::new(file),
            records.parse()?,
            record_bytes.parse()?,
            changes.parse()?,
        ),
        ["rewrite", tree, every] => change::rewrite(Path::new(tree), every.parse()?),
        ["table"] => {
            let measurements = std::io::read_to_string(std::io::stdin())?;
            print!(
                "{}",
                table::markdown(&measurements).context("the measurements")?
            );
            Ok(())
        }
        _ => anyhow::bail!(USAGE),
    }
}

/// Prints what was done since `begun`.
pub fn print_figure(begun: Instant, bytes: u64, read_bytes: Option<u64>) {
    let seconds = begun.elapsed().as_secs_f64();
    println!("{seconds:.4}\t{bytes}\t{}", read_bytes.unwrap_or(0));
}
