//! Delegated permissions.

use millpond_dataset::PermissionGrant;

/// The permissions granted at one dataset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DatasetPermissions {
    /// The full name of the file system or volume.
    pub dataset: String,
    /// The permissions, by holder and reach.
    pub grants: Vec<PermissionGrant>,
}
