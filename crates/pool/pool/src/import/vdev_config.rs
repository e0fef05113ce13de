//! A vdev's name/value list as plain values.
//!
//! Page `docs/format/vdev-tree.md`.

use super::ConfigError;
use millpond_nvlist::{LookupError, NvList, NvString};
use millpond_ondisk::{Guid, ObjectId, Txg, VdevId};
use millpond_vdev::{NODES_MAX, VdevConfig, VdevType};

/// Reads a vdev and everything below it. Only types are checked here: `VdevTree::new` judges
/// whether a pool could be like that.
///
/// Recursion is bounded by the depth of name/value lists, memory by [`NODES_MAX`] vdevs.
///
/// # Errors
/// [`ConfigError`] if `type` is absent or unknown, or a key is of another type than pools write.
pub fn decode_vdev(list: &NvList) -> Result<VdevConfig, ConfigError> {
    let mut left = NODES_MAX;
    decode(list, &mut left)
}

fn decode(list: &NvList, left: &mut usize) -> Result<VdevConfig, ConfigError> {
    *left = left
        .checked_sub(1)
        .ok_or(ConfigError::TooManyVdevs { limit: NODES_MAX })?;
    let guid = Guid(list.opt_u64("guid")?.unwrap_or(0));
    let word = list.raw_string("type")?.to_string_lossy();
    let kind = VdevType::from_name(&word).ok_or_else(|| ConfigError::UnknownVdevKind {
        guid: guid.0,
        kind: word.chars().take(KIND_SHOWN_MAX).collect(),
    })?;
    let mut vdev = VdevConfig::new(kind, guid);
    let number = |name: &str| list.opt_u64(name);
    let object = |name: &str| number(name).map(|found| found.map(ObjectId));
    let txg = |name: &str| number(name).map(|found| found.map(Txg));
    let is_set = |name: &str| number(name).map(|found| found.is_some_and(|value| value != 0));

    vdev.id = number("id")?;
    vdev.path = text(list, "path")?;
    vdev.devid = text(list, "devid")?;
    vdev.phys_path = text(list, "phys_path")?;
    vdev.enclosure_path = text(list, "vdev_enc_sysfs_path")?;
    vdev.nparity = number("nparity")?;
    vdev.draid_ndata = number("draid_ndata")?;
    vdev.draid_nspares = number("draid_nspares")?;
    vdev.draid_ngroups = number("draid_ngroups")?;
    vdev.raidz_expanding = list.flag("raidz_expanding");
    vdev.raidz_expand_txgs = list
        .opt_u64_array("raidz_expand_txgs")?
        .unwrap_or(&[])
        .iter()
        .copied()
        .map(Txg)
        .collect();
    vdev.spare_id = number("spareid")?;
    vdev.top_guid = number("top_guid")?.map(Guid);
    vdev.whole_disk = number("whole_disk")?.map(|value| value != 0);
    vdev.not_present = is_set("not_present")?;
    vdev.is_spare = is_set("is_spare")?;
    vdev.is_log = is_set("is_log")?;
    vdev.metaslab_array = object("metaslab_array")?.unwrap_or(ObjectId(0));
    vdev.metaslab_shift = number("metaslab_shift")?.unwrap_or(0);
    vdev.ashift = number("ashift")?.unwrap_or(0);
    vdev.asize_bytes = number("asize")?.unwrap_or(0);
    vdev.min_alloc_bytes = number("min_alloc")?;
    vdev.non_allocating = is_set("non_allocating")?;
    vdev.removing = is_set("removing")?;
    vdev.dtl = object("DTL")?;
    vdev.indirect_mapping = object("com.delphix:indirect_object")?;
    vdev.indirect_births = object("com.delphix:indirect_births")?;
    vdev.prev_indirect_vdev = number("com.delphix:prev_indirect_vdev")?
        .and_then(|id| u32::try_from(id).ok())
        .map(VdevId);
    vdev.create_txg = txg("create_txg")?;
    vdev.zap_leaf = object("com.delphix:vdev_zap_leaf")?;
    vdev.zap_top = object("com.delphix:vdev_zap_top")?;
    vdev.zap_root = object("com.klarasystems:vdev_zap_root")?;
    vdev.resilver_deferred = list.flag("com.datto:resilver_defer");
    vdev.offline = is_set("offline")?;
    vdev.faulted = is_set("faulted")?;
    vdev.degraded = is_set("degraded")?;
    vdev.removed = is_set("removed")?;
    vdev.unspare = is_set("unspare")?;
    vdev.aux_state = text(list, "aux_state")?;
    vdev.resilver_txg = txg("resilver_txg")?;
    vdev.rebuild_txg = txg("rebuild_txg")?;
    vdev.expansion_time = number("expansion_time")?;
    vdev.orig_guid = number("orig_guid")?.map(Guid);
    for child in list.opt_list_array("children")?.unwrap_or(&[]) {
        vdev.children.push(decode(child, left)?);
    }
    Ok(vdev)
}

