//! Sequential resilvers (rebuilds): new sides of a mirror, and new children of a dRAID, get all space that may hold blocks, in
//! the order of addresses.
//!
//! A pass works in slices (`slice`). It copies from leaves that lack nothing, without verifying checksums. How far it came is
//! stored in the ZAP of the top-level vdev, so that it continues when the pool is opened again. When it is complete, the
//! new sides lack only what they missed since they were attached, and a scrub is due. After an error they keep all
//! that they lacked, and a resilver that verifies checksums follows.
//!
//! Page `docs/format/scan-state.md`, "Sequential resilvers".

mod change;
mod slice;

pub use slice::RebuildLimits;
pub(crate) use slice::chunks_of;

use crate::PoolView;
use crate::pool::Pool;
use crate::vdevs::rearrange::path_to;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::{Guid, ObjectId, RebuildPhase, RebuildPhys, ScanFunction, Txg, VdevId};
use millpond_vdev::{VdevConfig, VdevType};
use millpond_zap::Zap;
use std::collections::{BTreeMap, BTreeSet};

/// Counts the rebuilds under way.
pub(crate) const DEVICE_REBUILD: &str = "org.openzfs:device_rebuild";

/// The rebuild of a top-level vdev, as the txg that is being written stores it.
#[derive(Debug, Clone, Copy, Default)]
struct Rebuild {
    phys: RebuildPhys,
    /// Changes whenever it starts anew or ends: progress of an older one is void.
    serial: u64,
    /// Once this txg is synced, no write is under way that does not know the new sides.
    ready: Txg,
    pass: RebuildPass,
}

/// The progress of a rebuild since the pool was opened or it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildPass {
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// Bytes that may hold blocks, as far as it came.
    pub scanned_bytes: u64,
    /// Bytes read.
    pub issued_bytes: u64,
}

/// The rebuilds of a pool that is open for changes, with the ZAPs of their top-level vdevs.
///
/// Lock: one, held for a few instructions.
#[derive(Debug, Default)]
pub(crate) struct RebuildControl {
    state: Mutex<State, rank::Leaf>,
}

#[derive(Debug, Default)]
struct State {
    rebuilds: BTreeMap<ObjectId, Rebuild>,
    serial: u64,
    is_scrub_due: bool,
    /// The vdevs for which it is due, until it has ended. Their rebuilds may be forgotten before.
    unverified: BTreeSet<ObjectId>,
}

impl RebuildControl {
    fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock())
    }

    fn active(&self, zap: ObjectId) -> Option<Rebuild> {
        let rebuild = self.with(|state| state.rebuilds.get(&zap).copied());
        rebuild.filter(|rebuild| rebuild.phys.phase == RebuildPhase::Active)
    }
}

/// A top-level vdev with a rebuild.
#[derive(Debug, Clone)]
struct RebuiltTop {
    id: VdevId,
    guid: Guid,
    zap: ObjectId,
    /// The sides that are rebuilt.
    targets: Vec<Guid>,
}

