//! Changes the name tree: creates, finds, counts and destroys directories.
//!
//! Page `docs/format/dsl-directory.md`.

use crate::directory::DEPTH_MAX;
use crate::heads::features;
use crate::mos::{MosView, contradiction, required};
use crate::tasks::context::SyncTaskContext;
use crate::{DatasetError, DatasetName, NameTail, Refusal};
use millpond_env::Tunable;
use millpond_ondisk::dsl::keys::{self, is_hidden_name};
use millpond_ondisk::{
    DslDatasetFlags, DslDatasetPhys, DslDirectoryFlags, DslDirectoryPhys, ObjectId, ObjectType,
    pool_directory::OBJECT_DIRECTORY,
};
use millpond_pool::PoolError;

/// The entry of the object directory that names the root directory.
pub(crate) const ROOT: &str = "root_dataset";

/// A head by name: its directory and its dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub name: String,
    pub directory: ObjectId,
    pub dataset: ObjectId,
}

/// A snapshot by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub head: Head,
    /// The name after `@`, as stored.
    pub name: String,
    pub dataset: ObjectId,
}

impl Snapshot {
    pub(crate) fn full_name(&self) -> String {
        format!("{}@{}", self.head.name, self.name)
    }
}

impl MosView<'_> {
    pub(crate) fn root_directory(&self) -> Result<ObjectId, PoolError> {
        self.lookup(OBJECT_DIRECTORY, ROOT)?
            .map(ObjectId)
            .ok_or_else(|| contradiction("object directory", "no root directory"))
    }

    /// A hidden child of the root directory.
    pub(crate) fn special_directory(&self, name: &str) -> Result<ObjectId, PoolError> {
        self.child(self.root_directory()?, name)?
            .ok_or_else(|| contradiction("dataset directory", "an internal directory is missing"))
    }

    pub(crate) fn child(
        &self,
        directory: ObjectId,
        component: &str,
    ) -> Result<Option<ObjectId>, PoolError> {
        match self.directory(directory)?.child_directories {
            Some(table) => Ok(self.lookup(table, component)?.map(ObjectId)),
            None => Ok(None),
        }
    }

    /// Child directories, including temporary ones but not those that begin with `$`.
    pub(crate) fn children(
        &self,
        directory: ObjectId,
    ) -> Result<Vec<(String, ObjectId)>, PoolError> {
        let Some(table) = self.directory(directory)?.child_directories else {
            return Ok(vec![]);
        };
        let mut children: Vec<_> = self
            .entries(table)?
            .iter()
            .filter(|entry| entry.name.first() != Some(&b'$'))
            .filter_map(|entry| {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                Some((name, ObjectId(entry.value.first()?)))
            })
            .collect();
        children.sort();
        Ok(children)
    }

    /// This directory and its descendants, parents first, with full names.
    pub(crate) fn directories_below(
        &self,
        name: &str,
        directory: ObjectId,
    ) -> Result<Vec<(String, ObjectId)>, PoolError> {
        let mut found = vec![];
        let mut open = vec![(name.to_owned(), directory, 0usize)];
        while let Some((name, directory, depth)) = open.pop() {
            if depth > DEPTH_MAX {
                return Err(contradiction(
                    "dataset directory",
                    "directories nest too deep",
                ));
            }
            for (component, child) in self.children(directory)?.into_iter().rev() {
                open.push((format!("{name}/{component}"), child, depth + 1));
            }
            found.push((name, directory));
        }
        Ok(found)
    }

    pub(crate) fn find_directory(&self, path: &str) -> Result<Option<ObjectId>, PoolError> {
        let mut components = path.split('/');
        if components.next() != Some(self.pool.name().as_str()) {
            return Ok(None);
        }
        let mut at = self.root_directory()?;
        for component in components {
            match self.child(at, component)? {
                Some(child) => at = child,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    pub(crate) fn find_head(&self, path: &str) -> Result<Head, DatasetError> {
        let missing = || DatasetError::NotFound {
            name: path.to_owned(),
        };
        let directory = self.find_directory(path)?.ok_or_else(missing)?;
        let dataset = self
            .directory(directory)?
            .head_dataset
            .ok_or_else(missing)?;
        Ok(Head {
            name: path.to_owned(),
            directory,
            dataset,
        })
    }

    /// The stored name and object id of a snapshot in its head's table.
    pub(crate) fn snapshot_entry(
        &self,
        head: &DslDatasetPhys,
        name: &str,
    ) -> Result<Option<(String, ObjectId)>, PoolError> {
        let Some(table) = head.snapshot_names else {
            return Ok(None);
        };
        if let Some(exact) = self.lookup(table, name)? {
            return Ok(Some((name.to_owned(), ObjectId(exact))));
        }
        if !head.flags.contains(DslDatasetFlags::CASE_INSENSITIVE) {
            return Ok(None);
        }
        let folded = self.snapshot_entries(head)?;
        Ok(folded
            .into_iter()
            .find(|(entry, _)| entry.eq_ignore_ascii_case(name)))
    }

    /// The snapshots of a head, by name.
    pub(crate) fn snapshot_entries(
        &self,
        head: &DslDatasetPhys,
    ) -> Result<Vec<(String, ObjectId)>, PoolError> {
        let Some(table) = head.snapshot_names else {
            return Ok(vec![]);
        };
        let mut found: Vec<_> = self
            .entries(table)?
            .iter()
            .filter_map(|entry| {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                Some((name, ObjectId(entry.value.first()?)))
            })
            .collect();
        found.sort();
        Ok(found)
    }

    pub(crate) fn find_snapshot(&self, full: &str) -> Result<Snapshot, DatasetError> {
        let missing = || DatasetError::NotFound {
            name: full.to_owned(),
        };
        let parsed = DatasetName::parse(full)?;
        let NameTail::Snapshot(name) = parsed.tail else {
            return Err(missing());
        };
        let head = self.find_head(parsed.path).map_err(|error| match error {
            DatasetError::NotFound { .. } => missing(),
            other => other,
        })?;
        let phys = self.dataset(head.dataset)?;
        let (name, dataset) = self.snapshot_entry(&phys, name)?.ok_or_else(missing)?;
        Ok(Snapshot {
            head,
            name,
            dataset,
        })
    }

    /// The full name of a directory, determined from its parents.
    pub(crate) fn directory_name(&self, directory: ObjectId) -> Result<String, PoolError> {
        let mut components = vec![];
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            let Some(parent) = self.directory(at)?.parent else {
                components.push(self.pool.name());
                components.reverse();
                return Ok(components.join("/"));
            };
            let table = self.directory(parent)?.child_directories;
            let entries = table.map_or(Ok(vec![]), |table| self.entries(table))?;
            let entry = entries
                .iter()
                .find(|entry| entry.value.first() == Some(at.0))
                .ok_or_else(|| contradiction("dataset directory", "its parent does not name it"))?;
            components.push(String::from_utf8_lossy(&entry.name).into_owned());
            at = parent;
        }
        Err(contradiction(
            "dataset directory",
            "its parents form a circle",
        ))
    }

    /// The full name of a dataset.
    pub(crate) fn dataset_name(&self, dataset: ObjectId) -> Result<String, PoolError> {
        let phys = self.dataset(dataset)?;
        let directory = self.directory_name(phys.directory)?;
        if !phys.is_snapshot() {
            return Ok(directory);
        }
        let head = self.directory(phys.directory)?.head_dataset;
        let head = self.dataset(required(head, "snapshot without a head")?)?;
        let entries = self.snapshot_entries(&head)?;
        let entry = entries.into_iter().find(|(_, id)| *id == dataset);
        let (name, _) =
            entry.ok_or_else(|| contradiction("dataset", "its head does not name it"))?;
        Ok(format!("{directory}@{name}"))
    }

    /// Whether `below` is `above` or one of its descendants.
    pub(crate) fn is_within(&self, below: ObjectId, above: ObjectId) -> Result<bool, PoolError> {
        let mut at = Some(below);
        for _ in 0..DEPTH_MAX {
            match at {
                Some(id) if id == above => return Ok(true),
                Some(id) => at = self.directory(id)?.parent,
                None => return Ok(false),
            }
        }
        Err(contradiction(
            "dataset directory",
            "its parents form a circle",
        ))
    }
}

impl SyncTaskContext<'_> {
    /// Creates a directory without a head.
    pub(crate) fn create_directory(
        &self,
        parent: Option<ObjectId>,
        component: &str,
    ) -> Result<ObjectId, PoolError> {
        let mut phys = DslDirectoryPhys {
            creation_time: self.now_s(),
            parent,
            flags: match self.version().has_used_breakdown() {
                true => DslDirectoryFlags::USED_BREAKDOWN,
                false => DslDirectoryFlags::default(),
            },
            ..DslDirectoryPhys::default()
        };
        let id = self.allocate(
            ObjectType::DSL_DIRECTORY,
            ObjectType::DSL_DIRECTORY,
            phys.encode(),
        )?;
        phys.properties = Some(self.create_zap(ObjectType::DSL_PROPS)?);
        phys.child_directories = Some(self.create_zap(ObjectType::DSL_DIRECTORY_CHILD_MAP)?);
        self.put_directory(id, &phys)?;
        if let Some(parent) = parent {
            let table = self.directory(parent)?.child_directories;
            self.update(
                required(table, "directory without a table")?,
                component,
                id.0,
            )?;
            if !is_hidden_name(component.as_bytes()) {
                self.count_up(parent, keys::FILESYSTEM_COUNT, 1)?;
            }
            if self.feature_count(features::FILESYSTEM_LIMITS) > 0 && !component.starts_with('$') {
                self.zapify(id)?;
                self.update(id, keys::FILESYSTEM_COUNT, 0)?;
                self.update(id, keys::SNAPSHOT_COUNT, 0)?;
            }
        }
        Ok(id)
    }

    /// Changes a count of a directory and its ancestors, as far as the counts are stored.
    pub(crate) fn count_up(
        &self,
        directory: ObjectId,
        key: &str,
        change: i64,
    ) -> Result<(), PoolError> {
        let mut at = Some(directory);
        for _ in 0..DEPTH_MAX {
            let Some(id) = at else { return Ok(()) };
            let Some(count) = self.extension_number(id, key)? else {
                return Ok(());
            };
            let count = count
                .checked_add_signed(change)
                .ok_or_else(|| contradiction("dataset directory", "a count below 0"))?;
            self.update(id, key, count)?;
            at = self.directory(id)?.parent;
        }
        Err(contradiction(
            "dataset directory",
            "its parents form a circle",
        ))
    }

    /// Destroys a directory that has no head, no children and no charged space.
    pub(crate) fn destroy_directory(
        &self,
        directory: ObjectId,
        component: &str,
    ) -> Result<(), PoolError> {
        let phys = self.directory(directory)?;
        if phys.reserved_bytes > 0 {
            self.set_reservation(directory, 0)?;
        }
        let phys_now = self.directory(directory)?;
        if phys_now.used_bytes != 0 {
            return Err(contradiction(
                "dataset directory",
                "destroyed while something is charged to it",
            ));
        }
        if let Some(parent) = phys.parent {
            if !is_hidden_name(component.as_bytes()) {
                self.count_up(parent, keys::FILESYSTEM_COUNT, -1)?;
            }
            let table = self.directory(parent)?.child_directories;
            self.remove(required(table, "directory without a table")?, component)?;
        }
        if let Some(who) = phys.delegation {
            for entry in self.entries(who)? {
                self.free_if_any(entry.value.first().and_then(|id| ObjectId(id).some()))?;
            }
            self.free_object(who)?;
        }
        for table in [phys.properties, phys.child_directories, phys.clones] {
            self.free_if_any(table)?;
        }
        self.free_zapified(directory)?;
        self.datasets.admission.directory_gone(directory);
        Ok(())
    }

    /// A new name has fewer slashes than this.
    pub(crate) fn nesting_max(&self) -> usize {
        let max = self
            .ctx
            .pool()
            .env()
            .tunables
            .get(Tunable::MaxDatasetNesting);
        usize::try_from(max).unwrap_or(usize::MAX)
    }

    /// As [`SyncTaskContext::check_free_name`], and the name is not too deep.
    pub(crate) fn check_new_name(&self, path: &str) -> Result<(ObjectId, String), DatasetError> {
        match path.matches('/').count() < self.nesting_max() {
            true => self.check_free_name(path),
            false => Err(Refusal::error(path, Refusal::TooDeep)),
        }
    }

    /// Validates a name: allowed characters, existing parent, name not in use. Returns the
    /// parent directory and the last component.
    pub(crate) fn check_free_name(&self, path: &str) -> Result<(ObjectId, String), DatasetError> {
        let refused = |why| Refusal::error(path, why);
        let parsed = DatasetName::parse(path)?;
        if parsed.tail != NameTail::Head || path.contains(['%', '$']) {
            return Err(DatasetError::InvalidName {
                name: path.to_owned(),
                reason: "not a name for a file system or volume",
            });
        }
        let Some((parent, component)) = path.rsplit_once('/') else {
            return Err(refused(Refusal::Exists));
        };
        let Some(parent_id) = self.find_directory(parent)? else {
            return Err(refused(Refusal::NoParent));
        };
        if self.child(parent_id, component)?.is_some() {
            return Err(refused(Refusal::Exists));
        }
        Ok((parent_id, component.to_owned()))
    }
}
