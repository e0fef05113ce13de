//! Dirty time logs (DTLs): the txgs whose writes a leaf missed.
//!
//! If a leaf fails a write that its vdev's redundancy covers, the txg continues and is added to the leaf's
//! log. The log is written in the same txg, or in the next one if the failure happens as late as the
//! commit.
//!
//! Page `docs/format/vdev-tree.md`, "Dirty time logs".

use crate::PoolError;
use crate::PoolView;
use crate::error::Reading;
use crate::pool::{Pool, PoolState};
use crate::scan::{ScanLosses, deferred};
use crate::space::maps::HISTOGRAM;
use crate::sync::context::SyncContext;
use crate::vdevs::attach::FIRST_TXG;
use crate::vdevs::objects::load_dirty_time_log;
use millpond_block::Topology;
use millpond_env::mark;
use millpond_object::NewObject;
use millpond_ondisk::space_map::SpaceMapWriter;
use millpond_ondisk::{Guid, ObjectId, ObjectType, SpaceAction, SpaceMapPhys, Txg};
use millpond_vdev::{VdevKind, VdevNode, VdevTree};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const WHAT: &str = "dirty time log";
/// Size of a dirty time log's data blocks in bytes.
const BLOCK_BYTES: u32 = 4 << 10;
/// The most txgs between the newest uberblock of a device and the first one that it is known to lack, if every device gets each
/// uberblock.
const GAP_USUAL: u64 = 4;
/// The same for each vdev, if three random vdevs get it: few devices in a million miss that many.
const GAP_OF_VDEV: u64 = 16;
/// The most txgs that a slice adds to a log one by one. More are added as one range.
const BIRTHS_MAX: usize = 256;

/// The txgs that one leaf missed: ascending, disjoint, half-open ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DirtyTimeLog {
    ranges: Vec<Range<u64>>,
    /// Whether the leaf's object lacks some of these ranges.
    is_unwritten: bool,
}

impl DirtyTimeLog {
    /// The ranges stored in an object.
    pub(crate) fn stored(ranges: &[Range<u64>]) -> Self {
        let mut missed = Self::default();
        for range in ranges {
            missed.add(range.clone());
        }
        missed.is_unwritten = false;
        missed
    }
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }
    /// Whether the leaf cannot have an uberblock of this txg: another system used its device meanwhile, and may have freed and
    /// overwritten blocks that the pool still has.
    ///
    /// The txgs under way when the leaf went away, or came back, may have left their uberblocks: blocks of them are missing all
    /// the same. Of a leaf that misses everything nothing follows.
    pub(crate) fn rules_out(&self, txg: Txg) -> bool {
        const UNDER_WAY: u64 = 3;
        let mut partial = self.ranges.iter().filter(|range| range.start > FIRST_TXG);
        partial.any(|range| {
            let (start, end) = (range.start.saturating_add(UNDER_WAY), range.end);
            (start..end.saturating_sub(UNDER_WAY)).contains(&txg.0)
        })
    }
    /// Adds a range; returns whether it contained any new txg.
    pub(crate) fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty()
            || self
                .ranges
                .iter()
                .any(|have| have.start <= range.start && range.end <= have.end)
        {
            return false;
        }
        self.ranges.push(range);
        self.ranges.sort_by_key(|range| (range.start, range.end));
        let mut merged: Vec<Range<u64>> = vec![];
        for range in self.ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        self.ranges = merged;
        self.is_unwritten = true;
        true
    }
}

/// Whether the device of a leaf is older than the leaf was when it was last in use: a copy, which may come from before a
/// resilver that no one remembers. `current` is the txg of its newest uberblock, `end` the txg after the last one
/// that its siblings have, `missed` what the leaf is known to lack.
///
/// The device itself lacks txgs from when it went away on. The first of them may have changed nothing on its vdev. With more than three
/// top-level vdevs it did not get every uberblock either, and a log vdev gets almost none.
pub(crate) fn is_older_copy(
    tree: &VdevTree,
    leaf: &VdevNode,
    current: Txg,
    missed: Option<&DirtyTimeLog>,
    end: Txg,
) -> bool {
    let top = leaf.top.and_then(|top| tree.top(top));
    if top.is_none_or(|top| top.config.is_log) {
        return false;
    }
    let usual = match tree.tops().count() as u64 {
        ..=3 => GAP_USUAL,
        count => GAP_OF_VDEV.saturating_mul(count),
    };
    let gap = match missed {
        Some(missed) => missed.gap_after(current, end),
        None => DirtyTimeLog::default().gap_after(current, end),
    };
    gap > usual
}

