//! Compares a snapshot with a newer state of its file system.

use crate::send::steps::is_earlier;
use crate::{Error, View};
use millpond_dataset::Dataset;
use millpond_diff::{DiffError, Difference, Flow, differences};

impl View {
    /// Calls `each` with every file that changed from a snapshot to a newer state: a snapshot of the same file system
    /// or of a clone, or the head of one as this view has it. See [`differences`].
    ///
    /// # Errors
    /// If one of the names does not exist; [`DiffError::NotEarlier`]; if a file system is locked or cannot be read, or the
    /// view expires meanwhile.
    pub fn diff(
        &self,
        from: &str,
        to: &str,
        each: &mut dyn FnMut(Difference) -> Flow,
    ) -> Result<(), Error> {
        let old = Dataset::find(self.inner(), from)?;
        let new = Dataset::find(self.inner(), to)?;
        let is_older = old.is_snapshot()
            && old.id() != new.id()
            && is_earlier(&new, &old, old.phys().creation_txg)?;
        if !is_older {
            return Err(DiffError::NotEarlier.into());
        }
        let (old, new) = (self.dataset_by_id(old.id())?, self.dataset_by_id(new.id())?);
        if old.is_locked()? || new.is_locked()? {
            return Err(DiffError::Locked.into());
        }
        let (old, new) = (old.file_system()?, new.file_system()?);
        let done = differences(&old, &new, each);
        // What was read after the view expired may be of other blocks.
        self.inner().check_not_expired()?;
        Ok(done?)
    }
}
