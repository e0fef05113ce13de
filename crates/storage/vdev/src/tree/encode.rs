//! Encodes a [`VdevConfig`] as a vdev nvlist.

use millpond_nvlist::NvList;
use millpond_ondisk::{Guid, ObjectId};

use super::{DEPTH_MAX, VdevConfig, VdevType};

/// The purpose of a vdev nvlist. Page `docs/format/vdev-tree.md`, "Who carries which key".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VdevListScope {
    /// Labels: without the vdevs' ZAPs, which are useful only to a reader of the pool's objects.
    Label,
    /// The pool's own configuration and the cache file: everything.
    Pool,
}

impl VdevConfig {
    /// Encodes the vdev and its descendants as in `vdev_tree`: keys in the order of OpenZFS, without absent
    /// ones.
    ///
    /// Decoding and encoding a list of OpenZFS reproduces it, except for unknown keys. Children below
    /// [`DEPTH_MAX`] levels are left out; no validated tree has any.
    #[must_use]
    pub fn to_nvlist(&self, scope: VdevListScope) -> NvList {
        write(self, scope, true, 0)
    }

    /// Encodes the entry of a hot spare or cache device in the pool's list: without position and space.
    #[must_use]
    pub fn to_auxiliary_nvlist(&self) -> NvList {
        write(self, VdevListScope::Pool, false, 0)
    }
}

/// Encodes a vdev. It is a top-level vdev if its parent is the root or if it is the head of a label.
fn write(vdev: &VdevConfig, scope: VdevListScope, is_head: bool, depth: usize) -> NvList {
    let is_root = vdev.kind == VdevType::Root;
    let is_top = is_head && !is_root;
    let mut list = NvList::new();
    list.insert("type", vdev.kind.name());
    if let Some(id) = vdev.id {
        list.insert("id", id);
    }
    list.insert("guid", vdev.guid.0);
    for (key, text) in [
        ("path", &vdev.path),
        ("devid", &vdev.devid),
        ("phys_path", &vdev.phys_path),
        ("vdev_enc_sysfs_path", &vdev.enclosure_path),
    ] {
        if let Some(text) = text {
            list.insert(key, text.as_str());
        }
    }
    insert_some(&mut list, "nparity", vdev.nparity);
    insert_some(&mut list, "draid_ndata", vdev.draid_ndata);
    insert_some(&mut list, "draid_nspares", vdev.draid_nspares);
    insert_some(&mut list, "draid_ngroups", vdev.draid_ngroups);
    if vdev.raidz_expanding {
        list.insert_flag("raidz_expanding");
    }
    if !vdev.raidz_expand_txgs.is_empty() {
        let txgs: Vec<u64> = vdev.raidz_expand_txgs.iter().map(|txg| txg.0).collect();
        list.insert("raidz_expand_txgs", txgs);
    }
    insert_some(&mut list, "top_guid", vdev.top_guid.map(|guid| guid.0));
    insert_some(&mut list, "spareid", vdev.spare_id);
    insert_some(&mut list, "whole_disk", vdev.whole_disk.map(u64::from));
    insert_set(&mut list, "not_present", vdev.not_present);
    insert_set(&mut list, "is_spare", vdev.is_spare);
    if is_top {
        insert_top(&mut list, vdev);
    } else if vdev.ashift != 0 {
        // Entries of the lists of spares and cache devices.
        list.insert("ashift", vdev.ashift);
    }
    insert_object(&mut list, "DTL", vdev.dtl);
    insert_object(
        &mut list,
        "com.delphix:indirect_object",
        vdev.indirect_mapping,
    );
    insert_object(
        &mut list,
        "com.delphix:indirect_births",
        vdev.indirect_births,
    );
    insert_some(
        &mut list,
        "com.delphix:prev_indirect_vdev",
        vdev.prev_indirect_vdev.map(|id| u64::from(id.0)),
    );
    insert_some(&mut list, "create_txg", vdev.create_txg.map(|txg| txg.0));
    insert_some(&mut list, "expansion_time", vdev.expansion_time);
    if scope == VdevListScope::Pool {
        insert_object(&mut list, "com.delphix:vdev_zap_leaf", vdev.zap_leaf);
        insert_object(&mut list, "com.delphix:vdev_zap_top", vdev.zap_top);
        insert_object(&mut list, "com.klarasystems:vdev_zap_root", vdev.zap_root);
        if vdev.resilver_deferred {
            list.insert_flag("com.datto:resilver_defer");
        }
    }
    // Removed vdevs keep an empty array.
    let is_interior = !vdev.children.is_empty() || vdev.kind == VdevType::Indirect;
    if is_interior && depth < DEPTH_MAX {
        let children: Vec<NvList> = vdev
            .children
            .iter()
            .map(|child| write(child, scope, is_root, depth.saturating_add(1)))
            .collect();
        list.insert("children", children);
    }
    insert_set(&mut list, "offline", vdev.offline);
    insert_some(
        &mut list,
        "resilver_txg",
        vdev.resilver_txg.map(|txg| txg.0),
    );
    insert_some(&mut list, "rebuild_txg", vdev.rebuild_txg.map(|txg| txg.0));
    insert_set(&mut list, "faulted", vdev.faulted);
    insert_set(&mut list, "degraded", vdev.degraded);
    insert_set(&mut list, "removed", vdev.removed);
    insert_set(&mut list, "unspare", vdev.unspare);
    insert_set(&mut list, "is_hole", vdev.kind == VdevType::Hole);
    if let Some(text) = &vdev.aux_state {
        list.insert("aux_state", text.as_str());
    }
    insert_some(
        &mut list,
        "orig_guid",
        vdev.orig_guid.map(|Guid(guid)| guid),
    );
    list
}

