//! A leaf's device for whoever writes past the blocks: labels and uberblocks.
//!
//! Its flush makes everything durable that the leaf was given, and keeps the promise of [`crate::BlockStore::flush`]: an error
//! that anybody was told of since a write began is an error of that write, and the next flush writes it again.

use crate::Topology;
use crate::topology::LeafCounters;
use crate::unflushed::{Content, Ended, FlushFailure};
use crate::waits::{IoClass, IoClock, time_write};
use millpond_device::{Device, DeviceError};
use millpond_env::sync::Arc;
use millpond_vdev::LeafId;
use std::iter;

/// Writes and flushes count as the leaf's; reads, which only those who open pools make, do not.
#[derive(Debug)]
struct LeafDevice {
    device: Arc<dyn Device>,
    counters: Arc<LeafCounters>,
    clock: IoClock,
}

impl Topology {
    /// The device of a leaf, for labels and uberblocks: what is written to it counts as the leaf's, and as waited for.
    /// `None` if the leaf is absent.
    #[must_use]
    pub fn leaf_device(&self, leaf: LeafId) -> Option<Arc<dyn Device>> {
        let (device, counters) = self.writable_leaf(leaf)?;
        Some(Arc::new(LeafDevice {
            device: Arc::clone(device),
            counters: Arc::clone(counters),
            clock: self.clock.clone(),
        }))
    }
}

impl Device for LeafDevice {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (length, class) = (bytes.len() as u64, IoClass::SyncWrite);
        let range = offset_bytes..offset_bytes.saturating_add(length);
        let begun = (self.counters.unflushed()).begin(&self.device, iter::once(range.clone()));
        let write = || self.device.write(offset_bytes, bytes);
        let outcome = time_write(&self.clock, &self.counters, class, length, write);
        self.counters
            .count_writes(1, length, u64::from(outcome.is_err()));
        let written = outcome.is_ok().then(|| Ended {
            range,
            txg: None,
            content: Content::Own(bytes.into()),
        });
        begun.end(written.into_iter(), outcome.is_err());
        outcome
    }
    fn flush(&self) -> Result<(), DeviceError> {
        let outcome = self
            .counters
            .unflushed()
            .flush(&self.device, &self.counters);
        match outcome.map_err(FlushFailure::into_error) {
            Ok(()) | Err(None) => Ok(()),
            Err(Some(error)) => Err(error),
        }
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.device.discard(offset_bytes, length_bytes)
    }
}
