//! What imports are doing, for others to see.

use millpond_control::ImportProgress;
use millpond_env::Env;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_pool::{ImportNote, ImportNotes};
use std::collections::BTreeMap;

const SECOND_NS: u64 = 1_000_000_000;

/// The imports that have not ended.
#[derive(Debug, Default)]
pub(super) struct Importing(Mutex<Table, rank::Leaf>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    imports: BTreeMap<u64, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    progress: ImportProgress,
    /// Until when the pool is watched, on the monotonic clock.
    watched_until_ns: u64,
}

/// One import. It has ended when this is dropped.
#[derive(Debug)]
pub struct OneImport {
    all: Arc<Importing>,
    number: u64,
}

impl Importing {
    /// Begins an import of the pool that this word names.
    pub(super) fn begin(self: &Arc<Self>, word: &str, max_txg: u64) -> OneImport {
        let mut table = self.0.lock();
        let number = table.next;
        table.next += 1;
        let progress = ImportProgress {
            pool_name: word.to_owned(),
            max_txg,
            ..ImportProgress::default()
        };
        let entry = Entry {
            progress,
            watched_until_ns: 0,
        };
        table.imports.insert(number, entry);
        OneImport {
            all: Arc::clone(self),
            number,
        }
    }

    /// The imports in the order in which they began.
    pub(super) fn list(&self, env: &Env) -> Vec<ImportProgress> {
        let now_ns = env.clock.monotonic_ns();
        let table = self.0.lock();
        let entries = table.imports.values();
        entries
            .map(|entry| ImportProgress {
                multihost_s: (entry.watched_until_ns.saturating_sub(now_ns)).div_ceil(SECOND_NS),
                ..entry.progress.clone()
            })
            .collect()
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.lock().imports.get_mut(&number) {
            change(entry);
        }
    }
}

impl OneImport {
    /// The pool was found.
    pub(super) fn found(&self, guid: u64, name: &str) {
        self.all.change(self.number, |entry| {
            entry.progress.pool_guid = guid;
            name.clone_into(&mut entry.progress.pool_name);
        });
    }
    /// The next step begins. The pool is not watched any more.
    pub fn note(&self, step: &str) {
        note(&self.all, self.number, ImportNote::Step(step));
    }
    /// This much of the step is done.
    pub fn done(&self, done: u64, total: u64) {
        note(&self.all, self.number, ImportNote::Done { done, total });
    }
    /// The pool is watched for this long.
    pub(super) fn watch(&self, env: &Env, duration_ns: u64) {
        let end_ns = env.clock.monotonic_ns().saturating_add(duration_ns);
        self.note("Checking for activity of another system");
        (self.all).change(self.number, |entry| entry.watched_until_ns = end_ns);
    }
    /// Notes the steps that the pool tells.
    pub(super) fn notes(&self) -> ImportNotes {
        let (all, number) = (Arc::clone(&self.all), self.number);
        ImportNotes::new(move |what| note(&all, number, what))
    }
}

fn note(all: &Importing, number: u64, what: ImportNote<'_>) {
    all.change(number, |entry| match what {
        ImportNote::Step(step) => {
            step.clone_into(&mut entry.progress.notes);
            (entry.progress.done, entry.progress.total) = (0, 0);
            entry.watched_until_ns = 0;
        }
        ImportNote::Done { done, total } => {
            (entry.progress.done, entry.progress.total) = (done, total);
        }
    });
}

impl Drop for OneImport {
    fn drop(&mut self) {
        self.all.0.lock().imports.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_is_listed_with_its_step_until_it_ends() {
        let (env, all) = (Env::real(), Arc::new(Importing::default()));
        assert_eq!(all.list(&env), []);
        let one = all.begin("tank", 7);
        let other = all.begin("other", 0);
        one.note("Searching");
        one.found(5, "tank");
        one.watch(&env, 3600 * SECOND_NS);
        let listed = all.list(&env);
        assert_eq!(listed.len(), 2);
        assert_eq!((listed[0].pool_guid, listed[0].max_txg), (5, 7));
        assert!((3500..=3600).contains(&listed[0].multihost_s));
        one.notes().note("Replaying");
        let listed = all.list(&env);
        assert_eq!(
            (listed[0].notes.as_str(), listed[0].multihost_s),
            ("Replaying", 0)
        );
        one.notes().done(3, 9);
        let listed = all.list(&env);
        assert_eq!((listed[0].done, listed[0].total), (3, 9));
        one.note("Mounting");
        assert_eq!(all.list(&env)[0].total, 0);
        drop(one);
        assert_eq!(all.list(&env)[0].pool_name, "other");
        drop(other);
        assert_eq!(all.list(&env), []);
    }
}
