//! The space that the space maps report as allocated, one bit per smallest allocation, and the claims on it.
//!
//! Memory: one bit per unit of `1 << ashift` bytes, for every metaslab with allocations. That is 32 MiB per
//! TiB of a vdev with 4 KiB sectors, and 256 MiB with 512-byte sectors. While a metaslab is loaded, its free
//! ranges are in memory too.

use super::Findings;
use super::disputes::Dispute;
use super::finding::{Finding, FindingKind};
use millpond_alloc::{
    Metaslab, MetaslabId, RangeSet, SpaceMapStore, UnflushedLogs, VdevGeometry, load_metaslab,
};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::thread;
use millpond_ondisk::space_map::SpaceHistogram;
use millpond_ondisk::{Dva, SpaceMapPhys, Txg, VdevId};
use millpond_pool::{PoolSpaceMaps, PoolView};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Upper bound of the leaked ranges reported individually per metaslab; the rest is reported as a total.
const LEAKS_REPORTED_MAX: u64 = 32;
/// Upper bound of the disputed claims kept for the second pass.
const DISPUTES_MAX: usize = 4096;

/// The result of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The space was allocated and not claimed before.
    Granted,
    /// Part of it is free or was claimed before.
    Disputed,
    /// It is in no metaslab, or is not a whole number of units.
    Outside,
    /// The metaslab's map could not be read.
    Unknown,
}

/// The space of all vdevs.
pub(super) struct Space {
    vdevs: BTreeMap<VdevId, VdevBits>,
    /// Vdevs that exist but have no space maps.
    others: BTreeSet<VdevId>,
    disputes: Mutex<BTreeSet<(VdevId, u64, u64)>, rank::CheckSums>,
    mapped_bytes: u64,
    checkpoint_bytes: u64,
}

struct VdevBits {
    geometry: VdevGeometry,
    shift: u8,
    metaslabs: Vec<Mutex<Bits, rank::CheckSums>>,
}

/// The space of a metaslab that is allocated and not yet claimed.
enum Bits {
    /// Nothing was ever allocated.
    Untouched,
    Known(Vec<u64>),
    /// The space map is damaged.
    Unknown,
}

impl Space {
    /// Loads all metaslabs with all cores, and checks maps and logs.
    pub(super) fn load(pool: &PoolView, findings: &Findings<'_>) -> Self {
        let mut space = Self {
            vdevs: BTreeMap::new(),
            others: BTreeSet::new(),
            disputes: Mutex::default(),
            mapped_bytes: 0,
            checkpoint_bytes: 0,
        };
        let topology = pool.store().topology();
        let maps = match PoolSpaceMaps::load(pool) {
            Ok(maps) => maps,
            Err(error) => {
                Finding::new(FindingKind::SpaceMap, error.to_string()).into(findings);
                return space;
            }
        };
        let capacity = topology.capacity_bytes();
        for (id, geometry) in maps.geometries() {
            if geometry.space_bytes() > capacity {
                let detail = format!("vdev {id} claims to be larger than its devices");
                Finding::new(FindingKind::SpaceMap, detail).into(findings);
                continue;
            }
            let count = usize::try_from(geometry.metaslab_count()).unwrap_or(0);
            space.vdevs.insert(
                id,
                VdevBits {
                    geometry,
                    shift: geometry.ashift().0,
                    metaslabs: (0..count).map(|_| Mutex::new(Bits::Untouched)).collect(),
                },
            );
        }
        for (id, _) in topology.tree.tops() {
            if !maps.geometries().contains_key(&id) {
                space.others.insert(id);
            }
        }
        let exists = |id: VdevId| topology.tree.top(id).is_some();
        let logs = match UnflushedLogs::load(&maps, &maps.geometries(), &exists) {
            Ok(logs) => logs,
            Err(error) => {
                Finding::new(FindingKind::LogSpaceMap, error.to_string()).into(findings);
                for vdev in space.vdevs.values() {
                    for bits in &vdev.metaslabs {
                        *bits.lock() = Bits::Unknown;
                    }
                }
                return space;
            }
        };
        space.judge_logs(pool, &maps, findings);
        space.load_metaslabs(&maps, &logs, findings);
        space
    }

