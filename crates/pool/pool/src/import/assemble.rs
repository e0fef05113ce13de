//! From a configuration and the devices found to a tree whose leaves have devices.
//!
//! Page `docs/format/import.md`, "Assembly".

use super::ConfigError;
use super::health::{VdevAux, VdevState};
use super::scan::{Found, FoundLeaf};
use super::uberblocks::{diverged_leaves, read_uberblocks};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_ondisk::{Guid, LEAF_BYTES_MIN, LeafLayout, Txg};
use millpond_vdev::{VdevConfig, VdevType};
use std::collections::BTreeMap;
use std::path::Path;

/// How much a configuration is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Pieced together from labels or read from a cache file: good enough to find the meta object
    /// set. Top-level vdevs that no label describes count as present, since they may be removed
    /// ones that have no devices any more.
    Untrusted {
        /// The txg of the uberblock, once one was chosen: older labels go before newer ones.
        txg_max: Option<Txg>,
    },
    /// Read from the pool itself, at this txg.
    Trusted {
        /// The txg.
        txg: Txg,
    },
}

impl Trust {
    fn txg_max(self) -> Option<Txg> {
        match self {
            Self::Untrusted { txg_max } => txg_max,
            Self::Trusted { txg } => Some(txg),
        }
    }
}

/// A pool's tree with a device for each leaf that has one.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// The tree; paths of leaves that were found are those under which they were found. Made for
    /// `VdevTree::new`.
    pub root: VdevConfig,
    /// The leaves in the order of `VdevTree::leaves`, distributed spares included.
    pub leaves: Vec<AssembledLeaf>,
    /// The state of every vdev in the order of `VdevTree::nodes`: the root first, each before its
    /// children.
    pub nodes: Vec<NodeHealth>,
}

/// One leaf of an [`Assembly`].
#[derive(Debug, Clone)]
pub struct AssembledLeaf {
    /// Its guid.
    pub guid: Guid,
    /// Its place in [`Assembly::nodes`].
    pub node: usize,
    /// The device, if it can be used.
    pub device: Option<Arc<dyn Device>>,
    /// The path in the configuration.
    pub config_path: Option<String>,
    /// The name under which its device was found, usable or not.
    pub found_as: Option<String>,
    /// The txg of its label.
    pub label_txg: Option<Txg>,
    /// Whether its label is older than those of its siblings: it was away when they were written.
    /// Its dirty time log tells what it missed.
    pub is_stale: bool,
    /// The first txg that it has of its own: it was used without the others, which were used meanwhile too. It is left alone as
    /// long as the pool can do without it.
    pub diverged_since: Option<Txg>,
}

impl AssembledLeaf {
    /// Whether it was found under another name than it had.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.found_as.is_some() && self.found_as != self.config_path
    }
}

/// What became of one vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its guid; 0 for holes and missing ones.
    pub guid: Guid,
    /// Its kind.
    pub kind: VdevType,
    /// Its state.
    pub state: VdevState,
    /// Why.
    pub aux: VdevAux,
    /// Whether it belongs to the intent log's devices.
    pub is_log: bool,
    /// Whether it is below a vdev that is being replaced, where failures are no surprise.
    pub is_being_replaced: bool,
    /// Of a leaf: how many txgs it misses, as far as that is known.
    pub missed_txgs: u64,
}

impl Assembly {
    /// The state of the pool.
    #[must_use]
    pub fn state(&self) -> VdevState {
        self.nodes
            .first()
            .map_or(VdevState::CannotOpen, |root| root.state)
    }
    /// Why.
    #[must_use]
    pub fn aux(&self) -> VdevAux {
        self.nodes.first().map_or(VdevAux::None, |root| root.aux)
    }
    /// The sum of all guids, modulo 2^64, to compare with the uberblock's.
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.nodes
            .iter()
            .fold(0, |sum, node| sum.wrapping_add(node.guid.0))
    }
    /// Lets `judge` put leaves that have devices of their own into other states, and works out the states of the vdevs above.
    pub(crate) fn judge_leaves(&mut self, judge: &dyn Fn(&mut NodeHealth)) {
        let mut nodes = self.nodes.iter_mut();
        let Some(root) = nodes.next() else { return };
        let tops = self.root.children.iter();
        let states: Vec<_> = tops
            .map(|top| (judge_again(top, &mut nodes, judge), top.is_log))
            .collect();
        (root.state, root.aux) = root_state(&states);
    }

    /// Top-level log vdevs that cannot be used: an import must be told to go on without.
    #[must_use]
    pub fn unusable_logs(&self) -> Vec<Guid> {
        let tops = self.root.children.iter().filter(|top| top.is_log);
        let is_unusable = |guid: Guid| {
            self.nodes
                .iter()
                .any(|node| node.guid == guid && !node.state.is_usable())
        };
        tops.map(|top| top.guid)
            .filter(|guid| is_unusable(*guid))
            .collect()
    }
}

