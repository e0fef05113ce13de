//! Issues allocated blocks to the leaves.

use super::place::Extent;
use super::workers::{Running, Workers};
use crate::copy_locks::WriteGuard;
use crate::io_stats::IoClass;
use crate::io_watch::QueuedWrites;
use crate::leaf_queue::refuse;
use crate::leaf_requests::Lane;
use crate::request_errors::{RequestError, RequestErrorKind};
use crate::requests::Pending;
use crate::topology::Topology;
use crate::unflushed::{Content, Ended};
use millpond_device::{RUN_BYTES_MAX, Watch, WriteRequest};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::Txg;
use millpond_vdev::{BlockRange, Filler, LeafId, WritePlan, WritePlanError};
use std::collections::BTreeMap;
use std::ops::Range;

/// Written to sectors that RAID-Z skips: at most one sector, 64 KiB.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Extents of one txg and the write plan of each.
pub(crate) struct Batch {
    pub(super) txg: Txg,
    pub(super) extents: Vec<(Extent, Result<WritePlan, WritePlanError>)>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Batch {
    /// The bytes of one write of an extent's plan.
    pub(crate) fn bytes(&self, extent: usize, write: usize) -> &[u8] {
        let Some((extent, Ok(plan))) = self.extents.get(extent) else {
            return &[];
        };
        let write = plan.writes().get(write);
        write.map_or(&[], |write| write.bytes(extent.bytes()))
    }
}

/// When writes become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// Once their leaves were flushed; contents are kept until then.
    WhenFlushed,
    /// When they complete.
    AtOnce,
}

/// One write of a leaf: its extent, its index in the extent's plan, and its offset.
#[derive(Clone, Copy)]
pub(super) struct Part {
    offset_bytes: u64,
    extent: usize,
    /// `None` for a filler.
    write: Option<usize>,
    length_bytes: u64,
}

/// A failed write: extent, index in its plan, leaf, error message.
pub(super) type FailedPart = (usize, usize, LeafId, String);

/// Writes in flight.
pub(super) struct Issued {
    pub(super) topology: Arc<Topology>,
    pub(super) batch: Arc<Batch>,
    pub(super) running: Running<Vec<FailedPart>>,
    /// Writes by threads of the leaves.
    pub(super) pending: Vec<PendingWrites>,
    pub(super) guard: WriteGuard,
    pub(super) durability: Durability,
    /// [`UnflushedWrites::losses`](crate::unflushed::UnflushedWrites::losses) of each leaf before the first write.
    pub(super) losses: Vec<u64>,
}

pub(super) struct PendingWrites {
    pub(super) leaf: LeafId,
    pub(super) parts: Arc<Vec<Part>>,
    pub(super) failed: Pending<Vec<FailedPart>>,
}

/// How writes are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) class: IoClass,
    pub(super) durability: Durability,
    /// Whether the caller does not wait soon, so that threads of the leaves make what takes as long as a device.
    pub(super) in_background: bool,
}

/// Up to this many bytes over all leaves, the caller writes them itself if they go into the system's page
/// cache, which takes less time than waking a thread.
const ALONE_BYTES_MAX: u64 = 64 << 10;

