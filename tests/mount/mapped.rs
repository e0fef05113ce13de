//! Memory-mapped files.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;

/// A shared mapping of the first bytes of a file.
///
/// The file must not become shorter than the mapping while it exists. These tests use one thread per file.
pub struct Mapping {
    start: *mut c_void,
    length: usize,
}

impl Mapping {
    pub fn new(file: &File, length: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: the kernel chooses an unused address range, and only drop unmaps it.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        let start = start.unwrap();
        Self { start, length }
    }
    pub fn read(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= self.length);
        let mut bytes = vec![0; count];
        // SAFETY: the range is inside the mapping, which is valid; the vector is separate and has the same
        // length.
        unsafe {
            let from = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count);
        }
        bytes
    }
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: the range is inside the mapping, which is valid and writable; no other code accesses it.
        unsafe {
            let to = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
    pub fn sync(&self) {
        self.try_sync().unwrap();
    }
    pub fn try_sync(&self) -> Result<(), rustix::io::Errno> {
        // SAFETY: the range is exactly the mapping.
        unsafe { rustix::mm::msync(self.start, self.length, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping, and no references to it exist.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}
