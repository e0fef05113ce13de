//! Mappings of removed vdevs are condensed: entries to which nothing refers any more leave them.
//!
//! A new mapping is built beside the old one, some entries in each txg, and then takes its place. What becomes obsolete
//! meanwhile goes to a new map. The mapping in memory keeps all entries until the pool is opened again: views of older
//! states may need those that left.
//!
//! Page `docs/format/indirect-vdev.md`, "Condensing".

use super::RemovalState;
use super::obsolete::OBSOLETE_COUNTS;
use crate::error::Reading;
use crate::pool::Pool;
use crate::space::store::open_map;
use crate::space::vdev_map::{VdevMap, top_zap};
use crate::sync::context::SyncContext;
use crate::vdevs::objects::{each_space_map_entry, load_indirect_mapping, read_all};
use crate::{PoolError, PoolView};
use millpond_env::sync::Arc;
use millpond_env::{Tunable, Tunables, mark};
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{
    BlockId, CondensingIndirectPhys, DecodeError, INDIRECT_MAPPING_ENTRY_BYTES,
    IndirectMappingEntry, IndirectMappingPhys, ObjectId, SpaceAction, SpaceMapEntry, VdevId,
    obsolete_counts,
};
use millpond_vdev::{IndirectMapping, VdevKind};
use std::ops::Range;

/// The most entries that one txg decides on: 1.5 MiB of a mapping.
const ENTRIES_AT_ONCE: usize = 1 << 16;
/// When a mapping that could not be read is tried again.
const AGAIN_NS: u64 = 60_000_000_000;
const WHAT: &str = "mapping that is being condensed";

/// The size of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MappingSize {
    entries: u64,
    mapped_bytes: u64,
}

impl MappingSize {
    pub(crate) fn of(mapping: &IndirectMapping) -> Self {
        let lengths = mapping
            .entries()
            .iter()
            .map(IndirectMappingEntry::length_bytes);
        Self {
            entries: mapping.entries().len() as u64,
            mapped_bytes: lengths.fold(0, u64::saturating_add),
        }
    }

    /// Whether a mapping of this size is worth condensing with this map of what is obsolete.
    fn is_worth_condensing(self, obsolete: &VdevMap, tunables: &Tunables) -> bool {
        let obsolete_bytes = u128::try_from(obsolete.allocated_bytes).unwrap_or(0);
        let percent = u128::from(tunables.get(Tunable::CondenseObsoletePercent));
        let stored = self
            .entries
            .saturating_mul(INDIRECT_MAPPING_ENTRY_BYTES as u64);
        let is_large = stored > tunables.get(Tunable::CondenseMinMappingBytes);
        let has_much = obsolete_bytes * 100 >= percent * u128::from(self.mapped_bytes);
        let is_map_long = obsolete.length_bytes >= tunables.get(Tunable::CondenseMaxObsoleteBytes);
        obsolete_bytes > 0 && (is_large && has_much || is_map_long)
    }
}

/// A mapping that is being condensed.
#[derive(Debug, Clone)]
pub(crate) struct Condense {
    phys: CondensingIndirectPhys,
    /// What there is to do; `None` before it was read.
    work: Option<Arc<Work>>,
    /// The entries of the old mapping before this one are decided on.
    next_entry: usize,
    /// No entry is decided on before.
    not_before_ns: u64,
    /// Its objects contradict each other or cannot be read: it waits until the pool is opened again.
    is_given_up: bool,
}

impl Condense {
    pub(crate) fn of(phys: CondensingIndirectPhys) -> Self {
        Self {
            phys,
            work: None,
            next_entry: 0,
            not_before_ns: 0,
            is_given_up: false,
        }
    }
}

/// The old mapping, and the obsolete bytes of each of its entries.
#[derive(Debug)]
struct Work {
    old: ObjectId,
    next: ObjectId,
    mapping: IndirectMapping,
    obsolete: Vec<u32>,
    /// The end of what the new mapping has already.
    done_bytes: u64,
}

fn contradiction(reason: &'static str) -> PoolError {
    let error = DecodeError::new("condensed mapping", reason, 0);
    PoolError::Invalid { what: WHAT, error }
}

