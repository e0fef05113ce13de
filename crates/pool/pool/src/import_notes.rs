//! Tells what an import is doing.

use millpond_env::sync::Arc;
use std::fmt;

/// Is told each step of an import that may take long, before it begins. The default tells nobody.
#[derive(Clone, Default)]
pub struct ImportNotes(Option<Arc<OnStep>>);

type OnStep = dyn Fn(&str) + Send + Sync;

impl ImportNotes {
    /// Calls `each` with each step. It must not wait for the import.
    pub fn new(each: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(each)))
    }
    /// Tells a step.
    pub fn note(&self, step: &str) {
        if let Some(each) = &self.0 {
            each(step);
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
