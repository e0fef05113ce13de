//! The steps of an import, for those who watch it.

use millpond_env::sync::Arc;
use std::fmt;

/// What an import reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportNote<'a> {
    /// A step begins. Nothing of it is done yet.
    Step(&'a str),
    /// This much of the step is done.
    Done {
        /// Records of a log, for example.
        done: u64,
        /// How many there are.
        total: u64,
    },
}

/// A callback for the steps of an import that may take long. By default there is none.
#[derive(Clone, Default)]
pub struct ImportNotes(Option<Arc<OnNote>>);

type OnNote = dyn Fn(ImportNote<'_>) + Send + Sync;

impl ImportNotes {
    /// `each` is called before each step, and often during some. It must not wait for the import.
    pub fn new(each: impl Fn(ImportNote<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(each)))
    }
    /// Reports a step that begins.
    pub fn note(&self, step: &str) {
        if let Some(each) = &self.0 {
            each(ImportNote::Step(step));
        }
    }
    /// Reports how much of the step is done.
    pub fn done(&self, done: u64, total: u64) {
        if let Some(each) = &self.0 {
            each(ImportNote::Done { done, total });
        }
    }
}

impl fmt::Debug for ImportNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImportNotes")
            .field(&self.0.is_some())
            .finish()
    }
}
