//! Checks the rules of the repository.
//!
//! `cargo xtask layers | tidy | docs | licences | locks | marks | fuzzer | check`. Each check is also a test of
//! this crate, so `cargo test` detects broken rules. The command gives more readable output.
#![forbid(unsafe_code)]

mod docs;
mod folders;
mod fuzzer;
mod layers;
mod licences;
mod locks;
mod marks;
mod metadata;
mod source;
mod tidy;
mod words;

use std::process::{Command, ExitCode};

/// The result of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// Broken rules, which fail the check.
    pub errors: Vec<String>,
    /// Warnings, which are printed and never fail the check.
    pub warnings: Vec<String>,
    /// Number of items examined. It reveals a check that examines nothing.
    pub examined: usize,
}

const USAGE: &str = "usage: cargo xtask CHECK

  layers     a crate depends only on its own folder or those below; no cycles; pure crates stay pure
  tidy       unsafe, clocks, threads, locks and printing only in their crates and modules; file lengths; wording
  docs       pages and links that code and documents name exist
  locks      each lock has a rank, and docs/internals/locks.md shows the table of ranks
  marks      each marked branch of the engine is expected by a test
  fuzzer     the fuzzer's lock file knows what its targets use
  licences   the licence of each package is on the list in deny.toml
  check      all of these

cargo xtask compatibility writes COMPATIBILITY.md; a test of millpond-cli checks it
cargo xtask locks-page writes the table in docs/internals/locks.md";

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    let chosen: &[&str] = match word.as_str() {
        "layers" | "tidy" | "docs" | "licences" | "locks" | "marks" | "fuzzer" => &[word.as_str()],
        "compatibility" => return write_compatibility(),
        "locks-page" => return write_locks(),
        "check" => &[
            "layers", "tidy", "docs", "licences", "locks", "marks", "fuzzer",
        ],
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut failed = false;
    for name in chosen {
        match run(name) {
            Ok(report) => {
                for warning in &report.warnings {
                    println!("{name}: warning: {warning}");
                }
                for error in &report.errors {
                    println!("{name}: {error}");
                }
                println!(
                    "{name}: {} examined, {} broken rules, {} warnings",
                    report.examined,
                    report.errors.len(),
                    report.warnings.len()
                );
                failed |= !report.errors.is_empty();
            }
            Err(error) => {
                println!("{name}: could not be checked: {error:#}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}

fn write_locks() -> ExitCode {
    match locks::write(&metadata::workspace_root()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the page of locks was not written: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the test that knows the tables of the programs, and lets it write the page.
fn write_compatibility() -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ended = Command::new(cargo)
        .args(["test", "--quiet", "--package", "millpond-cli"])
        .args(["--test", "compatibility", "the_page_is_up_to_date"])
        .env("MILLPOND_COMPATIBILITY", "write")
        .current_dir(metadata::workspace_root())
        .status();
    ExitCode::from(u8::from(!ended.is_ok_and(|status| status.success())))
}

fn run(name: &str) -> anyhow::Result<Report> {
    let root = metadata::workspace_root();
    Ok(match name {
        "layers" => layers::check(&metadata::load(&root, metadata::Depth::Workspace)?),
        "tidy" => tidy::check(&root)?,
        "docs" => docs::check(&root)?,
        "locks" => locks::check(&root)?,
        "marks" => marks::check(&root)?,
        "fuzzer" => fuzzer::check(&root, &metadata::load(&root, metadata::Depth::Workspace)?)?,
        _ => licences::check(&root, &metadata::load(&root, metadata::Depth::Everything)?)?,
    })
}

#[cfg(test)]
mod tests {
    fn must_hold(name: &str) {
        let report = super::run(name).unwrap();
        assert!(
            report.examined > 10,
            "{name} looked at {} things only",
            report.examined
        );
        assert!(
            report.errors.is_empty(),
            "{name}:\n{}",
            report.errors.join("\n")
        );
    }

    #[test]
    fn crates_depend_only_on_their_own_folder_or_those_below() {
        must_hold("layers");
    }

    #[test]
    fn the_source_keeps_the_rules_of_the_house() {
        must_hold("tidy");
    }

    #[test]
    fn every_page_that_is_named_exists() {
        must_hold("docs");
    }

    #[test]
    fn every_lock_has_a_rank_and_the_page_shows_all() {
        must_hold("locks");
    }

    #[test]
    fn every_dependency_has_a_licence_that_is_allowed() {
        must_hold("licences");
    }

    #[test]
    fn every_marked_branch_is_expected_by_a_test() {
        must_hold("marks");
    }

    #[test]
    fn the_fuzzer_can_be_built_from_its_lock_file() {
        must_hold("fuzzer");
    }
}
