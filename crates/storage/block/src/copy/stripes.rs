//! Copies on dRAID: what another leaf of the child has is copied, and the rest is computed from the other columns of its
//! group.
//!
//! Parity is that of whole stripes, wherever blocks begin in them. So a range is read and written as if it were one block.

use super::{Copied, CopyPass, CopyWrite};
use crate::io_stats::IoClass;
use crate::topology::Topology;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{Guid, Txg};
use millpond_vdev::{
    BlockRange, Health, LeafFault, LeafHealth, LeafId, LeafOutcome, LeafRead, LeafWrite,
    NoIndirect, ReadPlan, Step, StoredCopy, StoredPart,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// The leaves of a vdev as a copy sees them, whatever txg their blocks are of.
struct Sources<'a> {
    topology: &'a Topology,
    complete: &'a BTreeSet<LeafId>,
    /// Of those that are in use and not complete.
    others: LeafHealth,
}

impl Health for Sources<'_> {
    fn leaf(&self, leaf: LeafId, birth: Txg) -> LeafHealth {
        match self.topology.leaf(leaf, birth) {
            LeafHealth::Unreadable => LeafHealth::Unreadable,
            _ if self.complete.contains(&leaf) => LeafHealth::Good,
            _ => self.others,
        }
    }
}

/// A part of a range that targets lack.
struct Lacking {
    part: StoredPart,
    /// The copies to write, each with its target.
    writes: Vec<(StoredCopy, Guid)>,
    /// The targets of which no copy can be written.
    lost: BTreeSet<Guid>,
}

