//! A cache device whose requests have a deadline: readers must not wait for a device that the pool does not need.

use crate::io_stats::IoClock;
use crate::leaf_requests::LeafRequests;
use crate::requests::NoAnswer;
use millpond_device::{Device, DeviceError};
use millpond_env::sync::Arc;
use std::time::Duration;

/// A read that takes longer than this is no use.
const READ_TIME_MAX: Duration = Duration::from_secs(2);

/// Makes requests in threads of its own, unless requests of the pool have no deadline.
#[derive(Debug)]
pub(super) struct TimedDevice {
    device: Arc<dyn Device>,
    requests: LeafRequests,
    clock: IoClock,
    deadline: Option<Duration>,
}

impl TimedDevice {
    pub(super) fn new(device: Arc<dyn Device>, clock: IoClock, deadline: Option<Duration>) -> Self {
        Self {
            device,
            requests: LeafRequests::default(),
            clock,
            deadline,
        }
    }

    fn request<R: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&dyn Device) -> R + Send + 'static,
    ) -> Result<R, NoAnswer> {
        let Some(deadline) = self.deadline else {
            return Ok(work(self.device.as_ref()));
        };
        let device = Arc::clone(&self.device);
        let work = move || work(device.as_ref());
        (self.requests).try_request(&self.clock, deadline.min(limit), work)
    }
}

impl Device for TimedDevice {
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
        let bytes = self.read_vec(offset_bytes, buffer.len())?;
        buffer.copy_from_slice(&bytes);
        Ok(())
    }
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        memory: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        self.request(READ_TIME_MAX, move |device| {
            device.read_into(offset_bytes, length_bytes, memory)
        })?
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let bytes = bytes.to_vec();
        self.request(Duration::MAX, move |device| {
            device.write(offset_bytes, &bytes)
        })?
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.request(Duration::MAX, |device| device.flush())?
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.request(Duration::MAX, move |device| {
            device.discard(offset_bytes, length_bytes)
        })?
    }
}
