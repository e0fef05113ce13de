//! Compares a pool with its record.

use crate::calendar;
use crate::images::hex;
use crate::properties;
use crate::reader::{DatasetKind, PoolReader, ReadError};
use crate::record::{Dataset, Record, Volume};
use crate::tree;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Findings {
    /// Differences from the record; empty if there are none. At most [`DIFFERENCES_MAX`] are kept.
    pub differences: Vec<String>,
    /// The total number of differences.
    pub differences_count: usize,
    /// The number of differences that are wrong data instead of errors.
    ///
    /// Wrong data must never occur, regardless of the damage.
    pub wrong_count: usize,
    /// Parts of the record that the reader cannot query and that were not compared.
    pub not_compared: BTreeSet<&'static str>,
    /// Number of files compared.
    pub files: u64,
    /// Number of expected errors that occurred.
    pub expected_errors: u64,
}

impl Findings {
    /// Records a difference.
    pub fn differs(&mut self, place: &str, what: &str) {
        self.wrong_count += 1;
        self.keep(place, what);
    }

    fn keep(&mut self, place: &str, what: &str) {
        self.differences_count += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(format!("{place} {what}"));
        }
    }

    /// Records that something could not be read.
    ///
    /// This is a difference unless the reader does not support the query.
    pub fn failed(&mut self, place: &str, what: &str, error: ReadError) {
        match error {
            ReadError::NotOffered(what) => {
                self.not_compared.insert(what);
            }
            error => self.keep(place, &format!("does not give {what}: {error}")),
        }
    }
}

/// Permitted differences from a case's record.
#[derive(Debug, Clone, Default)]
pub struct Leeway {
    /// Paths (in any dataset) whose content and times may differ.
    pub may_differ: BTreeSet<Vec<u8>>,
}

/// Compares everything in the record.
pub fn compare(pool: &mut dyn PoolReader, record: &Record, leeway: &Leeway) -> Findings {
    let mut findings = Findings::default();
    match pool.name() {
        Ok(name) if name != record.pool => {
            findings.differs("the pool", &format!("is named {name}"))
        }
        Ok(_) => {}
        Err(error) => findings.failed("the pool", "its name", error),
    }
    match pool.pool_properties() {
        Ok(found) => {
            for difference in properties::of_pool(&record.pool_properties, &found) {
                findings.differs("the pool:", &difference);
            }
        }
        Err(error) => findings.failed("the pool", "its properties", error),
    }
    compare_history(pool, record, &mut findings);
    let found = match pool.datasets() {
        Ok(found) => found,
        Err(error) => {
            findings.failed("the pool", "its datasets", error);
            return findings;
        }
    };
    let mut found: BTreeMap<String, DatasetKind> = found.into_iter().collect();
    for dataset in &record.datasets {
        match found.remove(&dataset.name) {
            Some(kind) if kind == dataset.kind => {
                compare_dataset(pool, record, dataset, leeway, &mut findings);
            }
            Some(kind) => findings.differs(&dataset.name, &format!("is a {kind:?}")),
            None => findings.differs(&dataset.name, "is missing"),
        }
    }
    for name in found.keys() {
        findings.differs(name, "should not be listed");
    }
    findings
}

fn compare_history(pool: &mut dyn PoolReader, record: &Record, findings: &mut Findings) {
    match pool.history() {
        // The record was taken before the export, which adds a line of its own.
        Ok(found) => {
            let differs = record.history.iter().zip(&found).position(|(a, b)| a != b);
            if found.len() < record.history.len() {
                findings.differs("the history", &format!("has {} lines only", found.len()));
            } else if let Some(line) = differs {
                findings.differs("the history", &format!("differs in line {}", line + 1));
            }
        }
        Err(error) => findings.failed("the pool", "its history", error),
    }
}

