//! The promises of a pool's intent logs, and their permitted content after a power cut.
//!
//! A log contains the committed changes and all ordered changes before them. For each dataset this is a
//! list of effects in the order in which their records are written. After a power cut a prefix of that list
//! is present in addition to the last committed txg: at least up to the last promise kept before the cut,
//! at most up to a promise that was being kept at that moment.

use crate::workload::{Content, Deed, Effect, Model};
use millpond_env::sync::Arc;
use std::collections::BTreeMap;

/// An effect with its position among all changes of the pool.
#[derive(Debug, Clone)]
pub(super) struct Done {
    pub(super) number: u64,
    pub(super) dataset: Arc<str>,
    pub(super) effect: Arc<Effect>,
}

/// A promise.
#[derive(Debug, Clone, Copy)]
struct Commit {
    /// Number of disk requests before it was requested.
    began: usize,
    /// Number of disk requests when it was kept; `None` if it was not.
    kept: Option<usize>,
    /// Number of ordered effects that it covers.
    length: usize,
}

#[derive(Debug, Clone, Default)]
struct Log {
    ordered: Vec<Done>,
    of_objects: BTreeMap<u64, Vec<Done>>,
    commits: Vec<Commit>,
}

/// The logs of all datasets.
#[derive(Debug, Clone, Default)]
pub(super) struct Logs(BTreeMap<Arc<str>, Log>);

/// The required content of a dataset in addition to a committed txg.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) dataset: Arc<str>,
    /// Effects that must be present, in this order.
    pub(super) kept: Vec<Arc<Effect>>,
    /// Effects of which a prefix may be present too.
    pub(super) maybe: Vec<Arc<Effect>>,
}

impl Logs {
    /// Records an effect with its number.
    pub(super) fn append(&mut self, done: Done) {
        let log = self.0.entry(Arc::clone(&done.dataset)).or_default();
        match done.effect.object() {
            Some(object) => log.of_objects.entry(object).or_default().push(done),
            None => log.ordered.push(done),
        }
    }

    /// Records another event of a dataset's log.
    ///
    /// A promise was requested after `began` requests and kept after `kept`.
    pub(super) fn note(&mut self, dataset: &str, deed: &Deed, began: usize, kept: Option<usize>) {
        let log = self.0.entry(dataset.into()).or_default();
        match deed {
            Deed::Effect(_) => {}
            Deed::Promote(object) => log.promote(*object),
            Deed::Commit { files, is_all } => {
                files.iter().for_each(|file| log.promote(*file));
                if *is_all {
                    let objects: Vec<u64> = log.of_objects.keys().copied().collect();
                    objects.iter().for_each(|object| log.promote(*object));
                }
                log.commits.push(Commit {
                    began,
                    kept,
                    length: log.ordered.len(),
                });
            }
        }
    }

    /// Records that the disks' journal was cleared: earlier promises are final.
    ///
    /// Effects below number `from` are in every txg that may be found.
    pub(super) fn forget(&mut self, from: u64) {
        for log in self.0.values_mut() {
            let last = log
                .commits
                .iter()
                .rev()
                .find(|commit| commit.kept.is_some());
            let length = last.map_or(0, |commit| commit.length);
            let still = |done: &Done| done.number >= from;
            let left = log.ordered[..length].iter().filter(|done| still(done));
            let commit = Commit {
                began: 0,
                kept: Some(0),
                length: left.count(),
            };
            log.commits = vec![commit];
            log.ordered.retain(still);
            for of_object in log.of_objects.values_mut() {
                of_object.retain(still);
            }
            log.of_objects.retain(|_, all| !all.is_empty());
        }
        self.0
            .retain(|_, log| !log.ordered.is_empty() || !log.of_objects.is_empty());
    }

    /// The required content after a power cut that followed `count` requests.
    ///
    /// The txg found contains all effects below number `from`.
    pub(super) fn after(&self, from: u64, count: usize) -> Vec<Wanted> {
        let mut all = vec![];
        for (dataset, log) in &self.0 {
            let length = |which: &dyn Fn(&Commit) -> bool| {
                let commits = log.commits.iter().filter(|commit| which(commit));
                commits.map(|commit| commit.length).max().unwrap_or(0)
            };
            let kept = length(&|commit| commit.kept.is_some_and(|at| at <= count));
            let begun = length(&|commit| commit.began <= count).max(kept);
            let effects = |range: &[Done]| -> Vec<Arc<Effect>> {
                let later = range.iter().filter(|done| done.number >= from);
                later.map(|done| Arc::clone(&done.effect)).collect()
            };
            let wanted = Wanted {
                dataset: Arc::clone(dataset),
                kept: effects(&log.ordered[..kept]),
                maybe: effects(&log.ordered[kept..begun]),
            };
            if !wanted.kept.is_empty() || !wanted.maybe.is_empty() {
                all.push(wanted);
            }
        }
        all
    }
}

