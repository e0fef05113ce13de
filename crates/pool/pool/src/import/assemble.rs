//! Assembles a vdev tree from a configuration and the devices found.
//!
//! Page `docs/format/import.md`, "Assembly".

use crate::import::ConfigError;
use crate::import::health::{VdevAux, VdevState};
use crate::import::scan::{Found, FoundLeaf};
use crate::import::uberblocks::{diverged_leaves, read_uberblocks};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_ondisk::{Guid, LEAF_BYTES_MIN, LeafLayout, Txg};
use millpond_vdev::{VdevConfig, VdevType};
use std::collections::BTreeMap;
use std::path::Path;

/// How far a configuration can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// From labels or a cache file: sufficient to find the meta object set.
    ///
    /// Top-level vdevs without a label count as present, since they may be removed vdevs, which have no
    /// devices.
    Untrusted {
        /// The txg of the chosen uberblock, if any. Labels up to this txg take precedence over newer ones.
        txg_max: Option<Txg>,
    },
    /// Read from the pool itself at this txg.
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

/// A pool's vdev tree, with a device for each leaf that was found.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// The tree, ready for `VdevTree::new`. The path of a leaf that was found is the path of its device.
    pub root: VdevConfig,
    /// The leaves in the order of `VdevTree::leaves`, including distributed spares.
    pub leaves: Vec<AssembledLeaf>,
    /// The state of every vdev in the order of `VdevTree::nodes`: the root first, each vdev before its
    /// children.
    pub nodes: Vec<NodeHealth>,
}

/// One leaf of an [`Assembly`].
#[derive(Debug, Clone)]
pub struct AssembledLeaf {
    /// Its guid.
    pub guid: Guid,
    /// Its index in [`Assembly::nodes`].
    pub node: usize,
    /// The device, if it is usable.
    pub device: Option<Arc<dyn Device>>,
    /// The path in the configuration.
    pub config_path: Option<String>,
    /// The name under which its device was found, whether or not it is usable.
    pub found_as: Option<String>,
    /// The txg of its label.
    pub label_txg: Option<Txg>,
    /// The txg of its newest uberblock that is not newer than the state to open; `None` if it has none. Of the four labels,
    /// that one counts that ends first: a copy of a device in use is not of one moment.
    pub ring_txg: Option<Txg>,
    /// The txg of its newest uberblock, in any of its labels.
    pub newest_txg: Option<Txg>,
    /// Its [`AssembledLeaf::ring_txg`], and that of its siblings, if it lacks uberblocks that they have.
    pub behind: Option<(Txg, Txg)>,
    /// The first txg that it may lack: its label or its uberblocks are older than those of its siblings, so it was absent
    /// when they were written. Its dirty time log records what it missed while the pool was open.
    pub stale_since: Option<Txg>,
    /// The first txg that only this leaf has. The leaf was used without the other leaves while they were
    /// used too. The pool does not use it as long as it works without it.
    pub diverged_since: Option<Txg>,
}

impl AssembledLeaf {
    /// Whether its device was found under a different path than the configured one.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.found_as.is_some() && self.found_as != self.config_path
    }
}