    /// Checks that the first log of every metaslab that uses logs exists.
    fn judge_logs(&self, pool: &PoolView, maps: &PoolSpaceMaps<'_>, findings: &Findings<'_>) {
        let logs = match maps.logs() {
            Ok(logs) => logs,
            Err(error) => {
                Finding::new(FindingKind::LogSpaceMap, error.to_string()).into(findings);
                return;
            }
        };
        let mut oldest = None::<Txg>;
        for (vdev, bits) in &self.vdevs {
            for index in 0..bits.metaslabs.len() as u64 {
                let id = MetaslabId { vdev: *vdev, index };
                let Ok(since) = maps.unflushed_txg(id) else {
                    continue;
                };
                if since == Txg(0) {
                    continue;
                }
                oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
                if !logs.contains_key(&since) {
                    let detail = format!("{id} needs the log of txg {since}, which is not there");
                    Finding::new(FindingKind::LogSpaceMap, detail).into(findings);
                }
            }
        }
        for txg in logs.keys() {
            if *txg > pool.uberblock().txg {
                let detail = format!("there is a log of txg {txg}, which was never written");
                Finding::new(FindingKind::LogSpaceMap, detail).into(findings);
            } else if oldest.is_some_and(|oldest| *txg < oldest) {
                let detail = format!("the log of txg {txg} is older than any metaslab needs");
                Finding::new(FindingKind::LogSpaceMap, detail).into(findings);
            }
        }
    }

    fn load_metaslabs(
        &mut self,
        maps: &PoolSpaceMaps<'_>,
        logs: &UnflushedLogs,
        findings: &Findings<'_>,
    ) {
        let mapped = AtomicU64::new(0);
        let mut work: Vec<(Metaslab, Option<SpaceMapPhys>)> = vec![];
        for id in self.vdevs.keys() {
            let read = maps.each_header(*id, &mut |metaslab, header| {
                // Skip metaslabs that were never used.
                if header.is_some() || logs.of(metaslab.id).is_some() {
                    work.push((metaslab, header));
                }
            });
            if let Err(error) = read {
                Finding::new(FindingKind::SpaceMap, format!("vdev {id}: {error}")).into(findings);
                if let Some(vdev) = self.vdevs.get(id) {
                    for bits in &vdev.metaslabs {
                        *bits.lock() = Bits::Unknown;
                    }
                }
            }
        }
        let next = AtomicU64::new(0);
        let this = &*self;
        let body = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((metaslab, header)) = usize::try_from(at).ok().and_then(|at| work.get(at))
                else {
                    return;
                };
                let bytes = this.load_metaslab(maps, logs, metaslab, header.as_ref(), findings);
                mapped.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        in_parallel(work.len() > 8, &body);
        self.mapped_bytes = mapped.into_inner();
    }

    /// Loads a metaslab. Returns its allocated bytes.
    fn load_metaslab(
        &self,
        maps: &PoolSpaceMaps<'_>,
        logs: &UnflushedLogs,
        metaslab: &Metaslab,
        header: Option<&SpaceMapPhys>,
        findings: &Findings<'_>,
    ) -> u64 {
        let id = metaslab.id;
        let Some(slot) = self.slot(id) else { return 0 };
        let loaded = match load_metaslab(maps, metaslab.clone(), logs) {
            Ok(loaded) => loaded,
            Err(error) => {
                Finding::new(FindingKind::SpaceMap, format!("{id}: {error}")).into(findings);
                *slot.lock() = Bits::Unknown;
                return 0;
            }
        };
        let allocated = loaded.allocated_bytes();
        let unflushed = logs.of(id).map_or(0, |log| log.allocated_bytes());
        let header_says = header
            .map_or(0, |header| header.allocated_bytes)
            .wrapping_add(unflushed);
        if i64::try_from(allocated) != Ok(header_says) {
            let detail = format!(
                "{id}: header and logs say {header_says} bytes allocated, the entries {allocated}"
            );
            Finding::new(FindingKind::SpaceMapSum, detail).into(findings);
        }
        if let Some(stored) = header.and_then(|header| header.histogram)
            && let Some(words) = histogram_fault(&stored, &loaded.free, metaslab.ashift.0)
        {
            let detail = format!("{id}: {words}");
            Finding::new(FindingKind::SpaceHistogram, detail).into(findings);
        }
        let units = metaslab.size_bytes() >> metaslab.ashift.0;
        let mut bits = vec![0u64; usize::try_from(units.div_ceil(64)).unwrap_or(0)];
        let unit = |at: u64| at.saturating_sub(metaslab.range.start) >> metaslab.ashift.0;
        let mut from = metaslab.range.start;
        for free in loaded.free.iter() {
            set(&mut bits, unit(from)..unit(free.start));
            from = free.end;
        }
        set(&mut bits, unit(from)..units);
        *slot.lock() = Bits::Known(bits);
        allocated
    }

    fn slot(&self, id: MetaslabId) -> Option<&Mutex<Bits, rank::CheckSums>> {
        let index = usize::try_from(id.index).ok()?;
        self.vdevs.get(&id.vdev)?.metaslabs.get(index)
    }

    /// Whether a vdev exists but has no space maps.
    pub(super) fn is_other(&self, vdev: VdevId) -> bool {
        self.others.contains(&vdev)
    }

