//! I/O statistics of vdevs. An inner vdev has the sum of its devices.

use super::super::groups;
use millpond_control::{IoCounters, IoWaits, PoolInfo, VdevInfo};
use std::collections::BTreeMap;

/// The I/O counters of a vdev, its latencies and its queues.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VdevStats {
    pub io: IoCounters,
    pub waits: IoWaits,
}

impl VdevStats {
    /// The statistics of a vdev: the sum over its devices.
    ///
    /// The code that built the tree has already limited its depth.
    pub fn of(vdev: &VdevInfo) -> Self {
        if vdev.children.is_empty() {
            return Self {
                io: vdev.io,
                waits: vdev.waits.clone(),
            };
        }
        let mut sum = Self::default();
        for child in &vdev.children {
            sum.add(&Self::of(child));
        }
        sum
    }

    fn add(&mut self, other: &Self) {
        let (io, more) = (&mut self.io, &other.io);
        io.reads = io.reads.saturating_add(more.reads);
        io.writes = io.writes.saturating_add(more.writes);
        io.read_bytes = io.read_bytes.saturating_add(more.read_bytes);
        io.written_bytes = io.written_bytes.saturating_add(more.written_bytes);
        self.waits.add(&other.waits);
    }

    /// The difference since `before`. Queue lengths are the current ones.
    pub fn since(&self, before: &Self) -> Self {
        let (io, old) = (&self.io, &before.io);
        Self {
            io: IoCounters {
                reads: io.reads.saturating_sub(old.reads),
                writes: io.writes.saturating_sub(old.writes),
                read_bytes: io.read_bytes.saturating_sub(old.read_bytes),
                written_bytes: io.written_bytes.saturating_sub(old.written_bytes),
                trims: io.trims.saturating_sub(old.trims),
                trimmed_bytes: io.trimmed_bytes.saturating_sub(old.trimmed_bytes),
            },
            waits: self.waits.since(&before.waits),
        }
    }
}

/// The statistics of one interval, by pool name and vdev guid.
#[derive(Default)]
pub struct Sample(BTreeMap<(String, u64), VdevStats>);

impl Sample {
    pub fn of(pools: &[PoolInfo]) -> Self {
        let mut all = BTreeMap::new();
        for pool in pools {
            let vdevs = groups::walk(pool).into_iter().map(|(vdev, _)| vdev);
            for vdev in vdevs.chain([&pool.root]) {
                all.insert((pool.name.clone(), vdev.guid), VdevStats::of(vdev));
            }
        }
        Self(all)
    }

    pub fn get(&self, pool: &str, guid: u64) -> Option<&VdevStats> {
        self.0.get(&(pool.to_owned(), guid))
    }
}
