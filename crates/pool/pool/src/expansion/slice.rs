//! Slices of an expansion: each moves some rows, in one txg.

use super::entry;
use crate::PoolError;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::scan::ScrubRange;
use crate::sync::context::SyncContext;
use crate::vdevs::CopyLimits;
use crate::vdevs::attach::TXGS_UNDER_WAY;
use crate::vdevs::grow::Growth;
use crate::vdevs::rebuild::chunks_of;
use crate::vdevs::topology::Added;
use millpond_alloc::VdevGeometry;
use millpond_block::ReflowPass;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{Txg, VdevId};
use millpond_vdev::Reflow;
use std::ops::Range;

/// How much is moved while writes of the range wait, in bytes.
const BATCH_BYTES: u64 = 4 << 20;

/// How a slice ended.
#[derive(Debug)]
enum SliceEnd {
    /// Rows were moved.
    Moved,
    /// Requests do not end, or there is nothing to move before the next uberblock. The next slice tries again.
    Blocked,
    /// A row could not be read or written. The next slice tries again.
    Failed,
    /// The expansion has ended, and the vdev may be larger.
    Finished(Vec<VdevGeometry>),
}

/// How far an expansion is, in bytes from the start of the vdev.
#[derive(Debug, Clone, Copy)]
struct Progress {
    top: VdevId,
    /// What the last uberblock says.
    committed: Reflow,
    /// Up to here rows may be moved before the next uberblock.
    limit_bytes: u64,
    /// Where the first rows end.
    first_rows_bytes: Option<u64>,
    /// The end of the last metaslab.
    end_bytes: u64,
}

impl Pool {
    /// Moves some rows of the vdev that is being expanded, or ends the expansion when all have moved. Returns whether it
    /// came further.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn expansion_slice(&self, limits: &CopyLimits) -> Result<bool, PoolError> {
        if !self.is_expanding() || self.suspension().is_some() || self.is_expansion_paused() {
            return Ok(false);
        }
        // Requests of before the last commit may read or repair the old places of what has moved.
        if !self.store.forget_former_topologies() {
            return Ok(false);
        }
        let end = self.sync_task(|ctx| ctx.expansion_slice(limits))?;
        if !matches!(end, SliceEnd::Blocked) {
            let has_failed = matches!(end, SliceEnd::Failed);
            self.has_expansion_failed
                .store(has_failed, Ordering::Relaxed);
        }
        match end {
            SliceEnd::Moved => Ok(true),
            SliceEnd::Blocked | SliceEnd::Failed => Ok(false),
            SliceEnd::Finished(grown) => {
                // The new size is committed: from now on blocks may lie there.
                for geometry in grown {
                    self.allocator.grow_vdev(geometry)?;
                }
                mark::hit("expansion-finished");
                match self.start_scrub(ScrubRange::All) {
                    // Another scan runs, or waits to be resumed.
                    Ok(()) | Err(PoolError::Scan(_)) => {}
                    Err(error) => return Err(error),
                }
                self.scan.change(|_| ());
                Ok(true)
            }
        }
    }

    fn expansion_progress(&self) -> Option<Progress> {
        let topology = self.store.topology();
        let (top, node, geometry) = topology.tree.expanding()?;
        let committed = topology.tree.reflow();
        let shift = u32::try_from(node.config.metaslab_shift).ok()?;
        let end_bytes = topology.tree.metaslab_count(top).checked_shl(shift)?;
        let limit_bytes = geometry.moved_bytes_max(node.ashift, committed.offset_bytes)?;
        Some(Progress {
            top,
            committed,
            limit_bytes: limit_bytes.min(end_bytes),
            first_rows_bytes: geometry.scratch_end_bytes(node.ashift),
            end_bytes,
        })
    }
}

