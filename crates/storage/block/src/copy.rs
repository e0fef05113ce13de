//! Copies ranges from complete leaves to leaves that lack data, without looking at blocks (a sequential resilver): from one
//! side of a mirror to others, and on dRAID (`stripes`) from the columns of a group.
//!
//! A copy keeps other writes off its range ([`crate::copy_locks`]). It reads from a leaf that is in use and lacks nothing,
//! and from the next one if that fails. Checksums are not verified, so a leaf that replaces another gets what that one
//! has: what is wrong on other sides stays repairable.
//!
//! What was copied is durable after [`CopyPass::finish`]. Contents are not kept until then: a leaf that may have lost some
//! is reported, and lacks everything.

mod stripes;

use crate::BlockStore;
use crate::copy_locks;
use crate::io_stats::IoClass;
use crate::io_watch::time_write;
use crate::requests::Overdue;
use crate::topology::Topology;
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{Guid, VDEV_DATA_START_BYTES, VdevId};
use millpond_vdev::{LeafFault, LeafId, LeafOutcome, LeafRead, VdevKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The most bytes of one read, so that other requests find little ahead of them.
const READ_BYTES: u64 = 128 << 10;

/// Copies to some leaves of one top-level vdev, up to a flush.
#[derive(Debug)]
pub struct CopyPass<'a> {
    store: &'a BlockStore,
    top: VdevId,
    targets: BTreeSet<Guid>,
    /// The leaves that may be written.
    sides: Vec<Side>,
    /// The leaves to copy from. Nothing that was written to them before the pass is in doubt.
    sources: Vec<Side>,
    done: Mutex<Done, rank::Leaf>,
    _pass: copy_locks::CopyPass,
}

/// What has been copied.
#[derive(Debug, Default)]
struct Done {
    /// The leaves that were copied from.
    used: BTreeSet<Guid>,
    /// The leaves that were written, each for a target. Those of a distributed spare are other ones.
    written: BTreeSet<(Guid, Guid)>,
}

#[derive(Debug)]
struct Side {
    guid: Guid,
    device: Arc<dyn Device>,
    /// Failed write-backs before the first copy.
    errors: u64,
}

impl Side {
    fn of(topology: &Topology, leaf: LeafId) -> Option<Self> {
        let (device, _) = topology.writable_leaf(leaf)?;
        Some(Self {
            guid: topology.leaf_guid(leaf),
            device: Arc::clone(device),
            errors: device.write_back_errors(),
        })
    }

    /// Makes what the leaf holds durable. Returns whether it has the same device as before, and that lost nothing.
    fn is_durable(&self, topology: &Topology) -> bool {
        let flush = || {
            let leaf = topology.tree.find_leaf(self.guid)?;
            // Another device does not know what this one was given.
            let (device, _) = topology.writable_leaf(leaf)?;
            if !Arc::ptr_eq(device, &self.device) {
                return None;
            }
            let (device, errors) = (Arc::clone(device), self.errors);
            let flush = move || device.flush().is_ok() && device.write_back_errors() == errors;
            topology.request(leaf, 0, flush).ok()
        };
        flush() == Some(true)
    }
}

/// What became of one range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copied {
    /// It was read. These leaves did not take it.
    Read {
        /// The guids of the leaves.
        failed: Vec<Guid>,
    },
    /// No leaf that lacks nothing could read it.
    Unreadable,
    /// No leaf is in use that lacks nothing.
    NoSource,
    /// A device, or another write of the range, takes too long. The range may be tried again.
    NoAnswer,
    /// The leaves have no part of it.
    NotNeeded,
}

/// Bytes for a leaf.
struct CopyWrite {
    leaf: LeafId,
    /// The leaf whose content it is: the same one, or a distributed spare.
    target: Guid,
    /// First byte on the device, including labels.
    offset_bytes: u64,
    bytes: Arc<[u8]>,
}

impl BlockStore {
    /// Begins copies to these leaves of a vdev. `None` if one of them is not in use.
    #[must_use]
    pub fn begin_copies(&self, top: VdevId, targets: &[Guid]) -> Option<CopyPass<'_>> {
        let topology = self.topology();
        let is_in_use = |guid: &Guid| {
            let leaf = topology.tree.find_leaf(*guid);
            leaf.is_some_and(|leaf| topology.is_in_use(leaf))
        };
        if !targets.iter().all(is_in_use) {
            return None;
        }
        let leaves = topology.tree.leaves();
        let leaves = leaves.filter(|(_, node)| node.top == Some(top));
        let sides = leaves
            .filter_map(|(leaf, _)| Side::of(&topology, leaf))
            .collect();
        let sources = topology.copy_sources(top, targets).into_iter();
        let sources = sources
            .filter_map(|leaf| topology.flushed_source(leaf))
            .collect();
        Some(CopyPass {
            store: self,
            top,
            targets: targets.iter().copied().collect(),
            sides,
            sources,
            done: Mutex::default(),
            _pass: topology.copy_locks.pass(),
        })
    }
}