/// Computes the parity of every extent on `processors`. Hands the writes of each leaf to a thread of the
/// leaf if it has a deadline or the caller does not wait, else to a thread of `queues`, unless they are short.
pub(super) fn issue(
    topology: &Arc<Topology>,
    txg: Txg,
    how: How,
    extents: Vec<Extent>,
    processors: &Workers,
    queues: &Workers,
) -> Issued {
    let guard = topology.copy_locks.write(|| {
        let ranges = extents.iter().flat_map(|extent| {
            let (top, start) = (extent.dva.vdev, extent.dva.offset_bytes);
            let bytes = extent.range.len() as u64;
            let bytes = topology.tree.asize(top, bytes, txg).unwrap_or(bytes);
            topology.leaf_ranges_of(top, &(start..start.saturating_add(bytes)))
        });
        ranges.collect()
    });
    let losses = topology.counters.iter();
    let losses = losses.map(|counters| counters.unflushed().losses());
    let losses = losses.collect();
    let planned = {
        let topology = Arc::clone(topology);
        processors.map(extents, move |extent: Extent| {
            let range = BlockRange {
                vdev: extent.dva.vdev,
                offset_bytes: extent.dva.offset_bytes,
                size_bytes: extent.range.len() as u64,
                birth: txg,
            };
            let plan = topology.write_plan(range, extent.bytes());
            (extent, plan)
        })
    };
    let batch = Arc::new(Batch {
        txg,
        extents: planned,
    });
    let waits_for_device = |leaf: LeafId| {
        let leaf = topology.writable_leaf(leaf);
        leaf.is_some_and(|(device, _)| device.writes_wait_for_device())
    };
    let is_of_leaf =
        |leaf| topology.has_deadline(leaf) || how.in_background && waits_for_device(leaf);
    let (of_leaves, parts): (Vec<_>, Vec<_>) =
        (parts_by_leaf(&batch).into_iter()).partition(|(leaf, _)| is_of_leaf(*leaf));
    let each = parts.iter().flat_map(|(_, parts)| parts);
    let bytes: u64 = each.map(|part| part.length_bytes).sum();
    let waits = parts.iter().any(|(leaf, _)| waits_for_device(*leaf));
    let helpers = match how.durability {
        // The caller takes one leaf, and has to wait for it.
        Durability::AtOnce => parts.len().saturating_sub(1),
        Durability::WhenFlushed if bytes <= ALONE_BYTES_MAX && !waits => 0,
        Durability::WhenFlushed => parts.len(),
    };
    let queued = |leaf: LeafId, parts: &[Part]| {
        let (_, counters) = topology.writable_leaf(leaf)?;
        let count = parts.len() as u64;
        Some(QueuedWrites::new(
            &topology.clock,
            counters,
            how.class,
            count,
        ))
    };
    let pending = of_leaves.into_iter().map(|(leaf, parts)| {
        let queued = queued(leaf, &parts);
        let bytes = parts.iter().map(|part| part.length_bytes).sum();
        let parts = Arc::new(parts);
        let (batch, own) = (Arc::clone(&batch), Arc::clone(&parts));
        let leaves = Arc::clone(topology);
        let failed = topology.start_in(Lane::of(how.class), leaf, bytes, move || {
            write_leaf(&leaves, &batch, leaf, &own, queued, how)
        });
        PendingWrites {
            leaf,
            parts,
            failed,
        }
    });
    let pending = pending.collect();
    let jobs = parts.into_iter().map(|(leaf, parts)| {
        let queued = queued(leaf, &parts);
        (leaf, parts, queued)
    });
    let running = {
        let (leaves, batch) = (Arc::clone(topology), Arc::clone(&batch));
        queues.start(helpers, jobs.collect(), move |(leaf, parts, queued)| {
            write_leaf(&leaves, &batch, leaf, &parts, queued, how)
        })
    };
    Issued {
        topology: Arc::clone(topology),
        batch,
        running,
        pending,
        guard,
        durability: how.durability,
        losses,
    }
}

impl Issued {
    /// The leaves at the time.
    pub(super) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    pub(super) fn txg(&self) -> Txg {
        self.batch.txg
    }

    /// Whether [`Issued::finish`] would not wait.
    pub(super) fn is_over(&self) -> bool {
        let mut pending = self.pending.iter();
        pending.all(|writes| writes.failed.is_over()) && self.running.is_over()
    }
}

/// The writes of each leaf by offset, with the fillers that join two of them.
fn parts_by_leaf(batch: &Batch) -> Vec<(LeafId, Vec<Part>)> {
    let mut leaves: BTreeMap<LeafId, Vec<Part>> = BTreeMap::new();
    for (extent, (_, plan)) in batch.extents.iter().enumerate() {
        let Ok(plan) = plan else { continue };
        for (write, planned) in plan.writes().iter().enumerate() {
            leaves.entry(planned.leaf).or_default().push(Part {
                offset_bytes: planned.offset_bytes,
                extent,
                write: Some(write),
                length_bytes: planned.length_bytes(),
            });
        }
        for filler in plan.fillers() {
            let Filler {
                leaf,
                offset_bytes,
                length_bytes,
            } = *filler;
            leaves.entry(leaf).or_default().push(Part {
                offset_bytes,
                extent,
                write: None,
                length_bytes,
            });
        }
    }
    for parts in leaves.values_mut() {
        parts.sort_by_key(|part| part.offset_bytes);
        keep_joining_fillers(parts);
    }
    leaves.into_iter().collect()
}

