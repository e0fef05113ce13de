//! Layer `file`: volumes, as ranges of bytes.
//!
//! A [`Volume`] is one data object and a size. A [`LiveVolume`] can be written. This crate uses datasets and
//! objects; it does not depend on block devices or protocols.
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
