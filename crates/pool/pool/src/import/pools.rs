//! Groups labels into pools.
//!
//! Page `docs/format/import.md`, "Grouping".

use crate::import::ConfigError;
use crate::import::activity::{ActivityCheck, ActivitySettings, activity_check};
use crate::import::assemble::{Assembly, Trust, assemble};
use crate::import::condition::{ImportCondition, READ_FEATURES, device_conditions};
use crate::import::label::{LeafLabel, LeafState};
use crate::import::scan::{Found, FoundLeaf};
use crate::import::uberblocks::{
    FoundUberblock, Rewind, RewindError, choices, read_ring, read_uberblocks,
};
use millpond_nvlist::NvList;
use millpond_ondisk::{Guid, PoolVersion, Txg, UberblockRank};
use millpond_vdev::CHILDREN_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// A pool's state according to its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// The pool was imported when the labels were written, and may still be.
    Active,
    /// Exported.
    Exported,
    /// Destroyed.
    Destroyed,
}

/// A pool that was found but is not open. Page `docs/format/import.md`.
#[derive(Debug, Clone)]
pub struct PoolCandidate {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// The pool's state according to its labels.
    pub state: PoolState,
    /// Its version; 1 if the labels do not state one.
    pub version: u64,
    /// The txg of the configuration.
    pub config_txg: Txg,
    /// The host id of the system that used the pool last; 0 if it had none.
    pub hostid: u64,
    /// The name of that system.
    pub hostname: Option<String>,
    /// The host id in the configuration that the pool was searched by, if it has one: that of the system that stored the
    /// configuration. It may be another one than `hostid` if the pool was used elsewhere since.
    pub known_hostid: Option<u64>,
    /// The comment.
    pub comment: Option<String>,
    /// The compatibility property.
    pub compatibility: Option<String>,
    /// The configuration assembled from the labels, in the form that the pool itself stores: `vdev_tree` is
    /// the root with all top-level vdevs.
    pub config: NvList,
    /// Every uberblock with a valid checksum, newest first.
    pub uberblocks: Vec<FoundUberblock>,
    /// The tree of that configuration with its devices, evaluated at the newest uberblock's txg.
    pub assembly: Result<Assembly, ConfigError>,
    /// Conditions to report, most severe first.
    pub conditions: Vec<ImportCondition>,
    found: Found,
}

/// Returns the pools among the labels found, in the order of discovery, including destroyed pools.
///
/// `own_hostid` is the host id of this system, 0 if it has none.
#[must_use]
pub fn find_pools(found: &Found, own_hostid: u64) -> Vec<PoolCandidate> {
    let mut order: Vec<Guid> = Vec::new();
    let mut groups: BTreeMap<u64, Vec<&FoundLeaf>> = BTreeMap::new();
    for leaf in found
        .leaves()
        .iter()
        .filter(|leaf| leaf.best.state.has_pool() && !leaf.is_passed_over)
    {
        let group = groups.entry(leaf.best.pool_guid.0).or_default();
        if group.is_empty() {
            order.push(leaf.best.pool_guid);
        }
        group.push(leaf);
    }
    order
        .into_iter()
        .filter_map(|guid| {
            let leaves = groups.get(&guid.0)?;
            let uberblocks = read_uberblocks(leaves.iter().copied());
            let txg_max = uberblocks.first().map(|found| found.uberblock.txg);
            let config = piece_together(guid, leaves, txg_max)?;
            Some(PoolCandidate::new(
                guid,
                config,
                uberblocks,
                found.clone(),
                own_hostid,
            ))
        })
        .collect()
}