impl Pool {
    /// Whether a rebuild is under way, and the pool is not being closed.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.has_rebuild() && self.scan.with(|state| !state.has_ended)
    }

    pub(crate) fn has_rebuild(&self) -> bool {
        self.rebuilds.with(|state| {
            let mut all = state.rebuilds.values();
            all.any(|rebuild| rebuild.phys.phase == RebuildPhase::Active)
        })
    }

    /// The last or running rebuild of each top-level vdev that had one, and its progress in this session.
    #[must_use]
    pub fn rebuilds(&self) -> Vec<(VdevId, RebuildPhys, RebuildPass)> {
        let tops = self.rebuilt_tops();
        self.rebuilds.with(|state| {
            let found = tops.iter().filter_map(|top| {
                let rebuild = state.rebuilds.get(&top.zap)?;
                Some((top.id, rebuild.phys, rebuild.pass))
            });
            found.collect()
        })
    }

    /// Whether a rebuild became complete, so that a scrub should verify checksums. It is so once.
    #[must_use]
    pub fn take_scrub_due(&self) -> bool {
        (self.rebuilds).with(|state| std::mem::take(&mut state.is_scrub_due))
    }

    /// The vdevs whose new leaves were copied without verifying checksums, while the scrub that does so is due or runs.
    pub(crate) fn unverified_tops(&self) -> BTreeSet<VdevId> {
        let is_scrubbing = self.scan.with(|state| {
            let phys = &state.phys;
            let is_of_all = phys.function == ScanFunction::Scrub && phys.min_txg == Txg(0);
            state.is_scanning() && !phys.is_paused() && is_of_all
        });
        let unverified = self.rebuilds.with(|state| {
            if !is_scrubbing && !state.is_scrub_due {
                state.unverified.clear();
            }
            let mut unverified = state.unverified.clone();
            if is_scrubbing {
                // One that an earlier session began.
                let all = state.rebuilds.iter();
                let complete = all.filter(|(_, one)| one.phys.phase == RebuildPhase::Complete);
                unverified.extend(complete.map(|(zap, _)| *zap));
            }
            unverified
        });
        if unverified.is_empty() {
            return BTreeSet::new();
        }
        let tops = self.all_tops().into_iter();
        let tops = tops.filter(|top| unverified.contains(&top.zap));
        tops.map(|top| top.id).collect()
    }

    /// Takes in the stored states.
    pub(crate) fn load_rebuilds(&self, read: &PoolView) {
        let start_s = self.env.clock.wall_ns() / 1_000_000_000;
        let found = read.rebuilds().into_iter().filter_map(|(top, phys)| {
            let pass = RebuildPass {
                start_s,
                ..RebuildPass::default()
            };
            let rebuild = Rebuild {
                phys,
                pass,
                ..Rebuild::default()
            };
            Some((self.top_zap(top)?, rebuild))
        });
        let found = found.collect();
        self.rebuilds.with(|state| state.rebuilds = found);
    }

    /// The top-level vdevs that have a ZAP.
    fn all_tops(&self) -> Vec<RebuiltTop> {
        let state = self.state.read();
        let tops = (0u32..).map(VdevId).zip(&state.config.root.children);
        let tops = tops.filter_map(|(id, top)| {
            let mut targets = vec![];
            note_targets(top, &mut targets);
            Some(RebuiltTop {
                id,
                guid: top.guid,
                zap: top.zap_top.and_then(ObjectId::some)?,
                targets,
            })
        });
        tops.collect()
    }

    /// Those with a rebuild, under way or not.
    fn rebuilt_tops(&self) -> Vec<RebuiltTop> {
        let mut tops = self.all_tops();
        self.rebuilds
            .with(|state| tops.retain(|top| state.rebuilds.contains_key(&top.zap)));
        tops
    }

    /// The leaves whose rebuild is under way.
    #[must_use]
    pub fn rebuilt_leaves(&self) -> Vec<Guid> {
        let tops = self.rebuilt_tops().into_iter();
        let tops = tops.filter(|top| self.rebuilds.active(top.zap).is_some());
        tops.flat_map(|top| top.targets).collect()
    }
}

impl PoolView {
    /// The last or running rebuild of each top-level vdev that had one, as stored. A damaged state counts as none.
    #[must_use]
    pub fn rebuilds(&self) -> Vec<(VdevId, RebuildPhys)> {
        let topology = self.store().topology();
        let stored = |zap: ObjectId| {
            let table = Zap::open(self.mos().object(zap).ok()?).ok()?;
            let value = table.lookup(vdev_key::REBUILD.as_bytes()).ok()??;
            let words: Vec<u64> = value.integers().collect();
            let phys = RebuildPhys::from_words(&words).ok()?;
            (phys.phase != RebuildPhase::None).then_some(phys)
        };
        let tops = topology.tree.tops();
        let found = tops.filter_map(|(id, node)| {
            let zap = node.config.zap_top.and_then(ObjectId::some)?;
            Some((id, stored(zap)?))
        });
        found.collect()
    }
}

fn note_targets(vdev: &VdevConfig, targets: &mut Vec<Guid>) {
    if vdev.rebuild_txg.is_some() {
        targets.push(vdev.guid);
    }
    for child in &vdev.children {
        note_targets(child, targets);
    }
}

/// Whether what a leaf holds can be copied from other leaves without looking at blocks: all have the same content, or the
/// vdev is a dRAID, where each stripe has its own parity. Its rebuild can be stored.
pub(crate) fn can_rebuild(root: &VdevConfig, leaf: Guid) -> bool {
    let Some(path) = path_to(root, leaf) else {
        return false;
    };
    let mut vdev = root;
    for (depth, index) in path.into_iter().enumerate() {
        let Some(child) = vdev.children.get(index) else {
            return false;
        };
        let is_draid = depth == 0 && child.kind == VdevType::Draid;
        if !is_draid && !child.kind.is_mirror_like() && !child.kind.is_leaf() {
            return false;
        }
        vdev = child;
    }
    vdev.kind.is_leaf() && vdev.kind != VdevType::Hole
}
