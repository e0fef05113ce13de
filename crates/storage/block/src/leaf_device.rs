//! A leaf's device for labels and uberblocks, and for free space, which bypass the block layer.
//!
//! Its flush makes all writes of the leaf durable and gives the same guarantee as
//! [`crate::BlockStore::flush`]: an error reported to any caller since a write began is an error of that
//! write, and the next flush rewrites it.

use crate::Topology;
use crate::copy_locks::{CopyLocks, vdev_range};
use crate::io_stats::{IoClass, IoClock};
use crate::io_watch::QueuedWrites;
use crate::leaf_counters::LeafCounters;
use crate::unflushed::{Content, Ended, FlushFailure};
use millpond_device::{Device, DeviceError, DiscardSupport, Watch, WriteRequest};
use millpond_env::sync::Arc;
use millpond_ondisk::VdevId;
use millpond_vdev::LeafId;
use std::ops::Range;

/// Counts writes and flushes as those of the leaf. Reads are not counted; only opening a pool makes them.
#[derive(Debug)]
struct LeafDevice {
    device: Arc<dyn Device>,
    counters: Arc<LeafCounters>,
    clock: IoClock,
    /// The class of its writes.
    class: IoClass,
    copy_locks: Arc<CopyLocks>,
    top: Option<VdevId>,
}

impl Topology {
    /// The device of a leaf, for labels and uberblocks. Its writes count as synchronous writes of the leaf.
    /// `None` if the leaf is absent or out of use.
    #[must_use]
    pub fn leaf_device(&self, leaf: LeafId) -> Option<Arc<dyn Device>> {
        self.device_of_class(leaf, IoClass::SyncWrite)
    }

    /// The device of a leaf, for work on its free space, which waits for everything else. `None` if the leaf is absent or
    /// out of use.
    #[must_use]
    pub fn background_device(&self, leaf: LeafId) -> Option<Arc<dyn Device>> {
        self.device_of_class(leaf, IoClass::AsyncWrite)
    }

    fn device_of_class(&self, leaf: LeafId, class: IoClass) -> Option<Arc<dyn Device>> {
        let (device, counters) = self.writable_leaf(leaf)?;
        Some(Arc::new(LeafDevice {
            device: Arc::clone(device),
            counters: Arc::clone(counters),
            clock: self.clock.clone(),
            class,
            copy_locks: Arc::clone(&self.copy_locks),
            top: self.tree.leaf(leaf).and_then(|node| node.top),
        }))
    }
}

/// A read-only device whose reads have a short deadline.
#[derive(Debug)]
struct TriedDevice {
    topology: Arc<Topology>,
    leaf: LeafId,
    device: Arc<dyn Device>,
}

impl Topology {
    /// The device of a leaf, in use or not, to check what it holds: reads that take too long fail
    /// ([`Topology::try_leaf`]). `None` if the leaf is absent.
    #[must_use]
    pub fn tried_device(self: &Arc<Self>, leaf: LeafId) -> Option<Arc<dyn Device>> {
        let device = self.devices.get(leaf.0 as usize)?.as_ref()?;
        Some(Arc::new(TriedDevice {
            topology: Arc::clone(self),
            leaf,
            device: Arc::clone(device),
        }))
    }
}

impl Device for TriedDevice {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn measure(&self) -> Result<u64, DeviceError> {
        self.device.measure()
    }
    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let (device, length) = (Arc::clone(&self.device), buffer.len());
        let read = move || device.read_vec(offset_bytes, length);
        let bytes = self.topology.try_leaf(self.leaf, read)??;
        buffer.copy_from_slice(&bytes);
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
}

