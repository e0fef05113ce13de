//! `autotrim`: discards what was freed some txgs ago.

use super::leaf_position::LeafPosition;
use super::leaves_of;
use super::requests::{Request, make};
use super::slice::{SliceLimits, ranges_of};
use crate::pool::Pool;
use crate::properties::PropertyValue;
use millpond_alloc::{Hold, HoldLimits};
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_ondisk::{Guid, VdevId};
use millpond_vdev::VdevConfig;

impl Pool {
    /// Discards recent frees if the pool has `autotrim=on` and enough txgs collected some. Returns how many bytes of
    /// top-level vdevs were discarded.
    ///
    /// What could not be discarded, because the space is needed or the tree changes, is not tried again: a manual trim does
    /// that.
    pub fn autotrim(&self, limits: &SliceLimits) -> u64 {
        let txg = self.uberblock().txg.0;
        let (looked, trimmed) = {
            let mut state = self.activities.state.lock();
            (
                std::mem::replace(&mut state.autotrim_looked, txg),
                state.autotrim_txg,
            )
        };
        // The property changes with a txg.
        if looked == txg || self.suspension().is_some() {
            return 0;
        }
        let is_on = self.is_autotrim_on();
        self.allocator.note_frees(is_on);
        // Txgs collect frees, so that small ranges become large ones.
        let batch = self.env.tunables.get(Tunable::TrimTxgBatch);
        if !is_on || txg < trimmed.saturating_add(batch) {
            return 0;
        }
        self.activities.state.lock().autotrim_txg = txg;
        let root = self.state.read().config.root.clone();
        let limits = HoldLimits {
            bytes: limits.held_bytes,
            ranges: limits.held_ranges,
            least_bytes: self.trim_bytes_min(),
        };
        let mut bytes = 0u64;
        for (top, number) in root.children.iter().zip(0..) {
            while let Some(done) = self.autotrim_some(top, VdevId(number), &limits) {
                bytes = bytes.saturating_add(done);
            }
        }
        bytes
    }

    fn is_autotrim_on(&self) -> bool {
        let view = self.committed();
        let found = view.and_then(|view| view.property("autotrim"));
        let value = found.ok().flatten().and_then(|found| found.value);
        value == Some(PropertyValue::Number(1))
    }

    /// `None` if there is no more.
    fn autotrim_some(&self, top: &VdevConfig, number: VdevId, limits: &HoldLimits) -> Option<u64> {
        // Dropped last: until then no device leaves the pool.
        let _busy = self.activities.enter()?;
        let tree = &self.store.topology().tree;
        let leaves = leaves_of(top).into_iter();
        let positions: Vec<(Guid, LeafPosition)> = leaves
            .filter_map(|leaf| Some((leaf.guid, LeafPosition::of(tree, leaf.guid)?)))
            .collect();
        let mut limits = *limits;
        if let Some((_, position)) = positions.first() {
            limits.bytes = position.whole_units(limits.bytes);
        }
        let Hold::Space(space) = self.allocator.hold_freed(number, &limits) else {
            return None;
        };
        mark::hit("recent-frees-discarded");
        for (leaf, position) in positions {
            let device = self.activity_device(leaf);
            let device = device.filter(|one| one.discard_support().is_some_and(|can| can.plain));
            if let Some(device) = device {
                let may_go_on = || self.may_go_on(&space, leaf);
                let ranges = ranges_of(&position, &space);
                make(device.as_ref(), Request::Discard, &ranges, &may_go_on);
            }
        }
        let bytes = space.ranges().iter().map(|range| range.end - range.start);
        Some(bytes.sum())
    }
}
