//! What a device holds that comes back, as its uberblock rings tell.
//!
//! Labels are written again only when the configuration changes. So an older copy of a device may have the same labels as
//! the device, but never its uberblocks.

use crate::import::{
    LeafLabel, LeafState as LabelState, RingUberblock, States, read_labels, scan_devices, states,
};
use crate::pool::Pool;
use crate::vdevs::attach::FIRST_TXG;
use crate::vdevs::dtl::{has_redundancy, is_older_copy};
use crate::vdevs::rearrange;
use millpond_device::{Candidate, Device};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Guid, LABEL_COUNT, LeafLayout, Txg};
use millpond_vdev::VdevKind;
use std::collections::{BTreeMap, BTreeSet};

/// The txgs of a device that is offered for a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct History {
    /// The txg of the uberblock up to which its contents are complete; `None` if its rings have none.
    current: Option<Txg>,
    /// The first txg that only this device has: it was used without the other devices.
    pub(crate) own_since: Option<Txg>,
    /// Whether it is a copy of before this session, and older than the leaf was when it was last in use. What resilvers of
    /// earlier sessions wrote since is not known.
    is_of_earlier_session: bool,
    /// Whether it has uberblocks of txgs that the leaf missed: another system used it meanwhile, which may have freed and
    /// overwritten blocks that the pool still has.
    was_used_meanwhile: bool,
}

impl Pool {
    /// Whether a device carries a valid label of this leaf of this pool, and the label is not newer than the
    /// pool. The device may have been absent when the pool was opened after an export.
    #[must_use]
    pub fn is_its_own(&self, leaf: Guid, device: &dyn Device) -> bool {
        self.own_label(leaf, device).is_some()
    }

    pub(crate) fn own_label(&self, leaf: Guid, device: &dyn Device) -> Option<LeafLabel> {
        let labels = read_labels(device).into_iter().filter_map(Result::ok);
        let newest = (labels.filter(|label| label.is_verified)).max_by_key(|label| label.txg)?;
        let is_its_own = newest.guid == leaf
            && newest.pool_guid == self.guid()
            && matches!(newest.state, LabelState::Active | LabelState::Exported)
            && newest.txg <= self.uberblock().txg
            && self.is_large_enough(leaf, device);
        is_its_own.then_some(newest)
    }

    /// Whether a device can hold the leaf's part of its vdev.
    fn is_large_enough(&self, leaf: Guid, device: &dyn Device) -> bool {
        let needed = rearrange::needed_bytes(&self.state.read().config.root, leaf);
        let layout = device.measure().ok().and_then(LeafLayout::new);
        layout.is_some_and(|layout| layout.asize_bytes() >= needed.unwrap_or(0))
    }

    /// Compares the uberblocks of a device that is offered for a leaf with those of the pool.
    pub(crate) fn history_of(&self, leaf: Guid, device: &Arc<dyn Device>) -> History {
        // Read first: what the pool commits meanwhile must not look unknown.
        let offered = self.ring_slots([Arc::clone(device)]);
        let rings: Vec<States> = (0..LABEL_COUNT)
            .map(|label| states(offered.iter().filter(|slot| slot.label == label)))
            .collect();
        let topology = self.store.topology();
        let others = topology.tree.leaves().filter(|(number, node)| {
            node.config.guid != leaf && topology.condition(*number).is_usable()
        });
        let others = others.filter_map(|(number, _)| topology.tried_device(number));
        let mut known = states(&self.ring_slots(others));
        let mut newest = Txg(0);
        let state = self.state.read();
        // A txg that waits for devices may have reached this one before it was lost.
        for uberblock in std::iter::once(state.uberblock).chain(state.committing) {
            newest = newest.max(uberblock.txg);
            let roots = known.entry(uberblock.txg).or_default();
            roots.push(uberblock.root);
        }
        let mut history = History::compare(&rings, &known, newest);
        let node = topology.tree.find_leaf(leaf);
        let node = node.and_then(|leaf| topology.tree.leaf(leaf));
        if let (Some(current), Some(node)) = (history.current, node) {
            let (missed, end) = (state.missed.get(&leaf), Txg(newest.0.saturating_add(1)));
            history.is_of_earlier_session = current < self.first_txg
                && is_older_copy(&topology.tree, node, current, missed, end);
            let mut txgs = rings.iter().flat_map(BTreeMap::keys);
            history.was_used_meanwhile =
                missed.is_some_and(|missed| txgs.any(|txg| missed.rules_out(*txg)));
        }
        history
    }

