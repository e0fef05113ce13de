//! Derives the contents of a new dataset from its properties.

use crate::DatasetError;
use crate::heads::features;
use crate::heads::initializer::{FILE_SYSTEM_VERSION, NewContents, NewFileSystem};
use crate::mos::During;
use crate::properties::{NEEDS_UPGRADE, PropertyValue, table};
use crate::tasks::change_property::Setting;
use crate::tasks::context::SyncTaskContext;
use millpond_object::ObjectSetView;
use millpond_ondisk::dsl::keys::master_node;
use millpond_ondisk::{ObjectId, ObjectSetKind, PoolVersion};
use millpond_pool::PoolError;
use millpond_zap::Zap;

/// The default block size of volumes in bytes.
const VOLUME_BLOCK_BYTES: u64 = 16 << 10;
const MASTER_NODE: ObjectId = ObjectId(1);
/// The first file system version that has rules for comparing names.
const NAME_RULES: u64 = 3;
/// The first file system version that has quotas of owners.
const OWNER_QUOTAS: u64 = 4;

/// Splits the properties of a new dataset below `parent` into those that determine its contents and those
/// that are stored.
///
/// A file system inherits name comparison and default quotas from its parent.
pub(crate) fn check(
    view: &SyncTaskContext<'_>,
    name: &str,
    kind: ObjectSetKind,
    parent: Option<ObjectId>,
    properties: &[(String, PropertyValue)],
) -> Result<(NewContents, Vec<Setting>), DatasetError> {
    let invalid = |property: &str, reason: &str| DatasetError::InvalidProperty {
        name: name.to_owned(),
        property: property.to_owned(),
        reason: reason.to_owned(),
    };
    let mut fixed = Fixed::default();
    fixed.files.version = view.version().file_system_version_max();
    if let Some(parent) = parent
        && kind == ObjectSetKind::FileSystem
    {
        fixed.inherit(view, parent)?;
    }
    let mut settings: Vec<Setting> = vec![];
    let mut utf8_only = None;
    let mut has_own_normalization = false;
    for (property, value) in properties {
        let full = table::find(property).map_or(property.as_str(), |known| known.shape.name);
        let number = || number_of(full, value).ok_or_else(|| invalid(full, "has an invalid value"));
        match (full, kind) {
            ("normalization", ObjectSetKind::FileSystem) => {
                fixed.files.normalization = number()?;
                has_own_normalization = true;
                utf8_only = utf8_only.or(Some(fixed.files.normalization != 0));
            }
            ("utf8only", ObjectSetKind::FileSystem) => utf8_only = Some(number()? != 0),
            ("casesensitivity", ObjectSetKind::FileSystem) => {
                fixed.files.case_sensitivity = number()?;
            }
            ("version", ObjectSetKind::FileSystem) => {
                fixed.files.version = number()?;
            }
            ("volsize", ObjectSetKind::Volume) => fixed.size_bytes = number()?,
            ("volblocksize", ObjectSetKind::Volume) => fixed.block_bytes = number()?,
            (quota, ObjectSetKind::FileSystem) if let Some(at) = default_quota_index(quota) => {
                fixed.files.default_quotas.get_or_insert([0; 6])[at] = number()?;
            }
            _ => {
                let setting = view.check_value(name, kind, property, value)?;
                if settings.iter().any(|other| other.name == setting.name) {
                    return Err(invalid(full, "specified multiple times"));
                }
                settings.push(setting);
            }
        }
    }
    let known = view.pool.features();
    let is_enabled = |guid: &str| known.count(guid).is_some();
    let new = match kind {
        ObjectSetKind::Volume => {
            let max: u64 = match is_enabled(features::LARGE_BLOCKS) {
                true => 16 << 20,
                false => 128 << 10,
            };
            let block = fixed.block_bytes;
            if !block.is_power_of_two() || !(512..=max).contains(&block) {
                return Err(invalid(
                    "volblocksize",
                    "must be power of 2 from 512B to 16M",
                ));
            }
            if fixed.size_bytes == 0 {
                return Err(invalid("volsize", "cannot be zero"));
            }
            if !fixed.size_bytes.is_multiple_of(block) {
                return Err(invalid(
                    "volsize",
                    "must be a multiple of volume block size",
                ));
            }
            NewContents::Volume {
                size_bytes: fixed.size_bytes,
                block_bytes: u32::try_from(block).unwrap_or(u32::MAX),
            }
        }
        _ => {
            // Names of any bytes have no normal form, so that of the parent is not inherited.
            if utf8_only == Some(false) && !has_own_normalization {
                fixed.files.normalization = 0;
            }
            if utf8_only == Some(false) && fixed.files.normalization != 0 {
                let reason = "must be set 'on' if normalization chosen";
                return Err(invalid("utf8only", reason));
            }
            if let Some(utf8_only) = utf8_only {
                fixed.files.is_utf8_only = utf8_only;
            }
            check_version(&fixed.files, view.version())
                .map_err(|(property, reason)| invalid(property, reason))?;
            fixed.files.has_projects = is_enabled(features::PROJECT_QUOTA);
            NewContents::FileSystem(fixed.files)
        }
    };
    Ok((new, settings))
}

