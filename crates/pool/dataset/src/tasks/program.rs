//! What a channel program sees and changes. All of it happens in one txg.
//!
//! Each change is checked and applied before the next, as if it were a sync task by itself. A refused change
//! leaves the earlier ones in place.

use crate::datasets::Datasets;
use crate::properties::{PropertyName, PropertyValue, by_name};
use crate::tasks::checks::{check_snapshot_properties, inheritable};
use crate::tasks::context::SyncTaskContext;
use crate::tasks::directories::{Head, Snapshot};
use crate::{DatasetError, DatasetName, NameTail, Refusal};
use millpond_ondisk::{ObjectId, ObjectSetKind};
use millpond_pool::PoolError;
use std::collections::BTreeMap;

/// What is inside a call: the reason why a change was refused, or nothing.
pub type Refused<T = ()> = Result<T, DatasetError>;

/// A user property: name, value, and the dataset where it was set.
pub type UserProperty = (String, String, String);

/// A value that travels between a program and its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ProgramValue {
    /// No value.
    Nil,
    /// `true` or `false`.
    Boolean(bool),
    /// A number.
    Integer(i64),
    /// A string.
    Text(String),
    /// A table with the keys 1, 2, and so on. Only as an argument.
    List(Vec<ProgramValue>),
    /// A table: keys as text, and values.
    Table(Vec<(String, ProgramValue)>),
}

/// Whether a change is made, or only checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramMode {
    /// The change is made.
    Change,
    /// Only whether it would be made.
    Check,
}

/// The kinds of what a program can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramDataset {
    /// A file system.
    FileSystem,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
}

/// The datasets of a pool while a program runs. Reads see everything that the program has changed.
///
/// The outer error of a change is fatal: the txg fails. The inner one is a refusal.
pub struct ProgramTasks<'c> {
    tasks: SyncTaskContext<'c>,
}

impl Datasets {
    /// Calls `run` in syncing context. All changes that it makes are in one txg, and on stable storage when this
    /// returns. No other change of datasets happens meanwhile, and no txg is written.
    ///
    /// # Errors
    /// If the pool is suspended; the fatal error of a change.
    pub fn run_program<R: Send>(
        &self,
        run: impl FnOnce(&ProgramTasks<'_>) -> Result<R, PoolError> + Send,
    ) -> Result<R, DatasetError> {
        let pool = self.pool()?;
        let outcome = pool.sync_task(|ctx| {
            let _names = self.names.write();
            let tasks = SyncTaskContext::new(self, ctx);
            run(&ProgramTasks { tasks })
        })?;
        Ok(outcome)
    }
}

impl ProgramTasks<'_> {
    /// Checks a change, and makes it unless it is only checked.
    fn change<P>(
        &self,
        mode: ProgramMode,
        check: impl FnOnce(&SyncTaskContext<'_>) -> Refused<P>,
        apply: impl FnOnce(&SyncTaskContext<'_>, P) -> Result<(), PoolError>,
    ) -> Result<Refused, PoolError> {
        match check(&self.tasks) {
            Err(refused) => Ok(Err(refused)),
            Ok(_) if mode == ProgramMode::Check => Ok(Ok(())),
            Ok(plan) => apply(&self.tasks, plan).map(Ok),
        }
    }

    /// Destroys a file system, volume or snapshot. With `defer`, a snapshot with holds or clones is destroyed
    /// when the last of them is gone.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn destroy(
        &self,
        mode: ProgramMode,
        name: &str,
        defer: bool,
    ) -> Result<Refused, PoolError> {
        let is_snapshot = name.contains('@');
        match (mode, is_snapshot) {
            (ProgramMode::Check, _) => {
                self.change(mode, |s| s.check_destroy(name, defer), |_, ()| Ok(()))
            }
            (ProgramMode::Change, true) => self.change(
                mode,
                |s| {
                    let snapshot = s.find_snapshot(name)?;
                    s.check_destroy_snapshot(&snapshot, name, defer)?;
                    Ok(snapshot)
                },
                |s, snapshot| s.destroy_or_defer(&snapshot),
            ),
            (ProgramMode::Change, false) => self.change(
                mode,
                |s| {
                    refuse_defer(name, defer)?;
                    s.close_to_destroy(name)
                },
                |s, closed| s.destroy_closed(closed),
            ),
        }
    }

    /// Takes a snapshot. [`Refusal::Busy`] if the dataset already got one in this txg.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn snapshot(&self, mode: ProgramMode, name: &str) -> Result<Refused, PoolError> {
        self.change(
            mode,
            |s| match s.check_snapshots(&[name], &[], None)? {
                Some(plan) => Ok(plan),
                None => Err(Refusal::error(name, Refusal::Busy)),
            },
            |s, plan| s.take_snapshots(&plan, &[]),
        )
    }