/// Creates a candidate of the pool that a configuration from elsewhere names, such as one in a cache file, from the
/// devices found.
///
/// Its configuration is assembled from the labels. Since the other one was stored, devices may have been added, attached,
/// replaced or removed, and another system may have used the pool. Labels that are older than the other configuration are
/// those of devices that were absent: then they tell no more than who used the pool. Without any label it is the
/// configuration given.
///
/// # Errors
/// [`ConfigError`] if the configuration does not name a pool.
pub fn pool_from_config(
    config: &NvList,
    found: &Found,
    own_hostid: u64,
) -> Result<PoolCandidate, ConfigError> {
    let guid = Guid(config.u64("pool_guid")?);
    let known_hostid = config.opt_u64("hostid")?;
    let known_txg = config.opt_u64("txg")?;
    let members = found.members(guid);
    let members: Vec<&FoundLeaf> = members.filter(|leaf| leaf.best.state.has_pool()).collect();
    let uberblocks = read_uberblocks(members.iter().copied());
    let txg_max = uberblocks.first().map(|found| found.uberblock.txg);
    let config = match piece_together(guid, &members, txg_max) {
        Some(of_labels) if of_labels.opt_u64("txg")? >= known_txg => of_labels,
        Some(of_labels) => with_newest_use(config, &of_labels),
        None => config.clone(),
    };
    let mut pool = PoolCandidate::new(guid, config, uberblocks, found.clone(), own_hostid);
    pool.known_hostid = known_hostid;
    Ok(pool)
}

/// A configuration that says what the labels say about the pool's last use.
fn with_newest_use(config: &NvList, of_labels: &NvList) -> NvList {
    let mut config = config.clone();
    for key in ["name", "version", "state", "txg", "hostid", "hostname"] {
        config.remove(key);
        if let Ok(value) = of_labels.require(key) {
            config.insert(key, value.clone());
        }
    }
    config
}

impl PoolCandidate {
    /// Whether another system used the pool last and did not export it, and the name of that system if it is
    /// known. Systems without a host id are distinguished by `hostname`, which is this system's.
    #[must_use]
    pub fn other_host(&self, hostname: Option<&str>) -> Option<Option<&str>> {
        self.conditions
            .iter()
            .find_map(|condition| match condition {
                ImportCondition::HostidMismatch {
                    hostid: 0,
                    hostname: last,
                    ..
                } if last.as_deref() == hostname => None,
                ImportCondition::HostidMismatch { hostname: last, .. } => Some(last.as_deref()),
                _ => None,
            })
    }

