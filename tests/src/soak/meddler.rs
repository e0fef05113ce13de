//! Changes datasets while the threads of a concurrent workload run.
//!
//! It takes snapshots, creates clones and writes to them, and sets properties. The files of a snapshot must
//! be the same in every read, regardless of concurrent changes, and after a power cut too.

use super::life::POOL;
use super::threads::{Files, files_of};
use crate::hostile::rng::SeededRng;
use millpond_engine::{Caller, Error, NewMode, Pool, PropertyValue, View, WriteAt};
use std::collections::BTreeMap;

/// The datasets that this thread created.
pub(super) struct Meddler {
    rng: SeededRng,
    threads: usize,
    next: u64,
    /// Its snapshots of the pool's file system, by full name, with the content of the first read.
    snapshots: BTreeMap<String, Option<Files>>,
    /// Its clones, by full name, with their snapshots.
    clones: BTreeMap<String, String>,
    /// Reads that failed because a newer txg reused the blocks.
    pub(super) overtaken: u64,
}

impl Meddler {
    /// Three of four concurrent workloads have this thread.
    pub(super) fn of(seed: u64, threads: usize) -> Option<Self> {
        (!seed.is_multiple_of(4)).then(|| Self {
            rng: SeededRng::new(seed.wrapping_mul(131).wrapping_add(7)),
            threads,
            next: 0,
            snapshots: BTreeMap::new(),
            clones: BTreeMap::new(),
            overtaken: 0,
        })
    }

    pub(super) fn work(&mut self, pool: &Pool, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            self.step(pool)?;
        }
        Ok(())
    }

    fn step(&mut self, pool: &Pool) -> Result<(), String> {
        let datasets = pool.datasets();
        let names: Vec<String> = self.snapshots.keys().cloned().collect();
        let snapshot = self.rng.pick(&names).cloned();
        let names: Vec<String> = self.clones.keys().cloned().collect();
        let clone = self.rng.pick(&names).cloned();
        let what = self.rng.below(12);
        let done = match (what, snapshot, clone) {
            (0..=2, ..) if self.snapshots.len() < 4 => {
                self.next += 1;
                let name = format!("{POOL}@m{}", self.next);
                let done = datasets.snapshot(&[&name], &[]);
                self.snapshots.insert(name, None);
                done
            }
            (3, Some(name), _) if !self.clones.values().any(|origin| *origin == name) => {
                self.snapshots.remove(&name);
                datasets.destroy_snapshots(&[&name], Default::default())
            }
            (4, Some(origin), _) if self.clones.len() < 3 => {
                self.next += 1;
                let name = format!("{POOL}/m{}", self.next);
                let done = datasets.clone_snapshot(&origin, &name, &[]);
                self.clones.insert(name, origin);
                done
            }
            (5, _, Some(name)) => {
                self.next += 1;
                let file = format!("m{}", self.next);
                return write(pool, &name, &file).map_err(|error| format!("{name}: {error}"));
            }
            (6, _, Some(name)) => {
                self.clones.remove(&name);
                datasets.destroy(&name, Default::default())
            }
            (7, _, Some(name)) => {
                self.next += 1;
                let new = format!("{POOL}/m{}", self.next);
                let done = datasets.rename(&name, &new);
                let origin = self.clones.remove(&name).unwrap_or_default();
                self.clones.insert(new, origin);
                done
            }
            (8, Some(name), _) => return self.read(pool, &name),
            _ => {
                let settings = [
                    ("sync", "standard"),
                    ("sync", "always"),
                    ("logbias", "latency"),
                    ("logbias", "throughput"),
                    ("compression", "off"),
                    ("compression", "lz4"),
                    ("checksum", "sha256"),
                    ("checksum", "on"),
                    ("copies", "2"),
                    ("copies", "1"),
                ];
                let (name, value) = *self.rng.pick(&settings).unwrap_or(&settings[0]);
                let value = PropertyValue::Text(value.to_owned());
                datasets.set_properties(POOL, &[(name.to_owned(), value)])
            }
        };
        done.map_err(|error| format!("meddling ({what}): {error}"))
    }

    /// Compares a snapshot's files with those of the first read.
    ///
    /// The committed state used for the read may be replaced by newer txgs and become unreadable, so the
    /// read is retried with a newer one a few times. Permanent read errors are found at the end.
    fn read(&mut self, pool: &Pool, name: &str) -> Result<(), String> {
        for _ in 0..4 {
            let read = pool.committed().map_err(|error| error.to_string())?;
            match files_of(&read, name, self.threads) {
                Ok(there) => return self.same(name, there),
                Err(_) => self.overtaken += 1,
            }
        }
        Ok(())
    }

    fn compare(&mut self, read: &View, name: &str) -> Result<(), String> {
        let there = files_of(read, name, self.threads)?;
        self.same(name, there)
    }

    fn same(&mut self, name: &str, there: Files) -> Result<(), String> {
        match self.snapshots.get_mut(name) {
            Some(Some(known)) if *known != there => Err(format!("{name} has changed")),
            Some(known) => {
                *known = Some(there);
                Ok(())
            }
            None => Err(format!("{name} should be gone")),
        }
    }

    /// After an export or a power cut, reads all its remaining datasets and destroys them.
    pub(super) fn clear(&mut self, pool: &Pool) -> Result<(), String> {
        let say = |error: Error| format!("after meddling: {error}");
        let read = pool.committed().map_err(say)?;
        let (mut clones, mut snapshots) = (vec![], vec![]);
        for dataset in read.datasets() {
            let dataset = dataset.map_err(say)?;
            if dataset.name() != POOL {
                files_of(&read, dataset.name(), self.threads)?;
                clones.push(dataset.name().to_owned());
            }
            for snapshot in dataset.snapshots().map_err(say)? {
                let name = snapshot.name().to_owned();
                if name.starts_with(&format!("{POOL}@m")) {
                    // A power cut may restore snapshots that were destroyed since.
                    self.snapshots.entry(name.clone()).or_default();
                    self.compare(&read, &name)?;
                    snapshots.push(name);
                }
            }
        }
        drop(read);
        let datasets = pool.datasets();
        let failed =
            |name: &str, error: &dyn std::fmt::Display| format!("destroying {name}: {error}");
        for name in clones {
            let gone = datasets.destroy(&name, Default::default());
            gone.map_err(|error| failed(&name, &error))?;
        }
        for name in snapshots {
            let gone = datasets.destroy_snapshots(&[&name], Default::default());
            gone.map_err(|error| failed(&name, &error))?;
        }
        self.snapshots.clear();
        self.clones.clear();
        Ok(())
    }
}

fn write(pool: &Pool, dataset: &str, name: &str) -> Result<(), Error> {
    let files = pool.file_system(dataset)?;
    let (root, caller) = (files.root()?, Caller::root());
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &root, name.as_bytes(), mode, true)?;
    files.write(&caller, &node, WriteAt::Offset(0), &[7; 5000])?;
    files.fsync(&node)?;
    Ok(())
}
