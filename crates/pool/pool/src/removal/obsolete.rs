//! Blocks on removed vdevs that are freed: their space is freed where it is now, and the mapping notes that nothing refers
//! to this part of it any more.
//!
//! Page `docs/format/indirect-vdev.md`, "Frees".

use super::RemovalState;
use crate::PoolError;
use crate::bpobj::{BpObject, Drain};
use crate::pool::Pool;
use crate::space::vdev_map::VdevMap;
use crate::sync::context::SyncContext;
use millpond_alloc::{AllocError, MetaslabId, RangeSet};
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{Dva, SpaceAction, Txg, VdevId};
use std::ops::Range;

pub(crate) const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";
/// The most entries of the pool's list of obsolete addresses that one txg takes.
const LISTED_AT_ONCE: usize = 100_000;
/// The most pieces of one block. A block has one on each of its sectors, on each vdev of a chain of removals.
const PIECES_MAX: usize = 1 << 20;

impl RemovalState {
    /// Notes a range of a vdev's mapping to which nothing refers any more.
    fn note_obsolete(&mut self, vdev: VdevId, range: Range<u64>) -> Result<(), PoolError> {
        let metaslab = MetaslabId { vdev, index: 0 };
        let noted = self.obsolete.entry(vdev).or_default().add(range);
        noted.map_err(|conflict| AllocError::Contradiction { metaslab, conflict }.into())
    }
}

impl Pool {
    /// Frees an address of a block in `txg`, wherever its data is now: as [`Pool::free_or_keep`] does on a vdev that was
    /// not removed. States before `since` do not contain it.
    ///
    /// # Errors
    /// If a part of it is free already, or a mapping lacks a part.
    pub(crate) fn free_address(
        &self,
        txg: Txg,
        dva: &Dva,
        since: Txg,
        is_unreferenced: bool,
    ) -> Result<(), PoolError> {
        if !self.removal.has_mappings() {
            return self.free_or_keep(txg, dva, since, is_unreferenced);
        }
        let topology = self.store.topology();
        let removing = self.removal.removing_vdev();
        let mut open = vec![self.of_whole_header(*dva)];
        let mut pieces = 0usize;
        while let Some(dva) = open.pop() {
            pieces += 1;
            if pieces > PIECES_MAX {
                return Err(AllocError::NoMetaslab { dva }.into());
            }
            let range = dva.offset_bytes..dva.offset_bytes.saturating_add(dva.asize_bytes);
            let below = if Some(dva.vdev) == removing {
                self.free_or_keep(txg, &dva, since, is_unreferenced)?;
                // What was not copied yet is not copied any more.
                self.removal.with(|state| {
                    let parts = state.active.iter();
                    let parts = parts.flat_map(|active| active.mapping.mapped_parts(&range));
                    let parts: Vec<_> = parts.collect();
                    for part in &parts {
                        let end = part.source_bytes.saturating_add(part.size_bytes);
                        state.note_obsolete(dva.vdev, part.source_bytes..end)?;
                    }
                    Ok::<_, PoolError>(parts)
                })?
            } else if let Some(mapping) = topology.indirect.get(dva.vdev) {
                mark::hit("block-of-removed-vdev-freed");
                let parts = mapping.resolve(dva.offset_bytes, dva.asize_bytes);
                let parts = parts.ok_or(AllocError::NoMetaslab { dva })?;
                (self.removal).with(|state| state.note_obsolete(dva.vdev, range))?;
                parts
            } else {
                self.free_or_keep(txg, &dva, since, is_unreferenced)?;
                continue;
            };
            // What is in a mapping may be part of a committed state.
            open.extend(below.into_iter().map(|part| Dva {
                vdev: part.vdev,
                offset_bytes: part.offset_bytes,
                asize_bytes: part.size_bytes,
                is_gang: false,
            }));
        }
        Ok(())
    }

    /// The address of the space itself: that of a gang block has the size of its content.
    fn of_whole_header(&self, dva: Dva) -> Dva {
        if !dva.is_gang {
            return dva;
        }
        let header = self.store.topology().tree.gang_header_asize(dva.vdev);
        Dva {
            asize_bytes: header.unwrap_or(dva.asize_bytes),
            is_gang: false,
            ..dva
        }
    }

