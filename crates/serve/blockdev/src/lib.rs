//! Layer `serve`: volumes as block devices of the system.
//!
//! A volume is served as the only file of a FUSE mount that no mount table shows, and a loop device makes a block
//! device of this file. [`BlockDevice`] is both together; [`DeviceLinks`] keeps the links below `/dev/zvol`. This crate
//! knows volumes, and neither pools nor datasets.
//!
//! Page: `docs/volumes.md`.
#![deny(unsafe_code)]

mod device;
mod disk;
mod image;
// `ioctl` on loop devices, and a table of descriptors of its own for two threads.
#[allow(unsafe_code)]
mod kernel;
mod links;
mod server;
mod session;

pub use device::{
    BlockDevice, BlockDeviceError, DeviceOptions, clear_left, is_block_device, missing, tag_of,
};
pub use disk::{Disk, DiskError};
pub use links::DeviceLinks;
