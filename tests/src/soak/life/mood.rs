//! The parameters that vary between simulated runs.

use super::*;

/// What distinguishes runs besides their operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mood {
    pub(super) dataset_percent: usize,
    pub(super) file_bytes_max: usize,
    /// Whether file system handles stay open between operations.
    pub(super) keeps_open: bool,
    pub(super) makes_many: bool,
    /// How often blocks are copied, and shared where possible.
    pub(super) copy_percent: usize,
    /// Some runs keep little of the pool in memory.
    pub(super) cache_bytes: u64,
    /// In some runs blocks from this size on become gang blocks.
    pub(super) gangs_from_bytes: Option<u64>,
}

impl Mood {
    pub(super) fn of(rng: &mut SeededRng) -> Self {
        Self {
            dataset_percent: *rng.pick(&[0, 0, 1, 1, 1, 4]).unwrap_or(&1),
            file_bytes_max: *rng
                .pick(&[4000, 4000, 12_000, 12_000, 24_000, 200_000, 400_000])
                .unwrap_or(&12_000),
            keeps_open: rng.below(4) > 0,
            makes_many: rng.below(6) == 0,
            cache_bytes: *rng
                .pick(&[128 << 20, 128 << 20, 128 << 20, 128 << 20, 4 << 20])
                .unwrap_or(&0),
            gangs_from_bytes: *rng
                .pick(&[None, None, None, Some(8 << 10), Some(32 << 10)])
                .unwrap_or(&None),
            copy_percent: *rng.pick(&[0, 0, 10, 30]).unwrap_or(&0),
        }
    }

    pub(super) fn force_gangs(&self, pool: &Pool) {
        if let Some(bytes) = self.gangs_from_bytes {
            pool.inner().allocator().force_gangs(bytes);
        }
    }
}
