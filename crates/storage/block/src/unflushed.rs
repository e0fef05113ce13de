//! Writes of one leaf that no flush covers yet, with their contents.
//!
//! A device that fails a flush may have lost anything written since the last successful one, and reports
//! the error once. Afterwards Linux marks the pages clean, reads find the new bytes in memory, and the next
//! flush succeeds. So contents are kept until a flush covers them. Each write records the leaf's error
//! count from when it began. A flush covers only writes of the current error count, and older ones are
//! rewritten before it.
//!
//! Every flush (of a txg, labels or an intent log) gives the same guarantee. An error reported to one of
//! them puts the unflushed writes of the others in doubt.
//!
//! Locks: `order` is held shared by writers, across the write, and exclusively while contents are
//! rewritten, so that old bytes never overtake new ones. `state` is held for a few look-ups and insertions.

use crate::io_stats::IoClass;
use crate::leaf_counters::LeafCounters;
use crate::write::Batch;
use millpond_device::{Device, DeviceError, Unwatched, WriteRequest};
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use millpond_ondisk::Txg;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Approximately how many bytes one call rewrites.
const REWRITE_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    order: RwLock<(), rank::LeafWrites>,
    state: Mutex<State, rank::LeafUnflushed>,
    /// How many flushes failed whose writes the leaf gave up.
    losses: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// By first byte on the device; ranges do not overlap.
    writes: BTreeMap<u64, Unflushed>,
    /// The number of completed writes.
    ended: u64,
    /// The total size of [`Unflushed::content`], including parts that were overwritten since.
    retained_bytes: u64,
    /// Errors found here, and changes of the device.
    errors: u64,
    /// The address of the device object. A new device starts its error count anew.
    device: usize,
}

/// How many errors a leaf has reported: those found here, and those reported to other users of the same
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Generation {
    here: u64,
    device: u64,
}

#[derive(Debug, Clone)]
struct Unflushed {
    end_bytes: u64,
    /// The value of [`State::ended`] when the write completed.
    number: u64,
    generation: Generation,
    /// For blocks: the txg that the leaf misses if the content is lost.
    txg: Option<Txg>,
    content: Content,
    /// How many bytes at the front of the content were overwritten since.
    skip_bytes: u64,
}

/// Bytes that were written.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// A write of a write plan.
    Planned {
        batch: Arc<Batch>,
        extent: usize,
        write: usize,
    },
    /// Any other write.
    Own(Arc<[u8]>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Planned {
                batch,
                extent,
                write,
            } => batch.bytes(*extent, *write),
            Self::Own(bytes) => bytes,
        }
    }
}

/// Writes in flight.
pub(crate) struct Begun<'a> {
    writes: &'a UnflushedWrites,
    device: &'a Arc<dyn Device>,
    generation: Generation,
    _order: RwLockReadGuard<'a, ()>,
}

/// A completed write, for [`Begun::end`].
pub(crate) struct Ended {
    pub(crate) range: Range<u64>,
    pub(crate) txg: Option<Txg>,
    pub(crate) content: Content,
}

/// A flush that did not make everything durable.
#[derive(Debug)]
pub(crate) struct FlushFailure {
    /// The device's error; `None` if there is no device.
    error: Option<DeviceError>,
    /// Writes with smaller numbers may be lost.
    before: u64,
}

impl FlushFailure {
    pub(crate) fn reason(&self) -> String {
        let error = self.error.as_ref();
        error.map_or_else(|| "the device is gone".to_owned(), ToString::to_string)
    }
    pub(crate) fn into_error(self) -> Option<DeviceError> {
        self.error
    }
}

impl State {
    fn generation(&mut self, device: &Arc<dyn Device>) -> Generation {
        let place = Arc::as_ptr(device).cast::<()>() as usize;
        if self.device != place {
            self.device = place;
            self.errors = self.errors.saturating_add(1);
        }
        Generation {
            here: self.errors,
            device: device.write_back_errors(),
        }
    }

