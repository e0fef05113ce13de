//! The configuration of a pool as values, and its name/value lists: one for each leaf's labels, one for the
//! pool's configuration object.
//!
//! Page `docs/format/pool-config.md`, "Writing".

use crate::features::counts::POOL_VERSION_FEATURES;
use crate::import::{ConfigError, LeafState};
use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{Guid, Txg};
use millpond_vdev::{VdevConfig, VdevListScope, VdevType};

/// The content of labels and the configuration object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// `version`: 1 to 28, or 5000.
    pub version: u64,
    /// `name`.
    pub name: String,
    /// `state`: active, exported or destroyed.
    pub state: LeafState,
    /// `txg` in which the configuration is written.
    pub txg: Txg,
    /// `pool_guid`.
    pub guid: Guid,
    /// `errata`: 0, or the number of a known defect.
    pub errata: u64,
    /// `min_alloc` and `max_alloc`, if the pool stores them (OpenZFS 2.4).
    pub allocation_bytes: Option<(u64, u64)>,
    /// `comment`. An empty one is kept, because it was set explicitly.
    pub comment: Option<String>,
    /// `compatibility`.
    pub compatibility: Option<String>,
    /// `hostid` of the writer; 0 is omitted.
    pub hostid: u64,
    /// `hostname` of the writer.
    pub hostname: Option<String>,
    /// `com.delphix:has_per_vdev_zaps`: every vdev has a ZAP.
    pub has_vdev_zaps: bool,
    /// `features_for_read`: guids of active features required to read the MOS, ordered by feature number.
    /// `None` if the list is absent (some old pools).
    pub features_for_read: Option<Vec<String>>,
    /// The name to store instead of `name`, for a pool that has a temporary name while it is open.
    pub stored_name: Option<String>,
    /// The root vdev with its descendants.
    pub root: VdevConfig,
}

impl PoolConfig {
    /// The configuration of an active pool of the current version, with these vdevs.
    #[must_use]
    pub fn new(name: &str, root: VdevConfig) -> Self {
        Self {
            version: POOL_VERSION_FEATURES,
            name: name.to_owned(),
            state: LeafState::Active,
            txg: Txg(0),
            guid: root.guid,
            errata: 0,
            allocation_bytes: None,
            comment: None,
            compatibility: None,
            hostid: 0,
            hostname: None,
            has_vdev_zaps: true,
            features_for_read: Some(vec![]),
            stored_name: None,
            root,
        }
    }
    /// Decodes the configuration stored in the pool.
    ///
    /// # Errors
    /// [`ConfigError`] if a required key is absent or a key has the wrong type.
    pub fn from_nvlist(list: &NvList) -> Result<Self, ConfigError> {
        let root = VdevConfig::from_nvlist(list.list("vdev_tree")?)?;
        if root.kind != VdevType::Root {
            return Err(ConfigError::NoRoot);
        }
        let text = |key: &str| match list.get(key) {
            Some(NvValue::String(value)) => Some(value.to_string_lossy().into_owned()),
            _ => None,
        };
        let number = |key: &str| list.opt_u64(key);
        let features = list.opt_list("features_for_read")?;
        Ok(Self {
            stored_name: None,
            version: number("version")?.unwrap_or(1),
            name: text("name").unwrap_or_default(),
            state: LeafState::from_number(number("state")?.unwrap_or(0))
                .filter(|state| state.has_pool())
                .unwrap_or(LeafState::Active),
            txg: Txg(number("txg")?.unwrap_or(0)),
            guid: Guid(number("pool_guid")?.unwrap_or(root.guid.0)),
            errata: number("errata")?.unwrap_or(0),
            allocation_bytes: number("min_alloc")?.zip(number("max_alloc")?),
            comment: text("comment"),
            compatibility: text("compatibility"),
            hostid: number("hostid")?.unwrap_or(0),
            hostname: text("hostname"),
            has_vdev_zaps: list.flag("com.delphix:has_per_vdev_zaps"),
            features_for_read: features.map(|features| {
                features
                    .iter()
                    .map(|pair| pair.name.to_string_lossy().into_owned())
                    .collect()
            }),
            root,
        })
    }

    /// The list for the pool's configuration object.
    #[must_use]
    pub fn pool_list(&self) -> NvList {
        let mut list = self.head();
        if self.has_vdev_zaps {
            list.insert_flag("com.delphix:has_per_vdev_zaps");
        }
        list.insert("vdev_children", self.root.children.len() as u64);
        list.insert("vdev_tree", self.root.to_nvlist(VdevListScope::Pool));
        self.insert_features(&mut list);
        list
    }