/// Whether other leaves hold what a leaf holds.
pub(crate) fn has_redundancy(topology: &Topology, leaf: Guid) -> bool {
    let tree = &topology.tree;
    let node = tree.find_leaf(leaf).and_then(|id| tree.leaf(id));
    let top = node.and_then(|node| tree.top(node.top?));
    top.is_some_and(|top| !matches!(top.kind, VdevKind::Device))
}

impl DirtyTimeLog {
    /// The txg after the last one.
    fn end(&self) -> Txg {
        Txg(self.ranges.last().map_or(0, |range| range.end))
    }

    /// How many txgs come after `txg` and before `end` until the first one that is in the log.
    pub(crate) fn gap_after(&self, txg: Txg, end: Txg) -> u64 {
        let from = txg.0.saturating_add(1);
        let mut later = self.ranges.iter().filter(|range| range.end > from);
        let first = later.next().map_or(end.0, |range| range.start.min(end.0));
        first.saturating_sub(from)
    }

    /// Removes the txgs below `end`, except those in `kept`. Returns whether that changed anything.
    pub(crate) fn excise(&mut self, end: Txg, kept: &BTreeSet<Txg>) -> bool {
        let before = std::mem::take(&mut self.ranges);
        for range in &before {
            self.add(range.start.max(end.0)..range.end);
            for txg in kept.iter().filter(|txg| range.contains(&txg.0)) {
                self.add(txg.0..txg.0.saturating_add(1));
            }
        }
        let has_changed = self.ranges != before;
        self.is_unwritten |= has_changed;
        has_changed
    }
}

/// What a leaf lacked before resilvers wrote it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refilled {
    pub(crate) missed: DirtyTimeLog,
    /// The txg in which the last of the resilvers ended.
    pub(crate) ended: Txg,
}

impl Refilled {
    pub(crate) fn note(&mut self, missed: &DirtyTimeLog, ended: Txg) {
        for range in missed.ranges() {
            self.missed.add(range.clone());
        }
        self.ended = ended;
    }
}

/// The leaves that a scan wrote to.
pub(crate) struct CoveredLeaves {
    /// The txg in which it ended.
    pub(crate) ended: Txg,
    /// The leaves that were in use all the time, as far as this session knows.
    pub(crate) leaves: BTreeSet<Guid>,
    /// Whether this session knows of the scan from its beginning on.
    pub(crate) since_begin: bool,
}

impl Pool {
    /// The txgs that usable leaves with a device lack: from the first one to after the last one. `None` if they
    /// lack nothing.
    pub(crate) fn missed_span(&self) -> Option<Range<Txg>> {
        let in_use = self.leaves_in_use();
        let state = self.state.read();
        let mut span: Option<Range<Txg>> = None;
        for leaf in &in_use {
            let missed = state.missed.get(leaf);
            let ranges = missed.map_or(&[][..], DirtyTimeLog::ranges);
            if let (Some(first), Some(last)) = (ranges.first(), ranges.last()) {
                let span = span.get_or_insert(Txg(first.start)..Txg(last.end));
                span.start = span.start.min(Txg(first.start));
                span.end = span.end.max(Txg(last.end));
            }
        }
        span
    }