impl CopyPass<'_> {
    /// Copies the stripes that touch a range.
    pub(super) fn copy_stripes(&self, topology: &Topology, range: &Range<u64>) -> Copied {
        let top = topology.tree.top(self.top);
        let pieces = top.and_then(|top| top.draid()?.whole_stripes(range, top.ashift));
        let Some(pieces) = pieces else {
            return Copied::Unreadable;
        };
        let complete = match self.complete(topology) {
            Ok(complete) => complete,
            Err(copied) => return copied,
        };
        let (mut failed, mut is_needed) = (BTreeSet::new(), false);
        for (piece, size_bytes) in pieces {
            let block = BlockRange {
                vdev: self.top,
                offset_bytes: piece.start,
                size_bytes,
                birth: Txg(0),
            };
            match self.copy_piece(topology, block, &complete) {
                Copied::NotNeeded => {}
                Copied::Read { failed: more } => {
                    failed.extend(more);
                    is_needed = true;
                }
                // Those that did not take a piece lack everything, and are named. The others lack this piece, but the range
                // counts as copied: they are named too.
                _ if !failed.is_empty() => {
                    failed.extend(self.targets.iter().copied());
                    break;
                }
                other => return other,
            }
        }
        match is_needed {
            true => Copied::Read {
                failed: failed.into_iter().collect(),
            },
            false => Copied::NotNeeded,
        }
    }

    /// The leaves to copy from, if they have all data of the vdev.
    fn complete(&self, topology: &Topology) -> Result<BTreeSet<LeafId>, Copied> {
        let targets: Vec<Guid> = self.targets.iter().copied().collect();
        if !topology.has_copy_source(self.top, &targets) {
            return Err(Copied::NoSource);
        }
        let mut leaves: BTreeSet<LeafId> = topology
            .copy_sources(self.top, &targets)
            .into_iter()
            .collect();
        // One that was not flushed before the first copy may be a source of the next pass.
        leaves.retain(|leaf| {
            let node = topology.tree.leaf(*leaf);
            node.is_some_and(|node| !node.is_device() || self.is_source(node.config.guid))
        });
        let has_all = (topology.tree).survives(self.top, &|leaf| !leaves.contains(&leaf));
        has_all.then_some(leaves).ok_or(Copied::NoAnswer)
    }

    /// Copies whole stripes of one group.
    fn copy_piece(
        &self,
        topology: &Topology,
        block: BlockRange,
        complete: &BTreeSet<LeafId>,
    ) -> Copied {
        let health = Sources {
            topology,
            complete,
            others: LeafHealth::Stale,
        };
        let Ok(parts) = topology.tree.stored_parts(&health, block) else {
            return Copied::Unreadable;
        };
        let lacking: Vec<Lacking> = (parts.into_iter())
            .filter_map(|part| self.lacking(topology, part))
            .collect();
        if lacking.is_empty() {
            return Copied::NotNeeded;
        }
        let mut failed: BTreeSet<Guid> =
            lacking.iter().flat_map(|one| &one.lost).copied().collect();
        let (mut writes, mut rest) = (vec![], vec![]);
        for one in lacking {
            match self.read_part(topology, &one.part) {
                Some(bytes) => writes.extend(one.writes.iter().map(|(copy, target)| CopyWrite {
                    leaf: copy.leaf,
                    target: *target,
                    offset_bytes: copy.offset_bytes,
                    bytes: Arc::clone(&bytes),
                })),
                None => rest.extend(one.writes),
            }
        }
        if !rest.is_empty() {
            match self.compute(topology, block, complete, &rest) {
                Ok(computed) => writes.extend(computed),
                Err(copied) => return copied,
            }
        }
        let refused = self.write(topology, writes);
        failed.extend(refused.iter().map(|write| write.target));
        Copied::Read {
            failed: failed.into_iter().collect(),
        }
    }

    /// Which copies of a part are written. `None` if no target has it.
    fn lacking(&self, topology: &Topology, part: StoredPart) -> Option<Lacking> {
        let target_of = |copy: &StoredCopy| {
            let leaves = std::iter::once(&copy.leaf).chain(&copy.spares);
            let mut guids = leaves.map(|leaf| topology.leaf_guid(*leaf));
            guids.find(|guid| self.targets.contains(guid))
        };
        let (mut writes, mut all) = (vec![], BTreeSet::new());
        for copy in &part.copies {
            if let Some(target) = target_of(copy) {
                all.insert(target);
                if topology.is_in_use(copy.leaf) {
                    writes.push((copy.clone(), target));
                }
            }
        }
        for (_, target) in &writes {
            all.remove(target);
        }
        (!writes.is_empty() || !all.is_empty()).then_some(Lacking {
            part,
            writes,
            lost: all,
        })
    }

    /// The bytes of a part that another leaf of the child has.
    fn read_part(&self, topology: &Topology, part: &StoredPart) -> Option<Arc<[u8]>> {
        let mut copies = part.copies.iter().filter(|copy| copy.is_complete);
        copies.find_map(|copy| {
            let read = LeafRead {
                leaf: copy.leaf,
                offset_bytes: copy.offset_bytes,
                length_bytes: part.length_bytes,
            };
            let (mut outcomes, _) = self.read_all(topology, &[read]);
            let bytes = outcomes.pop()?.ok()?;
            Some(Arc::from(&*bytes))
        })
    }

    /// Computes parts of a block from the other columns.
    fn compute(
        &self,
        topology: &Topology,
        block: BlockRange,
        complete: &BTreeSet<LeafId>,
        writes: &[(StoredCopy, Guid)],
    ) -> Result<Vec<CopyWrite>, Copied> {
        mark::hit("copy-from-parity");
        let health = Sources {
            topology,
            complete,
            others: LeafHealth::Unreadable,
        };
        let plan = ReadPlan::new(&topology.tree, &health, &NoIndirect, block);
        let Ok(mut plan) = plan else {
            return Err(Copied::Unreadable);
        };
        let (mut outcomes, mut has_no_answer) = (vec![], false);
        let bytes = loop {
            // There is no checksum to compare with.
            match plan.advance(outcomes, &mut |_| true) {
                Step::Read(reads) => {
                    let (read, is_unanswered) = self.read_all(topology, &reads);
                    outcomes = read;
                    has_no_answer |= is_unanswered;
                }
                Step::Done(resolved) => break resolved.data,
                Step::Failed(_) if has_no_answer => return Err(Copied::NoAnswer),
                Step::Failed(_) => {
                    mark::hit("copy-not-computed");
                    return Err(Copied::Unreadable);
                }
            }
        };
        let plan = topology.write_plan(block, &bytes);
        let Ok(plan) = plan else {
            return Err(Copied::Unreadable);
        };
        let computed = writes.iter().map(|(copy, target)| {
            let is_it = |write: &&LeafWrite| {
                write.leaf == copy.leaf && write.offset_bytes == copy.offset_bytes
            };
            let write = plan.writes().iter().find(is_it)?;
            Some(CopyWrite {
                leaf: copy.leaf,
                target: *target,
                offset_bytes: copy.offset_bytes,
                bytes: Arc::from(write.bytes(&bytes)),
            })
        });
        // A leaf that went out of use since is asked again.
        (computed.collect::<Option<_>>()).ok_or(Copied::NoAnswer)
    }

    /// Makes reads of complete leaves, and notes the leaves. Returns their outcomes, and whether a device did not answer.
    fn read_all(&self, topology: &Topology, reads: &[LeafRead]) -> (Vec<LeafOutcome>, bool) {
        let (outcomes, has_no_answer) = topology.read_copies(reads);
        let mut used = BTreeSet::new();
        for (read, outcome) in reads.iter().zip(&outcomes) {
            match outcome {
                Ok(_) => {
                    used.insert(topology.leaf_guid(read.leaf));
                }
                Err(LeafFault::Absent) => {}
                Err(_) => topology.count_failed_read(read),
            }
        }
        self.done.lock().used.append(&mut used);
        (outcomes, has_no_answer)
    }
}

impl Topology {
    /// Makes reads that give way to others, each leaf in its own thread. The leaf of one that takes too long is not taken
    /// out of use for that. Returns their outcomes, and whether there was one.
    fn read_copies(&self, reads: &[LeafRead]) -> (Vec<LeafOutcome>, bool) {
        let begun: Vec<_> = (reads.iter())
            .map(|read| {
                let is_stuck =
                    self.has_deadline(read.leaf) && self.abandoned_requests(read.leaf) > 0;
                let reads = vec![*read];
                match is_stuck {
                    true => None,
                    false => self.start_reads(read.leaf, reads, IoClass::Rebuild),
                }
            })
            .collect();
        let mut has_no_answer = false;
        let outcomes = begun.into_iter().map(|pending| {
            let read = pending.map(|pending| pending.wait_or_abandon(self));
            let Some(Ok(mut outcomes)) = read else {
                has_no_answer = true;
                return Err(LeafFault::Absent);
            };
            outcomes.pop().unwrap_or(Err(LeafFault::Length))
        });
        (outcomes.collect(), has_no_answer)
    }
}
