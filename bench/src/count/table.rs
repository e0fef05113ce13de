//! The committed table, and the comparison of a new count with it.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Instructions per operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    pub instructions: f64,
    /// Difference between two measurements, as a fraction of the smaller.
    pub spread: f64,
}

/// Counts by benchmark.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    measurements: BTreeMap<String, Measurement>,
}

impl Table {
    /// Parses [`Table::page`]; other lines are ignored.
    pub fn parse(page: &str) -> Self {
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.strip_suffix('`')?.to_owned();
            let instructions = cells.next()?.replace(',', "").parse().ok()?;
            let spread: f64 = cells.next()?.strip_suffix(" %")?.parse().ok()?;
            let spread = spread / 100.0;
            Some((
                name,
                Measurement {
                    instructions,
                    spread,
                },
            ))
        });
        Self {
            measurements: rows.collect(),
        }
    }
    pub fn get(&self, name: &str) -> Option<Measurement> {
        self.measurements.get(name).copied()
    }
    pub fn put(&mut self, name: &str, measurement: Measurement) {
        self.measurements.insert(name.to_owned(), measurement);
    }
    /// Adds the counts of another table, which replace existing ones.
    pub fn adopt(&mut self, other: Self) {
        self.measurements.extend(other.measurements);
    }

    /// Formats the page with the rows of these benchmarks in this order.
    ///
    /// `about` names compiler and valgrind, `abilities` the features of the counted processor.
    pub fn page(&self, names: &[String], about: &str, abilities: &str) -> String {
        let mut out = format!(
            "# Instructions\n\nWritten by `make bench-count WRITE=1` ({about}): CPU instructions per operation, counted with valgrind, and the \
             relative difference between two counts. They do not depend on other load, so commits can be compared: `make bench-count` \
             counts again and shows the changes. They are not times: an instruction may take a quarter of a cycle or wait for memory, and \
             the kernel's work is not counted. Memory is cleared and copied with vectors of 32 bytes: valgrind counts each iteration of a \
             repeated string instruction, so glibc is configured not to use them.\n\nCounted on {abilities}. A processor with more \
             of these runs other code (wider vectors for parity, Fletcher checksums and carry-less products, instructions for SHA-2).\n\n\
             | work | instructions | spread |\n|---|---|---|\n"
        );
        for name in names {
            if let Some(measurement) = self.get(name) {
                let count = grouped(measurement.instructions);
                let _ = writeln!(
                    out,
                    "| `{name}` | {count} | {:.2} % |",
                    measurement.spread * 100.0
                );
            }
        }
        out.push('\n');
        out.push_str(include_str!("../../counted.md"));
        out
    }
}

/// Formats a line of the report.
pub fn line(name: &str, now: Measurement, before: Option<Measurement>) -> String {
    let (before, change) = match before {
        Some(before) => {
            let change = (now.instructions / before.instructions - 1.0) * 100.0;
            // Differences within the measurement error are not reported.
            let is_noise = change.abs() <= 100.0 * (now.spread + before.spread) + 0.005;
            let change = if is_noise {
                "=".to_owned()
            } else {
                format!("{change:+.2} %")
            };
            (grouped(before.instructions), change)
        }
        None => ("-".to_owned(), "new".to_owned()),
    };
    format!(
        "{name:<28} {:>14} {:>6.2} % {before:>14} {change:>9}",
        grouped(now.instructions),
        now.spread * 100.0,
    )
}

/// Formats a whole number with a comma after each three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(instructions: f64, spread: f64) -> Measurement {
        Measurement {
            instructions,
            spread,
        }
    }

    #[test]
    fn a_page_reads_as_the_table_it_was_made_of() {
        let mut table = Table::default();
        table.put("checksum/fletcher4", measurement(1_234_567.0, 0.0));
        table.put("files/create", measurement(12.0, 0.0125));
        let names = ["files/create", "checksum/fletcher4", "not/measured"].map(String::from);
        let page = table.page(&names, "a compiler", "a processor");
        assert!(page.contains("| `checksum/fletcher4` | 1,234,567 | 0.00 % |"));
        assert!(!page.contains("not/measured"));
        assert_eq!(Table::parse(&page), table);
    }

    #[test]
    fn a_change_is_reported_unless_the_spread_is_as_large() {
        let exact = measurement(1000.0, 0.0);
        assert!(line("a", measurement(1100.0, 0.0), Some(exact)).ends_with("1,000  +10.00 %"));
        assert!(line("a", measurement(990.0, 0.0), Some(exact)).ends_with("-1.00 %"));
        assert!(line("a", exact, Some(exact)).ends_with(" ="));
        assert!(line("a", measurement(1010.0, 0.02), Some(exact)).ends_with(" ="));
        assert!(line("a", exact, None).ends_with("new"));
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let numbers = [0.4, 7.0, 999.0, 1000.0, 123_456.0, 1_234_567.0];
        let expected = ["0", "7", "999", "1,000", "123,456", "1,234,567"];
        assert_eq!(numbers.map(grouped), expected);
    }
}
