//! Space usage and quotas of users, groups and projects.
//!
//! Page `docs/format/space-accounting.md`, "Owners".

use crate::error::Named;
use crate::properties::special::OwnerKind;
use crate::{Dataset, DatasetError, DatasetKey};
use millpond_env::sync::Arc;
use millpond_object::{Accounting, ObjectSetView, ObjectView};
use millpond_ondisk::dsl::{hex_key_number, keys::master_node};
use millpond_ondisk::{ObjectId, ObjectSetKind};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// Prefix of the entries that count objects.
const OBJECTS_PREFIX: &[u8] = b"obj-";
const MASTER_NODE: ObjectId = ObjectId(1);

/// Usage and quotas of one user, group or project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OwnerSpace {
    /// The uid, gid or project id.
    pub id: u64,
    /// Bytes charged to the owner.
    pub used_bytes: u64,
    /// Quota in bytes, 0 for no limit: the owner's own quota, or else the file system's default.
    pub quota_bytes: u64,
    /// Number of files charged to the owner; `None` if the file system does not count files.
    pub objects: Option<u64>,
    /// Quota in files, 0 for no limit; `None` as for `objects`.
    pub objects_quota: Option<u64>,
}

impl Dataset {
    /// Usage and quotas of all users, groups or projects of a file system or snapshot, ordered by id.
    ///
    /// Includes every owner with charged space or an own quota. Empty if the file system has no accounting
    /// by owner. Memory use is proportional to the tables.
    ///
    /// # Errors
    /// [`DatasetError::Locked`] if an encrypted dataset's key is missing, or an error if a table cannot be
    /// read.
    pub fn space_by_owner(
        &self,
        owners: OwnerKind,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<Vec<OwnerSpace>, DatasetError> {
        let name = self.name();
        let set = self.object_set(key)?;
        if set.kind() != ObjectSetKind::FileSystem {
            return Ok(vec![]);
        }
        let (accounting, index) = place_of(owners);
        let master = Zap::open(set.object(MASTER_NODE).named(name)?).named(name)?;
        let number = |key: &str| master.lookup_u64(key.as_bytes()).named(name);
        let limits = |key: &str| match number(key)?.and_then(|id| ObjectId(id).some()) {
            None => Ok(BTreeMap::new()),
            Some(id) => read_limits(&set, id, name),
        };
        let byte_limits = limits(master_node::QUOTAS[index])?;
        let object_limits = limits(master_node::OBJECT_QUOTAS[index])?;
        let byte_default = number(master_node::DEFAULT_QUOTAS[index])?.unwrap_or(0);
        let object_default = number(master_node::DEFAULT_OBJECT_QUOTAS[index])?.unwrap_or(0);

        let (used, objects) = match set.accounting(accounting) {
            Some(object) => read_counters(object, name)?,
            None => (BTreeMap::new(), BTreeMap::new()),
        };
        let are_objects_counted = !objects.is_empty();
        let mut ids: Vec<u64> = used
            .keys()
            .chain(objects.keys())
            .chain(byte_limits.keys())
            .chain(object_limits.keys())
            .copied()
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let of = |table: &BTreeMap<u64, u64>, id: &u64| table.get(id).copied();
        let row = |id: &u64| OwnerSpace {
            id: *id,
            used_bytes: of(&used, id).unwrap_or(0),
            quota_bytes: of(&byte_limits, id).unwrap_or(byte_default),
            objects: are_objects_counted.then(|| of(&objects, id).unwrap_or(0)),
            objects_quota: are_objects_counted
                .then(|| of(&object_limits, id).unwrap_or(object_default)),
        };
        Ok(ids.iter().map(row).collect())
    }
}

impl Dataset {
    /// Usage and quotas of one user, group or project; `None` if the file system has no accounting by
    /// owner.
    ///
    /// Unlike [`Dataset::space_by_owner`], ignores the file system's default quotas.
    ///
    /// # Errors
    /// As for [`Dataset::space_by_owner`].
    pub fn owner_space(
        &self,
        owners: OwnerKind,
        id: u64,
        key: Option<Arc<DatasetKey>>,
    ) -> Result<Option<OwnerSpace>, DatasetError> {
        let name = self.name();
        let set = self.object_set(key)?;
        if set.kind() != ObjectSetKind::FileSystem {
            return Ok(None);
        }
        let (accounting, index) = place_of(owners);
        let master = Zap::open(set.object(MASTER_NODE).named(name)?).named(name)?;
        let limit = |key: &str| -> Result<u64, DatasetError> {
            let table = master.lookup_u64(key.as_bytes()).named(name)?;
            match table.and_then(|id| ObjectId(id).some()) {
                None => Ok(0),
                Some(table) => {
                    let zap = Zap::open(set.object(table).named(name)?).named(name)?;
                    let limit = zap.lookup_u64(format!("{id:x}").as_bytes()).named(name)?;
                    Ok(limit.unwrap_or(0))
                }
            }
        };
        let (quota_bytes, objects_quota) = (
            limit(master_node::QUOTAS[index])?,
            limit(master_node::OBJECT_QUOTAS[index])?,
        );
        let mut counters = [0; 2];
        if let Some(object) = set.accounting(accounting) {
            let zap = Zap::open(object).named(name)?;
            for (counter, key) in counters
                .iter_mut()
                .zip([format!("{id:x}"), format!("obj-{id:x}")])
            {
                *counter = zap.lookup_u64(key.as_bytes()).named(name)?.unwrap_or(0);
            }
        }
        let [used_bytes, objects] = counters;
        Ok(Some(OwnerSpace {
            id,
            used_bytes,
            quota_bytes,
            objects: Some(objects),
            objects_quota: Some(objects_quota),
        }))
    }
}

/// The accounting object of an owner kind, and the index of its quota names.
fn place_of(owners: OwnerKind) -> (Accounting, usize) {
    match owners {
        OwnerKind::User => (Accounting::User, 0),
        OwnerKind::Group => (Accounting::Group, 1),
        OwnerKind::Project => (Accounting::Project, 2),
    }
}

/// A number for each owner.
type ByOwner = BTreeMap<u64, u64>;

/// Reads the bytes and objects charged to each owner.
fn read_counters(object: ObjectView, name: &str) -> Result<(ByOwner, ByOwner), DatasetError> {
    let (mut bytes, mut objects) = (BTreeMap::new(), BTreeMap::new());
    let zap = Zap::open(object).named(name)?;
    for entry in zap.iter() {
        let entry = entry.named(name)?;
        let (table, key) = match entry.name.strip_prefix(OBJECTS_PREFIX) {
            Some(key) => (&mut objects, key),
            None => (&mut bytes, entry.name.as_slice()),
        };
        if let (Some(id), Some(count)) = (hex_key_number(key), entry.value.first()) {
            table.insert(id, count);
        }
    }
    Ok((bytes, objects))
}

fn read_limits(
    set: &Arc<ObjectSetView>,
    id: ObjectId,
    name: &str,
) -> Result<ByOwner, DatasetError> {
    let zap = Zap::open(set.object(id).named(name)?).named(name)?;
    let mut limits = BTreeMap::new();
    for entry in zap.iter() {
        let entry = entry.named(name)?;
        if let (Some(id), Some(limit)) = (hex_key_number(&entry.name), entry.value.first()) {
            limits.insert(id, limit);
        }
    }
    Ok(limits)
}
