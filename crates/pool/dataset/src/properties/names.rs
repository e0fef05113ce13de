//! Finds names of directories and datasets by object id, reading each table once.

use crate::DatasetError;
use crate::directory::DEPTH_MAX;
use crate::error::Named;
use millpond_env::sync::Arc;
use millpond_ondisk::dsl::{hex_key_number, keys::ORIGIN_DIRECTORY};
use millpond_ondisk::{DecodeError, DslDatasetPhys, DslDirectoryPhys, ObjectId, ObjectType};
use millpond_pool::PoolView;
use millpond_zap::Zap;
use std::collections::HashMap;

/// A cache of names by object id.
///
/// Keeps the tables of children and snapshots that it reads, so that looking up ten thousand clones reads
/// each table once. Memory use is proportional to these tables.
#[derive(Debug)]
pub(super) struct Names {
    pool: Arc<PoolView>,
    directories: HashMap<ObjectId, String>,
    children: HashMap<ObjectId, HashMap<ObjectId, String>>,
    snapshots: HashMap<ObjectId, HashMap<ObjectId, String>>,
}

impl Names {
    pub(super) fn new(pool: &Arc<PoolView>) -> Self {
        Self {
            pool: Arc::clone(pool),
            directories: HashMap::new(),
            children: HashMap::new(),
            snapshots: HashMap::new(),
        }
    }

    /// The full name of a directory.
    pub(super) fn directory(&mut self, id: ObjectId) -> Result<String, DatasetError> {
        // Walk up to a directory with a known name, then build the name downwards.
        let mut below = vec![];
        let mut at = id;
        let mut name = loop {
            if let Some(known) = self.directories.get(&at) {
                break known.clone();
            }
            let phys = directory_phys(&self.pool, at)?;
            let Some(parent) = phys.parent else {
                break self.pool.name().to_owned();
            };
            below.push((parent, at));
            if below.len() > DEPTH_MAX {
                let error = DecodeError::new("DSL directory", "parents form a cycle", 16);
                return Err(error).named(&format!("directory {id}"));
            }
            at = parent;
        };
        self.directories.insert(at, name.clone());
        for (parent, child) in below.into_iter().rev() {
            let component = self
                .children_of(parent)?
                .get(&child)
                .cloned()
                .ok_or_else(|| DatasetError::NotFound {
                    name: format!("directory {child}"),
                })?;
            name = format!("{name}/{component}");
            self.directories.insert(child, name.clone());
        }
        Ok(name)
    }

    /// The full name of a head or snapshot.
    pub(super) fn dataset(&mut self, id: ObjectId) -> Result<String, DatasetError> {
        let phys = dataset_phys(&self.pool, id)?;
        let directory = self.directory(phys.directory)?;
        if !phys.is_snapshot() {
            return Ok(directory);
        }
        let snapshots = self.snapshots_of(phys.directory)?;
        let snapshot = snapshots
            .get(&id)
            .cloned()
            .ok_or_else(|| DatasetError::NotFound {
                name: format!("dataset {id}"),
            })?;
        Ok(format!("{directory}@{snapshot}"))
    }

    /// The names of a snapshot's direct clones, in table order.
    pub(super) fn clones(&mut self, phys: &DslDatasetPhys) -> Result<Vec<String>, DatasetError> {
        let Some(table) = phys.next_clones else {
            return Ok(vec![]);
        };
        let name = "table of clones";
        let zap = Zap::open(self.pool.mos().object(table).named(name)?).named(name)?;
        let mut clones = vec![];
        for entry in zap.iter() {
            let entry = entry.named(name)?;
            let Some(id) = hex_key_number(&entry.name) else {
                continue;
            };
            let oldest = dataset_phys(&self.pool, ObjectId(id))?;
            clones.push(self.directory(oldest.directory)?);
        }
        Ok(clones)
    }

    fn children_of(
        &mut self,
        directory: ObjectId,
    ) -> Result<&HashMap<ObjectId, String>, DatasetError> {
        if !self.children.contains_key(&directory) {
            let phys = directory_phys(&self.pool, directory)?;
            let table = by_object(&self.pool, phys.child_directories)?;
            self.children.insert(directory, table);
        }
        Ok(&self.children[&directory])
    }

    fn snapshots_of(
        &mut self,
        directory: ObjectId,
    ) -> Result<&HashMap<ObjectId, String>, DatasetError> {
        if !self.snapshots.contains_key(&directory) {
            let phys = directory_phys(&self.pool, directory)?;
            let names = match phys.head_dataset {
                None => None,
                Some(head) => dataset_phys(&self.pool, head)?.snapshot_names,
            };
            let table = by_object(&self.pool, names)?;
            self.snapshots.insert(directory, table);
        }
        Ok(&self.snapshots[&directory])
    }
}

/// Whether a name is below the internal directory from which every dataset descends.
pub(super) fn is_origin_of_all(name: &str) -> bool {
    name.split('/').nth(1).is_some_and(|component| {
        component == ORIGIN_DIRECTORY || component.split('@').next() == Some(ORIGIN_DIRECTORY)
    })
}

/// The inverse of a table from names to objects.
fn by_object(
    pool: &Arc<PoolView>,
    table: Option<ObjectId>,
) -> Result<HashMap<ObjectId, String>, DatasetError> {
    let mut names = HashMap::new();
    let Some(table) = table else {
        return Ok(names);
    };
    let what = "table of names";
    let zap = Zap::open(pool.mos().object(table).named(what)?).named(what)?;
    for entry in zap.iter() {
        let entry = entry.named(what)?;
        if let Some(id) = entry.value.first() {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            names.insert(ObjectId(id), name);
        }
    }
    Ok(names)
}

/// Reads a directory's stored metadata.
pub(super) fn directory_phys(
    pool: &Arc<PoolView>,
    id: ObjectId,
) -> Result<DslDirectoryPhys, DatasetError> {
    let name = format!("directory {id}");
    let object = pool.mos().object(id).named(&name)?;
    if object.dnode().bonus_type != ObjectType::DSL_DIRECTORY {
        let error = DecodeError::new("DSL directory", "the object is not a directory", 0);
        return Err(error).named(&name);
    }
    let bonus = object.bonus().named(&name)?;
    DslDirectoryPhys::decode(bonus, object.dnode().endian).named(&name)
}

/// Reads a dataset's stored metadata.
pub(super) fn dataset_phys(
    pool: &Arc<PoolView>,
    id: ObjectId,
) -> Result<DslDatasetPhys, DatasetError> {
    let name = format!("dataset {id}");
    let object = pool.mos().object(id).named(&name)?;
    if object.dnode().bonus_type != ObjectType::DSL_DATASET {
        let error = DecodeError::new("DSL dataset", "the object is not a dataset", 0);
        return Err(error).named(&name);
    }
    let bonus = object.bonus().named(&name)?;
    DslDatasetPhys::decode(bonus, object.dnode().endian).named(&name)
}
