//! Formats the measurements of all rounds as two tables: how fast the rows are, and what they cost.

use crate::measurement::Unit;
use anyhow::{Context, Result};
use millpond_bench::{ratios, spread};
use std::collections::BTreeMap;
use std::fmt::Write;

const OURS: &str = "Millpond";
const LIMIT: &str = "devices";
/// Rivals, and their short names.
const RIVALS: [(&str, &str); 4] = [
    ("zfs-fuse", "zfs-fuse"),
    ("Btrfs raid1", "Btrfs"),
    ("XFS, one device", "XFS"),
    ("ext4, one device", "ext4"),
];

/// The measurements of one row, unit and contender, by round.
type Rounds = BTreeMap<u32, f64>;

/// All measurements. Rows are in the order of their first measurement.
#[derive(Default)]
struct Measurements<'t> {
    rows: Vec<(&'t str, Unit)>,
    rounds: BTreeMap<(&'t str, Unit, &'t str), Rounds>,
}

impl<'t> Measurements<'t> {
    /// Parses lines of round, contender, row, unit and value, separated by tabs.
    fn parse(text: &'t str) -> Result<Self> {
        let mut measurements = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            let [round, who, row, unit, value] = words.as_slice() else {
                anyhow::bail!("{line:?} is no measurement");
            };
            let unit = Unit::parse(unit)?;
            if !measurements.rows.contains(&(*row, unit)) {
                measurements.rows.push((*row, unit));
            }
            let rounds = measurements.rounds.entry((*row, unit, *who)).or_default();
            rounds.insert(round.parse()?, value.parse().context("a number")?);
        }
        Ok(measurements)
    }
    fn of(&self, row: &'t str, unit: Unit, who: &'t str) -> Option<&Rounds> {
        self.rounds.get(&(row, unit, who))
    }
    /// Whether the contender has a measurement that is a cost, or one that is none.
    fn has(&self, who: &str, is_cost: bool) -> bool {
        let mut keys = self.rounds.keys();
        keys.any(|(_, unit, at)| *at == who && unit.is_cost() == is_cost)
    }
    fn cell(&self, row: &'t str, unit: Unit, who: &'t str) -> Option<String> {
        let values = self.of(row, unit, who).filter(|_| unit != Unit::Missing)?;
        let text = spread(values.values().copied().collect(), unit.decimals())?;
        Some(format!("{text} {}", unit.word()))
    }
    /// How many times as fast Millpond is: above 1, it is faster, also where less is better.
    fn ratio(&self, row: &'t str, unit: Unit, who: &'t str) -> Option<String> {
        let ours = self.of(row, unit, OURS)?;
        let theirs = self.of(row, unit, who)?;
        let pairs = match unit.less_is_better() {
            true => ratios(theirs, ours),
            false => ratios(ours, theirs),
        };
        spread(pairs, 2).map(|text| format!("**{text}**"))
    }
}