    /// Drops what lay in a range that is overwritten.
    fn cut_out(&mut self, range: &Range<u64>) {
        let before = self.writes.range(..range.start).next_back();
        let before = before.filter(|(_, write)| write.end_bytes > range.start);
        let first = before.map_or(range.start, |(start, _)| *start);
        let hit: Vec<u64> = (self.writes.range(first..range.end))
            .map(|(start, _)| *start)
            .collect();
        for start in hit {
            let Some(write) = self.writes.remove(&start) else {
                continue;
            };
            if write.end_bytes > range.end {
                let skipped = range.end.saturating_sub(start);
                let tail = Unflushed {
                    skip_bytes: write.skip_bytes.saturating_add(skipped),
                    ..write.clone()
                };
                self.writes.insert(range.end, tail);
            }
            if start < range.start {
                let end_bytes = range.start;
                self.writes.insert(start, Unflushed { end_bytes, ..write });
            }
        }
    }

    /// Drops the writes for which `is_over` is true.
    fn drop_those(&mut self, is_over: impl Fn(&Unflushed) -> bool) {
        self.writes.retain(|_, write| !is_over(write));
        let sizes =
            (self.writes.iter()).map(|(start, write)| write.end_bytes.saturating_sub(*start));
        self.retained_bytes = sizes.sum();
    }
}

impl Unflushed {
    fn bytes(&self, start: u64) -> &[u8] {
        let skip = usize::try_from(self.skip_bytes).unwrap_or(usize::MAX);
        let length = usize::try_from(self.end_bytes.saturating_sub(start)).unwrap_or(usize::MAX);
        let bytes = self.content.bytes().get(skip..).unwrap_or_default();
        bytes.get(..length).unwrap_or(bytes)
    }
}

impl UnflushedWrites {
    /// Begins writes of these ranges. What lay there need not be kept any longer.
    pub(crate) fn begin<'a>(
        &'a self,
        device: &'a Arc<dyn Device>,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Begun<'a> {
        let order = self.order.read();
        let mut state = self.state.lock();
        for range in ranges {
            state.cut_out(&range);
        }
        let generation = state.generation(device);
        drop(state);
        Begun {
            writes: self,
            device,
            generation,
            _order: order,
        }
    }

    /// How many flushes failed whose writes the leaf gave up. A write that was in flight when this grew may be lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// The leaf is about to give up what it had to make durable.
    pub(crate) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Treats all unflushed writes as lost: the next flush rewrites them first.
    pub(crate) fn distrust(&self) {
        let mut state = self.state.lock();
        state.errors = state.errors.saturating_add(1);
    }

