//! Writes that are durable when they complete.

use super::direct::{DirectOpening, copy_of};
use super::{FileDevice, adjacent, identity_of};
use crate::write_back::WriteBackGate;
use crate::{Device, DeviceError, WriteRequest, fail_all};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A second open file description, for durable writes only.
///
/// The system reports a lost write once per open file description. With separate ones, flushes and durable
/// writes neither consume each other's errors nor wait for each other.
#[derive(Debug)]
pub(super) struct DurableOpening {
    file: File,
    /// `None` if all requests go through the page cache.
    direct: Option<DirectOpening>,
    gate: WriteBackGate,
}

impl DurableOpening {
    /// `None` if the file cannot be opened a second time.
    fn of(device: &FileDevice) -> Option<Self> {
        let own_name = format!("/proc/self/fd/{}", device.file.as_raw_fd());
        let file = std::fs::OpenOptions::new().write(true).open(own_name);
        let file = file.ok()?;
        let is_same = identity_of(&file.metadata().ok()?) == device.identity;
        let is_direct = device.is_direct();
        let direct = is_direct.then(|| DirectOpening::of(&device.file, device.identity, true));
        is_same.then(|| Self {
            file,
            direct: direct.flatten(),
            gate: WriteBackGate::default(),
        })
    }

    /// Writes adjacent buffers and makes them durable in the same call.
    fn write(&self, offset_bytes: u64, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let length_bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        if let Some(direct) = &self.direct
            && direct.serves(offset_bytes, length_bytes)
        {
            let copy = copy_of(slices.iter().map(|slice| &**slice));
            match self.write_to(direct.fd(), offset_bytes, &[IoSlice::new(copy.bytes())]) {
                // The page cache takes what the device does not.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                outcome => return outcome,
            }
        }
        self.write_to(self.file.as_fd(), offset_bytes, slices)
    }

    fn write_to(
        &self,
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        slices: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let mut count = 0;
        self.gate.pass(|| {
            let flags = ReadWriteFlags::DSYNC;
            count = match rustix::io::pwritev2(file, slices, offset_bytes, flags) {
                // The system or file system does not support the flag.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    let count = rustix::io::pwritev(file, slices, offset_bytes)?;
                    rustix::fs::fdatasync(file)?;
                    count
                }
                outcome => outcome?,
            };
            Ok(())
        })?;
        Ok(count)
    }

    fn write_all(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut left) = (offset_bytes, bytes);
        while !left.is_empty() {
            match self.write(at, &[IoSlice::new(left)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    at = at.saturating_add(count as u64);
                    left = left.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl FileDevice {
    /// The number of lost-write errors that the system reported to either opening.
    pub(super) fn lost_writes(&self) -> u64 {
        let durable = self.durable.get().and_then(Option::as_ref);
        let durable = durable.map_or(0, |opening| opening.gate.errors());
        self.flushes.errors().saturating_add(durable)
    }

    pub(super) fn write_now_durable(&self, requests: &mut [WriteRequest<'_>]) {
        if let Err(error) = self.check_writable() {
            for request in requests {
                request.outcome = Err(error.clone());
            }
            return;
        }
        let opening = self.durable.get_or_init(|| DurableOpening::of(self));
        let Some(opening) = opening else {
            self.write_many(requests);
            if let Err(error) = self.flush() {
                fail_all(requests, &error);
            }
            return;
        };
        let mut requests = requests;
        while !requests.is_empty() {
            let count = adjacent(requests.iter().map(|r| (r.offset_bytes, r.bytes.len())));
            let (run, rest) = requests.split_at_mut(count);
            if run.len() == 1 || !self.write_durable_run(opening, run) {
                for request in run {
                    request.outcome = self.write_one_durable(opening, request);
                }
            }
            requests = rest;
        }
    }

    /// Writes adjacent requests with one call. Returns `false` if the write was not complete.
    fn write_durable_run(&self, opening: &DurableOpening, run: &mut [WriteRequest<'_>]) -> bool {
        let Some(offset_bytes) = run.first().map(|first| first.offset_bytes) else {
            return true;
        };
        let wanted: u64 = run.iter().map(|request| request.bytes.len() as u64).sum();
        if self.check(offset_bytes, wanted).is_err() {
            return false;
        }
        let slices: Vec<_> = run
            .iter()
            .map(|request| IoSlice::new(request.bytes))
            .collect();
        match opening.write(offset_bytes, &slices) {
            Ok(count) if count as u64 == wanted => {
                for request in run {
                    request.outcome = Ok(());
                }
                true
            }
            _ => false,
        }
    }

    fn write_one_durable(
        &self,
        opening: &DurableOpening,
        request: &WriteRequest<'_>,
    ) -> Result<(), DeviceError> {
        let (offset_bytes, length_bytes) = (request.offset_bytes, request.bytes.len() as u64);
        self.check(offset_bytes, length_bytes)?;
        opening
            .write_all(offset_bytes, request.bytes)
            .map_err(|error| DeviceError::io("write", offset_bytes, length_bytes, &error))
    }
}
