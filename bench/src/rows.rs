//! A table with a row for each measurement, and the times of the work that is measured.

use crate::spread;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::Instant;

/// The values of each row, one for each round.
#[derive(Debug, Default)]
pub struct Rows {
    program: &'static str,
    order: Vec<&'static str>,
    values: BTreeMap<&'static str, Vec<f64>>,
}

impl Rows {
    /// An empty table. Each value is also shown on standard error, after the name of the program.
    #[must_use]
    pub fn of(program: &'static str) -> Self {
        Self {
            program,
            ..Self::default()
        }
    }

    /// Adds the value of one round to a row.
    pub fn add(&mut self, row: &'static str, value: f64) {
        eprintln!("{}: {row}: {value:.2}", self.program);
        if !self.order.contains(&row) {
            self.order.push(row);
        }
        self.values.entry(row).or_default().push(value);
    }

    /// The table in Markdown, in the order in which the rows came.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("| what | median (minimum–maximum) |\n|---|---|\n");
        for row in &self.order {
            let values = self.values.get(row).cloned().unwrap_or_default();
            if let Some(spread) = spread(values, 2) {
                text += &format!("| {row} | {spread} |\n");
            }
        }
        text
    }
}

/// The seconds that work takes, and its result.
///
/// # Errors
/// Those of the work.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let begun = Instant::now();
    let value = work()?;
    Ok((begun.elapsed().as_secs_f64(), value))
}

/// Writes dirty pages and drops the page cache, where that is permitted.
pub fn drop_caches() {
    rustix::fs::sync();
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}