impl Work {
    /// Reads what a committed state has of it.
    fn load(view: &PoolView, phys: &CondensingIndirectPhys) -> Result<Self, PoolError> {
        let topology = view.store().topology();
        let node = topology.tree.top(phys.vdev);
        let node = node.filter(|node| node.kind == VdevKind::Indirect);
        let old = node.and_then(|node| node.config.indirect_mapping);
        let (Some(old), Some(next), Some(map)) =
            (old, phys.next_mapping, phys.previous_obsolete_map)
        else {
            return Err(contradiction("it lacks a mapping or a space map"));
        };
        let mapping = load_indirect_mapping(view.mos(), old, None)?;
        let done_bytes = header(view, next)?.max_offset_bytes;
        let mut obsolete = counts(view, old, mapping.entries())?;
        let (object, header) = open_map(view, map)?;
        each_space_map_entry(&object, header.length_bytes, WHAT, &mut |entry| {
            let SpaceMapEntry::Range {
                action,
                offset_units,
                run_units,
                ..
            } = entry
            else {
                return Ok(());
            };
            let end = offset_units.checked_add(run_units);
            match (action, end) {
                (SpaceAction::Allocate, Some(end)) => {
                    add(&mapping, &mut obsolete, &(offset_units..end))
                }
                _ => Err(contradiction("its space map has frees or no end")),
            }
        })?;
        Ok(Self {
            old,
            next,
            mapping,
            obsolete,
            done_bytes,
        })
    }

    /// The first entry that the new mapping does not have yet.
    fn first_entry(&self) -> usize {
        let entries = self.mapping.entries();
        entries.partition_point(|entry| entry.source_offset_bytes < self.done_bytes)
    }
}

fn header(view: &PoolView, mapping: ObjectId) -> Result<IndirectMappingPhys, PoolError> {
    let object = view.mos().object(mapping).reading(WHAT)?;
    let bonus = object.bonus().reading(WHAT)?;
    IndirectMappingPhys::decode(bonus, object.dnode().endian).reading(WHAT)
}

/// The stored obsolete bytes of each entry; zeros if the mapping has no counts.
fn counts(
    view: &PoolView,
    mapping: ObjectId,
    entries: &[IndirectMappingEntry],
) -> Result<Vec<u32>, PoolError> {
    let mut all = vec![0; entries.len()];
    let Some(counts) = header(view, mapping)?.counts.flatten() else {
        return Ok(all);
    };
    let object = view.mos().object(counts).reading(WHAT)?;
    let length = (entries.len() as u64).saturating_mul(4);
    let bytes = read_all(&object, length.min(object.length_bytes()), WHAT)?;
    let endian = object.read_block(BlockId(0)).reading(WHAT)?.endian;
    let slots = all.iter_mut().zip(entries);
    for ((slot, entry), stored) in slots.zip(obsolete_counts(&bytes, endian)) {
        if u64::from(stored) > entry.length_bytes() {
            return Err(contradiction("more is obsolete than was mapped"));
        }
        *slot = stored;
    }
    Ok(all)
}

/// Adds a range to the obsolete bytes of the entries in which it lies.
fn add(
    mapping: &IndirectMapping,
    obsolete: &mut [u32],
    range: &Range<u64>,
) -> Result<(), PoolError> {
    let entries = mapping.entries();
    let mut index = entries.partition_point(|entry| entry.source_end_bytes() <= range.start);
    let mut left = range.end.saturating_sub(range.start);
    while left > 0 {
        let (Some(entry), Some(slot)) = (entries.get(index), obsolete.get_mut(index)) else {
            return Err(contradiction("what is obsolete was never mapped"));
        };
        let start = entry.source_offset_bytes.max(range.start);
        let end = entry.source_end_bytes().min(range.end);
        let Some(inside) = end.checked_sub(start).filter(|inside| *inside > 0) else {
            return Err(contradiction("what is obsolete was never mapped"));
        };
        let sum = u64::from(*slot).saturating_add(inside);
        if sum > entry.length_bytes() {
            return Err(contradiction("more is obsolete than was mapped"));
        }
        *slot = u32::try_from(sum).map_err(|_| contradiction("an entry is too long"))?;
        left = left.saturating_sub(inside);
        index = index.saturating_add(1);
    }
    Ok(())
}

