//! Formats the results of `bench/run` as BENCHMARKS.md: `report FOLDER >BENCHMARKS.md`.
//!
//! FOLDER contains `micro.tsv` (`who<TAB>what<TAB>MB/s`), `parity.tsv` (`implementation<TAB>what<TAB>MB/s
//! of the rival<TAB>MB/s of Millpond just after`), `races.tsv` (lines of `race`), `commands.md` and
//! `about.md` (text that is copied). Any of them may be missing.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let read =
        |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap_or_default();
    let mut out = String::from("# Benchmarks\n\n");
    out.push_str(&read("about.md"));
    races(&mut out, &read("races.tsv"))?;
    parity(&mut out, &read("parity.tsv"))?;
    micro(&mut out, &read("micro.tsv"))?;
    out.push_str(&read("commands.md"));
    out.push_str(&read("notes.md"));
    print!("{out}");
    Ok(())
}

/// Median, minimum and maximum.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        let median = f64::midpoint(lower, upper);
        Some(Self {
            median,
            least,
            most,
        })
    }

    fn text(values: Vec<f64>, decimals: usize) -> String {
        Self::of(values).map_or("-".into(), |spread| {
            format!(
                "{:.decimals$} ({:.decimals$}–{:.decimals$})",
                spread.median, spread.least, spread.most
            )
        })
    }
}

#[derive(Default)]
struct Runs {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    memory: Vec<f64>,
}

fn races(out: &mut String, lines: &str) -> anyhow::Result<()> {
    let mut names: Vec<&str> = vec![];
    let mut races: BTreeMap<(&str, &str), Runs> = BTreeMap::new();
    let mut rivals: BTreeMap<&str, &str> = BTreeMap::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[name, label, _, wall, cpu, memory] = fields.as_slice() else {
            continue;
        };
        if !names.contains(&name) {
            names.push(name);
        }
        if label != "millpond" {
            rivals.insert(name, label);
        }
        let runs = races.entry((name, label)).or_default();
        runs.wall.push(wall.parse()?);
        runs.cpu.push(cpu.parse()?);
        runs.memory
            .push(memory.parse::<f64>()? / f64::from(1 << 20));
    }
    if names.is_empty() {
        return Ok(());
    }
    out.push_str(
        "## Programs\n\nMedian (minimum–maximum) of the rounds. A ratio is the rival's time \
         divided by Millpond's in the same round: above 1, Millpond is faster.\n\n\
         | what | rival | Millpond s | rival s | ratio | CPU s, Millpond / rival | peak MiB, Millpond / rival |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let none = Runs::default();
    for name in names {
        let ours = races.get(&(name, "millpond")).unwrap_or(&none);
        let rival = rivals.get(name).copied().unwrap_or("-");
        let theirs = races.get(&(name, rival)).unwrap_or(&none);
        let pairs = theirs.wall.iter().zip(&ours.wall);
        let ratios = pairs.map(|(theirs, ours)| theirs / ours).collect();
        let middle = |values: &[f64], decimals: usize| {
            Spread::of(values.to_vec())
                .map_or("-".into(), |spread| format!("{:.decimals$}", spread.median))
        };
        let most = |values: &[f64]| {
            Spread::of(values.to_vec()).map_or("-".into(), |spread| format!("{:.0}", spread.most))
        };
        writeln!(
            out,
            "| `{name}` | {rival} | {} | {} | **{}** | {} / {} | {} / {} |",
            Spread::text(ours.wall.clone(), 2),
            Spread::text(theirs.wall.clone(), 2),
            Spread::text(ratios, 2),
            middle(&ours.cpu, 2),
            middle(&theirs.cpu, 2),
            most(&ours.memory),
            most(&theirs.memory),
        )?;
    }
    out.push('\n');
    Ok(())
}

fn parity(out: &mut String, lines: &str) -> anyhow::Result<()> {
    let mut implementations: Vec<&str> = vec![];
    let mut measurements: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[implementation, what, theirs, ours] = fields.as_slice() else {
            continue;
        };
        if !implementations.contains(&implementation) {
            implementations.push(implementation);
        }
        measurements.insert((what, implementation), (theirs.parse()?, ours.parse()?));
    }
    if measurements.is_empty() {
        return Ok(());
    }
    out.push_str(
        "## Parity\n\nGB/s of user data on one core, 8 data columns, blocks of 128 KiB. For each \
         implementation of OpenZFS that this processor supports: its speed and, in brackets, Millpond's speed \
         divided by it. Millpond was measured just after, while the rival was stopped.\n\n| what | Millpond",
    );
    for implementation in &implementations {
        write!(out, " | {implementation}")?;
    }
    out.push_str(" |\n|---|---");
    out.push_str(&"|---".repeat(implementations.len()));
    out.push_str("|\n");
    for what in PARITY {
        let found = measurements.iter().filter(|((name, _), _)| *name == what);
        let ours = found.map(|(_, (_, ours))| ours / 1000.0).collect();
        write!(out, "| `{what}` | {}", Spread::text(ours, 1))?;
        for implementation in &implementations {
            match measurements.get(&(what, implementation)) {
                Some((theirs, ours)) => {
                    write!(out, " | {:.1} ({:.1}×)", theirs / 1000.0, ours / theirs)?;
                }
                None => out.push_str(" | -"),
            }
        }
        out.push_str(" |\n");
    }
    out.push('\n');
    Ok(())
}

fn micro(out: &mut String, lines: &str) -> anyhow::Result<()> {
    let mut names: Vec<&str> = vec![];
    let mut measurements: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[who, what, value] = fields.as_slice() else {
            continue;
        };
        if !names.contains(&what) {
            names.push(what);
        }
        measurements
            .entry((who, what))
            .or_default()
            .push(value.parse()?);
    }
    if names.is_empty() {
        return Ok(());
    }
    out.push_str(
        "## Checksums and codecs\n\nGB/s of user data on one core, blocks of 128 KiB of text-like data (lz4 makes \
         them about half as long). `memcpy` copies the same block within the processor's cache; work that \
         only reads can be faster.\n\n| what | GB/s | of memcpy | rival | ratio |\n|---|---|---|---|---|\n",
    );
    let giga = |who: &str, what: &str| -> Vec<f64> {
        let found = measurements
            .iter()
            .find(|((w, n), _)| *w == who && *n == what);
        found.map_or(vec![], |(_, values)| {
            values.iter().map(|v| v / 1000.0).collect()
        })
    };
    let copied = giga("millpond", "memcpy");
    for what in names {
        let (ours, theirs) = (giga("millpond", what), giga("rival", what));
        let share = ours.iter().zip(&copied).map(|(ours, copied)| ours / copied);
        let ratios: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        writeln!(
            out,
            "| `{what}` | {} | {} | {} | {} |",
            Spread::text(ours.clone(), 2),
            Spread::of(share.collect()).map_or("-".into(), |share| format!("{:.2}", share.median)),
            Spread::text(theirs, 2),
            Spread::text(ratios, 2),
        )?;
    }
    out.push('\n');
    Ok(())
}

const PARITY: [&str; 10] = [
    "gen_p", "gen_pq", "gen_pqr", "rec_p", "rec_q", "rec_r", "rec_pq", "rec_pr", "rec_qr",
    "rec_pqr",
];
