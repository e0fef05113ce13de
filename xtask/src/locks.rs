//! The table of locks: each lock of the engine has a rank, and the page shows the table of ranks.

use crate::source::{self, has_word};
use crate::{Report, tidy};
use anyhow::{Context, Result};
use millpond_env::rank::{RANKS, Rank};
use std::fmt::Write;
use std::path::Path;

const PAGE: &str = "docs/internals/locks.md";
const HEADING: &str = "| lock | crates | I/O | held for |\n|---|---|---|---|\n";

/// Checks that locks of the engine have a rank and that the page shows the table.
///
/// # Errors
/// If files cannot be read.
pub fn check(root: &Path) -> Result<Report> {
    let mut report = Report {
        examined: RANKS.len(),
        ..Report::default()
    };
    let page = read(root)?;
    if with_table(&page)? != page {
        let hint = format!("{PAGE} differs from the table of ranks: run `cargo xtask locks-page`");
        report.errors.push(hint);
    }
    for file in source::text_files(root)? {
        let is_engine = file.path.starts_with("crates/") || file.path.starts_with("apps/millpondd");
        let is_base = file.path.starts_with("crates/machine/env/")
            || file.path.starts_with("crates/machine/sim/");
        let is_test = file.path.ends_with("_tests.rs") || file.path.ends_with("/testing.rs");
        if file.path.ends_with(".rs") && is_engine && !is_base && !is_test {
            check_file(&file.path, &file.text, &mut report);
        }
    }
    Ok(report)
}

fn check_file(path: &str, text: &str, report: &mut Report) {
    let lines = source::lines(text);
    let product = lines.get(..tidy::first_line_of_tests(path, &lines));
    for (index, line) in product.unwrap_or(&lines).iter().enumerate() {
        let is_lock = line.code.contains("Mutex<") || line.code.contains("RwLock<");
        if !is_lock {
            continue;
        }
        report.examined += 1;
        // Long declarations go on in the next line.
        let rest = product.unwrap_or(&lines).iter().skip(index).take(3);
        let has_rank = rest.into_iter().any(|line| has_word(&line.code, "rank"));
        if !has_rank {
            let hint = "a lock without a rank of millpond_env::rank";
            report.errors.push(format!("{path}:{}: {hint}", index + 1));
        }
    }
}

/// Writes the table into the page.
///
/// # Errors
/// If the page cannot be read or written.
pub fn write(root: &Path) -> Result<()> {
    let page = with_table(&read(root)?)?;
    std::fs::write(root.join(PAGE), page).context(PAGE)
}

fn read(root: &Path) -> Result<String> {
    std::fs::read_to_string(root.join(PAGE)).context(PAGE)
}

/// The page with today's table, which is its last part.
fn with_table(page: &str) -> Result<String> {
    let (text, _) = page.split_once(HEADING).context("the page has no table")?;
    let mut page = format!("{text}{HEADING}");
    for rank in RANKS.iter().flatten() {
        let Rank {
            name, crates, held, ..
        } = rank;
        let crates = crates.split(", ").map(|name| format!("`{name}`"));
        let crates = crates.collect::<Vec<_>>().join(", ");
        let io = match (rank.several, rank.io) {
            (true, _) => "yes, several",
            (_, true) => "yes",
            _ => "",
        };
        writeln!(page, "| {name} | {crates} | {io} | {held} |")?;
    }
    Ok(page)
}