    fn new(
        guid: Guid,
        config: NvList,
        uberblocks: Vec<FoundUberblock>,
        found: Found,
        own_hostid: u64,
    ) -> Self {
        let number = |name: &str| config.opt_u64(name).ok().flatten();
        let text = |name: &str| {
            config
                .raw_string(name)
                .ok()
                .map(|text| text.to_string_lossy().into_owned())
        };
        let state = match number("state").and_then(LeafState::from_number) {
            Some(LeafState::Exported) => PoolState::Exported,
            Some(LeafState::Destroyed) => PoolState::Destroyed,
            _ => PoolState::Active,
        };
        let txg_max = uberblocks.first().map(|found| found.uberblock.txg);
        let assembly = assemble(&config, &found, Trust::Untrusted { txg_max });
        let mut pool = Self {
            name: text("name").unwrap_or_default(),
            guid,
            state,
            version: number("version").unwrap_or(1),
            config_txg: Txg(number("txg").unwrap_or(0)),
            hostid: number("hostid").unwrap_or(0),
            hostname: text("hostname"),
            known_hostid: None,
            comment: text("comment"),
            compatibility: text("compatibility"),
            config,
            uberblocks,
            assembly,
            conditions: Vec::new(),
            found,
        };
        pool.conditions = pool.find_conditions(own_hostid);
        pool
    }
    /// The result of the scan, for assembling the configuration stored in the pool.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }
    /// The leaves whose devices have no labels at their end: they may have grown.
    pub(crate) fn leaves_without_end_labels(&self) -> BTreeSet<Guid> {
        let own = self.found.members(self.guid);
        own.filter(|leaf| leaf.lacks_end_labels())
            .map(FoundLeaf::guid)
            .collect()
    }
    /// The newest uberblock.
    #[must_use]
    pub fn newest(&self) -> Option<&FoundUberblock> {
        self.uberblocks.first()
    }
    /// The uberblocks to try, in order.
    ///
    /// # Errors
    /// [`RewindError`] if there is none to try.
    pub fn uberblock_choices(&self, rewind: Rewind) -> Result<Vec<&FoundUberblock>, RewindError> {
        choices(&self.uberblocks, rewind)
    }
    /// Assembles another configuration of this pool, such as the one stored in the MOS, with the same
    /// devices.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn assemble(&self, config: &NvList, trust: Trust) -> Result<Assembly, ConfigError> {
        assemble(config, &self.found, trust)
    }
    /// Whether the pool may be in use on another system, so that importing it needs force.
    #[must_use]
    pub fn needs_force(&self) -> bool {
        let is_foreign = |condition: &ImportCondition| {
            matches!(condition, ImportCondition::HostidMismatch { .. })
        };
        self.conditions.iter().any(is_foreign)
    }
    /// The check that must pass before the pool may be opened for writing.
    #[must_use]
    pub fn activity_check(&self, settings: ActivitySettings) -> ActivityCheck {
        self.newest().map_or(ActivityCheck::NotNeeded, |newest| {
            activity_check(&newest.uberblock, self.state, self.hostid, settings)
        })
    }
    /// Rereads all uberblock rings and returns the rank of the newest uberblock.
    ///
    /// If it differs from the rank of [`PoolCandidate::newest`], another system is writing to the pool.
    #[must_use]
    pub fn reread_rank(&self) -> Option<UberblockRank> {
        self.members()
            .flat_map(|leaf| {
                leaf.device().forget_cached();
                read_ring(leaf.device().as_ref(), &leaf.best)
            })
            .map(|found| found.uberblock.rank())
            .max()
    }
    /// The devices with a label of this pool, one for each leaf.
    pub fn members(&self) -> impl Iterator<Item = &FoundLeaf> {
        let members = self.found.members(self.guid);
        members.filter(|leaf| leaf.best.state.has_pool())
    }

    /// The paths of devices that have the same label and different contents, if nothing tells which one belongs to the pool:
    /// those of each leaf as one list. Then the pool can only be read.
    #[must_use]
    pub fn undecided_copies(&self) -> Vec<Vec<String>> {
        let rivals = self.members().map(|leaf| leaf.rivals.clone());
        rivals.filter(|rivals| !rivals.is_empty()).collect()
    }

    /// Whether at least one device has a label with a valid checksum. If none has, the pool can only be read.
    #[must_use]
    pub fn has_verified_label(&self) -> bool {
        self.members().any(|leaf| leaf.best.is_verified)
    }

    fn find_conditions(&self, own_hostid: u64) -> Vec<ImportCondition> {
        let mut conditions = Vec::new();
        let newest = self.newest().map(|found| found.uberblock);
        if self.state == PoolState::Active && (self.hostid == 0 || self.hostid != own_hostid) {
            conditions.push(ImportCondition::HostidMismatch {
                hostid: self.hostid,
                hostname: self.hostname.clone(),
                last_access_s: newest.map(|uberblock| uberblock.timestamp_s),
            });
        }
        let version = newest.map_or(self.version, |uberblock| uberblock.version);
        if !PoolVersion(version).is_known() {
            conditions.push(ImportCondition::VersionNewer { version });
        }
        match self.config.list("features_for_read") {
            Ok(features) => {
                let names = features
                    .iter()
                    .map(|pair| pair.name.to_string_lossy().into_owned());
                let features: Vec<String> = names
                    .filter(|name| !READ_FEATURES.contains(&name.as_str()))
                    .collect();
                if !features.is_empty() {
                    conditions.push(ImportCondition::UnsupportedReadFeatures { features });
                }
            }
            Err(_) if PoolVersion(version).has_features() => {
                conditions.push(ImportCondition::NoFeatureList)
            }
            Err(_) => {}
        }
        if newest.is_none() {
            conditions.push(ImportCondition::NoUberblock);
        }
        match &self.assembly {
            Err(error) => conditions.push(ImportCondition::CorruptConfig {
                error: error.clone(),
            }),
            Ok(assembly) => {
                conditions.extend(device_conditions(assembly));
                self.tree_conditions(assembly, &mut conditions);
            }
        }
        if let Ok(Some(number)) = self.config.opt_u64("errata")
            && number != 0
        {
            conditions.push(ImportCondition::Errata { number });
        }
        if (1..=28).contains(&version) {
            conditions.push(ImportCondition::VersionOlder { version });
        }
        conditions
    }
    fn tree_conditions(&self, assembly: &Assembly, conditions: &mut Vec<ImportCondition>) {
        for (id, top) in assembly.root.children.iter().enumerate() {
            if top.kind == millpond_vdev::VdevType::Missing {
                conditions.push(ImportCondition::UnknownTop { id });
            }
        }
        for leaf in &assembly.leaves {
            if self.found.is_duplicated(self.guid, leaf.guid) {
                let used = self.found.leaf(self.guid, leaf.guid);
                conditions.push(ImportCondition::DuplicateDevice {
                    guid: leaf.guid,
                    rivals: used.map(|used| used.rivals.clone()).unwrap_or_default(),
                });
            }
            if self
                .found
                .leaf(self.guid, leaf.guid)
                .is_some_and(|found| found.candidate.is_live)
            {
                conditions.push(ImportCondition::DeviceInUse { guid: leaf.guid });
            }
        }
    }
}

