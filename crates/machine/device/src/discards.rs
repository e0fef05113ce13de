//! Discards of block devices and files.

use rustix::fd::AsFd;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// What a device can discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiscardSupport {
    /// Whether a discard gives space back.
    pub plain: bool,
    /// Whether the device can erase a range with all copies of it.
    pub secure: bool,
}

/// `BLKDISCARD`.
const DISCARD: Opcode = opcode::none(0x12, 119);
/// `BLKSECDISCARD`.
const SECURE_DISCARD: Opcode = opcode::none(0x12, 125);

/// Discards a range of a block device, given by offset and length in bytes.
pub(crate) fn discard_block(
    device: impl AsFd,
    range: [u64; 2],
    is_secure: bool,
) -> Result<(), Errno> {
    // SAFETY: both requests only read two 64-bit numbers.
    unsafe {
        match is_secure {
            false => ioctl(device, Setter::<DISCARD, [u64; 2]>::new(range)),
            true => ioctl(device, Setter::<SECURE_DISCARD, [u64; 2]>::new(range)),
        }
    }
}

/// What a block device that is open for writing can discard. Discards nothing.
pub(crate) fn block_support(device: impl AsFd) -> DiscardSupport {
    // The kernel asks first whether the device can, and then refuses a range that is not of whole sectors.
    let odd = [1, 1];
    let can = |is_secure| discard_block(&device, odd, is_secure) == Err(Errno::INVAL);
    DiscardSupport {
        plain: can(false),
        secure: can(true),
    }
}

/// Punches a hole into a regular file.
pub(crate) fn punch(file: impl AsFd, offset_bytes: u64, length_bytes: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, offset_bytes, length_bytes)
}

/// Whether the file system of a file of this size knows holes. Behind its end there is nothing to lose.
pub(crate) fn file_support(file: impl AsFd, size_bytes: u64) -> DiscardSupport {
    let tried = punch(file, size_bytes, 4096);
    DiscardSupport {
        plain: !is_unsupported(tried),
        secure: false,
    }
}

/// Whether the system refused because it cannot do this at all.
pub(crate) fn is_unsupported(outcome: Result<(), Errno>) -> bool {
    matches!(outcome, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_numbers_are_met() {
        assert_eq!((DISCARD, SECURE_DISCARD), (0x1277, 0x127d));
    }

    #[test]
    fn what_is_no_block_device_cannot_be_discarded_as_one() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert_eq!(block_support(&file), DiscardSupport::default());
        assert!(is_unsupported(discard_block(&file, [0, 4096], false)));
    }
}
