//! Slices of a removal: each copies some of what is allocated on the vdev, in one txg.

use super::change::top_of;
use super::check;
use super::condense::MappingSize;
use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::labels::clear_labels;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::sync::space::SyncAllocator;
use crate::vdevs::CopyLimits;
use crate::vdevs::activity::PATIENCE;
use crate::vdevs::rearrange::leaves_of;
use crate::vdevs::remove::RemoveError;
use crate::vdevs::remove_log::devices_of;
use crate::vdevs::topology::Added;
use millpond_block::{Allocate, BlockError, SpaceRequest};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_env::{Tunable, mark};
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::{Dva, Guid, IndirectMappingEntry, RemovalPhase, RemovalPhys, VdevId};
use millpond_vdev::{AllocationClass, VdevConfig, VdevType};
use std::ops::Range;

/// The longest segment of a mapping in bytes, as of a block.
const SEGMENT_BYTES: u64 = 16 << 20;
/// How much is copied at once, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// How a slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SliceEnd {
    /// More is to be copied.
    More,
    /// All is copied.
    Complete,
    /// A device does not answer, or there is no space. The next slice tries again.
    Blocked,
    /// No side of the vdev can read a part of it.
    Unreadable,
    /// No removal is under way.
    Idle,
}

/// What a slice copied.
struct Copies {
    entries: Vec<IndirectMappingEntry>,
    /// Up to here nothing is left.
    next_bytes: u64,
    bytes: u64,
}

impl Pool {
    /// Copies some of what is allocated on the vdev that is being removed, or ends the removal when nothing is left.
    /// Returns whether it came further.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn removal_slice(&self, limits: &CopyLimits) -> Result<bool, PoolError> {
        let is_suspended = self.env().tunables.is_on(Tunable::RemovalSuspendProgress);
        if is_suspended || self.removal.removing_vdev().is_none() || self.suspension().is_some() {
            return Ok(false);
        }
        let end = self.sync_task(|ctx| ctx.removal_slice(limits))?;
        match end {
            SliceEnd::More => Ok(true),
            SliceEnd::Idle | SliceEnd::Blocked => Ok(false),
            SliceEnd::Unreadable => {
                tracing::warn!("a removal is cancelled, as the vdev cannot be read");
                match self.cancel_removal() {
                    Err(RemoveError::Pool(error)) => Err(error),
                    Ok(()) | Err(_) => Ok(true),
                }
            }
            SliceEnd::Complete => self.finish_removal(),
        }
    }

    /// Whether a removal is under way, and the pool is not being closed.
    #[must_use]
    pub fn is_removing(&self) -> bool {
        self.removal.removing_vdev().is_some() && self.scan.with(|state| !state.has_ended)
    }

    /// Puts the indirect vdev in the place of the removed one. Returns whether that was possible.
    fn finish_removal(&self) -> Result<bool, PoolError> {
        let _pause = self.activities.pause(PATIENCE)?;
        // Views of older states read from the devices that leave.
        let (until, now_ns) = (self.uberblock().txg, self.env.clock.monotonic_ns());
        self.pins.release(until, true, now_ns);
        let Some(gone) = self.sync_task(|ctx| ctx.finish_removal())? else {
            return Ok(false);
        };
        mark::hit("removal-finished");
        self.scan.change(|_| ());
        for device in gone {
            // If this fails, the label shows an older txg than the pool's others, so it takes part in nothing.
            let _ = clear_labels(device.as_ref());
        }
        Ok(true)
    }
}

