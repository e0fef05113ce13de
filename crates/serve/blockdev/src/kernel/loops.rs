//! Requests to loop devices (`linux/loop.h`) and to any block device.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

const CLR_FD: Opcode = 0x4c01;
const SET_STATUS: Opcode = 0x4c04;
const GET_STATUS: Opcode = 0x4c05;
const SET_CAPACITY: Opcode = 0x4c07;
const CONFIGURE: Opcode = 0x4c0a;
const CONTROL_GET_FREE: Opcode = 0x4c82;
/// `BLKROSET`.
const SET_READ_ONLY: Opcode = 0x125d;

/// `LO_FLAGS_READ_ONLY`.
pub(crate) const FLAG_READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`: it is detached when its last user closes it.
pub(crate) const FLAG_AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_PARTSCAN`.
pub(crate) const FLAG_PARTITIONS: u32 = 8;
/// `LO_FLAGS_DIRECT_IO`: its requests pass the page cache of the file.
const FLAG_DIRECT_IO: u32 = 16;

const INFO_BYTES: usize = 232;
const CONFIG_BYTES: usize = 304;
const FLAGS_AT: usize = 52;
const NAME_AT: usize = 56;
/// The name ends with a zero byte.
const NAME_BYTES: usize = 64;

/// `struct loop_info64`.
#[derive(Clone)]
pub(crate) struct LoopStatus([u8; INFO_BYTES]);

impl LoopStatus {
    fn new(flags: u32, name: &str) -> Self {
        let mut status = Self([0; INFO_BYTES]);
        status.set_flags(flags);
        let room = status.0.iter_mut().skip(NAME_AT).take(NAME_BYTES - 1);
        room.zip(name.bytes()).for_each(|(to, from)| *to = from);
        status
    }
    pub(crate) fn flags(&self) -> u32 {
        let bytes = self.0.get(FLAGS_AT..).and_then(|b| b.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }
    pub(crate) fn set_flags(&mut self, flags: u32) {
        let room = self.0.iter_mut().skip(FLAGS_AT);
        room.zip(flags.to_ne_bytes())
            .for_each(|(to, from)| *to = from);
    }
    /// The name that the program which attached it has given.
    pub(crate) fn name(&self) -> String {
        let bytes = self.0.iter().skip(NAME_AT).take(NAME_BYTES);
        let bytes: Vec<u8> = bytes.copied().take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A request without argument whose result is a number.
struct NumberOf<const OPCODE: Opcode>;

// SAFETY: the request has no argument, and the kernel writes nothing.
unsafe impl<const OPCODE: Opcode> Ioctl for NumberOf<OPCODE> {
    type Output = i32;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> Opcode {
        OPCODE
    }
    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }
    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// The number of a loop device that is free now. The kernel makes one if none is.
pub(crate) fn free_number(control: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: it is the opcode of a request without argument.
    let number = unsafe { ioctl(control, NumberOf::<CONTROL_GET_FREE>)? };
    u32::try_from(number).map_err(|_| Errno::NODEV)
}

/// Attaches a file to a free loop device, with sectors of `sector_bytes`. `EBUSY` if it is not free.
pub(crate) fn configure(
    device: impl AsFd,
    file: impl AsFd,
    sector_bytes: u32,
    flags: u32,
    name: &str,
) -> Result<(), Errno> {
    let mut config = [0u8; CONFIG_BYTES];
    let number = file.as_fd().as_raw_fd().to_ne_bytes();
    let status = LoopStatus::new(flags | FLAG_DIRECT_IO, name);
    let parts = number.into_iter().chain(sector_bytes.to_ne_bytes());
    let parts = parts.chain(status.0);
    config
        .iter_mut()
        .zip(parts)
        .for_each(|(to, from)| *to = from);
    // SAFETY: the kernel reads `struct loop_config`, which has this length. The file stays open during the call.
    unsafe { ioctl(device, Setter::<CONFIGURE, [u8; CONFIG_BYTES]>::new(config)) }
}

/// `ENXIO` if no file is attached.
pub(crate) fn status(device: impl AsFd) -> Result<LoopStatus, Errno> {
    // SAFETY: the kernel fills `struct loop_info64`, which has this length, and any bytes are valid.
    let bytes = unsafe { ioctl(device, Getter::<GET_STATUS, [u8; INFO_BYTES]>::new())? };
    Ok(LoopStatus(bytes))
}

pub(crate) fn set_status(device: impl AsFd, status: &LoopStatus) -> Result<(), Errno> {
    // SAFETY: the kernel reads `struct loop_info64`, which has this length.
    unsafe {
        ioctl(
            device,
            Setter::<SET_STATUS, [u8; INFO_BYTES]>::new(status.0),
        )
    }
}

/// Detaches the file. If other programs have the device open, the kernel detaches it when the last of them closes it.
pub(crate) fn clear(device: impl AsFd) -> Result<(), Errno> {
    // SAFETY: a request without argument.
    unsafe { ioctl(device, NoArg::<CLR_FD>::new()) }
}

/// Lets the device have the size that its file has now.
pub(crate) fn resize(device: impl AsFd) -> Result<(), Errno> {
    // SAFETY: a request without argument.
    unsafe { ioctl(device, NoArg::<SET_CAPACITY>::new()) }
}

pub(crate) fn set_read_only(device: impl AsFd, is_read_only: bool) -> Result<(), Errno> {
    let value = i32::from(is_read_only);
    // SAFETY: the kernel reads one `int`.
    unsafe { ioctl(device, Setter::<SET_READ_ONLY, i32>::new(value)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_flags_and_name() {
        let mut status = LoopStatus::new(FLAG_PARTITIONS, "millpond 1:2 tank/disk");
        assert_eq!(status.flags(), FLAG_PARTITIONS);
        assert_eq!(status.name(), "millpond 1:2 tank/disk");
        status.set_flags(FLAG_AUTOCLEAR);
        assert_eq!(status.flags(), FLAG_AUTOCLEAR);
        let long = LoopStatus::new(0, &"x".repeat(100));
        assert_eq!(long.name().len(), NAME_BYTES - 1);
        assert_eq!(long.0.get(NAME_AT + NAME_BYTES), Some(&0));
    }
}