/// Drops fillers that do not close the gap between two writes.
fn keep_joining_fillers(parts: &mut Vec<Part>) {
    let end = |part: &Part| part.offset_bytes.saturating_add(part.length_bytes);
    let mut kept: Vec<Part> = Vec::with_capacity(parts.len());
    let mut fillers: Vec<Part> = vec![];
    for part in parts.drain(..) {
        if part.write.is_none() {
            let joins = fillers.last().or(kept.last()).map(end) == Some(part.offset_bytes);
            if !joins {
                fillers.clear();
            }
            if joins {
                fillers.push(part);
            }
            continue;
        }
        if fillers.last().map(end) == Some(part.offset_bytes) {
            kept.append(&mut fillers);
        }
        fillers.clear();
        kept.push(part);
    }
    *parts = kept;
}

/// Marks all writes of a leaf as failed for one reason.
pub(super) fn fail_parts(leaf: LeafId, parts: &[Part], reason: &str) -> Vec<FailedPart> {
    let failed = parts.iter();
    let failed =
        failed.filter_map(|part| Some((part.extent, part.write?, leaf, reason.to_owned())));
    failed.collect()
}

/// Writes to one leaf. Returns the failed writes.
fn write_leaf(
    topology: &Topology,
    batch: &Arc<Batch>,
    leaf: LeafId,
    parts: &[Part],
    queued: Option<QueuedWrites>,
    how: How,
) -> Vec<FailedPart> {
    let fail_all = |reason: &str| fail_parts(leaf, parts, reason);
    let (Some((device, counters)), Some(queued)) = (topology.writable_leaf(leaf), queued) else {
        return fail_all("the device is gone");
    };
    let mut requests: Vec<WriteRequest<'_>> = parts
        .iter()
        .map(|part| WriteRequest::new(part.offset_bytes, bytes_of(batch, part)))
        .collect();
    let runs_of = |range: Range<usize>, each: &mut dyn FnMut(Range<usize>)| {
        each_run(parts, range, each);
    };
    let length_of = |at: usize| parts.get(at).map_or(0, |part| part.length_bytes);
    let watch = queued.watched(&topology.clock, &runs_of, &length_of);
    let begun = (counters.unflushed()).begin(device, parts.iter().map(Part::range));
    match how.durability {
        Durability::WhenFlushed => {
            let queue = counters.queue();
            queue.write(device.as_ref(), how.class, &mut requests, &watch);
        }
        Durability::AtOnce => {
            let _operation = counters.queue().enter(how.class);
            watch.begun(0..requests.len());
            match counters.queue().check_lease() {
                Ok(()) => device.write_durable(&mut requests),
                Err(error) => refuse(&mut requests, &error),
            }
            watch.ended(0..parts.len());
        }
    }
    drop(watch);
    let mut runs = 0;
    each_run(parts, 0..parts.len(), &mut |_| runs += 1);
    let bytes = parts.iter().map(|part| part.length_bytes).sum();
    let outcomes: Vec<Option<String>> = (requests.into_iter())
        .map(|request| request.outcome.err().map(|error| error.to_string()))
        .collect();
    let has_failed = outcomes.iter().any(Option::is_some);
    let ended = match how.durability {
        // The leaf went out of use meanwhile. Its contents are not kept, so that the writes count as missed.
        _ if !counters.status().is_usable() => {
            begun.forget();
            mark::hit("written-while-leaf-went");
            Err("the device went out of use".to_owned())
        }
        Durability::WhenFlushed => {
            let written = parts.iter().zip(&outcomes);
            let written = written.filter(|(_, failure)| failure.is_none());
            begun.end(
                written.filter_map(|(part, _)| part.ended(batch)),
                has_failed,
            );
            Ok(())
        }
        Durability::AtOnce => {
            let ended = begun.end_durable(has_failed);
            ended.map_err(|error| error.to_string())
        }
    };
    counters.count_writes(runs, bytes);
    if let Err(reason) = ended {
        return fail_all(&reason);
    }
    let failed = parts.iter().zip(outcomes).filter_map(|(part, failure)| {
        let (write, failure) = (part.write?, failure?);
        counters.count_error(RequestError {
            kind: RequestErrorKind::Write,
            offset_bytes: part.offset_bytes,
            length_bytes: part.length_bytes,
            address: None,
        });
        Some((part.extent, write, leaf, failure))
    });
    failed.collect()
}