impl Topology {
    /// Whether other leaves of a vdev that are in use and lack nothing have all of its data, so that it can be copied from
    /// them.
    #[must_use]
    pub fn has_copy_source(&self, top: VdevId, targets: &[Guid]) -> bool {
        let sources = self.copy_sources(top, targets);
        self.tree.survives(top, &|leaf| !sources.contains(&leaf))
    }

    /// A leaf to copy from, after a flush. `None` if that fails: what it returns for its newest writes is in doubt.
    fn flushed_source(&self, leaf: LeafId) -> Option<Side> {
        let (device, counters) = self.writable_leaf(leaf)?;
        let bytes = counters.unflushed().retained_bytes();
        let (side, of) = (Arc::clone(device), Arc::clone(counters));
        let errors = self.request(leaf, bytes, move || {
            of.unflushed().flush(&side, &of).ok()?;
            Some(side.write_back_errors())
        });
        Some(Side {
            guid: self.leaf_guid(leaf),
            device: Arc::clone(device),
            errors: errors.ok()??,
        })
    }

    /// The leaf that another one is to replace.
    fn replaced_by(&self, new: Guid) -> Option<LeafId> {
        let new = self.tree.find_leaf(new)?;
        let nodes = self.tree.nodes().iter();
        let mut groups = nodes
            .filter(|node| matches!(node.kind, VdevKind::Replacing | VdevKind::Spare))
            .filter_map(|node| node.children.split_first());
        let is_new = |child| {
            self.tree
                .node(child)
                .is_some_and(|node| node.leaf == Some(new))
        };
        let (first, _) = groups.find(|(_, others)| others.iter().any(|one| is_new(*one)))?;
        self.tree.node(*first)?.leaf
    }

    /// The leaves of a vdev to copy from, distributed spares among them. One that is being replaced comes last, but for its
    /// own replacement: it may be failing.
    pub(crate) fn copy_sources(&self, top: VdevId, targets: &[Guid]) -> Vec<LeafId> {
        let is_replaced = |leaf: LeafId| {
            let nodes = self.tree.nodes().iter();
            let mut groups = nodes
                .filter(|node| matches!(node.kind, VdevKind::Replacing | VdevKind::Spare))
                .filter_map(|node| self.tree.node(*node.children.first()?)?.leaf);
            groups.any(|first| first == leaf)
        };
        let leaves = self.tree.leaves().filter(|(leaf, node)| {
            let counters = self.counters.get(leaf.0 as usize);
            node.top == Some(top)
                && !targets.contains(&node.config.guid)
                && self.is_in_use(*leaf)
                && self.health.missed(*leaf).is_empty()
                && counters.is_some_and(|counters| counters.newest_missed().is_none())
        });
        let mut leaves: Vec<LeafId> = leaves.map(|(leaf, _)| leaf).collect();
        leaves.sort_by_key(|leaf| is_replaced(*leaf));
        leaves
    }

    /// Reads a range of a leaf. `None` if the device does not answer.
    pub(crate) fn read_copy(
        &self,
        leaf: LeafId,
        range: &Range<u64>,
    ) -> Option<Result<Vec<u8>, LeafFault>> {
        let mut bytes = vec![];
        for outcome in self.read_pieces(leaf, &pieces_of(range))? {
            match outcome {
                Ok(piece) => bytes.extend_from_slice(&piece),
                Err(fault) => return Some(Err(fault)),
            }
        }
        Some(Ok(bytes))
    }

