//! Records the operations and promises of concurrent threads.
//!
//! They serve to judge the state after a power cut.
//!
//! A thread counts its steps. Each step changes one of its files, or one name. A thread that requests
//! stable storage first records the number of steps that every thread has completed. The names of all
//! threads are in one order, so a kept promise covers all names up to that point, and the bytes of one file
//! or of all files.

use millpond_env::sync::{Arc, Mutex};
use millpond_sim::World;
use std::collections::{BTreeMap, BTreeSet};

/// Directory and name.
pub type Key = (String, String);
/// Contents of files.
pub type Files = BTreeMap<Key, Vec<u8>>;

/// The steps of one thread between two reopenings.
#[derive(Debug, Default)]
pub struct Deeds {
    /// After each step: the file that each name refers to.
    names: Vec<Arc<BTreeMap<Key, u64>>>,
    /// The content of each file, with the step from which on it applies.
    contents: BTreeMap<u64, Vec<(usize, Vec<u8>)>>,
    /// The content of the thread's stripe of the shared file, with the step from which on it applies.
    stripes: Vec<(usize, Vec<u8>)>,
    next: u64,
}

/// A promise: the number of completed steps of each thread when it was requested.
#[derive(Debug)]
struct Promise {
    /// Number of disk requests when it was kept.
    kept: usize,
    steps: Vec<usize>,
    /// The file whose bytes it covers, with its thread; `None` for all files.
    file: Option<(usize, u64)>,
}

/// The state that all threads share.
#[derive(Clone)]
pub struct Clock {
    recorded: Arc<dyn Fn() -> usize + Send + Sync>,
    steps: Arc<Mutex<Vec<usize>>>,
    promises: Arc<Mutex<Vec<Promise>>>,
}

impl Clock {
    /// Starts without steps. Promises are dated by the number of requests to this world's disks.
    #[must_use]
    pub fn new(world: &World, threads: usize) -> Self {
        let world = world.clone();
        Self {
            recorded: Arc::new(move || world.recorded()),
            steps: Arc::new(Mutex::new(vec![0; threads])),
            promises: Arc::default(),
        }
    }
    /// Records the number of completed steps of a thread.
    pub fn set(&self, thread: usize, steps: usize) {
        self.steps.lock()[thread] = steps;
    }
    /// The steps that a promise would cover now.
    pub fn aim(&self, thread: usize, steps: usize) -> Vec<usize> {
        let mut all = self.steps.lock();
        all[thread] = steps;
        all.clone()
    }
    /// Records that the promise was kept.
    pub fn keep(&self, steps: Vec<usize>, thread: Option<usize>, file: Option<u64>) {
        let kept = (self.recorded)();
        let file = thread.zip(file);
        self.promises.lock().push(Promise { kept, steps, file });
    }
    /// Number of kept promises.
    #[must_use]
    pub fn promises(&self) -> u64 {
        self.promises.lock().len() as u64
    }
    /// The earliest acceptable step of a thread's names after `count` requests.
    ///
    /// With `file`, that of its bytes.
    fn least(&self, thread: usize, count: usize, file: Option<Option<u64>>) -> usize {
        let promises = self.promises.lock();
        let kept = promises.iter().filter(|promise| {
            let is_about = match (file, promise.file) {
                (None, _) | (_, None) => true,
                (Some(file), Some((of, named))) => of == thread && file == Some(named),
            };
            promise.kept <= count && is_about
        });
        kept.map(|promise| promise.steps[thread]).max().unwrap_or(0)
    }
}

impl Deeds {
    /// Starts with these files.
    pub fn begin(files: Files, stripe: Vec<u8>) -> Self {
        let mut deeds = Self {
            stripes: vec![(0, stripe)],
            ..Self::default()
        };
        let mut names = BTreeMap::new();
        for (key, content) in files {
            names.insert(key, deeds.next);
            deeds.contents.insert(deeds.next, vec![(0, content)]);
            deeds.next += 1;
        }
        deeds.names.push(Arc::new(names));
        deeds
    }
    /// Number of completed steps.
    pub fn step(&self) -> usize {
        self.names.len().saturating_sub(1)
    }
    fn now(&self) -> Arc<BTreeMap<Key, u64>> {
        self.names.last().cloned().unwrap_or_default()
    }
    /// The number of the file with this name.
    #[must_use]
    pub fn file_number(&self, key: &Key) -> Option<u64> {
        self.now().get(key).copied()
    }
    /// Records that a file was created, changed or (`None`) removed.
    pub fn file(&mut self, key: &Key, content: Option<Vec<u8>>) {
        let mut names = self.now();
        let step = self.names.len();
        match (names.get(key).copied(), content) {
            (Some(file), Some(content)) => {
                self.contents.entry(file).or_default().push((step, content));
            }
            (None, Some(content)) => {
                Arc::make_mut(&mut names).insert(key.clone(), self.next);
                self.contents.insert(self.next, vec![(step, content)]);
                self.next += 1;
            }
            (_, None) => drop(Arc::make_mut(&mut names).remove(key)),
        }
        self.names.push(names);
    }
    /// Records that a file was renamed. An existing file with the new name is removed.
    pub fn moved(&mut self, from: &Key, to: &Key) {
        let mut names = self.now();
        let all = Arc::make_mut(&mut names);
        if let Some(file) = all.remove(from) {
            all.insert(to.clone(), file);
        }
        self.names.push(names);
    }
    /// Records a change of the thread's stripe of the shared file.
    pub fn stripe(&mut self, content: Vec<u8>) {
        self.stripes.push((self.names.len(), content));
        self.names.push(self.now());
    }

