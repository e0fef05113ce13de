//! Operations on the datasets of a pool. Each call returns when its change is on stable storage. A refused
//! call changes nothing.

use crate::datasets::Datasets;
use crate::properties::PropertyValue;
use crate::tasks::checks::{inheritable, split_snapshot};
use crate::tasks::context::SyncTaskContext;
use crate::{Creator, DatasetError, DatasetName, NameTail, Refusal};
use millpond_pool::PoolError;

/// Properties and values to set on a new or existing dataset. Values of indexed properties may be words or
/// numbers; sizes are in bytes.
pub type PropertyChanges = [(String, PropertyValue)];

/// Options for destroying datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DestroyOptions {
    /// If the snapshot has holds or clones, destroy it when the last of them is gone.
    pub defer: bool,
}

/// The most datasets created or destroyed in one txg; bounds dirty data.
pub(super) const CHANGED_HEADS_MAX: usize = 512;

impl Datasets {
    /// Takes snapshots atomically in one txg.
    ///
    /// `names` are full names. All snapshots get the given user properties.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::SameDatasetTwice`], limits and space.
    pub fn snapshot(
        &self,
        names: &[&str],
        user_properties: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        self.snapshot_by(names, user_properties, None)
    }

    /// Takes snapshots like [`Datasets::snapshot`]. `creator` is the user who does so, if not the superuser.
    ///
    /// # Errors
    /// As for [`Datasets::snapshot`].
    pub fn snapshot_by(
        &self,
        names: &[&str],
        user_properties: &PropertyChanges,
        creator: Option<&Creator>,
    ) -> Result<(), DatasetError> {
        // A head whose latest snapshot was created in the txg being written must wait for the next txg.
        for _ in 0..4 {
            let outcome = self.task(
                |s| s.check_snapshots(names, user_properties, creator),
                |s, plan| {
                    let Some(plan) = plan else { return Ok(false) };
                    s.take_snapshots(&plan, user_properties)?;
                    Ok(true)
                },
            )?;
            if outcome {
                return Ok(());
            }
        }
        Err(Refusal::error(
            names.first().copied().unwrap_or(""),
            Refusal::Busy,
        ))
    }

    /// The full names of a dataset and its descendants that are visible to users.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; if a table cannot be read.
    pub fn names_below(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let pool = self.pool()?;
        let view = crate::mos::MosView { pool: &pool };
        let _names = self.names.read();
        let head = view.find_head(name)?;
        let all = view.directories_below(name, head.directory)?;
        let shown = all.into_iter().filter(|(name, _)| !name.contains('%'));
        Ok(shown.map(|(name, _)| name).collect())
    }