/// Gives every leaf of `config` the device that carries its label, and works out the state of each
/// vdev.
///
/// `config` is the root configuration: of a candidate, of the cache file, of the pool.
///
/// # Errors
/// [`ConfigError`] if the configuration is not one of a pool. Missing or unsuitable devices are
/// no errors but states.
pub fn assemble(config: &NvList, found: &Found, trust: Trust) -> Result<Assembly, ConfigError> {
    let pool = config.opt_u64("pool_guid")?;
    let members = found.leaves().iter();
    let members = members.filter(|leaf| pool == Some(leaf.best.pool_guid.0));
    let diverged = diverged_leaves(&read_uberblocks(members));
    let assembly = assemble_without(config, found, trust, &diverged)?;
    if diverged.is_empty() || assembly.state().is_usable() {
        return Ok(assembly);
    }
    // What they have of the others' txgs is all that is left.
    assemble_without(config, found, trust, &BTreeMap::new())
}

/// `diverged`: leaves that are left alone, by guid, with their first txgs of their own.
fn assemble_without(
    config: &NvList,
    found: &Found,
    trust: Trust,
    diverged: &BTreeMap<u64, Txg>,
) -> Result<Assembly, ConfigError> {
    let mut root = VdevConfig::from_nvlist(config.list("vdev_tree")?)?;
    if root.kind != VdevType::Root {
        return Err(ConfigError::NoRoot);
    }
    let pool = Guid(config.opt_u64("pool_guid")?.unwrap_or(root.guid.0));
    let mut work = Work {
        found,
        trust,
        pool,
        diverged,
        leaves: Vec::new(),
        nodes: Vec::new(),
    };
    work.push(&root, false, false);
    let mut tops = std::mem::take(&mut root.children);
    let mut states = Vec::with_capacity(tops.len());
    for top in &mut tops {
        let first_leaf = work.leaves.len();
        let place = Place {
            ashift: top.ashift,
            is_log: top.is_log,
            is_being_replaced: false,
            needed_bytes: needed_bytes(top),
            is_top: true,
        };
        let state = work.vdev(top, place);
        states.push((state, top.is_log));
        work.mark_stale(first_leaf);
    }
    root.children = tops;
    let Work {
        leaves, mut nodes, ..
    } = work;
    if let Some(node) = nodes.first_mut() {
        (node.state, node.aux) = root_state(&states);
    }
    Ok(Assembly {
        root,
        leaves,
        nodes,
    })
}

/// What a vdev inherits from those above.
#[derive(Clone, Copy)]
struct Place {
    ashift: u64,
    is_log: bool,
    is_being_replaced: bool,
    /// Bytes that the vdev must offer.
    needed_bytes: u64,
    is_top: bool,
}

struct Work<'a> {
    found: &'a Found,
    trust: Trust,
    pool: Guid,
    diverged: &'a BTreeMap<u64, Txg>,
    leaves: Vec<AssembledLeaf>,
    nodes: Vec<NodeHealth>,
}

