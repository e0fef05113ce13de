//! Slices: the parts of a rebuild between two stored states.

use super::{Rebuild, RebuiltTop};
use crate::PoolError;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_block::{Copied, CopyPass};
use millpond_env::Tunable;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicUsize, Ordering};
use millpond_env::thread;
use millpond_ondisk::{Guid, RebuildPhase, VdevId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// The most bytes that are copied at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Smaller gaps between ranges are copied too, which takes less time than two requests.
const GAP_BYTES: u64 = 16 << 10;
/// The chunks that are listed at a time, in bytes.
const BATCH_BYTES: u64 = 16 << 20;
/// How long to wait for work on free space, which keeps devices too.
const BEFORE_NEXT_LOOK: Duration = Duration::from_millis(5);

/// The size of a slice, for each top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildLimits {
    /// How many bytes to copy at most, about.
    pub bytes: u64,
    /// How long a slice takes, in nanoseconds.
    pub slice_ns: u64,
    /// How many chunks are copied at a time.
    pub threads: usize,
}

impl Default for RebuildLimits {
    fn default() -> Self {
        Self {
            bytes: u64::MAX,
            slice_ns: 1_000_000_000,
            threads: 4,
        }
    }
}

/// The rebuild of a vdev at the beginning of a slice.
struct Job {
    top: RebuiltTop,
    rebuild: Rebuild,
}

/// What a slice did.
#[derive(Debug, Default)]
struct Outcome {
    next_bytes: u64,
    scanned_bytes: u64,
    issued_bytes: u64,
    rebuilt_bytes: u64,
    errors: u64,
    time_ms: u64,
    /// Leaves that did not take a copy, or may have lost one.
    failed: BTreeSet<Guid>,
    is_at_end: bool,
    /// Nothing is left to copy from.
    has_no_source: bool,
}

impl Outcome {
    fn has_moved(&self) -> bool {
        self.next_bytes > 0 || self.is_at_end || self.has_no_source || !self.failed.is_empty()
    }
}