/// Paths are bytes; what is not UTF-8 is replaced, since devices are found by guid.
fn text(list: &NvList, name: &str) -> Result<Option<String>, LookupError> {
    Ok(list
        .opt_raw_string(name)?
        .map(NvString::to_string_lossy)
        .map(String::from))
}

/// Characters of an unknown kind that an error repeats.
const KIND_SHOWN_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_finds_its_field() {
        let mut list = NvList::new();
        list.insert("type", "disk");
        let names = [
            "id",
            "guid",
            "nparity",
            "draid_ndata",
            "draid_nspares",
            "draid_ngroups",
            "spareid",
            "top_guid",
            "metaslab_array",
            "metaslab_shift",
            "ashift",
            "asize",
            "min_alloc",
            "DTL",
            "com.delphix:indirect_object",
            "com.delphix:indirect_births",
            "com.delphix:prev_indirect_vdev",
            "create_txg",
            "com.delphix:vdev_zap_leaf",
            "com.delphix:vdev_zap_top",
            "com.klarasystems:vdev_zap_root",
            "resilver_txg",
            "rebuild_txg",
            "expansion_time",
            "orig_guid",
            "whole_disk",
            "not_present",
            "is_spare",
            "is_log",
            "non_allocating",
            "removing",
            "offline",
            "faulted",
            "degraded",
            "removed",
            "unspare",
        ];
        for (value, name) in (1u64..).zip(names) {
            list.insert(name, value);
        }
        for name in [
            "path",
            "devid",
            "phys_path",
            "vdev_enc_sysfs_path",
            "aux_state",
        ] {
            list.insert(name, name);
        }
        list.insert_flag("raidz_expanding");
        list.insert_flag("com.datto:resilver_defer");
        list.insert("raidz_expand_txgs", vec![8u64, 9]);
        let text = |name: &str| Some(name.to_owned());
        let expected = VdevConfig {
            kind: VdevType::Disk,
            id: Some(1),
            guid: Guid(2),
            path: text("path"),
            devid: text("devid"),
            phys_path: text("phys_path"),
            enclosure_path: text("vdev_enc_sysfs_path"),
            nparity: Some(3),
            draid_ndata: Some(4),
            draid_nspares: Some(5),
            draid_ngroups: Some(6),
            raidz_expanding: true,
            raidz_expand_txgs: vec![Txg(8), Txg(9)],
            spare_id: Some(7),
            top_guid: Some(Guid(8)),
            metaslab_array: ObjectId(9),
            metaslab_shift: 10,
            ashift: 11,
            asize_bytes: 12,
            min_alloc_bytes: Some(13),
            dtl: Some(ObjectId(14)),
            indirect_mapping: Some(ObjectId(15)),
            indirect_births: Some(ObjectId(16)),
            prev_indirect_vdev: Some(VdevId(17)),
            create_txg: Some(Txg(18)),
            zap_leaf: Some(ObjectId(19)),
            zap_top: Some(ObjectId(20)),
            zap_root: Some(ObjectId(21)),
            resilver_txg: Some(Txg(22)),
            rebuild_txg: Some(Txg(23)),
            expansion_time: Some(24),
            orig_guid: Some(Guid(25)),
            whole_disk: Some(true),
            not_present: true,
            is_spare: true,
            is_log: true,
            non_allocating: true,
            removing: true,
            offline: true,
            faulted: true,
            degraded: true,
            removed: true,
            unspare: true,
            resilver_deferred: true,
            aux_state: text("aux_state"),
            children: Vec::new(),
        };
        assert_eq!(decode_vdev(&list), Ok(expected));
    }

    #[test]
    fn unknown_kinds_and_wrong_types_are_errors() {
        let mut list = NvList::new();
        assert!(matches!(
            decode_vdev(&list),
            Err(ConfigError::Lookup(LookupError::Missing { .. }))
        ));
        list.insert("type", "l2cache");
        assert!(matches!(
            decode_vdev(&list),
            Err(ConfigError::UnknownVdevKind { .. })
        ));
        list.insert("type", "disk");
        list.insert("ashift", "12");
        assert!(matches!(
            decode_vdev(&list),
            Err(ConfigError::Lookup(LookupError::WrongType { .. }))
        ));
    }
}