    /// Claims the space of an address.
    pub(super) fn claim(&self, dva: &Dva) -> Claim {
        let Some(vdev) = self.vdevs.get(&dva.vdev) else {
            return Claim::Outside;
        };
        let (start, size) = (dva.offset_bytes, dva.asize_bytes);
        let Some(end) = start.checked_add(size) else {
            return Claim::Outside;
        };
        let mask = (1u64 << vdev.shift).wrapping_sub(1);
        if (start | size) & mask != 0 {
            return Claim::Outside;
        }
        let Some(metaslab) = vdev.geometry.metaslab_of(&(start..end)) else {
            return Claim::Outside;
        };
        let Some(slot) = self.slot(metaslab.id) else {
            return Claim::Outside;
        };
        let unit = |at: u64| (at - metaslab.range.start) >> vdev.shift;
        let is_whole = match &mut *slot.lock() {
            Bits::Unknown => return Claim::Unknown,
            Bits::Untouched => false,
            Bits::Known(bits) => take(bits, unit(start)..unit(end)),
        };
        if is_whole {
            return Claim::Granted;
        }
        Claim::Disputed
    }

    /// Keeps a disputed claim for the second pass.
    pub(super) fn dispute(&self, dva: &Dva) {
        let mut disputes = self.disputes.lock();
        if disputes.len() < DISPUTES_MAX {
            let end = dva.offset_bytes.saturating_add(dva.asize_bytes);
            disputes.insert((dva.vdev, dva.offset_bytes, end));
        }
    }

    /// The disputed claims, in order.
    pub(super) fn disputes(&self) -> Vec<Dispute> {
        let disputes = self.disputes.lock();
        disputes
            .iter()
            .map(|(vdev, start, end)| Dispute {
                vdev: *vdev,
                range: *start..*end,
            })
            .collect()
    }

    /// The metaslab that contains a dispute.
    pub(super) fn metaslab_of(&self, dispute: &Dispute) -> Option<Metaslab> {
        let vdev = self.vdevs.get(&dispute.vdev)?;
        vdev.geometry.metaslab_of(&dispute.range)
    }

    /// Claims space for a checkpoint, which must be allocated.
    pub(super) fn claim_for_checkpoint(&mut self, dva: &Dva, findings: &Findings<'_>) {
        let mut at = dva.offset_bytes;
        let end = dva.offset_bytes.saturating_add(dva.asize_bytes);
        self.checkpoint_bytes = self.checkpoint_bytes.wrapping_add(dva.asize_bytes);
        // Entries may span adjacent metaslabs.
        while at < end {
            let Some(vdev) = self.vdevs.get(&dva.vdev) else {
                return;
            };
            let found = vdev.geometry.metaslab_of(&(at..at.saturating_add(1)));
            let stop = found.map_or(end, |metaslab| metaslab.range.end.min(end));
            let piece = Dva {
                offset_bytes: at,
                asize_bytes: stop - at,
                ..*dva
            };
            if self.claim(&piece) != Claim::Granted {
                let detail = format!(
                    "the checkpoint holds {:#x}..{stop:#x} of vdev {}, which is not allocated",
                    at, dva.vdev
                );
                Finding::new(FindingKind::AllocatedButFree, detail).into(findings);
            }
            at = stop;
        }
    }

    /// Bytes allocated according to maps and logs.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }
    /// Bytes that only a checkpoint refers to.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    /// Reports unclaimed space. Returns its bytes.
    pub(super) fn tell_leaks(&self, findings: &Findings<'_>) -> u64 {
        let mut leaked = 0u64;
        for (id, vdev) in &self.vdevs {
            for (index, slot) in (0u64..).zip(&vdev.metaslabs) {
                let Bits::Known(bits) = &*slot.lock() else {
                    continue;
                };
                let Some(metaslab) = vdev.geometry.metaslab(index) else {
                    continue;
                };
                let (mut reported, mut rest, mut rest_bytes) = (0, 0u64, 0u64);
                each_run(bits, &mut |run| {
                    let start = metaslab.range.start + (run.start << vdev.shift);
                    let size = (run.end - run.start) << vdev.shift;
                    leaked = leaked.wrapping_add(size);
                    if reported < LEAKS_REPORTED_MAX {
                        reported += 1;
                        let detail = format!(
                            "vdev {id}, {size} bytes at {start:#x}: allocated, and nothing refers to it"
                        );
                        Finding::new(FindingKind::LeakedSpace, detail).into(findings);
                    } else {
                        rest += 1;
                        rest_bytes += size;
                    }
                });
                if rest > 0 {
                    let detail = format!("{}: {rest} more ranges, {rest_bytes} bytes", metaslab.id);
                    Finding::new(FindingKind::LeakedSpace, detail).into(findings);
                }
            }
        }
        leaked
    }
}