impl Log {
    fn promote(&mut self, object: u64) {
        self.ordered
            .extend(self.of_objects.remove(&object).unwrap_or_default());
    }
}

impl Wanted {
    /// Finds the content that is present among the permitted ones, tried in order with `is_it`.
    ///
    /// A long write takes several records; `shared` returns how many of its bytes are present after a
    /// content. Returns the content found, and the number of its effects beyond the promises.
    pub(super) fn find(
        &self,
        base: &Model,
        mut is_it: impl FnMut(&Content) -> Result<(), String>,
        mut shared: impl FnMut(&Content, &Effect) -> Option<usize>,
    ) -> Result<(Content, usize), String> {
        let head = base.heads.get(&*self.dataset);
        let mut content = head
            .map(|head| head.content.clone())
            .ok_or_else(|| format!("{}: has a log, but is not there", self.dataset))?;
        for effect in &self.kept {
            effect.apply(&mut content);
        }
        let promised = match is_it(&content) {
            Ok(()) => return Ok((content, 0)),
            Err(text) => text,
        };
        for (number, effect) in self.maybe.iter().enumerate() {
            if effect.range().is_some()
                && let Some(length) = shared(&content, effect)
                && let Some(part) = effect.first_bytes(length)
            {
                let mut torn = content.clone();
                part.apply(&mut torn);
                if is_it(&torn).is_ok() {
                    return Ok((torn, number));
                }
            }
            effect.apply(&mut content);
            if is_it(&content).is_ok() {
                return Ok((content, number + 1));
            }
        }
        Err(format!(
            "{}: what was promised is not there ({} effects behind the txg, {} more may be): {promised}",
            self.dataset,
            self.kept.len(),
            self.maybe.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(id: u64, byte: u8) -> Arc<Effect> {
        Arc::new(Effect::Bytes {
            id,
            at: 0,
            bytes: Arc::new(vec![byte]),
        })
    }
    fn linked(name: &[u8]) -> Arc<Effect> {
        Arc::new(Effect::Linked {
            directory: 0,
            name: name.to_vec(),
            id: 1,
        })
    }
    fn all() -> Deed {
        Deed::Commit {
            files: vec![],
            is_all: true,
        }
    }
    fn logs(effects: &[(u64, Arc<Effect>)]) -> Logs {
        let mut logs = Logs::default();
        for (number, effect) in effects {
            logs.append(Done {
                number: *number,
                dataset: "tank".into(),
                effect: Arc::clone(effect),
            });
        }
        logs
    }

    #[test]
    fn a_promise_takes_names_and_one_file_and_leaves_other_files() {
        let mut logs = logs(&[(1, bytes(7, 1)), (2, linked(b"a")), (3, bytes(8, 2))]);
        let seven = Deed::Commit {
            files: vec![7],
            is_all: false,
        };
        logs.note("tank", &seven, 10, Some(12));
        let wanted = |count| logs.after(0, count).pop();
        assert!(wanted(9).is_none());
        let torn = wanted(11).unwrap();
        assert!(torn.kept.is_empty());
        assert_eq!(torn.maybe, [linked(b"a"), bytes(7, 1)]);
        let kept = wanted(12).unwrap();
        assert_eq!(kept.kept, [linked(b"a"), bytes(7, 1)]);
        assert!(kept.maybe.is_empty());
        // Effects in the txg no longer concern the log.
        assert_eq!(logs.after(2, 12).pop().unwrap().kept, [linked(b"a")]);
    }

    #[test]
    fn forgotten_handles_keep_their_promises() {
        let mut logs = logs(&[(1, linked(b"a")), (2, linked(b"b"))]);
        logs.note("tank", &all(), 10, Some(12));
        logs.append(Done {
            number: 3,
            dataset: "tank".into(),
            effect: linked(b"c"),
        });
        logs.forget(2);
        assert_eq!(logs.after(0, 0).pop().unwrap().kept, [linked(b"b")]);
        logs.note("tank", &all(), 1, None);
        assert_eq!(logs.after(0, 5).pop().unwrap().maybe, [linked(b"c")]);
    }
}
