//! Blocks that may have several owners: the tables of cloned and deduplicated blocks.

use super::Findings;
use super::finding::{Finding, FindingKind};
use super::lists::each_block;
use super::objects::References;
use millpond_ondisk::dedup::{CloneCounters, clone_entry_count};
use millpond_ondisk::pool_directory::clone_table_key;
use millpond_ondisk::{BlockPointer, CloneTablePhys, ObjectId};
use millpond_pool::{PoolError, PoolView};
use millpond_zap::Zap;
use std::collections::HashMap;

/// The clone tables: counts of additional references, by address. Takes 24 bytes per cloned block.
#[derive(Default)]
pub(super) struct Clones {
    counts: HashMap<(u32, u64), u64>,
    pub(super) tables: u64,
    stored: Vec<(u32, CloneTablePhys)>,
    is_partial: bool,
}

impl Clones {
    pub(super) fn load(pool: &PoolView, findings: &Findings<'_>, references: &References) -> Self {
        let mut clones = Self::default();
        for (vdev, _) in pool.store().topology().tree.tops() {
            let Ok(Some(id)) = pool.find_directory_object(&clone_table_key(vdev)) else {
                continue;
            };
            clones.tables += 1;
            references.note(id, "a clone table");
            if let Err(error) = clones.load_one(pool, vdev.0, id, findings, references) {
                clones.is_partial = true;
                let detail = format!("clone table of vdev {vdev}: {error}");
                Finding::new(FindingKind::CloneTable, detail).into(findings);
            }
        }
        clones
    }

    fn load_one(
        &mut self,
        pool: &PoolView,
        vdev: u32,
        id: ObjectId,
        findings: &Findings<'_>,
        references: &References,
    ) -> Result<(), String> {
        let object = pool.mos().object(id).map_err(|error| error.to_string())?;
        let bonus = object.bonus().map_err(|error| error.to_string())?;
        let phys = CloneTablePhys::decode(bonus, object.dnode().endian)
            .map_err(|error| error.to_string())?;
        self.stored.push((vdev, phys));
        let Some(table) = phys.entries else {
            return Ok(());
        };
        references.note(table, "the entries of a clone table");
        let entries = pool
            .mos()
            .object(table)
            .map_err(|error| error.to_string())?;
        let zap = Zap::open(entries).map_err(|error| error.to_string())?;
        let mut by_range: HashMap<u64, u64> = HashMap::new();
        let mut count = 0u64;
        for entry in zap.iter() {
            let entry = entry.map_err(|error| error.to_string())?;
            let Some(offset) = entry.words().first().copied() else {
                return Err("an entry without key".into());
            };
            let references =
                clone_entry_count(&entry.value.bytes, entry.value.integer_bytes, &phys)
                    .map_err(|error| error.to_string())?;
            self.counts.insert((vdev, offset), references);
            *by_range.entry(phys.counter_index(offset)).or_default() += 1;
            count += 1;
        }
        if count != phys.entry_count {
            let detail = format!(
                "clone table of vdev {vdev}: {} entries counted, {count} there",
                phys.entry_count
            );
            Finding::new(FindingKind::CloneTable, detail).into(findings);
        }
        let mut index = 0u64;
        let mut wrong = None;
        each_block(&object, phys.counter_count, 2, &mut |bytes, _| {
            let counters = CloneCounters::new(bytes, phys.counter_endian);
            for at in 0..bytes.len() as u64 / 2 {
                let expected = by_range.get(&index).copied().unwrap_or(0);
                let stored = counters.get(at);
                if u64::from(stored) != expected {
                    wrong.get_or_insert((index, stored, expected));
                }
                index += 1;
            }
        })?;
        if let Some((index, stored, expected)) = wrong {
            let detail = format!(
                "clone table of vdev {vdev}: range {index} counts {stored} entries, there are {expected}"
            );
            Finding::new(FindingKind::CloneTable, detail).into(findings);
        }
        Ok(())
    }

