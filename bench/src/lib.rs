//! Shared parts of the benchmarks: reproducible random numbers, and the format of results.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

pub mod files;
pub mod large;
pub mod plain;
pub mod plot;
pub mod rows;

/// What `above` is of `below` in each round that both have: other load affects both values of a round.
#[must_use]
pub fn ratios(above: &BTreeMap<u32, f64>, below: &BTreeMap<u32, f64>) -> Vec<f64> {
    let pairs = above
        .iter()
        .filter_map(|(round, above)| Some(above / below.get(round)?));
    pairs.filter(|ratio| ratio.is_finite()).collect()
}

/// An xorshift generator: the same numbers for every contender, also used for incompressible data.
#[derive(Debug)]
pub struct SeededRng(pub u64);

impl SeededRng {
    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// Returns `count` incompressible bytes.
    ///
    /// With `compressible`, every second block of 64 bytes is zeros.
    pub fn bytes(&mut self, count: usize, compressible: bool) -> Vec<u8> {
        let words = (0..count / 8).map(|word| match compressible && word % 16 >= 8 {
            true => 0,
            false => self.roll(),
        });
        words.flat_map(u64::to_le_bytes).collect()
    }
}

/// Median, minimum and maximum; `None` without values.
#[must_use]
pub fn spread(mut values: Vec<f64>, decimals: usize) -> Option<String> {
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    let median = f64::midpoint(lower, upper);
    Some(format!(
        "{median:.decimals$} ({least:.decimals$}–{most:.decimals$})"
    ))
}

/// Bytes that compress to about half, like source code and logs.
#[must_use]
pub fn text_like(length: usize) -> Vec<u8> {
    let mut rng = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        let word = WORDS[(rng % 13) as usize % WORDS.len()];
        bytes.extend_from_slice(word.as_bytes());
        bytes.extend_from_slice(format!("{:x}", rng >> 52).as_bytes());
    }
    bytes.truncate(length);
    bytes
}

const WORDS: [&str; 8] = [
    "pool ",
    "dataset ",
    "let mut ",
    "\n    ",
    "return ",
    "snapshot",
    "0x",
    "block pointer ",
];