    /// Writes what became obsolete since the last pass into the maps of the removed vdevs.
    pub(crate) fn write_obsolete_maps(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if !self.removal.has_mappings() {
            return Ok(());
        }
        let obsolete = self
            .removal
            .with(|state| std::mem::take(&mut state.obsolete));
        // Without the feature nothing is kept of it.
        if !ctx.feature_is_enabled(OBSOLETE_COUNTS) {
            return Ok(());
        }
        for (vdev, ranges) in obsolete {
            ctx.sync_state.has_changes.store(true, Ordering::Relaxed);
            self.append_obsolete(ctx, vdev, &ranges)?;
        }
        Ok(())
    }

    fn append_obsolete(
        &self,
        ctx: &SyncContext<'_>,
        vdev: VdevId,
        ranges: &RangeSet,
    ) -> Result<(), PoolError> {
        let known = (self.removal).with(|state| state.maps.get(&vdev).copied());
        let mut map = match known {
            Some(map) => map,
            None => {
                ctx.feature_increment(OBSOLETE_COUNTS)?;
                VdevMap::create(ctx, vdev, vdev_key::OBSOLETE_SPACE_MAP)?
            }
        };
        let metaslab = MetaslabId { vdev, index: 0 };
        let mut ranges = ranges.iter().map(|range| (metaslab, range));
        map.append(ctx, SpaceAction::Allocate, 0, &mut ranges)?;
        self.removal.with(|state| state.maps.insert(vdev, map));
        Ok(())
    }

    /// Whether addresses that destroyed snapshots had, before their blocks were remapped, wait to be noted as obsolete.
    pub(crate) fn has_listed_obsolete(&self) -> bool {
        self.removal.with(|state| state.has_list)
    }

    /// Notes some of the pool's list of obsolete addresses, in pass 1.
    pub(crate) fn note_listed_obsolete(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if !self.has_listed_obsolete() {
            return Ok(());
        }
        let Some(id) = ctx.directory_object(key::OBSOLETE_BPOBJ)? else {
            self.removal.with(|state| state.has_list = false);
            return Ok(());
        };
        let list = BpObject::open(ctx, id)?;
        let mut left = LISTED_AT_ONCE;
        let topology = self.store.topology();
        let is_empty = list.drain(ctx, &mut |entry| {
            if left == 0 {
                return Ok(Drain::Stop);
            }
            left -= 1;
            for dva in entry.pointer.dvas() {
                let mapping = topology.indirect.get(dva.vdev);
                let is_mapped = mapping
                    .is_some_and(|map| map.resolve(dva.offset_bytes, dva.asize_bytes).is_some());
                if !is_mapped {
                    return Err(AllocError::NoMetaslab { dva }.into());
                }
                let end = dva.offset_bytes.saturating_add(dva.asize_bytes);
                (self.removal)
                    .with(|state| state.note_obsolete(dva.vdev, dva.offset_bytes..end))?;
            }
            Ok(Drain::Remove)
        })?;
        if is_empty {
            BpObject::free(ctx, id)?;
            ctx.remove_directory_entry(key::OBSOLETE_BPOBJ)?;
            ctx.feature_decrement(OBSOLETE_COUNTS)?;
            self.removal.with(|state| state.has_list = false);
        }
        Ok(())
    }
}

impl SyncContext<'_> {
    /// The pool's list of addresses on removed vdevs to which nothing refers any more. The pool takes entries from it in
    /// the following txgs.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn obsolete_list(&self) -> Result<BpObject, PoolError> {
        self.pool.removal.with(|state| state.has_list = true);
        if let Some(id) = self.directory_object(key::OBSOLETE_BPOBJ)? {
            return BpObject::open(self, id);
        }
        let list = BpObject::create(self)?;
        self.set_directory_number(key::OBSOLETE_BPOBJ, list.id().0)?;
        self.feature_increment(OBSOLETE_COUNTS)?;
        Ok(list)
    }
}