impl RemovalState {
    /// The removed vdev whose mapping should be condensed now.
    fn worth_condensing(&self, tunables: &Tunables) -> Option<VdevId> {
        let is_worth = |(vdev, map): &(&VdevId, &VdevMap)| {
            let removing = self.active.as_ref().map(|active| active.vdev);
            let size = self.sizes.get(vdev).filter(|_| removing != Some(**vdev));
            size.is_some_and(|size| size.is_worth_condensing(map, tunables))
        };
        let found = self.maps.iter().find(is_worth);
        found.map(|(vdev, _)| *vdev)
    }
}

impl Pool {
    /// Condenses the mapping of a removed vdev a bit further, or begins to, if much of it is obsolete. Returns whether there
    /// was anything to do.
    ///
    /// A mapping that cannot be read is tried again later, and one that contradicts itself stays as it is.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn condense_slice(&self) -> Result<bool, PoolError> {
        if !self.removal.has_mappings() || self.suspension().is_some() || self.is_frozen() {
            return Ok(false);
        }
        let Some(condense) = self.removal.with(|state| state.condense.clone()) else {
            return self.begin_condensing();
        };
        let now_ns = self.env.clock.monotonic_ns();
        if condense.is_given_up || now_ns < condense.not_before_ns {
            return Ok(false);
        }
        let (work, from) = match condense.work {
            Some(work) => (work, condense.next_entry),
            None => match self.condense_work(&condense.phys)? {
                None => return Ok(false),
                Some(work) => {
                    let from = work.first_entry();
                    (work, from)
                }
            },
        };
        let delay_ms = self.env.tunables.get(Tunable::CondenseDelayMs);
        let most = if delay_ms > 0 { 1 } else { ENTRIES_AT_ONCE };
        let to = from.saturating_add(most);
        self.sync_task(|ctx| ctx.condense_slice(&condense.phys, &work, from..to))?;
        let not_before_ns = now_ns.saturating_add(delay_ms.saturating_mul(1_000_000));
        self.removal.with(|state| {
            if let Some(condense) = &mut state.condense {
                condense.work = Some(work);
                condense.next_entry = to;
                condense.not_before_ns = not_before_ns;
            }
        });
        Ok(true)
    }

    /// Whether the mapping of a removed vdev is being condensed.
    #[must_use]
    pub fn is_condensing(&self) -> bool {
        self.removal.with(|state| state.condense.is_some())
    }

    fn begin_condensing(&self) -> Result<bool, PoolError> {
        let tunables = &self.env.tunables;
        // A checkpoint keeps the old mapping, so that nothing would be saved.
        if !tunables.is_on(Tunable::CondenseEnable) || self.checkpoint_refusal().is_some() {
            return Ok(false);
        }
        let found = self.removal.with(|state| state.worth_condensing(tunables));
        let Some(vdev) = found.filter(|vdev| self.top_zap(*vdev).is_some()) else {
            return Ok(false);
        };
        self.sync_task(|ctx| ctx.start_condensing(vdev))?;
        mark::hit("condense-started");
        Ok(true)
    }

    /// What there is to do; `None` if it cannot be read now.
    fn condense_work(&self, phys: &CondensingIndirectPhys) -> Result<Option<Arc<Work>>, PoolError> {
        let view = self.committed()?;
        let error = match Work::load(&view, phys) {
            Ok(work) => return Ok(Some(Arc::new(work))),
            Err(error) => error,
        };
        tracing::warn!(pool = %self.name(), %error, "the mapping of a removed device is not condensed");
        let again_ns = (self.env.clock.monotonic_ns()).saturating_add(AGAIN_NS);
        self.removal.with(|state| {
            if let Some(condense) = &mut state.condense {
                condense.is_given_up = matches!(error, PoolError::Invalid { .. });
                condense.not_before_ns = again_ns;
            }
        });
        Ok(None)
    }
}