impl Work<'_> {
    fn push(&mut self, vdev: &VdevConfig, is_log: bool, is_being_replaced: bool) -> usize {
        self.nodes.push(NodeHealth {
            guid: vdev.guid,
            kind: vdev.kind,
            state: VdevState::Healthy,
            aux: VdevAux::None,
            is_log,
            is_being_replaced,
            missed_txgs: 0,
        });
        self.nodes.len().saturating_sub(1)
    }
    /// Places a vdev and all below it; recursion is bounded by the depth of a configuration.
    fn vdev(&mut self, vdev: &mut VdevConfig, place: Place) -> VdevState {
        let node = self.push(vdev, place.is_log, place.is_being_replaced);
        let (state, aux) = match vdev.kind {
            VdevType::Disk | VdevType::File => self.leaf(vdev, node, place),
            VdevType::DraidSpare => {
                self.leaves.push(no_device(vdev, node));
                (VdevState::Healthy, VdevAux::None)
            }
            VdevType::Hole | VdevType::Indirect => (VdevState::Healthy, VdevAux::None),
            VdevType::Missing => match self.trust {
                Trust::Untrusted { .. } => (VdevState::Healthy, VdevAux::None),
                Trust::Trusted { .. } => (VdevState::CannotOpen, VdevAux::OpenFailed),
            },
            _ => {
                let below = Place {
                    is_top: false,
                    is_being_replaced: place.is_being_replaced || vdev.kind == VdevType::Replacing,
                    needed_bytes: child_needed_bytes(vdev, place.needed_bytes),
                    ..place
                };
                let mut states = Vec::with_capacity(vdev.children.len());
                for child in &mut vdev.children {
                    states.push(self.vdev(child, below));
                }
                interior_state(vdev, &states)
            }
        };
        if let Some(node) = self.nodes.get_mut(node) {
            (node.state, node.aux) = (state, aux);
        }
        state
    }
    fn leaf(&mut self, vdev: &mut VdevConfig, node: usize, place: Place) -> (VdevState, VdevAux) {
        let mut leaf = no_device(vdev, node);
        let found = self.find(vdev, place.is_top);
        let mut state = (VdevState::CannotOpen, VdevAux::OpenFailed);
        if let Some(found) = found {
            leaf.found_as = Some(found.path());
            leaf.label_txg = Some(found.label_at(self.trust.txg_max()).txg);
            state = suitability(found.device().as_ref(), place);
        } else if self.found.went_with_split(self.pool, vdev.guid) {
            state = (VdevState::CannotOpen, VdevAux::SplitPool);
        } else if vdev
            .path
            .as_ref()
            .is_some_and(|path| self.found.is_met(Path::new(path)))
        {
            // Something is there, but it is not this leaf (any more).
            state = (VdevState::CannotOpen, VdevAux::BadLabel);
        }
        leaf.diverged_since = self.diverged.get(&vdev.guid.0).copied();
        if leaf.diverged_since.is_some() && state.0.is_usable() {
            state = (VdevState::CannotOpen, VdevAux::Diverged);
        }
        match administered_state(vdev) {
            // Out of service whatever the device is like; degraded only if it works at all.
            Some(ordered) if !ordered.0.is_usable() || state.0.is_usable() => state = ordered,
            _ => {}
        }
        if state.0.is_usable() {
            leaf.device = found.map(|found| Arc::clone(found.device()));
        }
        if let Some(path) = &leaf.found_as {
            vdev.path = Some(path.clone());
        }
        self.leaves.push(leaf);
        state
    }
    /// The device with the leaf's label.
    fn find(&self, vdev: &VdevConfig, is_top: bool) -> Option<&FoundLeaf> {
        self.found.leaf(self.pool, vdev.guid).or_else(|| {
            // After a detach the last child takes over guid and place of its mirror.
            self.found
                .leaf_by_top_guid(self.pool, vdev.guid)
                .filter(|_| is_top)
        })
    }
    /// Marks those leaves from `first` on, all of one top-level vdev, whose labels are older than
    /// the newest: labels of one top-level vdev are written together.
    fn mark_stale(&mut self, first: usize) {
        let leaves = self.leaves.get_mut(first..).unwrap_or(&mut []);
        let newest = leaves.iter().filter_map(|leaf| leaf.label_txg).max();
        for leaf in leaves {
            leaf.is_stale = leaf.label_txg.is_some() && leaf.label_txg < newest;
        }
    }
}

fn no_device(vdev: &VdevConfig, node: usize) -> AssembledLeaf {
    AssembledLeaf {
        guid: vdev.guid,
        node,
        device: None,
        config_path: vdev.path.clone(),
        found_as: None,
        label_txg: None,
        is_stale: false,
        diverged_since: None,
    }
}

/// Whether a device can serve as the leaf.
fn suitability(device: &dyn Device, place: Place) -> (VdevState, VdevAux) {
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return (VdevState::CannotOpen, VdevAux::TooSmall);
    };
    let sector_bytes = u64::from(device.sector_bytes());
    // 0: the configuration has no ashift, and VdevTree::new will have its say.
    if place.ashift != 0
        && u32::try_from(place.ashift).is_ok_and(|shift| {
            1u64.checked_shl(shift)
                .is_some_and(|unit| sector_bytes > unit)
        })
    {
        return (VdevState::CannotOpen, VdevAux::BadAshift);
    }
    if layout.asize_bytes() < place.needed_bytes {
        return (VdevState::CannotOpen, VdevAux::BadLabel);
    }
    (VdevState::Healthy, VdevAux::None)
}