impl Device for LeafDevice {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn measure(&self) -> Result<u64, DeviceError> {
        self.device.measure()
    }
    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut requests = [WriteRequest::new(offset_bytes, bytes)];
        self.write_many(&mut requests);
        let [request] = requests;
        request.outcome
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        let count = requests.len() as u64;
        let length_of = |request: &WriteRequest<'_>| request.bytes.len() as u64;
        let range_of = |request: &WriteRequest<'_>| {
            request.offset_bytes..request.offset_bytes.saturating_add(length_of(request))
        };
        // Labels lie outside of all that is copied.
        let in_vdev = || {
            let ranges = requests.iter().map(range_of);
            (self.top.iter())
                .flat_map(|top| ranges.clone().map(|range| vdev_range(*top, &range)))
                .collect()
        };
        let _guard = self.copy_locks.write(in_vdev);
        let ranges = requests.iter().map(range_of);
        let begun = (self.counters.unflushed()).begin(&self.device, ranges);
        let queued = QueuedWrites::new(&self.clock, &self.counters, self.class, count);
        let each = |range: Range<usize>, each: &mut dyn FnMut(Range<usize>)| {
            range.for_each(|at| each(at..at + 1));
        };
        let lengths: Vec<u64> = requests.iter().map(length_of).collect();
        let length_at = |at: usize| lengths.get(at).copied().unwrap_or(0);
        let watch = queued.watched(&self.clock, &each, &length_at);
        let queue = self.counters.queue();
        queue.write(self.device.as_ref(), self.class, requests, &watch);
        drop(watch);
        let mut has_failed = false;
        for request in &*requests {
            let is_bad = request.outcome.is_err();
            (self.counters).count_write(request.offset_bytes, length_of(request), is_bad);
            has_failed |= is_bad;
        }
        let written = requests.iter().filter(|request| request.outcome.is_ok());
        let written = written.map(|request| Ended {
            range: range_of(request),
            txg: None,
            content: Content::Own(request.bytes.into()),
        });
        match self.counters.status().is_usable() {
            true => begun.end(written, has_failed),
            // The leaf went out of use meanwhile; the writes count for nothing.
            false => begun.forget(),
        }
    }
    fn writes_through(&self) -> bool {
        self.device.writes_through()
    }
    fn flush(&self) -> Result<(), DeviceError> {
        if self.counters.unflushed().is_empty() {
            // The last flush covers every write.
            return Ok(());
        }
        let flush = || (self.counters.unflushed()).flush(&self.device, &self.counters);
        let progress = self.counters.waits().progress();
        let outcome = progress.during(&self.clock, flush);
        match outcome.map_err(FlushFailure::into_error) {
            Ok(()) | Err(None) => Ok(()),
            Err(Some(error)) => Err(error),
        }
    }
    fn discard_support(&self) -> Option<DiscardSupport> {
        self.device.discard_support()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.trim(offset_bytes, length_bytes, false)
    }
    fn discard_securely(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.trim(offset_bytes, length_bytes, true)
    }
}

impl LeafDevice {
    /// Discards in the class of trims. Writes of the range that no flush covers are not kept any longer.
    fn trim(&self, offset: u64, length: u64, is_secure: bool) -> Result<(), DeviceError> {
        let range = offset..offset.saturating_add(length);
        let in_vdev = || {
            let range = self.top.map(|top| vdev_range(top, &range));
            range.into_iter().collect()
        };
        let _guard = self.copy_locks.write(in_vdev);
        let begun = (self.counters.unflushed()).begin(&self.device, std::iter::once(range));
        let queued = QueuedWrites::new(&self.clock, &self.counters, IoClass::Trim, 1);
        let each = |range: Range<usize>, each: &mut dyn FnMut(Range<usize>)| each(range);
        let length_of = |_| length;
        let watch = queued.watched(&self.clock, &each, &length_of);
        let operation = self.counters.queue().enter(IoClass::Trim);
        watch.begun(0..1);
        let outcome = match (self.counters.queue().check_lease(), is_secure) {
            (Err(error), _) => Err(error),
            (Ok(()), false) => self.device.discard(offset, length),
            (Ok(()), true) => self.device.discard_securely(offset, length),
        };
        watch.ended(0..1);
        drop((operation, watch));
        begun.end(std::iter::empty(), false);
        match &outcome {
            Ok(()) => self.counters.count_trim(length, 0),
            Err(_) => self.counters.count_trim(0, 1),
        }
        outcome
    }
}