impl Part {
    fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes.saturating_add(self.length_bytes)
    }
    /// What to keep of the write until a flush; nothing for a filler.
    fn ended(&self, batch: &Arc<Batch>) -> Option<Ended> {
        Some(Ended {
            range: self.range(),
            txg: Some(batch.txg),
            content: Content::Planned {
                batch: Arc::clone(batch),
                extent: self.extent,
                write: self.write?,
            },
        })
    }
}

fn bytes_of<'a>(batch: &'a Batch, part: &Part) -> &'a [u8] {
    match part.write {
        Some(write) => batch.bytes(part.extent, write),
        None => {
            let length = usize::try_from(part.length_bytes).unwrap_or(usize::MAX);
            ZEROS.get(..length).unwrap_or(&ZEROS)
        }
    }
}

/// Calls `each` with every run of adjacent parts in `range`, which count as one write.
fn each_run(parts: &[Part], range: Range<usize>, each: &mut dyn FnMut(Range<usize>)) {
    let mut run: Option<(Range<usize>, u64, u64)> = None;
    let first = range.start;
    for (at, part) in (first..).zip(parts.get(range).unwrap_or_default()) {
        let end = part.offset_bytes.saturating_add(part.length_bytes);
        match &mut run {
            Some((members, start, run_end))
                if *run_end == part.offset_bytes && end.saturating_sub(*start) <= RUN_BYTES_MAX =>
            {
                (members.end, *run_end) = (at + 1, end);
            }
            _ => {
                let begun = (at..at + 1, part.offset_bytes, end);
                if let Some((members, ..)) = run.replace(begun) {
                    each(members);
                }
            }
        }
    }
    if let Some((members, ..)) = run {
        each(members);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset_bytes: u64, is_filler: bool) -> Part {
        Part {
            offset_bytes,
            extent: 0,
            write: (!is_filler).then_some(0),
            length_bytes: 512,
        }
    }

    #[test]
    fn fillers_stay_only_between_writes() {
        let kept = |parts: &[(u64, bool)]| {
            let mut parts: Vec<Part> = parts
                .iter()
                .map(|(sector, is_filler)| part(sector * 512, *is_filler))
                .collect();
            keep_joining_fillers(&mut parts);
            let sectors = parts.iter().map(|part| part.offset_bytes / 512);
            sectors.collect::<Vec<_>>()
        };
        assert_eq!(kept(&[(0, true), (1, false), (2, true)]), [1]);
        assert_eq!(kept(&[(1, false), (2, true), (3, false)]), [1, 2, 3]);
        assert_eq!(
            kept(&[(1, false), (2, true), (3, true), (4, false)]),
            [1, 2, 3, 4]
        );
        assert_eq!(kept(&[(1, false), (3, true), (4, false)]), [1, 4]);
        assert_eq!(kept(&[(1, false), (2, true), (4, false)]), [1, 4]);
        assert_eq!(
            kept(&[(1, false), (2, true), (4, true), (5, false)]),
            [1, 5]
        );
    }

    #[test]
    fn neighbours_count_as_one_write_up_to_a_mebibyte() {
        let parts: Vec<Part> = (0..4096).map(|at| part(at * 512, false)).collect();
        let runs = |parts: &[Part], range| {
            let mut found = vec![];
            each_run(parts, range, &mut |run| found.push((run.start, run.end)));
            found
        };
        assert_eq!(runs(&parts, 0..4096), [(0, 2048), (2048, 4096)]);
        assert_eq!(runs(&parts, 2..5), [(2, 5)]);
        let apart = [part(0, false), part(1024, false)];
        assert_eq!(runs(&apart, 0..2), [(0, 1), (1, 2)]);
        assert!(runs(&[], 0..0).is_empty());
        assert!(runs(&apart, 1..3).is_empty(), "beyond the end");
    }
}