impl SyncContext<'_> {
    /// Begins to condense the mapping of a removed vdev, which has a map of what is obsolete.
    fn start_condensing(&self, vdev: VdevId) -> Result<(), PoolError> {
        let removal = &self.pool.removal;
        let Some(map) = removal.with(|state| state.maps.remove(&vdev)) else {
            return Ok(());
        };
        self.remove_table_entry(top_zap(self, vdev)?, vdev_key::OBSOLETE_SPACE_MAP)?;
        let phys = CondensingIndirectPhys {
            vdev,
            previous_obsolete_map: Some(map.object),
            next_mapping: Some(self.create_mapping()?),
        };
        self.set_directory_words(key::CONDENSING_INDIRECT, &phys.to_words())?;
        removal.with(|state| state.condense = Some(Condense::of(phys)));
        Ok(())
    }

    /// Appends those of some entries to the new mapping to which something refers. After the last one the new mapping takes
    /// the place of the old one.
    fn condense_slice(
        &self,
        phys: &CondensingIndirectPhys,
        work: &Work,
        entries: Range<usize>,
    ) -> Result<(), PoolError> {
        let all = work.mapping.entries();
        let end = entries.end.min(all.len());
        let pairs = all.iter().zip(&work.obsolete);
        let pairs = pairs.take(end).skip(entries.start);
        let kept = pairs.filter(|(entry, obsolete)| u64::from(**obsolete) < entry.length_bytes());
        let (kept, obsolete): (Vec<IndirectMappingEntry>, Vec<u32>) =
            kept.map(|(entry, obsolete)| (*entry, *obsolete)).unzip();
        let header = self.append_to_mapping(work.next, &kept, &obsolete)?;
        if end < all.len() {
            return Ok(());
        }
        mark::hit("condense-finished");
        self.free_mapping(work.old)?;
        if let Some(map) = phys.previous_obsolete_map {
            self.free_space_map(map)?;
            self.feature_decrement(OBSOLETE_COUNTS)?;
        }
        self.remove_directory_entry(key::CONDENSING_INDIRECT)?;
        let pool = self.pool;
        pool.change_top(phys.vdev, |top| top.indirect_mapping = Some(work.next));
        let size = MappingSize {
            entries: header.entry_count,
            mapped_bytes: header.bytes_mapped,
        };
        pool.removal.with(|state| {
            state.condense = None;
            state.sizes.insert(phys.vdev, size);
        });
        tracing::info!(
            pool = %pool.name(),
            vdev = phys.vdev.0,
            before = all.len(),
            after = header.entry_count,
            "the mapping of a removed device is condensed"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::Dva;

    /// Two neighbours, and one further on.
    fn mapping() -> IndirectMapping {
        let entry = |source_offset_bytes, asize_bytes| IndirectMappingEntry {
            source_offset_bytes,
            destination: Dva {
                vdev: VdevId(0),
                offset_bytes: 1 << 20,
                asize_bytes,
                is_gang: false,
            },
        };
        let entries = vec![entry(512, 1024), entry(1536, 512), entry(4096, 2048)];
        IndirectMapping::from_entries(entries, vec![]).unwrap()
    }

    #[test]
    fn a_range_is_counted_in_each_of_its_entries() {
        let (mapping, mut obsolete) = (mapping(), vec![0; 3]);
        add(&mapping, &mut obsolete, &(1024..2048)).unwrap();
        add(&mapping, &mut obsolete, &(4608..5120)).unwrap();
        assert_eq!(obsolete, [512, 512, 512]);
    }

    #[test]
    fn maps_that_contradict_the_mapping_are_refused() {
        let mapping = mapping();
        for range in [
            0..512,
            0..1024,
            1536..2560,
            2048..4096,
            4096..8192,
            9000..9512,
        ] {
            let mut obsolete = vec![0; 3];
            assert!(add(&mapping, &mut obsolete, &range).is_err(), "{range:?}");
        }
        // Twice the same.
        let mut obsolete = vec![0; 3];
        add(&mapping, &mut obsolete, &(1536..2048)).unwrap();
        assert!(add(&mapping, &mut obsolete, &(1536..2048)).is_err());
    }

    #[test]
    fn a_mapping_is_condensed_when_much_of_it_is_obsolete() {
        let tunables = Tunables::default();
        let size = MappingSize {
            entries: 10_000,
            mapped_bytes: 1 << 30,
        };
        let map = |allocated_bytes, length_bytes| VdevMap {
            object: ObjectId(1),
            length_bytes,
            allocated_bytes,
        };
        assert!(size.is_worth_condensing(&map(1 << 28, 4096), &tunables));
        assert!(!size.is_worth_condensing(&map((1 << 28) - 1, 4096), &tunables));
        assert!(size.is_worth_condensing(&map(512, 1 << 30), &tunables));
        assert!(!size.is_worth_condensing(&map(0, 1 << 30), &tunables));
        let small = MappingSize {
            entries: 100,
            ..size
        };
        assert!(!small.is_worth_condensing(&map(1 << 30, 4096), &tunables));
    }
}