    /// The snapshots of a clone whose names its origin's dataset uses as well, for which a promotion is refused.
    ///
    /// # Errors
    /// If the clone or a table cannot be read.
    pub fn promote_conflicts(&self, name: &str) -> Refused<Vec<String>> {
        let s = &self.tasks;
        let clone = s.find_head(name)?;
        let Some(origin) = s.directory(clone.directory)?.origin else {
            return Ok(vec![]);
        };
        let above = s.directory(s.dataset(origin)?.directory)?;
        let Some(head) = above.head_dataset else {
            return Ok(vec![]);
        };
        let names = s.snapshot_entries(&s.dataset(head)?)?;
        let own = s.dataset(clone.dataset)?;
        let mut found = vec![];
        for id in s.chain(origin, above.origin)? {
            if let Some((snapshot, _)) = names.iter().find(|(_, named)| *named == id)
                && s.snapshot_entry(&own, snapshot)?.is_some()
            {
                found.push(snapshot.clone());
            }
        }
        Ok(found)
    }

    /// Promotes a clone.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn promote(&self, mode: ProgramMode, name: &str) -> Result<Refused, PoolError> {
        self.change(
            mode,
            |s| s.check_promote(name, None),
            |s, plan| s.apply_promotion(name, &plan),
        )
    }

    /// Rolls a file system or volume back to its latest snapshot.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn rollback(&self, mode: ProgramMode, name: &str) -> Result<Refused, PoolError> {
        self.change(
            mode,
            |s| {
                let head = s.find_head(name)?;
                let found = s.latest_snapshot(&head)?;
                let none = Refusal::Invalid("it has no snapshot");
                let found = found.ok_or_else(|| Refusal::error(name, none))?;
                s.check_rollback(&found)?;
                if mode == ProgramMode::Check {
                    s.check_closable(name, head.dataset)?;
                    return Ok((found, None));
                }
                let closed = s.datasets.close_for_good(head.dataset, s.txg());
                let closed = closed.ok_or_else(|| Refusal::error(name, Refusal::Busy))?;
                Ok((found, closed.log))
            },
            |s, (found, log)| s.apply_rollback(&found, log),
        )
    }

    /// Sets a user property of a file system, volume or snapshot.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn set_user_property(
        &self,
        mode: ProgramMode,
        name: &str,
        property: &str,
        value: &str,
    ) -> Result<Refused, PoolError> {
        let change = [(property.to_owned(), PropertyValue::Text(value.to_owned()))];
        if name.contains('@') {
            return self.change(
                mode,
                |s| s.check_set_on_snapshot(name, &change),
                |s, snapshot| s.set_snapshot_properties(snapshot.dataset, name, &change),
            );
        }
        self.change(
            mode,
            |s| {
                check_snapshot_properties(name, &change)?;
                let head = s.find_head(name)?;
                let kind = s.kind_of(&head)?;
                let settings = s.check_settings(&head, kind, &change)?;
                Ok((head, settings))
            },
            |s, (head, settings)| {
                let mut settings = settings.iter();
                settings.try_for_each(|setting| s.apply_setting(&head, setting))?;
                s.datasets.refresh(s, head.directory)
            },
        )
    }

    /// Removes the local value of a property that can be inherited.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn inherit(
        &self,
        mode: ProgramMode,
        name: &str,
        property: &str,
    ) -> Result<Refused, PoolError> {
        let full = match inheritable(name, property, false) {
            Ok(full) => full,
            Err(refused) => return Ok(Err(refused)),
        };
        if name.contains('@') {
            return self.change(
                mode,
                |s| s.find_snapshot(name),
                |s, snapshot| s.set_snapshot_property(snapshot.dataset, name, &full, None),
            );
        }
        self.change(
            mode,
            |s| s.find_head(name),
            |s, head| {
                s.inherit_value(&head, &full, false)?;
                s.datasets.refresh(s, head.directory)
            },
        )
    }

    /// Renames the snapshot `old` of a dataset to `new`.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn rename_snapshot(
        &self,
        mode: ProgramMode,
        dataset: &str,
        old: &str,
        new: &str,
    ) -> Result<Refused, PoolError> {
        let (from, to) = (format!("{dataset}@{old}"), format!("@{new}"));
        self.change(
            mode,
            |s| s.check_rename_snapshots(&[&from], &to),
            |s, plan| {
                let mut plan = plan.iter();
                plan.try_for_each(|(snapshot, new)| s.rename_snapshot(snapshot, new))
            },
        )
    }

    /// Creates a bookmark of a snapshot or of another bookmark.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn bookmark(
        &self,
        mode: ProgramMode,
        source: &str,
        bookmark: &str,
    ) -> Result<Refused, PoolError> {
        self.change(
            mode,
            |s| s.check_bookmark(source, bookmark),
            |s, plan| s.make_bookmark(&plan),
        )
    }
}

