//! Writes right bytes over the wrong ones that an audit found.
//!
//! A leaf whose bytes were wrong is read a second time before it is overwritten.
//!
//! An audit plans its writes. Those of several blocks are then written together: neighbours in one operation, and each
//! leaf in a thread of its own while the caller reads on.

use crate::copy_locks::WriteGuard;
use crate::io_stats::{IoClass, IoClock};
use crate::io_watch::time_write;
use crate::leaf_counters::LeafCounters;
use crate::leaf_queue::refuse;
use crate::requests::Started;
use crate::topology::Topology;
use crate::{BlockAudit, BlockError, BlockStore, ViewExpiry};
use millpond_device::{Device, WriteRequest, next_run};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_vdev::{
    AuditFinding, BlockPiece, BlockRange, LeafContent, LeafId, LeafRead, Verdict, WritePlan,
    block_pieces,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// A write that an audit planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealWrite {
    leaf: LeafId,
    /// The distributed spares whose space this is.
    spares: Vec<LeafId>,
    offset_bytes: u64,
    content: Content,
}

/// A part of a block, or of its parity.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    whole: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl Content {
    fn bytes(&self) -> &[u8] {
        self.whole.get(self.part.clone()).unwrap_or_default()
    }
}

/// A write, and which audit of a group planned it.
struct Part {
    audit: usize,
    write: HealWrite,
}

/// Whether each part of a leaf was written.
type Outcomes = Vec<bool>;

/// The writes of one leaf in flight.
struct LeafWrites {
    leaf: LeafId,
    /// The audit of each part, its length in bytes and its distributed spares, in the order of the outcomes.
    parts: Vec<(usize, u64, Vec<LeafId>)>,
    /// `None` if the leaf is absent.
    outcomes: Option<Started<Outcomes>>,
    _guard: WriteGuard,
}

/// A group of audits whose writes are in flight.
pub(crate) struct HealGroup {
    audits: Vec<Result<BlockAudit, BlockError>>,
    writes: Vec<LeafWrites>,
}

impl BlockStore {
    /// Plans writes of the bytes of a block to the leaves that lack them: those of `wrong`, or all if it is `None`.
    ///
    /// A leaf that is absent, or takes no blocks of this kind, fails. A distributed
    /// spare fails if no leaf holds what it lacks.
    pub(crate) fn plan_right_bytes(
        topology: &Topology,
        range: BlockRange,
        block: &[u8],
        wrong: Option<&[AuditFinding]>,
        audit: &mut BlockAudit,
    ) {
        if wrong.is_some_and(<[AuditFinding]>::is_empty) {
            return;
        }
        let pieces = block_pieces(&topology.tree, &topology.indirect, range);
        let mut planned = Planned {
            topology,
            wrong,
            block,
            whole: None,
            reached: vec![],
        };
        for piece in pieces.unwrap_or_default() {
            planned.add(&piece, audit);
        }
        let unreached = wrong.into_iter().flatten().map(|finding| finding.leaf);
        let unreached = unreached.filter(|leaf| !planned.reached.contains(leaf));
        audit.healed.failed.extend(unreached);
    }

    /// Begins the writes that a group of audits planned.
    pub(crate) fn begin_heal(
        &self,
        topology: &Topology,
        mut audits: Vec<Result<BlockAudit, BlockError>>,
    ) -> HealGroup {
        let mut leaves: BTreeMap<LeafId, Vec<Part>> = BTreeMap::new();
        for (number, audit) in audits.iter_mut().enumerate() {
            let Ok(audit) = audit else { continue };
            // Only the findings are of use from here on.
            audit.stored = None;
            for write in std::mem::take(&mut audit.planned) {
                let parts = leaves.entry(write.leaf).or_default();
                parts.push(Part {
                    audit: number,
                    write,
                });
            }
        }
        let begin = |(leaf, parts)| self.begin_leaf(topology, leaf, parts);
        HealGroup {
            audits,
            writes: leaves.into_iter().map(begin).collect(),
        }
    }

    fn begin_leaf(&self, topology: &Topology, leaf: LeafId, mut parts: Vec<Part>) -> LeafWrites {
        parts.sort_by_key(|part| part.write.offset_bytes);
        let lengths = parts.iter().map(|part| {
            let bytes = part.write.content.bytes().len() as u64;
            (part.audit, bytes, part.write.spares.clone())
        });
        let lengths: Vec<_> = lengths.collect();
        let bytes = lengths.iter().map(|(_, bytes, _)| bytes).sum();
        // Only after the wait it is looked whether the view is valid still.
        let guard = topology.copy_locks.write(|| {
            let ranges = parts.iter().map(|part| {
                let start = part.write.offset_bytes;
                start..start.saturating_add(part.write.content.bytes().len() as u64)
            });
            topology.vdev_ranges_of(leaf, ranges)
        });
        let outcomes = topology.writable_leaf(leaf).map(|(device, counters)| {
            let (device, counters) = (Arc::clone(device), Arc::clone(counters));
            let (clock, expiry) = (topology.clock.clone(), Arc::clone(&self.expiry));
            topology.start_or_make(topology.has_deadline(leaf), leaf, bytes, move || {
                write_parts(device.as_ref(), &counters, &clock, &expiry, &parts)
            })
        });
        LeafWrites {
            leaf,
            parts: lengths,
            outcomes,
            _guard: guard,
        }
    }
}

/// The writes of one block.
struct Planned<'a> {
    topology: &'a Topology,
    wrong: Option<&'a [AuditFinding]>,
    block: &'a [u8],
    /// The block, copied once for all writes.
    whole: Option<Arc<Vec<u8>>>,
    /// The leaves that hold a part.
    reached: Vec<LeafId>,
}