impl SyncContext<'_> {
    fn expansion_slice(&self, limits: &CopyLimits) -> Result<SliceEnd, PoolError> {
        let pool = self.pool;
        pool.take_in_missed();
        pool.refresh_topology()?;
        let is_ready = !pool.is_expansion_paused();
        let Some(progress) = pool.expansion_progress().filter(|_| is_ready) else {
            return Ok(SliceEnd::Blocked);
        };
        if progress.committed.offset_bytes >= progress.end_bytes {
            return self.finish_expansion(progress.top).map(SliceEnd::Finished);
        }
        let Some(pass) = pool.store.begin_reflow(progress.top, self.txg()) else {
            return Ok(SliceEnd::Blocked);
        };
        let bytes = match progress.committed.offset_bytes {
            0 => self.move_first_rows(&pass, &progress)?,
            _ => self.move_rows(&pass, &progress, limits),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(end) => return Ok(end),
        };
        if let Some(zap) = pool.top_zap(progress.top) {
            let before = self.table_number(zap, entry::BYTES_COPIED)?.unwrap_or(0);
            let copied = before.saturating_add(bytes);
            self.set_table_number(zap, entry::BYTES_COPIED, copied)?;
        }
        Ok(SliceEnd::Moved)
    }

    /// Moves the rows that have no room, and returns how many bytes of them are in use, or why nothing moved.
    fn move_first_rows(
        &self,
        pass: &ReflowPass<'_>,
        progress: &Progress,
    ) -> Result<Result<u64, SliceEnd>, PoolError> {
        let pool = self.pool;
        let Some(offset_bytes) =
            (progress.first_rows_bytes).filter(|end| *end <= progress.end_bytes)
        else {
            return Ok(Err(SliceEnd::Blocked));
        };
        let state = |scratch_state| Reflow {
            offset_bytes,
            scratch_state,
        };
        let states = [state(Reflow::SCRATCH_VALID), state(Reflow::SCRATCH_WRITTEN)];
        let unfinished = || PoolError::Suspended {
            reason: "a device failed in the first step of a RAID-Z expansion; export and import \
                     the pool to repeat it"
                .to_owned(),
        };
        let is_moved = pass.move_first_rows(
            states,
            &mut |reflow| pool.rewrite_uberblock(reflow),
            unfinished,
        )?;
        let used = pool.used_chunks(progress.top, &(0..offset_bytes));
        let bytes = used
            .iter()
            .map(|range| range.end.saturating_sub(range.start));
        Ok(match is_moved {
            true => Ok(bytes.sum()),
            false => Err(SliceEnd::Failed),
        })
    }

    /// Moves rows from the committed place on. Returns how many bytes of them are in use, or why none moved.
    fn move_rows(
        &self,
        pass: &ReflowPass<'_>,
        progress: &Progress,
        limits: &CopyLimits,
    ) -> Result<u64, SliceEnd> {
        let pool = self.pool;
        let until_ns = (pool.env.clock.monotonic_ns()).saturating_add(limits.slice_ns);
        let from = progress.committed.offset_bytes;
        let (mut at, mut bytes) = (from, 0u64);
        let mut none = SliceEnd::Blocked;
        while at < progress.limit_bytes && bytes < limits.bytes {
            let most = BATCH_BYTES.min(limits.bytes);
            let used = pool.allocator.used_space(progress.top, at, most);
            let next = used.map_or(progress.end_bytes, |used| used.next_bytes);
            let range = at..next.min(progress.limit_bytes);
            if range.is_empty() {
                break;
            }
            let list = &mut || pool.used_chunks(progress.top, &range);
            let Some(moved) = pass.move_range(&range, list) else {
                none = SliceEnd::Failed;
                break;
            };
            bytes = bytes.saturating_add(moved);
            at = range.end;
            if pool.env.clock.monotonic_ns() > until_ns {
                break;
            }
        }
        match at > from {
            true => Ok(bytes),
            false => Err(none),
        }
    }

    /// Ends the expansion: blocks get the new width once the txgs that are open now are over. Returns the geometry of the
    /// vdev if it is larger.
    fn finish_expansion(&self, top: VdevId) -> Result<Vec<VdevGeometry>, PoolError> {
        let pool = self.pool;
        let txg = self.txg();
        let mut root = pool.state.read().config.root.clone();
        let mut width = 0;
        if let Some(config) = root.children.get_mut(top.0 as usize) {
            config.raidz_expanding = false;
            (config.raidz_expand_txgs).push(Txg(txg.0.saturating_add(TXGS_UNDER_WAY)));
            width = config.children.len();
        }
        pool.put_tree(root, &Added::default(), |_| {})?;
        self.mark_config_dirty();
        // It allocates by the width.
        let tree = Arc::new(pool.store.topology().tree.clone());
        (pool.allocator).update_vdev(top, |space| {
            space.data_disks = tree.data_disks(top).unwrap_or(space.data_disks);
            space.sizes = tree;
        });
        if let Some(zap) = pool.top_zap(top) {
            let now_s = pool.env.clock.wall_ns() / 1_000_000_000;
            self.set_table_number(zap, entry::STATE, entry::FINISHED)?;
            self.set_table_number(zap, entry::END_TIME, now_s)?;
        }
        let text = format!("{} vdev {} new width {width}", pool.name(), top.0);
        self.history(&HistoryEvent::of_pool(
            "raidz vdev expansion completed",
            text,
        ))?;
        // If a device takes no labels at a new end, the vdev keeps its size.
        Ok(self
            .grow_vdevs(&[top], Growth::Ordered)?
            .unwrap_or_default())
    }
}

impl Pool {
    /// The used parts of a range of a vdev, in chunks.
    fn used_chunks(&self, top: VdevId, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut all = vec![];
        let mut at = range.start;
        while at < range.end {
            let Some(used) = self.allocator.used_space(top, at, BATCH_BYTES) else {
                break;
            };
            let within = used
                .ranges
                .into_iter()
                .filter(|used| used.start < range.end);
            all.extend(within.map(|used| used.start..used.end.min(range.end)));
            if used.next_bytes <= at {
                break;
            }
            at = used.next_bytes;
        }
        chunks_of(&all)
    }
}