impl SyncContext<'_> {
    fn removal_slice(&self, limits: &CopyLimits) -> Result<SliceEnd, PoolError> {
        let pool = self.pool;
        let found = (pool.removal).with(|state| {
            let active = state.active.as_ref()?;
            let from = active.copied_to.max(active.mapping.end_bytes());
            Some((active.vdev, from))
        });
        let Some((vdev, from)) = found else {
            return Ok(SliceEnd::Idle);
        };
        let mut copies = Copies {
            entries: vec![],
            next_bytes: from,
            bytes: 0,
        };
        let end = self.copy_ranges(vdev, limits, &mut copies)?;
        self.store_copies(vdev, &copies)?;
        Ok(end)
    }

    /// Copies ranges from `copies.next_bytes` on.
    fn copy_ranges(
        &self,
        vdev: VdevId,
        limits: &CopyLimits,
        copies: &mut Copies,
    ) -> Result<SliceEnd, PoolError> {
        let pool = self.pool;
        let until_ns = (pool.env.clock.monotonic_ns()).saturating_add(limits.slice_ns);
        loop {
            let left = limits.bytes.saturating_sub(copies.bytes);
            if left == 0 || pool.env.clock.monotonic_ns() > until_ns {
                return Ok(SliceEnd::More);
            }
            let owned = (pool.allocator).owned_space(vdev, self.txg(), copies.next_bytes, left)?;
            let Some(owned) = owned else {
                return Ok(match copies.bytes {
                    // The removal ends only after the txg of the last copy is committed.
                    0 => SliceEnd::Complete,
                    _ => SliceEnd::More,
                });
            };
            for range in owned.ranges {
                let mut at = range.start;
                while at < range.end {
                    let wanted = at..range.end.min(at.saturating_add(SEGMENT_BYTES));
                    match self.copy_segment(vdev, wanted)? {
                        Ok(entry) => {
                            at = entry.source_end_bytes();
                            copies.bytes = copies.bytes.saturating_add(entry.length_bytes());
                            copies.next_bytes = at;
                            copies.entries.push(entry);
                        }
                        Err(end) => return Ok(end),
                    }
                    if pool.env.clock.monotonic_ns() > until_ns {
                        return Ok(SliceEnd::More);
                    }
                }
            }
            copies.next_bytes = owned.next_bytes;
        }
    }

    /// Copies the first part of a range for which there is space in one piece.
    fn copy_segment(
        &self,
        vdev: VdevId,
        range: Range<u64>,
    ) -> Result<Result<IndirectMappingEntry, SliceEnd>, PoolError> {
        let pool = self.pool;
        let Some(destination) = self.allocate_copy(vdev, range.end.saturating_sub(range.start))
        else {
            return Ok(Err(SliceEnd::Blocked));
        };
        let end = range.start.saturating_add(destination.asize_bytes);
        let mut at = range.start;
        while at < end {
            let chunk = at..end.min(at.saturating_add(CHUNK_BYTES));
            let contents = match pool.store.read_sides(vdev, &chunk) {
                Ok(contents) => contents,
                Err(error) => {
                    pool.allocator
                        .free(self.txg(), &destination, self.txg(), true)?;
                    return Ok(Err(match error {
                        BlockError::Missing { .. } => SliceEnd::Blocked,
                        _ => SliceEnd::Unreadable,
                    }));
                }
            };
            let target = Dva {
                offset_bytes: (destination.offset_bytes)
                    .saturating_add(at.saturating_sub(range.start)),
                asize_bytes: chunk.end.saturating_sub(chunk.start),
                ..destination
            };
            (pool.store)
                .write_evacuated(self.txg(), target, &contents)
                .reading("copy of a vdev that is being removed")?;
            at = chunk.end;
        }
        Ok(Ok(IndirectMappingEntry {
            source_offset_bytes: range.start,
            destination,
        }))
    }

    /// Allocates space for a copy: of all bytes, or of fewer.
    fn allocate_copy(&self, vdev: VdevId, mut bytes: u64) -> Option<Dva> {
        let topology = self.pool.store.topology();
        let node = topology.tree.top(vdev)?;
        let (class, sector) = (node.class, node.ashift.bytes());
        let allocator = SyncAllocator { pool: self.pool };
        while bytes >= sector {
            let request = SpaceRequest {
                psize_bytes: bytes,
                copies: 1,
                class,
                is_gang_header: false,
                avoid: &[],
            };
            let found = allocator.allocate(self.txg(), &request);
            if let Some(dva) = found.ok().and_then(|found| found.first().copied()) {
                if dva.asize_bytes == bytes {
                    return Some(dva);
                }
                // Vdevs with other sectors cannot be added beside removed ones.
                let _ = self.pool.allocator.free(self.txg(), &dva, self.txg(), true);
                return None;
            }
            bytes = bytes / 2 / sector * sector;
        }
        None
    }

    /// Appends copies to the mapping.
    fn store_copies(&self, vdev: VdevId, copies: &Copies) -> Result<(), PoolError> {
        let pool = self.pool;
        let txg = self.txg();
        let changed = pool.removal.with(|state| {
            let active = state.active.as_mut()?;
            active.copied_to = copies.next_bytes;
            let is_appended = active.mapping.append(&copies.entries, txg);
            let births = active.mapping.births();
            let last = births.last().copied().filter(|_| is_appended);
            Some((last, births.len() as u64, state.phys?))
        });
        let Some((last_birth, birth_count, phys)) = changed else {
            return Ok(());
        };
        if copies.entries.is_empty() {
            return Ok(());
        }
        let Some(last_birth) = last_birth else {
            return Err(PoolError::Suspended {
                reason: "copies of a removal do not ascend".to_owned(),
            });
        };
        let top = top_of(&pool.state.read().config.root, vdev);
        let objects = top.as_ref().and_then(check::objects_of);
        let objects = objects.ok_or_else(|| PoolError::NoEntry {
            key: "com.delphix:indirect_object".into(),
        })?;
        objects.append(self, &copies.entries, &last_birth, birth_count)?;
        self.put_removal(&RemovalPhys {
            bytes_copied: phys.bytes_copied.saturating_add(copies.bytes),
            ..phys
        })
    }

    /// The devices that left the pool; `None` if the removal cannot end yet.
    fn finish_removal(&self) -> Result<Option<Vec<Arc<dyn Device>>>, PoolError> {
        let pool = self.pool;
        pool.take_in_missed();
        pool.refresh_topology()?;
        let found = (pool.removal).with(|state| {
            let active = state.active.as_ref()?;
            let rest = active.copied_to.max(active.mapping.end_bytes());
            Some((state.phys?, active.vdev, rest))
        });
        let Some((phys, vdev, rest)) = found else {
            return Ok(None);
        };
        let is_complete = (pool.allocator)
            .owned_space(vdev, self.txg(), rest, 1)?
            .is_none();
        if !is_complete || pool.port.logs_use(vdev) {
            return Ok(None);
        }
        let mut root = pool.state.read().config.root.clone();
        let Some(top) = root.children.get_mut(vdev.0 as usize) else {
            return Ok(None);
        };
        let guid = Guid(crate::vdevs::new_vdev::random_u64(&pool.env).max(1));
        let gone = std::mem::replace(top, indirect(top, guid, phys.previous_indirect_vdev));
        let leaves = leaves_of(&gone);
        let devices = devices_of(&pool.store.topology(), &leaves);
        self.free_metaslabs(vdev)?;
        for leaf in &leaves {
            self.free_leaf_objects(leaf)?;
        }
        pool.allocator.remove_vdev(vdev);
        let active = pool.removal.with(|state| {
            let active = state.active.take();
            let size = active
                .as_ref()
                .map(|active| MappingSize::of(&active.mapping));
            state.sizes.extend(size.map(|size| (vdev, size)));
            active
        });
        let added = Added {
            mapping: active.map(|active| (vdev, active.mapping)),
            classes: [(vdev, AllocationClass::Normal)].into(),
            ..Added::default()
        };
        pool.put_tree(root, &added, |missed| {
            missed.retain(|guid, _| !leaves.iter().any(|leaf| leaf.guid == *guid));
        })?;
        self.mark_config_dirty();
        self.settle_deferral()?;
        self.put_removal(&RemovalPhys {
            phase: RemovalPhase::Finished,
            previous_indirect_vdev: Some(vdev),
            end_time: pool.env.clock.wall_ns() / 1_000_000_000,
            bytes_copied: phys.bytes_to_copy,
            ..phys
        })?;
        let text = format!("{} vdev {}", pool.name(), vdev.0);
        self.history(&HistoryEvent::of_pool("vdev remove completed", text))?;
        Ok(Some(devices))
    }

    /// Frees the objects that store the space of a vdev. Its ZAP stays.
    fn free_metaslabs(&self, vdev: VdevId) -> Result<(), PoolError> {
        self.forget_rebuild(vdev)?;
        for object in self.pool.maps.take_vdev(vdev) {
            self.free_space_map(object)?;
        }
        if let Some(zap) = self.pool.top_zap(vdev) {
            for name in [vdev_key::UNFLUSHED_TXGS, vdev_key::REBUILD] {
                self.remove_table_entry(zap, name)?;
            }
        }
        Ok(())
    }
}

/// The configuration of a vdev after its removal.
fn indirect(top: &VdevConfig, guid: Guid, previous: Option<VdevId>) -> VdevConfig {
    VdevConfig {
        id: top.id,
        whole_disk: Some(false),
        metaslab_shift: top.metaslab_shift,
        ashift: top.ashift,
        asize_bytes: top.asize_bytes,
        non_allocating: true,
        indirect_mapping: top.indirect_mapping,
        indirect_births: top.indirect_births,
        prev_indirect_vdev: previous,
        create_txg: top.create_txg,
        zap_top: top.zap_top,
        ..VdevConfig::new(VdevType::Indirect, guid)
    }
}