impl Pool {
    /// Makes one slice of all rebuilds under way. Returns whether any came further.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn rebuild_slice(&self, limits: &RebuildLimits) -> Result<bool, PoolError> {
        let is_suspended = self.env.tunables.is_on(Tunable::ScanSuspendProgress);
        if is_suspended || self.suspension().is_some() {
            return Ok(false);
        }
        let tops = self.rebuilt_tops().into_iter();
        let jobs: Vec<Job> = tops
            .filter_map(|top| {
                let rebuild = self.rebuilds.active(top.zap)?;
                Some(Job { top, rebuild })
            })
            .collect();
        let synced = self.groups.synced_txg();
        if jobs.iter().any(|job| synced < job.rebuild.ready) {
            self.sync()?;
            return Ok(true);
        }
        let mut all = vec![];
        for job in jobs {
            let outcome = self.copy_slice(&job, limits);
            if outcome.has_moved() {
                all.push((job, outcome));
            }
        }
        if all.is_empty() {
            return Ok(false);
        }
        self.sync_task(|ctx| {
            (all.iter()).try_for_each(|(job, outcome)| ctx.end_rebuild_slice(job, outcome))
        })?;
        self.scan.change(|_| ());
        Ok(true)
    }

    fn copy_slice(&self, job: &Job, limits: &RebuildLimits) -> Outcome {
        let begun_ns = self.env.clock.monotonic_ns();
        let mut outcome = Outcome::default();
        let in_use = self.leaves_in_use();
        let (targets, gone): (Vec<Guid>, Vec<Guid>) =
            (job.top.targets.iter()).partition(|leaf| in_use.contains(leaf));
        // A device that was away does not know what it was given.
        outcome.failed.extend(gone);
        if self.allocator.space_bytes(job.top.id).is_none() {
            // What it may hold is not known.
            outcome.has_no_source = true;
            return outcome;
        }
        let pass = match targets.is_empty() {
            true => None,
            false => self.store.begin_copies(job.top.id, &targets),
        };
        let Some(pass) = pass else {
            outcome.is_at_end = targets.is_empty() && outcome.failed.is_empty();
            return outcome;
        };
        let until_ns = begun_ns.saturating_add(limits.slice_ns);
        // The stored offset is the start of a stripe: the kernel module, if it continues, computes columns from there on.
        let stripe_bytes = self.rebuilt_stripe_bytes(job.top.id);
        let mut at = stripe_start(job.rebuild.phys.last_offset, stripe_bytes);
        while self.env.clock.monotonic_ns() < until_ns && outcome.issued_bytes < limits.bytes {
            let Some(active) = self.rebuilds.active(job.top.zap) else {
                break;
            };
            if active.serial != job.rebuild.serial || outcome.failed.len() == job.top.targets.len()
            {
                break;
            }
            // Until it is dropped no device leaves the pool.
            let Some(_busy) = self.activities.enter() else {
                if !self.activities.wait(BEFORE_NEXT_LOOK) {
                    break;
                }
                continue;
            };
            let most = BATCH_BYTES.min(limits.bytes).max(stripe_bytes);
            let Some(used) = self.allocator.used_space(job.top.id, at, most) else {
                outcome.is_at_end = true;
                break;
            };
            let chunks = chunks_of(&used.ranges);
            let stopped_at = copy_chunks(&pass, &chunks, limits.threads, &mut outcome);
            at = stopped_at.unwrap_or(used.next_bytes);
            outcome.next_bytes = stripe_start(at, stripe_bytes);
            if stopped_at.is_some() {
                break;
            }
        }
        outcome.failed.extend(pass.finish());
        let ns = self.env.clock.monotonic_ns().saturating_sub(begun_ns);
        outcome.time_ms = ns / 1_000_000;
        outcome
    }

    /// The size of a dRAID's stripes in bytes; elsewhere 1.
    fn rebuilt_stripe_bytes(&self, top: VdevId) -> u64 {
        let topology = self.store.topology();
        let stripe = topology.tree.top(top).and_then(|node| {
            let draid = node.draid()?;
            draid.stripe_bytes(node.ashift)
        });
        stripe.unwrap_or(1).max(1)
    }
}

/// The start of the stripe that an offset lies in.
fn stripe_start(offset_bytes: u64, stripe_bytes: u64) -> u64 {
    let within = offset_bytes.checked_rem(stripe_bytes).unwrap_or(0);
    offset_bytes.saturating_sub(within)
}

/// Ranges of at most [`CHUNK_BYTES`], joined over small gaps.
pub(crate) fn chunks_of(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut chunks: Vec<Range<u64>> = vec![];
    for range in ranges {
        let mut at = range.start;
        if let Some(last) = chunks.last_mut()
            && at.saturating_sub(last.end) <= GAP_BYTES
        {
            let room = last.start.saturating_add(CHUNK_BYTES);
            if room > at {
                last.end = range.end.min(room);
                at = last.end;
            }
        }
        while at < range.end {
            let end = range.end.min(at.saturating_add(CHUNK_BYTES));
            chunks.push(at..end);
            at = end;
        }
    }
    chunks
}

