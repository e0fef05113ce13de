//! Waits for issued writes, and judges which blocks can be read back.

use super::flush::Writing;
use super::issue::{Durability, FailedPart, Issued, PendingWrites, fail_parts};
use super::place::Extent;
use crate::copy_locks::WriteGuard;
use crate::topology::Topology;
use millpond_env::mark;
use millpond_vdev::{LeafId, WriteOutcome, WritePlan, WritePlanError};
use std::collections::BTreeMap;

/// The outcome of one extent.
#[derive(Debug)]
pub(super) struct ExtentOutcome {
    pub(super) missed: Vec<LeafId>,
    /// Why it cannot be read back; `None` if it can.
    pub(super) failure: Option<String>,
}

impl Issued {
    /// Waits, and judges each extent in order. Which leaves missed writes is recorded for the next flush. Until it is noted
    /// for reads too, the place of the writes is kept: nothing is copied from such a leaf.
    pub(super) fn finish(self, writing: &Writing) -> (Vec<ExtentOutcome>, WriteGuard) {
        let mut failed: BTreeMap<usize, Vec<(usize, String)>> = BTreeMap::new();
        let topology = &self.topology;
        let mut all: Vec<FailedPart> = self.running.finish().into_iter().flatten().collect();
        for PendingWrites {
            leaf,
            parts,
            failed,
        } in self.pending
        {
            let failed = failed.wait(topology);
            all.extend(failed.unwrap_or_else(|error| fail_parts(leaf, &parts, &error.to_string())));
        }
        for (extent, write, leaf, reason) in all {
            let reason = format!("{}: {reason}", topology.leaf_name(leaf));
            failed.entry(extent).or_default().push((write, reason));
        }
        let lost = Lost {
            topology,
            durability: self.durability,
            losses: &self.losses,
        };
        let extents = self.batch.extents.iter().enumerate();
        let outcomes = extents.map(|(index, (extent, plan))| {
            let mut failed = failed.remove(&index).unwrap_or_default();
            loop {
                let outcome = judge(topology, extent, plan, &failed);
                if outcome.failure.is_some() {
                    return outcome;
                }
                // A flush reads the notes, and then counts its loss. This notes a failure, and then looks for losses.
                // So one of the two sees the other.
                if !outcome.missed.is_empty() {
                    writing.note_failed(topology, &outcome.missed);
                }
                if !lost.add_since_issued(plan, &mut failed) {
                    return outcome;
                }
            }
        });
        (outcomes.collect(), self.guard)
    }
}

/// Finds writes that a failed flush lost while others of the same block were in flight.
struct Lost<'a> {
    topology: &'a Topology,
    durability: Durability,
    losses: &'a [u64],
}

impl Lost<'_> {
    /// Adds the writes that may be lost to those that failed. Returns whether it found any.
    fn add_since_issued(
        &self,
        plan: &Result<WritePlan, WritePlanError>,
        failed: &mut Vec<(usize, String)>,
    ) -> bool {
        let (Ok(plan), Durability::WhenFlushed) = (plan, self.durability) else {
            return false;
        };
        let before = failed.len();
        for (index, write) in plan.writes().iter().enumerate() {
            let at = write.leaf.0 as usize;
            let counters = self.topology.counters.get(at);
            let losses = counters.map(|counters| counters.unflushed().losses());
            if losses.as_ref() == self.losses.get(at) || failed.iter().any(|(at, _)| *at == index) {
                continue;
            }
            let name = self.topology.leaf_name(write.leaf);
            failed.push((index, format!("{name}: a flush failed meanwhile")));
        }
        let is_any = failed.len() > before;
        if is_any {
            mark::hit("written-while-flush-failed");
        }
        is_any
    }
}

fn judge(
    topology: &Topology,
    extent: &Extent,
    plan: &Result<WritePlan, WritePlanError>,
    failed: &[(usize, String)],
) -> ExtentOutcome {
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            return ExtentOutcome {
                missed: vec![],
                failure: Some(error.to_string()),
            };
        }
    };
    let WriteOutcome {
        missed,
        is_readable,
    } = plan.outcome(&mut |index| failed.iter().all(|(write, _)| *write != index));
    let failure = (!is_readable).then(|| {
        let mut words: Vec<String> = failed.iter().map(|(_, reason)| reason.clone()).collect();
        for leaf in &missed {
            if topology.writable_leaf(*leaf).is_none() {
                words.push(format!("{} is not available", topology.leaf_name(*leaf)));
            }
        }
        words.dedup();
        let (vdev, offset) = (extent.dva.vdev, extent.dva.offset_bytes);
        format!("<{vdev}:{offset:x}> {}", words.join(", "))
    });
    ExtentOutcome { missed, failure }
}