    /// Whether a flush would have nothing to make durable.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().writes.is_empty()
    }

    /// Memory that the contents take, in bytes, approximately.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.state.lock().retained_bytes
    }

    /// Makes every write durable that completed before the call.
    ///
    /// # Errors
    /// The device's error. All contents are kept then, and the next flush rewrites them.
    pub(crate) fn flush(
        &self,
        device: &Arc<dyn Device>,
        counters: &LeafCounters,
    ) -> Result<(), FlushFailure> {
        let (generation, before) = {
            let mut state = self.state.lock();
            (state.generation(device), state.ended)
        };
        let failed = |error| FlushFailure {
            error: Some(error),
            before,
        };
        self.write_again(device, counters, generation)
            .map_err(failed)?;
        let outcome = device.flush();
        counters.count_flush(outcome.is_ok());
        let mut state = self.state.lock();
        if let Err(error) = outcome {
            state.errors = state.errors.saturating_add(1);
            return Err(failed(error));
        }
        if state.generation(device) != generation {
            return Err(failed(reported_elsewhere("flush")));
        }
        state.drop_those(|write| write.number < before && write.generation == generation);
        Ok(())
    }

    /// The failed flush of a leaf whose device is gone.
    pub(crate) fn fail_flush(&self) -> FlushFailure {
        let mut state = self.state.lock();
        state.errors = state.errors.saturating_add(1);
        FlushFailure {
            error: None,
            before: state.ended,
        }
    }

    /// Drops the writes that a failed flush may have lost. Returns the txgs of which the leaf now misses
    /// blocks.
    pub(crate) fn give_up(&self, failure: &FlushFailure) -> BTreeSet<Txg> {
        let mut state = self.state.lock();
        let lost = |write: &Unflushed| write.number < failure.before;
        let txgs = state.writes.values().filter(|write| lost(write));
        let txgs = txgs.filter_map(|write| write.txg).collect();
        state.drop_those(lost);
        txgs
    }

    /// Rewrites the contents of older generations.
    fn write_again(
        &self,
        device: &Arc<dyn Device>,
        counters: &LeafCounters,
        generation: Generation,
    ) -> Result<(), DeviceError> {
        let is_old = |write: &Unflushed| write.generation != generation;
        if !self.state.lock().writes.values().any(is_old) {
            return Ok(());
        }
        let _order = self.order.write();
        if self.state.lock().generation(device) != generation {
            return Err(reported_elsewhere("flush"));
        }
        let mut from = 0;
        loop {
            let mut some: Vec<(u64, Unflushed)> = vec![];
            let mut bytes = 0;
            {
                let state = self.state.lock();
                for (start, write) in state.writes.range(from..) {
                    if bytes >= REWRITE_BYTES {
                        break;
                    }
                    if is_old(write) {
                        bytes = bytes.saturating_add(write.bytes(*start).len());
                        some.push((*start, write.clone()));
                    }
                    from = start.saturating_add(1);
                }
            }
            if some.is_empty() {
                return Ok(());
            }
            mark::hit("unflushed-written-again");
            self.write_some_again(device, counters, generation, &some)?;
        }
    }

    fn write_some_again(
        &self,
        device: &Arc<dyn Device>,
        counters: &LeafCounters,
        generation: Generation,
        some: &[(u64, Unflushed)],
    ) -> Result<(), DeviceError> {
        let mut requests: Vec<WriteRequest<'_>> = (some.iter())
            .map(|(start, write)| WriteRequest::new(*start, write.bytes(*start)))
            .collect();
        let queue = counters.queue();
        queue.write(
            device.as_ref(),
            IoClass::AsyncWrite,
            &mut requests,
            &Unwatched,
        );
        for request in &requests {
            let length = request.bytes.len() as u64;
            counters.count_write(request.offset_bytes, length, request.outcome.is_err());
        }
        let failure = requests
            .iter()
            .find_map(|request| request.outcome.as_ref().err());
        let mut state = self.state.lock();
        if let Some(error) = failure {
            state.errors = state.errors.saturating_add(1);
            return Err(error.clone());
        }
        for (start, written) in some {
            let write = state.writes.get_mut(start);
            if let Some(write) = write.filter(|write| write.number == written.number) {
                write.generation = generation;
            }
        }
        Ok(())
    }
}

impl Begun<'_> {
    /// Completes the writes and keeps their contents; none may be durable yet. `has_failed`: some write
    /// failed.
    pub(crate) fn end(self, written: impl Iterator<Item = Ended>, has_failed: bool) {
        let mut state = self.writes.state.lock();
        for Ended {
            range,
            txg,
            content,
        } in written
        {
            state.cut_out(&range);
            let number = state.ended;
            state.ended = number.saturating_add(1);
            let size = range.end.saturating_sub(range.start);
            state.retained_bytes = state.retained_bytes.saturating_add(size);
            let write = Unflushed {
                end_bytes: range.end,
                number,
                generation: self.generation,
                txg,
                content,
                skip_bytes: 0,
            };
            state.writes.insert(range.start, write);
        }
        state.errors = state.errors.saturating_add(u64::from(has_failed));
    }

    /// Completes writes of a leaf that went out of use, and keeps none of their contents.
    pub(crate) fn forget(self) {
        let mut state = self.writes.state.lock();
        state.errors = state.errors.saturating_add(1);
    }

    /// Completes durable writes.
    ///
    /// # Errors
    /// If another caller meanwhile got an error that may concern these writes.
    pub(crate) fn end_durable(self, has_failed: bool) -> Result<(), DeviceError> {
        let mut state = self.writes.state.lock();
        let is_sound = state.generation(self.device) == self.generation;
        state.errors = state.errors.saturating_add(u64::from(has_failed));
        match is_sound || has_failed {
            true => Ok(()),
            false => Err(reported_elsewhere("write")),
        }
    }
}

fn reported_elsewhere(action: &'static str) -> DeviceError {
    DeviceError::Io {
        action,
        offset_bytes: 0,
        length_bytes: 0,
        errno: 0,
        message: "the device reported lost writes to another request".to_owned(),
    }
}
