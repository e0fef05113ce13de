//! Sets properties and quotas of datasets, wherever they are stored.

use super::apply::values;
use crate::change::change_error;
use millpond_control::{ChangeError, OwnerQuota, Value, Values};
use millpond_dataset::properties::NEEDS_UPGRADE;
use millpond_engine::{OwnerKind, Pool};
use millpond_ondisk::PoolVersion;
use millpond_ondisk::dsl::keys::master_node;
use millpond_posix::{FileError, QuotaMeasure, QuotaOwner};

/// Why a property or quota inside a file system was not set.
fn not_set(error: &FileError) -> ChangeError {
    ChangeError::Failed(match error {
        FileError::OldVersion { .. } => NEEDS_UPGRADE.to_owned(),
        error => error.to_string(),
    })
}

/// The owners of a request, for a file system.
fn quota_owner(owners: OwnerKind) -> QuotaOwner {
    match owners {
        OwnerKind::User => QuotaOwner::User,
        OwnerKind::Group => QuotaOwner::Group,
        OwnerKind::Project => QuotaOwner::Project,
    }
}

/// Sets properties. Those stored inside the file system or volume come after those stored in the DSL.
pub(super) fn set(pool: &Pool, name: &str, properties: &Values) -> Result<(), ChangeError> {
    let is_inside = |property: &str| {
        matches!(property, "volsize" | "version") || master_node::default_quota(property).is_some()
    };
    let pairs = properties.iter().cloned();
    let (inside, beside): (Values, Values) = pairs.partition(|(property, _)| is_inside(property));
    // Checks the version before anything is changed.
    for (property, value) in &inside {
        if let ("version", Value::Number(number)) = (property.as_str(), value) {
            let version = PoolVersion(pool.inner().version());
            if version < PoolVersion::for_file_systems(*number) {
                return Err(ChangeError::Failed(NEEDS_UPGRADE.to_owned()));
            }
            let may = pool
                .file_system(name)
                .map_err(change_error)?
                .check_new_version(*number);
            may.map_err(|error| ChangeError::Failed(error.to_string()))?;
        }
    }
    if !beside.is_empty() {
        pool.datasets().set_properties(name, &values(&beside))?;
    }
    set_in_contents(pool, name, &inside)
}

/// Sets quotas of owners in a file system. They are on stable storage when this returns.
pub(super) fn set_owner_quotas(
    pool: &Pool,
    name: &str,
    quotas: &[OwnerQuota],
) -> Result<(), ChangeError> {
    if quotas.is_empty() {
        return Ok(());
    }
    let files = pool.file_system(name).map_err(change_error)?;
    for quota in quotas {
        let (owner, of) = (quota_owner(quota.owners), measure(quota.of_objects));
        let done = files.set_quota(owner, of, quota.id, quota.limit);
        done.map_err(|error| not_set(&error))?;
    }
    pool.sync().map_err(change_error)
}

/// Sets the size of a volume, or the version and the default quotas of a file system. They are on stable
/// storage when this returns.
pub(super) fn set_in_contents(
    pool: &Pool,
    name: &str,
    properties: &[(String, Value)],
) -> Result<(), ChangeError> {
    let failed = |error: &dyn std::fmt::Display| ChangeError::Failed(error.to_string());
    for (property, value) in properties {
        let Value::Number(number) = *value else {
            return Err(ChangeError::Failed(format!(
                "bad numeric value for '{property}'"
            )));
        };
        if property == "version" {
            pool.raise_version(name, number).map_err(change_error)?;
        } else if let Some((owner, of_objects)) = master_node::default_quota(property) {
            let owners = [QuotaOwner::User, QuotaOwner::Group, QuotaOwner::Project];
            let files = pool.file_system(name).map_err(change_error)?;
            let set = files.set_default_quota(owners[owner], measure(of_objects), number);
            set.map_err(|error| not_set(&error))?;
        } else {
            let resized = pool.volume(name).map_err(change_error)?.resize(number);
            resized.map_err(|error| failed(&error))?;
        }
    }
    if !properties.is_empty() {
        pool.sync().map_err(change_error)?;
    }
    Ok(())
}

/// What a quota of a request limits.
fn measure(of_objects: bool) -> QuotaMeasure {
    match of_objects {
        true => QuotaMeasure::Objects,
        false => QuotaMeasure::Bytes,
    }
}
