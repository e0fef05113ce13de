//! Layer `file`: volumes, as ranges of bytes.
//!
//! A [`Volume`] is one object of data and a size. This crate knows datasets and objects; it knows no
//! block device and no protocol. A [`LiveVolume`] can be written.
//!
//! ```no_run
//! # fn example(dataset: &millpond_dataset::Dataset) -> Result<(), millpond_volume::VolumeError> {
//! let volume = millpond_volume::Volume::open(dataset, None)?;
//! let mut sector = [0u8; 512];
//! volume.read(0, &mut sector)?;
//! # Ok(()) }
//! ```
//!
//! Page: `docs/format/volume.md`.
#![forbid(unsafe_code)]

mod error;
mod extent;
mod live;
mod volume;

pub use error::VolumeError;
pub use extent::{VolumeExtent, VolumeExtents};
pub use live::{LiveVolume, ReplayBlock, create_volume};
pub use volume::Volume;
