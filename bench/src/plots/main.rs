//! Draws the ratios in BENCHMARKS.md: `plots BENCHMARKS.md FOLDER`.
//!
//! Writes a chart for each section that has ratios, with the numbers on the page, and inserts a missing
//! link to it above the section's table.
#![forbid(unsafe_code)]

mod aims;
mod tables;

use anyhow::{Context, Result};
use std::path::Path;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let page = arguments.next().unwrap_or_else(|| "BENCHMARKS.md".into());
    let folder = arguments.next().unwrap_or_else(|| "docs/plots".into());
    let before = std::fs::read_to_string(&page).with_context(|| page.clone())?;
    std::fs::create_dir_all(&folder)?;
    let mut after = before.clone();
    for plot in tables::plots(&before) {
        let path = Path::new(&folder).join(&plot.file);
        std::fs::write(&path, plot.chart.svg())?;
        println!("plots: {}, {} rows", path.display(), plot.chart.rows.len());
        after = tables::link(&after, &plot, &folder);
    }
    if after != before {
        std::fs::write(&page, after)?;
        println!("plots: linked from {page}");
    }
    Ok(())
}
