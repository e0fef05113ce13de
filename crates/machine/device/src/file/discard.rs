//! Discards: holes in files, `BLKDISCARD` and `BLKSECDISCARD` of block devices.

use super::FileDevice;
use crate::{DeviceError, DiscardSupport, discards};
use rustix::io::Errno;

impl FileDevice {
    /// What the device can discard; asked once.
    pub(super) fn discards(&self) -> Option<DiscardSupport> {
        let ask = || match self.is_block_device {
            true => discards::block_support(&self.file),
            false => discards::file_support(&self.file, crate::Device::size_bytes(self)),
        };
        (self.is_writable).then(|| *self.discards.get_or_init(ask))
    }

    /// Succeeds without effect if the device cannot discard.
    pub(super) fn discard_if_it_can(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        match self.discard_as(offset, length, false)? {
            outcome if discards::is_unsupported(outcome) => Ok(()),
            outcome => named(offset, length, outcome),
        }
    }

    pub(super) fn erase(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let outcome = self.discard_as(offset, length, true)?;
        named(offset, length, outcome)
    }

    /// The outer error: not tried.
    fn discard_as(
        &self,
        offset: u64,
        length: u64,
        is_secure: bool,
    ) -> Result<Result<(), Errno>, DeviceError> {
        self.check_writable()?;
        self.check(offset, length)?;
        Ok(match (length, self.is_block_device, is_secure) {
            (0, ..) => Ok(()),
            (_, true, _) => discards::discard_block(&self.file, [offset, length], is_secure),
            (_, false, false) => discards::punch(&self.file, offset, length),
            (_, false, true) => Err(Errno::OPNOTSUPP),
        })
    }
}

fn named(offset: u64, length: u64, outcome: Result<(), Errno>) -> Result<(), DeviceError> {
    outcome.map_err(|errno| DeviceError::io("discard", offset, length, &errno.into()))
}