/// The state that somebody put the leaf in for good.
fn administered_state(vdev: &VdevConfig) -> Option<(VdevState, VdevAux)> {
    if vdev.offline {
        return Some((VdevState::Offline, VdevAux::None));
    }
    if vdev.removed {
        return Some((VdevState::Removed, VdevAux::None));
    }
    // Faults that were only counted get another chance at the next import; ordered ones do not.
    if vdev.faulted && vdev.aux_state.as_deref() == Some("external") {
        return Some((VdevState::Faulted, VdevAux::External));
    }
    if vdev.degraded {
        let aux = match vdev.aux_state.as_deref() {
            Some("external") => VdevAux::External,
            _ => VdevAux::ErrorsExceeded,
        };
        return Some((VdevState::Degraded, aux));
    }
    None
}

/// The state of a vdev, once that of its leaves was judged again. Recursion is bounded by the depth of a configuration; `nodes`
/// are those of the tree in the same order.
fn judge_again(
    vdev: &VdevConfig,
    nodes: &mut std::slice::IterMut<'_, NodeHealth>,
    judge: &dyn Fn(&mut NodeHealth),
) -> VdevState {
    let Some(node) = nodes.next() else {
        return VdevState::CannotOpen;
    };
    match vdev.kind {
        VdevType::Disk | VdevType::File => judge(node),
        VdevType::DraidSpare | VdevType::Hole | VdevType::Indirect | VdevType::Missing => {}
        _ => {
            let children = vdev.children.iter();
            let states: Vec<_> = children
                .map(|child| judge_again(child, nodes, judge))
                .collect();
            (node.state, node.aux) = interior_state(vdev, &states);
        }
    }
    node.state
}

/// The state of a vdev that is made of others.
fn interior_state(vdev: &VdevConfig, children: &[VdevState]) -> (VdevState, VdevAux) {
    let lost = children.iter().filter(|state| !state.is_usable()).count();
    let spareable = match vdev.kind {
        VdevType::Raidz => usize::try_from(vdev.nparity.unwrap_or(1)).unwrap_or(0),
        VdevType::Draid => usize::try_from(vdev.nparity.unwrap_or(0)).unwrap_or(0),
        _ => children.len().saturating_sub(1),
    };
    if lost > spareable || children.is_empty() {
        let is_mirror = !matches!(vdev.kind, VdevType::Raidz | VdevType::Draid);
        if is_mirror
            && !children.is_empty()
            && children.iter().all(|state| *state == VdevState::Offline)
        {
            return (VdevState::Offline, VdevAux::ChildrenOffline);
        }
        return (VdevState::CannotOpen, VdevAux::NoReplicas);
    }
    if children.iter().any(|state| *state != VdevState::Healthy) {
        return (VdevState::Degraded, VdevAux::None);
    }
    (VdevState::Healthy, VdevAux::None)
}

/// The pool's state: a lost log device costs what was logged there, nothing else.
fn root_state(tops: &[(VdevState, bool)]) -> (VdevState, VdevAux) {
    if tops
        .iter()
        .any(|(state, is_log)| !is_log && !state.is_usable())
    {
        return (VdevState::CannotOpen, VdevAux::NoReplicas);
    }
    if tops.iter().any(|(state, _)| *state != VdevState::Healthy) {
        return (VdevState::Degraded, VdevAux::None);
    }
    (VdevState::Healthy, VdevAux::None)
}

/// Bytes that a top-level vdev must offer: its whole metaslabs.
fn needed_bytes(top: &VdevConfig) -> u64 {
    let metaslab_bytes = u32::try_from(top.metaslab_shift)
        .ok()
        .and_then(|shift| 1u64.checked_shl(shift));
    match metaslab_bytes {
        Some(unit) => top
            .asize_bytes
            .checked_div(unit)
            .unwrap_or(0)
            .saturating_mul(unit),
        None => 0,
    }
}

/// Bytes that each child of a vdev must offer for the vdev to offer `needed_bytes`.
fn child_needed_bytes(vdev: &VdevConfig, needed_bytes: u64) -> u64 {
    let children = vdev.children.len() as u64;
    match vdev.kind {
        VdevType::Raidz => needed_bytes.div_ceil(children.max(1)),
        VdevType::Draid => {
            let used = children
                .saturating_sub(vdev.draid_nspares.unwrap_or(0))
                .max(1);
            needed_bytes
                .div_ceil(used)
                .saturating_add(DRAID_RESERVED_BYTES)
        }
        _ => needed_bytes,
    }
}

/// At the end of each child of a dRAID vdev.
const DRAID_RESERVED_BYTES: u64 = LEAF_BYTES_MIN / 2;