    /// The valid slots of this pool's rings on these devices.
    fn ring_slots(&self, devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Vec<RingUberblock> {
        let candidates = (0u32..).zip(devices).map(|(number, device)| Candidate {
            path: number.to_string().into(),
            aliases: vec![],
            partition: None,
            device,
            is_live: false,
        });
        let found = scan_devices(candidates.collect());
        let members = found.leaves().iter();
        let members = members.filter(|leaf| leaf.best.pool_guid == self.guid());
        members.flat_map(|leaf| leaf.ring.clone()).collect()
    }

    /// Whether the device of a leaf that is out of use can be used again. What it may lack is noted: it may have been put back
    /// to older contents.
    pub(crate) fn take_stock(&self, leaf: Guid, device: &Arc<dyn Device>) -> bool {
        if !self.is_its_own(leaf, device.as_ref()) {
            return false;
        }
        let history = self.history_of(leaf, device);
        if history.own_since.is_some() {
            self.state.write().diverged.insert(leaf);
            return false;
        }
        self.note_lacking(leaf, &history);
        self.refresh_topology().is_ok()
    }

    /// Adds what a device may lack that takes a leaf's place from now on to the log of the leaf: all txgs after its newest
    /// uberblock, also the open one, whose blocks may be on the device that was used before. With four or more top-level vdevs
    /// a device does not get every uberblock; then it gets some blocks again that it has.
    ///
    /// Call it when the device is in its place, and before it is read. The caller then refreshes the topology.
    pub(crate) fn note_lacking(&self, leaf: Guid, history: &History) {
        let topology = self.store.topology();
        if !has_redundancy(&topology, leaf) {
            // No other device has it.
            return;
        }
        let open = self.groups.open_txg();
        let mut leaves = BTreeSet::from([leaf]);
        let top_of = |guid: Guid| {
            let node = topology.tree.leaf(topology.tree.find_leaf(guid)?)?;
            node.top
        };
        let top = top_of(leaf);
        let spares = topology.tree.leaves().filter(|(_, node)| {
            matches!(node.kind, VdevKind::DraidSpare { .. }) && node.top == top
        });
        // Distributed spares lie on the other devices of their vdev.
        leaves.extend(spares.map(|(_, node)| node.config.guid));
        let mut state = self.state.write();
        for guid in &leaves {
            let refilled = state.refilled.get(guid).cloned();
            let entry = state.missed.entry(*guid).or_default();
            let Some(Txg(current)) = history.common() else {
                entry.add(FIRST_TXG..open.0.saturating_add(1));
                continue;
            };
            if history.was_used_meanwhile {
                mark::hit("used-meanwhile");
            } else if history.is_of_earlier_session {
                mark::hit("copy-of-an-earlier-session");
            }
            if history.is_of_earlier_session || history.was_used_meanwhile {
                entry.add(FIRST_TXG..open.0.saturating_add(1));
                continue;
            }
            entry.add(current.saturating_add(1)..open.0.saturating_add(1));
            // A copy of before a resilver lacks what that wrote.
            if let Some(refilled) = refilled
                && Txg(current) < refilled.ended
            {
                mark::hit("copy-of-before-a-resilver");
                for range in refilled.missed.ranges() {
                    entry.add(range.clone());
                }
            }
        }
        state.is_topology_stale = true;
        state.assembly = None;
        drop(state);
        // What a scan wrote so far was not written to this device.
        self.scan.with(|state| {
            state.covered.retain(|guid| !leaves.contains(guid));
        });
        self.resilver_instead(&leaves, open);
    }
}

impl History {
    /// `rings` are those of the four labels of the device, `newest` is the newest txg of the pool.
    fn compare(rings: &[States], known: &States, newest: Txg) -> Self {
        let mut offered = States::new();
        for (txg, roots) in rings.iter().flatten() {
            offered.entry(*txg).or_default().extend(roots);
        }
        let is_own = |(txg, roots): &(&Txg, &Vec<BlockPointer>)| {
            let is_unknown = |known: &Vec<_>| !roots.iter().any(|root| known.contains(root));
            **txg > newest || known.get(*txg).is_some_and(is_unknown)
        };
        let own_since = offered.iter().find(is_own).map(|(txg, _)| *txg);
        // A copy of a device in use is not of one moment: it is as old as the ring that was copied first.
        let ends = rings.iter().filter_map(|ring| ring.keys().next_back());
        let current = ends.min().copied();
        Self {
            current,
            own_since,
            is_of_earlier_session: false,
            was_used_meanwhile: false,
        }
    }

    /// The txg up to which the device has what the pool has. A device with changes of its own has none: it may have freed
    /// and overwritten any block.
    fn common(&self) -> Option<Txg> {
        self.current.filter(|_| self.own_since.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(list: &[(u64, &[u64])]) -> States {
        let root = |number: &u64| {
            let mut root = BlockPointer::default();
            root.words[10] = *number;
            root
        };
        list.iter()
            .map(|(txg, roots)| (Txg(*txg), roots.iter().map(root).collect()))
            .collect()
    }

    #[test]
    fn a_device_is_compared_with_the_pool() {
        let known = ring(&[(8, &[1]), (9, &[1, 2]), (10, &[1]), (12, &[1])]);
        let history = |rings: &[States]| {
            let history = History::compare(rings, &known, Txg(12));
            let number = |txg: Option<Txg>| txg.map(|txg| txg.0);
            (number(history.common()), number(history.own_since))
        };
        let one = |list: &[(u64, &[u64])]| history(&[ring(list), ring(&[])]);
        assert_eq!(one(&[(8, &[1]), (9, &[2]), (10, &[1])]), (Some(10), None));
        // Txgs that are in no other ring any more, or that only other vdevs got.
        assert_eq!(one(&[(7, &[5]), (11, &[5])]), (Some(11), None));
        assert_eq!(one(&[]), (None, None));
        // Used alone: with other contents, and further than the pool.
        assert_eq!(one(&[(8, &[1]), (10, &[5]), (11, &[5])]), (None, Some(10)));
        assert_eq!(one(&[(12, &[1]), (13, &[5])]), (None, Some(13)));
        // Copied while it was written to.
        let (first, last) = (ring(&[(8, &[1])]), ring(&[(8, &[1]), (10, &[1])]));
        assert_eq!(history(&[first, last]), (Some(8), None));
    }
}