    /// Takes a snapshot of a dataset and all its descendants, in one txg.
    ///
    /// # Errors
    /// As for [`Datasets::snapshot`].
    pub fn snapshot_recursively(&self, full_name: &str) -> Result<(), DatasetError> {
        let (path, name) = split_snapshot(full_name)?;
        let names: Vec<String> = self
            .names_below(path)?
            .into_iter()
            .map(|dataset| format!("{dataset}@{name}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.snapshot(&names, &[])
    }

    /// Destroys a file system, volume, snapshot or bookmark.
    ///
    /// A file system or volume must have neither children nor snapshots, and must not be open. Its space is
    /// freed in the background.
    ///
    /// # Errors
    /// The reason why it cannot be destroyed.
    pub fn destroy(&self, name: &str, options: DestroyOptions) -> Result<(), DatasetError> {
        match DatasetName::parse(name)?.tail {
            NameTail::Snapshot(_) => self.destroy_snapshots(&[name], options),
            NameTail::Bookmark(_) => self.destroy_bookmarks(&[name]),
            NameTail::Head => self.destroy_dataset(name),
        }
    }

    pub(crate) fn destroy_dataset(&self, name: &str) -> Result<(), DatasetError> {
        self.task(
            |s| s.close_to_destroy(name),
            |s, closed| s.destroy_closed(closed),
        )
    }

    /// Destroys file systems and volumes in order, like [`Datasets::destroy`], but many per txg to
    /// reduce waiting. Descendants must come first.
    ///
    /// # Errors
    /// As for a single one, for the first that is refused. The earlier ones are then destroyed.
    pub fn destroy_datasets(&self, names: &[&str]) -> Result<(), DatasetError> {
        self.one_by_one(
            names,
            |s, name| s.close_to_destroy(name),
            |s, _, closed| s.destroy_closed(closed),
        )
    }

    /// Applies an operation to one dataset after the other, many per txg, until one is refused.
    pub(super) fn one_by_one<P>(
        &self,
        names: &[&str],
        check: impl Fn(&SyncTaskContext<'_>, &str) -> Result<P, DatasetError> + Send + Sync,
        apply: impl Fn(&SyncTaskContext<'_>, &str, P) -> Result<(), PoolError> + Send + Sync,
    ) -> Result<(), DatasetError> {
        for names in names.chunks(CHANGED_HEADS_MAX) {
            let refused = self.task(
                |_| Ok(()),
                |s, ()| {
                    for name in names {
                        match check(s, name) {
                            Ok(plan) => apply(s, name, plan)?,
                            // Return `Ok`, so that the txg does not fail: it contains changes of other
                            // datasets.
                            Err(refusal) => return Ok(Some(refusal)),
                        }
                    }
                    Ok(None)
                },
            )?;
            if let Some(refusal) = refused {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Destroys snapshots atomically.
    ///
    /// # Errors
    /// [`Refusal::HasClones`], [`Refusal::IsHeld`] (without `defer`).
    pub fn destroy_snapshots(
        &self,
        names: &[&str],
        options: DestroyOptions,
    ) -> Result<(), DatasetError> {
        let destroying = self.destroying.begin(names.len());
        self.task(
            |s| {
                let mut found = vec![];
                for name in names {
                    let snapshot = s.find_snapshot(name)?;
                    s.check_destroy_snapshot(&snapshot, name, options.defer)?;
                    found.push(snapshot);
                }
                Ok(found)
            },
            |s, snapshots| {
                for snapshot in snapshots {
                    s.destroy_or_defer(&snapshot)?;
                    destroying.one();
                }
                Ok(())
            },
        )
    }

    /// Renames a file system, volume or snapshot.
    ///
    /// # Errors
    /// The reason against it: the new name, its parent, limits or quotas.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        self.rename_by(from, to, None)
    }

    /// Renames like [`Datasets::rename`]. `user` is the one who does so, if not the superuser.
    ///
    /// # Errors
    /// As for [`Datasets::rename`].
    pub fn rename_by(
        &self,
        from: &str,
        to: &str,
        user: Option<&Creator>,
    ) -> Result<(), DatasetError> {
        match DatasetName::parse(from)?.tail {
            NameTail::Head => self.rename_head(from, to, user),
            NameTail::Snapshot(_) => self.rename_snapshots(&[from], to),
            NameTail::Bookmark(_) => Err(Refusal::error(
                from,
                Refusal::Invalid("bookmarks are not renamed"),
            )),
        }
    }

    /// Renames a snapshot and the snapshots of the same name in all descendants.
    ///
    /// # Errors
    /// As for [`Datasets::rename`].
    pub fn rename_recursively(&self, from: &str, to: &str) -> Result<(), DatasetError> {
        let (path, name) = split_snapshot(from)?;
        let names: Vec<String> = self
            .names_below(path)?
            .into_iter()
            .map(|dataset| format!("{dataset}@{name}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.rename_snapshots(&names, to)
    }

    fn rename_head(
        &self,
        from: &str,
        to: &str,
        user: Option<&Creator>,
    ) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_rename_head(from, to, user),
            |s, plan| {
                s.rename_head(&plan)?;
                let text = format!("-> {to}");
                s.history(plan.head.dataset, from, "rename", &text)?;
                s.datasets.refresh(s, plan.head.directory)
            },
        )
    }

    fn rename_snapshots(&self, names: &[&str], to: &str) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_rename_snapshots(names, to),
            |s, plan| {
                for (snapshot, new) in plan {
                    s.rename_snapshot(&snapshot, &new)?;
                }
                Ok(())
            },
        )
    }

    /// Sets properties of a file system or volume atomically. Snapshots accept user properties only.
    ///
    /// # Errors
    /// [`DatasetError::InvalidProperty`], or refusals because of quotas and reservations.
    pub fn set_properties(
        &self,
        name: &str,
        changes: &PropertyChanges,
    ) -> Result<(), DatasetError> {
        if let NameTail::Snapshot(_) = DatasetName::parse(name)?.tail {
            return self.set_on_snapshot(name, changes);
        }
        self.task(
            |s| {
                let head = s.find_head(name)?;
                let kind = s.kind_of(&head)?;
                let settings = s.check_settings(&head, kind, changes)?;
                Ok((head, settings))
            },
            |s, (head, settings)| {
                for setting in &settings {
                    s.apply_setting(&head, setting)?;
                }
                s.datasets.refresh(s, head.directory)
            },
        )
    }

    fn set_on_snapshot(&self, name: &str, changes: &PropertyChanges) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_set_on_snapshot(name, changes),
            |s, snapshot| s.set_snapshot_properties(snapshot.dataset, name, changes),
        )
    }

    /// Records in the pool's history that a file system was upgraded to another version.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn note_raised(&self, name: &str, from: u64, to: u64) -> Result<(), DatasetError> {
        self.task(
            |s| s.find_head(name),
            |s, head| {
                let text = format!("from {from} to {to}");
                s.history(head.dataset, name, "upgrade", &text)
            },
        )
    }

    /// Removes a property's local value, so that the inherited value or the default takes effect. With
    /// `to_received`, the received value takes effect.
    ///
    /// # Errors
    /// [`DatasetError::InvalidProperty`] for a property that cannot be inherited.
    pub fn inherit(
        &self,
        name: &str,
        property: &str,
        to_received: bool,
    ) -> Result<(), DatasetError> {
        let full = inheritable(name, property, to_received)?;
        if let NameTail::Snapshot(_) = DatasetName::parse(name)?.tail {
            return self.task(
                |s| s.find_snapshot(name),
                |s, snapshot| s.set_snapshot_property(snapshot.dataset, name, &full, None),
            );
        }
        self.task(
            |s| s.find_head(name),
            |s, head| {
                s.inherit_value(&head, &full, to_received)?;
                s.datasets.refresh(s, head.directory)
            },
        )
    }

    /// Adds a hold with a tag to snapshots, atomically. A snapshot cannot be destroyed while it has holds.
    ///
    /// # Errors
    /// [`Refusal::TagExists`], [`Refusal::TagTooLong`].
    pub fn hold(&self, names: &[&str], tag: &str) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_hold(names, tag),
            |s, snapshots| {
                for snapshot in snapshots {
                    s.hold(&snapshot, tag)?;
                }
                Ok(())
            },
        )
    }

    /// Releases the holds with a tag from snapshots, atomically. A snapshot with a deferred destroy is
    /// destroyed with its last hold.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTag`].
    pub fn release(&self, names: &[&str], tag: &str) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_release(names, tag),
            |s, snapshots| {
                for snapshot in snapshots {
                    s.release(&snapshot, tag)?;
                }
                s.wake_background();
                Ok(())
            },
        )
    }

    /// Creates a bookmark (`fs#name`) of a snapshot or of another bookmark.
    ///
    /// # Errors
    /// [`Refusal::BookmarkExists`], [`Refusal::NotAnAncestor`], [`Refusal::FeatureDisabled`].
    pub fn bookmark(&self, source: &str, bookmark: &str) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_bookmark(source, bookmark),
            |s, plan| s.make_bookmark(&plan),
        )
    }

    /// Destroys bookmarks atomically.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub fn destroy_bookmarks(&self, names: &[&str]) -> Result<(), DatasetError> {
        self.task(
            |s| {
                let mut found = vec![];
                for name in names {
                    found.push(s.find_bookmark(name)?);
                }
                Ok(found)
            },
            |s, found| {
                for (head, name) in found {
                    s.remove_bookmark(head.dataset, &name)?;
                    let text = format!("name={name}");
                    s.history(head.dataset, &head.name, "remove bookmark", &text)?;
                }
                Ok(())
            },
        )
    }

    /// As [`Datasets::promote_by`], for the superuser.
    ///
    /// # Errors
    /// The same.
    pub fn promote(&self, name: &str) -> Result<(), DatasetError> {
        self.promote_by(name, None)
    }

    /// Promotes a clone: the clone becomes the owner of the shared snapshots, and its origin's dataset
    /// becomes the clone.
    ///
    /// # Errors
    /// [`Refusal::NotAClone`], or refusals because of conflicting names, quotas, or limits that hold for `creator`.
    pub fn promote_by(&self, name: &str, creator: Option<&Creator>) -> Result<(), DatasetError> {
        self.task(
            |s| s.check_promote(name, creator),
            |s, plan| s.apply_promotion(name, &plan),
        )
    }

    /// Rolls a file system or volume back to its latest snapshot. It must not be open.
    ///
    /// # Errors
    /// [`Refusal::NotTheLatest`] if the snapshot is not the latest or a bookmark is newer;
    /// [`Refusal::Busy`].
    pub fn rollback(&self, snapshot: &str) -> Result<(), DatasetError> {
        self.task(
            |s| {
                let found = s.find_snapshot(snapshot)?;
                s.check_rollback(&found)?;
                let closed = s.datasets.close_for_good(found.head.dataset, s.txg());
                let closed = closed.ok_or_else(|| Refusal::error(snapshot, Refusal::Busy))?;
                Ok((found, closed.log))
            },
            |s, (found, log)| s.apply_rollback(&found, log),
        )
    }
}