fn line(out: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

fn head(out: &mut String, names: &[String]) {
    line(out, names.iter().cloned());
    let _ = writeln!(out, "|{}", "---|".repeat(names.len()));
}

/// The tables of measurements, one per line.
pub fn markdown(text: &str) -> Result<String> {
    let measurements = Measurements::parse(text)?;
    let mut out = String::new();
    speeds(&measurements, &mut out);
    costs(&measurements, &mut out);
    Ok(out)
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".into())
}

fn speeds(measurements: &Measurements<'_>, out: &mut String) {
    let rivals = RIVALS
        .into_iter()
        .filter(|(who, _)| measurements.has(who, false));
    let rivals: Vec<(&str, &str)> = rivals.collect();
    let limit = measurements.has(LIMIT, false).then_some(LIMIT);
    let mut names = vec!["what".to_owned(), OURS.to_owned()];
    names.extend(rivals.iter().map(|(who, _)| (*who).to_owned()));
    names.extend(limit.map(|_| "both devices".to_owned()));
    names.extend(rivals.iter().map(|(_, short)| format!("over {short}")));
    names.extend(limit.map(|_| "of the devices".to_owned()));
    head(out, &names);
    let others: Vec<&str> = rivals.iter().map(|(who, _)| *who).chain(limit).collect();
    for (row, unit) in &measurements.rows {
        if unit.is_cost() {
            continue;
        }
        let name = match unit.less_is_better() {
            true => format!("{row} (less is better)"),
            false => (*row).to_owned(),
        };
        let mut cells = vec![name, or_dash(measurements.cell(row, *unit, OURS))];
        let cell = |who: &&str| or_dash(measurements.cell(row, *unit, who));
        let ratio = |who: &&str| or_dash(measurements.ratio(row, *unit, who));
        cells.extend(others.iter().map(cell));
        cells.extend(others.iter().map(ratio));
        line(out, cells);
    }
}

fn costs(measurements: &Measurements<'_>, out: &mut String) {
    let contenders: Vec<&str> = [OURS]
        .into_iter()
        .chain(RIVALS.map(|(who, _)| who))
        .chain([LIMIT])
        .filter(|who| measurements.has(who, true))
        .collect();
    if contenders.is_empty() {
        return;
    }
    let is_server = |who: &str| {
        let mut keys = measurements.rounds.keys();
        keys.any(|(_, unit, at)| *at == who && *unit == Unit::PeakMemory)
    };
    let servers = contenders.iter().copied().filter(|who| is_server(who));
    let servers: Vec<&str> = servers.collect();
    out.push_str(
        "\nWhat the rows cost (less is better): CPU seconds of the whole machine, for each GB or for 1,000 operations, and the peak memory of the server.\n\n",
    );
    let mut names = vec!["what".to_owned()];
    names.extend(contenders.iter().map(|who| match *who {
        LIMIT => "both devices".to_owned(),
        who => who.to_owned(),
    }));
    names.extend(servers.iter().map(|who| format!("memory of {who}")));
    head(out, &names);
    let mut rows: Vec<&str> = vec![];
    for (row, unit) in &measurements.rows {
        if unit.is_cost() && !rows.contains(row) {
            rows.push(row);
        }
    }
    for row in rows {
        let cpu = |who: &&str| {
            let units = [Unit::CpuPerGigabyte, Unit::CpuPerThousand];
            or_dash(
                units
                    .iter()
                    .find_map(|unit| measurements.cell(row, *unit, who)),
            )
        };
        let memory = |who: &&str| or_dash(measurements.cell(row, Unit::PeakMemory, who));
        let mut cells = vec![row.to_owned()];
        cells.extend(contenders.iter().map(cpu));
        cells.extend(servers.iter().map(memory));
        line(out, cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASUREMENTS: &str = "1\tMillpond\tstream write\tMB/s\t200.0\n\
        1\tMillpond\tstream write\ts/GB\t2.5\n1\tMillpond\tstream write\tMiB\t300\n\
        1\tMillpond\tfsync: p99\tms\t2.0\n2\tMillpond\tfsync: p99\tms\t3.0\n\
        1\tXFS, one device\tstream write\tMB/s\t400.0\n1\tXFS, one device\tstream write\ts/GB\t0.5\n\
        1\text4, one device\tfsync: p99\tms\t8.0\n2\text4, one device\tfsync: p99\tms\t3.0\n\
        1\tMillpond\tdatabase: SQLite is missing\tmissing\t0.0\n";

    #[test]
    fn above_one_millpond_is_faster_also_in_latencies() {
        let text = markdown(MEASUREMENTS).unwrap();
        let (speeds, costs) = text.split_once("\n\n").unwrap();
        let speeds: Vec<&str> = speeds.lines().collect();
        assert_eq!(
            speeds,
            [
                "| what | Millpond | XFS, one device | ext4, one device | over XFS | over ext4 |",
                "|---|---|---|---|---|---|",
                "| stream write | 200 (200–200) MB/s | 400 (400–400) MB/s | - | **0.50 (0.50–0.50)** | - |",
                "| fsync: p99 (less is better) | 2.500 (2.000–3.000) ms | - | 5.500 (3.000–8.000) ms | - | **2.50 (1.00–4.00)** |",
                "| database: SQLite is missing | - | - | - | - | - |",
            ]
        );
        let costs: Vec<&str> = costs.lines().skip(2).collect();
        assert_eq!(
            costs,
            [
                "| what | Millpond | XFS, one device | memory of Millpond |",
                "|---|---|---|---|",
                "| stream write | 2.50 (2.50–2.50) s/GB | 0.50 (0.50–0.50) s/GB | 300 (300–300) MiB |",
            ]
        );
    }

    #[test]
    fn what_is_no_figure_is_refused() {
        assert!(markdown("1\tMillpond\tstream write\t200.0\n").is_err());
        assert!(markdown("1\tMillpond\tstream write\tmiles\t200.0\n").is_err());
    }
}
