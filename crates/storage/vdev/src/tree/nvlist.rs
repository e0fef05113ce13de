//! Decodes a vdev's nvlist into a [`VdevConfig`].

use millpond_nvlist::{LookupError, NvList, NvValue};
use millpond_ondisk::{Guid, ObjectId, Txg, VdevId};

use super::{DEPTH_MAX, VdevConfig, VdevType};

/// A vdev nvlist that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VdevConfigError {
    /// A required key is absent, or a key has the wrong type.
    #[error("vdev configuration: {0}")]
    Lookup(#[from] LookupError),
    /// `type` has an unknown value.
    #[error("vdev configuration: unknown type '{0}'")]
    UnknownType(String),
    /// Vdevs nest too deep.
    #[error("vdev configuration: vdevs nest more than {DEPTH_MAX} deep")]
    TooDeep,
    /// The children of a dRAID vdev form several failure groups, which is not supported.
    #[error("vdev configuration: dRAID with failure groups")]
    FailureGroups,
}

impl VdevConfig {
    /// Decodes a vdev and its descendants from `vdev_tree` of a label, the MOS configuration or the cache
    /// file, or from a list of spares. Unknown keys are ignored; invalid UTF-8 is replaced.
    ///
    /// Allocates in proportion to the list.
    ///
    /// # Errors
    /// [`VdevConfigError`] if `type` is absent or unknown, a known key has another type, or vdevs nest more
    /// than [`DEPTH_MAX`] deep.
    pub fn from_nvlist(list: &NvList) -> Result<Self, VdevConfigError> {
        read(list, 0)
    }
}

/// Recursion is bounded by [`DEPTH_MAX`].
fn read(list: &NvList, depth: usize) -> Result<VdevConfig, VdevConfigError> {
    if depth > DEPTH_MAX {
        return Err(VdevConfigError::TooDeep);
    }
    let name = list.string("type")?;
    let kind =
        VdevType::from_name(name).ok_or_else(|| VdevConfigError::UnknownType(name.to_owned()))?;
    let number = |key: &str| list.opt_u64(key);
    let object = |key: &str| number(key).map(|value| value.filter(|id| *id != 0).map(ObjectId));
    let txg = |key: &str| number(key).map(|value| value.map(Txg));
    let is_set = |key: &str| number(key).map(|value| value.unwrap_or(0) != 0);
    let mut children = Vec::new();
    if let Some(lists) = list.opt_list_array("children")? {
        for child in lists {
            children.push(read(child, depth.saturating_add(1))?);
        }
    }
    // A single group of all children is the same as in earlier versions of dRAID.
    let group = number("draid_nchildren")?.map(usize::try_from);
    if group.is_some_and(|count| count != Ok(children.len())) {
        return Err(VdevConfigError::FailureGroups);
    }
    Ok(VdevConfig {
        kind,
        id: number("id")?,
        guid: Guid(number("guid")?.unwrap_or(0)),
        path: text(list, "path")?,
        devid: text(list, "devid")?,
        phys_path: text(list, "phys_path")?,
        enclosure_path: text(list, "vdev_enc_sysfs_path")?,
        nparity: number("nparity")?,
        draid_ndata: number("draid_ndata")?,
        draid_nspares: number("draid_nspares")?,
        draid_ngroups: number("draid_ngroups")?,
        raidz_expanding: list.flag("raidz_expanding"),
        raidz_expand_txgs: list
            .opt_u64_array("raidz_expand_txgs")?
            .map_or_else(Vec::new, |txgs| txgs.iter().copied().map(Txg).collect()),
        spare_id: number("spareid")?,
        top_guid: number("top_guid")?.map(Guid),
        whole_disk: number("whole_disk")?.map(|value| value != 0),
        not_present: is_set("not_present")?,
        is_spare: is_set("is_spare")?,
        is_log: is_set("is_log")?,
        metaslab_array: ObjectId(number("metaslab_array")?.unwrap_or(0)),
        metaslab_shift: number("metaslab_shift")?.unwrap_or(0),
        ashift: number("ashift")?.unwrap_or(0),
        asize_bytes: number("asize")?.unwrap_or(0),
        min_alloc_bytes: number("min_alloc")?,
        non_allocating: is_set("non_allocating")?,
        removing: is_set("removing")?,
        dtl: object("DTL")?,
        indirect_mapping: object("com.delphix:indirect_object")?,
        indirect_births: object("com.delphix:indirect_births")?,
        // A value that is no valid vdev id (all ones) also means "none".
        prev_indirect_vdev: number("com.delphix:prev_indirect_vdev")?
            .and_then(|id| u32::try_from(id).ok())
            .map(VdevId),
        create_txg: txg("create_txg")?,
        zap_leaf: object("com.delphix:vdev_zap_leaf")?,
        zap_top: object("com.delphix:vdev_zap_top")?,
        zap_root: object("com.klarasystems:vdev_zap_root")?,
        resilver_deferred: list.flag("com.datto:resilver_defer"),
        offline: is_set("offline")?,
        faulted: is_set("faulted")?,
        degraded: is_set("degraded")?,
        removed: is_set("removed")?,
        unspare: is_set("unspare")?,
        aux_state: text(list, "aux_state")?,
        resilver_txg: txg("resilver_txg")?,
        rebuild_txg: txg("rebuild_txg")?,
        expansion_time: number("expansion_time")?,
        orig_guid: number("orig_guid")?.map(Guid),
        children,
    })
}

fn text(list: &NvList, key: &str) -> Result<Option<String>, LookupError> {
    match list.get(key) {
        Some(NvValue::String(value)) => Ok(Some(value.to_string_lossy().into_owned())),
        // Absent or of another type: the typed lookup makes the error.
        _ => list.opt_string(key).map(|value| value.map(str::to_owned)),
    }
}