/// The state of one vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeHealth {
    /// Its guid; 0 for holes and missing vdevs.
    pub guid: Guid,
    /// Its kind.
    pub kind: VdevType,
    /// Its state.
    pub state: VdevState,
    /// The reason for its state.
    pub aux: VdevAux,
    /// Whether it is a log device.
    pub is_log: bool,
    /// Whether it is below a `replacing` vdev, where failures are expected.
    pub is_being_replaced: bool,
    /// For a leaf: the number of txgs it misses, as far as is known.
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
    /// The reason for the pool's state.
    #[must_use]
    pub fn aux(&self) -> VdevAux {
        self.nodes.first().map_or(VdevAux::None, |root| root.aux)
    }
    /// The sum of all guids, modulo 2^64, for comparison with the uberblock.
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.nodes
            .iter()
            .fold(0, |sum, node| sum.wrapping_add(node.guid.0))
    }
    /// Lets `judge` change the state of leaves that have devices, then recomputes the states of interior
    /// vdevs.
    pub(crate) fn judge_leaves(&mut self, judge: &dyn Fn(&mut NodeHealth)) {
        let mut nodes = self.nodes.iter_mut();
        let Some(root) = nodes.next() else { return };
        let tops = self.root.children.iter();
        let states: Vec<_> = tops
            .map(|top| (judge_again(top, &mut nodes, judge), top.is_log))
            .collect();
        (root.state, root.aux) = root_state(&states);
    }

    /// Unusable top-level log vdevs. An import needs permission to continue without them.
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

/// Finds the device with the label of each leaf of `config`, and computes the state of each vdev.
///
/// `config` is a root configuration: of a candidate, of the cache file, or of the pool.
///
/// # Errors
/// [`ConfigError`] if the configuration is not that of a pool. Missing or unsuitable devices are states,
/// not errors.
pub fn assemble(config: &NvList, found: &Found, trust: Trust) -> Result<Assembly, ConfigError> {
    let pool = config.opt_u64("pool_guid")?;
    let members = pool.map(|pool| found.members(Guid(pool)));
    let diverged = diverged_leaves(&read_uberblocks(members.into_iter().flatten()));
    let assembly = assemble_without(config, found, trust, &diverged)?;
    if diverged.is_empty() || assembly.state().is_usable() {
        return Ok(assembly);
    }
    // The diverged leaves are needed: their copies of the shared txgs are all that is left.
    assemble_without(config, found, trust, &BTreeMap::new())
}