/// Inserts what only top-level vdevs have.
fn insert_top(list: &mut NvList, vdev: &VdevConfig) {
    list.insert("metaslab_array", vdev.metaslab_array.0);
    list.insert("metaslab_shift", vdev.metaslab_shift);
    list.insert("ashift", vdev.ashift);
    list.insert("asize", vdev.asize_bytes);
    insert_some(list, "min_alloc", vdev.min_alloc_bytes);
    list.insert("is_log", u64::from(vdev.is_log));
    insert_set(list, "non_allocating", vdev.non_allocating);
    insert_set(list, "removing", vdev.removing);
}

fn insert_some(list: &mut NvList, key: &str, value: Option<u64>) {
    if let Some(value) = value {
        list.insert(key, value);
    }
}

fn insert_set(list: &mut NvList, key: &str, is_set: bool) {
    if is_set {
        list.insert(key, 1u64);
    }
}

fn insert_object(list: &mut NvList, key: &str, id: Option<ObjectId>) {
    insert_some(list, key, id.map(|id| id.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::Txg;

    fn leaf(id: u64, guid: u64) -> VdevConfig {
        VdevConfig {
            id: Some(id),
            path: Some(format!("/images/d{id}")),
            create_txg: Some(Txg(4)),
            zap_leaf: Some(ObjectId(60 + id)),
            ..VdevConfig::new(VdevType::File, Guid(guid))
        }
    }

    fn pool() -> VdevConfig {
        let raidz = VdevConfig {
            id: Some(0),
            nparity: Some(1),
            metaslab_array: ObjectId(70),
            metaslab_shift: 24,
            ashift: 12,
            asize_bytes: 187_170_816,
            create_txg: Some(Txg(4)),
            zap_top: Some(ObjectId(67)),
            children: vec![leaf(0, 3), leaf(1, 4), leaf(2, 5)],
            ..VdevConfig::new(VdevType::Raidz, Guid(2))
        };
        let hole = VdevConfig {
            id: Some(1),
            ..VdevConfig::hole()
        };
        VdevConfig {
            id: Some(0),
            create_txg: Some(Txg(4)),
            zap_root: Some(ObjectId(66)),
            ..VdevConfig::root(Guid(1), vec![raidz, hole])
        }
    }

    #[test]
    fn vdev_trees_round_trip() {
        let list = pool().to_nvlist(VdevListScope::Pool);
        assert_eq!(VdevConfig::from_nvlist(&list), Ok(pool()));
    }

    #[test]
    fn labels_carry_no_zaps_and_only_top_level_vdevs_carry_space() {
        let tree = pool();
        let list = tree.children[0].to_nvlist(VdevListScope::Label);
        let keys: Vec<_> = list
            .iter()
            .map(|pair| pair.name.to_string_lossy().into_owned())
            .collect();
        assert_eq!(
            keys,
            [
                "type",
                "id",
                "guid",
                "nparity",
                "metaslab_array",
                "metaslab_shift",
                "ashift",
                "asize",
                "is_log",
                "create_txg",
                "children"
            ]
        );
        let child = &list.list_array("children").unwrap()[0];
        let keys: Vec<_> = child
            .iter()
            .map(|pair| pair.name.to_string_lossy().into_owned())
            .collect();
        assert_eq!(keys, ["type", "id", "guid", "path", "create_txg"]);
    }

    #[test]
    fn a_hole_is_encoded_as_a_hole() {
        let list = pool().to_nvlist(VdevListScope::Pool);
        let hole = &list.list_array("children").unwrap()[1];
        assert_eq!(hole.u64("is_hole"), Ok(1));
        assert_eq!(hole.u64("guid"), Ok(0));
        assert_eq!(hole.u64("asize"), Ok(0));
    }
}
