//! Measurements: one number of one row, as lines of `row TAB unit TAB value`.

use anyhow::{Context, Result};

/// What a measurement counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Millions of bytes per second.
    Megabytes,
    /// Operations per second.
    PerSecond,
    /// A latency in milliseconds.
    Milliseconds,
    /// CPU seconds of the machine for 10⁹ bytes.
    CpuPerGigabyte,
    /// CPU seconds of the machine for 1,000 operations.
    CpuPerThousand,
    /// The most memory of the server, in MiB.
    PeakMemory,
    /// The row could not be measured; its name says why.
    Missing,
}

/// Units, their words in lines and tables, and the decimals of tables.
const WORDS: [(Unit, &str, usize); 7] = [
    (Unit::Megabytes, "MB/s", 0),
    (Unit::PerSecond, "/s", 0),
    (Unit::Milliseconds, "ms", 3),
    (Unit::CpuPerGigabyte, "s/GB", 2),
    (Unit::CpuPerThousand, "s/1000", 3),
    (Unit::PeakMemory, "MiB", 0),
    (Unit::Missing, "missing", 0),
];

impl Unit {
    /// The word in lines and tables.
    pub fn word(self) -> &'static str {
        self.entry().1
    }
    /// The number of decimals in tables.
    pub fn decimals(self) -> usize {
        self.entry().2
    }
    /// Whether the measurement says what a row costs, not how fast it is.
    pub fn is_cost(self) -> bool {
        matches!(
            self,
            Self::CpuPerGigabyte | Self::CpuPerThousand | Self::PeakMemory
        )
    }
    /// Whether the smaller of two measurements is the better one.
    pub fn less_is_better(self) -> bool {
        self.is_cost() || self == Self::Milliseconds
    }
    fn entry(self) -> (Self, &'static str, usize) {
        let found = WORDS.into_iter().find(|(unit, ..)| *unit == self);
        found.unwrap_or((self, "", 0))
    }
    /// Parses the word of a line.
    pub fn parse(word: &str) -> Result<Self> {
        let found = WORDS.into_iter().find(|(_, known, _)| *known == word);
        Ok(found.with_context(|| format!("{word:?} is no unit"))?.0)
    }
}

/// Prints a measurement.
pub fn print(row: &str, unit: Unit, value: f64) {
    println!("{row}\t{}\t{value:.6}", unit.word());
}
