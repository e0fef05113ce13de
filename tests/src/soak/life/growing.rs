//! Disks that become larger, and free space that is discarded or filled, during a run.

use super::*;
use millpond_engine::{GrowError, Growth, LeafActivity, SliceLimits, TrimOptions};
use millpond_pool::ActivityAction;

/// No disk becomes larger, to limit the number of metaslabs.
const SIZE_MAX_BYTES: u64 = 4 << 30;

impl Lived<'_> {
    /// Makes a disk, or all disks of a vdev, larger, and lets the pool take the space.
    pub(super) fn grow(&mut self, number: u64) -> Result<(), String> {
        let mut seed = Seed::new(number);
        self.note(None)?;
        let positions = self.layout.positions();
        let Some(position) = seed.choose(&positions).copied() else {
            return Ok(());
        };
        let grown: Vec<Position> = match seed.below(3) {
            0 => vec![position],
            _ => self.layout.vdev(position).collect(),
        };
        let more = (1 + seed.below(64)) << 24;
        for disk in grown
            .iter()
            .flat_map(|position| self.layout.disks(*position))
        {
            let disk = self.disk(*disk);
            let size = disk.size_bytes().max(disk.measure().unwrap_or(0));
            disk.resize(size.saturating_add(more).min(SIZE_MAX_BYTES).max(size));
        }
        let began = self.world.recorded();
        let bytes = match self.pool()?.inner().grow_vdevs(None, Growth::Ordered) {
            Ok(bytes) => bytes,
            // A disk that fails takes no labels.
            Err(GrowError::Device { .. }) if !self.victims.is_empty() => 0,
            Err(error) => return Err(failure_text("growing", &error)),
        };
        self.take_deeds(began, true);
        if bytes > 0 {
            self.stats.grown += 1;
            self.life.log.push(format!("{bytes} bytes more space"));
        }
        self.note(None)
    }

    /// Starts to discard or fill the free space of all disks, or makes some slices of that.
    pub(super) fn trim(&mut self, number: u64) -> Result<(), String> {
        let mut seed = Seed::new(number);
        self.note(None)?;
        let pool = self.pool()?.inner().clone();
        let is_active = |activity| pool.is_leaf_active(activity);
        if !LeafActivity::ALL.into_iter().any(is_active) {
            // What fills the free space takes memory.
            let activity = match seed.below(40) {
                0 => LeafActivity::Initialize,
                _ => LeafActivity::Trim,
            };
            let topology = pool.store().topology();
            let leaves = topology.tree.leaves().map(|(_, node)| node.config.guid);
            let leaves: Vec<_> = leaves.collect();
            let action = ActivityAction::Start(TrimOptions::default());
            let begun = pool.change_leaf_activity(&leaves, activity, action);
            begun.map_err(|error| failure_text("trim", &error))?;
            self.life.log.push(format!("{activity:?} begins"));
        }
        let limits = SliceLimits {
            held_bytes: 1 << (20 + seed.below(8)),
            held_ranges: 64,
            batches: 4,
            slice_ns: u64::MAX / 2,
        };
        for _ in 0..1 + seed.below(4) {
            let moved = pool.leaf_activity_slice(&limits);
            if !moved.map_err(|error| failure_text("a slice of trim", &error))? {
                break;
            }
            self.stats.trimmed += 1;
        }
        drop(pool);
        self.note(None)
    }
}
