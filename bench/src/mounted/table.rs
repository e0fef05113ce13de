//! Formats the results of all rounds as a table.

use anyhow::{Context, Result};
use millpond_bench::spread;
use std::collections::BTreeMap;
use std::fmt::Write;

const OURS: &str = "Millpond";
const LIMIT: &str = "devices";
const RIVALS: [&str; 3] = ["zfs-fuse", "Btrfs raid1", "XFS, one device"];

/// Speeds by round, for each row and contender.
type Speeds<'t> = BTreeMap<(&'t str, &'t str), BTreeMap<u32, f64>>;

/// Parses lines of round, contender, row, amount and seconds, separated by tabs.
pub fn markdown(text: &str) -> Result<String> {
    let mut rows: Vec<&str> = vec![];
    let mut speeds = Speeds::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [round, who, row, amount, seconds] = words.as_slice() else {
            anyhow::bail!("{line:?} is no figure");
        };
        let number = |word: &str| word.parse::<f64>().context("a number");
        let speed = number(amount)? / number(seconds)?.max(1e-9);
        if !rows.contains(row) {
            rows.push(row);
        }
        speeds
            .entry((*row, *who))
            .or_default()
            .insert(round.parse()?, speed);
    }
    let mut out = format!(
        "| what | {OURS} | {} | both devices | over zfs-fuse | over Btrfs | over XFS | of the devices |\n",
        RIVALS.join(" | ")
    );
    out.push_str("|---|---|---|---|---|---|---|---|---|\n");
    for row in rows {
        let of = |who| speeds.get(&(row, who)).cloned().unwrap_or_default();
        let ours = of(OURS);
        let (unit, scale) = match row.starts_with("stream") {
            true => ("MB/s", 1e6),
            false => ("/s", 1.0),
        };
        let speed = |who| {
            let values = of(who).into_values().map(|speed| speed / scale);
            spread(values.collect(), 0).map_or("-".into(), |text| format!("{text} {unit}"))
        };
        // Ratios are computed per round, because a disturbance affects both values of a round.
        let ratio = |who| {
            let theirs = of(who);
            let pairs = ours
                .iter()
                .filter_map(|(round, speed)| theirs.get(round).map(|theirs| speed / theirs));
            spread(pairs.collect(), 2).map_or("-".into(), |text| format!("**{text}**"))
        };
        let columns = [OURS].into_iter().chain(RIVALS).chain([LIMIT]).map(speed);
        let ratios = RIVALS.into_iter().chain([LIMIT]).map(ratio);
        let cells: Vec<String> = columns.chain(ratios).collect();
        let _ = writeln!(out, "| {row} | {} |", cells.join(" | "));
    }
    Ok(out)
}