impl Planned<'_> {
    /// Plans the writes of one piece of the block.
    fn add(&mut self, piece: &BlockPiece, audit: &mut BlockAudit) {
        let (topology, wrong) = (self.topology, self.wrong);
        let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let from = to_usize(piece.block_offset_bytes);
        let end = from.saturating_add(to_usize(piece.range.size_bytes));
        let Some(bytes) = self.block.get(from..end) else {
            return;
        };
        let plan = topology.write_plan(piece.range, bytes);
        for write in plan.iter().flat_map(WritePlan::writes) {
            let (leaf, offset_bytes) = (write.leaf, write.offset_bytes);
            let end = offset_bytes.saturating_add(write.length_bytes());
            let is_of = |finding: &&AuditFinding| {
                let finding_end = finding.offset_bytes.saturating_add(finding.length_bytes);
                finding.leaf == leaf && finding.offset_bytes < end && offset_bytes < finding_end
            };
            let mut of_it = wrong.into_iter().flatten().filter(is_of).peekable();
            if wrong.is_some() && of_it.peek().is_none() {
                continue;
            }
            self.reached.push(leaf);
            let are_bytes_wrong = |finding: &AuditFinding| finding.verdict == Verdict::Wrong;
            if wrong.is_some()
                && of_it.all(are_bytes_wrong)
                && is_right_now(topology, leaf, offset_bytes, write.bytes(bytes))
            {
                continue;
            }
            let content = match &write.content {
                LeafContent::Block(part) => {
                    let block = self.block;
                    let whole = self.whole.get_or_insert_with(|| Arc::new(block.to_vec()));
                    Content {
                        whole: Arc::clone(whole),
                        part: part.start.saturating_add(from)..part.end.saturating_add(from),
                    }
                }
                LeafContent::Own(bytes) => Content {
                    whole: Arc::clone(bytes),
                    part: 0..bytes.len(),
                },
            };
            audit.planned.push(HealWrite {
                leaf,
                spares: write.spares().to_vec(),
                offset_bytes,
                content,
            });
        }
        let missed = plan.map(|plan| plan.outcome(&mut |_| true).missed);
        let is_spare = |leaf: &LeafId| {
            let node = topology.tree.leaf(*leaf);
            node.is_some_and(|node| !node.is_device())
        };
        let spares = missed.into_iter().flatten().filter(is_spare);
        audit.healed.failed.extend(spares);
    }
}

impl HealGroup {
    /// Waits for the writes and returns the audits, in order.
    pub(crate) fn settle(self, topology: &Topology) -> Vec<Result<BlockAudit, BlockError>> {
        let mut audits = self.audits;
        for writes in self.writes {
            // If the device does not answer, its bytes stay wrong.
            let outcomes = writes.outcomes.map(|started| started.wait(topology));
            let outcomes = outcomes.and_then(Result::ok).unwrap_or_default();
            for (index, (audit, bytes, spares)) in writes.parts.into_iter().enumerate() {
                let Some(Ok(audit)) = audits.get_mut(audit) else {
                    continue;
                };
                match outcomes.get(index) {
                    Some(true) => audit.healed.written.push((writes.leaf, bytes)),
                    _ => {
                        audit.healed.failed.push(writes.leaf);
                        audit.healed.failed.extend(spares);
                    }
                }
            }
        }
        audits
    }
}

/// Reads a leaf again whose bytes were found wrong. The memory or a cable may have damaged the first read: then what the
/// leaf holds is right, and a write could only spoil it.
pub(super) fn is_right_now(
    topology: &Topology,
    leaf: LeafId,
    offset_bytes: u64,
    bytes: &[u8],
) -> bool {
    let read = LeafRead {
        leaf,
        offset_bytes,
        length_bytes: bytes.len() as u64,
    };
    let now = topology.read_leaf(&read, IoClass::Scrub, Vec::new());
    let is_right = now.is_ok_and(|now| *now == *bytes);
    if is_right {
        mark::hit("read-was-wrong-not-the-disk");
    }
    is_right
}

/// Writes the parts of a leaf, in the order of their offsets. Returns which ones the device took. Nothing is written
/// once the view has expired.
fn write_parts(
    device: &dyn Device,
    counters: &LeafCounters,
    clock: &IoClock,
    expiry: &ViewExpiry,
    parts: &[Part],
) -> Outcomes {
    let requests = parts
        .iter()
        .map(|part| WriteRequest::new(part.write.offset_bytes, part.write.content.bytes()));
    let mut requests: Vec<_> = requests.collect();
    let mut rest = requests.as_mut_slice();
    while !rest.is_empty() {
        let (count, bytes) = next_run(rest);
        let (run, later) = rest.split_at_mut(count);
        rest = later;
        // The end of the view waits for one run at most.
        let is_valid = expiry.during(|| {
            let write = || {
                let _operation = counters.queue().enter(IoClass::AsyncWrite);
                match counters.check_repair() {
                    Ok(()) => device.write_many(run),
                    Err(error) => refuse(run, &error),
                }
            };
            time_write(clock, counters, IoClass::AsyncWrite, bytes, write);
        });
        if is_valid.is_none() {
            break;
        }
        for request in run {
            let length = request.bytes.len() as u64;
            let has_failed = request.outcome.is_err();
            counters.count_write(request.offset_bytes, length, has_failed);
            if !has_failed {
                counters.count_repair(length);
            }
        }
    }
    requests
        .iter()
        .map(|request| request.outcome.is_ok())
        .collect()
}
