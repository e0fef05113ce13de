//! Projects of files in mounted file systems, which the kernel hands to whoever serves them.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// What a file says of its project (`struct fsxattr` of the kernel).
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

/// What is made in the directory belongs to its project.
const INHERIT: u32 = 0x200;

impl FileProject {
    /// The number of its project; 0 for none.
    #[must_use]
    pub fn project(&self) -> u32 {
        self.project
    }

    /// Whether what is made in it belongs to its project.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.flags & INHERIT != 0
    }

    /// The same with another project.
    #[must_use]
    pub fn with_project(self, project: u32) -> Self {
        Self { project, ..self }
    }

    /// The same with or without handing its project down.
    #[must_use]
    pub fn with_inheritance(self, is_inherited: bool) -> Self {
        let flags = match is_inherited {
            true => self.flags | INHERIT,
            false => self.flags & !INHERIT,
        };
        Self { flags, ..self }
    }

    /// Asks an open file or directory.
    ///
    /// # Errors
    /// The kernel's; `ENOTTY` or `EOPNOTSUPP` where the file system has no projects.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        // SAFETY: FS_IOC_FSGETXATTR fills exactly one `struct fsxattr`, whose layout `FileProject` has: 28 bytes
        // without gaps, any bits of which are valid.
        unsafe {
            let ask = Getter::<{ opcode::read::<FileProject>(b'X', 31) }, FileProject>::new();
            ioctl(file, ask)
        }
    }

    /// Tells an open file or directory.
    ///
    /// # Errors
    /// As [`FileProject::of`]; `EPERM` for others than the owner.
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
