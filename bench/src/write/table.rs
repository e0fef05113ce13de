//! Formats the results of all rounds as a table.

use super::work::{Contender, Measurement};
use millpond_bench::spread;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Seconds by row and contender, in order of rounds.
#[derive(Default)]
pub struct Table {
    rows: Vec<(&'static str, f64, bool)>,
    seconds: BTreeMap<(&'static str, Contender), Vec<f64>>,
}

impl Table {
    pub fn add(&mut self, contender: Contender, measurement: Measurement) {
        let row = (measurement.row, measurement.amount, measurement.is_bytes);
        if !self.rows.contains(&row) {
            self.rows.push(row);
        }
        let key = (measurement.row, contender);
        self.seconds
            .entry(key)
            .or_default()
            .push(measurement.seconds);
    }

    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "| what | Millpond | Btrfs raid1 | XFS, one device | Btrfs' time over Millpond's | XFS' time over Millpond's |\n\
             |---|---|---|---|---|---|\n",
        );
        for (row, amount, is_bytes) in &self.rows {
            let of = |who| self.seconds.get(&(*row, who)).cloned().unwrap_or_default();
            let ours = of(Contender::Millpond);
            let (unit, scale) = if *is_bytes {
                ("MB/s", 1e6)
            } else {
                ("/s", 1.0)
            };
            let speed = |seconds: &[f64]| {
                let speeds = seconds.iter().map(|seconds| amount / scale / seconds);
                spread(speeds.collect(), 0).map_or("-".into(), |text| format!("{text} {unit}"))
            };
            let ratio = |theirs: &[f64]| {
                let pairs = theirs.iter().zip(&ours);
                let ratios = pairs.map(|(theirs, ours)| theirs / ours).collect();
                spread(ratios, 2).map_or("-".into(), |text| format!("**{text}**"))
            };
            let (btrfs, xfs) = (of(Contender::Btrfs), of(Contender::Xfs));
            let _ = writeln!(
                out,
                "| {row} | {} | {} | {} | {} | {} |",
                speed(&ours),
                speed(&btrfs),
                speed(&xfs),
                ratio(&btrfs),
                ratio(&xfs),
            );
        }
        out
    }
}
