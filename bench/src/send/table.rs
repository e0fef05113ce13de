//! Formats the measurements of all rounds as one table for each part of the benchmark.

use anyhow::Result;
use millpond_bench::{ratios, spread};
use std::collections::BTreeMap;

/// A table: its name in the measurements, its title, its contenders in order, and the ratios of two of them.
struct Shape {
    key: &'static str,
    title: &'static str,
    columns: &'static [&'static str],
    /// The title, the contender above the line and the one below it.
    ratios: &'static [(&'static str, &'static str, &'static str)],
}

const SHAPES: [Shape; 5] = [
    Shape {
        key: "send",
        title: "Send, MB/s",
        columns: &[
            "zfs send",
            "library",
            "zfs-fuse",
            "tar, ext4",
            "tar, our mount",
            "library's read",
            "device",
        ],
        ratios: &[
            ("over zfs-fuse", "zfs send", "zfs-fuse"),
            ("over tar, ext4", "zfs send", "tar, ext4"),
            (
                "of the library's read: library",
                "library",
                "library's read",
            ),
            ("of that read: zfs send", "zfs send", "library's read"),
            ("of the device: zfs send", "zfs send", "device"),
        ],
    },
    Shape {
        key: "receive",
        title: "Receive, MB/s",
        columns: &[
            "zfs receive",
            "library",
            "zfs-fuse",
            "tar, ext4",
            "tar, our mount",
            "library's write",
            "device",
        ],
        ratios: &[
            ("over zfs-fuse", "zfs receive", "zfs-fuse"),
            ("over tar, ext4", "zfs receive", "tar, ext4"),
            (
                "of the library's write: library",
                "library",
                "library's write",
            ),
            (
                "of that write: zfs receive",
                "zfs receive",
                "library's write",
            ),
            ("of the device: zfs receive", "zfs receive", "device"),
        ],
    },
    Shape {
        key: "change",
        title: "Increment with 1 % changed",
        columns: &[
            "zfs send",
            "zfs send -i",
            "library",
            "library -i",
            "zfs-fuse",
            "zfs-fuse -i",
        ],
        ratios: &[
            ("zfs send: -i of full", "zfs send -i", "zfs send"),
            ("library: -i of full", "library -i", "library"),
            ("zfs-fuse: -i of full", "zfs-fuse -i", "zfs-fuse"),
        ],
    },
    Shape {
        key: "snapshots",
        title: "Snapshots, s",
        columns: &["Millpond", "zfs-fuse"],
        ratios: &[("zfs-fuse's time over Millpond's", "zfs-fuse", "Millpond")],
    },
    Shape {
        key: "stored",
        title: "Stored stream, s",
        columns: &["millpond stream ls", "again, from the index", "cat"],
        ratios: &[
            ("cat over stream ls", "cat", "millpond stream ls"),
            ("cat over the second", "cat", "again, from the index"),
        ],
    },
];

/// The values of a row by contender and round. What is no number says why there is none.
#[derive(Default)]
struct Row<'t> {
    name: &'t str,
    values: BTreeMap<&'t str, BTreeMap<u32, f64>>,
    reasons: BTreeMap<&'t str, &'t str>,
}

impl Row<'_> {
    fn cell(&self, who: &str) -> String {
        let Some(rounds) = self.values.get(who) else {
            return self.reasons.get(who).copied().unwrap_or("-").to_owned();
        };
        let values: Vec<f64> = rounds.values().copied().collect();
        let decimals = match values.iter().copied().fold(0.0, f64::max) {
            most if most < 10.0 => 3,
            most if most < 100.0 => 1,
            _ => 0,
        };
        spread(values, decimals).unwrap_or_default()
    }

    fn ratio(&self, above: &str, below: &str) -> String {
        let (Some(above), Some(below)) = (self.values.get(above), self.values.get(below)) else {
            return "-".to_owned();
        };
        let pairs = ratios(above, below);
        let decimals = match pairs.iter().copied().fold(0.0, f64::max) {
            most if most < 0.2 => 3,
            _ => 2,
        };
        spread(pairs, decimals).map_or_else(|| "-".to_owned(), |text| format!("**{text}**"))
    }
}

/// The tables of lines of round, table, row, contender and value, separated by tabs.
pub fn markdown(text: &str) -> Result<String> {
    let mut tables: BTreeMap<&str, Vec<Row<'_>>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [round, table, name, who, value] = words.as_slice() else {
            anyhow::bail!("{line:?} is no measurement");
        };
        let rows = tables.entry(table).or_default();
        let at = rows.iter().position(|row| row.name == *name);
        let at = at.unwrap_or_else(|| {
            rows.push(Row {
                name,
                ..Row::default()
            });
            rows.len() - 1
        });
        let Some(row) = rows.get_mut(at) else {
            continue;
        };
        match value.parse() {
            Ok(value) => {
                let rounds = row.values.entry(who).or_default();
                rounds.insert(round.parse()?, value);
            }
            Err(_) => {
                row.reasons.insert(who, value);
            }
        }
    }
    let mut out = String::new();
    for shape in &SHAPES {
        if let Some(rows) = tables.get(shape.key) {
            out += &table(shape, rows);
        }
    }
    Ok(out)
}

fn table(shape: &Shape, rows: &[Row<'_>]) -> String {
    let titles = shape.ratios.iter().map(|(title, ..)| *title);
    let head: Vec<&str> = [shape.title]
        .into_iter()
        .chain(shape.columns.iter().copied())
        .chain(titles)
        .collect();
    let mut out = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let cells = shape.columns.iter().map(|who| row.cell(who));
        let ratios = shape.ratios.iter();
        let ratios = ratios.map(|(_, above, below)| row.ratio(above, below));
        let cells: Vec<String> = cells.chain(ratios).collect();
        out += &format!("| {} | {} |\n", row.name, cells.join(" | "));
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::markdown;

    #[test]
    fn ratios_are_of_the_same_round_and_absent_peers_say_why() {
        let measurements = "1\tsnapshots\tlist\tMillpond\t2\n1\tsnapshots\tlist\tzfs-fuse\t4\n\
                       2\tsnapshots\tlist\tMillpond\t1\n2\tsnapshots\tlist\tzfs-fuse\t4\n\
                       1\tsnapshots\tdestroy\tMillpond\t3\n1\tsnapshots\tdestroy\tzfs-fuse\tno ranges\n";
        let text = markdown(measurements).expect("measurements");
        let list = "| list | 1.500 (1.000–2.000) | 4.000 (4.000–4.000) | **3.00 (2.00–4.00)** |";
        assert!(text.contains(list), "{text}");
        let destroy = "| destroy | 3.000 (3.000–3.000) | no ranges | - |";
        assert!(text.contains(destroy), "{text}");
    }
}