    /// Reads pieces of a leaf, which give way to other requests. `None` if the device does not answer.
    fn read_pieces(&self, leaf: LeafId, pieces: &[Range<u64>]) -> Option<Vec<LeafOutcome>> {
        let read = |piece: &Range<u64>| LeafRead {
            leaf,
            offset_bytes: VDEV_DATA_START_BYTES.saturating_add(piece.start),
            length_bytes: piece.end.saturating_sub(piece.start),
        };
        let reads: Vec<LeafRead> = pieces.iter().map(read).collect();
        let outcomes = match self.has_deadline(leaf) {
            false => self.read_leaves(&reads, IoClass::Rebuild),
            // The leaf is not taken out of use for this: a copy can be made later.
            true if self.abandoned_requests(leaf) > 0 => return None,
            true => (self.start_reads(leaf, reads, IoClass::Rebuild)?)
                .wait_or_abandon(self)
                .ok()?,
        };
        let is_absent = |outcome: &LeafOutcome| matches!(outcome, Err(LeafFault::Absent));
        if outcomes.iter().any(is_absent) {
            return None;
        }
        let mut failed = pieces.iter().zip(&outcomes);
        if let Some((piece, _)) = failed.find(|(_, outcome)| outcome.is_err()) {
            self.count_failed_read(&read(piece));
        }
        Some(outcomes)
    }
}

/// The parts of a range that are read by themselves.
fn pieces_of(range: &Range<u64>) -> Vec<Range<u64>> {
    let mut pieces = vec![];
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at.saturating_add(READ_BYTES));
        pieces.push(at..end);
        at = end;
    }
    pieces
}

