//! Projects of files in mounted file systems; the kernel forwards the requests to the file system.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// The project attributes of a file (`struct fsxattr` of the kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FileProject {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    cow_extent_bytes: u32,
    padding: [u8; 8],
}

/// Files created in the directory inherit its project.
const INHERIT: u32 = 0x200;

impl FileProject {
    /// The project id; 0 for none.
    #[must_use]
    pub fn project(&self) -> u32 {
        self.project
    }

    /// Whether files created in it inherit its project.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.flags & INHERIT != 0
    }

    /// A copy with another project id.
    #[must_use]
    pub fn with_project(self, project: u32) -> Self {
        Self { project, ..self }
    }

    /// A copy with inheritance on or off.
    #[must_use]
    pub fn with_inheritance(self, is_inherited: bool) -> Self {
        let flags = match is_inherited {
            true => self.flags | INHERIT,
            false => self.flags & !INHERIT,
        };
        Self { flags, ..self }
    }

    /// Reads the attributes of an open file or directory.
    ///
    /// # Errors
    /// The kernel's error; `ENOTTY` or `EOPNOTSUPP` if the file system does not support projects.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        // SAFETY: FS_IOC_FSGETXATTR fills exactly one `struct fsxattr`. `FileProject` has its layout: 28
        // bytes without padding, valid for any bit pattern.
        unsafe {
            let ask = Getter::<{ opcode::read::<FileProject>(b'X', 31) }, FileProject>::new();
            ioctl(file, ask)
        }
    }

    /// Sets the attributes of an open file or directory.
    ///
    /// # Errors
    /// As [`FileProject::of`]; `EPERM` if the caller is not the owner.
    pub fn set_on(self, file: impl AsFd) -> Result<(), Errno> {
        // SAFETY: FS_IOC_FSSETXATTR only reads one `struct fsxattr`.
        unsafe {
            let tell = Setter::<{ opcode::write::<FileProject>(b'X', 32) }, FileProject>::new(self);
            ioctl(file, tell)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_numbers_and_layout_are_met() {
        assert_eq!(size_of::<FileProject>(), 28);
        assert_eq!(opcode::read::<FileProject>(b'X', 31) as u32, 0x801c_581f);
        assert_eq!(opcode::write::<FileProject>(b'X', 32) as u32, 0x401c_5820);
        let set = FileProject::default()
            .with_project(7)
            .with_inheritance(true);
        assert_eq!((set.project(), set.is_inherited()), (7, true));
        assert!(!set.with_inheritance(false).is_inherited());
    }
}
