//! Traverses the datasets of an open pool.

use super::{io, property};
use millpond_control::{ControlError, DatasetInfo, DatasetQuery, Wanted};
use millpond_dataset::properties::{DatasetKind, Wanted as WantedValues};
use millpond_dataset::{Bookmark, Dataset, DatasetError, Directory, PropertyReader};
use millpond_engine::View;
use millpond_env::sync::Arc;

/// Calls `each` with every dataset that the query selects. A single property reader serves all datasets, so
/// that shared values are read once.
pub fn walk(
    pool: &View,
    query: &DatasetQuery,
    each: &mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    let mut walk = Walk {
        pool,
        query,
        reader: PropertyReader::new(pool.inner()),
        damaged: vec![],
        each,
    };
    if let Some((of, name)) = query.root.split_once('#') {
        let dataset = find(pool, of)?;
        let bookmarks = dataset.bookmarks().map_err(io)?;
        let bookmark = bookmarks.iter().find(|bookmark| bookmark.name == name);
        return walk.bookmark(&dataset, bookmark.ok_or(ControlError::NoSuchDataset)?);
    }
    let root = find(pool, &query.root)?;
    walk.learn_key(root.directory());
    if root.is_snapshot() {
        return walk.dataset(&root, DatasetKind::Snapshot);
    }
    let mut stack = vec![(Arc::clone(root.directory()), 0u32)];
    while let Some((directory, depth)) = stack.pop() {
        walk.directory(&directory, depth)?;
        if depth < query.depth {
            let children = directory.children().map_err(io)?;
            let below = depth.saturating_add(1);
            stack.extend(children.into_iter().rev().map(|child| (child, below)));
        }
    }
    let is_named = |name: &String| query.names_damaged || *name == query.root;
    if walk.damaged.iter().any(is_named) {
        return Err(ControlError::Damaged(walk.damaged));
    }
    Ok(())
}

struct Walk<'a> {
    pool: &'a View,
    query: &'a DatasetQuery,
    reader: PropertyReader,
    /// Heads and snapshots that are there, and of which too little can be read.
    damaged: Vec<String>,
    each: &'a mut dyn FnMut(DatasetInfo) -> Result<(), ControlError>,
}

impl Walk<'_> {
    /// Reports a head and, within the query's depth, its snapshots and bookmarks.
    fn directory(&mut self, directory: &Arc<Directory>, depth: u32) -> Result<(), ControlError> {
        let Some(head) = directory.head().map_err(io)? else {
            return Ok(());
        };
        self.learn_key(directory);
        match self.reader.kind(&head) {
            Ok(kind) => self.dataset(&head, kind)?,
            // All others are listed and mounted nevertheless.
            Err(error) if error.is_damaged() => {
                self.damaged.push(head.name().to_owned());
            }
            Err(error) => return Err(io(error)),
        }
        if depth >= self.query.depth {
            return Ok(());
        }
        if self.query.kinds.contains(DatasetKind::Snapshot) {
            let damaged = &mut self.damaged;
            let snapshots = head.snapshots_but(&mut |name, error| match error.is_damaged() {
                true => {
                    damaged.push(name);
                    Ok(())
                }
                false => Err(error),
            });
            for snapshot in snapshots.map_err(io)? {
                self.dataset(&snapshot, DatasetKind::Snapshot)?;
            }
        }
        if self.query.kinds.contains(DatasetKind::Bookmark) {
            for bookmark in head.bookmarks().map_err(io)? {
                self.bookmark(&head, &bookmark)?;
            }
        }
        Ok(())
    }

    fn dataset(&mut self, dataset: &Dataset, kind: DatasetKind) -> Result<(), ControlError> {
        if !self.query.kinds.contains(kind) {
            return Ok(());
        }
        let values = match self.reader.properties(dataset, wanted(&self.query.wanted)) {
            Err(error) if error.is_damaged() => {
                self.damaged.push(dataset.name().to_owned());
                return Ok(());
            }
            values => values,
        };
        (self.each)(DatasetInfo {
            name: dataset.name().to_owned(),
            kind,
            created_txg: dataset.phys().creation_txg.0,
            properties: values.map_err(io)?.into_iter().map(property).collect(),
        })
    }

    fn bookmark(&mut self, head: &Dataset, bookmark: &Bookmark) -> Result<(), ControlError> {
        let wanted = wanted(&self.query.wanted);
        let values = self.reader.bookmark_properties(bookmark, wanted);
        let mut properties: Vec<_> = values.map_err(io)?.into_iter().map(property).collect();
        let name = format!("{}#{}", head.name(), bookmark.name);
        if let Some(own) = properties.iter_mut().find(|p| p.name == "name") {
            own.value = Some(millpond_control::Value::Text(name.clone()));
        }
        (self.each)(DatasetInfo {
            name,
            kind: DatasetKind::Bookmark,
            created_txg: bookmark.phys.creation_txg.0,
            properties,
        })
    }

    /// Adds the directory's key to the reader if it is loaded. If deriving it fails, the dataset is treated
    /// as locked.
    fn learn_key(&mut self, directory: &Arc<Directory>) {
        if let Ok(Some(key)) = self.pool.key_of(directory) {
            self.reader.add_key(directory, key);
        }
    }
}

fn wanted(wanted: &Wanted) -> WantedValues<'_> {
    match wanted {
        Wanted::All => WantedValues::All,
        Wanted::Named(names) => WantedValues::Named(names),
    }
}

fn find(pool: &View, name: &str) -> Result<Dataset, ControlError> {
    Dataset::find(pool.inner(), name).map_err(|error| match error {
        DatasetError::NotFound { .. } => ControlError::NoSuchDataset,
        other => io(other),
    })
}