    /// Compares the content of files, given their names.
    fn fit_all(
        &self,
        thread: usize,
        names: &BTreeMap<Key, u64>,
        files: &Files,
        clock: &Clock,
        count: usize,
    ) -> Result<(), String> {
        for (key, file) in names {
            let least = clock.least(thread, count, Some(Some(*file)));
            let versions = self.contents.get(file).map_or(&[][..], Vec::as_slice);
            let content = files.get(key).map_or(&[][..], Vec::as_slice);
            fits_one(versions, least, content)
                .map_err(|text| format!("{key:?} (promised: step {least}): {text}"))?;
        }
        Ok(())
    }

    /// Compares the files of this thread with those found after a power cut that followed `count` requests.
    ///
    /// # Errors
    /// The first difference, as text.
    pub fn judge(
        &self,
        thread: usize,
        files: &Files,
        stripe: &[u8],
        clock: &Clock,
        count: usize,
    ) -> Result<(), String> {
        let least = clock.least(thread, count, None);
        let found: BTreeSet<&Key> = files.keys().collect();
        let fits =
            |names: &&Arc<BTreeMap<Key, u64>>| names.keys().collect::<BTreeSet<_>>() == found;
        // Renaming a file over another may leave the same names as before, so any step with these names is
        // acceptable.
        let mut fitting = self.names.iter().skip(least).filter(fits);
        let Some(first) = fitting.next() else {
            let wanted = self.names.get(least).map(|names| names.keys().cloned());
            let wanted: BTreeSet<Key> = wanted.into_iter().flatten().collect();
            let found: BTreeSet<Key> = files.keys().cloned().collect();
            return Err(format!(
                "names are those of no step from {least} to {}: beyond {least} there are {:?}, and lacking {:?}",
                self.step(),
                found.difference(&wanted).collect::<Vec<_>>(),
                wanted.difference(&found).collect::<Vec<_>>(),
            ));
        };
        let mut outcome = self.fit_all(thread, first, files, clock, count);
        for names in fitting {
            if outcome.is_ok() {
                break;
            }
            if self.fit_all(thread, names, files, clock, count).is_ok() {
                outcome = Ok(());
            }
        }
        outcome?;
        let least = clock.least(thread, count, Some(None));
        fits_one(&self.stripes, least, stripe)
            .map_err(|text| format!("its part of the common file (promised: step {least}): {text}"))
    }
}

/// Whether the content found is that of step `least` or a later one.
fn fits_one(versions: &[(usize, Vec<u8>)], least: usize, found: &[u8]) -> Result<(), String> {
    let first = versions.iter().rposition(|(step, _)| *step <= least);
    let may_be = &versions[first.unwrap_or(0)..];
    if may_be.iter().any(|(_, content)| content == found) {
        return Ok(());
    }
    let at = versions.iter().position(|(_, content)| content == found);
    let lengths: Vec<_> = may_be
        .iter()
        .map(|(step, content)| (step, content.len()))
        .collect();
    Err(format!(
        "{} bytes, those of version {at:?}; wanted one of {lengths:?}",
        found.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("t0".to_owned(), name.to_owned())
    }

    #[test]
    fn promised_data_is_current_and_other_data_may_be_lost() {
        let world = World::new(1);
        let clock = Clock::new(&world, 1);
        let mut deeds = Deeds::begin(Files::new(), vec![]);
        deeds.file(&key("a"), Some(vec![]));
        deeds.file(&key("a"), Some(vec![1]));
        let aim = clock.aim(0, deeds.step());
        clock.keep(aim, Some(0), deeds.file_number(&key("a")));
        deeds.file(&key("a"), Some(vec![2]));
        deeds.file(&key("b"), Some(vec![3]));
        let judge = |files: &[(&str, u8)]| {
            let files = files.iter().map(|(name, byte)| (key(name), vec![*byte]));
            deeds.judge(0, &files.collect(), &[], &clock, 0).is_ok()
        };
        assert!(judge(&[("a", 1)]) && judge(&[("a", 2)]));
        assert!(judge(&[("a", 2), ("b", 3)]) && judge(&[("a", 1), ("b", 3)]));
        assert!(!judge(&[]) && !judge(&[("b", 3)]) && !judge(&[("a", 0)]));
    }
}