fn compare_dataset(
    pool: &mut dyn PoolReader,
    record: &Record,
    dataset: &Dataset,
    leeway: &Leeway,
    findings: &mut Findings,
) {
    let name = dataset.name.as_str();
    let extensible = record.pool_properties.get("feature@extensible_dataset");
    // A record without pool properties does not exempt anything.
    let is_extensible = record.pool_properties.is_empty()
        || extensible.is_some_and(|(value, _)| value == "active" || value == "enabled");
    match pool.properties(name) {
        Ok(found) => {
            for difference in properties::of_dataset(&dataset.properties, &found, is_extensible) {
                findings.differs(&format!("{name}:"), &difference);
            }
        }
        Err(error) => findings.failed(name, "its properties", error),
    }
    if let Some(recorded) = &dataset.holds {
        match pool.holds(name) {
            Ok(holds) => {
                let found: BTreeSet<(String, String)> = holds
                    .into_iter()
                    .map(|hold| (hold.tag, calendar::to_the_minute(hold.placed_s)))
                    .collect();
                if found != *recorded {
                    findings.differs(name, &format!("has the holds {found:?}, not {recorded:?}"));
                }
            }
            Err(error) => findings.failed(name, "its holds", error),
        }
    }
    for (of, recorded) in &dataset.space {
        match pool.space(name, *of) {
            Ok(mut found) => {
                found.sort();
                let mut recorded = recorded.clone();
                recorded.sort();
                if found != recorded {
                    findings.differs(
                        name,
                        &format!("has space of {of:?} {found:?}, not {recorded:?}"),
                    );
                }
            }
            Err(error) => findings.failed(name, "its space by owner", error),
        }
    }
    if let Some(volume) = &dataset.volume {
        compare_volume(pool, name, volume, &dataset.properties, findings);
    }
    if let Some(entries) = &dataset.tree {
        let below = below_the_pool(name);
        let is_lost = |path: &[u8]| {
            let full = [below.as_bytes(), path].concat();
            record.lost.contains(&full)
        };
        let may_differ = |path: &[u8]| leeway.may_differ.contains(path);
        let expected = tree::Expected {
            dataset: name,
            entries,
            is_lost: &is_lost,
            may_differ: &may_differ,
        };
        tree::compare(pool, &expected, findings);
    }
}

/// Turns `pool/a/b@s` into the prefix of paths below the pool's mount point: `a/b/`.
fn below_the_pool(dataset: &str) -> String {
    let file_system = dataset.split('@').next().unwrap_or(dataset);
    file_system
        .split_once('/')
        .map_or(String::new(), |(_, below)| format!("{below}/"))
}

fn compare_volume(
    pool: &mut dyn PoolReader,
    name: &str,
    recorded: &Volume,
    properties: &crate::reader::Properties,
    findings: &mut Findings,
) {
    let size = match pool.volume_size(name) {
        Ok(size) => size,
        Err(error) => return findings.failed(name, "its size", error),
    };
    if let Some((recorded, _)) = properties.get("volsize")
        && recorded.parse() != Ok(size)
    {
        findings.differs(name, &format!("has {size} bytes, not {recorded}"));
    }
    let ranges = match recorded {
        Volume::Whole(digest) => vec![(0, size, digest)],
        Volume::Samples(samples) => samples
            .iter()
            .map(|(offset, digest)| (*offset, SAMPLE_BYTES, digest))
            .collect(),
    };
    let mut buffer = vec![0; 1 << 20];
    for (start, length, recorded) in ranges {
        let mut digest = Sha256::new();
        let mut done = 0;
        while done < length {
            let count = (length - done).min(buffer.len() as u64) as usize;
            if let Err(error) = pool.read_volume(name, start + done, &mut buffer[..count]) {
                return findings.failed(name, &format!("its bytes at {}", start + done), error);
            }
            digest.update(&buffer[..count]);
            done += count as u64;
        }
        let found = hex(&digest.finalize());
        if found != *recorded {
            findings.differs(
                name,
                &format!("has content {found} at {start}, not {recorded}"),
            );
        }
    }
}

/// Differences beyond this number are only counted.
pub const DIFFERENCES_MAX: usize = 40;
const SAMPLE_BYTES: u64 = 65_536;

#[cfg(test)]
mod tests;