/// Assembles without the leaves in `diverged`, which maps guids to the first txg that only the leaf has.
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
        let place = MemberLeaf {
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

/// Properties that a vdev inherits from its ancestors.
#[derive(Clone, Copy)]
struct MemberLeaf {
    ashift: u64,
    is_log: bool,
    is_being_replaced: bool,
    /// The capacity that the vdev must have, in bytes.
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
    /// Adds a vdev and its descendants. Recursion depth is bounded by the depth of a configuration.
    fn vdev(&mut self, vdev: &mut VdevConfig, place: MemberLeaf) -> VdevState {
        let node = self.push(vdev, place.is_log, place.is_being_replaced);
        let (state, aux) = match vdev.kind {
            kind if kind.is_device() => self.leaf(vdev, node, place),
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
                let below = MemberLeaf {
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
    fn leaf(
        &mut self,
        vdev: &mut VdevConfig,
        node: usize,
        place: MemberLeaf,
    ) -> (VdevState, VdevAux) {
        let mut leaf = no_device(vdev, node);
        let found = self.find(vdev, place.is_top);
        let mut state = (VdevState::CannotOpen, VdevAux::OpenFailed);
        if let Some(found) = found {
            leaf.found_as = Some(found.path());
            leaf.label_txg = Some(found.label_at(self.trust.txg_max()).txg);
            leaf.ring_txg = found.complete_at(self.trust.txg_max());
            leaf.newest_txg = Some(found.newest_txg());
            state = suitability(found.device().as_ref(), place);
        } else if self.found.went_with_split(self.pool, vdev.guid) {
            state = (VdevState::CannotOpen, VdevAux::SplitPool);
        } else if vdev
            .path
            .as_ref()
            .is_some_and(|path| self.found.is_met(Path::new(path)))
        {
            // The device exists but does not carry this leaf's label (any more).
            state = (VdevState::CannotOpen, VdevAux::BadLabel);
        }
        leaf.diverged_since = self.diverged.get(&vdev.guid.0).copied();
        if leaf.diverged_since.is_some() && state.0.is_usable() {
            state = (VdevState::CannotOpen, VdevAux::Diverged);
        }
        match administered_state(vdev) {
            // An administrative state that takes the leaf out of service always applies; `degraded` applies
            // only if the leaf is usable.
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
    /// Finds the device with the leaf's label.
    fn find(&self, vdev: &VdevConfig, is_top: bool) -> Option<&FoundLeaf> {
        self.found.leaf(self.pool, vdev.guid).or_else(|| {
            // After a detach the last child takes over its mirror's guid and position.
            self.found
                .leaf_by_top_guid(self.pool, vdev.guid)
                .filter(|_| is_top)
        })
    }
    /// Marks the leaves from index `first` on, all of one top-level vdev, whose labels or uberblocks are older than the
    /// newest.
    ///
    /// Labels of one top-level vdev are written together, so an older label means that the leaf was absent. So are
    /// uberblocks: a device with an equal label and older uberblocks was put back to older contents, or was absent without a
    /// note of that. The last uberblock alone may be missing: the power can fail while it is written.
    fn mark_stale(&mut self, first: usize) {
        let leaves = self.leaves.get_mut(first..).unwrap_or(&mut []);
        let newest = leaves.iter().filter_map(|leaf| leaf.label_txg).max();
        let newest_ring = leaves.iter().filter_map(|leaf| leaf.ring_txg).max();
        for leaf in leaves {
            let label = leaf.label_txg.filter(|_| leaf.label_txg < newest);
            let next = |ring: &Txg| Txg(ring.0.saturating_add(1));
            let rings = leaf.ring_txg.zip(newest_ring);
            leaf.behind = rings.filter(|(ring, newest)| next(ring) < *newest);
            let ring = leaf.behind.map(|(ring, _)| ring);
            let current = label.into_iter().chain(ring).min();
            leaf.stale_since = current.map(|current| Txg(current.0.saturating_add(1)));
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
        ring_txg: None,
        newest_txg: None,
        behind: None,
        stale_since: None,
        diverged_since: None,
    }
}

/// Whether a device is suitable for the leaf.
fn suitability(device: &dyn Device, place: MemberLeaf) -> (VdevState, VdevAux) {
    let Some(layout) = LeafLayout::new(device.size_bytes()) else {
        return (VdevState::CannotOpen, VdevAux::TooSmall);
    };
    let sector_bytes = u64::from(device.sector_bytes());
    // 0: the configuration has no ashift; `VdevTree::new` validates that case.
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

/// The persistent state that an administrator or an error set for the leaf.
fn administered_state(vdev: &VdevConfig) -> Option<(VdevState, VdevAux)> {
    if vdev.offline {
        return Some((VdevState::Offline, VdevAux::None));
    }
    if vdev.removed {
        return Some((VdevState::Removed, VdevAux::None));
    }
    // A fault from error counts is retried at the next import; a fault set by an administrator is not.
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

/// Recomputes the state of a vdev after its leaves changed.
///
/// Recursion depth is bounded by the depth of a configuration. `nodes` are the vdevs of the tree in the
/// same order.
fn judge_again(
    vdev: &VdevConfig,
    nodes: &mut std::slice::IterMut<'_, NodeHealth>,
    judge: &dyn Fn(&mut NodeHealth),
) -> VdevState {
    let Some(node) = nodes.next() else {
        return VdevState::CannotOpen;
    };
    match vdev.kind {
        kind if kind.is_leaf() => judge(node),
        VdevType::Hole | VdevType::Indirect | VdevType::Missing => {}
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

/// The state of an interior vdev.
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

/// The state of the pool. A lost log device loses only the intent log records on it.
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

/// The capacity in bytes that a top-level vdev must have: its whole metaslabs.
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

/// The capacity in bytes that each child needs for the vdev to have `needed_bytes`.
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

/// Bytes reserved at the end of each child of a dRAID vdev.
const DRAID_RESERVED_BYTES: u64 = LEAF_BYTES_MIN / 2;