/// Only snapshots can be destroyed later.
fn refuse_defer(name: &str, defer: bool) -> Refused {
    match defer {
        true => Err(Refusal::error(
            name,
            Refusal::Invalid("only snapshots can be destroyed later"),
        )),
        false => Ok(()),
    }
}

impl SyncTaskContext<'_> {
    /// Checks whether a dataset could be destroyed, and closes nothing.
    fn check_destroy(&self, name: &str, defer: bool) -> Refused {
        if !name.contains('@') {
            refuse_defer(name, defer)?;
            let head = self.find_head(name)?;
            self.check_destroy_head(&head)?;
            return self.check_closable(name, head.dataset);
        }
        let snapshot = self.find_snapshot(name)?;
        let phys = self.dataset(snapshot.dataset)?;
        if defer || self.is_free_to_go(&phys)? {
            return Ok(());
        }
        let why = match phys.children_count > 1 {
            true => Refusal::HasClones,
            false => Refusal::IsHeld,
        };
        Err(Refusal::error(name, why))
    }

    /// The latest snapshot of a head. What precedes a head without snapshots belongs to another dataset.
    fn latest_snapshot(&self, head: &Head) -> Refused<Option<Snapshot>> {
        let phys = self.dataset(head.dataset)?;
        let entries = self.snapshot_entries(&phys)?;
        let mut entries = entries.into_iter();
        let latest = entries.find(|(_, id)| Some(*id) == phys.previous_snapshot);
        Ok(latest.map(|(name, dataset)| Snapshot {
            head: head.clone(),
            name,
            dataset,
        }))
    }
}