/// Describes what is wrong with a histogram, if anything. A writer may count adjacent free ranges separately
/// while some of them cannot be allocated yet, so the histogram need not match the merged ranges. But it must
/// not count fewer ranges, and their sizes must add up to the free space.
fn histogram_fault(stored: &SpaceHistogram, free: &RangeSet, shift: u8) -> Option<String> {
    let (mut ranges, mut least, mut most) = (0u128, 0u128, 0u128);
    for (bucket, count) in (0u32..).zip(stored.buckets) {
        let (count, size) = (
            u128::from(count),
            1u128 << (bucket + u32::from(shift)).min(63),
        );
        ranges += count;
        least += count * size;
        most += count * (2 * size - (1u128 << shift));
    }
    let bytes = u128::from(free.bytes());
    if ranges < free.len() as u128 {
        return Some(format!(
            "its histogram has {ranges} free ranges, there are {}",
            free.len()
        ));
    }
    // Ranges larger than the last bucket count there several times.
    let is_capped = stored.buckets[31] > 0;
    if least > bytes || (most < bytes && !is_capped) {
        return Some(format!(
            "its histogram's free ranges have {least} to {most} bytes, {bytes} are free"
        ));
    }
    None
}

/// Runs the same body on all cores, or only in this thread.
pub(super) fn in_parallel(is_worth_it: bool, body: &(dyn Fn() + Sync)) {
    let threads = thread::parallelism();
    if !is_worth_it || threads < 2 {
        body();
        return;
    }
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(body);
        }
        body();
    });
}

/// The bits of a word that a range of units covers.
fn mask_in(word: u64, units: &Range<u64>) -> u64 {
    let (low, high) = (word * 64, word * 64 + 64);
    let (from, to) = (units.start.max(low), units.end.min(high));
    if from >= to {
        return 0;
    }
    let count = to - from;
    let ones = if count == 64 {
        u64::MAX
    } else {
        (1u64 << count) - 1
    };
    ones << (from - low)
}

fn each_word(bits: &mut [u64], units: &Range<u64>, change: &mut dyn FnMut(&mut u64, u64)) {
    if units.start >= units.end {
        return;
    }
    let first = units.start / 64;
    let last = (units.end - 1) / 64;
    let from = usize::try_from(first).unwrap_or(usize::MAX);
    let count = usize::try_from(last - first + 1).unwrap_or(0);
    for (word, bits) in (first..).zip(bits.iter_mut().skip(from).take(count)) {
        change(bits, mask_in(word, units));
    }
}

fn set(bits: &mut [u64], units: Range<u64>) {
    each_word(bits, &units, &mut |word, mask| *word |= mask);
}

/// Clears a range of bits. Returns whether all of them were set.
fn take(bits: &mut [u64], units: Range<u64>) -> bool {
    let mut was_whole = true;
    each_word(bits, &units, &mut |word, mask| {
        was_whole &= *word & mask == mask;
        *word &= !mask;
    });
    was_whole
}

/// Calls `each` for every run of set bits, in order.
fn each_run(bits: &[u64], each: &mut dyn FnMut(Range<u64>)) {
    let mut start = None;
    for (word, bits) in (0u64..).zip(bits) {
        // Most words are all zeros, or all ones in the middle of a run.
        if (*bits == 0 && start.is_none()) || (*bits == u64::MAX && start.is_some()) {
            continue;
        }
        for bit in 0..64 {
            let at = word * 64 + bit;
            match (bits >> bit & 1 == 1, start) {
                (true, None) => start = Some(at),
                (false, Some(from)) => {
                    each(from..at);
                    start = None;
                }
                _ => {}
            }
        }
    }
    if let Some(from) = start {
        each(from..bits.len() as u64 * 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_bitmap_matches_a_set_of_units() {
        let ranges = [
            0..1,
            5..70,
            63..65,
            100..200,
            190..192,
            199..200,
            0..0,
            64..128,
        ];
        let (mut bits, mut model) = (vec![0u64; 4], BTreeSet::new());
        for range in &ranges {
            set(&mut bits, range.clone());
            model.extend(range.clone());
            let mut found = vec![];
            each_run(&bits, &mut |run| found.extend(run));
            assert_eq!(found, model.iter().copied().collect::<Vec<_>>());
        }
        for range in &ranges {
            let expected = range.clone().all(|unit| model.contains(&unit));
            assert_eq!(take(&mut bits, range.clone()), expected, "{range:?}");
            model.retain(|unit| !range.contains(unit));
            let mut found = vec![];
            each_run(&bits, &mut |run| found.extend(run));
            assert_eq!(found, model.iter().copied().collect::<Vec<_>>());
        }
    }
}
