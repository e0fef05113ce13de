//! Asks a mounted file system to store the content of a file again; the kernel forwards the request.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

/// A range of a file whose blocks are to be written again with the properties of today (`ZFS_IOC_REWRITE` of OpenZFS 2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RewriteRange {
    /// Where it starts, in bytes.
    pub offset_bytes: u64,
    /// Its length in bytes; 0 reaches to the end of the file.
    pub length_bytes: u64,
    /// [`RewriteRange::KEEPS_BIRTHS`] or 0.
    pub flags: u64,
    /// Reserved; 0.
    pub argument: u64,
}

impl RewriteRange {
    /// The blocks keep their logical births, so that incremental streams leave them out.
    pub const KEEPS_BIRTHS: u64 = 1;
    /// The number of the request.
    pub const REQUEST: u32 = opcode::write::<Self>(0x83, 3) as u32;

    /// Rewrites the range in an open file. Returns when the blocks will be written, not when they are on stable storage.
    ///
    /// # Errors
    /// The kernel's error: `ENOTTY` if the file system does not know the request, `EOPNOTSUPP` if the pool lacks the feature
    /// `physical_rewrite`, `EBADF` if the file may not be written.
    pub fn apply_to(self, file: impl AsFd) -> Result<(), Errno> {
        // SAFETY: the request only reads one structure of this layout: four words.
        unsafe {
            let tell =
                Setter::<{ opcode::write::<RewriteRange>(0x83, 3) }, RewriteRange>::new(self);
            ioctl(file, tell)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RewriteRange;

    #[test]
    fn the_number_and_layout_are_openzfs_s() {
        assert_eq!(size_of::<RewriteRange>(), 32);
        assert_eq!(RewriteRange::REQUEST, 0x4020_8303);
    }
}