/// Copies chunks, several at a time. If one has to be tried again later, returns where it begins.
fn copy_chunks(
    pass: &CopyPass<'_>,
    chunks: &[Range<u64>],
    threads: usize,
    outcome: &mut Outcome,
) -> Option<u64> {
    let next = AtomicUsize::new(0);
    let copied = Mutex::<Vec<Option<Copied>>, rank::Leaf>::new(vec![None; chunks.len()]);
    let is_stopped = || {
        let copied = copied.lock();
        let mut done = copied.iter().flatten();
        done.any(|one| matches!(one, Copied::NoAnswer | Copied::NoSource))
    };
    let run = || {
        while !is_stopped() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(at) else { break };
            let one = pass.copy(chunk);
            if let Some(place) = copied.lock().get_mut(at) {
                *place = Some(one);
            }
        }
    };
    if threads < 2 || chunks.len() < 2 || thread::is_alone() {
        run();
    } else {
        thread::scope(|scope| {
            for _ in 1..threads.min(chunks.len()) {
                scope.spawn(run);
            }
            run();
        });
    }
    let copied = copied.into_inner();
    // What a leaf did not take counts, however far the slice comes.
    for one in copied.iter().flatten() {
        if let Copied::Read { failed } = one {
            outcome.failed.extend(failed);
        }
    }
    for (chunk, one) in chunks.iter().zip(copied) {
        let bytes = chunk.end.saturating_sub(chunk.start);
        match one {
            Some(Copied::Read { .. }) => {
                outcome.issued_bytes = outcome.issued_bytes.saturating_add(bytes);
                outcome.rebuilt_bytes = outcome.rebuilt_bytes.saturating_add(bytes);
            }
            Some(Copied::NotNeeded) => {}
            Some(Copied::Unreadable) => outcome.errors = outcome.errors.saturating_add(1),
            Some(Copied::NoSource) => {
                outcome.has_no_source = true;
                return Some(chunk.start);
            }
            Some(Copied::NoAnswer) | None => return Some(chunk.start),
        }
        outcome.scanned_bytes = outcome.scanned_bytes.saturating_add(bytes);
    }
    None
}

impl SyncContext<'_> {
    /// Stores how far a slice came. If the rebuild ended or started anew meanwhile, that is void.
    fn end_rebuild_slice(&self, job: &Job, outcome: &Outcome) -> Result<(), PoolError> {
        let pool = self.pool;
        self.give_up_rebuilt(&outcome.failed);
        let tops = pool.rebuilt_tops().into_iter();
        let Some(top) = tops.into_iter().find(|top| top.zap == job.top.zap) else {
            return Ok(());
        };
        let phys = pool.rebuilds.with(|state| {
            let rebuild = state.rebuilds.get_mut(&top.zap)?;
            let is_active = rebuild.phys.phase == RebuildPhase::Active;
            if rebuild.serial != job.rebuild.serial || !is_active {
                return None;
            }
            let (phys, pass) = (&mut rebuild.phys, &mut rebuild.pass);
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            phys.last_offset = phys.last_offset.max(outcome.next_bytes);
            add(&mut phys.scanned_bytes, outcome.scanned_bytes);
            add(&mut phys.issued_bytes, outcome.issued_bytes);
            add(&mut phys.rebuilt_bytes, outcome.rebuilt_bytes);
            add(&mut phys.scan_time_ms, outcome.time_ms);
            add(&mut phys.errors, outcome.errors);
            add(&mut pass.scanned_bytes, outcome.scanned_bytes);
            add(&mut pass.issued_bytes, outcome.issued_bytes);
            Some(*phys)
        });
        let Some(phys) = phys else { return Ok(()) };
        self.store_rebuild(top.zap, &phys)?;
        match () {
            () if top.targets.is_empty() || outcome.has_no_source => self.cancel_rebuild(&top),
            () if outcome.is_at_end => self.finish_rebuild(&top, &phys),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_ranges_and_small_gaps() {
        const K: u64 = 1 << 10;
        const M: u64 = 1 << 20;
        let one = |range: &Range<u64>| chunks_of(std::slice::from_ref(range));
        assert!(chunks_of(&[]).is_empty());
        let joined = chunks_of(&[0..K, 8 * K..9 * K]);
        assert_eq!(joined, std::slice::from_ref(&(0..9 * K)));
        assert_eq!(chunks_of(&[0..K, 18 * K..19 * K]), [0..K, 18 * K..19 * K]);
        let long = one(&(K..2 * M + 3 * K));
        assert_eq!(long, [K..M + K, M + K..2 * M + K, 2 * M + K..2 * M + 3 * K]);
        // A chunk that is full is not extended.
        assert_eq!(
            chunks_of(&[0..M, M + K..M + 2 * K]),
            [0..M, M + K..M + 2 * K]
        );
        let split = chunks_of(&[0..M - K, M - K + 512..M + K]);
        assert_eq!(split, [0..M, M..M + K]);
    }
}