    /// Whether the block at this address has additional references.
    pub(super) fn has(&self, pointer: &BlockPointer) -> bool {
        !self.counts.is_empty()
            && pointer
                .dvas()
                .next()
                .is_some_and(|dva| self.counts.contains_key(&(dva.vdev.0, dva.offset_bytes)))
    }

    /// Compares the counted references with the tables.
    pub(super) fn judge(&self, met: &HashMap<(u32, u64), u64>, findings: &Findings<'_>) {
        if self.is_partial {
            return;
        }
        let mut keys: Vec<_> = self.counts.iter().collect();
        keys.sort();
        for ((vdev, offset), references) in keys {
            let met = met.get(&(*vdev, *offset)).copied().unwrap_or(0);
            if met != references.saturating_add(1) {
                let detail = format!(
                    "the block at {offset:#x} of vdev {vdev} has {met} references, the clone table says {}",
                    references.saturating_add(1)
                );
                Finding::new(FindingKind::CloneTable, detail).into(findings);
            }
        }
    }
}

/// The most entries of dedup tables that are compared with the blocks.
const ENTRIES_MAX: usize = 1 << 21;

/// The dedup tables: counts of references, by address. Takes 40 bytes per deduplicated block.
#[derive(Default)]
pub(super) struct Dedups {
    counts: HashMap<(u32, u64), u64>,
    /// Blocks without references, which wait to be freed with their entries.
    pub(super) dead: Vec<BlockPointer>,
    is_partial: bool,
}

impl Dedups {
    pub(super) fn load(pool: &PoolView, findings: &Findings<'_>) -> Self {
        let mut dedups = Self::default();
        let mut twice = None;
        let outcome = pool.each_dedup_entry(&mut |checksum, entry| {
            for slot in entry.used_slots() {
                let pointer = entry.block_pointer(slot, checksum);
                if slot.reference_count == 0 {
                    dedups.dead.push(pointer);
                    continue;
                }
                let Some((vdev, offset)) = pointer.first_address() else {
                    continue;
                };
                if dedups.counts.len() >= ENTRIES_MAX {
                    return Err(PoolError::Unsupported {
                        what: "comparing more entries of dedup tables",
                    });
                }
                if (dedups.counts)
                    .insert((vdev.0, offset), slot.reference_count)
                    .is_some()
                {
                    twice.get_or_insert((vdev.0, offset));
                }
            }
            Ok(())
        });
        if let Some((vdev, offset)) = twice {
            let detail = format!("two entries are of the block at {offset:#x} of vdev {vdev}");
            Finding::new(FindingKind::DedupTable, detail).into(findings);
        }
        if let Err(error) = outcome {
            dedups.is_partial = true;
            if !matches!(error, PoolError::Unsupported { .. }) {
                Finding::new(FindingKind::DedupTable, error.to_string()).into(findings);
            }
        }
        dedups
    }

    /// Compares the counted references with the tables, and the tables with them.
    pub(super) fn judge(
        &self,
        met: &HashMap<(u32, u64), u64>,
        clones: &Clones,
        findings: &Findings<'_>,
    ) {
        if self.is_partial || met.len() >= ENTRIES_MAX {
            return;
        }
        let mut keys: Vec<_> = self.counts.iter().collect();
        keys.sort();
        for (place, references) in keys {
            let found = met.get(place).copied().unwrap_or(0);
            if found != *references {
                let (vdev, offset) = place;
                let detail = format!(
                    "the block at {offset:#x} of vdev {vdev} has {found} references, the dedup table says {references}"
                );
                Finding::new(FindingKind::DedupTable, detail).into(findings);
            }
        }
        // A block whose entry was removed has one pointer, or is in a clone table.
        let mut uncounted: Vec<_> = (met.iter())
            .filter(|(place, count)| {
                **count > 1
                    && !self.counts.contains_key(place)
                    && !clones.counts.contains_key(place)
            })
            .collect();
        uncounted.sort();
        for ((vdev, offset), count) in uncounted {
            let detail = format!(
                "the block at {offset:#x} of vdev {vdev} has {count} references, which no table counts"
            );
            Finding::new(FindingKind::DedupTable, detail).into(findings);
        }
    }
}
