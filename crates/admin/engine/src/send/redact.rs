//! Makes redaction bookmarks.

use super::steps::is_earlier;
use crate::{Error, Pool};
use millpond_dataset::{Dataset, NewRedaction};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_send::{SendError, changed_blocks, changed_in_all};

impl Pool {
    /// Makes a redaction bookmark of a snapshot: it lists the blocks that all of the given snapshots have changed.
    ///
    /// All names are full ones. The snapshots are of clones of the first one.
    ///
    /// # Errors
    /// [`SendError::NotOfClone`], [`SendError::Locked`]; [`Error::Dataset`] if a name is wrong, the bookmark exists, the
    /// pool lacks a feature, or the list would be too long.
    pub fn redact(
        &self,
        snapshot: &str,
        bookmark: &str,
        redacted_for: &[String],
    ) -> Result<(), Error> {
        let view = self.committed()?;
        let base = Dataset::find(view.inner(), snapshot)?;
        let mut new = NewRedaction {
            snapshot: snapshot.to_owned(),
            guid: base.guid(),
            bookmark: bookmark.to_owned(),
            ..NewRedaction::default()
        };
        let mut clones = vec![];
        for name in redacted_for {
            let clone = Dataset::find(view.inner(), name)?;
            let owner = match base.directory().head()? {
                Some(head) => head,
                None => base.clone(),
            };
            let created = base.phys().creation_txg;
            let is_own = clone.directory().id() == base.directory().id();
            if !clone.is_snapshot() || is_own || !is_earlier(&clone, &owner, created)? {
                return Err(SendError::NotOfClone(name.clone(), snapshot.to_owned()).into());
            }
            new.redacted_for.push(clone.guid());
            clones.push(clone);
        }
        self.datasets().check_redaction_bookmark(&new)?;
        // None of them may be destroyed while it is read.
        let mut in_use = vec![];
        for dataset in std::iter::once(&base).chain(&clones) {
            let used = self.datasets().use_snapshot(dataset.id())?;
            in_use.push(used.ok_or(SendError::Expired)?);
        }
        let open = |dataset: &Dataset| -> Result<Arc<ObjectSetView>, Error> {
            if view.dataset_by_id(dataset.id())?.is_locked()? {
                return Err(SendError::Locked.into());
            }
            let key = view.key_of(dataset.directory())?;
            let store = Arc::clone(self.inner().store());
            let (id, root) = (dataset.id().0, dataset.phys().block_pointer);
            Ok(ObjectSetView::open(store, id, root, key).map_err(SendError::from)?)
        };
        let older = open(&base)?;
        let later: Vec<_> = clones.iter().map(open).collect::<Result<_, _>>()?;
        let created = base.phys().creation_txg;
        let lists = later.iter();
        new.entries = changed_in_all(lists.map(|later| changed_blocks(&older, created, later)))?;
        self.datasets().create_redaction_bookmark(&new)?;
        drop(in_use);
        Ok(())
    }
}
