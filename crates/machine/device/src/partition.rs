//! A byte range of another device, as a device.

use crate::batch::Located;
use crate::{Device, DeviceError, DiscardSupport, ReadRequest, Unwatched, Watch, WriteRequest};
use std::sync::Arc;

/// A byte range of another device: a partition of a whole-disk image, for instance.
#[derive(Debug, Clone)]
pub struct PartitionDevice {
    whole: Arc<dyn Device>,
    start_bytes: u64,
    length_bytes: u64,
}

impl PartitionDevice {
    /// The range of `length_bytes` bytes from `start_bytes` of `whole`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] if the range exceeds `whole`.
    pub fn new(
        whole: Arc<dyn Device>,
        start_bytes: u64,
        length_bytes: u64,
    ) -> Result<Self, DeviceError> {
        DeviceError::check_range(start_bytes, length_bytes, whole.size_bytes())?;
        Ok(Self {
            whole,
            start_bytes,
            length_bytes,
        })
    }
    /// Its offset on the whole device, in bytes.
    #[must_use]
    pub fn start_bytes(&self) -> u64 {
        self.start_bytes
    }
    /// The offset on the whole device of a request in this range.
    fn translate(&self, offset_bytes: u64, length_bytes: u64) -> Result<u64, DeviceError> {
        DeviceError::check_range(offset_bytes, length_bytes, self.length_bytes)?;
        Ok(self.start_bytes.saturating_add(offset_bytes))
    }
    /// Passes the requests in this range to `serve`, at their offsets on the whole device. Requests outside
    /// of the range must not reach the whole device, where they would succeed.
    fn translated(
        &self,
        requests: &mut [WriteRequest<'_>],
        serve: impl FnOnce(&mut [WriteRequest<'_>]),
    ) {
        let mut inside: Vec<&mut WriteRequest<'_>> = Vec::with_capacity(requests.len());
        let mut moved: Vec<WriteRequest<'_>> = Vec::with_capacity(requests.len());
        for request in requests {
            match self.translate(request.offset_bytes, request.bytes.len() as u64) {
                Ok(offset_bytes) => {
                    moved.push(WriteRequest::new(offset_bytes, request.bytes));
                    inside.push(request);
                }
                Err(error) => request.outcome = Err(error),
            }
        }
        serve(&mut moved);
        for (request, moved) in inside.into_iter().zip(moved) {
            request.outcome = moved.outcome;
        }
    }
}

impl Device for PartitionDevice {
    fn size_bytes(&self) -> u64 {
        self.length_bytes
    }
    fn sector_bytes(&self) -> u32 {
        self.whole.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let offset_bytes = self.translate(offset_bytes, buffer.len() as u64)?;
        self.whole.read(offset_bytes, buffer)
    }
    fn read_into(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
        memory: Vec<u8>,
    ) -> Result<Vec<u8>, DeviceError> {
        let offset_bytes = self.translate(offset_bytes, length_bytes as u64)?;
        self.whole.read_into(offset_bytes, length_bytes, memory)
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        // Requests outside of this range must not reach the whole device, where they would succeed.
        let inside: Vec<bool> = requests
            .iter_mut()
            .map(|request| {
                match self.translate(request.offset_bytes, request.buffer.len() as u64) {
                    Ok(offset_bytes) => {
                        request.offset_bytes = offset_bytes;
                        true
                    }
                    Err(error) => {
                        request.outcome = Err(error);
                        false
                    }
                }
            })
            .collect();
        if inside.iter().all(|inside| *inside) {
            self.whole.read_many(requests);
        } else {
            for (request, inside) in requests.iter_mut().zip(&inside) {
                if *inside {
                    request.outcome = self.whole.read(request.offset_bytes, request.buffer);
                }
            }
        }
        for (request, inside) in requests.iter_mut().zip(inside) {
            if inside {
                request.offset_bytes = request.offset_bytes.saturating_sub(self.start_bytes);
            }
        }
    }
    fn locate(&self, offset_bytes: u64, length_bytes: u64) -> Option<Located<'_>> {
        let offset_bytes = self.translate(offset_bytes, length_bytes).ok()?;
        self.whole.locate(offset_bytes, length_bytes)
    }
    fn reads_at_once(&self) -> bool {
        self.whole.reads_at_once()
    }
    fn writes_wait_for_device(&self) -> bool {
        self.whole.writes_wait_for_device()
    }
    fn writes_at_once(&self) -> usize {
        self.whole.writes_at_once()
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let offset_bytes = self.translate(offset_bytes, bytes.len() as u64)?;
        self.whole.write(offset_bytes, bytes)
    }
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.write_many_watched(requests, &Unwatched);
    }
    fn write_many_watched(&self, requests: &mut [WriteRequest<'_>], watch: &dyn Watch) {
        let all = requests.len();
        self.translated(requests, |moved| {
            // If some requests were left out, the indices of the others change.
            if moved.len() == all {
                self.whole.write_many_watched(moved, watch);
            } else {
                watch.begun(0..all);
                self.whole.write_many(moved);
                watch.ended(0..all);
            }
        });
    }
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        self.translated(requests, |moved| self.whole.write_durable(moved));
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.whole.flush()
    }
    fn writes_through(&self) -> bool {
        self.whole.writes_through()
    }
    fn forget_cached(&self) {
        self.whole.forget_cached();
    }
    fn write_back_errors(&self) -> u64 {
        self.whole.write_back_errors()
    }
    fn is_deleted(&self) -> bool {
        self.whole.is_deleted()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let offset_bytes = self.translate(offset_bytes, length_bytes)?;
        self.whole.discard(offset_bytes, length_bytes)
    }
    fn discard_support(&self) -> Option<DiscardSupport> {
        self.whole.discard_support()
    }
    fn discard_securely(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        let offset_bytes = self.translate(offset_bytes, length_bytes)?;
        self.whole.discard_securely(offset_bytes, length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn counting() -> Arc<dyn Device> {
        Arc::new(MemoryDevice::new((0..=255).collect()))
    }

    #[test]
    fn a_partition_sees_its_own_bytes_only() {
        let part = PartitionDevice::new(counting(), 100, 10).unwrap();
        let mut buffer = [0; 4];
        part.read(6, &mut buffer).unwrap();
        assert_eq!(buffer, [106, 107, 108, 109]);
        assert_eq!(part.read_vec(6, 4).unwrap(), buffer);
        assert!(part.read_vec(7, 4).is_err());
        assert!(matches!(
            part.read(7, &mut buffer),
            Err(DeviceError::OutOfRange { size_bytes: 10, .. })
        ));
        assert!(matches!(
            part.write(7, &buffer),
            Err(DeviceError::OutOfRange { .. })
        ));
        assert!(matches!(
            part.discard(0, 11),
            Err(DeviceError::OutOfRange { .. })
        ));
        part.write(0, b"x").unwrap();
        let mut whole = [0; 1];
        part.whole.read(100, &mut whole).unwrap();
        assert_eq!(&whole, b"x");
    }

    #[test]
    fn each_request_of_a_batch_has_its_own_outcome() {
        let part = PartitionDevice::new(counting(), 100, 10).unwrap();
        let mut buffers = [[0u8; 2]; 3];
        let mut requests: Vec<_> = buffers
            .iter_mut()
            .zip([0, 9, 4])
            .map(|(buffer, offset_bytes)| ReadRequest {
                offset_bytes,
                buffer,
                outcome: Err(DeviceError::ReadOnly),
            })
            .collect();
        part.read_many(&mut requests);
        assert_eq!(
            requests
                .iter()
                .map(|r| r.outcome.is_ok())
                .collect::<Vec<_>>(),
            [true, false, true]
        );
        assert_eq!(
            requests.iter().map(|r| r.offset_bytes).collect::<Vec<_>>(),
            [0, 9, 4]
        );
        assert_eq!(buffers, [[100, 101], [0, 0], [104, 105]]);
    }

    #[test]
    fn only_writes_inside_the_partition_reach_the_device() {
        let part = PartitionDevice::new(counting(), 100, 10).unwrap();
        let mut requests = [
            WriteRequest::new(0, b"ab"),
            WriteRequest::new(9, b"cd"),
            WriteRequest::new(4, b"ef"),
        ];
        part.write_many(&mut requests);
        assert_eq!(requests[0].outcome, Ok(()));
        assert!(matches!(
            requests[1].outcome,
            Err(DeviceError::OutOfRange { .. })
        ));
        assert_eq!(requests[2].outcome, Ok(()));
        let whole = part.whole.read_vec(99, 12).unwrap();
        let left_alone = [99, 102, 103, 106, 107, 108, 109, 110];
        assert_eq!(whole[1..3], *b"ab");
        assert_eq!(whole[5..7], *b"ef");
        assert_eq!(
            [&whole[..1], &whole[3..5], &whole[7..]].concat(),
            left_alone
        );
    }

    #[test]
    fn a_partition_beyond_the_device_is_refused() {
        assert!(PartitionDevice::new(counting(), 250, 7).is_err());
        assert!(PartitionDevice::new(counting(), u64::MAX, 2).is_err());
    }
}