    /// The list for the labels of the leaf with this guid; `None` if the tree has no such leaf.
    ///
    /// A distributed spare has no labels, but this function still builds a list for one.
    #[must_use]
    pub fn label_list(&self, leaf: Guid) -> Option<NvList> {
        let (top, vdev) = self
            .root
            .children
            .iter()
            .find_map(|top| Some((top, find_leaf(top, leaf)?)))?;
        let mut list = self.head();
        list.insert("top_guid", top.guid.0);
        list.insert("guid", vdev.guid.0);
        if vdev.is_spare {
            list.insert("is_spare", 1u64);
        }
        if top.is_log {
            list.insert("is_log", 1u64);
        }
        let holes: Vec<u64> = (0u64..)
            .zip(&self.root.children)
            .filter(|(_, top)| top.kind == VdevType::Hole)
            .map(|(id, _)| id)
            .collect();
        if !holes.is_empty() {
            list.insert("hole_array", holes);
        }
        list.insert("vdev_children", self.root.children.len() as u64);
        list.insert("vdev_tree", top.to_nvlist(VdevListScope::Label));
        self.insert_features(&mut list);
        Some(list)
    }

    /// The list for the first labels of a leaf that is about to be added.
    ///
    /// Like [`PoolConfig::label_list`], but with txg 0 and the txg in which the leaf will be added. Such a
    /// label does not open a pool.
    #[must_use]
    pub fn initial_label_list(&self, leaf: Guid, create_txg: Txg) -> Option<NvList> {
        let mut list = self.label_list(leaf)?;
        list.insert("txg", 0u64);
        list.insert("create_txg", create_txg.0);
        Some(list)
    }

    /// The sum of all guids of the tree, modulo 2^64, for the uberblock.
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        guid_sum(&self.root)
    }

    fn head(&self) -> NvList {
        let mut list = NvList::new();
        list.insert("version", self.version);
        let name = self.stored_name.as_ref().unwrap_or(&self.name);
        list.insert("name", name.as_str());
        list.insert("state", self.state.number());
        list.insert("txg", self.txg.0);
        list.insert("pool_guid", self.guid.0);
        list.insert("errata", self.errata);
        if let Some((least, most)) = self.allocation_bytes {
            list.insert("min_alloc", least);
            list.insert("max_alloc", most);
        }
        for (key, text) in [
            ("comment", &self.comment),
            ("compatibility", &self.compatibility),
        ] {
            if let Some(text) = text {
                list.insert(key, text.as_str());
            }
        }
        if self.hostid != 0 {
            list.insert("hostid", self.hostid);
        }
        if let Some(hostname) = &self.hostname {
            list.insert("hostname", hostname.as_str());
        }
        list
    }

    fn insert_features(&self, list: &mut NvList) {
        let Some(features) = &self.features_for_read else {
            return;
        };
        let mut flags = NvList::new();
        for guid in features {
            flags.insert_flag(guid.as_str());
        }
        list.insert("features_for_read", flags);
    }
}

/// The list for the labels of a hot spare or cache device outside any vdev, of a pool of this version. It
/// names no pool.
#[must_use]
pub fn auxiliary_label_list(vdev: &VdevConfig, state: LeafState, version: u64) -> NvList {
    let mut list = NvList::new();
    list.insert("version", version);
    list.insert("state", state.number());
    list.insert("guid", vdev.guid.0);
    if state == LeafState::Cache {
        list.insert("ashift", vdev.ashift);
    }
    for (key, text) in [
        ("path", &vdev.path),
        ("devid", &vdev.devid),
        ("phys_path", &vdev.phys_path),
    ] {
        if let Some(text) = text {
            list.insert(key, text.as_str());
        }
    }
    list
}

/// Finds the leaf with this guid at or below `vdev`. Recursion is bounded by the depth limit of the
/// decoder.
fn find_leaf(vdev: &VdevConfig, guid: Guid) -> Option<&VdevConfig> {
    if vdev.kind.is_leaf() {
        return (vdev.guid == guid).then_some(vdev);
    }
    vdev.children
        .iter()
        .find_map(|child| find_leaf(child, guid))
}

fn guid_sum(vdev: &VdevConfig) -> u64 {
    vdev.children
        .iter()
        .fold(vdev.guid.0, |sum, child| sum.wrapping_add(guid_sum(child)))
}
