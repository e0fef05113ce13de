//! The steps of an import, for those who watch it.

use millpond_env::sync::Arc;
use std::fmt;

/// A callback for the steps of an import that may take long. By default there is none.
#[derive(Clone, Default)]
pub struct ImportNotes(Option<Arc<OnStep>>);

type OnStep = dyn Fn(&str) + Send + Sync;

impl ImportNotes {
    /// `each` is called before each step. It must not wait for the import.
    pub fn new(each: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(each)))
    }
    /// Reports a step that begins.
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