/// What a program reads.
impl ProgramTasks<'_> {
    /// What a name is, if it exists. The name is that of a file system, volume or snapshot.
    ///
    /// # Errors
    /// If a table cannot be read, or the name is not legal.
    pub fn kind(&self, name: &str) -> Refused<Option<ProgramDataset>> {
        let s = &self.tasks;
        let is_missing = |error: &DatasetError| matches!(error, DatasetError::NotFound { .. });
        let found = match DatasetName::parse(name)?.tail {
            NameTail::Snapshot(_) => s.find_snapshot(name).map(|_| ProgramDataset::Snapshot),
            NameTail::Head => s.find_head(name).and_then(|head| {
                Ok(match s.kind_of(&head)? {
                    ObjectSetKind::Volume => ProgramDataset::Volume,
                    _ => ProgramDataset::FileSystem,
                })
            }),
            NameTail::Bookmark(_) => return Ok(None),
        };
        match found {
            Ok(kind) => Ok(Some(kind)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The full names of the direct children of a file system or volume.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; if a table cannot be read.
    pub fn children(&self, name: &str) -> Refused<Vec<String>> {
        let head = self.tasks.find_head(name)?;
        let children = self.tasks.children(head.directory)?;
        let shown = children.iter().filter(|(child, _)| !child.contains('%'));
        Ok(shown.map(|(child, _)| format!("{name}/{child}")).collect())
    }

    /// The full names of the snapshots of a file system or volume, oldest first.
    ///
    /// # Errors
    /// As [`ProgramTasks::children`].
    pub fn snapshots(&self, name: &str) -> Refused<Vec<String>> {
        let s = &self.tasks;
        let head = s.find_head(name)?;
        let entries = s.snapshot_entries(&s.dataset(head.dataset)?)?;
        let mut found = vec![];
        for (snapshot, id) in entries {
            found.push((s.dataset(id)?.creation_txg, format!("{name}@{snapshot}")));
        }
        found.sort();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    /// The full names of the clones of a snapshot.
    ///
    /// # Errors
    /// As [`ProgramTasks::children`].
    pub fn clones(&self, snapshot: &str) -> Refused<Vec<String>> {
        let s = &self.tasks;
        let found = s.find_snapshot(snapshot)?;
        let phys = s.dataset(found.dataset)?;
        let Some(clones) = phys.next_clones else {
            return Ok(vec![]);
        };
        let mut names = vec![];
        for id in s.set_members(clones)? {
            names.push(s.dataset_name(id)?);
        }
        names.sort();
        Ok(names)
    }

    /// The full names of the bookmarks of a file system or volume, oldest first.
    ///
    /// # Errors
    /// As [`ProgramTasks::children`].
    pub fn bookmarks(&self, name: &str) -> Refused<Vec<String>> {
        let head = self.tasks.find_head(name)?;
        let marks = self.tasks.bookmarks(head.dataset)?;
        Ok(marks
            .iter()
            .map(|(mark, _)| format!("{name}#{mark}"))
            .collect())
    }

    /// The holds on a snapshot: tags, and the times of their creation in seconds since 1970.
    ///
    /// # Errors
    /// As [`ProgramTasks::children`].
    pub fn holds(&self, snapshot: &str) -> Refused<Vec<(String, u64)>> {
        let s = &self.tasks;
        let found = s.find_snapshot(snapshot)?;
        let Some(holds) = s.dataset(found.dataset)?.user_references else {
            return Ok(vec![]);
        };
        let mut tags = vec![];
        for entry in s.entries(holds)? {
            let tag = String::from_utf8_lossy(&entry.name).into_owned();
            tags.push((tag, entry.value.first().unwrap_or(0)));
        }
        tags.sort();
        Ok(tags)
    }

    /// The user properties of a file system, volume or snapshot, inherited ones included, by name.
    ///
    /// # Errors
    /// As [`ProgramTasks::children`].
    pub fn user_properties(&self, name: &str) -> Refused<Vec<UserProperty>> {
        let s = &self.tasks;
        let (head, own): (Head, _) = match name.contains('@') {
            true => {
                let snapshot = s.find_snapshot(name)?;
                let table = s.dataset(snapshot.dataset)?.properties;
                (snapshot.head, table)
            }
            false => (s.find_head(name)?, None),
        };
        let mut tables: Vec<(ObjectId, String)> = vec![];
        tables.extend(own.map(|table| (table, name.to_owned())));
        let (mut at, mut path) = (Some(head.directory), head.name.as_str());
        while let Some(id) = at {
            let phys = s.directory(id)?;
            tables.extend(phys.properties.map(|table| (table, path.to_owned())));
            let above = path.rsplit_once('/');
            path = above.map_or("", |(above, _)| above);
            at = above.and(phys.parent);
        }
        // The nearest value counts.
        let mut found = BTreeMap::new();
        for (table, source) in tables {
            for entry in s.entries(table)? {
                let Ok(key) = String::from_utf8(entry.name) else {
                    continue;
                };
                let property = key.split('$').next().unwrap_or(&key);
                let is_user = matches!(by_name(property), Some(PropertyName::User(_)));
                if !is_user || found.contains_key(property) {
                    continue;
                }
                if let Some((PropertyValue::Text(text), _)) = s.stored_value(table, property)? {
                    found.insert(property.to_owned(), (text, source.clone()));
                }
            }
        }
        let found = found.into_iter();
        Ok(found
            .map(|(name, (value, source))| (name, value, source))
            .collect())
    }
}