/// Checks that a file system of its version can have its other properties. Returns the wrong property and the reason.
fn check_version(
    files: &NewFileSystem,
    pool: PoolVersion,
) -> Result<(), (&'static str, &'static str)> {
    let version = files.version;
    if !(1..=FILE_SYSTEM_VERSION).contains(&version) {
        return Err(("version", "must be one of '1 | 2 | 3 | 4 | 5 | current'"));
    }
    if version > pool.file_system_version_max() {
        return Err(("version", NEEDS_UPGRADE));
    }
    let has_quotas = files.default_quotas.is_some_and(|quotas| quotas != [0; 6]);
    let rules = [
        ("normalization", files.normalization != 0, NAME_RULES),
        ("utf8only", files.is_utf8_only, NAME_RULES),
        ("casesensitivity", files.case_sensitivity != 0, NAME_RULES),
        ("version", has_quotas, OWNER_QUOTAS),
    ];
    match rules
        .iter()
        .find(|(_, is_set, needed)| *is_set && version < *needed)
    {
        Some((property, _, _)) => Err((*property, NEEDS_UPGRADE)),
        None => Ok(()),
    }
}

struct Fixed {
    files: NewFileSystem,
    size_bytes: u64,
    block_bytes: u64,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            files: NewFileSystem::default(),
            size_bytes: 0,
            block_bytes: VOLUME_BLOCK_BYTES,
        }
    }
}

impl Fixed {
    /// Reads the inherited choices from the parent's last committed state, or from memory if the parent was
    /// created in this txg.
    fn inherit(&mut self, view: &SyncTaskContext<'_>, parent: ObjectId) -> Result<(), PoolError> {
        const WHAT: &str = "master node of the parent";
        let Some(head) = view.directory(parent)?.head_dataset else {
            return Ok(());
        };
        let pointer = view.dataset(head)?.block_pointer;
        let zap = if pointer.is_hole() {
            let Some(set) = view.datasets.open_set(head) else {
                return Ok(());
            };
            // All of the parent is in memory: an absent object does not exist.
            match set.object(MASTER_NODE) {
                Ok(node) if set.kind() == ObjectSetKind::FileSystem => {
                    Zap::of_object(&node).during(WHAT)?
                }
                _ => return Ok(()),
            }
        } else {
            let store = std::sync::Arc::clone(view.pool.store());
            let set = ObjectSetView::open(store, head.0, pointer, None).during(WHAT)?;
            // A parent that was created but never filled (as by `ztest`) has nothing to inherit.
            if set.kind() != ObjectSetKind::FileSystem || set.object_count() == 0 {
                return Ok(());
            }
            Zap::open(set.object(MASTER_NODE).during(WHAT)?).during(WHAT)?
        };
        let number = |key: &str| zap.lookup_u64(key.as_bytes()).during(WHAT);
        self.files.normalization = number(master_node::NORMALIZATION)?.unwrap_or(0);
        self.files.is_utf8_only = number(master_node::UTF8_ONLY)?.unwrap_or(0) != 0;
        self.files.case_sensitivity = number(master_node::CASE_SENSITIVITY)?.unwrap_or(0);
        let keys = master_node::DEFAULT_QUOTAS
            .iter()
            .chain(&master_node::DEFAULT_OBJECT_QUOTAS);
        let mut quotas = [0; 6];
        let mut has_any = false;
        for (quota, key) in quotas.iter_mut().zip(keys) {
            if let Some(number) = number(key)? {
                has_any = true;
                *quota = number;
            }
        }
        if has_any {
            self.files.default_quotas = Some(quotas);
        }
        Ok(())
    }
}

/// The index of a default quota among the six: bytes of user, group and project, then objects.
fn default_quota_index(name: &str) -> Option<usize> {
    let (owner, of_objects) = master_node::default_quota(name)?;
    Some(owner + if of_objects { 3 } else { 0 })
}

/// The value as a number, or the number of a word.
pub(crate) fn number_of(property: &str, value: &PropertyValue) -> Option<u64> {
    match value {
        PropertyValue::Number(number) => Some(*number),
        PropertyValue::Text(text) => table::find(property)?
            .shape
            .number_of(text)
            .or_else(|| text.parse().ok()),
    }
}