impl CopyPass<'_> {
    /// Copies a range of the vdev's space, given in bytes from its start; at most some MiB. On dRAID, whole stripes.
    #[must_use]
    pub fn copy(&self, range: &Range<u64>) -> Copied {
        let (limit, ranges) = {
            let topology = self.store.topology();
            let ranges = topology.leaf_ranges_of(self.top, range);
            (Overdue::of(&topology), ranges)
        };
        let locks = Arc::clone(&self.store.topology().copy_locks);
        // A write of a txg is under way until someone looks whether it is over.
        self.store.reap();
        let Some(_guard) = locks.copy(ranges, &limit) else {
            return Copied::NoAnswer;
        };
        // Only now: what leaves missed of writes that have ended is noted in it.
        let topology = self.store.topology();
        if (topology.tree.top(self.top)).is_some_and(|top| top.draid().is_some()) {
            return self.copy_stripes(&topology, range);
        }
        let mut failed = vec![];
        for (sources, targets) in self.by_sources(&topology) {
            match self.read(&topology, range, &sources) {
                Ok(bytes) => {
                    let bytes = bytes.into();
                    failed.extend(self.write_sides(&topology, &targets, range.start, &bytes));
                }
                // The range counts as copied to none of the targets. But one that did not take its bytes has to be named:
                // then the range counts as copied, and so the others are named too.
                Err(_) if !failed.is_empty() => {
                    let failed = self.targets.iter().copied().collect();
                    return Copied::Read { failed };
                }
                Err(copied) => return copied,
            }
        }
        Copied::Read { failed }
    }

    /// The targets, with the leaves to copy from, best first.
    fn by_sources(&self, topology: &Topology) -> Vec<(Vec<LeafId>, Vec<Guid>)> {
        let all: Vec<Guid> = self.targets.iter().copied().collect();
        let sources = topology.copy_sources(self.top, &all);
        let mut groups: Vec<(Vec<LeafId>, Vec<Guid>)> = vec![];
        for target in all {
            let replaced = topology.replaced_by(target);
            let mut own = sources.clone();
            own.sort_by_key(|leaf| Some(*leaf) != replaced);
            match groups.iter_mut().find(|(known, _)| *known == own) {
                Some((_, targets)) => targets.push(target),
                None => groups.push((own, vec![target])),
            }
        }
        groups
    }

    /// Reads a range from the first of these leaves. Only the pieces that it cannot read come from the next one.
    fn read(
        &self,
        topology: &Topology,
        range: &Range<u64>,
        sources: &[LeafId],
    ) -> Result<Vec<u8>, Copied> {
        let mut missing = pieces_of(range);
        let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut failure = Copied::NoSource;
        for leaf in sources {
            let guid = topology.leaf_guid(*leaf);
            let outcomes = match self.is_source(guid) {
                true => topology.read_pieces(*leaf, &missing),
                false => None,
            };
            // The one that does not answer may do so later.
            let Some(outcomes) = outcomes else {
                failure = Copied::NoAnswer;
                continue;
            };
            if outcomes.iter().any(Result::is_ok) {
                self.done.lock().used.insert(guid);
            }
            let mut left = vec![];
            for (piece, outcome) in missing.into_iter().zip(outcomes) {
                match outcome {
                    Ok(bytes) => drop(found.insert(piece.start, bytes.to_vec())),
                    Err(_) => left.push(piece),
                }
            }
            if left.is_empty() {
                let pieces: Vec<Vec<u8>> = found.into_values().collect();
                return Ok(pieces.concat());
            }
            missing = left;
            mark::hit("copy-read-failed");
            if failure != Copied::NoAnswer {
                failure = Copied::Unreadable;
            }
        }
        Err(failure)
    }

    /// Whether a leaf with a device was flushed before the first copy.
    fn is_source(&self, guid: Guid) -> bool {
        self.sources.iter().any(|source| source.guid == guid)
    }

    /// Writes to targets. Returns those that did not take it.
    fn write_sides(
        &self,
        topology: &Topology,
        targets: &[Guid],
        start: u64,
        bytes: &Arc<[u8]>,
    ) -> Vec<Guid> {
        let offset_bytes = VDEV_DATA_START_BYTES.saturating_add(start);
        let found = targets.iter().map(|target| {
            let leaf = topology.tree.find_leaf(*target);
            let write = leaf.map(|leaf| CopyWrite {
                leaf,
                target: *target,
                offset_bytes,
                bytes: Arc::clone(bytes),
            });
            write.ok_or(*target)
        });
        let (writes, mut lost): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
        let writes = writes.into_iter().flatten().collect();
        let failed = self.write(topology, writes);
        let lost = lost.drain(..).filter_map(Result::err);
        lost.chain(failed.into_iter().map(|write| write.target))
            .collect()
    }

    /// Makes writes, of all leaves at once. Returns those that failed.
    fn write(&self, topology: &Topology, writes: Vec<CopyWrite>) -> Vec<CopyWrite> {
        let begin = |write: &CopyWrite| {
            let (device, counters) = topology.writable_leaf(write.leaf)?;
            let (device, counters) = (Arc::clone(device), Arc::clone(counters));
            let (clock, bytes) = (topology.clock.clone(), Arc::clone(&write.bytes));
            let (offset, length) = (write.offset_bytes, bytes.len() as u64);
            let guid = topology.leaf_guid(write.leaf);
            self.done.lock().written.insert((guid, write.target));
            let in_thread = topology.has_deadline(write.leaf);
            Some(
                topology.start_or_make(in_thread, write.leaf, length, move || {
                    let write = || {
                        let _operation = counters.queue().enter(IoClass::Rebuild);
                        counters.queue().check_lease()?;
                        device.write(offset, &bytes)
                    };
                    let outcome = time_write(&clock, &counters, IoClass::Rebuild, length, write);
                    counters.count_write(offset, length, outcome.is_err());
                    if outcome.is_ok() {
                        counters.count_repair(length);
                    }
                    outcome.is_ok()
                }),
            )
        };
        let begun: Vec<_> = writes
            .into_iter()
            .map(|write| (begin(&write), write))
            .collect();
        let failed = begun.into_iter().filter_map(|(started, write)| {
            let is_written =
                started.is_some_and(|started| started.wait(topology).is_ok_and(|is_ok| is_ok));
            (!is_written).then_some(write)
        });
        failed.collect()
    }

    /// Makes what was copied durable. Returns the leaves that may have lost some of it: all of them if a leaf lost writes
    /// while it was copied from.
    #[must_use]
    pub fn finish(self) -> Vec<Guid> {
        let topology = self.store.topology();
        let Done { used, written } = self.done.into_inner();
        let mut sources = (self.sources.iter()).filter(|source| used.contains(&source.guid));
        if !sources.all(|source| source.is_durable(&topology)) {
            mark::hit("copy-source-lost-writes");
            return self.targets.into_iter().collect();
        }
        let is_in_use = |target: &Guid| {
            let leaf = topology.tree.find_leaf(*target);
            leaf.is_some_and(|leaf| topology.is_in_use(leaf))
        };
        let (left, mut lost): (BTreeSet<Guid>, BTreeSet<Guid>) =
            self.targets.iter().partition(|target| is_in_use(target));
        let to_flush = written.iter().map(|(leaf, _)| leaf).chain(&left);
        let to_flush: BTreeSet<Guid> = to_flush.copied().collect();
        for side in (self.sides.iter()).filter(|side| to_flush.contains(&side.guid)) {
            if !side.is_durable(&topology) {
                lost.extend(left.get(&side.guid));
                let of = written.iter().filter(|(leaf, _)| *leaf == side.guid);
                lost.extend(of.map(|(_, target)| *target));
            }
        }
        // What came into use only during the pass may have been another device before.
        let is_known = |leaf: &Guid| self.sides.iter().any(|side| side.guid == *leaf);
        let unknown = written.iter().filter(|(leaf, _)| !is_known(leaf));
        lost.extend(unknown.map(|(_, target)| *target));
        lost.into_iter().collect()
    }
}