    /// A number that changes with the txgs that usable leaves with a device lack; `None` if they lack nothing.
    pub(crate) fn missed_digest(&self) -> Option<u64> {
        let span = self.missed_span()?;
        // A resilver beside a checkpoint helps only in part: without it, the next one does.
        // The same holds for a removal under way.
        let has_checkpoint = u64::from(self.checkpoint_refusal().is_some());
        let is_removing = u64::from(self.removal.removing_vdev().is_some());
        let state = self.state.read();
        let missed = state.missed.iter();
        let words = missed.flat_map(|(leaf, missed)| {
            let ranges = missed.ranges().iter();
            ranges.flat_map(move |range| [leaf.0, range.start, range.end])
        });
        let words = words.chain([span.start.0, span.end.0, has_checkpoint, is_removing]);
        // The multiplier of FNV-1a: any number that mixes will do.
        Some(words.fold(0, |sum: u64, word| {
            (sum ^ word).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    /// The leaves that are in use and have a device, or are distributed spares.
    pub(crate) fn leaves_in_use(&self) -> BTreeSet<Guid> {
        let topology = self.store.topology();
        let leaves = topology.tree.leaves();
        let leaves = leaves.filter(|(leaf, _)| topology.is_in_use(*leaf));
        leaves.map(|(_, node)| node.config.guid).collect()
    }

    /// Adds `txg` to the logs of leaves that lack something and to which a scan up to `end` could not write all of it. If the
    /// scan continues in another session, which does not know that, these leaves keep what they lack.
    /// Returns whether that changed anything.
    pub(crate) fn keep_missed(
        &self,
        leaves: impl Iterator<Item = Guid>,
        end: Txg,
        txg: Txg,
    ) -> bool {
        let mut state = self.state.write();
        let mut has_changes = false;
        for guid in leaves {
            let Some(missed) = state.missed.get_mut(&guid) else {
                continue;
            };
            if missed.ranges().is_empty() || missed.end() > end {
                continue;
            }
            missed.add(txg.0..txg.0.saturating_add(1));
            has_changes = true;
        }
        if has_changes {
            state.is_topology_stale = true;
            state.assembly = None;
        }
        has_changes
    }

    /// Adds the births of blocks whose repairs did not become durable to the logs of their leaves. The next resilver writes
    /// them again, whatever the leaves show. A leaf without redundancy has no one to get them from.
    pub(crate) fn miss_unflushed(&self, losses: &ScanLosses) {
        let topology = self.store.topology();
        let mut state = self.state.write();
        for (leaf, births) in losses
            .unflushed
            .iter()
            .filter(|(leaf, _)| has_redundancy(&topology, **leaf))
        {
            let missed = state.missed.entry(*leaf).or_default();
            let mut is_new = false;
            match (births.first(), births.last()) {
                (Some(first), Some(last)) if births.len() > BIRTHS_MAX => {
                    is_new |= missed.add(first.0..last.0.saturating_add(1));
                }
                _ => {
                    for birth in births {
                        is_new |= missed.add(birth.0..birth.0.saturating_add(1));
                    }
                }
            }
            if is_new {
                state.is_topology_stale = true;
                state.assembly = None;
            }
        }
    }

    /// Takes the txgs below `end` out of the logs of leaves in use that the scan covered, after it wrote again what they
    /// lacked. What the scan could not write stays.
    ///
    /// A scan that was begun in an earlier session may not have written to a leaf that was attached or came back
    /// since. Such a leaf lacks txgs from after the beginning of the scan, and keeps all that it lacks.
    pub(crate) fn excise_missed(&self, end: Txg, covered: &CoveredLeaves, losses: &ScanLosses) {
        let topology = self.store.topology();
        let in_use = self.leaves_in_use();
        let mut completed = vec![];
        // A scan of some txgs says nothing of a leaf that is being rebuilt.
        let rebuilt = self.rebuilt_leaves();
        let mut state = self.state.write();
        let mut deferred = deferred(&state.config.root);
        deferred.extend(rebuilt);
        let mut has_changes = false;
        for (leaf, node) in topology.tree.leaves() {
            let guid = node.config.guid;
            let is_covered = in_use.contains(&guid) && covered.leaves.contains(&guid);
            if !is_covered || deferred.contains(&guid) || losses.unflushed.contains_key(&guid) {
                continue;
            }
            let mut kept = losses.lost.clone();
            kept.extend(losses.leaves.get(&guid).into_iter().flatten());
            let PoolState {
                missed, refilled, ..
            } = &mut *state;
            if let Some(missed) = missed.get_mut(&guid) {
                if !covered.since_begin && missed.end() > end {
                    continue;
                }
                let before = missed.clone();
                if missed.excise(end, &kept) {
                    has_changes = true;
                    let refilled = refilled.entry(guid).or_default();
                    refilled.note(&before, covered.ended);
                }
                if let Some(counters) = topology.counters.get(leaf.0 as usize) {
                    counters.forget_missed(end);
                }
                if missed.ranges().is_empty() {
                    completed.push(guid);
                }
            }
        }
        if has_changes {
            state.is_topology_stale = true;
            state.assembly = None;
        }
        drop(state);
        for guid in completed {
            self.change_leaf(guid, |config| {
                config.resilver_txg = None;
                config.rebuild_txg = None;
            });
            self.note_unspared(&topology, guid);
        }
    }

    /// Marks the spare that stands in for a leaf which is complete again: it may go.
    fn note_unspared(&self, topology: &Topology, leaf: Guid) {
        let tree = &topology.tree;
        let groups = tree.nodes().iter();
        let mut groups = groups.filter(|node| matches!(node.kind, VdevKind::Spare));
        let spare = groups.find_map(|group| {
            let first = tree.node(*group.children.first()?)?;
            let last = tree.node(*group.children.last()?)?;
            (first.config.guid == leaf).then_some(last.config.guid)
        });
        if let Some(spare) = spare {
            self.change_leaf(spare, |config| config.unspare = true);
        }
    }

    /// Waits for the blocks of the txg, and collects failed writes and flushes since the last call. Returns whether some of
    /// them are not yet stored in the dirty time logs. For decisions that depend on what leaves have.
    pub(crate) fn take_in_missed(&self) -> bool {
        // A block that cannot be written is written again by the flush, or stops it: by the leaves that there are then.
        let _ = self.store.settle_outstanding();
        self.take_in_noted()
    }

    /// As [`Pool::take_in_missed`], without waiting for blocks: what they miss is collected later.
    fn take_in_noted(&self) -> bool {
        let failed = self.store.take_missed();
        let mut state = self.state.write();
        let mut is_new = false;
        for missed in failed {
            let txg = missed.txg.0;
            let entry = state.missed.entry(missed.guid).or_default();
            is_new |= entry.add(txg..txg.saturating_add(1));
        }
        state.is_topology_stale |= is_new;
        is_new
    }

    /// Collects failed writes and flushes since the last call, and writes the dirty time logs that changed.
    pub(crate) fn write_missed(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.take_in_noted();
        let unwritten: Vec<(Guid, DirtyTimeLog)> = {
            let state = self.state.read();
            let missed = state.missed.iter();
            missed
                .filter(|(_, missed)| missed.is_unwritten)
                .map(|(guid, missed)| (*guid, missed.clone()))
                .collect()
        };
        for (guid, missed) in unwritten {
            self.write_log(ctx, guid, &missed)?;
            if let Some(entry) = self.state.write().missed.get_mut(&guid) {
                entry.is_unwritten = false;
            }
        }
        Ok(())
    }

    fn write_log(
        &self,
        ctx: &SyncContext<'_>,
        leaf: Guid,
        missed: &DirtyTimeLog,
    ) -> Result<(), PoolError> {
        let Some(known) = self.leaf_config(leaf, |config| config.dtl) else {
            // The leaf has left the tree.
            return Ok(());
        };
        let object = match known.and_then(ObjectId::some) {
            Some(id) => ctx.mos().object(id).reading(WHAT)?,
            None => {
                let has_histogram = ctx.feature_is_enabled(HISTOGRAM);
                let new = NewObject::new(ObjectType::SPACE_MAP)
                    .with_block_bytes(BLOCK_BYTES)
                    .with_bonus(
                        ObjectType::SPACE_MAP_HEADER,
                        header(None, 0, 0, has_histogram),
                    );
                let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
                if has_histogram {
                    ctx.feature_increment(HISTOGRAM)?;
                }
                self.change_leaf(leaf, |config| config.dtl = Some(object.id()));
                object
            }
        };
        object.free_range(ctx.tx(), 0, u64::MAX).reading(WHAT)?;
        let (bytes, sum) =
            encode(missed.ranges(), ctx.txg(), ctx.pass(), object.block_bytes()).reading(WHAT)?;
        object.write(ctx.tx(), 0, &bytes).reading(WHAT)?;
        let bonus = header(
            Some(object.id()),
            bytes.len() as u64,
            sum,
            object.bonus().len() >= 320,
        );
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)
    }
}

fn header(object: Option<ObjectId>, length: u64, sum: i64, has_histogram: bool) -> Vec<u8> {
    SpaceMapPhys {
        object,
        length_bytes: length,
        allocated_bytes: sum,
        histogram: has_histogram.then(Default::default),
    }
    .encode()
}

fn encode(
    ranges: &[Range<u64>],
    txg: Txg,
    pass: u32,
    block_bytes: u64,
) -> Result<(Vec<u8>, i64), millpond_ondisk::DecodeError> {
    let mut writer = SpaceMapWriter::new(0, block_bytes, false);
    let mut sum = 0i64;
    if !ranges.is_empty() {
        let pass = u16::try_from(pass).unwrap_or(u16::MAX);
        writer.put_debug(txg, pass, SpaceAction::Allocate);
    }
    for range in ranges {
        let run = range.end - range.start;
        // Unbounded ranges are not stored: such a leaf's old label already shows that it is stale.
        if range.end == u64::MAX {
            continue;
        }
        writer.put_range(SpaceAction::Allocate, range.start, run)?;
        sum = sum.saturating_add(i64::try_from(run).unwrap_or(i64::MAX));
    }
    Ok((writer.finish(), sum))
}

/// The txgs that each leaf missed, from its dirty time log and the age of its label.
pub(crate) fn missed_txgs(
    read: &PoolView,
    first: Txg,
) -> Result<BTreeMap<Guid, DirtyTimeLog>, PoolError> {
    let topology = read.store().topology();
    let mut all = BTreeMap::new();
    for ((_, node), leaf) in topology.tree.leaves().zip(&read.assembly().leaves) {
        let stored = match node.config.dtl.and_then(ObjectId::some) {
            None => vec![],
            Some(log) => load_dirty_time_log(read.mos(), log)?,
        };
        let mut missed = DirtyTimeLog::stored(&stored);
        if let Some((current, newest)) = leaf.behind {
            let end = Txg(newest.0.saturating_add(1));
            if is_older_copy(&topology.tree, node, current, Some(&missed), end) {
                mark::hit("older-copy-at-import");
                missed.add(FIRST_TXG..first.0);
            }
        }
        if leaf.newest_txg.is_some_and(|txg| missed.rules_out(txg)) {
            mark::hit("used-meanwhile-at-import");
            missed.add(FIRST_TXG..first.0);
        }
        if let Some(Txg(since)) = leaf.stale_since {
            missed.add(since..first.0);
        }
        if let Some(since) = leaf.diverged_since {
            missed.add(since.0..first.0);
        }
        if !missed.ranges().is_empty() {
            all.insert(node.config.guid, missed);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::{Endian, SpaceMapEntries, SpaceMapEntry};

    #[test]
    fn adjacent_and_overlapping_txg_ranges_merge() {
        let mut missed = DirtyTimeLog::default();
        assert!(missed.add(10..11));
        assert!(missed.add(12..13));
        assert!(missed.add(11..12));
        assert_eq!(missed.ranges(), std::slice::from_ref(&(10..13)));
        assert!(!missed.add(11..13));
        assert!(!missed.add(5..5));
        assert!(missed.add(4..20));
        assert_eq!(missed.ranges(), std::slice::from_ref(&(4..20)));
    }

    #[test]
    fn a_leaf_has_no_uberblocks_of_what_it_missed() {
        let missed = DirtyTimeLog::stored(&[FIRST_TXG..6, 20..90]);
        let ruled_out = [19, 22, 23, 86, 87, 90].map(|txg| missed.rules_out(Txg(txg)));
        assert_eq!(ruled_out, [false, false, true, true, false, false]);
        assert!(!DirtyTimeLog::stored(&[FIRST_TXG..90, 95..96]).rules_out(Txg(50)));
    }

    #[test]
    fn a_gap_ends_at_the_first_txg_that_is_missed() {
        let missed = DirtyTimeLog::stored(&[4..10, 20..30]);
        let gap = |txg, end| missed.gap_after(Txg(txg), Txg(end));
        assert_eq!([gap(3, 50), gap(5, 50), gap(8, 50)], [0, 0, 0]);
        assert_eq!([gap(9, 50), gap(9, 15), gap(29, 50)], [10, 5, 20]);
        assert_eq!(gap(60, 50), 0);
    }

    #[test]
    fn what_a_scan_wrote_again_is_no_longer_missed() {
        let mut missed = DirtyTimeLog::stored(&[4..10, 20..30, 40..41]);
        assert!(missed.excise(Txg(25), &BTreeSet::from([Txg(5), Txg(12), Txg(28)])));
        assert_eq!(missed.ranges(), [5..6, 25..30, 40..41]);
        assert!(missed.is_unwritten);
        assert!(missed.excise(Txg(100), &BTreeSet::new()));
        assert_eq!(missed.ranges(), []);
        assert!(!missed.excise(Txg(100), &BTreeSet::new()));
    }

    #[test]
    fn a_dtl_round_trips() {
        let ranges = [4..9, 100..40_000];
        let (bytes, sum) = encode(&ranges, Txg(77), 2, 4096).unwrap();
        assert_eq!(sum, 5 + 39_900);
        let mut read = DirtyTimeLog::default();
        for entry in SpaceMapEntries::new(&bytes, Endian::Little) {
            if let SpaceMapEntry::Range {
                action,
                offset_units,
                run_units,
                ..
            } = entry.unwrap()
            {
                assert_eq!(action, SpaceAction::Allocate);
                read.add(offset_units..offset_units + run_units);
            }
        }
        assert_eq!(read.ranges(), ranges);
    }
}