/// Assembles the root configuration from the labels of a pool's leaves; `None` without a usable label.
fn piece_together(pool: Guid, leaves: &[&FoundLeaf], txg_max: Option<Txg>) -> Option<NvList> {
    // A label newer than every uberblock belongs to an incomplete sync. It is used only if the leaf has no
    // other label.
    let labels: Vec<&LeafLabel> = leaves.iter().map(|leaf| leaf.label_at(txg_max)).collect();
    let rank = |label: &LeafLabel| {
        (
            label.is_verified,
            txg_max.is_none_or(|max| label.txg <= max),
            label.txg,
        )
    };
    // Among equals, the first one found.
    let newest = labels.iter().rev().max_by_key(|label| rank(label))?;

    // For each top-level vdev id, the newest description.
    let mut tops: BTreeMap<u64, &LeafLabel> = BTreeMap::new();
    for label in &labels {
        let Some(id) = label
            .config
            .list("vdev_tree")
            .ok()
            .map(|tree| tree.u64("id").unwrap_or(0))
        else {
            continue;
        };
        match tops.get(&id) {
            Some(other) if rank(other) >= rank(label) => {}
            _ => {
                tops.insert(id, label);
            }
        }
    }
    // Old pools do not store the number of top-level vdevs.
    let count = newest
        .config
        .u64("vdev_children")
        .ok()
        .or_else(|| tops.keys().last().map(|last| last.saturating_add(1)))?;
    let count = usize::try_from(count).ok()?.min(CHILDREN_MAX);
    let holes = newest.config.u64_array("hole_array").unwrap_or(&[]);
    let children: Vec<NvList> = (0..count as u64)
        .map(|id| {
            match tops
                .get(&id)
                .and_then(|label| label.config.list("vdev_tree").ok())
            {
                Some(tree) if !holes.contains(&id) => tree.clone(),
                _ => placeholder(
                    if holes.contains(&id) {
                        "hole"
                    } else {
                        "missing"
                    },
                    id,
                ),
            }
        })
        .collect();

    let mut root = NvList::new();
    root.insert("type", "root");
    root.insert("id", 0u64);
    root.insert("guid", pool.0);
    root.insert("children", children);
    let mut config = NvList::new();
    for pair in newest.config.iter() {
        let is_the_leafs = LEAF_KEYS
            .iter()
            .any(|key| pair.name.as_bytes() == key.as_bytes());
        if pair.name.as_bytes() == b"vdev_tree" {
            config.insert("vdev_tree", std::mem::take(&mut root));
        } else if !is_the_leafs {
            config.insert(pair.name.clone(), pair.value.clone());
        }
    }
    Some(config)
}

/// Keys of a label that describe its leaf and not the pool.
const LEAF_KEYS: [&str; 6] = [
    "top_guid",
    "guid",
    "is_spare",
    "is_log",
    "hole_array",
    "create_txg",
];

fn placeholder(kind: &str, id: u64) -> NvList {
    let mut vdev = NvList::new();
    vdev.insert("type", kind);
    vdev.insert("id", id);
    vdev.insert("guid", 0u64);
    vdev
}
